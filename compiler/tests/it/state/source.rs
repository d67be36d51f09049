//! State in C source: consecutive calls return and leave the bytes of machine code, up to rounding.

use super::{
    graphs::{decoder, delays, gated, layered, rows_first},
    script::{AGAIN, Command, Script, TO_THE_END},
    streaming,
};
use crate::foreign::{self, Program};
use symshape_compiler::{CompileOptions, StateRequest, emit, graph::Graph, pipeline::Pipeline};
use symshape_runtime::DType;

use Command::{Call, Reset, Truncate};

/// Functions that a C compiler may call although no source does.
const OF_COMPILERS: [&str; 4] = ["memcpy", "memset", "memmove", "memcmp"];

/// The program around the C source of a graph. Without `libm`, the object may need nothing but functions of compilers.
fn program(graph: &Graph, request: &StateRequest, options: &CompileOptions) -> Program {
    let lowered = Pipeline::new(graph).options(*options).state(request.clone()).lower();
    let lowered = lowered.unwrap_or_else(|error| panic!("{}: {error}", graph.name));
    let name = &lowered.program.name;
    let source = lowered.source(&format!("{name}.h")).unwrap_or_else(|error| panic!("{name}: {error}"));
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(format!("{name}.h")), source.header).expect("a header");
    std::fs::write(folder.path().join("model.c"), source.code).expect("a source");

    let flags: &[&str] = if options.libm { &["-O2"] } else { &["-O2", "-ffreestanding"] };
    foreign::compile(folder.path(), "cc", "model.c", flags);
    if !options.libm {
        let bytes = std::fs::read(folder.path().join("out.o")).expect("an object");
        for import in emit::object::imports(&bytes).expect("an object") {
            assert!(OF_COMPILERS.contains(&import.as_str()), "{name} calls {import}");
        }
    }
    let rows = if lowered.program.state.as_ref().is_some_and(|state| state.rows.is_some()) {
        &["-DHAS_ROWS"][..]
    } else {
        &[]
    };
    Program::with_state(folder, name, "out.o", rows)
}

/// Compares scripts for batches of several sizes.
fn assert_agrees(
    graph: &Graph,
    request: &StateRequest,
    batches: &[usize],
    capacity: usize,
    commands: &[Command],
) {
    for options in [
        CompileOptions::for_c_source(),
        CompileOptions::for_c_source().libm(false),
        CompileOptions::for_c_source()
            .partitions("3".parse::<symshape_compiler::partition::Count>().expect("a number")),
    ] {
        let program = program(graph, request, &options);
        for batch in batches {
            Script { graph, request, batch: *batch, capacity, commands }.assert_agrees(&program);
        }
    }
}

#[test]
fn source_of_decoders_appends_rows() {
    let find = StateRequest::find();
    // The first script ends at the full capacity of the contract; the last calls of the others are refused.
    assert_agrees(&decoder(4, 12), &find, &[1, 2, 3], 16, &TO_THE_END);
    assert_agrees(&decoder(4, 12), &find, &[1, 3], 9, &AGAIN);
    assert_agrees(&layered(3, 4, 12), &find, &[1, 2], 11, &AGAIN);
    assert_agrees(
        &rows_first(),
        &find,
        &[1],
        20,
        &[Call(1), Call(5), Truncate(1), Call(2), Reset, Call(5), Call(5)],
    );
}

#[test]
fn source_overwrites_tensors() {
    let steps = [Call(0), Call(0), Call(0), Reset, Call(0), Call(0)];
    let request = StateRequest::pairs(["h=h_next"]).expect("a pair");
    assert_agrees(&gated(), &request, &[1, 2, 7, 8], 0, &steps);
    let request = StateRequest::pairs(["a=a_next", "b=b_next", "c=c_next"]).expect("pairs");
    assert_agrees(&delays(), &request, &[1, 4], 0, &steps);
    assert_agrees(&streaming::encoder(4, 1), &StateRequest::find(), &[1, 3], 0, &steps);
}

#[test]
fn source_stores_rows_of_16_bits() {
    for row_type in [DType::F16, DType::BF16] {
        let request = StateRequest::find().row_type(row_type);
        let steps = [Call(3), Call(1), Call(4), Truncate(5), Call(1), Reset, Call(2)];
        assert_agrees(&decoder(4, 12), &request, &[1, 2], 12, &steps);
    }
}

#[test]
fn source_takes_one_state_and_refuses_others() {
    let graph = decoder(4, 12);
    let request = StateRequest::find();
    let options = CompileOptions::for_c_source();
    let lowered = Pipeline::new(&graph).options(options).state(request.clone()).lower().expect("supported");
    let source = lowered.source("decoder.h").expect("supported");
    assert!(source.header.contains("#define DECODER_STATES_MAX 1u"), "{}", source.header);

    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("decoder.h"), source.header).expect("a header");
    std::fs::write(folder.path().join("decoder.c"), source.code).expect("a source");
    let main = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/refused_states.c");
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-DDECODER_STATIC_ARENA", "-I."];
    let output = std::process::Command::new("cc")
        .current_dir(folder.path())
        .args(flags)
        .args([main, "decoder.c", "-o", "program", "-lm"])
        .output()
        .expect("a C compiler is needed by this test");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "cc: {text}");

    let output = std::process::Command::new(folder.path().join("program")).output().expect("it runs");
    assert!(output.status.success(), "{:?}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    let expected = "\
none: 10, a call takes at least one
two: 10, a call of this model takes one state, because C source runs one batch
null: 10, its address is null
magic: 10, it does not begin with the magic number of a state
id: 10, it belongs to another artefact
words: 10, its capacity is not that of the dims: call `check` with the words of its header first
bytes: 10, its header is damaged: it has another number of bytes than its sizes give
accepted: 0, length 2
full: 11
";
    assert_eq!(printed, expected);
}
