//! The tables of a shared object: symbols, their names and hashes, relocations, and sections.
//!
//! They are added with their sizes before sections have addresses, and filled in afterwards.

use crate::emit::link::{
    bytes::ByteWriter,
    image::Image,
    section::{INIT_ARRAY, Section, SectionKind, Symbol},
};
use object::elf;
use std::borrow::Cow;

pub(super) const DYNAMIC: &str = ".dynamic";
pub(super) const SECTION_NAMES: &str = ".shstrtab";
const HASH: &str = ".hash";
const EXPORTS: &str = ".dynsym";
const EXPORT_NAMES: &str = ".dynstr";
const ABSOLUTES: &str = ".rela.dyn";
const SYMBOLS: &str = ".symtab";
const NAMES: &str = ".strtab";

/// Bytes of an entry of a symbol table, of `.rela.dyn`, of `.dynamic`, and of `.hash`.
const SYMBOL_BYTES: u64 = 24;
const RELOCATION_BYTES: u64 = 24;
const DYNAMIC_BYTES: u64 = 16;
const HASH_BYTES: u64 = 4;

/// Bytes of an entry of the section table.
pub(super) const SECTION_BYTES: u64 = 64;

/// Adds all tables. Their sizes are final; their contents are not.
pub(super) fn add(image: &mut Image<'_>) {
    let mapped = elf::SHF_ALLOC.0;
    for (name, kind, sh_type, sh_flags) in [
        (HASH, SectionKind::Head, elf::SHT_HASH.0, mapped),
        (EXPORTS, SectionKind::Head, elf::SHT_DYNSYM.0, mapped),
        (EXPORT_NAMES, SectionKind::Head, elf::SHT_STRTAB.0, mapped),
        (ABSOLUTES, SectionKind::Head, elf::SHT_RELA.0, mapped),
        (DYNAMIC, SectionKind::Relocated, elf::SHT_DYNAMIC.0, mapped | elf::SHF_WRITE.0),
        (SYMBOLS, SectionKind::Unmapped, elf::SHT_SYMTAB.0, 0),
        (NAMES, SectionKind::Unmapped, elf::SHT_STRTAB.0, 0),
        (SECTION_NAMES, SectionKind::Unmapped, elf::SHT_STRTAB.0, 0),
    ] {
        let bytes = Cow::Owned(Vec::new());
        image.sections.push(Section {
            name: name.into(),
            kind,
            sh_type,
            sh_flags,
            align: 8,
            bytes,
            weights: Vec::new(),
            address: 0,
        });
    }

    image.absolutes = vec![(0, 0); image.n_absolutes];
    fill(image);
    image.absolutes.clear();
}

/// Fills in all tables.
pub(super) fn fill(image: &mut Image<'_>) {
    let all: Vec<&Symbol<'_>> = image.symbols.iter().collect();
    let exports: Vec<&Symbol<'_>> = image.symbols.iter().filter(|symbol| symbol.is_exported()).collect();
    let export_table = symbol_table(image, &exports);
    let symbol_table = symbol_table(image, &all);

    let mut absolutes = ByteWriter::default();
    for (place, target) in &image.absolutes {
        absolutes.u64(*place).u64(u64::from(elf::R_X86_64_RELATIVE.0)).u64(*target);
    }
    let hash = hash(&exports);
    let mut section_names = ByteWriter::default();
    section_names.zeros(1);
    image.sections.iter().for_each(|section| _ = section_names.raw(section.name.as_bytes()).zeros(1));

    for (name, bytes) in [
        (HASH, hash),
        (EXPORTS, export_table.entries),
        (EXPORT_NAMES, export_table.names),
        (ABSOLUTES, absolutes),
        (SYMBOLS, symbol_table.entries),
        (NAMES, symbol_table.names),
        (SECTION_NAMES, section_names),
    ] {
        section(image, name).bytes = Cow::Owned(bytes.0);
    }
    section(image, DYNAMIC).bytes = Cow::Owned(dynamic(image).0);
}

fn section<'i, 'o>(image: &'i mut Image<'o>, name: &str) -> &'i mut Section<'o> {
    image.sections.iter_mut().find(|section| section.name == name).expect("all tables were added")
}

/// The entries of a symbol table, after an empty entry, and the names that they refer to.
struct SymbolTable {
    entries: ByteWriter,
    names: ByteWriter,
}

fn symbol_table(image: &Image<'_>, symbols: &[&Symbol<'_>]) -> SymbolTable {
    let mut entries = ByteWriter::default();
    let mut names = ByteWriter::default();
    entries.zeros(SYMBOL_BYTES as usize);
    names.zeros(1);

    let order = order(image);
    for symbol in symbols {
        let section = match symbol.section {
            Some(section) => {
                order.iter().position(|other| *other == section).map_or(0, |number| number + 1) as u16
            }
            None => elf::SHN_ABS.0,
        };
        entries.u32(names.0.len() as u32).raw(&[symbol.info, symbol.other]).u16(section);
        entries.u64(image.address(symbol)).u64(symbol.size);
        names.raw(symbol.name).zeros(1);
    }
    SymbolTable { entries, names }
}

/// The sections by address, which is the order of their numbers in the file.
fn order(image: &Image<'_>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..image.sections.len()).collect();
    order.sort_by_key(|section| image.sections[*section].address);
    order
}

/// A hash table with a single chain, since there are few exports.
fn hash(exports: &[&Symbol<'_>]) -> ByteWriter {
    let mut bytes = ByteWriter::default();
    let n = exports.len() as u32;
    bytes.u32(1).u32(n + 1).u32(if n > 0 { 1 } else { 0 });
    bytes.u32(0);
    (1..=n).for_each(|symbol| _ = bytes.u32(if symbol < n { symbol + 1 } else { 0 }));
    bytes
}

/// The table by which loaders find the other tables.
fn dynamic(image: &Image<'_>) -> ByteWriter {
    let section = |name: &str| image.sections.iter().find(|section| section.name == name);
    let address = |name: &str| section(name).map_or(0, |section| section.address);
    let len = |name: &str| section(name).map_or(0, Section::len);
    let mut entries = vec![
        (elf::DT_HASH.0, address(HASH)),
        (elf::DT_STRTAB.0, address(EXPORT_NAMES)),
        (elf::DT_SYMTAB.0, address(EXPORTS)),
        (elf::DT_STRSZ.0, len(EXPORT_NAMES)),
        (elf::DT_SYMENT.0, SYMBOL_BYTES),
        (elf::DT_RELA.0, address(ABSOLUTES)),
        (elf::DT_RELASZ.0, len(ABSOLUTES)),
        (elf::DT_RELAENT.0, RELOCATION_BYTES),
        (elf::DT_RELACOUNT.0, len(ABSOLUTES) / RELOCATION_BYTES),
    ];
    if len(INIT_ARRAY) > 0 {
        entries
            .extend([(elf::DT_INIT_ARRAY.0, address(INIT_ARRAY)), (elf::DT_INIT_ARRAYSZ.0, len(INIT_ARRAY))]);
    }
    entries.push((elf::DT_NULL.0, 0));

    let mut bytes = ByteWriter::default();
    for (tag, value) in entries {
        bytes.u64(tag as u64).u64(value);
    }
    bytes
}

/// The section table in the order of the file, after an empty entry.
pub(super) fn section_table(sections: &[Section<'_>], symbols: &[Symbol<'_>]) -> ByteWriter {
    let number =
        |name: &str| sections.iter().position(|section| section.name == name).map_or(0, |number| number + 1);
    let names = sections.iter().find(|section| section.name == SECTION_NAMES);
    let names = names.map_or(&[][..], |section| &section.bytes);
    let n_local = symbols.iter().filter(|symbol| symbol.is_local()).count() + 1;

    let mut bytes = ByteWriter::default();
    bytes.zeros(SECTION_BYTES as usize);
    for section in sections {
        let (link, info, entry) = match &*section.name {
            HASH => (number(EXPORTS), 0, HASH_BYTES),
            EXPORTS => (number(EXPORT_NAMES), 1, SYMBOL_BYTES),
            ABSOLUTES => (number(EXPORTS), 0, RELOCATION_BYTES),
            DYNAMIC => (number(EXPORT_NAMES), 0, DYNAMIC_BYTES),
            SYMBOLS => (number(NAMES), n_local, SYMBOL_BYTES),
            _ => (0, 0, 0),
        };

        let address = if section.kind == SectionKind::Unmapped { 0 } else { section.address };
        let name = name_offset(names, &section.name);
        bytes.u32(name).u32(section.sh_type).u64(section.sh_flags).u64(address);
        bytes.u64(section.address).u64(section.len()).u32(link as u32).u32(info as u32);
        bytes.u64(section.align).u64(entry);
    }
    bytes
}

/// The offset of `name` in a table of names that end with a zero byte.
fn name_offset(names: &[u8], name: &str) -> u32 {
    let mut at = 0;
    for other in names.split(|byte| *byte == 0) {
        if other == name.as_bytes() {
            return at;
        }
        at += other.len() as u32 + 1;
    }
    0
}
