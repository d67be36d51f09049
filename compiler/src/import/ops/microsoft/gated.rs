//! Operators of ONNX Runtime's domain for models with linear attention and several streams of positions.

use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, Value, axis},
    import::{
        node::{OnnxNode, axes::normal_axis},
        ops::{
            activation::{logistic, soft_plus},
            attention::rotated,
        },
    },
    tensor::Tensor,
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    "com.microsoft" BranchwiseRMSNorm 1 branchwise_rms_norm,
    "com.microsoft" GatedAdd 1 gated_add,
    "com.microsoft" GatedRMSNorm 1 gated_rms_norm,
    "com.microsoft" LinearAttentionGate 1 linear_attention_gate,
    "com.microsoft" MRotaryEmbedding 1 multimodal_rotary_embedding,
    "com.microsoft" ScaledSiLU 1 scaled_silu,
    "com.microsoft" UnfoldTensor 1 unfold_tensor,
}

/// `Z * sigmoid(Z)` for `Z = alpha * X`. Input 1 is a scalar that replaces `alpha`.
///
/// `ScaledSiLU([0, 0.5]; alpha=2.0) = [0, 0.7310586]`
fn scaled_silu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let alpha = n.float_or("alpha", 1.0)?;
    let factor = match n.optional(1) {
        Some(factor) => {
            let factor = g.reshape(factor, Vec::new())?;
            g.cast(g.dtype(x), factor)?
        }
        None => g.number(g.dtype(x), alpha)?,
    };
    let scaled = g.mul(x, factor)?;
    let share = logistic(g, scaled)?;
    g.mul(scaled, share)
}

/// `X + Y * gate`, where the gate has one element per row.
///
/// Limits: no `gate_weight`.
///
/// `GatedAdd([[1, 2]], [[3, 4]], [[10]]) = [[31, 42]]`
fn gated_add(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    if n.optional(3).is_some() {
        return Err(Error::unsupported("GatedAdd with gate_weight"));
    }
    let product = g.mul(n.input(1)?, n.input(2)?)?;
    g.add(n.input(0)?, product)
}

/// The last axis of `x` in groups of `width`: `[…, groups, width]`.
fn in_groups(g: &mut Graph, x: Value, width: &Dim) -> Result<Value> {
    let mut shape = g.shape(x).to_vec();
    let last = shape.pop().ok_or_else(|| Error::invalid("the input must have at least 1 axis"))?;
    g.require(Relation::divides(width, &last), "groups of the last axis")?;
    shape.push(g.facts.simplify(&last.floor_div(width.clone())));
    shape.push(width.clone());
    g.reshape(x, shape)
}

/// `x` as `f32`, divided by the root of `epsilon` plus its mean square along the last axis.
fn divided_by_root_mean_square(g: &mut Graph, x: Value, epsilon: f64) -> Result<Value> {
    let last =
        g.rank(x).checked_sub(1).ok_or_else(|| Error::invalid("the input must have at least 1 axis"))?;
    let x = g.cast(DType::F32, x)?;
    let squares = g.mul(x, x)?;
    let mean = g.mean(squares, &[last], true)?;
    let epsilon = g.number(DType::F32, epsilon)?;
    let shifted = g.add(mean, epsilon)?;
    let root = g.sqrt(shifted)?;
    g.div(x, root)
}

/// `X / sqrt(mean(X²) + epsilon) * scale * f(gate)` in `f32`, with the mean over groups of as many elements of the last
/// axis as the scale has. `f(z)` is `z * sigmoid(z)`, or with `activation="sigmoid"` the sigmoid.
///
/// `GatedRMSNorm([[1, 1, -2, 2]], [1, 3], [[0, 1, 0, 1]]; epsilon=0.0, activation="sigmoid") = [[0.5, 2.1931758, -0.5, 2.1931758]]`
fn gated_rms_norm(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let scale = n.input(1)?;
    let gate = n.input(2)?;
    let [width] = <[Dim; 1]>::try_from(g.shape(scale).to_vec())
        .map_err(|_| Error::invalid("the scale of GatedRMSNorm must have 1 axis"))?;
    let groups = in_groups(g, x, &width)?;
    let normal = divided_by_root_mean_square(g, groups, n.float_or("epsilon", 1e-5)?)?;
    let scale = g.cast(DType::F32, scale)?;
    let scaled = g.mul(normal, scale)?;
    let scaled = g.reshape(scaled, g.shape(x).to_vec())?;

    let gate = g.cast(DType::F32, gate)?;
    let share = logistic(g, gate)?;
    let gate = match n.string_or("activation", "silu")? {
        "silu" | "swish" => g.mul(gate, share)?,
        "sigmoid" => share,
        other => return Err(Error::invalid(format!("unknown activation `{other}` for GatedRMSNorm"))),
    };
    let y = g.mul(scaled, gate)?;
    g.cast(g.dtype(x), y)
}

/// `X / sqrt(mean(X²) + epsilon) * scale` in `f32`, with the mean over the last axis of `[…, C, H]`, or over each of
/// `num_branches` parts of the last axis. The optional scale is `[H]`, `[C, H]` or `[C * H]`.
///
/// `BranchwiseRMSNorm([[1, 1, -2, 2]], [1, 3, 1, 1]; epsilon=0.0, num_branches=2) = [[1, 3, -1, 1]]`
fn branchwise_rms_norm(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let shape = g.shape(x).to_vec();
    let branches = match n.int_or("num_branches", 0)? {
        0 => x,
        count @ 1.. => {
            let width = shape.last().ok_or_else(|| Error::invalid("the input must have at least 1 axis"))?;
            let width = g.facts.simplify(&width.floor_div(count));
            in_groups(g, x, &width)?
        }
        count => return Err(Error::invalid(format!("{count} branches"))),
    };
    let mut y = divided_by_root_mean_square(g, branches, n.float_or("epsilon", 1e-5)?)?;

    if let Some(scale) = n.optional(1) {
        let mut scale = g.cast(DType::F32, scale)?;
        let own = g.shape(y)[g.rank(y).saturating_sub(2)..].to_vec();
        let is_for_all = match (g.shape(scale), own.last()) {
            ([len], Some(width)) => g.facts.prove_eq(len, width).is_yes(),
            _ => true,
        };
        if !is_for_all {
            scale = g.reshape(scale, own)?;
        }
        y = g.mul(y, scale)?;
    }
    let y = g.reshape(y, shape)?;
    g.cast(g.dtype(x), y)
}

/// The decay `decay_scale * ln(1 + e^(a + dt_bias))` and the update rate `sigmoid(b)` of linear attention. The inputs
/// are `a, dt_bias, decay_scale, b`; the last is optional.
///
/// `LinearAttentionGate([[[0]]], [0], [-2], [[[0]]]) = [[[-1.3862944]]], [[[0.5]]]`
fn linear_attention_gate(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let a = n.input(0)?;
    let dtype = g.dtype(a);
    let a = g.cast(DType::F32, a)?;
    let shifted = g.add(a, n.input(1)?)?;
    let soft = soft_plus(g, shifted)?;
    let decay = g.mul(soft, n.input(2)?)?;
    let decay = g.cast(dtype, decay)?;
    let Some(b) = n.optional(3) else { return Ok(vec![Some(decay), None]) };
    let wide = g.cast(DType::F32, b)?;
    let rate = logistic(g, wide)?;
    Ok(vec![Some(decay), Some(g.cast(g.dtype(b), rate)?)])
}

/// The stream of positions of each of `half` pairs of features: temporal 0, height 1 or width 2.
fn streams(sections: &[i64], is_interleaved: bool, half: i64) -> Result<Vec<i64>> {
    let total = sections.iter().try_fold(0_i64, |sum, len| sum.checked_add(*len).filter(|_| *len >= 0));
    if sections.len() != 3 || total != Some(half) || !(1..=1 << 16).contains(&half) {
        return Err(Error::invalid(format!(
            "mrope_section {sections:?} must be three sizes with the sum {half}"
        )));
    }
    let stream = |at: i64| match at % 3 {
        _ if !is_interleaved => i64::from(at >= sections[0]) + i64::from(at >= sections[0] + sections[1]),
        stream @ (1 | 2) if at < 3 * sections[stream as usize] => stream,
        _ => 0,
    };
    Ok((0..half).map(stream).collect())
}

/// `RotaryEmbedding` with three positions per token (input 1, `[3, B, S]`): time, height and width. `mrope_section` has
/// the number of pairs of features that each of them turns: one after another, or with `mrope_layout=1` alternating.
///
/// `MRotaryEmbedding([[[[1, 2]]]], i64[[[0]], [[1]], [[1]]], [[0], [1]], [[1], [0]]; mrope_section=[1, 0, 0]) = [[[[-2, 1]]]]`
fn multimodal_rotary_embedding(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let positions = n.input(1)?;
    let [three, batch, steps] = <[Dim; 3]>::try_from(g.shape(positions).to_vec())
        .map_err(|_| Error::invalid("the positions must have 3 axes"))?;
    g.require(Relation::eq(three, 3), "streams of positions")?;
    let sections = n.ints("mrope_section")?.unwrap_or_default();
    let is_interleaved = n.int_or("mrope_layout", 0)? == 1;

    let mut angles = Vec::new();
    for k in [2, 3] {
        let cache = n.input(k)?;
        let half = g.shape(cache).get(1).and_then(Dim::as_i64);
        let half =
            half.ok_or_else(|| Error::unsupported("a cache of angles whose width is not a constant"))?;
        let streams = streams(&sections, is_interleaved, half)?;
        let streams = Tensor::from_i64(vec![streams.len()], &streams)
            .ok_or_else(|| Error::internal("there must be a stream for each pair"))?;
        let streams = g.constant(streams)?;
        let all = g.gather(cache, positions, 0)?;
        let coords = vec![
            Coord::Load { operand: 1, at: vec![axis(2).into()] },
            Coord::At(axis(0).into()),
            Coord::At(axis(1).into()),
            Coord::At(axis(2).into()),
        ];
        let shape = vec![batch.clone(), steps.clone(), half.into()];
        angles.push(g.push(Op::Gather { shape, coords }, &[all, streams])?);
    }
    rotated(g, n, n.input(0)?, [angles[0], angles[1]])
}

/// All slices of `size` elements along axis `dim`, `step` apart. The elements of a slice are a new last axis.
///
/// `UnfoldTensor([1, 2, 3, 4]; size=2, step=2) = [[1, 2], [3, 4]]`
fn unfold_tensor(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let k = normal_axis(n.int_or("dim", -1)?, g.rank(x))?;
    let size = n.int("size")?.unwrap_or(0);
    let step = n.int_or("step", 1)?;
    if !(1..=1 << 31).contains(&size) || !(1..=1 << 31).contains(&step) {
        return Err(Error::invalid(format!("slices of {size} elements, {step} apart")));
    }
    let len = g.shape(x)[k].clone();
    g.require(Relation::le(size, len), "the size of UnfoldTensor")?;
    g.window(x, &[k], &[size], &[step], &[1])
}
