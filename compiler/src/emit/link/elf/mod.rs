//! Shared objects of ELF for x86-64:
//!
//! ```text
//! R    headers, .hash, .dynsym, .dynstr, .rela.dyn
//! R X  code
//! R    constants, weights among them
//! R W  .dynamic and other data that is read-only after relocation
//! R W  data
//! ```

mod tables;

use super::{
    bytes::ByteWriter,
    image::{File, Image},
    pieces::{Piece, pieces},
    section::{Section, SectionKind, extent},
};
use crate::error::Result;
use object::elf;
use std::ops::Range;
use tables::SECTION_BYTES;

/// Segments begin at multiples of the smallest page size.
const PAGE: u64 = 4096;

/// Bytes of the file's header, and of an entry of the table of segments.
const HEADER_BYTES: u64 = 64;
const SEGMENT_BYTES: u64 = 56;

/// Upper bound of the number of segments: one for each kind of section, and segments that describe other segments.
const MAX_SEGMENTS: u64 = 8;

/// Adds the tables, and returns the file.
pub(super) fn link<'o>(mut image: Image<'o>, file: &File<'o>) -> Result<Vec<Piece<'o>>> {
    tables::add(&mut image);
    image.place(HEADER_BYTES + MAX_SEGMENTS * SEGMENT_BYTES, PAGE);
    image.relocate(file)?;
    tables::fill(&mut image);
    Ok(pieces_of(image))
}

/// The header, the sections and the section table, in the order of the file.
fn pieces_of(image: Image<'_>) -> Vec<Piece<'_>> {
    let Image { mut sections, symbols, .. } = image;
    sections.sort_by_key(|section| section.address);
    let end = sections.last().map_or(0, Section::end);
    let sections_at = end.next_multiple_of(8);
    let section_table = tables::section_table(&sections, &symbols);
    let head = head(&sections, sections_at);

    let mut all: Vec<Piece<'_>> = vec![(0, head.0.into())];
    all.extend(pieces(sections));
    all.push((sections_at, section_table.0.into()));
    debug_assert!(all.is_sorted_by_key(|(at, _)| *at));
    all
}

/// The file's header and its segment table.
fn head(sections: &[Section<'_>], sections_at: u64) -> ByteWriter {
    let segments = segments(sections);
    let n_segments = segments.0.len() as u64 / SEGMENT_BYTES;

    let names = sections
        .iter()
        .position(|section| section.name == tables::SECTION_NAMES)
        .map_or(0, |number| number + 1);

    let mut bytes = ByteWriter::default();
    bytes.raw(&elf::ELFMAG).raw(&[elf::ELFCLASS64.0, elf::ELFDATA2LSB.0, elf::EV_CURRENT.0]).zeros(9);
    bytes.u16(elf::ET_DYN.0).u16(elf::EM_X86_64.0).u32(u32::from(elf::EV_CURRENT.0));

    bytes.u64(0).u64(HEADER_BYTES).u64(sections_at).u32(0);
    bytes.u16(HEADER_BYTES as u16).u16(SEGMENT_BYTES as u16).u16(n_segments as u16);
    bytes.u16(SECTION_BYTES as u16).u16(sections.len() as u16 + 1).u16(names as u16);
    bytes.raw(&segments.0);

    bytes
}

/// The segment table.
fn segments(sections: &[Section<'_>]) -> ByteWriter {
    let mut bytes = ByteWriter::default();
    let mut segment = |kind: u32, flags: u32, at: u64, in_file: u64, in_memory: u64, align: u64| {
        bytes.u32(kind).u32(flags).u64(at).u64(at).u64(at).u64(in_file).u64(in_memory).u64(align);
    };
    for kind in SectionKind::MAPPED {
        let Some(Range { start, end }) = extent(sections, &[kind]) else { continue };
        let first = if kind == SectionKind::Head { 0 } else { start };

        // The loader makes whole pages read-only.
        let last = if kind == SectionKind::Relocated { end.next_multiple_of(PAGE) } else { end };
        segment(elf::PT_LOAD.0, flags(kind), first, end - first, last - first, PAGE);

        if kind == SectionKind::Relocated {
            segment(elf::PT_GNU_RELRO.0, elf::PF_R.0, first, end - first, last - first, 1);
        }
    }

    if let Some(dynamic) = sections.iter().find(|section| section.name == tables::DYNAMIC) {
        let len = dynamic.len();
        segment(elf::PT_DYNAMIC.0, elf::PF_R.0 | elf::PF_W.0, dynamic.address, len, len, 8);
    }

    segment(elf::PT_GNU_STACK.0, elf::PF_R.0 | elf::PF_W.0, 0, 0, 0, 16);
    bytes
}

/// The access rights of the segment of a kind of sections.
fn flags(kind: SectionKind) -> u32 {
    match kind {
        SectionKind::Code => elf::PF_R.0 | elf::PF_X.0,
        SectionKind::Head | SectionKind::Constant | SectionKind::Unmapped => elf::PF_R.0,
        SectionKind::Relocated | SectionKind::Data => elf::PF_R.0 | elf::PF_W.0,
    }
}
