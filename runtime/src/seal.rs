//! Seals: the hashes at the end of an artefact's file, which cover all of its other bytes.
//!
//! ```text
//! the artefact  parts one after another, without gaps
//! the table     an entry for each part: name (16 bytes), offset, bytes (8 each), BLAKE3 hash (32)
//! the footer    magic (8), version, number of parts (4 each), bytes of the file (8), zero (8), hash (32)
//! ```
//!
//! The hash of the footer covers the table and the rest of the footer. Loaders and linkers ignore bytes at the end of a
//! file, so a sealed object or shared object works as before. A seal tells damage from a complete file; it does not
//! tell who wrote the file.

use core::ops::Range;
use std::{
    format,
    string::{String, ToString},
    vec::Vec,
};

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
    /// Its name, such as `code`, of at most 16 bytes.
    pub name: String,
    /// Its place in the file.
    pub range: Range<usize>,
}

/// The bytes to append to a file, given as pieces. The parts must cover the pieces in order and without gaps, and a
/// part is inside of one piece.
///
/// # Panics
/// When they don't, or a name has more than 16 bytes.
pub fn seal(pieces: &[&[u8]], parts: &[SealedPart]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.len() * ENTRY_BYTES + FOOTER_BYTES);
    let mut end = 0;
    let mut pieces = pieces.iter();
    let mut rest: &[u8] = &[];
    for part in parts {
        assert!(part.range.start == end && part.name.len() <= NAME_BYTES);
        while rest.is_empty() && !part.range.is_empty() {
            rest = pieces.next().expect("the parts cover the pieces");
        }
        let (content, tail) = rest.split_at(part.range.len());
        rest = tail;
        end = part.range.end;
        let mut name = [0; NAME_BYTES];
        name[..part.name.len()].copy_from_slice(part.name.as_bytes());
        bytes.extend(name);
        bytes.extend((part.range.start as u64).to_le_bytes());
        bytes.extend((part.range.len() as u64).to_le_bytes());
        bytes.extend(blake3::hash(content).as_bytes());
    }
    assert!(rest.is_empty() && pieces.all(|piece| piece.is_empty()), "the parts cover the pieces");

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
    let no_seal =
        || "it has no seal at its end: it is truncated, damaged, or not written by this symc".to_string();
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
        let name = core::str::from_utf8(name).map_err(|_| damaged())?.to_string();
        let begin = usize::try_from(u64_at(entry, NAME_BYTES)).map_err(|_| damaged())?;
        let len = usize::try_from(u64_at(entry, NAME_BYTES + 8)).map_err(|_| damaged())?;
        let range = begin..begin.checked_add(len).filter(|end| *end <= table_at).ok_or_else(damaged)?;
        if range.start != end {
            return Err(damaged());
        }
        end = range.end;
        if blake3::hash(&file[range.clone()]).as_bytes()[..] != entry[NAME_BYTES + 16..] {
            return Err(format!("its {name} is damaged: bytes {}..{} were changed", range.start, range.end));
        }
        parts.push(SealedPart { name, range });
    }
    if end == table_at { Ok(parts) } else { Err(damaged()) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u64_at(bytes, at) as u32
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
