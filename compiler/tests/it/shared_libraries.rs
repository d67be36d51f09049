//! Shared libraries of Windows and macOS, which this compiler links itself: their tables, as readers of these formats see
//! them, and calls of libraries of macOS by a small loader.

use crate::{
    cli::{BLOCK, refusal},
    foreign::Program,
    models, networks,
};
use object::{
    Architecture, BinaryFormat, ExportTarget, File, LittleEndian, NameOrOrdinal, Object, ObjectKind,
    ObjectSection, pe, read::pe::PeFile64,
};
use std::path::Path;
use symshape_compiler::{
    emit,
    graph::Graph,
    pipeline::{Artifact, Lowered, Pipeline},
    target::Target,
    tensor::Tensor,
};
use tempfile::TempDir;

pub(crate) const WINDOWS: &str = "x86_64-pc-windows-msvc";
pub(crate) const MAC_X86: &str = "x86_64-apple-darwin";
pub(crate) const MAC_ARM: &str = "aarch64-apple-darwin";

/// Writes a shared library and its header to a new folder. The file's name is that of the model, with `end`.
pub(crate) fn library(lowered: &Lowered, triple: &str, level: Option<&str>, end: &str) -> (TempDir, String) {
    let target = Target::parse(Some(triple), level).expect("a target");
    let name = &lowered.program.name;
    let compiled =
        lowered.compile(&target, Artifact::Shared).unwrap_or_else(|error| panic!("{name}: {error}"));
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(format!("{name}.h")), compiled.header).expect("a header");
    let file = format!("{name}{end}");
    emit::shared::shared(compiled.object, &[], &folder.path().join(&file)).expect("linked here");
    (folder, file)
}

pub(crate) fn network(name: &str) -> Graph {
    let (_, make) = networks::NETWORKS.iter().find(|(known, _)| *known == name).expect("a network");
    make().expect("a graph")
}

fn read(lowered: &Lowered, triple: &str, end: &str) -> Vec<u8> {
    let (folder, file) = library(lowered, triple, None, end);
    std::fs::read(folder.path().join(file)).expect("a library")
}

/// The functions that every artefact exports.
const EXPORTS: [&str; 6] =
    ["mlp_arena_bytes", "mlp_arena_max", "mlp_check", "mlp_output_shape", "mlp_run", "symshape_model"];

/// The names and addresses of the exports.
fn exports(file: &File<'_>) -> Vec<(String, u64)> {
    let exports = file.exports().expect("exports").map(|export| export.expect("an export"));
    let named = exports.map(|export| match (export.name(), export.target()) {
        (NameOrOrdinal::Name(name), ExportTarget::Address { address }) => {
            (String::from_utf8_lossy(name).into_owned(), address)
        }
        (name, target) => panic!("{name:?} at {target:?}"),
    });
    named.collect()
}

#[test]
fn libraries_export_the_interface() {
    let lowered = Pipeline::new(&network("mlp")).lower().expect("supported");
    for (triple, end, format, architecture, prefix) in [
        (WINDOWS, ".dll", BinaryFormat::Pe, Architecture::X86_64, ""),
        (MAC_X86, ".dylib", BinaryFormat::MachO, Architecture::X86_64, "_"),
        (MAC_ARM, ".dylib", BinaryFormat::MachO, Architecture::Aarch64, "_"),
    ] {
        let bytes = read(&lowered, triple, end);
        let file = File::parse(&*bytes).expect("a valid file");
        assert_eq!(
            (file.format(), file.architecture(), file.kind()),
            (format, architecture, ObjectKind::Dynamic),
            "{triple}"
        );
        let mut exports = exports(&file);
        exports.sort();
        let names: Vec<&str> = exports.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, EXPORTS.map(|name| format!("{prefix}{name}")), "{triple}");
        assert_eq!(file.imports().expect("imports").count(), 0, "{triple}");

        let code = file.section_by_name(".text").or_else(|| file.section_by_name("__text")).expect("code");
        let code = code.address()..code.address() + code.size();
        for (name, address) in exports {
            let is_data = name.ends_with("arena_max") || name.ends_with("symshape_model");
            assert_eq!(code.contains(&address), !is_data, "{triple}: {name} at {address:#x}");
        }
    }
}

/// Windows may load a library at any base, so each absolute address must be in the table of relocations.
#[test]
fn relocations_of_windows_cover_all_absolute_addresses() {
    let lowered = Pipeline::new(&network("mlp")).lower().expect("supported");
    let bytes = read(&lowered, WINDOWS, ".dll");
    let file = PeFile64::parse(&*bytes).expect("a valid file");
    let header = file.nt_headers();
    let base = header.optional_header.image_base.get(LittleEndian);
    let end = base + u64::from(header.optional_header.size_of_image.get(LittleEndian));
    assert_eq!(header.optional_header.section_alignment.get(LittleEndian), 4096);

    let sections = file.section_table();
    let mut blocks =
        file.data_directories().relocation_blocks(&*bytes, &sections).expect("a table").expect("relocations");
    let mut count = 0;
    while let Some(block) = blocks.next().expect("a block") {
        for relocation in block.filter(|relocation| relocation.typ == pe::IMAGE_REL_BASED_DIR64) {
            // Offsets in the file are relative addresses.
            let at = relocation.virtual_address as usize;
            let address = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            assert!((base..end).contains(&address), "{address:#x} at {at:#x}");
            count += 1;
        }
    }
    // The descriptor has the addresses of its tables, its texts and four functions.
    assert!(count >= 10, "{count} relocations");
}

/// Links the loader of `c/dylib.c` for the library, which is in `folder`.
pub(crate) fn load(folder: TempDir, file: &str, compiler: &str, emulator: &[&str], name: &str) -> Program {
    let loader = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/dylib.c");
    let path = format!("-DLIBRARY=\"{}\"", folder.path().join(file).display());
    Program::link(folder, compiler, emulator, name, &["-D_GNU_SOURCE", &path, loader])
}

/// Checks that a library of macOS gives the results of the graph, at the smallest and the largest sizes.
pub(crate) fn check_library(graph: &Graph, machine: (&str, Option<&str>), compiler: &str, emulator: &[&str]) {
    let lowered = Pipeline::new(graph).lower().unwrap_or_else(|error| panic!("{}: {error}", graph.name));
    let (folder, file) = library(&lowered, machine.0, machine.1, ".dylib");
    let program = load(folder, &file, compiler, emulator, &graph.name);
    let bindings = models::bindings(graph);
    for dims in [&bindings[0], &bindings[2], &bindings[4]] {
        let inputs = models::inputs(graph, dims);
        let expected: Vec<Tensor> = symshape_compiler::graph::eval::eval(graph, &inputs).expect("in range");
        program.assert_gives(&format!("{} at {dims:?}", graph.name), &inputs, &expected);
    }
}

/// Code for macOS follows the same calling convention as on Linux, so a loader can call it here.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn libraries_of_macos_run_in_a_small_loader() {
    for (name, model) in
        models::MODELS.iter().filter(|(name, _)| ["attention", "conv_residual"].contains(name))
    {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        check_library(&graph, (MAC_X86, None), "cc", &[]);
    }
    check_library(&network("mlp"), (MAC_X86, Some("x86-64-v2,x86-64-v3,x86-64-v4")), "cc", &[]);
}

#[test]
fn names_and_levels_must_fit_the_platform() {
    let refused = |args: &[&str]| {
        let mut all = vec!["compile", BLOCK, "--dim", "N=1..4", "--dim", "S=1..4"];
        all.extend(args);
        refusal(&all)
    };
    let text = refused(&["--target", WINDOWS, "-o", "m.so"]);
    assert!(text.contains("a shared library for x86_64-pc-windows-msvc ends with .dll"), "{text}");
    let text = refused(&["--target", MAC_ARM, "-o", "m.dll"]);
    assert!(text.contains("ends with .dylib"), "{text}");
    let text = refused(&["--target", "aarch64-pc-windows-msvc", "-o", "m.obj"]);
    assert!(text.contains("there is no code generator for this machine"), "{text}");
    let text = refused(&["--target", "riscv64gc-unknown-linux-gnu", "-o", "m.so"]);
    assert!(text.contains("riscv64-linux-gnu-gcc"), "{text}");
    assert!(!Path::new("m.so").exists());

    let tiles = ["--cpu", "x86-64-v4-amx", "--precision", "bf16", "--fallback", "none"];
    let text = refused(&[&["--target", WINDOWS, "-o", "m.dll"], &tiles[..]].concat());
    assert!(text.contains("artefacts for this platform never use them"), "{text}");

    for (triple, levels) in
        [(MAC_ARM, "aarch64,aarch64-dotprod"), ("riscv64gc-unknown-linux-gnu", "riscv64,riscv64v")]
    {
        let text = refused(&["--target", triple, "--cpu", levels, "-o", "m.o"]);
        assert!(text.contains("can't choose among levels: name one of"), "{text}");
    }
    let text = refused(&["--target", MAC_ARM, "--cpu", "x86-64-v3", "-o", "m.o"]);
    assert!(text.contains("x86-64-v3 is not a level of"), "{text}");
}

#[test]
fn missing_linkers_have_the_name_of_the_target() {
    for (triple, linker) in [
        ("x86_64-unknown-linux-musl", "x86_64-linux-gnu-gcc (of Debian's gcc-x86-64-linux-gnu)"),
        ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu-gcc (of Debian's gcc-aarch64-linux-gnu)"),
    ] {
        assert_eq!(Target::parse(Some(triple), None).expect("a target").c_compiler(), linker);
    }
}

#[test]
fn only_linux_and_bare_machines_grant_tile_registers() {
    let has_tiles =
        |triple: &str| Target::parse(Some(triple), Some("x86-64-v4-amx")).expect("a target").has_tiles();
    assert!(has_tiles("x86_64-unknown-linux-musl") && has_tiles("x86_64-unknown-none"));
    for triple in ["x86_64-unknown-freebsd", "x86_64-pc-windows-msvc", "x86_64-apple-darwin"] {
        assert!(!has_tiles(triple), "{triple}");
    }
    let freebsd = ["--target", "x86_64-unknown-freebsd", "--cpu", "x86-64-v4-amx", "-o", "m.o"];
    let precision = ["--precision", "bf16", "--fallback", "none"];
    let error = refusal(&[&["compile", BLOCK], &freebsd[..], &precision].concat());
    assert!(error.contains("artefacts for this platform never use them"), "{error}");
}
