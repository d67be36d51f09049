//! Dynamic-link libraries of Windows (PE32+) for x86-64:
//!
//! ```text
//! R    headers
//! R X  .text   code
//! R    .rdata  constants, weights among them; data that is read-only after relocation
//! R W  .data   data
//! R    .edata  exports
//! R    .reloc  places of absolute addresses
//! ```
//!
//! Both alignments of the file are a page, so offsets in the file are addresses relative to the image's base.

mod tables;

use super::{
    bytes::ByteWriter,
    image::{File, Image},
    pieces::{MAX_BYTES, Piece, pieces, too_large},
    section::{SectionKind, extent},
};
use crate::error::Result;
use object::pe;
use tables::PAGE;

/// The base that the file is linked for. Loaders choose another one.
const BASE: u64 = 0x1_8000_0000;

/// Offset of the signature of the headers, bytes of the header after it, and its number of directories.
const SIGNATURE_AT: u32 = 64;
const OPTIONAL_HEADER_BYTES: u16 = 240;
const N_DIRECTORIES: usize = 16;

/// Indices of directories.
const EXPORTS: usize = 0;
const RELOCATIONS: usize = 5;

/// Oldest major version of Windows that loads the file: Vista.
const WINDOWS_VERSION: u16 = 6;

/// Address space and memory for the stack and the heap of a program. Libraries have neither.
const RESERVED_BYTES: u64 = 1 << 20;

const READ: u32 = pe::IMAGE_SCN_CNT_INITIALIZED_DATA.0 | pe::IMAGE_SCN_MEM_READ.0;

/// A section of the file.
struct Part {
    name: &'static str,
    flags: u32,
    address: u64,
    len: u64,
}

impl Part {
    /// The first page after the section.
    fn end(&self) -> u64 {
        (self.address + self.len).next_multiple_of(PAGE)
    }
}

/// Adds the headers and the tables, and returns the file. `library` is its name.
pub(super) fn link<'o>(mut image: Image<'o>, file: &File<'o>, library: &str) -> Result<Vec<Piece<'o>>> {
    image.base = BASE;
    image.place(PAGE, PAGE);
    image.relocate(file)?;

    let mut parts = parts(&image);
    let mut tables = Vec::new();
    let mut directories = [(0, 0); N_DIRECTORIES];
    for (name, flags, directory) in
        [(".edata", READ, EXPORTS), (".reloc", READ | pe::IMAGE_SCN_MEM_DISCARDABLE.0, RELOCATIONS)]
    {
        let address = parts.last().map_or(PAGE, Part::end);
        let mut bytes = match directory {
            EXPORTS => tables::exports(&image, address, library),
            _ => tables::relocations(&image),
        };
        let len = bytes.0.len() as u64;
        parts.push(Part { name, flags, address, len });
        directories[directory] = (address as u32, len as u32);
        // The file ends with whole pages.
        tables.push((address, std::mem::take(&mut bytes.align(PAGE as usize).0).into()));
    }

    let end = parts.last().map_or(PAGE, Part::end);
    if end > MAX_BYTES {
        return Err(too_large(end));
    }
    let mut all: Vec<Piece<'_>> = vec![(0, head(&parts, end, &directories).0.into())];
    image.sections.sort_by_key(|section| section.address);
    all.extend(pieces(image.sections));
    all.extend(tables);
    Ok(all)
}

/// The sections of the file that the object's sections become.
fn parts(image: &Image<'_>) -> Vec<Part> {
    let code = pe::IMAGE_SCN_CNT_CODE.0 | pe::IMAGE_SCN_MEM_READ.0 | pe::IMAGE_SCN_MEM_EXECUTE.0;
    let kinds: [(&str, &[SectionKind], u32); 3] = [
        (".text", &[SectionKind::Code], code),
        (".rdata", &[SectionKind::Constant, SectionKind::Relocated], READ),
        (".data", &[SectionKind::Data], READ | pe::IMAGE_SCN_MEM_WRITE.0),
    ];
    let part = |(name, kinds, flags)| {
        let extent = extent(&image.sections, kinds)?;
        let len = extent.end - extent.start;
        (len > 0).then_some(Part { name, flags, address: extent.start, len })
    };
    kinds.into_iter().filter_map(part).collect()
}

/// The headers of a file that ends at the address `end`.
fn head(parts: &[Part], end: u64, directories: &[(u32, u32)]) -> ByteWriter {
    let bytes_of = |flag: u32| {
        let of = parts.iter().filter(|part| part.flags & flag != 0);
        of.map(|part| part.end() - part.address).sum::<u64>() as u32
    };
    let code_at = parts.iter().find(|part| part.flags & pe::IMAGE_SCN_CNT_CODE.0 != 0);

    let mut bytes = ByteWriter::default();
    bytes.raw(b"MZ").zeros(58).u32(SIGNATURE_AT).raw(b"PE\0\0");

    let flags =
        pe::IMAGE_FILE_EXECUTABLE_IMAGE.0 | pe::IMAGE_FILE_LARGE_ADDRESS_AWARE.0 | pe::IMAGE_FILE_DLL.0;
    bytes.u16(pe::IMAGE_FILE_MACHINE_AMD64.0).u16(parts.len() as u16).zeros(12);
    bytes.u16(OPTIONAL_HEADER_BYTES).u16(flags);

    // The linker's version, the sizes, no entry point.
    bytes.u16(pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC).u16(1);
    bytes.u32(bytes_of(pe::IMAGE_SCN_CNT_CODE.0)).u32(bytes_of(pe::IMAGE_SCN_CNT_INITIALIZED_DATA.0));
    bytes.u32(0).u32(0).u32(code_at.map_or(0, |part| part.address as u32));

    bytes.u64(BASE).u32(PAGE as u32).u32(PAGE as u32);
    bytes.u16(WINDOWS_VERSION).u16(0).u32(0).u16(WINDOWS_VERSION).u16(0).u32(0);
    // The headers take the first page. There is no checksum.
    bytes.u32(end as u32).u32(PAGE as u32).u32(0);
    let random_base =
        pe::IMAGE_DLLCHARACTERISTICS_HIGH_ENTROPY_VA.0 | pe::IMAGE_DLLCHARACTERISTICS_DYNAMIC_BASE.0;
    bytes.u16(pe::IMAGE_SUBSYSTEM_WINDOWS_GUI.0);
    bytes.u16(random_base | pe::IMAGE_DLLCHARACTERISTICS_NX_COMPAT.0);
    bytes.u64(RESERVED_BYTES).u64(PAGE).u64(RESERVED_BYTES).u64(PAGE).u32(0);

    bytes.u32(directories.len() as u32);
    for (address, len) in directories {
        bytes.u32(*address).u32(*len);
    }
    for part in parts {
        bytes.name(part.name.as_bytes(), 8).u32(part.len as u32).u32(part.address as u32);
        bytes.u32((part.end() - part.address) as u32).u32(part.address as u32).zeros(12).u32(part.flags);
    }
    bytes
}
