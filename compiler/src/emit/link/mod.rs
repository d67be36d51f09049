//! Links an object into a shared library, without an external linker.
//!
//! The objects of this compiler are simple. They import nothing. A reference is either relative to the instruction
//! pointer, or an absolute address in writable data that points into the object. So linking only chooses addresses.
//!
//! The object is ELF, whatever the format of the library: it never leaves the memory of the compiler. [`image`] places
//! its sections and writes the addresses. One folder for each format adds the headers and tables around them:
//!
//! - [`elf`]: shared objects of Linux and other systems (`.so`);
//! - [`pe`]: dynamic-link libraries of Windows (`.dll`);
//! - [`macho`]: dynamic libraries of macOS (`.dylib`).
//!
//! Offsets in the file are addresses. Weights make up most of the file and need no relocation. The object only reserves
//! their space; they are copied from memory to the file.

mod bytes;
mod elf;
mod image;
mod macho;
mod pe;
mod pieces;
mod section;

pub(super) use pieces::{Content, Piece};
pub(super) use section::{INIT_ARRAY, WEIGHTS};

use crate::{
    error::Result,
    target::{Platform, Target},
    tensor::Bytes,
};
use image::Image;
use macho::layout::Cpu;
use object::read::elf::ElfFile64;
use target_lexicon::Architecture;

/// The format of a shared library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    Elf,
    Pe,
    MachO(Cpu),
}

impl Format {
    /// The format of the target's shared libraries; `None` if its C compiler must link them.
    pub(super) fn of(target: &Target) -> Option<Format> {
        match (target.platform(), target.triple.architecture) {
            (Platform::Elf, Architecture::X86_64) => Some(Format::Elf),
            (Platform::Windows, Architecture::X86_64) => Some(Format::Pe),
            (Platform::Apple, Architecture::X86_64) => Some(Format::MachO(Cpu::X86_64)),
            (Platform::Apple, Architecture::Aarch64(_)) => Some(Format::MachO(Cpu::Arm64)),
            _ => None,
        }
    }
}

/// Links an ELF object into the library with the file name `library`. Returns the file as pieces in ascending order.
///
/// # Errors
/// When the object is malformed, or contains something that symshape's objects never contain; when the library would be
/// too large.
pub(super) fn link<'o>(
    format: Format,
    object: &'o [u8],
    weights: Vec<(u64, &'o Bytes)>,
    library: &str,
) -> Result<Vec<Piece<'o>>> {
    let file = ElfFile64::parse(object).map_err(image::broken)?;
    let image = Image::of(&file, weights)?;
    match format {
        Format::Elf => elf::link(image, &file),
        Format::Pe => pe::link(image, &file, library),
        Format::MachO(cpu) => macho::link(image, &file, cpu, library),
    }
}
