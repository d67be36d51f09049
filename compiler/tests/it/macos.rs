//! Objects and libraries for macOS. No system of Apple is at hand, so nothing here runs on one. LLVM's linker for these
//! systems makes libraries of the objects, LLVM's tools read both, and a small loader calls them on Linux.
//!
//! Needs Debian's `lld`, `llvm`, `gcc-aarch64-linux-gnu` and `qemu-user`, so it runs where it is asked for with `--ignored`;
//! `.ci/run` does.

use crate::models;
use crate::shared_libraries::{MAC_ARM, MAC_X86, check_library, library, load, network};
use std::{path::Path, process::Command};
use symshape_compiler::{
    graph,
    pipeline::{Artifact, Pipeline},
    target::Target,
};

/// A platform: the triple, its name for LLVM's linker, and the compiler and the emulator of a Linux on its machine.
struct Machine {
    triple: &'static str,
    name: &'static str,
    compiler: &'static str,
    emulator: &'static [&'static str],
}

const X86: Machine = Machine { triple: MAC_X86, name: "x86_64", compiler: "cc", emulator: &[] };
const ARM: Machine = Machine {
    triple: MAC_ARM,
    name: "arm64",
    compiler: "aarch64-linux-gnu-gcc",
    emulator: &["qemu-aarch64"],
};

/// Runs a tool in `folder`, and returns its output.
fn run(folder: &Path, tool: &str, args: &[&str]) -> String {
    let output = Command::new(tool).current_dir(folder).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{tool} is needed by this test: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool}: {}\n{errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn libraries_for_arm_run_in_a_small_loader() {
    for (name, model) in models::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        check_library(&graph, (ARM.triple, None), ARM.compiler, ARM.emulator);
    }
}

/// LLVM's linker for macOS takes the objects. It also signs libraries for arm64, and the loader calls its results.
#[test]
#[ignore = "needs lld and qemu"]
fn linkers_of_macos_take_the_objects() {
    let graph = network("minilm");
    let lowered = Pipeline::new(&graph).lower().expect("supported");
    for machine in [X86, ARM] {
        let target = Target::parse(Some(machine.triple), None).expect("a target");
        let compiled = lowered.compile(&target, Artifact::Object).expect("supported");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("minilm.h"), compiled.header).expect("a header");
        let bytes = compiled.object.into_bytes().expect("an object");
        std::fs::write(folder.path().join("minilm.o"), bytes).expect("an object");
        let version = ["-platform_version", "macos", "11.0", "11.0", "-arch", machine.name];
        let args =
            [&["-flavor", "darwin"], &version[..], &["-dylib", "-o", "minilm.dylib", "minilm.o"]].concat();
        run(folder.path(), "lld", &args);
        let symbols = run(folder.path(), "llvm-objdump", &["--macho", "--exports-trie", "minilm.dylib"]);
        assert!(symbols.contains("_minilm_run"), "{symbols}");

        let program = load(folder, "minilm.dylib", machine.compiler, machine.emulator, "minilm");
        let dims = &models::bindings(&graph)[2];
        let inputs = models::inputs(&graph, dims);
        let expected = graph::eval::eval(&graph, &inputs).expect("in range");
        program.assert_gives(&format!("{} at {dims:?}", machine.triple), &inputs, &expected);
    }
}

/// The tools of LLVM read the libraries, and the hashes of the signature are those of the pages.
#[test]
#[ignore = "needs LLVM"]
fn libraries_have_tables_and_a_signature() {
    let lowered = Pipeline::new(&network("mlp")).lower().expect("supported");
    for machine in [X86, ARM] {
        let (folder, file) = library(&lowered, machine.triple, None, ".dylib");
        let tables = run(
            folder.path(),
            "llvm-objdump",
            &["--macho", "--private-headers", "--rebase", "--exports-trie", &file],
        );
        for part in ["LC_ID_DYLIB", "@rpath/mlp.dylib", "LC_UUID", "LC_CODE_SIGNATURE", "_mlp_run", "pointer"]
        {
            assert!(tables.contains(part), "{part} is missing in: {tables}");
        }
        let code = run(folder.path(), "llvm-objdump", &["-d", "--macho", &file]);
        assert!(code.contains("_mlp_run:"), "{}", machine.triple);
        check_signature(folder.path(), &file);
    }
}

/// Compares each hash of the signature with that of the program `sha256sum`.
fn check_signature(folder: &Path, file: &str) {
    let bytes = std::fs::read(folder.join(file)).expect("a library");
    let start =
        bytes.windows(8).rposition(|window| window[..4] == [0xfa, 0xde, 0x0c, 0xc0]).expect("a signature");
    let directory = &bytes[start + 20..];
    let word = |at: usize| u32::from_be_bytes(directory[at..at + 4].try_into().expect("four bytes")) as usize;
    assert_eq!(word(0), 0xfade_0c02);
    let (hashes_at, n_hashes, limit) = (word(16), word(28), word(32));
    assert_eq!((limit, n_hashes), (start, start.div_ceil(4096)));
    for (idx, page) in bytes[..limit].chunks(4096).enumerate() {
        std::fs::write(folder.join("page"), page).expect("a page");
        let sum = run(folder, "sha256sum", &["page"]);
        let hash: String =
            directory[hashes_at + 32 * idx..][..32].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sum[..64], hash, "page {idx}");
    }
}
