//! Mixtures of experts in dense form.
//!
//! All experts are computed for all tokens, and those that the router does not choose are multiplied with 0. The sums
//! have a fixed order, so a token has the same bits in any batch. The cost grows with the number of experts.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        node::OnnxNode,
        ops::{
            activation::{by_erf, logistic},
            microsoft::few_bits::unpacked,
        },
    },
    scalar::{CompareOp, ReduceOp, Scalar},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    "com.microsoft" MoE 1 mixture_of_experts,
    "com.microsoft" QMoE 1 quantised_mixture_of_experts,
}

/// A linear layer of each expert: weights `[E, N, K]` and an optional bias `[E, N]`.
struct ExpertLayer {
    weights: Value,
    bias: Option<Value>,
}

impl ExpertLayer {
    /// The layer of every expert, of inputs `[T, K]` or of one input per expert, `[T, E, K]`. The result is
    /// `[T, E, N]`.
    fn apply(&self, g: &mut Graph, x: Value) -> Result<Value> {
        let labels: &[u8] = if g.rank(x) == 2 { b"tk" } else { b"tek" };
        let y = g.contract(x, labels, self.weights, b"enk", b"ten")?;
        match self.bias {
            Some(bias) => g.add(y, bias),
            None => Ok(y),
        }
    }
}

/// The weights of the experts of each token, `[T, E]`. Those of experts that are not chosen are 0.
///
/// The `k` largest of the router's outputs are chosen. Of equal outputs, the first is larger.
fn routed(g: &mut Graph, n: &OnnxNode, logits: Value, given: Option<Value>) -> Result<Value> {
    let k = n.int_or("k", 1)?;
    if n.flag("use_sparse_mixer", false)? {
        return Err(Error::unsupported(format!("{} with use_sparse_mixer", n.op)));
    }
    if g.rank(logits) != 2 || k < 1 {
        return Err(Error::invalid(format!("{k} experts of a router with {} axes", g.rank(logits))));
    }
    let is_normal = n.flag("normalize_routing_weights", false)?;

    let count = g.shape(logits)[1].clone();
    g.require(Relation::le(k, &count), "experts to choose")?;
    let wide = g.cast(DType::F32, logits)?;
    let (_, best) = g.sort_first(wide, 1, true, &k.into())?;
    let best = g.unsqueeze(best, &[1])?;
    let expert = g.index(DType::I64, vec![count, Dim::one()], axis(0).into())?;
    let hits = g.compare(CompareOp::Eq, best, expert)?;
    let hits = g.cast(DType::I32, hits)?;
    let hits = g.reduce(ReduceOp::Max, hits, &[2], false)?;
    let none = g.scalar(Scalar::from_i64(DType::I32, 0))?;
    let is_chosen = g.compare(CompareOp::Gt, hits, none)?;

    let shares = match given {
        Some(given) => g.cast(DType::F32, given)?,
        None => g.softmax(wide, 1)?,
    };
    let zero = g.number(DType::F32, 0.0)?;
    let shares = g.select(is_chosen, shares, zero)?;
    if !is_normal {
        return Ok(shares);
    }
    let sum = g.reduce(ReduceOp::Sum, shares, &[1], true)?;
    g.div(shares, sum)
}

/// The activation of the first layer, `[T, E, I]`. `gate` is the result of a third layer.
fn activated(g: &mut Graph, n: &OnnxNode, x: Value, gate: Option<Value>) -> Result<Value> {
    let alpha = n.float_or("activation_alpha", 1.0)?;
    let beta = n.float_or("activation_beta", 0.0)?;
    let limit = n.float("swiglu_limit")?.map(f64::from);
    let fusion = n.int_or("swiglu_fusion", 0)?;
    if n.flag("swiglu_limit_after_activation", false)? {
        return Err(Error::unsupported(format!("{} with swiglu_limit_after_activation", n.op)));
    }

    let name = n.string_or("activation_type", "relu")?;
    let y = match name {
        "identity" => x,
        "relu" => g.relu(x)?,
        "gelu" => by_erf(g, x)?,
        "silu" => {
            let share = logistic(g, x)?;
            g.mul(x, share)?
        }
        "swiglu" => return swiglu(g, x, gate, &Swiglu { alpha, beta, limit, fusion }),
        other => return Err(Error::unsupported(format!("{} with the activation `{other}`", n.op))),
    };
    match gate {
        Some(gate) => g.mul(y, gate),
        None => Ok(y),
    }
}

/// The parameters of `swiglu`.
struct Swiglu {
    alpha: f64,
    beta: f64,
    limit: Option<f64>,
    /// The layout of gate and value: 0 in two tensors, 1 alternating, 2 one after the other.
    fusion: i64,
}

/// `a * sigmoid(alpha * a) * (b + beta)`, where `a` is at most `limit`, and `b` is in `-limit..=limit`.
fn swiglu(g: &mut Graph, x: Value, gate: Option<Value>, parameters: &Swiglu) -> Result<Value> {
    let width = g.shape(x)[2].clone();
    let half = g.facts.simplify(&width.floor_div(2));
    if parameters.fusion != 0 {
        g.require(Relation::divides(2, &width), "gate and value of swiglu")?;
    }
    let [mut a, mut b] = match (parameters.fusion, gate) {
        (0, Some(gate)) => [x, gate],
        (1, None) => [g.slice(x, 2, Dim::zero(), half.clone(), 2)?, g.slice(x, 2, Dim::one(), half, 2)?],
        (2, None) => [g.slice(x, 2, Dim::zero(), half.clone(), 1)?, g.slice(x, 2, half.clone(), half, 1)?],
        (fusion, _) => {
            return Err(Error::invalid(format!(
                "swiglu_fusion={fusion} with {} first layers",
                1 + i32::from(gate.is_some())
            )));
        }
    };

    let dtype = g.dtype(a);
    if let Some(limit) = parameters.limit {
        let high = g.number(dtype, limit)?;
        let low = g.number(dtype, -limit)?;
        a = g.min(a, high)?;
        b = g.min(b, high)?;
        b = g.max(b, low)?;
    }
    let alpha = g.number(dtype, parameters.alpha)?;
    let scaled = g.mul(a, alpha)?;
    let share = logistic(g, scaled)?;
    let a = g.mul(a, share)?;
    let beta = g.number(dtype, parameters.beta)?;
    let b = g.add(b, beta)?;
    g.mul(a, b)
}

/// The sum of the experts of each token of `x`, `[T, K]` or `[B, S, K]`, times their weights.
fn mixed(
    g: &mut Graph,
    n: &OnnxNode,
    layers: [Option<ExpertLayer>; 3],
    given: Option<Value>,
) -> Result<Value> {
    let x = n.input(0)?;
    let [Some(first), Some(second), third] = layers else {
        return Err(Error::internal("two layers are required"));
    };
    let shape = g.shape(x).to_vec();
    let tokens = match shape.as_slice() {
        [_, _] => x,
        [batch, steps, width] => g.reshape(x, vec![batch * steps, width.clone()])?,
        _ => return Err(Error::invalid("the input must have 2 or 3 axes")),
    };

    let weights = routed(g, n, n.input(1)?, given)?;
    let weights = g.cast(g.dtype(x), weights)?;
    let inner = first.apply(g, tokens)?;
    let gate = third.map(|third| third.apply(g, tokens)).transpose()?;
    let inner = activated(g, n, inner, gate)?;
    let each = second.apply(g, inner)?;
    let y = g.contract(weights, b"te", each, b"ten", b"tn")?;
    g.reshape(y, shape)
}

/// Weights in input `k`, a bias in the next one.
fn layer(n: &OnnxNode, g: &Graph, k: usize) -> Result<Option<ExpertLayer>> {
    let Some(weights) = n.optional(k) else { return Ok(None) };
    match g.rank(weights) {
        3 => Ok(Some(ExpertLayer { weights, bias: n.optional(k + 1) })),
        rank => Err(Error::invalid(format!("the weights of experts have {rank} axes instead of 3"))),
    }
}

/// A mixture of experts: for each token, `k` of `E` networks with two layers, chosen by the router's outputs (input 1,
/// `[T, E]`), times their softmax. Inputs 2 and 4 are the weights of the layers, `[E, I, K]` and `[E, K, I]`, inputs 3
/// and 5 their biases. Input 6 and 7 are a third layer, whose result is multiplied with the activation.
///
/// Limits: all experts are computed; no `use_sparse_mixer`; the activations `relu`, `gelu`, `silu`, `swiglu` and
/// `identity`.
///
/// `MoE([[1, 2]], [[0, 9]], [[[1, 0]], [[0, 1]]], _, [[[1], [1]], [[3], [4]]]; k=1, normalize_routing_weights=1) = [[6, 8]]`
fn mixture_of_experts(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    n.input(2)?;
    n.input(4)?;
    let layers = [layer(n, g, 2)?, layer(n, g, 4)?, layer(n, g, 6)?];
    mixed(g, n, layers, None)
}

/// `MoE` with integers of 2, 4 or 8 bits as weights (`expert_weight_bits`), packed along the last axis with the lowest
/// bits first. Weights, scales and biases of the layers are inputs 2 to 4, 5 to 7 and 8 to 10, zero points inputs 11 to
/// 13. There is one scale for each row, or for each `block_size` elements of it. Input 14 replaces the softmax of the
/// router's outputs.
///
/// Limits: as `MoE`; no weights of floats. Weights of experts have the sum 1 only with `normalize_routing_weights=1`.
/// ONNX Runtime's CPU provider does so without it too.
///
/// `QMoE([[1, 2]], [[9]], u8[[[129, 130]]], [[1]], _, u8[[[130], [124]]], [[0.5]]; expert_weight_bits=8, normalize_routing_weights=1) = [[5, -10]]`
fn quantised_mixture_of_experts(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    if n.string_or("quant_type", "int")? != "int" {
        return Err(Error::unsupported("QMoE with weights of floats"));
    }
    n.int_or("accuracy_level", 0)?;
    if n.int_or("weights_prepacked", -1)? > 0 {
        return Err(Error::unsupported("QMoE with prepacked weights"));
    }

    let bits = n.int_or("expert_weight_bits", 4)?;
    let block = n.int_or("block_size", 0)?;
    let mut layers = Vec::new();
    for (k, name) in
        ["fc1_expert_weight_bits", "fc2_expert_weight_bits", "fc3_expert_weight_bits"].iter().enumerate()
    {
        let bits = n.int_or(name, bits)?;
        layers.push(quantised_layer(g, n, k, bits, block)?);
    }
    n.input(2)?;
    n.input(5)?;
    let layers = layers.try_into().map_err(|_| Error::internal("there must be three layers"))?;
    mixed(g, n, layers, n.optional(14))
}

/// Layer `k` of `QMoE`, dequantised.
fn quantised_layer(
    g: &mut Graph,
    n: &OnnxNode,
    k: usize,
    bits: i64,
    block: i64,
) -> Result<Option<ExpertLayer>> {
    let Some(bytes) = n.optional(2 + 3 * k) else { return Ok(None) };
    let scales = n.input(3 + 3 * k)?;
    let bias = n.optional(4 + 3 * k);
    if g.rank(bytes) != 3 || g.dtype(bytes) != DType::U8 || ![2, 4, 8].contains(&bits) || block < 0 {
        return Err(Error::unsupported(format!("weights of experts of {bits} bits in blocks of {block}")));
    }

    let width = g.facts.simplify(&(&g.shape(bytes)[2] * (8 / bits)));
    let codes = unpacked(g, bytes, bits, &width)?;
    let shape = g.shape(codes).to_vec();
    let dtype = g.dtype(n.input(0)?);
    let codes = g.cast(dtype, codes)?;
    let by_row = |g: &mut Graph, x: Value| -> Result<Value> {
        let x = g.cast(dtype, x)?;
        match (g.rank(x), block) {
            (2, _) => g.unsqueeze(x, &[2]),
            (3, 1..) => {
                g.require(Relation::eq(g.shape(x)[2].clone(), width.ceil_div(block)), "blocks of a row")?;
                let index = vec![axis(0).into(), axis(1).into(), Dim::from(axis(2)).floor_div(block)];
                g.view(x, shape.clone(), index)
            }
            (rank, _) => Err(Error::invalid(format!("scales of {rank} axes with block_size={block}"))),
        }
    };

    let zero = match n.optional(11 + k) {
        None => g.number(dtype, f64::from(1 << (bits - 1)))?,
        Some(packed) => {
            let last = g.rank(scales).checked_sub(1).ok_or_else(|| Error::invalid("scales have no axes"))?;
            let count = g.shape(scales)[last].clone();
            if g.dtype(packed) != DType::U8 || g.rank(packed) != g.rank(scales) {
                return Err(Error::invalid("zero points must be bytes with as many axes as the scales"));
            }
            let zeros = unpacked(g, packed, bits, &count)?;
            by_row(g, zeros)?
        }
    };
    let centred = g.sub(codes, zero)?;
    let scales = by_row(g, scales)?;
    let weights = g.mul(centred, scales)?;
    Ok(Some(ExpertLayer { weights, bias }))
}
