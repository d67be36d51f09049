//! The ad-hoc signature of a dynamic library: hashes of its pages, without a certificate. Macs with arm64 load no
//! library without a signature.
//!
//! Its numbers are big-endian.

use crate::emit::link::pieces::Piece;
use object::macho;
use sha2::{Digest, Sha256};

/// Bytes of a hash.
const HASH_BYTES: usize = 32;

/// Unit of hashes in the file.
const HASHED_PAGE: u64 = 4096;

/// Bytes before the directory, and of the directory without its text and hashes.
const HEAD_BYTES: u64 = 20;
const DIRECTORY_BYTES: u64 = 88;

/// Bytes of the signature at the offset `at`, of a library of this name.
pub(super) fn bytes(at: u64, library: &str) -> u64 {
    let n_pages = at.div_ceil(HASHED_PAGE);
    (HEAD_BYTES + DIRECTORY_BYTES + library.len() as u64 + 1 + n_pages * HASH_BYTES as u64)
        .next_multiple_of(16)
}

/// The signature of a file with these hashes of the pages before `at`. Its first `code_bytes` bytes are executable.
pub(super) fn signature(hashes: &[[u8; HASH_BYTES]], at: u64, code_bytes: u64, library: &str) -> Vec<u8> {
    let hashes_at = DIRECTORY_BYTES + library.len() as u64 + 1;
    let directory_len = hashes_at + (hashes.len() * HASH_BYTES) as u64;

    let mut out: Vec<u8> = Vec::new();
    let mut words =
        |values: &[u64]| values.iter().for_each(|value| out.extend((*value as u32).to_be_bytes()));
    // One blob, the directory.
    words(&[u64::from(macho::CSMAGIC_EMBEDDED_SIGNATURE), HEAD_BYTES + directory_len, 1]);
    words(&[u64::from(macho::CSSLOT_CODEDIRECTORY.0), HEAD_BYTES]);
    // The version has limits of the executable segment. Tools may replace what a linker signed ad hoc.
    let flags = macho::CS_ADHOC.0 | macho::CS_LINKER_SIGNED.0;
    words(&[u64::from(macho::CSMAGIC_CODEDIRECTORY), directory_len]);
    words(&[u64::from(macho::CS_SUPPORTSEXECSEG.0), u64::from(flags)]);
    // No special hashes: these are for bundles.
    words(&[hashes_at, DIRECTORY_BYTES, 0, hashes.len() as u64, at]);
    out.extend([HASH_BYTES as u8, macho::CS_HASHTYPE_SHA256.0, 0, HASHED_PAGE.trailing_zeros() as u8]);
    // Fields that are not used: spare, scatter, team, spare, and a limit beyond 32 bits.
    out.extend([0; 24]);
    // The executable segment: its offset, its length, and no flags.
    for value in [0, code_bytes, 0] {
        out.extend(u64::to_be_bytes(value));
    }

    out.extend(library.as_bytes());
    out.push(0);
    hashes.iter().for_each(|hash| out.extend(hash));
    out.resize(bytes(at, library) as usize, 0);
    out
}

/// The hashes of the pages of a file from `start` to `end`. Bytes between the pieces are zero.
pub(super) fn page_hashes(pieces: &[Piece<'_>], start: u64, end: u64) -> Vec<[u8; HASH_BYTES]> {
    let mut hashes = Vec::new();
    let mut page = Vec::new();
    let mut first = 0;
    let mut at = start;
    while at < end {
        let page_end = (at + HASHED_PAGE).min(end);
        page.clear();
        page.resize((page_end - at) as usize, 0);

        // Pieces are in ascending order.
        while first < pieces.len() && piece_end(&pieces[first]) <= at {
            first += 1;
        }
        for (offset, bytes) in pieces[first..].iter().take_while(|(offset, _)| *offset < page_end) {
            let from = at.max(*offset);
            let to = page_end.min(offset + bytes.len() as u64);
            if from < to {
                page[(from - at) as usize..(to - at) as usize]
                    .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
            }
        }
        hashes.push(Sha256::digest(&page).into());
        at = page_end;
    }
    hashes
}

fn piece_end((offset, bytes): &Piece<'_>) -> u64 {
    offset + bytes.len() as u64
}
