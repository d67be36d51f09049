//! The tables of a dynamic-link library: exports, and the places of absolute addresses.

use crate::emit::link::{bytes::ByteWriter, image::Image, section::Symbol};
use object::pe;

/// Unit of addresses and of offsets in the file.
pub(super) const PAGE: u64 = 4096;

/// Bytes of the header of the exports.
const EXPORT_HEADER_BYTES: usize = 40;

/// The exports, for the address `at`. Loaders search the names by bisection.
pub(super) fn exports(image: &Image<'_>, at: u64, library: &str) -> ByteWriter {
    let mut symbols: Vec<&Symbol<'_>> = image.symbols.iter().filter(|symbol| symbol.is_exported()).collect();
    symbols.sort_by_key(|symbol| symbol.name);
    let count = symbols.len();

    let functions_at = at as usize + EXPORT_HEADER_BYTES;
    let names_at = functions_at + 4 * count;
    let ordinals_at = names_at + 4 * count;
    let text_at = ordinals_at + 2 * count;

    let mut text = ByteWriter::default();
    text.raw(library.as_bytes()).zeros(1);
    let mut names = ByteWriter::default();
    for symbol in &symbols {
        names.u32((text_at + text.0.len()) as u32);
        text.raw(symbol.name).zeros(1);
    }

    let mut bytes = ByteWriter::default();
    // The name of the library; the first ordinal, and the numbers of functions and names.
    bytes.zeros(12).u32(text_at as u32).u32(1).u32(count as u32).u32(count as u32);
    bytes.u32(functions_at as u32).u32(names_at as u32).u32(ordinals_at as u32);
    symbols.iter().for_each(|symbol| _ = bytes.u32(image.address(symbol) as u32));
    bytes.raw(&names.0);
    (0..count as u16).for_each(|ordinal| _ = bytes.u16(ordinal));
    bytes.raw(&text.0);
    bytes
}

/// The places of absolute addresses: a block for each page that has some.
pub(super) fn relocations(image: &Image<'_>) -> ByteWriter {
    let mut places: Vec<u64> = image.absolutes.iter().map(|(place, _)| *place).collect();
    places.sort_unstable();

    let mut bytes = ByteWriter::default();
    for block in places.chunk_by(|a, b| a / PAGE == b / PAGE) {
        // Blocks are whole words of 32 bits; an entry of zero has no effect.
        let n_entries = block.len().next_multiple_of(2);
        let page = block[0] / PAGE * PAGE;
        bytes.u32(page as u32).u32((8 + 2 * n_entries) as u32);
        for place in block {
            bytes.u16(pe::IMAGE_REL_BASED_DIR64.0 << 12 | (place - page) as u16);
        }
        bytes.align(4);
    }
    bytes
}
