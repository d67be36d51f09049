//! The mapped sections of an object, their addresses, and the relocations in them.

use super::{
    pieces::{MAX_BYTES, too_large},
    section::{Section, SectionKind, Symbol, WEIGHTS},
};
use crate::{
    error::{Error, Result},
    tensor::Bytes,
};
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionFlags,
    SectionIndex, SymbolFlags, SymbolIndex, elf, read::elf::ElfFile64,
};
use std::{borrow::Cow, collections::HashMap};

pub(super) type File<'o> = ElfFile64<'o, LittleEndian>;

/// The instructions `mov r64, [rip + x]` and `lea r64, [rip + x]`, without their operands.
const LOAD: u8 = 0x8b;
const ADDRESS: u8 = 0x8d;

/// The instructions `ldr x, [x, #imm]` and `add x, x, #imm`, without their operands.
const LOAD_AARCH64: u32 = 0xf940_0000;
const ADD_AARCH64: u32 = 0x9100_0000;

/// A shared library under construction.
pub(super) struct Image<'o> {
    /// The sections of the object, then tables.
    pub(super) sections: Vec<Section<'o>>,
    pub(super) symbols: Vec<Symbol<'o>>,
    /// Number of absolute addresses in data.
    pub(super) n_absolutes: usize,
    /// The address that absolute addresses in data add to addresses in the image.
    pub(super) base: u64,
    /// The place of each absolute address in data, and the address that it is for.
    pub(super) absolutes: Vec<(u64, u64)>,
    machine: elf::Machine,
    /// Index into `sections` of each section of the object.
    numbers: HashMap<SectionIndex, usize>,
}

pub(super) fn broken(error: object::Error) -> Error {
    Error::internal(format!("object: {error}"))
}

fn unknown(what: &str, section: &str) -> Error {
    Error::internal(format!("object: {what} in {section}, which symshape's objects never contain"))
}

impl<'o> Image<'o> {
    /// The mapped sections of an object and its symbols.
    pub(super) fn of(file: &File<'o>, weights: Vec<(u64, &'o Bytes)>) -> Result<Image<'o>> {
        let machine = file.elf_header().e_machine.get(LittleEndian);
        let mut weights = Some(weights);
        let mut sections = Vec::new();
        let mut numbers = HashMap::new();
        let mut n_absolutes = 0;
        for section in file.sections() {
            let name = section.name().map_err(broken)?.to_string();
            let SectionFlags::Elf { sh_type, sh_flags } = section.flags() else {
                return Err(unknown("flags of another format", &name));
            };
            let sh_type = sh_type.0;

            let sh_flags = sh_flags.0;
            let has = |flag: u64| sh_flags & flag != 0;
            if !has(elf::SHF_ALLOC.0) {
                continue;
            }

            let known = elf::SHF_ALLOC.0 | elf::SHF_EXECINSTR.0 | elf::SHF_WRITE.0;
            let is_init = sh_type == elf::SHT_INIT_ARRAY.0;
            let own_weights = if name == WEIGHTS { weights.take().unwrap_or_default() } else { Vec::new() };
            let is_reserved = sh_type == elf::SHT_NOBITS.0 && name == WEIGHTS;
            if sh_flags & !known != 0 || sh_type != elf::SHT_PROGBITS.0 && !is_init && !is_reserved {
                return Err(unknown("flags", &name));
            }

            let sh_type = if is_reserved { elf::SHT_PROGBITS.0 } else { sh_type };
            let kind = match (has(elf::SHF_EXECINSTR.0), has(elf::SHF_WRITE.0)) {
                (true, _) => SectionKind::Code,
                (_, false) => SectionKind::Constant,
                _ if is_init || name.starts_with(".data.rel.ro") => SectionKind::Relocated,
                _ => SectionKind::Data,
            };

            numbers.insert(section.index(), sections.len());
            let bytes = Cow::Borrowed(section.data().map_err(broken)?);

            let align = section.align().max(1);
            sections.push(Section {
                name: name.into(),
                kind,
                sh_type,
                sh_flags,
                align,
                bytes,
                weights: own_weights,
                address: 0,
            });

            let is_absolute = |flags| matches!(flags, RelocationFlags::Elf { r_type } if self::is_absolute(r_type, machine));
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
                section: symbol.section_index().and_then(|section| numbers.get(&section).copied()),
                offset: symbol.address(),
                size: symbol.size(),
            });
        }

        // Local symbols come first in symbol tables.
        symbols.sort_by_key(|symbol| !symbol.is_local());
        Ok(Image { sections, symbols, n_absolutes, base: 0, absolutes: Vec::new(), machine, numbers })
    }

    /// Assigns an address to each section, from `from` on, grouped by kind. Each kind begins a page.
    pub(super) fn place(&mut self, from: u64, page: u64) {
        let mut order: Vec<usize> = (0..self.sections.len()).collect();
        order.sort_by_key(|number| self.sections[*number].kind);

        let mut end = from;
        let mut last_kind = SectionKind::Head;
        for number in order {
            let section = &mut self.sections[number];
            let align = if section.kind == last_kind { section.align } else { section.align.max(page) };
            section.address = end.next_multiple_of(align);
            end = section.end();
            last_kind = section.kind;
        }
    }

    /// The address of a symbol.
    pub(super) fn address(&self, symbol: &Symbol<'_>) -> u64 {
        symbol.section.map_or(0, |section| self.sections[section].address) + symbol.offset
    }

    /// Writes all addresses to the places that refer to them.
    pub(super) fn relocate(&mut self, file: &File<'o>) -> Result<()> {
        for section in file.sections() {
            let Some(&number) = self.numbers.get(&section.index()) else { continue };
            for (offset, relocation) in section.relocations() {
                let is_written = match (relocation.target(), relocation.flags()) {
                    (RelocationTarget::Symbol(symbol), RelocationFlags::Elf { r_type }) => {
                        let target = self.target(file, symbol)?;
                        target.is_some_and(|target| {
                            let target = target.wrapping_add_signed(relocation.addend());
                            self.write(number, &Reference { offset, r_type, target })
                        })
                    }
                    _ => false,
                };
                if !is_written {
                    return Err(self.unreachable(number));
                }
            }
        }
        Ok(())
    }

    /// The error for a reference that can't be written.
    fn unreachable(&self, number: usize) -> Error {
        let bytes = self.sections.iter().map(Section::len).sum::<u64>();
        if bytes > MAX_BYTES { too_large(bytes) } else { unknown("a reference", &self.sections[number].name) }
    }

    /// The address of a symbol of the object, if a mapped section defines it.
    fn target(&self, file: &File<'o>, symbol: SymbolIndex) -> Result<Option<u64>> {
        let symbol = file.symbol_by_index(symbol).map_err(broken)?;
        let section = symbol.section_index().and_then(|section| self.numbers.get(&section));
        Ok(section.map(|section| self.sections[*section].address + symbol.address()))
    }

    /// Writes one address into section `number`; false if the relocation is not supported or out of reach.
    fn write(&mut self, number: usize, reference: &Reference) -> bool {
        let section = &mut self.sections[number];
        if is_absolute(reference.r_type, self.machine) {
            let is_data = matches!(section.kind, SectionKind::Relocated | SectionKind::Data);
            let at = reference.offset as usize;
            let address = self.base + reference.target;
            section.bytes.to_mut()[at..at + 8].copy_from_slice(&address.to_le_bytes());
            self.absolutes.push((section.address + reference.offset, reference.target));
            return is_data;
        }
        match self.machine {
            elf::EM_X86_64 => write_x86(section, reference),
            elf::EM_AARCH64 => write_aarch64(section, reference),
            _ => false,
        }
    }
}

/// A place in a section that refers to an address.
struct Reference {
    /// Offset in the section.
    offset: u64,
    r_type: elf::RelocationType,
    target: u64,
}

/// Whether a relocation is an absolute address of 64 bits.
fn is_absolute(r_type: elf::RelocationType, machine: elf::Machine) -> bool {
    match machine {
        elf::EM_X86_64 => r_type == elf::R_X86_64_64,
        elf::EM_AARCH64 => r_type == elf::R_AARCH64_ABS64,
        _ => false,
    }
}

/// Writes the distance from an instruction to an address.
fn write_x86(section: &mut Section<'_>, reference: &Reference) -> bool {
    let Reference { offset, r_type, target } = *reference;
    let at = offset as usize;
    let place = section.address + offset;
    let bytes = section.bytes.to_mut();
    match r_type {
        elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => {}
        // A load from the table of addresses becomes a computation of the address.
        elf::R_X86_64_GOTPCREL if bytes[at - 2] == LOAD => bytes[at - 2] = ADDRESS,
        _ => return false,
    }

    let distance = i32::try_from(target.wrapping_sub(place) as i64);
    distance.is_ok_and(|distance| {
        bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        true
    })
}

/// Writes the distance from an instruction to an address, or a part of it.
fn write_aarch64(section: &mut Section<'_>, reference: &Reference) -> bool {
    const SMALL_PAGE: u64 = 4096;
    let Reference { offset, r_type, target } = *reference;
    let at = offset as usize;
    let place = section.address + offset;
    let bytes = section.bytes.to_mut();
    let old = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let low = ((target % SMALL_PAGE) as u32) << 10;

    let new = match r_type {
        elf::R_AARCH64_CALL26 | elf::R_AARCH64_JUMP26 => {
            let words = (target.wrapping_sub(place) as i64) >> 2;
            if words != words << 38 >> 38 {
                return false;
            }
            old & !0x03ff_ffff | words as u32 & 0x03ff_ffff
        }
        // `adrp`: the distance in pages of 4096 bytes, its lowest two bits apart from the others.
        elf::R_AARCH64_ADR_PREL_PG_HI21 | elf::R_AARCH64_ADR_GOT_PAGE => {
            let pages = (target / SMALL_PAGE) as i64 - (place / SMALL_PAGE) as i64;
            if pages != pages << 43 >> 43 {
                return false;
            }
            old & 0x9f00_001f | (pages as u32 & 3) << 29 | (pages as u32 >> 2 & 0x7_ffff) << 5
        }
        elf::R_AARCH64_ADD_ABS_LO12_NC => old & !(0xfff << 10) | low,
        // A load from the table of addresses becomes an addition to the address of the page.
        elf::R_AARCH64_LD64_GOT_LO12_NC if old & 0xffc0_0000 == LOAD_AARCH64 => {
            ADD_AARCH64 | low | old & 0x3ff
        }
        _ => return false,
    };
    bytes[at..at + 4].copy_from_slice(&new.to_le_bytes());
    true
}
