//! What of an object is mapped, where it lies, and the addresses in it.

use super::{super::object::WEIGHTS, PAGE};
use crate::error::{Error, ErrorKind, Result};
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionFlags,
    SectionIndex, SymbolFlags, SymbolIndex, elf, read::elf::ElfFile64,
};
use std::{borrow::Cow, collections::HashMap};

pub(super) type File<'o> = ElfFile64<'o, LittleEndian>;

/// The instructions `mov r64, [rip + x]` and `lea r64, [rip + x]`, without their operands.
const LOAD: u8 = 0x8b;
const ADDRESS: u8 = 0x8d;

/// What a part is mapped for, in the order of the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    Head,
    Code,
    Constant,
    Relocated,
    Data,
    Unmapped,
}

impl Kind {
    pub(super) const MAPPED: [Kind; 5] =
        [Kind::Head, Kind::Code, Kind::Constant, Kind::Relocated, Kind::Data];

    /// What its segment may be used for.
    pub(super) fn flags(self) -> u32 {
        match self {
            Kind::Code => elf::PF_R.0 | elf::PF_X.0,
            Kind::Head | Kind::Constant | Kind::Unmapped => elf::PF_R.0,
            Kind::Relocated | Kind::Data => elf::PF_R.0 | elf::PF_W.0,
        }
    }
}

/// A section of the shared object.
pub(super) struct Part<'o> {
    pub(super) name: Cow<'o, str>,
    pub(super) kind: Kind,
    pub(super) sh_type: u32,
    pub(super) sh_flags: u64,
    pub(super) align: u64,
    pub(super) bytes: Cow<'o, [u8]>,
    /// In place of `bytes`: what is copied from somewhere else, and how far from the part's beginning.
    pub(super) lent: Vec<(u64, &'o [u8])>,
    /// Where it lies in memory, and in the file.
    pub(super) address: u64,
}

impl Part<'_> {
    /// Its length.
    pub(super) fn len(&self) -> u64 {
        self.lent.last().map_or(self.bytes.len() as u64, |(at, bytes)| at + bytes.len() as u64)
    }

    /// Where it ends.
    pub(super) fn end(&self) -> u64 {
        self.address + self.len()
    }
}

/// A symbol.
pub(super) struct Symbol<'o> {
    pub(super) name: &'o [u8],
    pub(super) info: u8,
    pub(super) other: u8,
    /// Which part it is in, by number among those of the object.
    pub(super) part: Option<usize>,
    /// How far from the part's beginning.
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl Symbol<'_> {
    pub(super) fn is_local(&self) -> bool {
        self.info >> 4 == elf::STB_LOCAL.0
    }

    /// Whether loaders may find it.
    pub(super) fn is_exported(&self) -> bool {
        self.part.is_some() && !self.is_local() && self.other & 3 == elf::STV_DEFAULT.0
    }
}

/// A shared object under construction.
pub(super) struct Image<'o> {
    /// Those of the object, then tables.
    pub(super) parts: Vec<Part<'o>>,
    pub(super) symbols: Vec<Symbol<'o>>,
    /// Number of absolute addresses in data.
    pub(super) n_absolutes: usize,
    /// Where they are, and what they are.
    pub(super) absolutes: Vec<(u64, u64)>,
    numbers: HashMap<SectionIndex, usize>,
}

pub(super) fn broken(error: object::Error) -> Error {
    Error::internal(format!("object: {error}"))
}

fn unknown(what: &str, section: &str) -> Error {
    Error::internal(format!("object: {what} in {section}, which no object of ours has"))
}

impl<'o> Image<'o> {
    /// The mapped sections of an object and its symbols.
    pub(super) fn of(file: &File<'o>, weights: Vec<(u64, &'o [u8])>) -> Result<Image<'o>> {
        let mut weights = Some(weights);
        let (mut parts, mut numbers, mut n_absolutes) = (Vec::new(), HashMap::new(), 0);
        for section in file.sections() {
            let name = section.name().map_err(broken)?.to_string();
            let SectionFlags::Elf { sh_type, sh_flags } = section.flags() else {
                return Err(unknown("flags of another format", &name));
            };
            let (sh_type, sh_flags) = (sh_type.0, sh_flags.0);
            let has = |flag: u64| sh_flags & flag != 0;
            if !has(elf::SHF_ALLOC.0) {
                continue;
            }
            let known = elf::SHF_ALLOC.0 | elf::SHF_EXECINSTR.0 | elf::SHF_WRITE.0;
            let is_init = sh_type == elf::SHT_INIT_ARRAY.0;
            let lent = if name == WEIGHTS { weights.take().unwrap_or_default() } else { Vec::new() };
            let is_room = sh_type == elf::SHT_NOBITS.0 && name == WEIGHTS;
            if sh_flags & !known != 0 || sh_type != elf::SHT_PROGBITS.0 && !is_init && !is_room {
                return Err(unknown("flags", &name));
            }
            let sh_type = if is_room { elf::SHT_PROGBITS.0 } else { sh_type };
            let kind = match (has(elf::SHF_EXECINSTR.0), has(elf::SHF_WRITE.0)) {
                (true, _) => Kind::Code,
                (_, false) => Kind::Constant,
                _ if is_init || name.starts_with(".data.rel.ro") => Kind::Relocated,
                _ => Kind::Data,
            };
            numbers.insert(section.index(), parts.len());
            let bytes = Cow::Borrowed(section.data().map_err(broken)?);
            let align = section.align().max(1);
            parts.push(Part { name: name.into(), kind, sh_type, sh_flags, align, bytes, lent, address: 0 });
            let is_absolute = |flags| matches!(flags, RelocationFlags::Elf { r_type: elf::R_X86_64_64 });
            n_absolutes += section.relocations().filter(|(_, one)| is_absolute(one.flags())).count();
        }
        let mut symbols = Vec::new();
        for symbol in file.symbols() {
            let name = symbol.name_bytes().map_err(broken)?;
            let SymbolFlags::Elf { st_info, st_other } = symbol.flags() else {
                return Err(unknown("flags of another format", &String::from_utf8_lossy(name)));
            };
            symbols.push(Symbol {
                name,
                info: st_info.0,
                other: st_other.0,
                part: symbol.section_index().and_then(|section| numbers.get(&section).copied()),
                offset: symbol.address(),
                size: symbol.size(),
            });
        }
        // Tables of symbols have the local ones first.
        symbols.sort_by_key(|symbol| !symbol.is_local());
        Ok(Image { parts, symbols, n_absolutes, absolutes: Vec::new(), numbers })
    }

    /// Gives each part an address, from `from` on.
    pub(super) fn place(&mut self, from: u64) {
        let mut order: Vec<usize> = (0..self.parts.len()).collect();
        order.sort_by_key(|part| self.parts[*part].kind);
        let (mut at, mut last) = (from, Kind::Head);
        for number in order {
            let part = &mut self.parts[number];
            let align = if part.kind == last { part.align } else { part.align.max(PAGE) };
            part.address = at.next_multiple_of(align);
            (at, last) = (part.end(), part.kind);
        }
    }

    /// Where a symbol lies.
    pub(super) fn address(&self, symbol: &Symbol<'_>) -> u64 {
        symbol.part.map_or(0, |part| self.parts[part].address) + symbol.offset
    }

    /// Writes all addresses where they are used.
    pub(super) fn relocate(&mut self, file: &File<'o>) -> Result<()> {
        for section in file.sections() {
            let Some(&number) = self.numbers.get(&section.index()) else { continue };
            for (offset, relocation) in section.relocations() {
                let written = match (relocation.target(), relocation.flags()) {
                    (RelocationTarget::Symbol(symbol), RelocationFlags::Elf { r_type }) => {
                        let target = self.target(file, symbol)?;
                        let target = target.map(|target| target.wrapping_add_signed(relocation.addend()));
                        target.is_some_and(|target| self.write(number, offset, r_type, target))
                    }
                    _ => false,
                };
                if !written {
                    return Err(self.unreachable(number));
                }
            }
        }
        Ok(())
    }

    /// The error for a reference that can't be written.
    fn unreachable(&self, number: usize) -> Error {
        let bytes = self.parts.iter().map(Part::len).sum::<u64>();
        match bytes > i32::MAX as u64 {
            true => Error::new(
                ErrorKind::Limit,
                format!("{bytes} bytes of code and weights in one shared object"),
            ),
            false => unknown("a reference", &self.parts[number].name),
        }
    }

    fn target(&self, file: &File<'o>, symbol: SymbolIndex) -> Result<Option<u64>> {
        let symbol = file.symbol_by_index(symbol).map_err(broken)?;
        let part = symbol.section_index().and_then(|section| self.numbers.get(&section));
        Ok(part.map(|part| self.parts[*part].address + symbol.address()))
    }

    /// Writes one address; false where it can't.
    fn write(&mut self, number: usize, offset: u64, r_type: elf::RelocationType, target: u64) -> bool {
        let part = &mut self.parts[number];
        let (at, place) = (offset as usize, part.address + offset);
        match r_type {
            elf::R_X86_64_64 if matches!(part.kind, Kind::Relocated | Kind::Data) => {
                part.bytes.to_mut()[at..at + 8].copy_from_slice(&target.to_le_bytes());
                self.absolutes.push((place, target));
                true
            }
            elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 | elf::R_X86_64_GOTPCREL => {
                let bytes = part.bytes.to_mut();
                if r_type == elf::R_X86_64_GOTPCREL {
                    // What would be loaded from a table of addresses is near enough to be computed.
                    if bytes[at - 2] != LOAD {
                        return false;
                    }
                    bytes[at - 2] = ADDRESS;
                }
                let distance = i32::try_from(target.wrapping_sub(place) as i64);
                distance.is_ok_and(|distance| {
                    bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
                    true
                })
            }
            _ => false,
        }
    }
}
