//! Weights files: shared objects without weights have the bits of those with them, and other files are refused by name.

use crate::{
    bits::assert_same_bits,
    models,
    ragged::graphs::{FORMS, encoder},
    state::decoder,
    tensors::refs,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use symshape_compiler::{
    CompileOptions, RaggedRequest, StateRequest, emit,
    graph::Graph,
    pipeline::{Artifact, Lowered, Pipeline},
    target::Target,
    tensor::Tensor,
};
use symshape_runtime::{Context, Model, OpenOptions, State, Weights};

const TWO: std::num::NonZeroU32 = std::num::NonZeroU32::new(2).unwrap();

/// `y = relu(x w1 + b1) w2 + b2` with weights that depend on `seed`.
fn perceptron(seed: u32) -> Graph {
    let build = || -> symshape_compiler::Result<Graph> {
        let mut g = models::graph("perceptron", &[("N", 1, 9)]);
        let n = symshape::Dim::symbol("N");
        let x = g.input("x", symshape_runtime::DType::F32, vec![n, 70.into()])?;
        let hidden = models::dense(&mut g, x, 70, 90, seed)?;
        let hidden = g.relu(hidden)?;
        let y = models::dense(&mut g, hidden, 90, 33, seed + 7)?;
        g.output("y", y)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

fn lowered(graph: &Graph, options: CompileOptions) -> Lowered {
    lower(Pipeline::new(graph), options)
}

fn lower(pipeline: Pipeline<'_>, options: CompileOptions) -> Lowered {
    pipeline.options(options.weights_file(true)).lower().expect("supported")
}

/// Writes `NAME.so` and `NAME.weights`.
fn write(lowered: &Lowered, folder: &Path, name: &str) -> [PathBuf; 2] {
    let target = Target::host().expect("supported");
    let mut compiled = lowered.compile(&target, Artifact::Shared).expect("supported");
    let [so, weights] = [format!("{name}.so"), format!("{name}.weights")].map(|file| folder.join(file));
    compiled.object.name_weights_file(&format!("{name}.weights")).expect("a short name");
    let file = compiled.object.weights_file().expect("asked for").clone();
    let mut last = 0;
    file.stage(&weights, &mut |done, _| last = done).expect("written").commit().expect("named");
    assert_eq!(last, file.bytes(), "the progress ends at the size of the file");
    emit::shared::shared(compiled.object, &[], &so).expect("written");
    [so, weights]
}

/// The bytes of all outputs.
fn outputs(model: &Model, inputs: &[Tensor], threads: u32) -> Vec<Vec<u8>> {
    let mut context = Context::new(model).expect("memory");
    context.set_threads(threads).expect("threads");
    let outputs = context.run_views(&refs(inputs)).expect("a call in range");
    (0..outputs.len()).map(|idx| outputs.get(idx).bytes().to_vec()).collect()
}

/// Compares both forms of an artefact at the corners of the contract.
fn compare(graph: &Graph, options: CompileOptions) {
    let folder = tempfile::tempdir().expect("a folder");
    let plain = Pipeline::new(graph).options(options).jit().expect("supported");
    let [so, weights] = write(&lowered(graph, options), folder.path(), &graph.name);
    let split = OpenOptions::new().verify(true).open(&so).expect("a pair of files");
    assert_eq!(
        split.weights().expect("loaded").bytes().len() as u64,
        weights.metadata().expect("there").len()
    );
    for dims in models::bindings(graph) {
        let inputs = models::inputs(graph, &dims);
        for threads in [1, 2] {
            assert!(
                outputs(&plain, &inputs, threads) == outputs(&split, &inputs, threads),
                "{} at {dims:?} on {threads} threads",
                graph.name
            );
        }
    }
}

#[test]
fn models_have_the_same_bits_with_and_without_a_weights_file() {
    for (_, make) in models::MODELS {
        compare(&make().expect("a valid graph"), CompileOptions::default());
    }
}

#[test]
fn partitions_and_blocks_of_a_batch_read_the_weights_file() {
    for (name, make) in models::MODELS {
        if ["mlp", "conv_residual", "attention"].contains(name) {
            let options = CompileOptions::default().partitions(symshape_compiler::partition::Count::Of(TWO));
            compare(&make().expect("a valid graph"), options);
        }
    }
}

#[test]
fn states_and_weights_are_inputs_side_by_side() {
    let folder = tempfile::tempdir().expect("a folder");
    let graph = decoder(4, 12);
    let pipeline = || Pipeline::new(&graph).state(StateRequest::find());
    let plain = pipeline().jit().expect("supported");
    let lowered = lower(pipeline(), CompileOptions::default());
    let [so, _] = write(&lowered, folder.path(), "decoder");

    let run = |model: &Model| -> Vec<f32> {
        let mut context = Context::new(model).expect("memory");
        let mut state = State::with_dims(model, 16, &[("N", 2)]).expect("a capacity in range");
        let mut all = Vec::new();
        for (step, length) in [(3_usize, 3_usize), (1, 4), (4, 8)] {
            let x = models::weights(&[2, step, 16], step as u32);
            let bias = models::weights(&[2, 1, step, length], 5);
            let results = context.run_stateful_views(&refs(&[x, bias]), &mut state).expect("in range");
            all.extend_from_slice(results.get(0).elems::<f32>().expect("floats"));
        }

        let mut states = [16, 9].map(|capacity| State::new(model, capacity).expect("a capacity in range"));
        let [first, second] = &mut states;
        for length in 1..4 {
            let x = models::weights(&[2, 1, 16], length as u32);
            let bias = models::weights(&[2, 1, 1, length], 5);
            let inputs = [x, bias];
            let results = context.run_states_views(&refs(&inputs), &mut [first, second]).expect("in range");
            all.extend_from_slice(results.get(0).elems::<f32>().expect("floats"));
        }
        all
    };
    assert_same_bits(&run(&Model::open(&so).expect("a pair of files")), &run(&plain), "decoder");
}

#[test]
fn ragged_batches_read_the_weights_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let offsets = [0_i64, 3, 4, 12];
    let offsets = Tensor::from_i64(vec![4], &offsets).expect("sized");
    let ids: Vec<i64> = (0..12).map(|row| row * 7 % 50).collect();
    let inputs = [Tensor::from_i64(vec![12], &ids).expect("sized"), offsets];
    for (idx, form) in FORMS.into_iter().enumerate() {
        let graph = encoder(form);
        let pipeline = || Pipeline::new(&graph).ragged(RaggedRequest::along("S"));
        let plain = pipeline().options(CompileOptions::default().threads(2)).jit().expect("supported");
        let lowered = lower(pipeline(), CompileOptions::default().threads(2));
        let [so, _] = write(&lowered, folder.path(), &format!("encoder{idx}"));
        let split = Model::open(&so).expect("a pair of files");
        for threads in [1, 2] {
            assert!(
                outputs(&plain, &inputs, threads) == outputs(&split, &inputs, threads),
                "form {idx} on {threads} threads"
            );
        }
    }
}

#[test]
fn weights_of_the_same_structure_are_exchanged_without_compiling() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = CompileOptions::default();
    let [first, first_weights] = write(&lowered(&perceptron(1), options), folder.path(), "first");
    let [second, second_weights] = write(&lowered(&perceptron(2), options), folder.path(), "second");
    assert_ne!(fs::read(&first_weights).expect("there"), fs::read(&second_weights).expect("there"));

    let inputs = models::inputs(&perceptron(1), &[5]);
    let own = Model::open(&first).expect("a pair of files");
    let other = OpenOptions::new().weights(&second_weights).open(&first).expect("the same structure");
    let exchanged =
        own.with_weights(Weights::open(&second_weights).expect("a file")).expect("the same structure");
    let expected = outputs(&Model::open(&second).expect("a pair of files"), &inputs, 1);
    assert_eq!(outputs(&other, &inputs, 1), expected);
    assert_eq!(outputs(&exchanged, &inputs, 1), expected);
    assert_ne!(outputs(&own, &inputs, 1), expected);
}

#[test]
fn artefact_without_weights_is_small_and_names_its_segments() {
    let folder = tempfile::tempdir().expect("a folder");
    let [so, weights] = write(&lowered(&perceptron(3), CompileOptions::default()), folder.path(), "p");
    let all = 4 * (70 * 90 + 90 * 33);
    assert!(weights.metadata().expect("there").len() > all);
    let lowered = Pipeline::new(&perceptron(3)).lower().expect("supported");
    let whole = lowered.compile(&Target::host().expect("here"), Artifact::Shared).expect("supported");
    let plain = folder.path().join("plain.so");
    emit::shared::shared(whole.object, &[], &plain).expect("written");
    let saved = plain.metadata().expect("there").len() - so.metadata().expect("there").len();
    assert!(saved > all * 9 / 10, "{saved} bytes less");

    let weights = Weights::open(&weights).expect("a file");
    assert!(weights.levels().starts_with("x86-64") || !cfg!(target_arch = "x86_64"));
    let large = weights.segments().iter().filter(|segment| segment.range().len() >= 4096);
    assert!(large.clone().count() >= 2 && large.clone().all(|segment| segment.range().start % 4096 == 0));
    assert!(weights.segments().iter().all(|segment| segment.range().start % 64 == 0));
}

#[test]
fn missing_weights_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let [so, weights] = write(&lowered(&perceptron(4), CompileOptions::default()), folder.path(), "p");
    fs::remove_file(&weights).expect("there");
    let error = Model::open(&so).expect_err("no weights").to_string();
    assert!(error.contains("p.weights"), "{error}");
}

/// Opens the pair, and returns the refusal.
fn refused(so: &Path, weights: &Path, verify: bool) -> String {
    OpenOptions::new().weights(weights).verify(verify).open(so).expect_err("damaged").to_string()
}

#[test]
fn wrong_truncated_and_changed_files_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let [so, weights] = write(&lowered(&perceptron(5), CompileOptions::default()), folder.path(), "p");
    let [_, other] = write(
        &lowered(&models::MODELS[0].1().expect("valid"), CompileOptions::default()),
        folder.path(),
        "q",
    );
    let good = fs::read(&weights).expect("there");
    let error = refused(&so, &other, false);
    assert!(
        error.contains("q.weights: it belongs to another artefact; the artefact is perceptron"),
        "{error}"
    );
    let error = refused(&so, &so, false);
    assert!(error.contains("p.so: it is not a weights file"), "{error}");

    let bad = folder.path().join("bad.weights");
    let refused_bytes = |bytes: &[u8], verify: bool| {
        fs::write(&bad, bytes).expect("written");
        let error = refused(&so, &bad, verify);
        assert!(error.contains("bad.weights: "), "{error}");
        error
    };
    for len in [0, 1, 100, 4095, 4096, good.len() / 2, good.len() - 1] {
        let error = refused_bytes(&good[..len], false);
        assert!(error.contains("truncated") || error.contains("not a weights file"), "{len}: {error}");
    }
    let mut longer = good.clone();
    longer.push(0);
    assert!(refused_bytes(&longer, false).contains("appended"));

    // The header, the table and the names are always checked.
    let table = u64::from_le_bytes(good[24..32].try_into().expect("eight bytes")) as usize;
    for at in (0..160).chain(table..good.len()).step_by(3) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        refused_bytes(&bytes, false);
    }

    // Everything else is checked on request.
    for at in (4096..table).step_by(1009).chain([160, 4095]) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        let error = refused_bytes(&bytes, true);
        assert!(error.contains("damaged"), "{at}: {error}");
    }
}

/// Builds the C program with `model` in `folder`, and runs it on a weights file. Returns the lines that it prints.
fn run_c_program(folder: &Path, model: &str, weights: &Path) -> Vec<String> {
    let main = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/weights.c");
    let warnings = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    let arguments = ["-I.", main, model, "-o", "program", "-lm"];
    let status = Command::new("cc").current_dir(folder).args(warnings).args(arguments).status();
    assert!(status.expect("a C compiler").success());
    let output = Command::new(folder.join("program")).arg(weights).output().expect("it starts");
    assert!(output.status.success(), "{:?}", output.status);
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_string).collect()
}

#[test]
fn c_program_passes_the_weights_of_an_object() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = Target::host().expect("supported");
    let lowered = lowered(&perceptron(6), CompileOptions::default());
    let compiled = lowered.compile(&target, Artifact::Object).expect("supported");
    let file = compiled.object.weights_file().expect("asked for").clone();
    let weights = folder.path().join("p.weights");
    file.stage(&weights, &mut |_, _| {}).expect("written").commit().expect("named");
    fs::write(folder.path().join("p.o"), compiled.object.into_bytes().expect("an object")).expect("written");
    fs::write(folder.path().join("perceptron.h"), compiled.header).expect("written");

    let plain = Pipeline::new(&perceptron(6)).jit().expect("supported");
    let x = Tensor::from_f32(vec![2, 70], &[0.25; 140]).expect("sized");
    let expected = outputs(&plain, &[x], 1);
    let expected: Vec<String> = expected[0]
        .chunks_exact(4)
        .step_by(16)
        .map(|four| format!("{:08x}", u32::from_le_bytes(four.try_into().expect("four bytes"))))
        .collect();
    let refusals = [
        "missing: 12 the weights: their address, which follows those of the inputs, is null",
        "misaligned: 12 the weights: their address is not a multiple of 64",
        "magic: 12 the weights: they do not begin with the magic number of a weights file",
        "first: 12 the weights: they belong to another artefact",
        "last: 12 the weights: they belong to another artefact",
    ];
    let lines = run_c_program(folder.path(), "p.o", &weights);
    assert_eq!(lines, [&refusals[..], &[&expected.join(" ")]].concat());
}

#[test]
fn c_source_reads_the_weights_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let graph = perceptron(6);
    let source = |options: CompileOptions| {
        let lowered = Pipeline::new(&graph).options(options).lower().expect("supported");
        lowered.source("perceptron.h").expect("supported")
    };
    let plain = source(CompileOptions::for_c_source());
    assert!(plain.weights.is_none());
    let split = source(CompileOptions::for_c_source().weights_file(true));
    assert!(10 * split.code.len() < plain.code.len(), "the weights are no text");
    let weights = folder.path().join("p.weights");
    let file = split.weights.expect("asked for");
    file.stage(&weights, &mut |_, _| {}).expect("written").commit().expect("named");
    fs::write(folder.path().join("p.c"), split.code).expect("written");
    fs::write(folder.path().join("perceptron.h"), split.header).expect("written");

    let lines = run_c_program(folder.path(), "p.c", &weights);
    let (sums, refusals) = lines.split_last().expect("lines");
    let names = ["missing", "misaligned", "magic", "first", "last"];
    assert_eq!(refusals.len(), names.len(), "{lines:?}");
    for (line, name) in refusals.iter().zip(names) {
        assert!(line.starts_with(&format!("{name}: 12 the weights: ")), "{line}");
    }
    let x = Tensor::from_f32(vec![2, 70], &[0.25; 140]).expect("sized");
    let expected = outputs(&Pipeline::new(&graph).jit().expect("supported"), &[x], 1);
    for (got, expected) in sums.split(' ').zip(expected[0].chunks_exact(4).step_by(16)) {
        let got = f32::from_bits(u32::from_str_radix(got, 16).expect("hexadecimal"));
        let expected = f32::from_le_bytes(expected.try_into().expect("four bytes"));
        assert!((got - expected).abs() <= 1e-4 * expected.abs().max(1.0), "{got} {expected}");
    }
}
