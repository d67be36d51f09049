//! The tables of a shared object: symbols, their names and hashes, addresses to be relocated, sections.
//!
//! They are added with their sizes before anything has an address, and filled in once everything has one.

use super::{
    image::Image,
    section::{Section, SectionKind, Symbol},
};
use crate::emit::object::INIT_ARRAY;
use object::elf;
use std::borrow::Cow;

pub(super) const DYNAMIC: &str = ".dynamic";
pub(super) const TITLES: &str = ".shstrtab";
const HASH: &str = ".hash";
const EXPORTS: &str = ".dynsym";
const EXPORT_NAMES: &str = ".dynstr";
const ABSOLUTES: &str = ".rela.dyn";
const SYMBOLS: &str = ".symtab";
const NAMES: &str = ".strtab";

/// Bytes of an entry of a table of symbols, of relocations, of `.dynamic`, and of hashes.
const SYMBOL_BYTES: u64 = 24;
const RELOCATION_BYTES: u64 = 24;
const DYNAMIC_BYTES: u64 = 16;
const HASH_BYTES: u64 = 4;

/// Bytes of an entry of the table of sections.
pub(super) const SECTION_BYTES: u64 = 64;

/// Bytes under construction.
#[derive(Default)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Bytes {
    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Bytes {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn zeros(&mut self, count: usize) -> &mut Bytes {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Bytes {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Bytes {
        self.raw(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Bytes {
        self.raw(&value.to_le_bytes())
    }
}

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
        (TITLES, SectionKind::Unmapped, elf::SHT_STRTAB.0, 0),
    ] {
        let bytes = Cow::Owned(Vec::new());
        let (name, lent) = (name.into(), Vec::new());
        image.sections.push(Section { name, kind, sh_type, sh_flags, align: 8, bytes, lent, address: 0 });
    }
    image.absolutes = vec![(0, 0); image.n_absolutes];
    fill(image);
    image.absolutes.clear();
}

/// Fills in all tables.
pub(super) fn fill(image: &mut Image<'_>) {
    let all: Vec<&Symbol<'_>> = image.symbols.iter().collect();
    let exports: Vec<&Symbol<'_>> = image.symbols.iter().filter(|symbol| symbol.is_exported()).collect();
    let ((exports_bytes, export_names), (all_bytes, names)) =
        (symbols(image, &exports), symbols(image, &all));
    let mut absolutes = Bytes::default();
    for (place, target) in &image.absolutes {
        absolutes.u64(*place).u64(u64::from(elf::R_X86_64_RELATIVE.0)).u64(*target);
    }
    let hash = hash(&exports);
    let mut titles = Bytes::default();
    titles.zeros(1);
    image.sections.iter().for_each(|part| _ = titles.raw(part.name.as_bytes()).zeros(1));
    for (name, bytes) in [
        (HASH, hash),
        (EXPORTS, exports_bytes),
        (EXPORT_NAMES, export_names),
        (ABSOLUTES, absolutes),
        (SYMBOLS, all_bytes),
        (NAMES, names),
        (TITLES, titles),
    ] {
        part(image, name).bytes = Cow::Owned(bytes.0);
    }
    part(image, DYNAMIC).bytes = Cow::Owned(dynamic(image).0);
}

fn part<'i, 'o>(image: &'i mut Image<'o>, name: &str) -> &'i mut Section<'o> {
    image.sections.iter_mut().find(|part| part.name == name).expect("all tables were added")
}

/// A table of symbols after an empty entry, and their names.
fn symbols(image: &Image<'_>, symbols: &[&Symbol<'_>]) -> (Bytes, Bytes) {
    let (mut table, mut names) = (Bytes::default(), Bytes::default());
    table.zeros(SYMBOL_BYTES as usize);
    names.zeros(1);
    let order = order(image);
    for symbol in symbols {
        let section = match symbol.part {
            Some(part) => order.iter().position(|other| *other == part).map_or(0, |number| number + 1) as u16,
            None => elf::SHN_ABS.0,
        };
        table.u32(names.0.len() as u32).raw(&[symbol.info, symbol.other]).u16(section);
        table.u64(image.address(symbol)).u64(symbol.size);
        names.raw(symbol.name).zeros(1);
    }
    (table, names)
}

/// The sections by where they lie, which is how sections are numbered.
fn order(image: &Image<'_>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..image.sections.len()).collect();
    order.sort_by_key(|part| image.sections[*part].address);
    order
}

/// A table of hashes with one chain: there are few exports.
fn hash(exports: &[&Symbol<'_>]) -> Bytes {
    let mut bytes = Bytes::default();
    let n = exports.len() as u32;
    bytes.u32(1).u32(n + 1).u32(if n > 0 { 1 } else { 0 });
    bytes.u32(0);
    (1..=n).for_each(|symbol| _ = bytes.u32(if symbol < n { symbol + 1 } else { 0 }));
    bytes
}

/// The table by which loaders find the others.
fn dynamic(image: &Image<'_>) -> Bytes {
    let table = |name: &str| {
        let part = image.sections.iter().find(|part| part.name == name);
        part.map_or((0, 0), |part| (part.address, part.len()))
    };
    let (names, absolutes, init) = (table(EXPORT_NAMES), table(ABSOLUTES), table(INIT_ARRAY));
    let mut entries = vec![
        (elf::DT_HASH.0, table(HASH).0),
        (elf::DT_STRTAB.0, names.0),
        (elf::DT_SYMTAB.0, table(EXPORTS).0),
        (elf::DT_STRSZ.0, names.1),
        (elf::DT_SYMENT.0, SYMBOL_BYTES),
        (elf::DT_RELA.0, absolutes.0),
        (elf::DT_RELASZ.0, absolutes.1),
        (elf::DT_RELAENT.0, RELOCATION_BYTES),
        (elf::DT_RELACOUNT.0, absolutes.1 / RELOCATION_BYTES),
    ];
    if init.1 > 0 {
        entries.extend([(elf::DT_INIT_ARRAY.0, init.0), (elf::DT_INIT_ARRAYSZ.0, init.1)]);
    }
    entries.push((elf::DT_NULL.0, 0));
    let mut bytes = Bytes::default();
    for (tag, value) in entries {
        bytes.u64(tag as u64).u64(value);
    }
    bytes
}

/// The table of sections in the order of the file, after an empty entry.
pub(super) fn section_table(sections: &[Section<'_>], symbols: &[Symbol<'_>]) -> Bytes {
    let number =
        |name: &str| sections.iter().position(|part| part.name == name).map_or(0, |number| number + 1);
    let titles = sections.iter().find(|part| part.name == TITLES).map_or(&[][..], |part| &part.bytes);
    let mut bytes = Bytes::default();
    bytes.zeros(SECTION_BYTES as usize);
    for part in sections {
        let n_local = symbols.iter().filter(|symbol| symbol.is_local()).count() + 1;
        let (link, info, entry) = match &*part.name {
            HASH => (number(EXPORTS), 0, HASH_BYTES),
            EXPORTS => (number(EXPORT_NAMES), 1, SYMBOL_BYTES),
            ABSOLUTES => (number(EXPORTS), 0, RELOCATION_BYTES),
            DYNAMIC => (number(EXPORT_NAMES), 0, DYNAMIC_BYTES),
            SYMBOLS => (number(NAMES), n_local, SYMBOL_BYTES),
            _ => (0, 0, 0),
        };
        let address = if part.kind == SectionKind::Unmapped { 0 } else { part.address };
        bytes.u32(title(titles, &part.name)).u32(part.sh_type).u64(part.sh_flags).u64(address);
        bytes.u64(part.address).u64(part.len()).u32(link as u32).u32(info as u32);
        bytes.u64(part.align).u64(entry);
    }
    bytes
}

/// Offset of a name among those of the sections.
fn title(titles: &[u8], name: &str) -> u32 {
    let mut at = 0;
    for title in titles.split(|byte| *byte == 0) {
        if title == name.as_bytes() {
            return at;
        }
        at += title.len() as u32 + 1;
    }
    0
}
