//! Dynamic libraries of macOS (Mach-O) for x86-64 and arm64:
//!
//! ```text
//! R X  __TEXT      headers, code, constants, weights among them
//! R W  __DATA      data
//! R    __LINKEDIT  places of absolute addresses, exports, symbols, signature
//! ```
//!
//! Offsets in the file are addresses.

mod commands;
pub(super) mod layout;
mod signature;
mod tables;

use super::{
    image::{File, Image},
    pieces::{MAX_BYTES, Piece, pieces, too_large},
    section::{SectionKind, extent},
};
use crate::error::Result;
use commands::Commands;
use layout::{Cpu, PAGE, Part, Segment};
use object::macho;
use sha2::{Digest, Sha256};

/// Adds the headers and the tables, signs the file, and returns it. `library` is its name.
pub(super) fn link<'o>(
    mut image: Image<'o>,
    file: &File<'o>,
    cpu: Cpu,
    library: &str,
) -> Result<Vec<Piece<'o>>> {
    // The headers take the first page.
    image.place(PAGE, PAGE);
    image.relocate(file)?;
    let parts = parts(&image);
    let mut segments = segments(&image);
    let at = segments.last().map_or(PAGE, Segment::end);
    if at > MAX_BYTES {
        return Err(too_large(at));
    }

    let tables = tables::tables(&image, &parts, &segments, at);
    let signature_at = at + tables.bytes.0.len() as u64;
    let signature_bytes = signature::bytes(signature_at, library);
    let protection = macho::VM_PROT_READ.0;
    let len = signature_at + signature_bytes - at;
    segments.push(Segment { name: "__LINKEDIT", protection, address: at, len });

    image.sections.sort_by_key(|section| section.address);
    let mut all: Vec<Piece<'_>> = pieces(image.sections).collect();
    all.push((at, tables.bytes.0.into()));
    let contents = signature::page_hashes(&all, PAGE, signature_at);

    let commands = Commands {
        cpu,
        library,
        parts: &parts,
        segments: &segments,
        places: &tables.places,
        signature_at,
        signature_bytes,
    };
    let mut head = commands.head(&Sha256::digest(contents.concat()).into());
    head.align(PAGE as usize);
    all.insert(0, (0, head.0.into()));

    let hashes = [signature::page_hashes(&all[..1], 0, PAGE), contents].concat();
    let code_bytes = segments[0].len;
    all.push((signature_at, signature::signature(&hashes, signature_at, code_bytes, library).into()));
    Ok(all)
}

/// The sections of the file that the object's sections become.
fn parts(image: &Image<'_>) -> Vec<Part> {
    let code = macho::S_ATTR_PURE_INSTRUCTIONS.0 | macho::S_ATTR_SOME_INSTRUCTIONS.0;
    let kinds = [
        ("__TEXT", "__text", SectionKind::Code, code),
        ("__TEXT", "__const", SectionKind::Constant, 0),
        ("__DATA", "__const", SectionKind::Relocated, 0),
        ("__DATA", "__data", SectionKind::Data, 0),
    ];
    let part = |(segment, name, kind, flags)| {
        let extent = extent(&image.sections, &[kind])?;
        Some(Part { segment, name, flags, address: extent.start, len: extent.end - extent.start, kind })
    };
    kinds.into_iter().filter_map(part).collect()
}

/// The segments of the object's sections.
fn segments(image: &Image<'_>) -> Vec<Segment> {
    let text_end =
        extent(&image.sections, &[SectionKind::Code, SectionKind::Constant]).map_or(0, |extent| extent.end);
    let protection = macho::VM_PROT_READ.0 | macho::VM_PROT_EXECUTE.0;
    let mut segments = vec![Segment { name: "__TEXT", protection, address: 0, len: text_end.max(PAGE) }];
    if let Some(data) = extent(&image.sections, &[SectionKind::Relocated, SectionKind::Data]) {
        let protection = macho::VM_PROT_READ.0 | macho::VM_PROT_WRITE.0;
        segments.push(Segment {
            name: "__DATA",
            protection,
            address: data.start,
            len: data.end - data.start,
        });
    }
    segments
}
