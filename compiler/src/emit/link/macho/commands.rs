//! The header of a dynamic library and its load commands.

use super::{
    layout::{Cpu, PAGE, Part, Segment},
    tables::Places,
};
use crate::emit::link::bytes::ByteWriter;
use object::{LittleEndian, macho};

/// Bytes of the header, and of the command of a segment without and with a section.
const HEADER_BYTES: usize = size_of::<macho::MachHeader64<LittleEndian>>();
const SEGMENT_BYTES: usize = size_of::<macho::SegmentCommand64<LittleEndian>>();
const SECTION_BYTES: usize = size_of::<macho::Section64<LittleEndian>>();

/// Oldest macOS that runs on all machines of both architectures: 11.0.
const MACOS_VERSION: u32 = 11 << 16;
/// The version of a library, and of the oldest one with the same interface: 1.0.
const LIBRARY_VERSION: u32 = 1 << 16;

/// The library of the system, which loaders expect every library to name.
const SYSTEM: &str = "/usr/lib/libSystem.B.dylib";

/// What the commands describe.
pub(super) struct Commands<'a> {
    pub(super) cpu: Cpu,
    /// The file name.
    pub(super) library: &'a str,
    pub(super) parts: &'a [Part],
    pub(super) segments: &'a [Segment],
    pub(super) places: &'a Places,
    /// Offset and length of the signature, which ends the file.
    pub(super) signature_at: u64,
    pub(super) signature_bytes: u64,
}

impl Commands<'_> {
    /// The header and the commands. `hash` identifies the contents of the file.
    pub(super) fn head(&self, hash: &[u8; 32]) -> ByteWriter {
        let mut commands: Vec<ByteWriter> =
            self.segments.iter().map(|segment| self.segment(segment)).collect();
        commands.extend([
            library(macho::LC_ID_DYLIB.0, &format!("@rpath/{}", self.library)),
            self.loader_tables(),
            self.symbols(),
            self.symbol_groups(),
            identity(hash),
            build_version(),
            library(macho::LC_LOAD_DYLIB.0, SYSTEM),
            self.signature(),
        ]);
        let commands_bytes: usize = commands.iter().map(|command| command.0.len()).sum();

        let (cpu, subtype) = match self.cpu {
            Cpu::X86_64 => (macho::CPU_TYPE_X86_64, macho::CPU_SUBTYPE_X86_64_ALL),
            Cpu::Arm64 => (macho::CPU_TYPE_ARM64, macho::CPU_SUBTYPE_ARM64_ALL),
        };
        let flags = macho::MH_NOUNDEFS.0
            | macho::MH_DYLDLINK.0
            | macho::MH_TWOLEVEL.0
            | macho::MH_NO_REEXPORTED_DYLIBS.0;
        let mut head = ByteWriter::default();
        head.u32(macho::MH_MAGIC_64).u32(cpu.0).u32(subtype.0).u32(macho::MH_DYLIB.0);
        head.u32(commands.len() as u32).u32(commands_bytes as u32).u32(flags).u32(0);
        debug_assert_eq!(head.0.len(), HEADER_BYTES);
        commands.iter().for_each(|command| _ = head.raw(&command.0));
        debug_assert!(head.0.len() as u64 <= PAGE);
        head
    }

    /// The command of a segment, with its sections. Only the last segment may end within a page of the file.
    fn segment(&self, segment: &Segment) -> ByteWriter {
        let parts: Vec<&Part> = self.parts.iter().filter(|part| part.segment == segment.name).collect();
        let is_last = segment.address + segment.len == self.signature_at + self.signature_bytes;
        let in_memory = segment.end() - segment.address;
        let in_file = if is_last { segment.len } else { in_memory };

        let mut bytes = ByteWriter::default();
        let len = SEGMENT_BYTES + SECTION_BYTES * parts.len();
        bytes.u32(macho::LC_SEGMENT_64.0).u32(len as u32).name(segment.name.as_bytes(), 16);
        bytes.u64(segment.address).u64(in_memory).u64(segment.address).u64(in_file);
        bytes.u32(segment.protection).u32(segment.protection).u32(parts.len() as u32).u32(0);
        for part in parts {
            bytes.name(part.name.as_bytes(), 16).name(part.segment.as_bytes(), 16);
            bytes.u64(part.address).u64(part.len).u32(part.address as u32);
            // The alignment as a power of two; the object's relocations are applied.
            bytes.u32(PAGE.trailing_zeros()).u32(0).u32(0).u32(part.flags).zeros(12);
        }
        bytes
    }

    /// The tables for loaders: the places of absolute addresses, and the exports.
    fn loader_tables(&self) -> ByteWriter {
        let Places { absolutes, exports, .. } = self.places;
        let mut bytes = command(macho::LC_DYLD_INFO_ONLY.0, 48);
        bytes.u32(absolutes.start as u32).u32((absolutes.end - absolutes.start) as u32);
        // Imports of three kinds.
        bytes.zeros(24);
        bytes.u32(exports.start as u32).u32((exports.end - exports.start) as u32);
        bytes
    }

    fn symbols(&self) -> ByteWriter {
        let Places { symbols, names, n_local, n_exported, .. } = self.places;
        let mut bytes = command(macho::LC_SYMTAB.0, 24);
        bytes.u32(symbols.start as u32).u32(n_local + n_exported);
        bytes.u32(names.start as u32).u32((names.end - names.start) as u32);
        bytes
    }

    /// The groups of symbols: local ones, exports, and no imports.
    fn symbol_groups(&self) -> ByteWriter {
        let Places { n_local, n_exported, .. } = self.places;
        let mut bytes = command(macho::LC_DYSYMTAB.0, 80);
        bytes.u32(0).u32(*n_local).u32(*n_local).u32(*n_exported).u32(n_local + n_exported).zeros(52);
        bytes
    }

    fn signature(&self) -> ByteWriter {
        let mut bytes = command(macho::LC_CODE_SIGNATURE.0, 16);
        bytes.u32(self.signature_at as u32).u32(self.signature_bytes as u32);
        bytes
    }
}

/// The beginning of a command of `len` bytes.
fn command(kind: u32, len: u32) -> ByteWriter {
    let mut bytes = ByteWriter::default();
    bytes.u32(kind).u32(len);
    bytes
}

/// The command that names this library, or one that it needs.
fn library(kind: u32, path: &str) -> ByteWriter {
    const NAME_AT: usize = 24;
    let len = (NAME_AT + path.len() + 1).next_multiple_of(8);
    let mut bytes = command(kind, len as u32);
    // The time stamp of a library is not used.
    bytes.u32(NAME_AT as u32).u32(1).u32(LIBRARY_VERSION).u32(LIBRARY_VERSION);
    bytes.name(path.as_bytes(), len - NAME_AT);
    bytes
}

/// The identity of the file: a UUID of version 8, whose bits its author chooses.
fn identity(hash: &[u8; 32]) -> ByteWriter {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&hash[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    let mut bytes = command(macho::LC_UUID.0, 24);
    bytes.raw(&uuid);
    bytes
}

/// The oldest system that runs the library. Its tools are not listed.
fn build_version() -> ByteWriter {
    let mut bytes = command(macho::LC_BUILD_VERSION.0, 24);
    bytes.u32(macho::PLATFORM_MACOS.0).u32(MACOS_VERSION).u32(MACOS_VERSION).u32(0);
    bytes
}
