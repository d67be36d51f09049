//! Random layers at the precisions of tile registers, bit by bit against the reference evaluator. They run on the tile
//! registers of the machine and on emulated ones. All elements are integers so small that all products and sums are
//! exact.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Unstructured};
use std::collections::BTreeMap;
use symshape::{Declaration, Dim, Symbol};
use symshape_compiler::{
    CompileOptions, Error, Microkernels,
    graph::{Graph, Value, eval::eval},
    kernel::MicrokernelSupport,
    pipeline::Pipeline,
    scalar::{Precision, Scalar},
    tensor::Tensor,
};
use symshape_runtime::{Context, DType, TensorRef};

/// Sizes around those of tiles and registers.
const SIZES: [i64; 12] = [1, 3, 8, 15, 16, 17, 31, 32, 33, 48, 64, 100];

/// Magnitudes of the inputs of layers: exact as one bf16, and as the sum of two.
const NARROW: i64 = 8;
const WIDE: i64 = 1000;

/// The largest number of elements of a layer's result at the upper bounds. The oracle takes long for more.
const MAX_ELEMS: i64 = 40_000;

/// A model that grows layer by layer.
struct Layers<'a, 'b> {
    graph: Graph,
    choices: &'a mut Unstructured<'b>,
    /// The largest magnitudes of weights and of the inputs of layers. One of two operands has no low part, because
    /// `bf16x3` omits the products of low parts.
    weights: i64,
    numbers: i64,
    seed: u64,
}

impl Layers<'_, '_> {
    fn size(&mut self) -> i64 {
        self.choices.choose(&SIZES).copied().unwrap_or(1)
    }

    fn coin(&mut self) -> bool {
        self.choices.arbitrary().unwrap_or(false)
    }

    fn within(&mut self, least: i64, most: i64) -> i64 {
        self.choices.int_in_range(least..=most).unwrap_or(least)
    }

    fn constant(&mut self, shape: &[i64], most: i64) -> Result<Value, Error> {
        let shape: Vec<usize> = shape.iter().map(|size| *size as usize).collect();
        self.seed += 1;
        self.graph.constant(integers(shape, most, self.seed))
    }

    /// An input of rows, or of images whose channels come first.
    fn input(&mut self, is_image: bool) -> Result<Value, Error> {
        let channels = Dim::from(self.size());
        let shape = match (is_image, self.coin()) {
            (true, true) => vec![Dim::symbol("N"), channels, Dim::symbol("S"), self.within(3, 19).into()],
            (true, false) => vec![Dim::symbol("N"), channels, self.within(3, 19).into(), Dim::symbol("S")],
            (false, true) => vec![Dim::symbol("N"), channels],
            (false, false) => vec![Dim::symbol("N"), Dim::symbol("S"), channels],
        };
        self.graph.input("x", DType::F32, shape)
    }

    fn columns(&self, x: Value) -> i64 {
        self.graph.shape(x).last().and_then(Dim::as_i64).unwrap_or(1)
    }

    fn dense(&mut self, x: Value) -> Result<Value, Error> {
        let shape = [self.columns(x), self.size()];
        let (is_transposed, most) = (self.coin(), self.weights);
        if is_transposed {
            let weights = self.constant(&[shape[1], shape[0]], most)?;
            let weights = self.graph.transpose(weights, &[1, 0])?;
            return self.graph.matmul(x, weights);
        }
        let weights = self.constant(&shape, most)?;
        self.graph.matmul(x, weights)
    }

    /// `(x · xᵀ) · x` with small scores.
    fn attention(&mut self, x: Value) -> Result<Value, Error> {
        let rank = self.graph.rank(x);
        let mut swapped: Vec<usize> = (0..rank).collect();
        swapped.swap(rank - 2, rank - 1);
        let keys = self.limit(x, NARROW)?;
        let keys = self.graph.transpose(keys, &swapped)?;
        let scores = self.graph.matmul(x, keys)?;
        let scores = self.limit(scores, NARROW)?;
        self.graph.matmul(scores, x)
    }

    fn convolution(&mut self, x: Value) -> Result<Value, Error> {
        let channels = self.graph.shape(x)[1].as_i64().unwrap_or(1);
        let kernel = [self.within(1, 3), self.within(1, 3)];
        let (stride, dilation, pad) = (self.within(1, 2), self.within(1, 2), self.within(0, 2));
        let amounts = [0, 0, pad, pad].map(Dim::from);
        let padded = self.graph.pad(x, &amounts, &amounts, Scalar::from_i64(DType::F32, 0))?;
        let seen = self.graph.window(padded, &[2, 3], &kernel, &[stride; 2], &[dilation; 2])?;
        let most = self.weights;
        if self.choices.ratio(1, 8).unwrap_or(false) {
            let weights = self.constant(&[channels, kernel[0], kernel[1]], most)?;
            return self.graph.contract(seen, b"nchwyx", weights, b"cyx", b"nchw");
        }
        let kernels = self.size();
        let weights = self.constant(&[kernels, channels, kernel[0], kernel[1]], most)?;
        self.graph.contract(seen, b"nchwyx", weights, b"ocyx", b"nohw")
    }

    /// The operations after a contraction: a bias, a residual, a rectifier, and limits so that the next contraction is
    /// exact.
    fn epilogue(&mut self, y: Value, x: Value) -> Result<Value, Error> {
        let (rank, mut y) = (self.graph.rank(y), y);
        let channels = if rank == 4 { 1 } else { rank - 1 };
        if let (true, Some(size)) = (self.coin(), self.graph.shape(y)[channels].as_i64()) {
            let bias = self.constant(&[size], NARROW)?;
            let bias = self.graph.unsqueeze(bias, &(1..rank - channels).collect::<Vec<_>>())?;
            y = self.graph.add(y, bias)?;
        }
        if self.coin() && self.graph.shape(x) == self.graph.shape(y) {
            y = self.graph.add(y, x)?;
        }
        if self.coin() {
            y = self.graph.relu(y)?;
        }
        self.limit(y, self.numbers)
    }

    fn limit(&mut self, x: Value, most: i64) -> Result<Value, Error> {
        let low = self.graph.number(DType::F32, -most as f64)?;
        let high = self.graph.number(DType::F32, most as f64)?;
        let x = self.graph.max(x, low)?;
        self.graph.min(x, high)
    }

    /// The layer, or `None` if the oracle would take too long.
    fn layer(&mut self, x: Value) -> Result<Option<Value>, Error> {
        let y = match self.graph.rank(x) {
            4 if self.choices.ratio(1, 8).unwrap_or(false) => self.graph.transpose(x, &[0, 2, 3, 1])?,
            4 => self.convolution(x)?,
            3 if self.choices.ratio(1, 3).unwrap_or(false) => self.attention(x)?,
            _ => self.dense(x)?,
        };
        let elems = Dim::product(self.graph.shape(y).iter().cloned());
        if self.graph.facts.bounds(&elems).hi.is_none_or(|elems| elems > MAX_ELEMS.into()) {
            return Ok(None);
        }
        self.epilogue(y, x).map(Some)
    }
}

/// Up to four layers.
fn layers(choices: &mut Unstructured<'_>, precision: Precision) -> Result<Graph, Error> {
    let mut graph = Graph { name: "layers".into(), ..Graph::default() };
    for name in ["N", "S"] {
        let most = *choices.choose(&[1, 5, 40, 70]).unwrap_or(&1);
        graph.symbol(name, Declaration::range(1, most))?;
    }
    let is_wide = precision == Precision::Bf16x3 && choices.arbitrary().unwrap_or(false);
    let (weights, numbers) = match choices.arbitrary().unwrap_or(false) {
        true if is_wide => (WIDE, NARROW),
        false if is_wide => (NARROW, WIDE),
        _ => (NARROW, NARROW),
    };
    let seed = u64::from(choices.arbitrary().unwrap_or(0_u16));
    let mut layers = Layers { graph, choices, weights, numbers, seed };
    let is_image = layers.coin();
    let mut x = layers.input(is_image)?;
    x = layers.limit(x, numbers)?;
    for _ in 0..layers.within(1, 4) {
        let Some(y) = layers.layer(x)? else { break };
        x = y;
    }
    layers.graph.output("y", x)?;
    Ok(layers.graph)
}

/// The input at these sizes.
fn numbers(graph: &Graph, binding: &BTreeMap<Symbol, i64>, seed: u64) -> Option<Tensor> {
    let (_, x) = graph.inputs.first()?;
    let sizes = graph.shape(*x).iter().map(|dim| {
        let size = dim.eval(&|symbol| binding.get(symbol).map(|size| (*size).into())).ok()?;
        usize::try_from(size).ok()
    });
    let sizes: Vec<usize> = sizes.collect::<Option<_>>()?;
    Some(integers(sizes, WIDE, seed))
}

/// Pseudo-random integers up to this magnitude.
fn integers(shape: Vec<usize>, most: i64, mut seed: u64) -> Tensor {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) as i64 % (2 * most + 1) - most) as f32
    };
    let elems: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_f32(shape, &elems).expect("one number for each")
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64() as f32).collect()
}

/// One run. The error means that the bytes are used up.
fn check(choices: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let precision = *choices.choose(&[Precision::Bf16x3, Precision::Bf16])?;
    let emulated = choices.arbitrary()?;
    let threads = choices.int_in_range(1..=2)?;
    // The builder refuses layers that don't fit.
    let Ok(graph) = layers(choices, precision) else { return Ok(()) };
    let multiplies_bytes = choices.arbitrary()?;
    let support = MicrokernelSupport::Native {
        multiplies_bytes,
        sums_pairs: multiplies_bytes,
        tiles: true,
        reads_halves: false,
        lanes: 4,
        bf16_matrices: false,
    };
    let microkernels = if emulated { Microkernels::EmulatedTiles } else { Microkernels::Native };
    let options = CompileOptions::default().precision(precision).support(support).microkernels(microkernels);
    let lowered =
        Pipeline::new(&graph).options(options).lower().unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let model = lowered.jit().unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let mut context = Context::new(&model).expect("small models have small arenas");
    context.set_threads(threads).expect("a machine has two");
    for _ in 0..3 {
        let mut binding = BTreeMap::new();
        for symbol in &graph.symbols {
            let most = graph.facts.bounds(&symbol.into()).hi.and_then(|most| u8::try_from(most).ok());
            binding.insert(symbol.clone(), choices.int_in_range(1..=i64::from(most.unwrap_or(1)))?);
        }
        let Some(input) = numbers(&graph, &binding, choices.arbitrary()?) else { return Ok(()) };
        let Ok(wanted) = eval(&graph, std::slice::from_ref(&input)) else { continue };
        let lent =
            TensorRef::from_bytes(DType::F32, input.shape(), input.bytes()).expect("memory is aligned");
        let (found, is_whole) =
            context.run_guarded(&[lent]).unwrap_or_else(|error| panic!("{error} at {binding:?}\n{graph}"));
        assert!(is_whole, "wrote outside of its memory at {binding:?}\n{graph}");
        let (found, wanted) = (found.get(0), floats(&wanted[0]));
        let found = found.elems::<f32>().expect("floats");
        if let Some(idx) = (0..wanted.len()).find(|idx| found[*idx] != wanted[*idx]) {
            let (found, wanted, program) = (found[idx], wanted[idx], &lowered.program);
            panic!("[{idx}]: {found}, not {wanted}, by {precision} at {binding:?}\n{graph}\n{program}");
        }
    }
    Ok(())
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _used_up = check(&mut Unstructured::new(bytes));
});
