//! Sections and symbols of a shared library.

use crate::tensor::Bytes;
use object::elf;
use std::{borrow::Cow, ops::Range};

/// The section of addresses of functions that loaders run.
pub(crate) const INIT_ARRAY: &str = ".init_array";

/// The section of weights in a file without weights; it only reserves their space.
pub(crate) const WEIGHTS: &str = ".rodata.weights";

/// The use of a section, in the order of the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum SectionKind {
    Head,
    Code,
    Constant,
    Relocated,
    Data,
    Unmapped,
}

impl SectionKind {
    pub(super) const MAPPED: [SectionKind; 5] = [
        SectionKind::Head,
        SectionKind::Code,
        SectionKind::Constant,
        SectionKind::Relocated,
        SectionKind::Data,
    ];
}

/// A section of the shared library.
pub(super) struct Section<'o> {
    pub(super) name: Cow<'o, str>,
    pub(super) kind: SectionKind,
    pub(super) sh_type: u32,
    pub(super) sh_flags: u64,
    pub(super) align: u64,
    pub(super) bytes: Cow<'o, [u8]>,
    /// Weights to write instead of `bytes`, with their offsets in the section.
    pub(super) weights: Vec<(u64, &'o Bytes)>,
    /// Its address in memory, which is also its offset in the file.
    pub(super) address: u64,
}

impl Section<'_> {
    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.weights.last().map_or(self.bytes.len() as u64, |(at, weight)| at + weight.len() as u64)
    }

    /// The first address after the section.
    pub(super) fn end(&self) -> u64 {
        self.address + self.len()
    }
}

/// A symbol of the shared library.
pub(super) struct Symbol<'o> {
    pub(super) name: &'o [u8],
    pub(super) info: u8,
    pub(super) other: u8,
    /// Index of its section in the image; `None` for absolute symbols.
    pub(super) section: Option<usize>,
    /// Offset in the section.
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl Symbol<'_> {
    pub(super) fn is_local(&self) -> bool {
        self.info >> 4 == elf::STB_LOCAL.0
    }

    /// Whether the loader can find the symbol by name.
    pub(super) fn is_exported(&self) -> bool {
        self.section.is_some() && !self.is_local() && self.other & 3 == elf::STV_DEFAULT.0
    }
}

/// The addresses from the first to the last section of these kinds; `None` without such sections.
pub(super) fn extent(sections: &[Section<'_>], kinds: &[SectionKind]) -> Option<Range<u64>> {
    let of = || sections.iter().filter(|section| kinds.contains(&section.kind));
    let start = of().map(|section| section.address).min()?;
    let end = of().map(Section::end).max()?;
    Some(start..end)
}
