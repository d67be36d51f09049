//! Models in half precision: results are those of exact arithmetic, rounded once, and all products run in microkernels.

use symshape::Declaration;
use symshape_compiler::{
    CompileOptions, Result, emit,
    graph::{Graph, eval::eval},
    kernel::{MicrokernelSupport, Rhs, Stmt},
    pipeline::{Lowered, Pipeline},
    scalar::Scalar,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, TensorRef};

const ROWS: i64 = 33;
const PAST: i64 = 20;
const WIDTH: usize = 24;

/// Elements from -1 to 1 that are equal in all float types: multiples of 1/64.
fn elements(dtype: DType, shape: &[usize], seed: usize) -> Tensor {
    let count = shape.iter().product();
    let elems: Vec<Scalar> = (0..count)
        .map(|idx: usize| (idx + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57)
        .map(|bits| Scalar::from_f64(dtype, bits as f64 / 64.0 - 1.0))
        .collect();
    Tensor::from_scalars(dtype, shape.to_vec(), &elems).expect("as many as the shape")
}

/// A dense layer with a residual sum, a cache that grows by its rows, and scores of the rows for the cache. The cache is
/// of type `stored`, everything else of type `dtype`.
pub(crate) fn model(dtype: DType, stored: DType) -> Result<Graph> {
    let mut g = Graph { name: "half".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, ROWS))?;
    let p = g.symbol("P", Declaration::range(0, PAST))?;
    let x = g.input("x", dtype, vec![n, WIDTH.into()])?;
    let past = g.input("past", dtype, vec![p, WIDTH.into()])?;

    let weight = g.constant(elements(dtype, &[WIDTH, WIDTH], 1))?;
    let bias = g.constant(elements(dtype, &[WIDTH], 2))?;
    let y = g.matmul(x, weight)?;
    let y = g.add(y, bias)?;
    let y = g.tanh(y)?;
    let y = g.add(y, x)?;
    let kept = g.cast(stored, y)?;
    let kept = g.cast(dtype, kept)?;
    let cache = g.concat(&[past, kept], 0)?;
    let keys = g.transpose(cache, &[1, 0])?;
    let scores = g.matmul(y, keys)?;
    let weights = g.softmax(scores, 1)?;
    g.output("cache", cache)?;
    g.output("weights", weights)?;
    Ok(g)
}

/// The distance between neighbours of a value in this type, from the smallest normal number on.
fn step(dtype: DType, value: f64) -> f64 {
    let (digits, smallest) = if dtype == DType::F16 { (10, 2f64.powi(-14)) } else { (7, 2f64.powi(-126)) };
    2f64.powi(value.abs().max(smallest).log2().floor() as i32 - digits)
}

fn check(dtype: DType) {
    let exact = model(DType::F64, dtype).expect("a graph");
    let compiled = Pipeline::new(&model(dtype, dtype).expect("a graph")).jit().expect("supported");
    let mut context = Context::new(&compiled).expect("memory");

    for (n, p) in [(1, 0), (2, 1), (7, 13), (ROWS - 1, PAST - 1), (ROWS, PAST)] {
        let shapes = [[n as usize, WIDTH], [p as usize, WIDTH]];
        let inputs = [0, 1].map(|k| elements(dtype, &shapes[k], 10 + k));
        let expected =
            eval(&exact, &[0, 1].map(|k| elements(DType::F64, &shapes[k], 10 + k))).expect("a result");

        let views =
            [0, 1].map(|k| TensorRef::from_bytes(dtype, &shapes[k], inputs[k].bytes()).expect("sized"));
        let outputs = context.run_views(&views).expect("in contract");
        for (k, expected) in expected.iter().enumerate() {
            let output = outputs.get(k);
            let shape = expected.shape().to_vec();
            let output =
                Tensor::new(dtype, shape, Bytes::Owned(output.bytes().into())).expect("of this shape");
            for idx in 0..expected.elems() {
                let got = output.get(idx).as_f64();
                let value = expected.get(idx).as_f64();
                // Half a step for the rounding, and a little for the arithmetic in `f32`.
                let error = (got - value).abs();
                assert!(
                    error <= 0.51 * step(dtype, value),
                    "{dtype:?} N={n} P={p} output {k} [{idx}]: {got}, not {value}"
                );
            }
        }
    }
}

#[test]
fn results_are_exact_but_for_one_rounding() {
    check(DType::F16);
    check(DType::BF16);
}

#[test]
fn no_scalar_is_multiplied_in_half_precision() {
    for dtype in [DType::F16, DType::BF16] {
        let lowered = Pipeline::new(&model(dtype, dtype).expect("a graph")).lower().expect("supported");
        assert!(matches!(lowered.program.microkernels, MicrokernelSupport::Native { .. }));
        let mut contractions = 0;
        for kernel in &lowered.program.kernels {
            for stmt in &kernel.body {
                if let Stmt::Contraction(contraction) = stmt {
                    assert_eq!(contraction.dtype, DType::F32, "{}", kernel.name);
                    contractions += 1;
                }
            }
        }
        assert!(contractions >= 1, "{contractions}");
    }
}

/// Weights of a dense layer. Those of bf16 are too small for f16.
fn weights(dtype: DType, shape: &[usize]) -> Tensor {
    let scale = if dtype == DType::BF16 { 2f64.powi(-40) } else { 1.0 };
    let plain = elements(DType::F64, shape, 7);
    let scaled = |idx: usize| Scalar::from_f64(dtype, plain.get(idx).as_f64() * scale);
    let elems: Vec<Scalar> = (0..plain.elems()).map(scaled).collect();
    Tensor::from_scalars(dtype, shape.to_vec(), &elems).expect("as many as the shape")
}

/// The program of a dense layer for up to `rows` rows, whose weights have this type. `reads_halves` says whether
/// microkernels convert halves.
fn dense(dtype: DType, rows: i64, shape: [usize; 2], reads_halves: bool) -> Lowered {
    let build = || {
        let mut g = Graph { name: "dense".into(), ..Graph::default() };
        let n = g.symbol("N", Declaration::range(1, rows))?;
        let x = g.input("x", DType::F32, vec![n, shape[0].into()])?;
        let weight = g.constant(weights(dtype, &shape))?;
        let weight = g.cast(DType::F32, weight)?;
        let y = g.matmul(x, weight)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    let support = MicrokernelSupport::Native {
        multiplies_bytes: false,
        sums_pairs: false,
        tiles: false,
        bf16_matrices: false,
        reads_halves,
        lanes: 4,
    };
    let options = CompileOptions::default().support(support);
    Pipeline::new(&build().expect("a graph")).options(options).lower().expect("supported")
}

/// The types of the panels of a program.
fn panel_types(lowered: &Lowered) -> Vec<DType> {
    let program = &lowered.program;
    let stmts = program.kernels.iter().flat_map(|kernel| &kernel.body);
    let panels = stmts.filter_map(|stmt| match stmt {
        Stmt::Contraction(contraction) => match contraction.rhs {
            Rhs::Panels { buffer, .. } => Some(program.buffers[buffer].dtype),
            Rhs::Indexed(_) | Rhs::FewBits(_) => None,
        },
        _ => None,
    });
    panels.collect()
}

/// The bits of the results of a dense layer for several numbers of rows.
fn products(lowered: &Lowered, depth: usize) -> Vec<Vec<u8>> {
    let options = CompileOptions::default();
    let model = emit::jit::jit(&lowered.program, &lowered.plan, &options).expect("supported").0;
    let mut context = Context::new(&model).expect("memory");
    let product = |rows: usize| {
        let x = elements(DType::F32, &[rows, depth], rows);
        let view = TensorRef::from_bytes(DType::F32, x.shape(), x.bytes()).expect("sized");
        let outputs = context.run_views(&[view]).expect("in contract");
        outputs.get(0).bytes().to_vec()
    };
    [1, 2, 3, 4].map(product).to_vec()
}

#[test]
fn panels_of_few_rows_are_stored_in_16_bits() {
    for dtype in [DType::F16, DType::BF16] {
        // The second is reduced in parts, the third has a rest of columns, and the last has rows of whole pages.
        for shape in [[256, 512], [2304, 48], [300, 270], [1024, 64]] {
            let halves = dense(dtype, 4, shape, true);
            let floats = dense(dtype, 4, shape, false);
            assert_eq!(panel_types(&halves), [dtype], "{}", halves.program);
            assert_eq!(panel_types(&floats), [DType::F32]);
            assert!(halves.program.half_const_bytes() >= 2 * (shape[0] * shape[1]) as i64);
            assert_eq!(floats.program.half_const_bytes(), 0);
            assert!(products(&halves, shape[0]) == products(&floats, shape[0]), "{dtype} {shape:?}");
        }
        assert_eq!(panel_types(&dense(dtype, 5, [256, 512], true)), [DType::F32]);
    }
}
