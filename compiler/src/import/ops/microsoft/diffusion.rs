//! Operators of ONNX Runtime's domain that its optimiser writes for diffusion models.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::OnnxNode,
        ops::{
            activation::{by_erf, logistic},
            microsoft::channels_last::{channels_first, channels_last},
            shared::standardised::standardised_groups,
        },
    },
};
use symshape::Relation;
use symshape_runtime::DType;

ops! {
    "com.microsoft" BiasAdd 1 bias_add,
    "com.microsoft" BiasSplitGelu 1 bias_split_gelu,
    "com.microsoft" GroupNorm 1 group_norm,
    "com.microsoft" SkipGroupNorm 1 skip_group_norm,
}

/// `X + bias + skip`.
///
/// `BiasAdd([[[1, 2]]], [10, 20], [[[3, 4]]]) = [[[14, 26]]]`
fn bias_add(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let sum = g.add(n.input(0)?, n.input(1)?)?;
    g.add(sum, n.input(2)?)
}

/// The first half of the last axis of `X + bias`, times `Gelu` of the second half.
///
/// `BiasSplitGelu([[[1, 0]]], [1, 1]) = [[[1.6826895]]]`
fn bias_split_gelu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let sum = g.add(n.input(0)?, n.input(1)?)?;
    let last = g.rank(sum).checked_sub(1).ok_or_else(|| Error::invalid("the input must have axes"))?;
    let width = g.shape(sum)[last].clone();
    g.require(Relation::divides(2, &width), "halves of the last axis")?;
    let half = g.facts.simplify(&width.floor_div(2));
    let parts = g.split(sum, last, &[half.clone(), half])?;
    let gate = by_erf(g, parts[1])?;
    g.mul(parts[0], gate)
}

/// `GroupNormalization` of `[N, H, W, C]`, or with `channels_last=0` of `[N, C, H, W]`, over `groups` groups of
/// channels. With `activation=1`, the result is multiplied with its sigmoid.
///
/// `GroupNorm([[[1, 3]]], [1, 2], [0, 0]; groups=1, epsilon=0.0, activation=0) = [[[-1, 2]]]`
/// `GroupNorm([[[1], [3]]], [1, 2], [0, 1]; groups=1, epsilon=0.0, activation=1, channels_last=0) = [[[-0.26894143], [2.8577223]]]`
fn group_norm(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    normalised(g, n, n.input(0)?)
}

/// `GroupNorm` of `X + skip + bias` (inputs 0, 3 and 4). `skip` has the shape of `X`, or is `[N, C]` or
/// `[N, 1, 1, C]`. The bias is optional. Output 1 is the sum.
///
/// Limits: only `channels_last=1`.
///
/// `SkipGroupNorm([[[1, 2]]], [1, 2], [0, 0], [[0, 1]], [10, 10]; groups=1, epsilon=0.0, activation=0) = [[[-1, 2]]], [[[11, 13]]]`
fn skip_group_norm(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    if !n.flag("channels_last", true)? {
        return Err(Error::unsupported("SkipGroupNorm with channels_last=0"));
    }

    let x = n.input(0)?;
    let skip = n.input(3)?;
    let skip = match g.rank(x).checked_sub(g.rank(skip)) {
        Some(missing) if g.rank(skip) == 2 => g.unsqueeze(skip, &(1..1 + missing).collect::<Vec<_>>())?,
        _ => skip,
    };

    let mut sum = g.add(x, skip)?;
    if let Some(bias) = n.optional(4) {
        sum = g.add(sum, bias)?;
    }
    Ok(vec![normalised(g, n, sum)?, sum])
}

/// `x` with its groups of channels normalised, scaled, shifted and activated, as `GroupNorm` says.
fn normalised(g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
    let is_last = n.flag("channels_last", true)?;
    let dtype = g.dtype(x);
    let count = n.int("groups")?.ok_or_else(|| Error::invalid(format!("{} needs `groups`", n.op)))?;
    let image = if is_last { channels_first(g, x)? } else { x };
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { g.cast(DType::F32, image)? } else { image };

    let normal = standardised_groups(g, wide, count, n.float_or("epsilon", 1e-5)?)?;
    let mut y = channels_last(g, normal)?;
    let scale = g.cast(g.dtype(y), n.input(1)?)?;
    y = g.mul(y, scale)?;
    let bias = g.cast(g.dtype(y), n.input(2)?)?;
    y = g.add(y, bias)?;

    y = match n.int_or("activation", 0)? {
        0 => y,
        1 => {
            let gate = logistic(g, y)?;
            g.mul(y, gate)?
        }
        other => return Err(Error::invalid(format!("unknown activation {other} for {}", n.op))),
    };

    let y = g.cast(dtype, y)?;
    if is_last { Ok(y) } else { channels_first(g, y) }
}
