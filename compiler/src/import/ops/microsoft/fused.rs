//! Fused operators of ONNX Runtime's domain, as its optimiser and exporters write them.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        node::OnnxNode,
        ops::{
            conv::{Window, convolve, kernel_of, with_bias},
            matmul::gemm,
            norm::standardised,
            shared::gates::{Activation, activate},
        },
    },
    scalar::{BinaryOp, ReduceOp, Scalar},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    "com.microsoft" EmbedLayerNormalization 1 embed_layer_normalization,
    "com.microsoft" FusedConv 1 fused_conv,
    "com.microsoft" FusedGemm 1 fused_gemm,
    "com.microsoft" MatMulNBits 1 matmul_n_bits,
}

/// The layer normalisation of the sum of three embeddings, with scale and bias in inputs 5 and 6. Word ids (input 0)
/// index input 2, positions input 3, segment ids (input 1) input 4. Positions are input 8, by default 0, 1, …. Output 1
/// is the sum of the mask (input 7) by sequence. Output 2 is the sum of the embeddings.
///
/// `EmbedLayerNormalization(i64[[1]], _, [[0, 0], [1, 2]], [[0, 1]], _, [1, 1], [0, 1]; epsilon=0.0) = [[[-1, 2]]], i32[0], [[[1, 3]]]`
fn embed_layer_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let words = n.input(0)?;
    let table = n.input(2)?;
    let epsilon = n.float_or("epsilon", 1e-12)?;
    n.int_or("mask_index_type", 0)?;
    let [batch, steps] = <[Dim; 2]>::try_from(g.shape(words).to_vec())
        .map_err(|_| Error::invalid("the word ids must have 2 axes"))?;

    let mut sum = g.gather(table, words, 0)?;
    let places = match n.optional(8) {
        Some(places) => places,
        None => g.index(DType::I64, vec![Dim::one(), steps], axis(1).into())?,
    };

    let place = g.gather(n.input(3)?, places, 0)?;
    sum = g.add(sum, place)?;

    if let (Some(segments), Some(table)) = (n.optional(1), n.optional(4)) {
        let segment = g.gather(table, segments, 0)?;
        sum = g.add(sum, segment)?;
    }

    let [centred, inverse, _] = standardised(g, sum, &[2], epsilon)?;
    let normal = g.mul(centred, inverse)?;
    let scaled = g.mul(normal, n.input(5)?)?;
    let y = g.add(scaled, n.input(6)?)?;

    let count = match n.optional(7) {
        Some(mask) => {
            let mask = g.cast(DType::I32, mask)?;
            g.reduce(ReduceOp::Sum, mask, &[1], false)?
        }
        None => {
            let zero = g.scalar(Scalar::from_i64(DType::I32, 0))?;
            g.broadcast_to(zero, &[batch])?
        }
    };

    Ok(vec![y, count, sum])
}

/// The function `name` of `x`, with its parameters.
fn activated(g: &mut Graph, x: Value, name: &str, params: &[f64]) -> Result<Value> {
    let param = |k: usize, default: f64| params.get(k).copied().unwrap_or(default);
    let (alpha, beta) = match name {
        "" => return Ok(x),
        "Clip" => {
            let lo = g.number(g.dtype(x), param(0, f64::MIN))?;
            let hi = g.number(g.dtype(x), param(1, f64::MAX))?;
            let x = g.max(x, lo)?;
            return g.min(x, hi);
        }
        "LeakyRelu" => (0.01, 0.0),
        "HardSigmoid" => (0.2, 0.5),
        "Relu" | "Tanh" | "Sigmoid" => (0.0, 0.0),
        other => return Err(Error::unsupported(format!("activation `{other}`"))),
    };

    let alpha = param(0, alpha);
    let beta = param(1, beta);
    activate(g, &Activation { name: name.to_lowercase(), alpha, beta }, x)
}

/// `activation(Conv(X, W, B) + Z)`. `Z` (input 3) is optional. `activation_params` holds the parameters of the
/// activation.
///
/// Limits: as `Conv`.
///
/// `FusedConv([[[1, 2, 3]]], [[[1, -2]]], [4]; activation="Relu") = [[[1, 0]]]`
fn fused_conv(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let w = n.input(1)?;
    let window = Window::read(g, n, x, kernel_of(g, n, w)?)?;
    let x = window.pad(g, x, Scalar::from_i64(g.dtype(x), 0))?;
    let y = convolve(g, x, w, &window, n.int_or("group", 1)?)?;

    let mut y = with_bias(g, y, n.optional(2))?;
    if let Some(other) = n.optional(3) {
        y = g.add(y, other)?;
    }

    let params: Vec<f64> =
        n.floats("activation_params")?.unwrap_or_default().into_iter().map(f64::from).collect();
    activated(g, y, n.string_or("activation", "")?, &params)
}

/// `activation(Gemm(A, B, C))`, with the parameters `activation_alpha` and `activation_beta`.
///
/// `FusedGemm([[1, 2]], [[3, -3], [0, 0]]; activation="Relu") = [[3, 0]]`
fn fused_gemm(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let y = gemm(g, n)?;
    let params = [n.float("activation_alpha")?, n.float("activation_beta")?];
    n.float("activation_gamma")?;
    let params: Vec<f64> = params.into_iter().flatten().map(f64::from).collect();
    activated(g, y, n.string_or("activation", "")?, &params)
}

/// The first `count` integers of `bits` bits in the bytes of the last axis of `x`. The lowest bits of a byte come
/// first.
fn unpacked(g: &mut Graph, x: Value, bits: i64, count: &Dim) -> Result<Value> {
    let mut shape = g.shape(x).to_vec();
    let last = shape.len() - 1;
    let each = 8 / bits;

    let mut values = x;
    if each > 1 {
        let unsqueezed = g.unsqueeze(x, &[last + 1])?;
        let place = g.index(DType::U8, vec![each.into()], Dim::from(axis(0)) * bits)?;
        let shifted = g.binary(BinaryOp::Shr, unsqueezed, place)?;
        let mask = g.scalar(Scalar::from_i64(DType::U8, (1 << bits) - 1))?;
        let parts = g.and(shifted, mask)?;
        shape[last] = g.facts.simplify(&(&shape[last] * each));
        values = g.reshape(parts, shape)?;
    }

    g.slice(values, last, Dim::zero(), count.clone(), 1)
}

/// `A·Bᵀ + bias`. The rows of `B`, `[N, K]`, are packed integers of `bits` bits in blocks of `block_size`. Each block
/// has a scale (input 2) and a zero point (input 3). Zero points are packed alike or floats, by default half of the
/// range. The bias (input 5) is optional.
///
/// Limits: no `g_idx`; activations are never quantised, so `accuracy_level` has no effect.
///
/// `MatMulNBits([[1, 2]], u8[[[57, 136, 136, 136, 136, 136, 136, 136]]], [10]; K=2, N=1, bits=4, block_size=16) = [[-90]]`
fn matmul_n_bits(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let a = n.input(0)?;
    let b = n.input(1)?;
    let scales = n.input(2)?;

    let need = |name: &str| n.int(name)?.ok_or_else(|| Error::invalid(format!("MatMulNBits needs `{name}`")));
    let k = need("K")?;
    let columns = need("N")?;
    let bits = n.int_or("bits", 4)?;
    let block = need("block_size")?;

    n.int_or("accuracy_level", 0)?;
    if n.optional(4).is_some() {
        return Err(Error::unsupported("MatMulNBits with g_idx"));
    }

    let fits = [2, 4, 8].contains(&bits) && block > 0 && block <= 1 << 20 && k > 0 && columns > 0;
    if !fits || block % (8 / bits) != 0 || g.dtype(b) != DType::U8 || k > 1 << 31 {
        return Err(Error::invalid(format!("{columns} x {k} elements of {bits} bits in blocks of {block}")));
    }

    let blocks = (k + block - 1) / block;
    let b = g.reshape(b, vec![columns.into(), blocks.into(), (block * bits / 8).into()])?;
    let integers = unpacked(g, b, bits, &block.into())?;
    let dtype = g.dtype(scales);
    let integers = g.cast(dtype, integers)?;

    let zero = match n.optional(3) {
        None => g.number(dtype, f64::from(1 << (bits - 1)))?,
        Some(zero) if g.dtype(zero).is_float() => {
            let zero = g.cast(dtype, zero)?;
            g.reshape(zero, vec![columns.into(), blocks.into(), 1.into()])?
        }
        Some(zero) => {
            let bytes = (blocks * bits + 7) / 8;
            let zero = g.reshape(zero, vec![columns.into(), bytes.into()])?;
            let zero = unpacked(g, zero, bits, &blocks.into())?;
            let zero = g.cast(dtype, zero)?;
            g.unsqueeze(zero, &[2])?
        }
    };

    let centred = g.sub(integers, zero)?;
    let scales = g.reshape(scales, vec![columns.into(), blocks.into(), 1.into()])?;
    let weights = g.mul(centred, scales)?;
    let weights = g.reshape(weights, vec![columns.into(), (blocks * block).into()])?;
    let weights = g.slice(weights, 1, Dim::zero(), k.into(), 1)?;
    let weights = g.cast(g.dtype(a), weights)?;

    let width = g.shape(a).last().cloned().unwrap_or(Dim::one());
    g.require(Relation::eq(width, k), "K of MatMulNBits")?;
    let turned = g.transpose(weights, &[1, 0])?;
    let y = g.matmul(a, turned)?;

    match n.optional(5) {
        Some(bias) => g.add(y, bias),
        None => Ok(y),
    }
}
