//! Fused operators of ONNX Runtime's domain, as its optimiser and exporters write them.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        node::OnnxNode,
        ops::{
            activation::by_tanh,
            conv::convolution,
            matmul::{centred, gemm},
            quant::scale_at,
            shared::gates::{Activation, activate},
            shared::standardised::standardised,
        },
    },
    scalar::{ReduceOp, Scalar},
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    "com.microsoft" EmbedLayerNormalization 1 embed_layer_normalization,
    "com.microsoft" FusedConv 1 fused_conv,
    "com.microsoft" FusedGemm 1 fused_gemm,
    "com.microsoft" QEmbedLayerNormalization 1 quantised_embed_layer_normalization,
    "com.microsoft" GemmFastGelu 1 gemm_fast_gelu,
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

    let parameters = [n.input(5)?, n.input(6)?];
    let y = normalised_rows(g, sum, parameters, epsilon)?;
    Ok(vec![y, mask_counts(g, n, batch)?, sum])
}

/// `x`, normalised along its last axis, scaled and shifted.
fn normalised_rows(g: &mut Graph, x: Value, [scale, bias]: [Value; 2], epsilon: f64) -> Result<Value> {
    let last = g.rank(x).checked_sub(1).ok_or_else(|| Error::invalid("embeddings must have axes"))?;
    let [centred, inverse, _] = standardised(g, x, &[last], epsilon)?;
    let normal = g.mul(centred, inverse)?;
    let scaled = g.mul(normal, scale)?;
    g.add(scaled, bias)
}

/// The sum of the mask in input 7 for each sequence, or zeros without a mask.
fn mask_counts(g: &mut Graph, n: &OnnxNode, batch: Dim) -> Result<Value> {
    match n.optional(7) {
        Some(mask) => {
            let mask = g.cast(DType::I32, mask)?;
            g.reduce(ReduceOp::Sum, mask, &[1], false)
        }
        None => {
            let zero = g.scalar(Scalar::from_i64(DType::I32, 0))?;
            g.broadcast_to(zero, &[batch])
        }
    }
}

/// `EmbedLayerNormalization` of tables of bytes. Inputs 2 to 6 are the tables of words, positions and segments, scale
/// and bias. Their scales are inputs 8 to 12, their zero points inputs 13 to 17. Input 7 is the mask.
///
/// `QEmbedLayerNormalization(i32[[1]], _, u8[[0, 0], [2, 3]], u8[[1, 2]], _, u8[3, 3], u8[1, 2], _, 1, 1, _, 0.5, 1, u8:0, u8:1, _, u8:1, u8:1; epsilon=0.0) = [[[-1, 2]]], i32[0]`
fn quantised_embed_layer_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let words = n.input(0)?;
    let epsilon = n.float_or("epsilon", 1e-12)?;
    let [batch, steps] = <[Dim; 2]>::try_from(g.shape(words).to_vec())
        .map_err(|_| Error::invalid("the word ids must have 2 axes"))?;
    // Slices are converted after the lookup, so that the tables stay bytes.
    let dequantised = |g: &mut Graph, x: Value, k: usize| -> Result<Value> {
        let centred = centred(g, x, Some(n.input(11 + k)?), 0)?;
        let wide = g.cast(DType::F32, centred)?;
        let scale = scale_at(g, n.input(6 + k)?, 0)?;
        g.mul(wide, scale)
    };

    let word = g.gather(n.input(2)?, words, 0)?;
    let mut sum = dequantised(g, word, 2)?;
    let places = g.index(DType::I64, vec![Dim::one(), steps], axis(1).into())?;
    let place = g.gather(n.input(3)?, places, 0)?;
    let place = dequantised(g, place, 3)?;
    sum = g.add(sum, place)?;
    if let (Some(segments), Some(table)) = (n.optional(1), n.optional(4)) {
        let segment = g.gather(table, segments, 0)?;
        let segment = dequantised(g, segment, 4)?;
        sum = g.add(sum, segment)?;
    }

    let scale = dequantised(g, n.input(5)?, 5)?;
    let bias = dequantised(g, n.input(6)?, 6)?;
    let y = normalised_rows(g, sum, [scale, bias], epsilon)?;
    Ok(vec![y, mask_counts(g, n, batch)?])
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
    let mut y = convolution(g, n, n.input(0)?, n.input(1)?)?;
    if let Some(other) = n.optional(3) {
        y = g.add(y, other)?;
    }
    activated_by_attributes(g, n, y)
}

/// The function of `y` in the attributes `activation` and `activation_params`.
pub(crate) fn activated_by_attributes(g: &mut Graph, n: &OnnxNode, y: Value) -> Result<Value> {
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

/// `Gelu` with `approximate="tanh"` of the matrix product of `X` and `W` plus the bias. The bias (input 2) is optional.
///
/// `GemmFastGelu([[1, 2]], [[1], [0]], [-1]) = [[0]]`
fn gemm_fast_gelu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let mut y = g.matmul(n.input(0)?, n.input(1)?)?;
    if let Some(bias) = n.optional(2) {
        y = g.add(y, bias)?;
    }
    by_tanh(g, y)
}
