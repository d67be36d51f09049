//! The machines, segments and sections of dynamic libraries.

use crate::emit::link::section::SectionKind;

/// Segments begin at multiples of the largest page size.
pub(super) const PAGE: u64 = 1 << 14;

/// The machine of a library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cpu {
    X86_64,
    Arm64,
}

/// A section of the file.
pub(super) struct Part {
    pub(super) segment: &'static str,
    pub(super) name: &'static str,
    pub(super) flags: u32,
    pub(super) address: u64,
    pub(super) len: u64,
    /// The sections of the object in it.
    pub(super) kind: SectionKind,
}

/// A segment of the file, in the order of their numbers.
pub(super) struct Segment {
    pub(super) name: &'static str,
    pub(super) protection: u32,
    pub(super) address: u64,
    pub(super) len: u64,
}

impl Segment {
    /// The first page after the segment.
    pub(super) fn end(&self) -> u64 {
        (self.address + self.len).next_multiple_of(PAGE)
    }
}
