//! Small graphs that the tests of several stages share: one for each way in which values can be fused, stored and
//! moved, each with symbols.

use symshape::{Declaration, Dim, Symbol};
use symshape_compiler::{
    Result,
    graph::{Coord, Graph, Op, ScatterMode, Value, axis},
    scalar::{CompareOp, ReduceOp, Scalar, UnaryOp},
    tensor::Tensor,
};
use symshape_runtime::DType;

/// Makes a model.
pub(crate) type Make = fn() -> Result<Graph>;

/// Every model by name.
pub(crate) const MODELS: &[(&str, Make)] = &[
    ("mlp", mlp),
    ("conv_residual", conv_residual),
    ("depthwise", depthwise),
    ("channel_multiplier", channel_multiplier),
    ("few_columns", few_columns),
    ("planes", planes),
    ("windows", windows),
    ("large_windows", large_windows),
    ("moved_results", moved_results),
    ("clamped", clamped),
    ("short_rows", short_rows),
    ("transposed_results", transposed_results),
    ("channels_of_bytes", channels_of_bytes),
    ("planes_of_bytes", planes_of_bytes),
    ("branches", branches),
    ("grouped", grouped),
    ("small_groups", small_groups),
    ("pools", pools),
    ("attention", attention),
    ("layer_norm", layer_norm),
    ("embedding", embedding),
    ("crossed_gather", crossed_gather),
    ("gathered_channels", gathered_channels),
    ("encoded_places", encoded_places),
    ("sequence_first", sequence_first),
    ("concat", concat),
    ("channels_concat", channels_concat),
    ("pixel_shuffle", pixel_shuffle),
    ("transposed_product", transposed_product),
    ("negligible_weights", negligible_weights),
    ("reductions", reductions),
    ("combined_rows", combined_rows),
    ("orders", orders),
    ("selections", selections),
    ("orders_across", orders_across),
    ("scatter", scatter),
    ("passed_through", passed_through),
];

/// A graph with symbols in these ranges.
pub(crate) fn graph(name: &str, symbols: &[(&str, i64, i64)]) -> Graph {
    let mut graph = Graph { name: name.to_string(), ..Graph::default() };
    for (name, lo, hi) in symbols {
        let symbol = Symbol::new(name);
        graph.facts.declare(&symbol, Declaration::range(*lo, *hi)).expect("a range");
        graph.symbols.push(symbol);
    }
    graph
}

fn sym(name: &str) -> Dim {
    Dim::symbol(name)
}

/// Numbers in -1..1 that look random and are always the same.
pub(crate) fn weights(shape: &[usize], seed: u32) -> Tensor {
    let count = shape.iter().product::<usize>() as u32;
    let number = |idx: u32| {
        let mixed = (idx ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
        ((mixed >> 16) as f32 / 32768.0) - 1.0
    };
    Tensor::from_f32(shape.to_vec(), &(0..count).map(number).collect::<Vec<_>>())
        .expect("as many as the shape")
}

/// Values of the symbols: the smallest, next, an odd, the second largest and the largest of each, the same choice for
/// all symbols at once, and mixed.
pub(crate) fn bindings(graph: &Graph) -> Vec<Vec<i64>> {
    let edges = |symbol: &Symbol| {
        let declared = graph.facts.declaration(symbol).expect("a declared symbol");
        let lo = i64::try_from(&declared.lo).expect("a small bound");
        let hi = i64::try_from(declared.hi.as_ref().expect("a bound")).expect("a small bound");
        [lo, (lo + 1).min(hi), (((lo + hi) / 2) | 1).min(hi), (hi - 1).max(lo), hi]
    };
    let choices: Vec<[i64; 5]> = graph.symbols.iter().map(edges).collect();
    let pick = |round: usize| {
        choices.iter().enumerate().map(move |(k, edges)| edges[(round + (round / 5) * k * 2) % 5]).collect()
    };
    (0..10).map(pick).collect()
}

/// Inputs for these values of the symbols: non-negative integers, which are small but for bytes, and numbers in -1..1.
pub(crate) fn inputs(graph: &Graph, dims: &[i64]) -> Vec<Tensor> {
    let value_of =
        |symbol: &Symbol| graph.symbols.iter().position(|known| known == symbol).map(|idx| dims[idx]);
    let make = |(number, (_, input)): (usize, &(String, Value))| {
        let shape = graph.shape(*input).iter();
        let shape: Vec<usize> = shape.map(|dim| dim.eval_i64(&value_of).expect("a size") as usize).collect();
        match graph.dtype(*input) {
            DType::F32 => weights(&shape, 7 + number as u32),
            dtype => {
                let values = match dtype {
                    DType::Bool => 2,
                    DType::U8 | DType::I8 => 127,
                    _ => 3,
                };
                let elems = 0..shape.iter().product::<usize>() as i64;
                let elems: Vec<Scalar> = elems.map(|idx| Scalar::from_i64(dtype, idx % values)).collect();
                Tensor::from_scalars(dtype, shape, &elems).expect("as many as the shape")
            }
        }
    };
    graph.inputs.iter().enumerate().map(make).collect()
}

fn constant(g: &mut Graph, shape: &[usize], seed: u32) -> Result<Value> {
    g.constant(weights(shape, seed))
}

/// `x · w + b` with constants.
pub(crate) fn dense(g: &mut Graph, x: Value, inputs: usize, outputs: usize, seed: u32) -> Result<Value> {
    let w = constant(g, &[inputs, outputs], seed)?;
    let b = constant(g, &[outputs], seed + 1)?;
    let y = g.matmul(x, w)?;
    g.add(y, b)
}

/// `conv2d` with padding 1 for 3×3 kernels; labels n, c, h, w → n, o, h, w.
pub(crate) fn conv(
    g: &mut Graph,
    x: Value,
    channels: [usize; 2],
    kernel: usize,
    stride: i64,
    seed: u32,
) -> Result<Value> {
    let pad = Dim::from((kernel as i64 - 1) / 2);
    let side = [Dim::zero(), Dim::zero(), pad.clone(), pad];
    let x = g.pad(x, &side, &side, Scalar::f32(0.0))?;
    let k = kernel as i64;
    let x = g.window(x, &[2, 3], &[k, k], &[stride, stride], &[1, 1])?;
    let w = constant(g, &[channels[1], channels[0], kernel, kernel], seed)?;
    let y = g.contract(x, b"nchwyx", w, b"ocyx", b"nohw")?;
    let b = constant(g, &[channels[1], 1, 1], seed + 1)?;
    g.add(y, b)
}

fn mlp() -> Result<Graph> {
    let mut g = graph("mlp", &[("N", 0, 9)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 12.into()])?;
    let h = dense(&mut g, x, 12, 40, 1)?;
    let h = g.relu(h)?;
    let y = dense(&mut g, h, 40, 7, 3)?;
    g.output("y", y)?;
    Ok(g)
}

fn conv_residual() -> Result<Graph> {
    let mut g = graph("conv_residual", &[("N", 0, 3), ("H", 1, 9)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 3.into(), sym("H"), 8.into()])?;
    let a = conv(&mut g, x, [3, 8], 3, 1, 1)?;
    let a = g.relu(a)?;
    let b = conv(&mut g, a, [8, 8], 3, 1, 3)?;
    let b = g.relu(b)?;
    let c = conv(&mut g, b, [8, 8], 1, 1, 5)?;
    let c = g.add(c, a)?;
    let c = g.relu(c)?;
    let d = conv(&mut g, c, [8, 5], 3, 2, 7)?;
    g.output("y", d)?;
    Ok(g)
}

fn depthwise() -> Result<Graph> {
    let mut g = graph("depthwise", &[("N", 0, 3), ("H", 1, 7)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 4.into(), sym("H"), 6.into()])?;
    let x = conv(&mut g, x, [4, 9], 1, 1, 1)?;
    let side = [Dim::zero(), Dim::zero(), Dim::one(), Dim::one()];
    let x = g.pad(x, &side, &side, Scalar::f32(0.0))?;
    let x = g.window(x, &[2, 3], &[3, 3], &[1, 2], &[1, 1])?;
    let w = constant(&mut g, &[9, 3, 3], 9)?;
    let y = g.contract(x, b"nchwyx", w, b"cyx", b"nchw")?;
    let y = g.relu(y)?;
    let y = conv(&mut g, y, [9, 5], 1, 1, 11)?;
    g.output("y", y)?;
    Ok(g)
}

/// A depthwise convolution with three channels of the result for each channel, between dense ones.
fn channel_multiplier() -> Result<Graph> {
    let mut g = graph("channel_multiplier", &[("N", 0, 3), ("H", 2, 7), ("W", 3, 9)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 4.into(), sym("H"), sym("W")])?;
    let x = conv(&mut g, x, [4, 19], 1, 1, 1)?;
    let side = [Dim::zero(), Dim::zero(), Dim::one(), Dim::one()];
    let x = g.pad(x, &side, &side, Scalar::f32(0.0))?;
    let x = g.window(x, &[2, 3], &[3, 3], &[2, 1], &[1, 1])?;
    let w = constant(&mut g, &[19, 3, 3, 3], 9)?;
    let y = g.contract(x, b"nchwyx", w, b"cmyx", b"ncmhw")?;
    let mut shape = g.shape(y).to_vec();
    shape.splice(1..3, [57.into()]);
    let y = g.reshape(y, shape)?;
    let b = constant(&mut g, &[57, 1, 1], 2)?;
    let y = g.add(y, b)?;
    let y = g.relu(y)?;
    let y = conv(&mut g, y, [57, 5], 1, 1, 11)?;
    g.output("y", y)?;
    Ok(g)
}

/// Convolutions to one to three channels, whose taps become columns: along one axis or both, with and without a stride,
/// for an output and for another convolution.
fn few_columns() -> Result<Graph> {
    let mut g = graph("few_columns", &[("N", 0, 3), ("H", 5, 13), ("W", 12, 40)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 4.into(), sym("H"), sym("W")])?;
    let x = conv(&mut g, x, [4, 16], 3, 1, 1)?;
    let x = g.relu(x)?;
    let rgb = conv(&mut g, x, [16, 3], 3, 1, 3)?;
    let rgb = g.relu(rgb)?;
    g.output("rgb", rgb)?;
    let heat = conv(&mut g, x, [16, 1], 3, 1, 5)?;
    g.output("heat", heat)?;
    let half = conv(&mut g, x, [16, 1], 5, 2, 7)?;
    g.output("half", half)?;
    let flow = conv(&mut g, x, [16, 2], 3, 1, 9)?;
    let y = conv(&mut g, flow, [2, 9], 3, 1, 11)?;
    g.output("y", y)?;
    Ok(g)
}

/// Depthwise convolutions of an input, whose images have planes, with and without padding, and a pool of them.
fn planes() -> Result<Graph> {
    let mut g = graph("planes", &[("N", 1, 2), ("H", 3, 8), ("W", 9, 41)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 16.into(), sym("H"), sym("W")])?;
    let pad = |g: &mut Graph, sides: [i64; 2], value: f32| {
        let sides = [0, 0, sides[0], sides[1]].map(Dim::from);
        g.pad(x, &sides, &sides, Scalar::f32(value))
    };

    let wide = pad(&mut g, [2, 2], 0.0)?;
    let wide = g.window(wide, &[2, 3], &[5, 5], &[1, 1], &[1, 1])?;
    let w = constant(&mut g, &[16, 5, 5], 1)?;
    let y = g.contract(wide, b"nchwyx", w, b"cyx", b"nchw")?;
    let b = constant(&mut g, &[16, 1, 1], 2)?;
    let y = g.add(y, b)?;
    let y = g.relu(y)?;
    g.output("same", y)?;

    let far = pad(&mut g, [1, 1], 0.0)?;
    let far = g.window(far, &[2, 3], &[3, 3], &[2, 2], &[1, 1])?;
    let w = constant(&mut g, &[16, 3, 3], 3)?;
    let y = g.contract(far, b"nchwyx", w, b"cyx", b"nchw")?;
    g.output("halves", y)?;

    let inside = g.window(x, &[2, 3], &[2, 3], &[1, 2], &[1, 1])?;
    let w = constant(&mut g, &[16, 2, 3], 4)?;
    let y = g.contract(inside, b"nchwyx", w, b"cyx", b"nchw")?;
    g.output("inside", y)?;

    let pooled = pad(&mut g, [1, 1], f32::NEG_INFINITY)?;
    let pooled = g.window(pooled, &[2, 3], &[3, 3], &[2, 2], &[1, 1])?;
    let y = g.reduce(ReduceOp::Max, pooled, &[4, 5], false)?;
    g.output("pooled", y)?;
    Ok(g)
}

/// Windows of an input that do not overlap, that have more elements than a strip combines in registers, and that are
/// the last axis; and a depthwise convolution with as many taps.
fn windows() -> Result<Graph> {
    let mut g = graph("windows", &[("N", 0, 2), ("H", 4, 9), ("W", 4, 37)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 5.into(), sym("H"), sym("W")])?;
    let pooled = g.window(x, &[2, 3], &[2, 2], &[2, 2], &[1, 1])?;
    let pooled = g.reduce(ReduceOp::Max, pooled, &[4, 5], false)?;
    g.output("pairs", pooled)?;
    let thirds = g.window(x, &[3], &[3], &[3], &[1])?;
    let sums = g.reduce(ReduceOp::Sum, thirds, &[4], false)?;
    g.output("thirds", sums)?;
    let products = g.reduce(ReduceOp::Prod, thirds, &[4], false)?;
    g.output("products", products)?;

    let side = [0, 0, 4, 4].map(Dim::from);
    let padded = g.pad(x, &side, &side, Scalar::f32(0.0))?;
    for (name, kernel) in [("seven", 7), ("nine", 9)] {
        let windows = g.window(padded, &[2, 3], &[kernel, kernel], &[1, 1], &[1, 1])?;
        let most = g.reduce(ReduceOp::Max, windows, &[4, 5], false)?;
        g.output(name, most)?;
    }
    let y = conv(&mut g, x, [5, 19], 1, 1, 1)?;
    let padded = g.pad(y, &side, &side, Scalar::f32(0.0))?;
    let windows = g.window(padded, &[2, 3], &[9, 9], &[1, 1], &[1, 1])?;
    let w = constant(&mut g, &[19, 9, 9], 5)?;
    let y = g.contract(windows, b"nchwyx", w, b"cyx", b"nchw")?;
    g.output("y", y)?;
    Ok(g)
}

/// Depthwise convolutions whose windows have more terms than a strip adds: two axes, with a stride, with a bias and an
/// activation, one long axis, and elements of 16 bits.
fn large_windows() -> Result<Graph> {
    let mut g = graph("large_windows", &[("N", 0, 2), ("H", 1, 3), ("W", 2, 39)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 2.into(), sym("H"), sym("W")])?;
    let x = conv(&mut g, x, [2, 19], 1, 1, 1)?;
    let side = [0, 0, 6, 6].map(Dim::from);
    let padded = g.pad(x, &side, &side, Scalar::f32(0.0))?;

    let windows = g.window(padded, &[2, 3], &[9, 11], &[1, 1], &[1, 1])?;
    let w = constant(&mut g, &[19, 9, 11], 2)?;
    let y = g.contract(windows, b"nchwyx", w, b"cyx", b"nchw")?;
    let b = constant(&mut g, &[19, 1, 1], 3)?;
    let y = g.add(y, b)?;
    let y = g.relu(y)?;
    g.output("biased", y)?;

    let windows = g.window(padded, &[2, 3], &[13, 13], &[2, 2], &[1, 1])?;
    let w = constant(&mut g, &[19, 13, 13], 4)?;
    let y = g.contract(windows, b"nchwyx", w, b"cyx", b"nchw")?;
    g.output("halves", y)?;

    let side = [0, 0, 33].map(Dim::from);
    for (name, dtype) in [("line", DType::F32), ("line of f16", DType::F16)] {
        let x = g.input(name, dtype, vec![sym("N"), 17.into(), sym("W")])?;
        let padded = g.pad(x, &side, &side, Scalar::from_f64(dtype, 0.0))?;
        let windows = g.window(padded, &[2], &[67], &[1], &[1])?;
        let w = constant(&mut g, &[17, 67], 5)?;
        let w = g.cast(dtype, w)?;
        let y = g.contract(windows, b"ncwx", w, b"cx", b"ncw")?;
        g.output(&format!("{name}: sums"), y)?;
    }
    Ok(g)
}

/// Outputs that move the elements of inputs and of contractions: transpositions, a picture that is enlarged, a
/// transposed convolution, and a product with one column.
fn moved_results() -> Result<Graph> {
    let mut g = graph("moved_results", &[("N", 0, 3), ("H", 1, 7), ("W", 2, 35)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 6.into(), sym("H"), sym("W")])?;
    for (name, axes) in [("last", [0, 2, 3, 1]), ("rows", [0, 1, 3, 2]), ("batch", [1, 2, 3, 0])] {
        let y = g.transpose(x, &axes)?;
        g.output(name, y)?;
    }
    let (h, w) = (sym("H") * 2, sym("W") * 2);
    let at = |k: usize| Dim::from(axis(k));
    let index = vec![at(0), at(1), at(2).floor_div(2), at(3).floor_div(2)];
    let y = g.view(x, vec![sym("N"), 6.into(), h.clone(), w.clone()], index)?;
    g.output("enlarged", y)?;

    let weights = constant(&mut g, &[6, 5, 2, 2], 1)?;
    let y = g.contract(x, b"nchw", weights, b"coij", b"nohiwj")?;
    let y = g.reshape(y, vec![sym("N"), 5.into(), h, w])?;
    let b = constant(&mut g, &[5, 1, 1], 2)?;
    let y = g.add(y, b)?;
    let y = g.relu(y)?;
    g.output("transposed convolution", y)?;

    let rows = g.transpose(x, &[0, 2, 3, 1])?;
    let column = constant(&mut g, &[6], 3)?;
    let y = g.contract(rows, b"nhwc", column, b"c", b"nhw")?;
    g.output("column", y)?;
    let z = g.input("z", DType::F32, vec![sym("N"), sym("W"), 40.into()])?;
    let column = constant(&mut g, &[40, 1], 4)?;
    let y = g.matmul(z, column)?;
    g.output("heads", y)?;
    Ok(g)
}

/// Images with copies of their edges or mirrored pixels around them, and square roots.
fn clamped() -> Result<Graph> {
    let mut g = graph("clamped", &[("N", 0, 2), ("H", 1, 5), ("W", 4, 37)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 3.into(), sym("H"), sym("W")])?;
    let at = |k: usize| Dim::from(axis(k));
    let inside = |position: Dim, size: &str| Dim::min(&Dim::max(&position, 0), sym(size) - 1);
    let shape = vec![sym("N"), 3.into(), sym("H") + 2, sym("W") + 5];
    let index = vec![at(0), at(1), inside(at(2) - 1, "H"), inside(at(3) - 2, "W")];
    let edges = g.view(x, shape, index)?;
    g.output("edges", edges)?;

    let position = at(3) - 3;
    let before = Dim::max(&-&position, 0);
    let behind = Dim::min(&(sym("W") - 1 - &position), 0);
    let index = vec![at(0), at(1), at(2), position + (before + behind) * 2];
    let mirrored = g.view(x, vec![sym("N"), 3.into(), sym("H"), sym("W") + 6], index)?;
    let sizes = g.abs(mirrored)?;
    for (name, power) in [("roots", 0.5), ("inverse roots", -0.5)] {
        let power = g.scalar(Scalar::f32(power))?;
        let y = g.pow(sizes, power)?;
        g.output(name, y)?;
    }
    Ok(g)
}

/// Softmax and means of rows that fill one to four vectors, and of longer ones.
fn short_rows() -> Result<Graph> {
    let mut g = graph("short_rows", &[("N", 0, 5), ("S", 1, 70)]);
    let sizes =
        [("one", 9.into()), ("two", 21.into()), ("three", 48.into()), ("four", 64.into()), ("any", sym("S"))];
    for (name, size) in sizes {
        let x = g.input(name, DType::F32, vec![sym("N"), size])?;
        let shares = g.softmax(x, 1)?;
        g.output(&format!("{name}: shares"), shares)?;
        let mean = g.mean(x, &[1], true)?;
        let rest = g.sub(x, mean)?;
        let squares = g.mul(rest, rest)?;
        let variance = g.mean(squares, &[1], true)?;
        let half = g.scalar(Scalar::f32(0.5))?;
        let variance = g.add(variance, half)?;
        let y = g.div(rest, variance)?;
        g.output(&format!("{name}: normal"), y)?;
    }
    Ok(g)
}

/// Convolutions whose results have planes, of several blocks of rows at large sizes.
fn transposed_results() -> Result<Graph> {
    let mut g = graph("transposed_results", &[("N", 0, 2), ("H", 1, 9), ("W", 3, 70), ("L", 3, 521)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 6.into(), sym("H"), sym("W")])?;
    let sides = [0, 0, 1, 1].map(Dim::from);
    let padded = g.pad(x, &sides, &sides, Scalar::f32(0.0))?;
    let windows = g.window(padded, &[2, 3], &[3, 3], &[1, 1], &[1, 1])?;
    let w = constant(&mut g, &[21, 6, 3, 3], 1)?;
    let y = g.contract(windows, b"nchwyx", w, b"ocyx", b"nohw")?;
    let y = g.relu(y)?;
    g.output("planes", y)?;

    let w = constant(&mut g, &[6, 6, 3, 3], 2)?;
    let y = g.contract(windows, b"nchwyx", w, b"ocyx", b"nohw")?;
    let y = g.add(y, x)?;
    g.output("residual", y)?;

    let groups = g.window(padded, &[2, 3], &[3, 3], &[1, 2], &[1, 1])?;
    let columns = (&sym("W") + 1).floor_div(2);
    let shape = [sym("N"), 2.into(), 3.into(), sym("H"), columns.clone(), 3.into(), 3.into()];
    let groups = g.reshape(groups, shape.to_vec())?;
    let w = constant(&mut g, &[2, 17, 3, 3, 3], 3)?;
    let y = g.contract(groups, b"ngchwyx", w, b"gocyx", b"ngohw")?;
    let y = g.reshape(y, vec![sym("N"), 34.into(), sym("H"), columns])?;
    g.output("groups", y)?;

    let line = g.input("line", DType::F32, vec![sym("N"), 5.into(), sym("L")])?;
    let windows = g.window(line, &[2], &[3], &[1], &[1])?;
    let w = constant(&mut g, &[19, 5, 3], 4)?;
    let y = g.contract(windows, b"nclx", w, b"ocx", b"nol")?;
    g.output("line", y)?;
    Ok(g)
}

/// Images of bytes whose channels become the last axis.
fn channels_of_bytes() -> Result<Graph> {
    let mut g = graph("channels_of_bytes", &[("N", 0, 2), ("H", 1, 4), ("W", 1, 53)]);
    let image = |g: &mut Graph, name: &str, dtype, channels: i64| {
        g.input(name, dtype, vec![sym("N"), channels.into(), sym("H"), sym("W")])
    };
    let last = [0, 2, 3, 1];
    for channels in 2..=5 {
        let x = image(&mut g, &format!("bytes{channels}"), DType::U8, channels)?;
        let y = g.transpose(x, &last)?;
        g.output(&format!("moved{channels}"), y)?;

        // Products that exceed the range of the bytes that they become.
        for (dtype, scale) in [(DType::I8, -1.3), (DType::U8, 130.5)] {
            let y = g.cast(DType::F32, x)?;
            let scale = g.number(DType::F32, scale)?;
            let y = g.mul(y, scale)?;
            let y = g.round(y)?;
            let zero = g.number(DType::F32, 100.0)?;
            let y = g.add(y, zero)?;
            let y = g.cast(dtype, y)?;
            let y = g.transpose(y, &last)?;
            g.output(&format!("{dtype}{channels}"), y)?;
        }

        let x = image(&mut g, &format!("floats{channels}"), DType::F32, channels)?;
        let scale = g.number(DType::F32, 0.007)?;
        let y = g.div(x, scale)?;
        let y = g.round(y)?;
        let zero = g.number(DType::F32, -3.0)?;
        let y = g.add(y, zero)?;
        let y = g.cast(DType::I8, y)?;
        let y = g.transpose(y, &last)?;
        g.output(&format!("quantised{channels}"), y)?;

        let zero = g.number(DType::F32, 0.0)?;
        let y = g.compare(CompareOp::Gt, x, zero)?;
        let y = g.transpose(y, &last)?;
        g.output(&format!("positive{channels}"), y)?;
    }
    Ok(g)
}

/// Images of bytes with many channels, which move to the last axis and back.
fn planes_of_bytes() -> Result<Graph> {
    let mut g = graph("planes_of_bytes", &[("N", 0, 2), ("H", 1, 4), ("W", 1, 53), ("C", 1, 70)]);
    for dtype in [DType::U8, DType::I8] {
        let x = g.input(&format!("x{dtype}"), dtype, vec![sym("N"), sym("C"), sym("H"), sym("W")])?;
        let pixels = g.transpose(x, &[0, 2, 3, 1])?;
        g.output(&format!("pixels{dtype}"), pixels)?;
        let x = g.input(&format!("z{dtype}"), dtype, vec![sym("N"), sym("H"), sym("W"), sym("C")])?;
        let planes = g.transpose(x, &[0, 3, 1, 2])?;
        g.output(&format!("planes{dtype}"), planes)?;

        let y = g.cast(DType::F32, planes)?;
        let y = g.relu(y)?;
        g.output(&format!("floats{dtype}"), y)?;
    }
    Ok(g)
}

/// Sums of convolutions that read the same image: with windows of the same and of other sizes, with factors of the image,
/// for all channels and for each, with strides, and some that can't be merged.
fn branches() -> Result<Graph> {
    let mut g = graph("branches", &[("N", 0, 2), ("H", 2, 9), ("W", 3, 11)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 6.into(), sym("H"), sym("W")])?;
    let windows = |g: &mut Graph, x, size: [i64; 2], stride: i64| {
        let sides = [0, 0, size[0] / 2, size[1] / 2].map(Dim::from);
        let padded = g.pad(x, &sides, &sides, Scalar::f32(0.0))?;
        g.window(padded, &[2, 3], &size, &[stride; 2], &[1, 1])
    };
    let conv = |g: &mut Graph, x, size: [i64; 2], stride, seed| {
        let x = windows(g, x, size, stride)?;
        let w = constant(g, &[6, 6, size[0] as usize, size[1] as usize], seed)?;
        let y = g.contract(x, b"nchwyx", w, b"ocyx", b"nohw")?;
        let b = constant(g, &[6, 1, 1], seed + 1)?;
        g.add(y, b)
    };
    for (at, size) in [[3, 5], [1, 1], [3, 3], [1, 5]].into_iter().enumerate() {
        let y = conv(&mut g, x, [3, 5], 1, 1)?;
        let z = conv(&mut g, x, size, 1, 10 + 2 * at as u32)?;
        let y = g.add(z, y)?;
        g.output(&format!("windows{at}"), y)?;
    }
    let s = constant(&mut g, &[6, 1, 1], 3)?;
    let scaled = g.mul(x, s)?;
    let sum = conv(&mut g, x, [3, 3], 1, 5)?;
    let sum = g.add(sum, scaled)?;
    let pointwise = conv(&mut g, x, [1, 1], 1, 7)?;
    let sum = g.add(sum, pointwise)?;
    let sum = g.add(sum, x)?;
    let sum = g.relu(sum)?;
    g.output("image", sum)?;

    // The first branch is a result too.
    let shared = conv(&mut g, x, [3, 3], 1, 41)?;
    g.output("shared", shared)?;
    let other = conv(&mut g, x, [3, 3], 1, 43)?;
    let both = g.add(shared, other)?;
    g.output("both", both)?;

    // Neither window has all places of the other.
    let tall = conv(&mut g, x, [3, 1], 1, 21)?;
    let wide = conv(&mut g, x, [1, 3], 1, 23)?;
    let cross = g.add(tall, wide)?;
    g.output("cross", cross)?;

    let depthwise = |g: &mut Graph, size: i64, seed| {
        let x = windows(g, x, [size; 2], 2)?;
        let w = constant(g, &[6, size as usize, size as usize], seed)?;
        g.contract(x, b"nchwyx", w, b"cyx", b"nchw")
    };
    let sum = depthwise(&mut g, 3, 31)?;
    let other = depthwise(&mut g, 5, 33)?;
    let sum = g.add(sum, other)?;
    let part = windows(&mut g, x, [1, 1], 2)?;
    let part = g.squeeze(part, &[4, 5])?;
    let part = g.mul(part, s)?;
    let sum = g.add(part, sum)?;
    g.output("depthwise", sum)?;
    Ok(g)
}

fn grouped() -> Result<Graph> {
    let mut g = graph("grouped", &[("N", 0, 3), ("L", 5, 11)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 6.into(), sym("L")])?;
    let x = g.window(x, &[2], &[3], &[1], &[2])?;
    let len = &sym("L") - 4;
    let x = g.reshape(x, vec![sym("N"), 2.into(), 3.into(), len.clone(), 3.into()])?;
    let w = constant(&mut g, &[2, 5, 3, 3], 1)?;
    let y = g.contract(x, b"ngclx", w, b"gocx", b"ngol")?;
    let y = g.reshape(y, vec![sym("N"), 10.into(), len])?;
    let b = constant(&mut g, &[10, 1], 2)?;
    let y = g.add(y, b)?;
    let y = g.tanh(y)?;
    g.output("y", y)?;
    Ok(g)
}

/// Convolutions whose groups have four and eight channels: with overlapping windows, windows with a distance of two
/// elements, and windows of one element, each with a bias and an activation.
fn small_groups() -> Result<Graph> {
    let mut g = graph("small_groups", &[("N", 0, 3), ("H", 2, 9), ("W", 3, 19)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 3.into(), sym("H"), sym("W")])?;
    let x = conv(&mut g, x, [3, 24], 1, 1, 1)?;
    for (seed, [group, kernel, stride]) in
        [[4, 3, 1], [8, 3, 1], [4, 3, 2], [8, 5, 2], [8, 1, 1]].iter().enumerate()
    {
        let groups = 24 / group;
        let pad = Dim::from((kernel - 1) / 2);
        let side = [Dim::zero(), Dim::zero(), pad.clone(), pad];
        let y = g.pad(x, &side, &side, Scalar::f32(0.0))?;
        let y = g.window(y, &[2, 3], &[*kernel; 2], &[*stride; 2], &[1, 1])?;
        let shape = g.shape(y).to_vec();
        let split = [&shape[..1], &[groups.into(), (*group).into()], &shape[2..]].concat();
        let y = g.reshape(y, split)?;
        let [groups, group, kernel] = [groups, *group, *kernel].map(|size| size as usize);
        let w = constant(&mut g, &[groups, group, group, kernel, kernel], 10 + seed as u32)?;
        let y = g.contract(y, b"ngchwyx", w, b"gocyx", b"ngohw")?;
        let y = g.reshape(y, shape[..4].to_vec())?;
        let b = constant(&mut g, &[24, 1, 1], 20)?;
        let y = g.add(y, b)?;
        let y = g.relu(y)?;
        g.output(&format!("groups of {group}, {kernel}, {stride}"), y)?;
        let y = conv(&mut g, y, [24, 5], 1, 1, 30)?;
        g.output(&format!("dense after {group}, {kernel}, {stride}"), y)?;
    }
    Ok(g)
}

fn pools() -> Result<Graph> {
    let mut g = graph("pools", &[("N", 0, 3), ("H", 3, 8)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 3.into(), sym("H"), sym("H")])?;
    let x = conv(&mut g, x, [3, 6], 1, 1, 1)?;
    let side = [Dim::zero(), Dim::zero(), Dim::one(), Dim::one()];
    let padded = g.pad(x, &side, &side, Scalar::f32(f32::NEG_INFINITY))?;
    let windows = g.window(padded, &[2, 3], &[3, 3], &[2, 2], &[1, 1])?;
    let pooled = g.reduce(ReduceOp::Max, windows, &[4, 5], false)?;
    let mean = g.mean(pooled, &[2, 3], false)?;
    let y = dense(&mut g, mean, 6, 4, 3)?;
    g.output("y", y)?;
    g.output("pooled", pooled)?;
    Ok(g)
}

fn attention() -> Result<Graph> {
    let mut g = graph("attention", &[("N", 0, 3), ("S", 1, 101)]);
    let x = g.input("x", DType::F32, vec![sym("N"), sym("S"), 12.into()])?;
    let mask = g.input("mask", DType::F32, vec![sym("N"), sym("S")])?;
    let heads = |g: &mut Graph, seed: u32| -> Result<Value> {
        let y = dense(g, x, 12, 12, seed)?;
        let y = g.reshape(y, vec![sym("N"), sym("S"), 3.into(), 4.into()])?;
        g.transpose(y, &[0, 2, 1, 3])
    };
    let (q, k, v) = (heads(&mut g, 1)?, heads(&mut g, 3)?, heads(&mut g, 5)?);
    let kt = g.transpose(k, &[0, 1, 3, 2])?;
    let scores = g.matmul(q, kt)?;
    let half = g.number(DType::F32, 0.5)?;
    let scores = g.mul(scores, half)?;
    let mask = g.unsqueeze(mask, &[1, 2])?;
    let scores = g.add(scores, mask)?;
    let probs = g.softmax(scores, 3)?;
    let y = g.matmul(probs, v)?;
    let y = g.transpose(y, &[0, 2, 1, 3])?;
    let y = g.reshape(y, vec![sym("N"), sym("S"), 12.into()])?;
    let y = dense(&mut g, y, 12, 12, 7)?;
    let y = g.add(y, x)?;
    g.output("y", y)?;
    Ok(g)
}

fn layer_norm() -> Result<Graph> {
    let mut g = graph("layer_norm", &[("N", 0, 3), ("S", 0, 5)]);
    let x = g.input("x", DType::F32, vec![sym("N"), sym("S"), 10.into()])?;
    let mean = g.mean(x, &[2], true)?;
    let centred = g.sub(x, mean)?;
    let squares = g.mul(centred, centred)?;
    let variance = g.mean(squares, &[2], true)?;
    let epsilon = g.number(DType::F32, 1e-5)?;
    let variance = g.add(variance, epsilon)?;
    let deviation = g.sqrt(variance)?;
    let y = g.div(centred, deviation)?;
    let scale = constant(&mut g, &[10], 1)?;
    let y = g.mul(y, scale)?;
    g.output("y", y)?;
    Ok(g)
}

fn embedding() -> Result<Graph> {
    let mut g = graph("embedding", &[("N", 0, 3), ("S", 1, 5)]);
    let ids = g.input("ids", DType::I64, vec![sym("N"), sym("S")])?;
    let table = constant(&mut g, &[4, 6], 1)?;
    let words = g.gather(table, ids, 0)?;
    let positions = g.index(DType::I64, vec![sym("S")], Dim::from(axis(0)))?;
    let table = constant(&mut g, &[5, 6], 2)?;
    let places = g.gather(table, positions, 0)?;
    let sum = g.add(words, places)?;
    let last = g.slice(sum, 1, &sym("S") - 1, Dim::one(), 1)?;
    let last = g.squeeze(last, &[1])?;
    let y = dense(&mut g, last, 6, 3, 5)?;
    g.output("sum", sum)?;
    g.output("y", y)?;
    Ok(g)
}

/// Scores with a term whose rows are gathered, and then become columns.
fn crossed_gather() -> Result<Graph> {
    let mut g = graph("crossed_gather", &[("S", 1, 37)]);
    let x = g.input("x", DType::F32, vec![sym("S"), 4.into()])?;
    let ids = g.input("ids", DType::I64, vec![sym("S")])?;
    let rows = dense(&mut g, x, 4, 9, 1)?;
    let rows = g.gather(rows, ids, 1)?;
    let columns = g.transpose(rows, &[1, 0])?;
    let scores = g.contract(x, b"ik", x, b"jk", b"ij")?;
    let y = g.add(scores, columns)?;
    let y = g.relu(y)?;
    g.output("y", y)?;
    Ok(g)
}

/// The channels of an input at positions that are loaded, twice.
fn gathered_channels() -> Result<Graph> {
    let mut g = graph("gathered_channels", &[("P", 0, 70)]);
    let x = g.input("x", DType::F32, vec![20.into(), 9.into()])?;
    let ids = g.input("ids", DType::I64, vec![sym("P")])?;
    let weights = g.input("weights", DType::F32, vec![sym("P")])?;
    let seen = g.gather(x, ids, 1)?;
    let weighted = g.mul(seen, weights)?;
    let again = g.gather(x, ids, 1)?;
    let y = g.add(weighted, again)?;
    g.output("y", y)?;
    Ok(g)
}

/// Places in space next to their sines and cosines, whose rows are shorter than a vector. Blocks of rows are shared by
/// threads.
fn encoded_places() -> Result<Graph> {
    let mut g = graph("encoded_places", &[("P", 0, 600)]);
    let x = g.input("x", DType::F32, vec![sym("P"), 3.into()])?;
    let (sines, cosines) = (g.sin(x)?, g.cos(x)?);
    let y = g.concat(&[x, sines, cosines], 1)?;
    g.output("y", y)?;
    Ok(g)
}

/// A product with rows of several sequences, of which the first rows come first.
fn sequence_first() -> Result<Graph> {
    let mut g = graph("sequence_first", &[("N", 1, 5), ("S", 1, 37)]);
    let x = g.input("x", DType::F32, vec![sym("N"), sym("S"), 96.into()])?;
    let x = g.transpose(x, &[1, 0, 2])?;
    let y = dense(&mut g, x, 96, 40, 1)?;
    let y = g.relu(y)?;
    g.output("y", y)?;
    Ok(g)
}

fn concat() -> Result<Graph> {
    let mut g = graph("concat", &[("N", 0, 4), ("M", 0, 4)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 3.into()])?;
    let y = g.input("y", DType::F32, vec![sym("M"), 3.into()])?;
    let a = g.exp(x)?;
    let both = g.concat(&[a, y, a], 0)?;
    let wide = g.concat(&[both, both], 1)?;
    let twice = g.add(wide, wide)?;
    g.output("both", both)?;
    g.output("twice", twice)?;
    Ok(g)
}

fn channels_concat() -> Result<Graph> {
    let mut g = graph("channels_concat", &[("N", 0, 3), ("W", 1, 5)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 3.into(), 4.into(), sym("W")])?;
    let a = conv(&mut g, x, [3, 4], 1, 1, 1)?;
    let a = g.relu(a)?;
    let b = conv(&mut g, a, [4, 6], 3, 1, 3)?;
    let b = g.relu(b)?;
    let both = g.concat(&[a, b], 1)?;
    let y = conv(&mut g, both, [10, 4], 3, 1, 5)?;
    g.output("y", y)?;
    Ok(g)
}

fn pixel_shuffle() -> Result<Graph> {
    let mut g = graph("pixel_shuffle", &[("N", 0, 3), ("H", 1, 5)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 8.into(), sym("H"), 3.into()])?;
    let y = g.reshape(x, vec![sym("N"), 2.into(), 2.into(), 2.into(), sym("H"), 3.into()])?;
    let y = g.transpose(y, &[0, 1, 4, 2, 5, 3])?;
    let y = g.reshape(y, vec![sym("N"), 2.into(), &sym("H") * 2, 6.into()])?;
    let y = g.relu(y)?;
    g.output("y", y)?;
    Ok(g)
}

fn transposed_product() -> Result<Graph> {
    let mut g = graph("transposed_product", &[("N", 0, 5), ("K", 0, 6)]);
    let a = g.input("a", DType::F32, vec![sym("K"), sym("N")])?;
    let b = g.input("b", DType::F32, vec![sym("K"), 4.into()])?;
    let gram = g.contract(a, b"kn", b, b"km", b"mn")?;
    let vector = g.contract(a, b"kn", a, b"kn", b"n")?;
    g.output("gram", gram)?;
    g.output("vector", vector)?;
    Ok(g)
}

/// A dense layer, some channels of which have weights and biases close to the smallest numbers.
fn negligible_weights() -> Result<Graph> {
    let mut g = graph("negligible_weights", &[("N", 0, 29)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 12.into()])?;
    let small_channels = |tensor: Tensor, columns: usize| {
        let magnitudes = [1e-45, 4e-39, 3e-33];
        let elem = |idx: usize| {
            let channel = idx % columns;
            let scale = if channel % 4 == 1 { magnitudes[channel / 4 % 3] } else { 1.0 };
            (tensor.get(idx).as_f64() * scale) as f32
        };
        let elems: Vec<f32> = (0..tensor.elems()).map(elem).collect();
        Tensor::from_f32(tensor.shape().to_vec(), &elems).expect("as many as the shape")
    };
    let w = g.constant(small_channels(weights(&[12, 37], 1), 37))?;
    let b = g.constant(small_channels(weights(&[37], 2), 37))?;
    let y = g.matmul(x, w)?;
    let y = g.add(y, b)?;
    let y = g.relu(y)?;
    g.output("dense", y)?;

    // Another reader of the weights needs all of them.
    let v = g.constant(small_channels(weights(&[12, 12], 3), 12))?;
    let y = g.matmul(x, v)?;
    g.output("shared", y)?;
    let scaled = g.number(DType::F32, 1e33)?;
    let scaled = g.mul(v, scaled)?;
    let row = g.slice(scaled, 0, 1.into(), 1.into(), 1)?;
    let y = g.mul(x, row)?;
    g.output("scaled", y)?;
    Ok(g)
}

fn reductions() -> Result<Graph> {
    let mut g = graph("reductions", &[("N", 0, 4), ("S", 1, 6)]);
    let x = g.input("x", DType::F32, vec![sym("N"), sym("S"), 5.into()])?;
    let squares = g.mul(x, x)?;
    for (name, op, axes) in [
        ("last", ReduceOp::Sum, &[2][..]),
        ("middle", ReduceOp::Max, &[1]),
        ("first", ReduceOp::Min, &[0]),
        ("outer", ReduceOp::Sum, &[0, 1]),
        ("ends", ReduceOp::Sum, &[0, 2]),
        ("all", ReduceOp::Prod, &[0, 1, 2]),
    ] {
        let y = g.reduce(op, squares, axes, false)?;
        g.output(name, y)?;
    }
    Ok(g)
}

/// Reductions down rows of few and of many columns, and along rows of 64-bit elements.
fn combined_rows() -> Result<Graph> {
    let mut g = graph("combined_rows", &[("N", 1, 3), ("S", 1, 6), ("C", 1, 150)]);
    let x = g.input("x", DType::F32, vec![sym("N"), sym("S"), sym("C")])?;
    let hundred = g.scalar(Scalar::f32(100.0))?;
    let x = g.mul(x, hundred)?;
    for (name, dtype, op) in [
        ("sum", DType::F32, ReduceOp::Sum),
        ("largest", DType::F32, ReduceOp::Max),
        ("product", DType::F32, ReduceOp::Prod),
        ("half", DType::F16, ReduceOp::Sum),
        ("int", DType::I32, ReduceOp::Sum),
        ("byte", DType::I8, ReduceOp::Min),
        ("long", DType::I64, ReduceOp::Sum),
        ("double", DType::F64, ReduceOp::Max),
    ] {
        let x = g.cast(dtype, x)?;
        let down = g.reduce(op, x, &[1], false)?;
        g.output(name, down)?;
        if dtype.size_bytes() == 8 {
            let along = g.reduce(op, x, &[2], false)?;
            g.output(&format!("{name}_along"), along)?;
        }
    }
    let position = g.argreduce(ReduceOp::Max, x, 1, false, false)?;
    g.output("position", position)?;
    Ok(g)
}

fn orders() -> Result<Graph> {
    let mut g = graph("orders", &[("N", 0, 4), ("S", 1, 6)]);
    let x = g.input("x", DType::F32, vec![sym("N"), sym("S"), 3.into()])?;
    let (values, positions) = g.sort(x, 1, true)?;
    let sums = g.scan(ReduceOp::Sum, x, 1, true, true)?;
    let best = g.argreduce(ReduceOp::Max, x, 1, false, false)?;
    g.output("values", values)?;
    g.output("positions", positions)?;
    g.output("sums", sums)?;
    g.output("best", best)?;
    Ok(g)
}

/// Scans and arg-reductions of rows that are nearer to each other in memory than their elements, and of long rows.
fn orders_across() -> Result<Graph> {
    let mut g = graph("orders_across", &[("S", 1, 300), ("C", 1, 1100)]);
    let x = g.input("x", DType::F32, vec![sym("S"), sym("C")])?;
    let y = g.input("y", DType::F32, vec![2.into(), sym("S"), 4.into(), 5.into()])?;
    let eight = g.number(DType::F32, 8.0)?;
    let scaled = g.mul(x, eight)?;
    let coarse = g.unary(UnaryOp::Round, scaled)?;
    let turned = g.transpose(coarse, &[1, 0])?;
    let outputs = [
        g.scan(ReduceOp::Sum, coarse, 0, false, false)?,
        g.scan(ReduceOp::Sum, y, 1, true, true)?,
        g.scan(ReduceOp::Max, coarse, 0, false, true)?,
        g.argreduce(ReduceOp::Max, coarse, 0, false, false)?,
        g.argreduce(ReduceOp::Min, y, 1, true, true)?,
        g.argreduce(ReduceOp::Min, turned, 1, false, false)?,
        g.argreduce(ReduceOp::Min, x, 1, false, false).and_then(|value| g.cast(DType::F32, value))?,
    ];
    for (idx, value) in outputs.into_iter().enumerate() {
        g.output(&format!("y{idx}"), value)?;
    }
    Ok(g)
}

/// The first few elements of rows that are short and long, along memory and across it, with many ties.
fn selections() -> Result<Graph> {
    let mut g = graph("selections", &[("N", 0, 3), ("S", 24, 700), ("K", 0, 24)]);
    let x = g.input("x", DType::F32, vec![sym("N"), sym("S")])?;
    let count = g.input("count", DType::F32, vec![sym("K")])?;
    let eight = g.number(DType::F32, 8.0)?;
    let scaled = g.mul(x, eight)?;
    let coarse = g.unary(UnaryOp::Round, scaled)?;
    let turned = g.transpose(x, &[1, 0])?;
    let (best, places) = g.sort_first(coarse, 1, true, &3.into())?;
    let (worst, worst_places) = g.sort_first(coarse, 1, false, &sym("K"))?;
    let (across, across_places) = g.sort_first(turned, 0, true, &sym("K"))?;
    let outputs = [best, places, worst, worst_places, across, across_places, count];
    for (idx, value) in outputs.into_iter().enumerate() {
        g.output(&format!("y{idx}"), value)?;
    }
    Ok(g)
}

fn scatter() -> Result<Graph> {
    let mut g = graph("scatter", &[("N", 0, 4)]);
    let base = g.input("base", DType::F32, vec![5.into(), 3.into()])?;
    let updates = g.input("updates", DType::F32, vec![sym("N"), 3.into()])?;
    let ids = g.input("ids", DType::I64, vec![sym("N")])?;
    let coords =
        vec![Coord::Load { operand: 2, at: vec![Dim::from(axis(0))] }, Coord::At(Dim::from(axis(1)))];
    let mode = ScatterMode::Combine(ReduceOp::Sum);
    let y = g.push(Op::Scatter { coords, mode }, &[base, updates, ids])?;
    g.output("y", y)?;
    Ok(g)
}

fn passed_through() -> Result<Graph> {
    let mut g = graph("passed_through", &[("N", 0, 4)]);
    let x = g.input("x", DType::F32, vec![sym("N"), 2.into(), 3.into()])?;
    let flat = g.reshape(x, vec![sym("N"), 6.into()])?;
    let turned = g.transpose(x, &[2, 0, 1])?;
    let fixed = constant(&mut g, &[3, 2], 1)?;
    let count = g.dims(&[sym("N"), &sym("N") * 6])?;
    for (name, value) in
        [("x", x), ("flat", flat), ("turned", turned), ("fixed", fixed), ("count", count), ("again", flat)]
    {
        g.output(name, value)?;
    }
    Ok(g)
}
