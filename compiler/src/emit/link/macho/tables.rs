//! The tables of a dynamic library: places of absolute addresses, exports, and symbols.

use super::layout::{Part, Segment};
use crate::emit::link::{bytes::ByteWriter, image::Image, section::Symbol};
use object::{elf, macho};
use std::ops::Range;

/// Alignment of each table in the file.
const ALIGN: usize = 8;

/// Where the tables are in the file, and the numbers of symbols.
pub(super) struct Places {
    pub(super) absolutes: Range<u64>,
    pub(super) exports: Range<u64>,
    pub(super) symbols: Range<u64>,
    pub(super) names: Range<u64>,
    pub(super) n_local: u32,
    pub(super) n_exported: u32,
}

/// The tables one after another.
pub(super) struct Tables {
    pub(super) bytes: ByteWriter,
    pub(super) places: Places,
}

/// The tables, for the offset `at` of the file.
pub(super) fn tables(image: &Image<'_>, parts: &[Part], segments: &[Segment], at: u64) -> Tables {
    let is_named = |symbol: &&Symbol<'_>| {
        let is_section_or_file =
            symbol.info & 15 == elf::STT_SECTION.0 || symbol.info & 15 == elf::STT_FILE.0;
        symbol.section.is_some() && !symbol.name.is_empty() && !is_section_or_file
    };
    let named = image.symbols.iter().filter(is_named);
    let (exported, local): (Vec<&Symbol<'_>>, Vec<&Symbol<'_>>) =
        named.partition(|symbol| symbol.is_exported());

    let mut bytes = ByteWriter::default();
    let mut add = |table: ByteWriter| {
        let start = at + bytes.0.len() as u64;
        bytes.raw(&table.0);
        let end = at + bytes.0.len() as u64;
        bytes.align(ALIGN);
        start..end
    };
    let absolutes = add(absolutes(image, segments));
    let exports = add(exports(image, &exported));

    let mut names = ByteWriter::default();
    // Offset 0 is no name.
    names.raw(b" ").zeros(1);
    let mut symbols = ByteWriter::default();
    for (group, flags) in [(&local, macho::N_SECT.0), (&exported, macho::N_SECT.0 | macho::N_EXT.0)] {
        for symbol in group {
            symbols.u32(names.0.len() as u32).raw(&[flags, section_number(image, parts, symbol)]).u16(0);
            symbols.u64(image.address(symbol));
            names.raw(b"_").raw(symbol.name).zeros(1);
        }
    }
    let symbols = add(symbols);
    let names = add(names);
    let places = Places {
        absolutes,
        exports,
        symbols,
        names,
        n_local: local.len() as u32,
        n_exported: exported.len() as u32,
    };
    // The signature after the tables needs this alignment.
    bytes.align(16);
    Tables { bytes, places }
}

/// The number of a symbol's section, from 1.
fn section_number(image: &Image<'_>, parts: &[Part], symbol: &Symbol<'_>) -> u8 {
    let kind = symbol.section.map(|section| image.sections[section].kind);
    parts.iter().position(|part| Some(part.kind) == kind).map_or(0, |number| number as u8 + 1)
}

/// The places of absolute addresses, as a program for loaders.
fn absolutes(image: &Image<'_>, segments: &[Segment]) -> ByteWriter {
    let mut places: Vec<u64> = image.absolutes.iter().map(|(place, _)| *place).collect();
    places.sort_unstable();

    let mut bytes = ByteWriter::default();
    bytes.raw(&[macho::REBASE_OPCODE_SET_TYPE_IMM.0 | macho::REBASE_TYPE_POINTER.0]);
    for place in places {
        let number = segments.iter().rposition(|segment| segment.address <= place).unwrap_or(0);
        bytes.raw(&[macho::REBASE_OPCODE_SET_SEGMENT_AND_OFFSET_ULEB.0 | number as u8]);
        bytes.groups(place - segments[number].address);
        bytes.raw(&[macho::REBASE_OPCODE_DO_REBASE_IMM_TIMES.0 | 1]);
    }
    bytes.raw(&[macho::REBASE_OPCODE_DONE.0]);
    bytes
}

/// A node of the tree of names: a prefix that some names share.
#[derive(Default)]
struct Node {
    /// The address of the symbol whose name ends here.
    address: Option<u64>,
    /// The next part of the name, and the index of the node after it.
    edges: Vec<(Vec<u8>, usize)>,
    /// Offset in the table.
    offset: u64,
}

/// The exports as a tree of names.
fn exports(image: &Image<'_>, exported: &[&Symbol<'_>]) -> ByteWriter {
    let mut symbols: Vec<(Vec<u8>, u64)> =
        exported.iter().map(|symbol| ([b"_", symbol.name].concat(), image.address(symbol))).collect();
    symbols.sort();
    let mut nodes = Vec::new();
    add_node(&mut nodes, &symbols, 0);

    // Offsets have as few bytes as possible, so they depend on each other. They only grow, and soon stay.
    loop {
        let mut end = 0;
        let mut is_stable = true;
        for idx in 0..nodes.len() {
            is_stable &= nodes[idx].offset == end;
            nodes[idx].offset = end;
            end += node_bytes(&nodes, idx).0.len() as u64;
        }
        if is_stable {
            break;
        }
    }

    let mut bytes = ByteWriter::default();
    (0..nodes.len()).for_each(|idx| _ = bytes.raw(&node_bytes(&nodes, idx).0));
    bytes
}

/// Adds the node of these sorted names, which share their first `prefix` bytes, and the nodes after it. Returns its
/// index.
fn add_node(nodes: &mut Vec<Node>, symbols: &[(Vec<u8>, u64)], prefix: usize) -> usize {
    let idx = nodes.len();
    nodes.push(Node::default());
    let (ending, longer) = match symbols.split_first() {
        Some((first, rest)) if first.0.len() == prefix => (Some(first), rest),
        _ => (None, symbols),
    };
    nodes[idx].address = ending.map(|(_, address)| *address);

    for group in longer.chunk_by(|a, b| a.0[prefix] == b.0[prefix]) {
        let (first, last) = (&group[0].0, &group[group.len() - 1].0);
        let shared = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let next = add_node(nodes, group, shared);
        nodes[idx].edges.push((first[prefix..shared].to_vec(), next));
    }
    idx
}

/// The bytes of a node: its symbol if there is one, then its edges.
fn node_bytes(nodes: &[Node], idx: usize) -> ByteWriter {
    let node = &nodes[idx];
    let mut symbol = ByteWriter::default();
    if let Some(address) = node.address {
        // No flags: an address of this library.
        symbol.groups(0).groups(address);
    }

    let mut bytes = ByteWriter::default();
    bytes.groups(symbol.0.len() as u64).raw(&symbol.0).raw(&[node.edges.len() as u8]);
    for (part, next) in &node.edges {
        bytes.raw(part).zeros(1).groups(nodes[*next].offset);
    }
    bytes
}
