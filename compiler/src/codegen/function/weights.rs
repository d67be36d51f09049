//! The places of constants: in the artefact, or in a weights file.
//!
//! A call gets the address of the file as one more input, checks the beginning of the file, and keeps the address in
//! the frame. Segments are at fixed offsets, so the address of a constant is one addition.

use crate::tensor::Bytes;
use cranelift_module::DataId;
use symshape_runtime::abi::WEIGHTS_ALIGN;

/// Small segments begin at multiples of this.
const SMALL_ALIGN: u64 = 64;

/// The memory that holds a constant.
#[derive(Clone, Copy)]
pub(crate) enum ConstantPlace {
    /// A data object of the artefact.
    Object(DataId),
    /// The weights file, at this offset.
    File(u64),
}

/// A constant in a weights file.
#[derive(Clone, Debug)]
pub struct WeightsSegment {
    /// Its name, for messages.
    pub name: String,
    /// Offset in the file.
    pub offset: u64,
    /// Its bytes as kernels read them.
    pub bytes: Bytes,
}

/// The segments of a weights file in the order of their offsets.
#[derive(Clone, Debug, Default)]
pub struct WeightsLayout {
    /// The segments.
    pub segments: Vec<WeightsSegment>,
}

impl WeightsLayout {
    /// The first offset after all segments. The first page belongs to the header.
    pub fn end(&self) -> u64 {
        let end = self.segments.last().map(|segment| segment.offset + segment.bytes.len() as u64);
        end.unwrap_or(WEIGHTS_ALIGN as u64)
    }

    /// Adds a segment and returns its offset.
    pub(crate) fn add(&mut self, name: String, bytes: Bytes) -> u64 {
        let align = if bytes.len() < WEIGHTS_ALIGN { SMALL_ALIGN } else { WEIGHTS_ALIGN as u64 };
        let offset = self.end().next_multiple_of(align);
        self.segments.push(WeightsSegment { name, offset, bytes });
        offset
    }
}
