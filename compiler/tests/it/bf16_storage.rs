//! Values that tile registers multiply as bf16 are stored as bf16: which ones, and compiled code against the
//! definition with these casts in it. Tile registers are emulated in memory, and used as well on machines that have
//! them; other levels read the same memory.

use crate::bits::assert_same_bits;
use crate::models;

use symshape::Dim;
use symshape_compiler::{
    CompileOptions, Microkernels, Result, emit,
    graph::{self, Graph, Value},
    kernel::{self, BufferId, MemorySpace, MicrokernelSupport, Program, Rhs, Stmt},
    opt,
    pipeline::{Artifact, Lowered, Pipeline},
    plan::problem::Budget,
    scalar::{Precision, ReduceOp, Scalar},
    target::{Level, Target},
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, Model, TensorRef};

/// How far outputs may be from those of sums in double precision, in parts of the largest: a number that is stored may
/// become the next bf16.
const ALLOWED: f32 = 4e-3;

/// Images `[N, 24, H, W]` through convolutions of `channels` channels: of pixels and of windows, a residual sum, a
/// maximum, a concatenation, and a mean.
fn images(channels: usize) -> Graph {
    let build = || {
        let mut graph = models::graph("images", &[("N", 1, 3), ("H", 3, 5), ("W", 3, 19)]);
        let g = &mut graph;
        let shape = vec![Dim::symbol("N"), 24.into(), Dim::symbol("H"), Dim::symbol("W")];
        let x = g.input("x", DType::F32, shape)?;
        let first = layer(g, x, [24, channels], 1, 1, 1)?;
        let second = layer(g, first, [channels, channels], 3, 1, 3)?;
        let third = models::conv(g, second, [channels, channels], 1, 1, 5)?;
        let sum = g.add(third, first)?;
        let sum = g.relu(sum)?;
        let side = [Dim::zero(), Dim::zero(), Dim::one(), Dim::one()];
        let padded = g.pad(sum, &side, &side, Scalar::f32(f32::NEG_INFINITY))?;
        let windows = g.window(padded, &[2, 3], &[3, 3], &[1, 1], &[1, 1])?;
        let most = g.reduce(ReduceOp::Max, windows, &[4, 5], false)?;
        let left = layer(g, most, [channels, 16], 1, 1, 7)?;
        let right = layer(g, most, [channels, channels], 3, 2, 9)?;
        let mean = g.mean(right, &[2, 3], false)?;
        let both = g.concat(&[left, most], 1)?;
        let y = layer(g, both, [16 + channels, 20], 3, 2, 11)?;
        g.output("y", y)?;
        g.output("mean", mean)?;
        Ok::<Graph, symshape_compiler::Error>(graph)
    };
    build().expect("a valid graph")
}

fn layer(g: &mut Graph, x: Value, of: [usize; 2], taps: usize, stride: i64, seed: u32) -> Result<Value> {
    let y = models::conv(g, x, of, taps, stride, seed)?;
    g.relu(y)
}

/// Dense layers of this width, the rows of the first of which are normalised.
fn rows(width: usize) -> Graph {
    let build = || {
        let mut g = models::graph("rows", &[("M", 1, 70)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("M"), width.into()])?;
        let mean = g.mean(x, &[1], true)?;
        let centred = g.sub(x, mean)?;
        let hidden = models::dense(&mut g, centred, width, 100, 1)?;
        let hidden = g.tanh(hidden)?;
        let hidden = models::dense(&mut g, hidden, 100, width, 3)?;
        let sum = g.add(hidden, centred)?;
        let y = models::dense(&mut g, sum, width, 40, 5)?;
        let y = g.softmax(y, 1)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    build().expect("a valid graph")
}

fn lowered(graph: &Graph) -> Lowered {
    let microkernels = MicrokernelSupport::Native {
        multiplies_bytes: true,
        sums_pairs: true,
        tiles: true,
        bf16_matrices: false,
        reads_halves: false,
        lanes: 4,
    };
    let precision = Precision::Bf16;
    let options = CompileOptions::default().precision(precision).support(microkernels);
    let lowered = Pipeline::new(graph).options(options).lower().expect("supported");
    let unproven = kernel::verify::verify(&lowered.program).expect("it is well-formed");
    assert!(unproven.is_empty(), "{unproven:?}");
    lowered
}

/// The program on emulated tile registers, and on those of this machine where the system grants them.
fn on_tiles(lowered: &Lowered) -> Vec<(String, Model)> {
    let model = |microkernels: Microkernels| {
        let options = CompileOptions::default().microkernels(microkernels);
        let model = emit::jit::jit(&lowered.program, &lowered.plan, &options).expect("supported").0;
        (format!("{microkernels:?}"), model)
    };
    let mut models = vec![model(Microkernels::EmulatedTiles)];
    models.extend(Some(model(Microkernels::Native)).filter(|(_, model)| model.uses_tiles()));
    models
}

/// The same program for machines without tile registers, as far as this one runs their code.
fn without_tiles(lowered: &Lowered) -> Vec<(String, Model)> {
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    let folder = tempfile::tempdir().expect("a folder");
    let host = Target::host().expect("this machine").level;
    let levels = [Level::X86V2, Level::X86V3, Level::X86V4].into_iter().filter(|level| *level <= host);
    let model = |level: Level| {
        let target = Target::parse(None, Some(level.name())).expect("a level");
        let compiled = lowered.compile(&target, Artifact::Shared).expect("supported");
        let path = folder.path().join(format!("{}.so", level.name()));
        emit::shared::shared(compiled.object, &[], &path).expect("a file");
        (level.name().to_string(), Model::open(path).expect("an artefact"))
    };
    levels.map(model).collect()
}

/// The outputs for one input.
fn run(model: &Model, threads: u32, shape: &[usize], input: &[f32]) -> Vec<Vec<f32>> {
    let mut context = Context::new(model).expect("memory");
    context.set_threads(threads).expect("threads");
    let input = TensorRef::new(shape, &input[..shape.iter().product()]).expect("a tensor");
    let outputs = context.run_views(&[input]).expect("it runs");
    (0..outputs.len()).map(|idx| outputs.get(idx).elems::<f32>().expect("floats").to_vec()).collect()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64() as f32).collect()
}

/// The program with products of `f32`, as machines without tile registers multiply them.
fn as_floats(program: &Program) -> Program {
    fn of(stmt: &mut Stmt) {
        match stmt {
            Stmt::For { body, .. } => body.iter_mut().for_each(of),
            Stmt::Contraction(contract) => contract.precision = Precision::F32,
            _ => {}
        }
    }
    let mut program = program.clone();
    program.kernels.iter_mut().flat_map(|kernel| &mut kernel.body).for_each(of);
    program
}

fn check(what: &str, program: &Program, models: &[(String, Model)], dims: &[i64], input: &Tensor) {
    let want = kernel::eval::eval(program, dims, std::slice::from_ref(input)).expect("it can be evaluated");
    for (name, model) in models {
        let got = run(model, 1, input.shape(), &floats(input));
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            let want = floats(want);
            let largest = want.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            assert!(got.len() == want.len() && largest > 0.0);
            for (idx, (got, want)) in got.iter().zip(&want).enumerate() {
                let off = (got - want).abs();
                assert!(
                    off <= ALLOWED * largest,
                    "{what}, {name} at {dims:?} [{idx}]: {got}, not {want} of {largest}"
                );
            }
        }
    }
}

/// Buffers of bf16 that contractions read, and contractions.
fn halves(program: &Program) -> (usize, usize) {
    fn of(stmt: &Stmt, found: &mut Vec<BufferId>) {
        match stmt {
            Stmt::For { body, .. } => body.iter().for_each(|stmt| of(stmt, found)),
            Stmt::Contraction(contract) => found.push(contract.lhs.buffer),
            _ => {}
        }
    }
    let mut read = Vec::new();
    program.kernels.iter().flat_map(|kernel| &kernel.body).for_each(|stmt| of(stmt, &mut read));
    let of_halves = read.iter().filter(|buffer| program.buffers[**buffer].dtype == DType::BF16);
    (of_halves.count(), read.len())
}

#[test]
fn images_follow_their_programs() {
    // Pixels that are packed, that are not worth packing, and that fill registers.
    for (channels, sizes) in [(20, 7), (32, 3), (48, 1), (64, 1)] {
        let graph = images(channels);
        let lowered = lowered(&graph);
        assert_eq!(halves(&lowered.program), (5, 6), "all but the model's input: {}", lowered.program);
        let (fast, others) = (on_tiles(&lowered), without_tiles(&lowered));
        let floats = as_floats(&lowered.program);
        let what = format!("{channels} channels");
        for dims in models::bindings(&graph).into_iter().take(sizes) {
            let input = models::inputs(&graph, &dims).remove(0);
            check(&what, &lowered.program, &fast, &dims, &input);
            check(&what, &floats, &others, &dims, &input);
        }
    }
}

#[test]
fn rows_follow_their_programs() {
    for width in [37, 64, 96] {
        let graph = rows(width);
        let lowered = lowered(&graph);
        assert_eq!(halves(&lowered.program), (3, 3), "{}", lowered.program);
        let (fast, others) = (on_tiles(&lowered), without_tiles(&lowered));
        let floats = as_floats(&lowered.program);
        for m in [1, 2, 15, 16, 17, 31, 32, 33, 48, 69, 70] {
            let input = models::inputs(&graph, &[m]).remove(0);
            check(&format!("{width} wide"), &lowered.program, &fast, &[m], &input);
            check(&format!("{width} wide"), &floats, &others, &[m], &input);
        }
    }
}

#[test]
fn an_image_has_the_same_bits_in_any_batch_and_on_any_number_of_threads() {
    for channels in [20, 64] {
        let graph = images(channels);
        let lowered = lowered(&graph);
        let input = floats(&models::inputs(&graph, &[3, 4, 19]).remove(0));
        for (name, model) in on_tiles(&lowered).into_iter().chain(without_tiles(&lowered)) {
            let all = run(&model, 1, &[3, 24, 4, 19], &input);
            for (n, threads) in [(3, 2), (2, 3), (1, 1), (1, 4), (2, 1)] {
                let got = run(&model, threads, &[n, 24, 4, 19], &input);
                for (got, all) in got.iter().zip(&all) {
                    let expected = &all[..all.len() / 3 * n];
                    assert_same_bits(got, expected, format_args!("{name}: {n} images, {threads} threads"));
                }
            }
        }
    }
}

/// How many values of a model are rounded.
fn rounded(graph: &Graph) -> usize {
    let mut graph = graph.clone();
    opt::optimize(&mut graph).expect("a valid graph");
    graph.set_precision(Precision::Bf16);
    opt::store_bf16::store_bf16(&mut graph).expect("a valid graph");
    graph::verify::verify(&graph).expect("it is well-formed");
    graph.to_string().matches("round_bf16").count()
}

#[test]
fn what_others_read_as_it_is_stays_as_it_is() {
    // Three before the maximum, and the concatenated operand.
    assert_eq!(rounded(&images(32)), 4);
    assert_eq!(rounded(&rows(32)), 3);
    let net = |last: &dyn Fn(&mut Graph, Value) -> Result<Value>| {
        let build = || {
            let mut g = models::graph("net", &[("M", 1, 70)]);
            let x = g.input("x", DType::F32, vec![Dim::symbol("M"), 40.into()])?;
            let x = g.tanh(x)?;
            let y = last(&mut g, x)?;
            let z = models::dense(&mut g, x, 40, 32, 5)?;
            g.output("y", y)?;
            g.output("z", z)?;
            Ok::<Graph, symshape_compiler::Error>(g)
        };
        build().expect("a valid graph")
    };
    assert_eq!(rounded(&net(&|g, x| g.neg(x))), 1, "an elementwise reader accepts bf16");
    assert_eq!(rounded(&net(&|g, x| models::dense(g, x, 40, 20, 3))), 1);
    assert_eq!(rounded(&net(&|_, x| Ok(x))), 0, "an output");
    assert_eq!(rounded(&net(&|g, x| g.mean(x, &[1], false))), 0, "a sum along an axis");
    let squares = net(&|g, x| {
        let y = g.transpose(x, &[1, 0])?;
        g.matmul(x, y)
    });
    assert_eq!(rounded(&squares), 0, "a product without constants");
    let concat = net(&|g, x| {
        let y = g.input("other", DType::F32, vec![Dim::symbol("M"), 3.into()])?;
        g.concat(&[x, y], 1)
    });
    assert_eq!(rounded(&concat), 1, "a concatenation copies it next to an f32 input");
}

/// One dense layer whose rows are bf16, as a program in text, and its weights.
fn dense(k: usize, n: usize, by: &str, right: &str) -> Program {
    let source = format!(
        "program dense {{
  symbol M = 1..40
  @0 a: bf16[{k}*M] input 0
  @1 b: f32[{elems}] const [{elems}] all 0.0
  @2 c: f32[{n}*M] output 0
  input a[M, {k}] = @0
  output c[M, {n}] = @2
  kernel dense {{
    contraction f32{by} {{
      m r in 0..M
      n j in 0..{n}
      k k in 0..{k}
      lhs @0[{k}*r + k]
      rhs {right}
      %0 = sum
      store @2[{n}*r + j], %0
    }}
  }}
}}
",
        elems = n.div_ceil(16) * 16 * k
    );
    let mut program = kernel::text::parse(&source).expect("a program");
    let id = program.buffers.keys().nth(1).expect("the weights");
    program.buffers[id].space = MemorySpace::Const(models::weights(&[n.div_ceil(16) * 16 * k], 7));
    program
}

#[test]
fn factors_that_no_microkernel_reads_are_copied() {
    for (by, right, tiles, copies) in [
        (" by bf16", "panels @1[0] width 16".to_string(), true, 0),
        ("", "panels @1[0] width 16".to_string(), true, 0),
        ("", "panels @1[0] width 16".to_string(), false, 0),
        (" by bf16", "@1[20*k + j]".to_string(), true, 1),
        ("", "@1[20*k + j]".to_string(), false, 1),
    ] {
        let mut program = dense(24, 20, by, &right);
        program.microkernels = MicrokernelSupport::Native {
            multiplies_bytes: false,
            sums_pairs: false,
            tiles,
            bf16_matrices: false,
            reads_halves: false,
            lanes: 4,
        };
        symshape_compiler::schedule::schedule(&mut program).expect("it has a schedule");
        kernel::verify::verify(&program).expect("it is well-formed");
        assert_eq!(program.kernels.len(), 1 + copies, "{program}");
        let read = |stmt: &Stmt| match stmt {
            Stmt::Contraction(contract) => {
                Some((contract.lhs.buffer, matches!(contract.rhs, Rhs::Indexed(_))))
            }
            _ => None,
        };
        let (left, _) = program.kernels[copies].body.iter().find_map(read).expect("a contraction");
        let is_half = program.buffers[left].dtype == DType::BF16;
        assert_eq!(is_half, copies == 0);
        let plan = symshape_compiler::plan::plan(&program, &Budget::COMPILE).expect("a plan");
        let lowered = Lowered { program, plan, options: CompileOptions::default(), warnings: Vec::new() };
        let dims = [17];
        let numbers = floats(&models::weights(&[17 * 24], 3));
        let bytes: Vec<u8> =
            numbers.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect();
        let input = Tensor::new(DType::BF16, vec![17, 24], Bytes::Owned(bytes.clone().into())).expect("bf16");
        let want = kernel::eval::eval(&lowered.program, &dims, &[input]).expect("it can be evaluated");
        // Tile registers round the weights as well, which the definition says too; others don't.
        let bound = if by.is_empty() { 1e-5 } else { 4e-2 };
        for microkernels in [Microkernels::EmulatedTiles, Microkernels::Native] {
            let options = CompileOptions::default().microkernels(microkernels);
            let model = emit::jit::jit(&lowered.program, &lowered.plan, &options).expect("supported").0;
            let mut context = Context::new(&model).expect("memory");
            let input = TensorRef::from_bytes(DType::BF16, &[17, 24], &bytes).expect("a tensor");
            let outputs = context.run_views(&[input]).expect("it runs");
            for (got, want) in outputs.get(0).elems::<f32>().expect("floats").iter().zip(floats(&want[0])) {
                assert!((got - want).abs() <= bound, "{got}, not {want}");
            }
        }
    }
}
