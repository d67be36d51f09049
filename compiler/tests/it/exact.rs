//! Contractions of `f32` with constants that are bf16 times a scale, as weights stored in one byte are: tile registers
//! multiply them without loss, at any precision. The registers are emulated in memory, and used as well on machines
//! that have them.

use crate::bits::assert_same_bits;
use crate::models;

use symshape::Dim;
use symshape_compiler::{
    CompileOptions, Microkernels, Result, emit,
    graph::{self, Graph, Value},
    kernel::{MicrokernelSupport, Stmt},
    opt,
    pipeline::{Lowered, Pipeline},
    scalar::Precision,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, Model, TensorRef};

/// How far outputs may be from those of sums in double precision, in parts of the largest.
const ALLOWED: f32 = 2e-6;

/// Numbers of rows of tiles of one register and of two, and the numbers next to them.
const ROWS: [i64; 12] = [1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 70];

/// Integers of one byte that look random and are always the same.
fn integers(dtype: DType, shape: &[usize], seed: u32) -> Tensor {
    let bytes: Vec<u8> =
        floats(&models::weights(shape, seed)).iter().map(|x| (x * 128.0) as i8 as u8).collect();
    Tensor::new(dtype, shape.to_vec(), Bytes::Owned(bytes.into())).expect("a byte each")
}

/// `(q - zero) * scale`, with a scale for each index of axis `k`, or one alone.
fn stored(g: &mut Graph, tensor: Tensor, zero: i64, scales: usize, k: usize) -> Result<Value> {
    let q = g.constant(tensor)?;
    let wide = g.cast(DType::I32, q)?;
    let zero = g.number(DType::I32, zero as f64)?;
    let centred = g.sub(wide, zero)?;
    let float = g.cast(DType::F32, centred)?;
    let numbers: Vec<f32> =
        floats(&models::weights(&[scales], 9)).iter().map(|x| (x + 1.5) / 200.0).collect();
    let scale = g.constant(Tensor::from_f32(vec![scales], &numbers).expect("one each"))?;
    let trailing: Vec<usize> = (1..g.rank(q) - k).collect();
    let scale = g.unsqueeze(scale, &trailing)?;
    g.mul(float, scale)
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64() as f32).collect()
}

/// `x · w`, with the parts of `w`.
fn product(k: i64, weights: impl FnOnce(&mut Graph) -> Result<Value>) -> Graph {
    let build = || {
        let mut g = models::graph("product", &[("M", 1, 70)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("M"), k.into()])?;
        let w = weights(&mut g)?;
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    build().expect("a valid graph")
}

/// Two layers: one with a scale for each column, followed by the remains of a normalisation, and one of unsigned bytes,
/// transposed.
fn layers() -> Graph {
    let build = || {
        let mut g = models::graph("layers", &[("M", 1, 70)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("M"), 70.into()])?;
        let w = stored(&mut g, integers(DType::I8, &[70, 100], 3), 0, 100, 1)?;
        let y = g.matmul(x, w)?;
        let (scale, bias) =
            (g.constant(models::weights(&[100], 5))?, g.constant(models::weights(&[100], 6))?);
        let y = g.mul(y, scale)?;
        let y = g.add(y, bias)?;
        let y = g.relu(y)?;
        let w = stored(&mut g, integers(DType::U8, &[40, 100], 4), 131, 1, 1)?;
        let w = g.transpose(w, &[1, 0])?;
        let y = g.matmul(y, w)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    build().expect("a valid graph")
}

/// A convolution of `taps`², whose images have `M` rows, with a scale for each kernel.
fn convolution(channels: i64, taps: i64, stride: i64) -> Graph {
    let build = || {
        let mut g = models::graph("convolution", &[("M", 5, 70)]);
        let x = g.input("x", DType::F32, vec![2.into(), channels.into(), Dim::symbol("M"), 19.into()])?;
        let x = g.relu(x)?;
        let x = g.window(x, &[2, 3], &[taps; 2], &[stride; 2], &[1; 2])?;
        let shape = [20, channels as usize, taps as usize, taps as usize];
        let w = stored(&mut g, integers(DType::I8, &shape, 3), 0, 20, 0)?;
        let y = g.contract(x, b"nchwyx", w, b"ocyx", b"nohw")?;
        let y = g.relu(y)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    build().expect("a valid graph")
}

/// Bf16 without a scale, the last of them this number.
fn bf16(last: f32) -> Graph {
    product(45, |g| {
        let numbers = floats(&models::weights(&[45 * 33], 8));
        let mut numbers: Vec<f32> =
            numbers.iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect();
        numbers[45 * 33 - 1] = last;
        g.constant(Tensor::from_f32(vec![45, 33], &numbers).expect("one each"))
    })
}

fn lowered(graph: &Graph, precision: Precision) -> Lowered {
    let microkernels = MicrokernelSupport::Native {
        multiplies_bytes: true,
        sums_pairs: true,
        tiles: true,
        bf16_matrices: false,
        reads_halves: false,
        lanes: 4,
    };
    Pipeline::new(graph)
        .options(CompileOptions::default().precision(precision).support(microkernels))
        .lower()
        .expect("supported")
}

/// The program on emulated tile registers, and on those of this machine where the system grants them.
fn models(lowered: &Lowered) -> Vec<Model> {
    let model = |microkernels: Microkernels| {
        let options = CompileOptions::default().microkernels(microkernels);
        emit::jit::jit(&lowered.program, &lowered.plan, &options).expect("supported").0
    };
    let mut models = vec![model(Microkernels::EmulatedTiles)];
    models.extend(Some(model(Microkernels::Native)).filter(Model::uses_tiles));
    models
}

/// The output for one input of this shape.
fn run(model: &Model, threads: u32, shape: &[usize], input: &[f32]) -> Vec<f32> {
    let mut context = Context::new(model).expect("memory");
    context.set_threads(threads).expect("threads");
    let input = TensorRef::new(shape, &input[..shape.iter().product()]).expect("a tensor");
    let outputs = context.run_views(&[input]).expect("it runs");
    outputs.get(0).elems::<f32>().expect("floats").to_vec()
}

/// The kernels that multiply exactly.
fn exact(lowered: &Lowered) -> usize {
    fn of(stmt: &Stmt) -> bool {
        match stmt {
            Stmt::For { body, .. } => body.iter().any(of),
            Stmt::Contraction(contract) => contract.precision == Precision::Exact,
            _ => false,
        }
    }
    lowered.program.kernels.iter().filter(|kernel| kernel.body.iter().any(of)).count()
}

#[test]
fn stored_weights_are_multiplied_as_precisely_as_floats() {
    let models = [
        ("layers", layers(), 2),
        ("bf16", bf16(0.5), 1),
        ("1x1", convolution(24, 1, 1), 1),
        ("3x3 by 2", convolution(32, 3, 2), 1),
        ("3x3 of 3 channels by 2", convolution(3, 3, 2), 1),
        ("3x3", convolution(32, 3, 1), 1),
    ];
    for (name, graph, kernels) in models {
        let lowered = lowered(&graph, Precision::F32);
        assert_eq!((exact(&lowered), lowered.program.on_tiles_count()), (kernels, kernels), "{name}");
        for model in self::models(&lowered) {
            for rows in ROWS.into_iter().filter(|rows| *rows >= 5 || !name.contains('x')) {
                let input = models::inputs(&graph, &[rows]).remove(0);
                let want =
                    floats(&graph::eval::eval(&graph, std::slice::from_ref(&input)).expect("an oracle")[0]);
                let got = run(&model, 1, input.shape(), &floats(&input));
                let largest = want.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                assert!(got.len() == want.len() && largest > 0.0);
                for (idx, (got, want)) in got.iter().zip(&want).enumerate() {
                    let off = (got - want).abs();
                    assert!(off <= ALLOWED * largest, "{name} at {rows} [{idx}]: {got}, not {want}");
                }
            }
        }
    }
}

#[test]
fn rows_keep_their_bits_in_any_batch_and_on_any_number_of_threads() {
    let graph = layers();
    let x = floats(&models::weights(&[70 * 70], 11));
    for model in models(&lowered(&graph, Precision::F32)) {
        let all = run(&model, 1, &[70, 70], &x);
        for (rows, threads) in ROWS.into_iter().zip([2, 1, 3, 4].into_iter().cycle()) {
            let got = run(&model, threads, &[rows as usize, 70], &x);
            assert_same_bits(&got, &all[..got.len()], format_args!("{rows} rows on {threads} threads"));
        }
    }
}

#[test]
fn numbers_at_the_edges_are_those_of_floats() {
    let (k, n) = (33, 20);
    let graph = product(k, |g| stored(g, integers(DType::I8, &[33, 20], 3), 0, 20, 1));
    let k = k as usize;
    let mut odd = vec![f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, -f32::MAX, f32::MIN_POSITIVE];
    odd.extend([0x7f80_0001, 0xffc0_1234, 0x7f7f_0000, 0x7f7f_8000, 1, 0x807f_ffff].map(f32::from_bits));
    for (row, number) in odd.into_iter().enumerate() {
        // Alone in a row of zeros, and among others.
        for others in [0.0, 1.0] {
            let mut x: Vec<f32> = floats(&models::weights(&[k], 2)).iter().map(|x| x * others).collect();
            x[row % k] = number;
            let input = Tensor::from_f32(vec![1, k], &x).expect("a row");
            let want = floats(&graph::eval::eval(&graph, &[input]).expect("an oracle")[0]);
            for model in models(&lowered(&graph, Precision::F32)) {
                let got = run(&model, 1, &[1, k], &x);
                assert_eq!(got.len(), n);
                for (got, want) in got.into_iter().zip(&want) {
                    let off = (got - want).abs();
                    let close = off <= 1e-6 * want.abs().max(others) || off <= 2.0 * f32::MIN_POSITIVE;
                    let same = got == *want || got.is_nan() && want.is_nan();
                    assert!(same || close, "{number:e} beside {others}: {got:e}, not {want:e}");
                }
            }
        }
    }
}

#[test]
fn one_precision_gains_and_another_stays() {
    let graph = layers();
    assert_eq!(exact(&lowered(&graph, Precision::Bf16x3)), 2, "as fast, and more precise");
    let fast = lowered(&graph, Precision::Bf16);
    assert_eq!((exact(&fast), fast.program.on_tiles_count()), (0, 2));
}

#[test]
fn infinite_weights_are_multiplied_as_floats() {
    for weight in [f32::INFINITY, f32::NEG_INFINITY] {
        let graph = bf16(weight);
        let lowered = lowered(&graph, Precision::F32);
        assert_eq!((exact(&lowered), lowered.program.on_tiles_count()), (0, 0));
        for model in models(&lowered) {
            let got = run(&model, 1, &[1, 45], &[1.0; 45]);
            assert_eq!(got[32], weight, "a product with parts that are zero is no number");
        }
    }
}

#[test]
fn what_is_no_bf16_or_small_is_left_alone() {
    let along_the_sum = product(48, |g| stored(g, integers(DType::I8, &[48, 32], 3), 0, 48, 0));
    let of_many_bits = product(48, |g| {
        let numbers: Vec<f32> = (0..48 * 32).map(|number| (number * 37 % 1000) as f32).collect();
        let numbers = g.constant(Tensor::from_f32(vec![48, 32], &numbers).expect("one each"))?;
        let scale = g.constant(models::weights(&[32], 9))?;
        g.mul(numbers, scale)
    });
    let narrow = product(48, |g| stored(g, integers(DType::I8, &[48, 3], 3), 0, 3, 1));
    let shallow = product(5, |g| stored(g, integers(DType::I8, &[5, 64], 3), 0, 64, 1));
    for graph in [along_the_sum, of_many_bits, narrow, shallow] {
        assert_eq!(lowered(&graph, Precision::F32).program.on_tiles_count(), 0, "{graph}");
        let mut better = graph.clone();
        opt::optimize(&mut better).expect("a valid graph");
        let maps = better.to_string().lines().filter(|line| line.contains("mul")).count();
        assert_eq!(maps, 0, "the scale is part of the weights: {better}");
    }
}
