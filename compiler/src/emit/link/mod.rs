//! An object as a shared object, for x86-64 ELF: laid out, relocated and written without a linker.
//!
//! Objects made here are simple. They import nothing. A reference is either relative to the instruction pointer, or an
//! absolute address in writable data that points into the object. So linking is a choice of addresses:
//!
//! ```text
//! R    headers, .hash, .dynsym, .dynstr, .rela.dyn
//! R X  code
//! R    constants, weights among them
//! R W  .dynamic and other data that is read-only after relocation
//! R W  data
//! ```
//!
//! Offsets in the file are addresses. Weights make up most of the file and need no relocation. The object only reserves
//! their space; they are copied from memory straight into the file.

mod image;
mod section;
mod tables;

use crate::error::Result;
use image::Image;
use object::{elf, read::elf::ElfFile64};
use section::{PAGE, Section, SectionKind};
use std::borrow::Cow;
use tables::{Bytes, SECTION_BYTES};

/// Bytes of the file's header, and of an entry of the table of segments.
const HEADER_BYTES: u64 = 64;
const SEGMENT_BYTES: u64 = 56;

/// Upper bound of the number of segments: one of each kind, and those that only describe others.
const MAX_SEGMENTS: u64 = 8;

/// A piece of a file: its offset and its bytes.
pub(super) type Piece<'o> = (u64, Cow<'o, [u8]>);

/// The shared object that an object for x86-64 becomes, as pieces in the order of the file.
///
/// # Errors
/// When the object contradicts itself, or contains something that symshape's objects never contain.
pub(super) fn link<'o>(object: &'o [u8], weights: Vec<(u64, &'o [u8])>) -> Result<Vec<Piece<'o>>> {
    let file = ElfFile64::parse(object).map_err(image::broken)?;
    let mut image = Image::of(&file, weights)?;
    tables::add(&mut image);
    image.place(HEADER_BYTES + MAX_SEGMENTS * SEGMENT_BYTES);
    image.relocate(&file)?;
    tables::fill(&mut image);
    Ok(pieces(image))
}

/// Everything in the order of the file.
fn pieces(image: Image<'_>) -> Vec<Piece<'_>> {
    let Image { mut sections, symbols, .. } = image;
    sections.sort_by_key(|part| part.address);
    let end = sections.last().map_or(0, Section::end);
    let sections_at = end.next_multiple_of(8);
    let section_table = tables::section_table(&sections, &symbols);
    let head = head(&sections, sections_at);
    let mut pieces: Vec<Piece<'_>> = vec![(0, Cow::Owned(head.0))];
    for part in sections {
        let lent = |(at, bytes)| (part.address + at, Cow::Borrowed(bytes));
        match part.lent.is_empty() {
            true => pieces.push((part.address, part.bytes)),
            false => pieces.extend(part.lent.into_iter().map(lent)),
        }
    }
    pieces.push((sections_at, Cow::Owned(section_table.0)));
    debug_assert!(pieces.is_sorted_by_key(|(at, _)| *at));
    pieces
}

/// The file's header and the descriptions of its segments.
fn head(sections: &[Section<'_>], sections_at: u64) -> Bytes {
    let segments = segments(sections);
    let n_segments = segments.0.len() as u64 / SEGMENT_BYTES;
    let names = sections.iter().position(|part| part.name == tables::TITLES).map_or(0, |number| number + 1);
    let mut bytes = Bytes::default();
    bytes.raw(&elf::ELFMAG).raw(&[elf::ELFCLASS64.0, elf::ELFDATA2LSB.0, elf::EV_CURRENT.0]).zeros(9);
    bytes.u16(elf::ET_DYN.0).u16(elf::EM_X86_64.0).u32(u32::from(elf::EV_CURRENT.0));
    bytes.u64(0).u64(HEADER_BYTES).u64(sections_at).u32(0);
    bytes.u16(HEADER_BYTES as u16).u16(SEGMENT_BYTES as u16).u16(n_segments as u16);
    bytes.u16(SECTION_BYTES as u16).u16(sections.len() as u16 + 1).u16(names as u16);
    bytes.raw(&segments.0);
    bytes
}

fn segments(sections: &[Section<'_>]) -> Bytes {
    let mut bytes = Bytes::default();
    let mut segment = |kind: u32, flags: u32, at: u64, in_file: u64, in_memory: u64, align: u64| {
        bytes.u32(kind).u32(flags).u64(at).u64(at).u64(at).u64(in_file).u64(in_memory).u64(align);
    };
    for kind in SectionKind::MAPPED {
        let of = || sections.iter().filter(|part| part.kind == kind);
        let (Some(first), Some(end)) = (of().map(|part| part.address).min(), of().map(Section::end).max())
        else {
            continue;
        };
        let first = if kind == SectionKind::Head { 0 } else { first };
        // Pages become read-only as a whole.
        let last = if kind == SectionKind::Relocated { end.next_multiple_of(PAGE) } else { end };
        segment(elf::PT_LOAD.0, kind.flags(), first, end - first, last - first, PAGE);
        if kind == SectionKind::Relocated {
            segment(elf::PT_GNU_RELRO.0, elf::PF_R.0, first, end - first, last - first, 1);
        }
    }
    if let Some(part) = sections.iter().find(|part| part.name == tables::DYNAMIC) {
        let len = part.len();
        segment(elf::PT_DYNAMIC.0, elf::PF_R.0 | elf::PF_W.0, part.address, len, len, 8);
    }
    segment(elf::PT_GNU_STACK.0, elf::PF_R.0 | elf::PF_W.0, 0, 0, 0, 16);
    bytes
}
