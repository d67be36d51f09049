//! Contractions of other precisions than `f32`: compiled code for tile registers, which are emulated in memory,
//! against the definition and its bound.

use crate::bits::assert_same_bits;
use crate::machine;
use crate::models;

use machine::Machine;
use symshape::Dim;
use symshape_compiler::{
    CompileOptions, Error, Microkernels, emit,
    graph::{self, Graph, Op},
    kernel::{self, MicrokernelSupport, Program},
    lower, opt,
    pipeline::Pipeline,
    scalar::{Precision, Scalar},
    schedule,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, Model, TensorRef};

/// The precisions that tile registers have.
const PRECISIONS: [Precision; 2] = [Precision::Bf16x3, Precision::Bf16];

/// Code for machines with tile registers.
const TILES: MicrokernelSupport = MicrokernelSupport::Native {
    multiplies_bytes: false,
    sums_pairs: false,
    tiles: true,
    bf16_matrices: false,
    reads_halves: false,
    lanes: 4,
};

/// The largest error of outputs, relative to the largest output of sums in double precision. It covers the rounding of
/// sums of a few hundred products. An operand of the second layer may also round to a neighbouring bf16.
fn allowed(precision: Precision) -> f32 {
    if precision == Precision::Bf16 { 1e-3 } else { 1e-5 }
}

/// `y[r, j] = max(Σ a[r, k] b[k, j] + bias[j], 0)`, rows along two axes.
fn dense(precision: Precision, rows: i64, k: usize, n: usize) -> Program {
    let elems = n.div_ceil(16) * 16 * k;
    let source = format!(
        "program dense {{
  symbol M = 0..{rows}
  @0 a: f32[{k}*M] input 0
  @1 b: f32[{elems}] const [{elems}] all 0.0
  @2 c: f32[{n}*M] output 0
  @3 bias: f32[{n}] const [{n}] all 0.125
  input a[M, {k}] = @0
  output c[M, {n}] = @2
  kernel dense {{
    contraction f32 by {precision} {{
      m r in 0..M
      n j in 0..{n}
      k k in 0..{k}
      lhs @0[{k}*r + k]
      rhs panels @1[0] width 16
      %0 = sum
      %1 = load @3[j]
      %2 = add %0, %1
      %3 = const f32 0.0
      %4 = max %2, %3
      store @2[{n}*r + j], %4
    }}
  }}
}}
"
    );
    let mut program = kernel::text::parse(&source).expect("a program");
    let weights = kernel::MemorySpace::Const(models::weights(&[elems], 7));
    let id = program.buffers.keys().nth(1).expect("the weights");
    program.buffers[id].space = weights;
    program.microkernels = TILES;
    schedule::schedule(&mut program).expect("it has a schedule");
    kernel::verify::verify(&program).expect("it is well-formed");
    program
}

/// Numbers of many bits.
fn inputs(elems: usize) -> Tensor {
    models::weights(&[elems], 11)
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64() as f32).collect()
}

#[test]
fn dense_layers_follow_the_definition_at_every_number_of_rows() {
    for precision in PRECISIONS {
        for (k, n) in [(37, 40), (64, 100), (5, 16), (3, 130), (96, 7)] {
            let program = dense(precision, 70, k, n);
            assert!(program.uses_tiles(), "{precision}");
            let machine = Machine::on_tiles(program.clone());
            assert!(machine.summary.clif.contains("TileDot"), "{precision} {k}x{n}");
            let a = inputs(70 * k);
            let mut most: Option<Vec<f32>> = None;
            for m in (0..=70).rev() {
                let bytes = a.bytes()[..4 * m * k].to_vec();
                let got = machine.run_f32(&[m as i64], &[floats(&a)[..m * k].to_vec()]);
                match &most {
                    None => {
                        let x =
                            Tensor::new(DType::F32, vec![m, k], Bytes::Owned(bytes.into())).expect("a size");
                        let want =
                            kernel::eval::eval(&program, &[m as i64], &[x]).expect("it can be evaluated");
                        for (idx, (got, want)) in got.iter().zip(floats(&want[0])).enumerate() {
                            let (off, allowed) = ((got - want).abs(), f32::EPSILON * k as f32);
                            assert!(off <= allowed, "{precision} {k}x{n} [{idx}]: {got}, not {want}");
                        }
                    }
                    // The same bits whatever the number of rows.
                    Some(all) => {
                        assert_same_bits(&got, &all[..m * n], format_args!("{precision} {k}x{n} at M = {m}"));
                    }
                }
                most.get_or_insert(got);
            }
        }
    }
}

/// A model all of whose products have this precision, those among them that would be no faster.
fn all_split(graph: &Graph, precision: Precision) -> Result<Program, Error> {
    let mut graph = graph.clone();
    opt::optimize(&mut graph)?;
    graph.set_precision(precision);
    opt::store_bf16::store_bf16(&mut graph)?;
    opt::optimize_late(&mut graph)?;
    let program = lower::lower(&graph)?;
    let mut program = Program { microkernels: TILES, precision, workers: 1, ..program };
    schedule::schedule(&mut program)?;
    lower::eliminate_dead_stores(&mut program);
    kernel::verify::verify(&program)?;
    Ok(program)
}

/// The model of this precision at these bindings against its program's own meaning; the number of kernels on tile
/// registers.
fn check_model(name: &str, graph: &Graph, precision: Precision, bindings: &[Vec<i64>]) -> usize {
    let program = all_split(graph, precision).unwrap_or_else(|error| panic!("{name}: {error}"));
    let machine = Machine::on_tiles(program.clone());
    for dims in bindings {
        let inputs = models::inputs(graph, dims);
        let expected =
            kernel::eval::eval(&program, dims, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
        let got = machine.run(dims, &raw).unwrap_or_else(|refusal| panic!("{name}: {refusal:?}"));
        for (expected, got) in expected.iter().zip(got) {
            let got = Tensor::new(expected.dtype(), expected.shape().to_vec(), Bytes::Owned(got.into()));
            let (want, got) = (floats(expected), floats(&got.expect("the same size")));
            // The largest of no numbers at all is infinite; next to it nothing would be too far off.
            let largest = want.iter().filter(|x| x.is_finite()).fold(0.0_f32, |most, x| most.max(x.abs()));
            for (idx, (got, want)) in got.iter().zip(&want).enumerate() {
                let off = (got - want).abs();
                assert!(
                    got == want || off <= allowed(precision) * largest,
                    "{name} {precision} at {dims:?} [{idx}]: {got}, not {want}"
                );
            }
        }
    }
    program.on_tiles_count()
}

#[test]
fn models_follow_their_programs_on_tile_registers() {
    let mut on_tiles = 0;
    for (name, model) in models::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        for precision in PRECISIONS {
            on_tiles += check_model(name, &graph, precision, &models::bindings(&graph));
        }
    }
    assert_eq!(on_tiles, 118, "kernels on tile registers, of all models in both precisions");
}

/// `softmax(q · kᵀ) · v` of two heads of 20, whose right factors are all computed.
fn attention() -> Graph {
    let build = || {
        let mut g = models::graph("heads", &[("N", 1, 2), ("S", 1, 70)]);
        let shape = || vec![Dim::symbol("N"), Dim::symbol("S"), 2.into(), 20.into()];
        let mut heads = Vec::new();
        for name in ["q", "k", "v"] {
            let x = g.input(name, DType::F32, shape())?;
            heads.push(g.transpose(x, if name == "k" { &[0, 2, 3, 1] } else { &[0, 2, 1, 3] })?);
        }
        let scores = g.matmul(heads[0], heads[1])?;
        let probabilities = g.softmax(scores, 3)?;
        let y = g.matmul(probabilities, heads[2])?;
        g.output("y", y)?;
        Ok::<Graph, Error>(g)
    };
    build().expect("a valid graph")
}

/// Products of two inputs, with and without a batch in front.
fn products(batch: bool) -> Graph {
    let build = || {
        let symbols = [("N", 1, 3), ("M", 1, 70), ("K", 1, 70), ("J", 1, 100)];
        let mut g = models::graph("products", &symbols[usize::from(!batch)..]);
        let shape = |rest: [&str; 2]| {
            let batch = batch.then(|| Dim::symbol("N"));
            batch.into_iter().chain(rest.map(Dim::symbol)).collect::<Vec<_>>()
        };
        let x = g.input("x", DType::F32, shape(["M", "K"]))?;
        let y = g.input("y", DType::F32, shape(["K", "J"]))?;
        let z = g.matmul(x, y)?;
        let z = g.relu(z)?;
        g.output("z", z)?;
        Ok::<Graph, Error>(g)
    };
    build().expect("a valid graph")
}

#[test]
fn computed_factors_are_multiplied_on_tile_registers() {
    let lengths = [1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 69, 70];
    for precision in PRECISIONS {
        let bindings: Vec<Vec<i64>> = lengths.iter().map(|s| vec![1 + s % 2, *s]).collect();
        assert_eq!(
            check_model("heads", &attention(), precision, &bindings),
            1,
            "fused, and on tile registers"
        );
        for batch in [true, false] {
            let mut bindings = Vec::new();
            for (at, m) in lengths.iter().enumerate() {
                let (k, j) = (lengths[(at * 5 + 3) % lengths.len()], lengths[(at * 7 + 1) % lengths.len()]);
                let sizes = [2, *m, k, j + 30 * (*m % 2)];
                bindings.push(sizes[usize::from(!batch)..].to_vec());
            }
            assert_eq!(check_model("products", &products(batch), precision, &bindings), 1);
        }
    }
}

#[test]
fn rows_of_computed_products_keep_their_bits() {
    let (k, j) = (45, 83);
    let (x, y) = (floats(&inputs(70 * k)), floats(&models::weights(&[k * j], 5)));
    for precision in PRECISIONS {
        let options = CompileOptions::default()
            .precision(precision)
            .support(TILES)
            .microkernels(Microkernels::EmulatedTiles);
        let lowered = Pipeline::new(&products(false)).options(options).lower().expect("supported");
        let model = lowered.jit().expect("supported");
        let calls = [(70, 1), (70, 2), (69, 3), (64, 1), (33, 2), (31, 1), (17, 2), (16, 1), (2, 1), (1, 2)];
        assert_rows_keep_their_bits(&format!("{precision}"), &model, &calls, &|rows| {
            let left = TensorRef::new(&[rows, k], &x[..rows * k]).expect("a tensor");
            vec![left, TensorRef::new(&[k, j], &y).expect("a tensor")]
        });
    }
}

/// Calls with the given rows and threads, the largest first. Each must return its part of the first result, to the bit.
fn assert_rows_keep_their_bits<'x>(
    what: &str,
    model: &Model,
    calls: &[(usize, u32)],
    inputs: &dyn Fn(usize) -> Vec<TensorRef<'x>>,
) {
    let mut all: Vec<f32> = Vec::new();
    for (rows, threads) in calls {
        let mut context = Context::new(model).expect("memory");
        context.set_threads(*threads).expect("threads");
        let outputs = context.run_views(&inputs(*rows)).expect("it runs");
        let got = outputs.get(0).elems::<f32>().expect("floats");
        if all.is_empty() {
            all = got.to_vec();
        }
        assert_eq!(got.len(), all.len() / calls[0].0 * rows, "{what}");
        assert_same_bits(got, &all[..got.len()], format_args!("{what}: {rows} rows on {threads} threads"));
    }
}

/// Convolutions whose windows overlap: strides, holes, one axis and two, pixels that are filled up and such that are
/// not worth laying out; the sizes of the images are symbols.
fn convolutions() -> Vec<(&'static str, Graph)> {
    let conv = |name: &'static str, channels: i64, taps: [i64; 2], stride: i64, hole: i64| {
        let build = || {
            let mut g = models::graph(name, &[("N", 1, 3), ("H", 5, 9), ("W", 5, 21)]);
            let shape = vec![Dim::symbol("N"), channels.into(), Dim::symbol("H"), Dim::symbol("W")];
            let x = g.input("x", DType::F32, shape)?;
            let x = g.relu(x)?;
            let side: Vec<Dim> =
                [0, 0, taps[0] - 1, taps[1] - 1].map(|pad| Dim::from(hole * pad / 2)).to_vec();
            let x = g.pad(x, &side, &side, Scalar::f32(0.0))?;
            let x = g.window(x, &[2, 3], &taps, &[stride; 2], &[hole; 2])?;
            let sizes = [20, channels, taps[0], taps[1]].map(|size| size as usize);
            let w = g.constant(models::weights(&sizes, 3))?;
            let y = g.contract(x, b"nchwyx", w, b"ocyx", b"nohw")?;
            let y = g.relu(y)?;
            g.output("y", y)?;
            Ok::<Graph, Error>(g)
        };
        (name, build().expect("a valid graph"))
    };
    vec![
        conv("3x3", 32, [3, 3], 1, 1),
        conv("3x3 of 64 channels", 64, [3, 3], 1, 1),
        conv("3x3 of 30 channels by 2", 30, [3, 3], 2, 1),
        conv("3x3 with holes", 48, [3, 3], 1, 2),
        conv("1x5", 24, [1, 5], 1, 1),
        conv("5x1 by 2", 32, [5, 1], 2, 1),
        conv("2x2 by 2", 32, [2, 2], 2, 1),
        conv("3x3 of 3 channels", 3, [3, 3], 1, 1),
    ]
}

#[test]
fn windows_are_read_where_pixels_were_laid_out() {
    for (name, graph) in convolutions() {
        for precision in PRECISIONS {
            let bindings = [vec![1, 5, 5], vec![2, 6, 17], vec![1, 9, 21]];
            assert_eq!(check_model(name, &graph, precision, &bindings), 1, "{name}");
        }
        let options = CompileOptions::default().precision(Precision::Bf16x3).support(TILES);
        let lowered = Pipeline::new(&graph).options(options).lower().expect("supported");
        let machine = Machine::on_tiles(Program { workers: 1, ..lowered.program });
        // One loop of the reduction is in a pixel, more are in a row.
        let by_pixels = machine.summary.clif.contains("rows_1");
        assert_eq!(by_pixels, !["2x2 by 2", "3x3 of 3 channels"].contains(&name), "{name}");
        // An image has the same bits in any batch.
        let (h, w) = (7, 19);
        let most = models::inputs(&graph, &[3, h, w]).remove(0);
        let image = most.elems() / 3;
        let numbers = floats(&most);
        let all = machine.run_f32(&[3, h, w], std::slice::from_ref(&numbers));
        for n in [1, 2] {
            let got = machine.run_f32(&[n as i64, h, w], &[numbers[..n * image].to_vec()]);
            assert_same_bits(&got, &all[..got.len()], format_args!("{name}: {n} images"));
        }
    }
}

/// A 3×3 convolution of images so small that a register of rows holds a whole line.
fn small_images(channels: usize, side: i64) -> Graph {
    let build = || {
        let mut g = models::graph("small images", &[("N", 1, 3)]);
        let x =
            g.input("x", DType::F32, vec![Dim::symbol("N"), channels.into(), side.into(), side.into()])?;
        let y = models::conv(&mut g, x, [channels, 50], 3, 1, 3)?;
        let y = g.relu(y)?;
        g.output("y", y)?;
        Ok::<Graph, Error>(g)
    };
    build().expect("a valid graph")
}

#[test]
fn short_rows_are_multiplied_in_pairs() {
    for (channels, side) in [(32, 7), (3, 12), (40, 5), (64, 1), (32, 16)] {
        let graph = small_images(channels, side);
        for precision in PRECISIONS {
            check_model("small images", &graph, precision, &[vec![1], vec![2], vec![3]]);
            let settings = CompileOptions::default().precision(precision).support(TILES);
            let lowered = Pipeline::new(&graph).options(settings).lower().expect("supported");
            let options = CompileOptions::default().listing(true).microkernels(Microkernels::EmulatedTiles);
            let (model, summary) =
                emit::jit::jit(&lowered.program, &lowered.plan, &options).expect("supported");
            assert_eq!(summary.clif.contains("tile_32x"), side > 1, "{channels} channels, {side}²");
            let numbers = floats(&models::inputs(&graph, &[3]).remove(0));
            let (what, calls) = (format!("{precision}, {side}²"), [(3, 1), (3, 2), (2, 3), (1, 1), (1, 4)]);
            assert_rows_keep_their_bits(&what, &model, &calls, &|n| {
                let shape = [n, channels, side as usize, side as usize];
                vec![TensorRef::new(&shape, &numbers[..shape.iter().product()]).expect("a tensor")]
            });
        }
    }
}

/// Two dense layers with enough work for several threads.
fn wide() -> Graph {
    let build = || {
        let mut g = models::graph("wide", &[("M", 1, 150)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("M"), 200.into()])?;
        let w = g.constant(models::weights(&[200, 330], 3))?;
        let hidden = g.matmul(x, w)?;
        let hidden = g.relu(hidden)?;
        let w = g.constant(models::weights(&[330, 72], 4))?;
        let y = g.matmul(hidden, w)?;
        g.output("y", y)?;
        Ok::<Graph, Error>(g)
    };
    build().expect("a valid graph")
}

#[test]
fn rows_keep_their_bits_on_any_number_of_threads() {
    let x = floats(&inputs(150 * 200));
    for precision in PRECISIONS {
        let options = CompileOptions::default()
            .precision(precision)
            .support(TILES)
            .microkernels(Microkernels::EmulatedTiles);
        let lowered = Pipeline::new(&wide()).options(options).lower().expect("supported");
        let model = lowered.jit().expect("supported");
        let calls = [(150, 1), (150, 2), (150, 3), (149, 4), (33, 2), (32, 3), (17, 1), (16, 2), (1, 4)];
        assert_rows_keep_their_bits(&format!("{precision}"), &model, &calls, &|rows| {
            vec![TensorRef::new(&[rows, 200], &x[..rows * 200]).expect("a tensor")]
        });
    }
}

/// The product of two inputs.
fn product() -> Graph {
    let build = || {
        let mut g = models::graph("product", &[("M", 1, 9)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("M"), 3.into()])?;
        let w = g.input("w", DType::F32, vec![3.into(), 5.into()])?;
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        Ok::<Graph, Error>(g)
    };
    build().expect("a valid graph")
}

#[test]
fn texts_name_the_precision() {
    for precision in Precision::ALL {
        let mut graph = product();
        graph.set_precision(precision);
        let text = graph.to_string();
        assert_eq!(text.contains(&format!("contraction f32 by {precision} [")), precision != Precision::F32);
        assert_eq!(graph::text::parse(&text).expect("it was printed").to_string(), text);
        let text = lower::lower(&graph).expect("supported").to_string();
        assert_eq!(text.contains(&format!("contraction f32 by {precision} {{")), precision != Precision::F32);
        assert_eq!(kernel::text::parse(&text).expect("it was printed").to_string(), text);
    }
}

/// Pixels `[N, P, 64]` times a matrix. The channels of each image are weighted by a product of their means.
fn weighted() -> Graph {
    let build = || {
        let mut g = models::graph("weighted", &[("N", 1, 9), ("P", 64, 900)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("N"), Dim::symbol("P"), 64.into()])?;
        let matrix = |g: &mut Graph| g.constant(Tensor::from_f32(vec![64, 64], &[0.5; 4096]).expect("sized"));
        let (w, v) = (matrix(&mut g)?, matrix(&mut g)?);
        let y = g.matmul(x, w)?;
        let average = g.mean(y, &[1], true)?;
        let weight = g.matmul(average, v)?;
        let y = g.mul(y, weight)?;
        g.output("y", y)?;
        Ok::<Graph, Error>(g)
    };
    build().expect("a valid graph")
}

#[test]
fn products_that_take_next_to_no_time_are_not_split() {
    for (wanted, count) in [(Precision::F32, 0), (Precision::Bf16x3, 1), (Precision::Bf16, 2)] {
        let mut graph = weighted();
        opt::optimize(&mut graph).expect("supported");
        opt::apply_precision(&mut graph, wanted).expect("supported");
        let text = graph.to_string();
        assert_eq!(text.matches(&format!("contraction f32 by {wanted} [")).count(), count, "{text}");
    }
    let mut graph = product();
    opt::apply_precision(&mut graph, Precision::Bf16x3).expect("supported");
    assert!(graph.to_string().contains("by bf16x3"), "all there is");
}

#[test]
fn branches_are_models_of_their_own() {
    let mut g = models::graph("branches", &[("N", 1, 9), ("P", 64, 900)]);
    let which = g.input("which", DType::Bool, vec![]).expect("a name");
    let shape = vec![Dim::symbol("N"), Dim::symbol("P"), 64.into()];
    let x = g.input("x", DType::F32, shape).expect("a name");
    let branch = || Box::new(weighted());
    let op = Op::If { then: branch(), otherwise: branch() };
    let y = g.push(op, &[which, x, x]).expect("two branches alike");
    g.output("y", y).expect("a name");
    opt::optimize(&mut g).expect("supported");
    opt::apply_precision(&mut g, Precision::Bf16x3).expect("supported");
    let text = g.to_string();
    assert_eq!(text.matches("contraction f32 by bf16x3 [").count(), 2, "one of each branch: {text}");
}

/// `P` pixels of `channels` numbers times a constant matrix of 96 columns.
fn expanded(channels: i64) -> Result<Graph, Error> {
    let mut g = models::graph("expanded", &[("P", 1, 900)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("P"), channels.into()])?;
    let w = g.constant(models::weights(&[channels as usize, 96], 3))?;
    let y = g.matmul(x, w)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn products_that_would_be_no_faster_are_not_split() {
    // Multiplications for each number read or written: 14 and 19.
    for (channels, precision) in [(16, Precision::F32), (24, Precision::Bf16x3)] {
        let graph = expanded(channels).expect("a valid graph");
        let options = CompileOptions::default().precision(Precision::Bf16x3).support(TILES);
        let program = Pipeline::new(&graph).options(options).lower().expect("supported").program;
        assert_eq!(program.uses_tiles(), precision == Precision::Bf16x3, "{channels} channels");
    }
}
