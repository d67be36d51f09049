//! Seals: the hashes at the end of an artefact's file, which cover all of its other bytes.
//!
//! ```text
//! the artefact  parts one after another, without gaps
//! the table     an entry for each part: name (16 bytes), offset, bytes (8 each), BLAKE3 hash (32)
//! the footer    magic (8), version, number of parts (4 each), bytes of the file (8), zero (8), hash (32)
//! ```
//!
//! The hash of the footer covers the table and the rest of the footer. Loaders and linkers ignore bytes at the end of a
//! file, so they accept a sealed object or shared object. A seal finds damage; it does not tell who wrote the file.

use crate::bytes::{u32_at, u64_at};
use core::ops::Range;
use std::{
    format,
    string::{String, ToString},
    vec::Vec,
};

/// Bytes that are hashed at once.
const CHUNK_BYTES: usize = 16 << 20;

const MAGIC: [u8; 8] = *b"symsseal";
const VERSION: u32 = 1;
const NAME_BYTES: usize = 16;
const ENTRY_BYTES: usize = 64;
const FOOTER_BYTES: usize = 64;
/// Bytes of the footer before its hash.
const FOOTER_HEAD_BYTES: usize = 32;

/// A part of a sealed file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealedPart {
    /// Its name, such as `code`. A seal keeps its first 16 bytes.
    pub name: String,
    /// Its place in the file.
    pub range: Range<usize>,
    hash: [u8; 32],
}

impl SealedPart {
    /// The part with these bytes at the offset `at` of its file.
    pub fn new(name: &str, at: usize, bytes: &[u8]) -> SealedPart {
        SealedPart::new_with(name, at, bytes, &mut |_| {})
    }

    /// As [`SealedPart::new`], and calls `hashed` with each range of the file that is hashed and not read again.
    pub fn new_with(name: &str, at: usize, bytes: &[u8], hashed: &mut dyn FnMut(Range<usize>)) -> SealedPart {
        let mut part = PartHasher::new(name, at);
        for chunk in bytes.chunks(CHUNK_BYTES) {
            let begin = part.end();
            part.update(chunk);
            hashed(begin..part.end());
        }
        part.finish()
    }
}

/// Hashes the bytes of a part piece by piece.
#[derive(Clone, Debug)]
pub struct PartHasher {
    name: String,
    range: Range<usize>,
    hasher: blake3::Hasher,
}

impl PartHasher {
    /// A part without bytes, at the offset `at` of its file.
    pub fn new(name: &str, at: usize) -> PartHasher {
        PartHasher { name: name.to_string(), range: at..at, hasher: blake3::Hasher::new() }
    }

    /// The offset of the next byte in the file.
    pub fn end(&self) -> usize {
        self.range.end
    }

    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.range.end += bytes.len();
    }

    /// The part with all bytes so far.
    pub fn finish(self) -> SealedPart {
        SealedPart { name: self.name, range: self.range, hash: *self.hasher.finalize().as_bytes() }
    }
}

/// The bytes to append to a file with these parts, which follow each other without gaps.
pub fn seal(parts: &[SealedPart]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.len() * ENTRY_BYTES + FOOTER_BYTES);
    for SealedPart { name, range, hash } in parts {
        let mut field = [0; NAME_BYTES];
        field.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte);
        bytes.extend(field);
        bytes.extend((range.start as u64).to_le_bytes());
        bytes.extend((range.len() as u64).to_le_bytes());
        bytes.extend(hash);
    }

    let end = parts.last().map_or(0, |part| part.range.end);
    let total = end + bytes.len() + FOOTER_BYTES;
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((parts.len() as u32).to_le_bytes());
    bytes.extend((total as u64).to_le_bytes());
    bytes.extend([0; 8]);
    let hash = blake3::hash(&bytes);
    bytes.extend(hash.as_bytes());
    bytes
}

/// Compares a whole file with its seal.
///
/// # Errors
/// The reason why the file is refused: it has no seal, is truncated, or a part is damaged, which the reason names.
pub fn check_seal(file: &[u8]) -> Result<Vec<SealedPart>, String> {
    let no_seal = || {
        "it has no seal at its end: it is not an ELF file, or it is truncated, damaged, or not written by this symc"
            .to_string()
    };
    let footer_at = file.len().checked_sub(FOOTER_BYTES).ok_or_else(no_seal)?;
    let footer = &file[footer_at..];
    if footer[..8] != MAGIC {
        return Err(no_seal());
    }
    if u32_at(footer, 8) != VERSION {
        return Err("its seal is damaged, or of another version of symc".to_string());
    }
    let total = u64_at(footer, 16);
    if total != file.len() as u64 {
        return Err(format!("its seal is damaged, or it has {} bytes instead of {total}", file.len()));
    }
    let damaged = || "its seal is damaged".to_string();
    let table_bytes = (u32_at(footer, 12) as usize).checked_mul(ENTRY_BYTES).ok_or_else(damaged)?;
    let table_at = footer_at.checked_sub(table_bytes).ok_or_else(damaged)?;
    let sealed = &file[table_at..footer_at + FOOTER_HEAD_BYTES];
    if blake3::hash(sealed).as_bytes()[..] != footer[FOOTER_HEAD_BYTES..] {
        return Err(damaged());
    }

    let mut parts = Vec::new();
    let mut end = 0;
    for entry in file[table_at..footer_at].chunks_exact(ENTRY_BYTES) {
        let name = entry[..NAME_BYTES].split(|byte| *byte == 0).next().unwrap_or_default();
        let name = core::str::from_utf8(name).map_err(|_| damaged())?;
        let begin = usize::try_from(u64_at(entry, NAME_BYTES)).map_err(|_| damaged())?;
        let len = usize::try_from(u64_at(entry, NAME_BYTES + 8)).map_err(|_| damaged())?;
        let range = begin..begin.checked_add(len).filter(|end| *end <= table_at).ok_or_else(damaged)?;
        if range.start != end {
            return Err(damaged());
        }
        end = range.end;
        let part = SealedPart::new(name, range.start, &file[range.clone()]);
        if part.hash != entry[NAME_BYTES + 16..] {
            return Err(format!("its {name} is damaged: bytes {}..{} were changed", range.start, range.end));
        }
        parts.push(part);
    }
    if end == table_at { Ok(parts) } else { Err(damaged()) }
}
