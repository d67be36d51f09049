//! Numbers stored as integers of one byte, through all stages, against the graphs' oracle. Scales are powers of two, so
//! that nothing is rounded but where the graph says so, and every bit must be equal.

use crate::machine;

use machine::Machine;
use symshape::{Declaration, Dim, Symbol};
use symshape_compiler::{
    CompileOptions, Microkernels, Result, codegen,
    graph::{self, Graph, Value},
    kernel::{Buffer, MicrokernelSupport, Program, Stmt},
    opt,
    pipeline::Pipeline,
    scalar::{ReduceOp, Scalar},
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, TensorRef};

fn graph(name: &str, symbols: &[(&str, i64, i64)]) -> Graph {
    let mut graph = Graph { name: name.to_string(), ..Graph::default() };
    for (name, lo, hi) in symbols {
        let symbol = Symbol::new(name);
        graph.facts.declare(&symbol, Declaration::range(*lo, *hi)).expect("a range");
        graph.symbols.push(symbol);
    }
    graph
}

/// Numbers in -128..=127 that look random and are always the same.
fn numbers(count: usize, seed: u32) -> impl Iterator<Item = i8> {
    (0..count as u32).map(move |idx| {
        let mixed = (idx ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        ((mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35) >> 24) as i8
    })
}

/// Integers of one byte.
fn integers(dtype: DType, shape: &[usize], seed: u32) -> Tensor {
    let bytes: Vec<u8> = numbers(shape.iter().product(), seed).map(|number| number as u8).collect();
    Tensor::new(dtype, shape.to_vec(), Bytes::Owned(bytes.into())).expect("a byte each")
}

/// `(x - zero) * scale`, with a scale for each index of axis `k` if there are several.
fn dequantised(g: &mut Graph, x: Value, zero: i64, scales: &[f32], k: usize) -> Result<Value> {
    let wide = g.cast(DType::I32, x)?;
    let zero = g.number(DType::I32, zero as f64)?;
    let centred = g.sub(wide, zero)?;
    let float = g.cast(DType::F32, centred)?;
    let scale = match scales {
        [one] => g.number(DType::F32, f64::from(*one))?,
        _ => {
            let tensor = Tensor::from_f32(vec![scales.len()], scales).expect("one each");
            let scale = g.constant(tensor)?;
            let trailing: Vec<usize> = (1..g.rank(x) - k).collect();
            g.unsqueeze(scale, &trailing)?
        }
    };
    g.mul(float, scale)
}

fn quantised(g: &mut Graph, x: Value, zero: i64, scale: f32, dtype: DType) -> Result<Value> {
    let scale = g.number(DType::F32, f64::from(scale))?;
    let y = g.div(x, scale)?;
    let y = g.round(y)?;
    let zero = g.number(DType::F32, zero as f64)?;
    let y = g.add(y, zero)?;
    let (lo, hi) = if dtype == DType::I8 { (-128.0, 127.0) } else { (0.0, 255.0) };
    let (lo, hi) = (g.number(DType::F32, lo)?, g.number(DType::F32, hi)?);
    let y = g.max(y, lo)?;
    let y = g.min(y, hi)?;
    g.cast(dtype, y)
}

/// Quantised and back.
fn rounded(g: &mut Graph, x: Value, zero: i64, scale: f32, dtype: DType) -> Result<Value> {
    let stored = quantised(g, x, zero, scale, dtype)?;
    dequantised(g, stored, zero, &[scale], 0)
}

/// A convolution of `x` with stored weights, a bias and a scale for each kernel.
fn conv(g: &mut Graph, x: Value, channels: [usize; 2], kernel: usize, stride: i64) -> Result<Value> {
    let weights = integers(DType::I8, &[channels[1], channels[0], kernel, kernel], 3 + kernel as u32);
    stored_conv(g, x, weights, stride)
}

/// The same with these weights.
fn stored_conv(g: &mut Graph, x: Value, weights: Tensor, stride: i64) -> Result<Value> {
    let [outputs, height, width] = [0, 2, 3].map(|axis| weights.shape()[axis]);
    let weights = g.constant(weights)?;
    let scales: Vec<f32> = (0..outputs).map(|c| if c % 3 == 0 { 0.0625 } else { 0.03125 }).collect();
    let weights = dequantised(g, weights, 0, &scales, 0)?;
    let kernel = [height, width].map(|taps| taps as i64);
    let [down, across] = kernel.map(|taps| Dim::from((taps - 1) / 2));
    let side = [Dim::zero(), Dim::zero(), down, across];
    let x = g.pad(x, &side, &side, Scalar::f32(0.0))?;
    let x = g.window(x, &[2, 3], &kernel, &[stride, stride], &[1, 1])?;
    let y = g.contract(x, b"nchwyx", weights, b"ocyx", b"nohw")?;
    let bias: Vec<f32> = (0..outputs).map(|c| c as f32 - 4.0).collect();
    let bias = g.constant(Tensor::from_f32(vec![outputs, 1, 1], &bias).expect("one each"))?;
    g.add(y, bias)
}

/// A residual block after a convolution with a stride and few channels, and a pool.
fn convolutions() -> Result<Graph> {
    let mut g = graph("convolutions", &[("N", 0, 3), ("H", 3, 11)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 3.into(), Dim::symbol("H"), 9.into()])?;
    let x = rounded(&mut g, x, 100, 0.015625, DType::U8)?;
    let a = conv(&mut g, x, [3, 20], 5, 2)?;
    let a = rounded(&mut g, a, 3, 0.25, DType::U8)?;
    let side = [0, 0, 1, 1].map(Dim::from);
    let padded = g.pad(a, &side, &side, Scalar::f32(f32::NEG_INFINITY))?;
    let windows = g.window(padded, &[2, 3], &[3, 3], &[1, 1], &[1, 1])?;
    let a = g.reduce(ReduceOp::Max, windows, &[4, 5], false)?;
    let a = rounded(&mut g, a, 3, 0.25, DType::U8)?;
    let b = conv(&mut g, a, [20, 20], 3, 1)?;
    let b = g.relu(b)?;
    let b = rounded(&mut g, b, 0, 0.5, DType::U8)?;
    let c = conv(&mut g, b, [20, 20], 1, 1)?;
    let c = rounded(&mut g, c, -7, 0.5, DType::I8)?;
    let c = g.add(c, a)?;
    let c = rounded(&mut g, c, 128, 1.0, DType::U8)?;
    let d = conv(&mut g, c, [20, 6], 3, 2)?;
    let d = quantised(&mut g, d, 9, 2.0, DType::U8)?;
    g.output("y", d)?;
    Ok(g)
}

/// Convolutions of sizes that tiles of several outputs divide, and that they don't.
fn fewer_products() -> Result<Graph> {
    let mut g = graph("fewer_products", &[("N", 1, 5)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 32.into(), 13.into(), 18.into()])?;
    let x = rounded(&mut g, x, 100, 0.015625, DType::U8)?;
    let y = conv(&mut g, x, [32, 48], 3, 1)?;
    let y = rounded(&mut g, y, -3, 0.5, DType::I8)?;
    let y = conv(&mut g, y, [48, 32], 3, 1)?;
    g.output("y", y)?;
    Ok(g)
}

/// Convolutions down the columns of images: by windows of three taps, and of seven.
fn fewer_products_down_columns() -> Result<Graph> {
    let mut g = graph("fewer_products_down_columns", &[("N", 1, 5)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 64.into(), 15.into(), 18.into()])?;
    let x = rounded(&mut g, x, 100, 0.015625, DType::U8)?;
    let y = stored_conv(&mut g, x, integers(DType::I8, &[64, 64, 3, 1], 6), 1)?;
    let y = rounded(&mut g, y, -3, 0.5, DType::I8)?;
    let y = stored_conv(&mut g, y, integers(DType::I8, &[60, 64, 7, 1], 7), 1)?;
    g.output("y", y)?;
    Ok(g)
}

/// The same over images of even sides, with enough channels that it pays next to products of bytes.
fn fewer_products_of_any_size() -> Result<Graph> {
    let mut g = graph("fewer_products_of_any_size", &[("N", 1, 3), ("H", 1, 8), ("W", 1, 10)]);
    let side = |name| Dim::symbol(name) * 2;
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 128.into(), side("H"), side("W")])?;
    let x = rounded(&mut g, x, 100, 0.015625, DType::U8)?;
    let y = conv(&mut g, x, [128, 120], 3, 1)?;
    g.output("y", y)?;
    Ok(g)
}

/// Convolutions of signed integers, whose pixels and windows no group divides, and quotients that exceed 32 bits.
fn signed() -> Result<Graph> {
    let mut g = graph("signed", &[("N", 1, 3), ("H", 3, 12)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 3.into(), Dim::symbol("H"), 9.into()])?;
    let x = rounded(&mut g, x, -28, 0.015625, DType::I8)?;
    let a = conv(&mut g, x, [3, 40], 3, 2)?;
    let a = rounded(&mut g, a, -128, 0.25, DType::I8)?;
    let b = conv(&mut g, a, [40, 28], 1, 1)?;
    let b = rounded(&mut g, b, 5, 2.0, DType::I8)?;
    let c = conv(&mut g, b, [28, 33], 3, 1)?;
    let c = rounded(&mut g, c, 0, 2f32.powi(-30), DType::U8)?;
    let d = conv(&mut g, c, [33, 34], 1, 1)?;
    let d = quantised(&mut g, d, -100, 2f32.powi(-33), DType::I8)?;
    g.output("y", d)?;
    Ok(g)
}

/// Functions of stored integers of both signs, each a table.
fn activations() -> Result<Graph> {
    let mut g = graph("activations", &[("N", 1, 3), ("H", 1, 12)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 8.into(), Dim::symbol("H"), 5.into()])?;
    let x = rounded(&mut g, x, 100, 0.015625, DType::U8)?;
    let x = swish(&mut g, x)?;
    let x = rounded(&mut g, x, 9, 0.015625, DType::U8)?;
    let y = conv(&mut g, x, [8, 20], 3, 1)?;
    let y = rounded(&mut g, y, -3, 0.0625, DType::I8)?;
    let y = swish(&mut g, y)?;
    let y = quantised(&mut g, y, 5, 0.03125, DType::I8)?;
    g.output("y", y)?;
    Ok(g)
}

/// `x / (1 + exp(-x))`, whose second factor is quantised.
fn swish(g: &mut Graph, x: Value) -> Result<Value> {
    let power = g.neg(x)?;
    let power = g.exp(power)?;
    let one = g.number(DType::F32, 1.0)?;
    let sum = g.add(power, one)?;
    let sigmoid = g.div(one, sum)?;
    let sigmoid = rounded(g, sigmoid, 0, 0.00390625, DType::U8)?;
    g.mul(x, sigmoid)
}

/// Layers on signed integers, of a depth that no group divides.
fn dense() -> Result<Graph> {
    let mut g = graph("dense", &[("M", 0, 40)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("M"), 37.into()])?;
    let x = rounded(&mut g, x, -3, 0.0078125, DType::I8)?;
    let w = g.constant(integers(DType::I8, &[37, 50], 5))?;
    let w = dequantised(&mut g, w, 0, &[0.0625], 0)?;
    let y = g.matmul(x, w)?;
    let y = rounded(&mut g, y, 5, 0.125, DType::U8)?;
    // Unsigned weights whose differences from the zero point don't fit in a byte.
    let w = g.constant(integers(DType::U8, &[50, 33], 6))?;
    let w = dequantised(&mut g, w, 7, &[0.03125], 0)?;
    let y = g.matmul(y, w)?;
    g.output("y", y)?;
    Ok(g)
}

/// Layers of as many columns as wide tiles have, or twice as many.
fn wide() -> Result<Graph> {
    let mut g = graph("wide", &[("M", 0, 40)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("M"), 37.into()])?;
    let x = rounded(&mut g, x, -3, 0.0078125, DType::I8)?;
    let w = g.constant(integers(DType::I8, &[37, 64], 5))?;
    let w = dequantised(&mut g, w, 0, &[0.0625], 0)?;
    let y = g.matmul(x, w)?;
    let y = rounded(&mut g, y, 5, 0.125, DType::U8)?;
    let w = g.constant(integers(DType::I8, &[64, 128], 6))?;
    let w = dequantised(&mut g, w, 0, &[0.03125], 0)?;
    let y = g.matmul(y, w)?;
    let y = quantised(&mut g, y, -7, 0.5, DType::I8)?;
    g.output("y", y)?;
    Ok(g)
}

/// Weights at the ends of the range. The sum of two products of adjacent ones with bytes fits 16 bits.
const EXTREME_WEIGHTS: [i8; 14] = [127, 1, 127, 1, -128, 0, -128, 127, -127, -1, -127, 64, 64, -64];

/// Kernels of such weights, which move along by one from output to output.
fn extreme(channels: [usize; 2], kernel: usize) -> Tensor {
    let taps = kernel * kernel;
    let weight = |idx: usize| {
        let at = idx / taps % channels[0] + idx / taps / channels[0];
        EXTREME_WEIGHTS[at % EXTREME_WEIGHTS.len()] as u8
    };
    let bytes: Vec<u8> = (0..channels[1] * channels[0] * taps).map(weight).collect();
    let shape = vec![channels[1], channels[0], kernel, kernel];
    Tensor::new(DType::I8, shape, Bytes::Owned(bytes.into())).expect("a byte each")
}

/// Convolutions of bytes at the ends of their range by such weights: runs that groups divide, and runs that they don't.
fn pairs() -> Result<Graph> {
    let mut g = graph("pairs", &[("N", 1, 3), ("H", 3, 9)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 42.into(), Dim::symbol("H"), 7.into()])?;
    let x = rounded(&mut g, x, 128, 0.00390625, DType::U8)?;
    let x = stored_conv(&mut g, x, extreme([42, 28], 1), 1)?;
    let x = rounded(&mut g, x, 3, 8.0, DType::U8)?;
    let x = stored_conv(&mut g, x, extreme([28, 42], 3), 2)?;
    let x = rounded(&mut g, x, -3, 8.0, DType::I8)?;
    let x = stored_conv(&mut g, x, extreme([42, 37], 1), 1)?;
    let x = rounded(&mut g, x, 0, 8.0, DType::I8)?;
    let x = stored_conv(&mut g, x, extreme([37, 30], 1), 1)?;
    g.output("y", x)?;
    Ok(g)
}

/// Bytes minus a zero point that is known only at run time.
fn found(g: &mut Graph, x: Value) -> Result<Value> {
    let (hundred, scale) = (g.number(DType::F32, 100.0)?, g.number(DType::F32, 64.0)?);
    let all: Vec<usize> = (0..g.rank(x)).collect();
    let largest = g.reduce(ReduceOp::Max, x, &all, false)?;
    let zero = g.mul(largest, hundred)?;
    let zero = g.cast(DType::U8, zero)?;
    let zero = g.cast(DType::I32, zero)?;
    let x = g.mul(x, scale)?;
    let x = g.add(x, hundred)?;
    let x = g.cast(DType::U8, x)?;
    let x = g.cast(DType::I32, x)?;
    g.sub(x, zero)
}

/// An exact multiplication whose zero point is known only at run time.
fn dynamic() -> Result<Graph> {
    let mut g = graph("dynamic", &[("M", 1, 30)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("M"), 24.into()])?;
    let x = found(&mut g, x)?;
    let w = g.constant(integers(DType::I8, &[24, 51], 8))?;
    let w = g.cast(DType::I32, w)?;
    let y = g.matmul(x, w)?;
    g.output("y", y)?;
    Ok(g)
}

/// A convolution like that, with zeros around the image and weights without a sign.
fn padded() -> Result<Graph> {
    let mut g = graph("padded", &[("N", 1, 3), ("H", 1, 8)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 24.into(), Dim::symbol("H"), 7.into()])?;
    let x = found(&mut g, x)?;
    let side = [0, 0, 1, 1].map(Dim::from);
    let x = g.pad(x, &side, &side, Scalar::from_i64(DType::I32, 0))?;
    let x = g.window(x, &[2, 3], &[3, 3], &[1, 1], &[1, 1])?;
    let w = g.constant(integers(DType::U8, &[20, 24, 3, 3], 9))?;
    let w = g.cast(DType::I32, w)?;
    let zero = g.number(DType::I32, 121.0)?;
    let w = g.sub(w, zero)?;
    let y = g.contract(x, b"nchwyx", w, b"ocyx", b"nohw")?;
    g.output("y", y)?;
    Ok(g)
}

/// Products of the channels of pixels, whose pixels are adjacent in memory: several blocks of rows at large sizes.
fn planes() -> Result<Graph> {
    let mut g = graph("planes", &[("N", 0, 2), ("H", 1, 5), ("W", 3, 70)]);
    let shape = [Dim::symbol("N"), 70.into(), Dim::symbol("H"), Dim::symbol("W")];
    let x = g.input("x", DType::U8, shape.to_vec())?;
    let x = dequantised(&mut g, x, 121, &[0.0625], 0)?;
    let y = conv(&mut g, x, [70, 37], 1, 1)?;
    let z = conv(&mut g, x, [70, 1], 1, 1)?;
    let shape = g.shape(y).to_vec();
    let z = g.broadcast_to(z, &shape)?;
    let y = g.add(y, z)?;
    let y = quantised(&mut g, y, 9, 2.0, DType::U8)?;
    g.output("y", y)?;
    Ok(g)
}

/// A convolution whose channels have a 3×3 kernel each, as floats.
fn depthwise(g: &mut Graph, x: Value, channels: usize, scale: f32) -> Result<Value> {
    let windows = g.window(x, &[2, 3], &[3, 3], &[1, 1], &[1, 1])?;
    let w = g.constant(integers(DType::I8, &[channels, 3, 3], 3))?;
    let w = dequantised(g, w, 0, &[scale], 0)?;
    g.contract(windows, b"nchwyx", w, b"cyx", b"nchw")
}

/// A kernel for each channel, and for each group of channels.
fn groups() -> Result<Graph> {
    let mut g = graph("groups", &[("N", 1, 3), ("H", 3, 8)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 24.into(), Dim::symbol("H"), 7.into()])?;
    let x = rounded(&mut g, x, 128, 0.0078125, DType::U8)?;
    let y = depthwise(&mut g, x, 24, 0.125)?;
    let y = rounded(&mut g, y, 100, 0.5, DType::U8)?;
    let (height, width) = (g.shape(y)[2].clone(), g.shape(y)[3].clone());
    let y = g.reshape(y, vec![Dim::symbol("N"), 3.into(), 8.into(), height, width])?;
    let w = g.constant(integers(DType::I8, &[3, 16, 8], 4))?;
    let w = dequantised(&mut g, w, 0, &[0.5], 0)?;
    let y = g.contract(y, b"ngchw", w, b"goc", b"ngohw")?;
    let y = quantised(&mut g, y, 77, 16.0, DType::I8)?;
    g.output("y", y)?;
    Ok(g)
}

/// Convolutions whose windows can be read in place by tile registers, over images of this width, with remaining
/// columns.
fn lines(width: i64) -> Result<Graph> {
    let mut g = graph("lines", &[("N", 1, 3)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 64.into(), 5.into(), width.into()])?;
    let x = rounded(&mut g, x, 100, 0.015625, DType::U8)?;
    let a = conv(&mut g, x, [64, 64], 3, 1)?;
    let a = rounded(&mut g, a, 3, 4.0, DType::U8)?;
    let b = conv(&mut g, a, [64, 64], 1, 1)?;
    let b = g.add(a, b)?;
    let b = rounded(&mut g, b, 0, 8.0, DType::U8)?;
    let c = conv(&mut g, b, [64, 40], 3, 2)?;
    let c = quantised(&mut g, c, -9, 16.0, DType::I8)?;
    g.output("y", c)?;
    Ok(g)
}

/// A depthwise and a dense convolution whose sums exceed the range of the bytes that they become.
fn saturated(dtype: DType, zero: i64) -> Result<Graph> {
    let mut g = graph("saturated", &[("N", 1, 2), ("H", 3, 7)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 40.into(), Dim::symbol("H"), 9.into()])?;
    let x = rounded(&mut g, x, 3, 0.015625, DType::I8)?;
    let y = depthwise(&mut g, x, 40, 0.0625)?;
    let y = quantised(&mut g, y, zero, 0.0625, dtype)?;
    g.output("depthwise", y)?;
    let z = conv(&mut g, x, [40, 50], 1, 1)?;
    let z = quantised(&mut g, z, zero, 0.125, dtype)?;
    g.output("dense", z)?;
    Ok(g)
}

/// Tiles of 16-bit integers are multiplied by microkernels, as bytes are.
#[test]
fn transformed_convolutions_run_in_microkernels() {
    let avx2 = MicrokernelSupport::Native {
        multiplies_bytes: false,
        sums_pairs: false,
        tiles: false,
        bf16_matrices: false,
        reads_halves: false,
        lanes: 4,
    };
    for graph in [fewer_products(), fewer_products_down_columns()] {
        let graph = graph.expect("a valid graph");
        let options = CompileOptions::default().support(avx2);
        let program = Pipeline::new(&graph).options(options).lower().expect("supported").program;
        let is_transformed =
            |buffer: &&Buffer| buffer.name == "tiles of inputs" && buffer.dtype == DType::I16;
        assert_eq!(program.buffers.values().filter(is_transformed).count(), 2, "{}", graph.name);
        assert_eq!(codegen::scalar_loops(&program), []);
    }
}

/// Where the machine adds products of pairs to a sum, tiles of 16-bit integers are faster than bytes; not where it has
/// tile registers for these.
#[test]
fn convolutions_are_transformed_where_pairs_are_summed() {
    let graph = fewer_products_of_any_size().expect("a valid graph");
    let lower = |sums_pairs, tiles| {
        let support = MicrokernelSupport::Native {
            multiplies_bytes: true,
            sums_pairs,
            tiles,
            bf16_matrices: false,
            reads_halves: false,
            lanes: 4,
        };
        Pipeline::new(&graph).options(CompileOptions::default().support(support)).lower().expect("supported")
    };
    let is_transformed =
        |program: &Program| program.buffers.values().any(|buffer| buffer.dtype == DType::I16);
    assert!(!is_transformed(&lower(false, false).program));
    assert!(!is_transformed(&lower(true, true).program));

    let lowered = lower(true, false);
    assert!(is_transformed(&lowered.program));
    assert_eq!(codegen::scalar_loops(&lowered.program), []);
    let machine = Machine::assemble(lowered.program, &lowered.plan, false).expect("supported");
    assert_exact(&graph, &machine, "vectors");
}

/// Values of the symbols: the smallest, next, an odd, the second largest and the largest of each.
pub(crate) fn bindings(graph: &Graph) -> Vec<Vec<i64>> {
    let edges = |symbol: &Symbol| {
        let declared = graph.facts.declaration(symbol).expect("a declared symbol");
        let lo = i64::try_from(&declared.lo).expect("a small bound");
        let hi = i64::try_from(declared.hi.as_ref().expect("a bound")).expect("a small bound");
        [lo, lo + 1, ((lo + hi) / 2) | 1, hi - 1, hi]
    };
    let edges: Vec<[i64; 5]> = graph.symbols.iter().map(edges).collect();
    (0..5).map(|round| edges.iter().map(|edges| edges[round]).collect()).collect()
}

/// Inputs for these values of the symbols: floats in -2..2, and any bytes.
pub(crate) fn inputs(graph: &Graph, dims: &[i64]) -> Vec<Tensor> {
    let value_of =
        |symbol: &Symbol| graph.symbols.iter().position(|known| known == symbol).map(|idx| dims[idx]);
    let make = |(_, input): &(String, Value)| {
        let shape = graph.shape(*input).iter();
        let shape: Vec<usize> = shape.map(|dim| dim.eval_i64(&value_of).expect("a size") as usize).collect();
        if graph.dtype(*input) != DType::F32 {
            return integers(graph.dtype(*input), &shape, 7);
        }
        let elems: Vec<f32> =
            numbers(shape.iter().product(), 7).map(|number| f32::from(number) / 64.0).collect();
        Tensor::from_f32(shape, &elems).expect("one for each")
    };
    graph.inputs.iter().map(make).collect()
}

/// Makes a model.
pub(crate) type Make = fn() -> Result<Graph>;

/// Of the optimised graph's contractions, how many are of integers of one byte.
fn integer_contractions(graph: &Graph) -> usize {
    let mut graph = graph.clone();
    opt::optimize(&mut graph).expect("graphs are valid");
    let text = graph.to_string();
    text.lines().filter(|line| line.contains("contraction i32")).count()
}

/// Whether no contraction's left factor is wider than products of integers take it.
fn reads_bytes(program: &Program) -> bool {
    fn of(program: &Program, stmt: &Stmt) -> bool {
        match stmt {
            Stmt::For { body, .. } => body.iter().all(|stmt| of(program, stmt)),
            Stmt::Contraction(contract) => program.buffers[contract.lhs.buffer].dtype.size_bytes() <= 2,
            _ => true,
        }
    }
    program.kernels.iter().flat_map(|kernel| &kernel.body).all(|stmt| of(program, stmt))
}

/// Models by name, with the number of contractions of integers that they have.
pub(crate) const MODELS: [(&str, Make, usize); 12] = [
    ("fewer_products", fewer_products, 2),
    ("fewer_products_down_columns", fewer_products_down_columns, 2),
    ("fewer_products_of_any_size", fewer_products_of_any_size, 1),
    ("convolutions", convolutions, 4),
    ("signed", signed, 4),
    ("activations", activations, 1),
    ("pairs", pairs, 4),
    ("dense", dense, 2),
    ("wide", wide, 2),
    ("dynamic", dynamic, 1),
    ("padded", padded, 1),
    ("groups", groups, 2),
];

#[test]
fn contractions_of_stored_integers_are_exact() {
    for (name, model, contractions) in MODELS {
        check(name, model, contractions);
    }
}

#[test]
fn products_of_planes_of_bytes_are_exact() {
    check("planes", planes, 2);
}

/// Compares a model, which has this number of contractions of integers, with the oracle.
fn check(name: &str, model: Make, contractions: usize) {
    let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(integer_contractions(&graph), contractions, "{name}");
    let options = CompileOptions::default().support(MicrokernelSupport::default());
    let lowered =
        Pipeline::new(&graph).options(options).lower().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(reads_bytes(&lowered.program), "{name}");
    let wide = lowered.program.buffers.values().any(|buffer| buffer.dtype == DType::I16);
    assert!(wide || !name.starts_with("fewer_products"), "the transform stores tiles as 16-bit integers");
    let microkernels = MicrokernelSupport::Native {
        multiplies_bytes: true,
        sums_pairs: true,
        tiles: true,
        bf16_matrices: false,
        reads_halves: false,
        lanes: 4,
    };
    let options = CompileOptions::default().support(microkernels).threads(1);
    let tiled =
        Pipeline::new(&graph).options(options).lower().unwrap_or_else(|error| panic!("{name}: {error}"));
    // Weights that need nine bits are no bytes.
    assert!(tiled.program.uses_tiles() || ["groups", "padded"].contains(&name), "{name}");
    let assemble = |scalar| Machine::assemble(lowered.program.clone(), &lowered.plan, scalar);
    for (way, machine) in [
        ("scalar", assemble(true)),
        ("vectors", assemble(false)),
        ("tiles", Ok(Machine::on_tiles(tiled.program))),
    ] {
        assert_exact(&graph, &machine.unwrap_or_else(|error| panic!("{name}: {error}")), way);
    }
}

/// Compares all outputs with the oracle at all bindings, and returns those of the oracle.
fn assert_exact(graph: &Graph, machine: &Machine, way: &str) -> Vec<Vec<Tensor>> {
    let compared = |dims: Vec<i64>| {
        let inputs = inputs(graph, &dims);
        let expected = graph::eval::eval(graph, &inputs).expect("the oracle takes it");
        let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
        let got = machine.run(&dims, &raw).unwrap_or_else(|refusal| panic!("{}: {refusal:?}", graph.name));
        assert_eq!(got.len(), expected.len());
        for (got, expected) in got.iter().zip(&expected) {
            assert!(got == expected.bytes(), "{} at {dims:?}, {way}", graph.name);
        }
        expected
    };
    bindings(graph).into_iter().map(compared).collect()
}

#[test]
fn sums_beyond_the_range_of_bytes_are_clamped() {
    let unsigned = [0, 3, 128, 255].map(|zero| (DType::U8, zero));
    let signed = [0, 3, -128, 127].map(|zero| (DType::I8, zero));
    for (dtype, zero) in unsigned.into_iter().chain(signed) {
        let graph = saturated(dtype, zero).expect("a valid graph");
        let lower = |tiles| {
            let microkernels = MicrokernelSupport::Native {
                multiplies_bytes: true,
                sums_pairs: true,
                tiles,
                bf16_matrices: false,
                reads_halves: false,
                lanes: 4,
            };
            Pipeline::new(&graph).options(CompileOptions::default().support(microkernels)).lower()
        };
        // Machines with tile registers use them for the second program.
        for lowered in [lower(false), lower(true)].map(|lowered| lowered.expect("supported")) {
            let machine = Machine::assemble(lowered.program, &lowered.plan, false).expect("supported");
            let outputs = assert_exact(&graph, &machine, &format!("{zero} {dtype:?}"));
            let bounds = if dtype == DType::I8 { [128, 127] } else { [0, 255] };
            for output in outputs.iter().flatten() {
                assert!(bounds.iter().all(|bound| output.bytes().contains(bound)), "{zero} {dtype:?}");
            }
        }
    }
}

/// No function is computed at run time.
#[test]
fn costly_functions_of_bytes_are_tables() {
    let mut graph = activations().expect("a valid graph");
    opt::optimize(&mut graph).expect("graphs are valid");
    let text = graph.to_string();
    assert!(!text.contains("exp"), "{text}");
    assert_eq!(text.matches("gather").count(), 2, "{text}");
}

#[test]
fn lines_of_any_width_are_exact() {
    for width in [1, 2, 7, 14, 16, 17, 20, 33, 40, 64, 97] {
        let graph = lines(width).expect("a valid graph");
        let microkernels = MicrokernelSupport::Native {
            multiplies_bytes: true,
            sums_pairs: true,
            tiles: true,
            bf16_matrices: false,
            reads_halves: false,
            lanes: 4,
        };
        let options =
            CompileOptions::default().support(microkernels).microkernels(Microkernels::EmulatedTiles);
        let lowered = Pipeline::new(&graph).options(options).lower().expect("supported");
        assert!(lowered.program.uses_tiles());
        let model = lowered.jit().expect("supported");
        for (batch, threads) in [(1, 1), (3, 1), (3, 2), (1, 3)] {
            let inputs = inputs(&graph, &[batch]);
            let expected = graph::eval::eval(&graph, &inputs).expect("the oracle takes it");
            let floats: Vec<f32> = inputs[0].bytes().chunks_exact(4).map(f32_of).collect();
            let x = TensorRef::new(&[batch as usize, 64, 5, width as usize], &floats).expect("a tensor");
            let mut context = Context::new(&model).expect("memory");
            context.set_threads(threads).expect("threads");
            let outputs = context.run_views(&[x]).expect("it runs");
            let got: Vec<u8> =
                outputs.get(0).elems::<i8>().expect("integers").iter().map(|n| *n as u8).collect();
            assert!(got == expected[0].bytes(), "{batch} of width {width} on {threads} threads");
        }
    }
}

fn f32_of(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("four bytes"))
}
