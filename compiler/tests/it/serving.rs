//! Batches of requests of mixed shapes, from Rust and from C: each request has the bits that it has alone.

use crate::{models, random_cases::Random, state::decoder};

use std::{path::Path, process::Command, time::Duration};
use symshape::{Declaration, Dim};
use symshape_compiler::{
    CompileOptions, Result, StateRequest,
    graph::Graph,
    pipeline::{self, Artifact, Pipeline},
    scalar::ReduceOp,
    target::Target,
};
use symshape_runtime::{BatchOptions, Batcher, Context, DType, Model, TensorMut, TensorRef, Ticket};

const WIDTH: usize = 8;
const MAX_ROWS: usize = 12;
const MAX_LENGTH: usize = 9;

/// A layer, and attention of each row's positions on themselves. With `shift`, an input is the same for all rows.
fn build(name: &str, has_shift: bool) -> Result<Graph> {
    let mut g = Graph { name: name.into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, MAX_ROWS as i64))?;
    let s = g.symbol("S", Declaration::range(1, MAX_LENGTH as i64))?;
    let shape: Vec<Dim> = vec![n, s, WIDTH.into()];
    let mut x = g.input("x", DType::F32, shape.clone())?;
    if has_shift {
        let shift = g.input("shift", DType::F32, vec![WIDTH.into()])?;
        let shift = g.broadcast_to(shift, &shape)?;
        x = g.add(x, shift)?;
    }
    let weights = g.constant(models::weights(&[WIDTH, WIDTH], 3))?;
    let h = g.matmul(x, weights)?;
    let turned = g.transpose(h, &[0, 2, 1])?;
    let scores = g.matmul(h, turned)?;
    let scores = g.softmax(scores, 2)?;
    let y = g.matmul(scores, x)?;
    g.output("y", y)?;
    let top = g.reduce(ReduceOp::Max, y, &[1, 2], false)?;
    g.output("top", top)?;
    Ok(g)
}

fn graph(name: &str, has_shift: bool) -> Graph {
    build(name, has_shift).expect("a valid graph")
}

/// A request and the results that it has alone.
struct Request {
    shape: [usize; 3],
    x: Vec<f32>,
    y: Vec<f32>,
    top: Vec<f32>,
}

impl Request {
    fn new(random: &mut Random, context: &mut Context, max_rows: usize) -> Request {
        let shape = [1 + random.below(max_rows), 1 + random.below(MAX_LENGTH), WIDTH];
        let x: Vec<f32> =
            (0..shape.iter().product()).map(|_| random.below(2000) as f32 / 500.0 - 2.0).collect();
        let outputs = context.run_views(&[TensorRef::new(&shape, &x).expect("sized")]).expect("in contract");
        let [y, top] = [0, 1].map(|idx| outputs.get(idx).elems::<f32>().expect("floats").to_vec());
        Request { shape, x, y, top }
    }

    fn submit(&self, batcher: &Batcher) -> Ticket {
        batcher.submit(&[TensorRef::new(&self.shape, &self.x).expect("sized")]).expect("in contract")
    }

    fn check(&self, ticket: Ticket) {
        let (mut y, mut top) = (vec![f32::NAN; self.y.len()], vec![f32::NAN; self.top.len()]);
        ticket.wait(&mut [TensorMut::new(&mut y), TensorMut::new(&mut top)]).expect("in contract");
        let bits = |list: &[f32]| list.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&y), bits(&self.y), "{:?}", self.shape);
        assert_eq!(bits(&top), bits(&self.top), "{:?}", self.shape);
    }
}

/// Batches with the arena of four of the longest rows, so that shorter rows have larger batches.
fn batcher(model: &Model, deadline: Duration) -> Batcher {
    let arena_bytes = Some(model.arena_bytes(&[4, MAX_LENGTH as i64]).expect("allowed"));
    let options = BatchOptions { max_rows: MAX_ROWS, deadline, arena_bytes, ..BatchOptions::default() };
    Batcher::mixed(model, "N", options).expect("a model of rows")
}

#[test]
fn mixed_requests_of_many_threads_have_the_bits_that_they_have_alone() {
    let model = pipeline::jit(&graph("mixed", false)).expect("supported");
    let batcher = batcher(&model, Duration::from_micros(200));
    std::thread::scope(|scope| {
        for thread in 0..12 {
            let (model, batcher) = (&model, &batcher);
            scope.spawn(move || {
                let mut context = Context::new(model).expect("an arena");
                let mut random = Random(thread);
                for _ in 0..60 {
                    let request = Request::new(&mut random, &mut context, 3);
                    request.check(request.submit(batcher));
                }
            });
        }
    });
}

#[test]
fn a_batcher_that_stops_answers_all_requests() {
    let model = pipeline::jit(&graph("stopped", false)).expect("supported");
    let mut context = Context::new(&model).expect("an arena");
    let mut random = Random(99);
    for _ in 0..20 {
        // Nobody waits for the deadline: the batcher stops first.
        let batcher = batcher(&model, Duration::from_secs(3600));
        let requests: Vec<Request> = (0..6).map(|_| Request::new(&mut random, &mut context, 2)).collect();
        let tickets: Vec<Ticket> = requests.iter().map(|request| request.submit(&batcher)).collect();
        drop(batcher);
        requests.iter().zip(tickets).for_each(|(request, ticket)| request.check(ticket));
    }
}

/// Compiles and runs `c/batches.c` with a file of the model and these flags.
fn check_c_program(folder: &Path, name: &str, file: &str, flags: &[&str]) {
    let upper = name.to_uppercase();
    let output = Command::new("cc")
        .current_dir(folder)
        .args(["-std=c99", "-D_POSIX_C_SOURCE=200112L", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I."])
        .args(flags)
        .args([&format!("-DMODEL={name}"), "-include", &format!("{name}.h")])
        .args([&format!("-DROWS={upper}_ROW_SYMBOL"), &format!("-DSTAGING={upper}_STAGING_MAX")])
        .args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/batches.c"), file, "-o", "program", "-lm"])
        .output()
        .expect("cc is needed by this test");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{name}, {file}: {text}");

    let output = Command::new(folder.join("program")).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{name}, {file}: {text}");
}

#[test]
fn models_with_state_are_refused() {
    let graph = decoder(4, 12);
    let model = Pipeline::new(&graph).state(StateRequest::find()).jit().expect("supported");
    let error = Batcher::mixed(&model, "N", BatchOptions::default()).expect_err("a model with state");
    assert!(error.to_string().starts_with("the model has state"), "{error}");
    let rows: Vec<Vec<usize>> = model.inputs().iter().map(|input| vec![1; input.rank() - 1]).collect();
    let rows: Vec<&[usize]> = rows.iter().map(Vec::as_slice).collect();
    let error = Batcher::new(&model, "N", &rows, BatchOptions::default()).expect_err("a model with state");
    assert!(error.to_string().starts_with("the model has state"), "{error}");
}

#[test]
fn c_programs_form_groups_and_run_blocks() {
    let graph = graph("groups", true);
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let lowered = Pipeline::new(&graph).lower().expect("supported");
    let compiled =
        lowered.compile(&Target::host().expect("this machine"), Artifact::Object).expect("supported");
    std::fs::write(folder.join("groups.h"), compiled.header).expect("a header");
    std::fs::write(folder.join("groups.o"), compiled.object.into_bytes().expect("an object"))
        .expect("a file");
    check_c_program(folder, "groups", "groups.o", &["-O1"]);

    let options = CompileOptions::for_c_source();
    let source =
        Pipeline::new(&graph).options(options).lower().and_then(|lowered| lowered.source("groups.h"));
    let source = source.expect("supported");
    std::fs::write(folder.join("groups.h"), source.header).expect("a header");
    std::fs::write(folder.join("groups.c"), source.code).expect("a source");
    let sanitised = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-std=c11"];
    check_c_program(folder, "groups", "groups.c", &sanitised);
}

#[test]
fn headers_of_models_without_rows_have_no_groups() {
    let build = || -> Result<Graph> {
        let mut g = Graph { name: "columns".into(), ..Graph::default() };
        let n = g.symbol("N", Declaration::range(1, 8))?;
        let x = g.input("x", DType::F32, vec![4.into(), n])?;
        let y = g.neg(x)?;
        g.output("y", y)?;
        Ok(g)
    };
    let graph = build().expect("a valid graph");
    let options = CompileOptions::for_c_source();
    let lowered = Pipeline::new(&graph).options(options).lower().expect("supported");
    let header = lowered.source("columns.h").expect("supported").header;
    assert!(!header.contains("columns_group"), "{header}");
}
