//! Machine code as text: `symc compile --emit asm`.
//!
//! This module disassembles x86-64 function by function, with the names of relocations. Microkernels end with the
//! constants that they load, which are listed as instructions too. Other architectures need the system's `objdump`.

use super::errors::at_path;
use crate::error::{Error, Result};
use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};
use object::{Architecture, Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolKind};
use std::{collections::BTreeMap, fmt::Write, path::Path, process::Command};

/// The listing of an object file.
pub(super) fn listing(object: &[u8]) -> Result<String> {
    let file = object::File::parse(object).map_err(|error| broken(&error))?;
    if file.architecture() == Architecture::X86_64 { x86(&file) } else { objdump(object) }
}

fn broken(error: &object::Error) -> Error {
    Error::internal(format!("object: {error}"))
}

fn x86(file: &object::File) -> Result<String> {
    let mut text = String::new();
    for section in file.sections().filter(|section| section.kind() == object::SectionKind::Text) {
        let bytes = section.data().map_err(|error| broken(&error))?;
        let mut names: BTreeMap<u64, String> = BTreeMap::new();
        for symbol in file.symbols().filter(|symbol| symbol.section_index() == Some(section.index())) {
            if let (SymbolKind::Text, Ok(name)) = (symbol.kind(), symbol.name()) {
                names.insert(symbol.address(), name.to_string());
            }
        }

        let mut targets: BTreeMap<u64, String> = BTreeMap::new();
        for (at, relocation) in section.relocations() {
            if let RelocationTarget::Symbol(symbol) = relocation.target()
                && let Ok(name) = file.symbol_by_index(symbol).and_then(|symbol| symbol.name())
            {
                targets.insert(at, name.to_string());
            }
        }

        let ends = names.keys().skip(1).copied().chain([bytes.len() as u64]);
        for ((begin, name), end) in names.iter().zip(ends) {
            let code = usize::try_from(*begin).ok().and_then(|begin| bytes.get(begin..end as usize));
            function(&mut text, name, code.unwrap_or_default(), *begin, &targets);
        }
    }
    Ok(text.trim_end().to_string())
}

/// Prints the name of a function, and a line for each instruction with its offset in the function.
fn function(text: &mut String, name: &str, code: &[u8], begin: u64, targets: &BTreeMap<u64, String>) {
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_rip_relative_addresses(true);
    formatter.options_mut().set_branch_leading_zeros(false);

    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut line = String::new();
    _ = writeln!(text, "{name}:  ; {} bytes", code.len());

    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        line.clear();
        formatter.format(&instruction, &mut line);
        let at = begin + instruction.ip();
        let target = targets.range(at..at + instruction.len() as u64).next();
        let comment = target.map(|(_, name)| format!("  ; {name}")).unwrap_or_default();
        _ = writeln!(text, "  {:5x}  {line}{comment}", instruction.ip());
    }
    text.push('\n');
}

fn objdump(object: &[u8]) -> Result<String> {
    let folder = at_path(tempfile::tempdir(), Path::new("temporary folder"))?;
    let path = folder.path().join("model.o");
    at_path(std::fs::write(&path, object), &path)?;
    let output = Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(&path).output();
    let output = at_path(output, Path::new("objdump (needed for --emit=asm)"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
