//! Weights files: files with the constants of an artefact, which processes share.
//!
//! [`crate::abi::WeightsHeader`] describes the format. The header, the size and the layout of a file are always
//! checked; `Weights::verify` reads all of it.

#[cfg(feature = "std")]
mod file;

use crate::{
    abi::{WEIGHTS_ALIGN, WEIGHTS_MAGIC, WEIGHTS_VERSION, WeightsDesc, WeightsHeader},
    bytes::{array_at, u32_at, u64_at},
};
use core::mem::offset_of;

#[cfg(feature = "std")]
pub use file::{SegmentInfo, Weights, WeightsError};

/// The address of weights must be a multiple of this.
const ALIGN_BYTES: usize = 64;

/// Reads the header of a weights file.
///
/// # Errors
/// The bytes are not the beginning of a weights file of this version.
pub(crate) fn read_header(bytes: &[u8]) -> Result<WeightsHeader, &'static str> {
    if bytes.len() < WEIGHTS_ALIGN || u64_at(bytes, offset_of!(WeightsHeader, magic)) != WEIGHTS_MAGIC {
        return Err("it is not a weights file");
    }
    let header = WeightsHeader {
        magic: WEIGHTS_MAGIC,
        version: u32_at(bytes, offset_of!(WeightsHeader, version)),
        n_segments: u32_at(bytes, offset_of!(WeightsHeader, n_segments)),
        bytes: u64_at(bytes, offset_of!(WeightsHeader, bytes)),
        table_offset: u64_at(bytes, offset_of!(WeightsHeader, table_offset)),
        artefact: array_at(bytes, offset_of!(WeightsHeader, artefact)),
        levels: array_at(bytes, offset_of!(WeightsHeader, levels)),
        hash: array_at(bytes, offset_of!(WeightsHeader, hash)),
    };
    if header.version == WEIGHTS_VERSION {
        Ok(header)
    } else {
        Err(
            "it is a weights file of another format version: recompile the model with this version of symshape",
        )
    }
}

/// Checks that weights in memory belong to an artefact and are complete.
///
/// # Errors
/// They don't, or their address is not a multiple of 64.
pub(crate) fn check(bytes: &[u8], desc: &WeightsDesc) -> Result<(), &'static str> {
    let header = read_header(bytes)?;
    if header.artefact != desc.artefact {
        return Err("it belongs to another artefact");
    }
    // The length of names may differ, so the sizes of files for one artefact may.
    if header.table_offset != desc.table_offset {
        return Err("its header is damaged: its weights have another size than those of the artefact");
    }
    if header.bytes != bytes.len() as u64 || header.table_offset > header.bytes {
        return Err("it is truncated, or has more bytes than its header states");
    }
    if bytes.as_ptr().align_offset(ALIGN_BYTES) != 0 {
        return Err("its address is not a multiple of 64");
    }
    Ok(())
}
