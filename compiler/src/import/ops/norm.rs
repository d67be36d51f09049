//! Normalisations.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::{OnnxNode, axes::normal_axes},
        ops::{
            pool::norm,
            shared::standardised::{
                groups_of_channels, inverse_deviation, standardised, standardised_channels,
                standardised_groups,
            },
        },
    },
    scalar::{ReduceOp, Scalar},
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    BatchNormalization 1 batch_normalization,
    GroupNormalization 18 group_normalization_by_group,
    GroupNormalization 21 group_normalization,
    InstanceNormalization 1 instance_normalization,
    LRN 1 lrn,
    LayerNormalization 1 layer_normalization,
    LpNormalization 1 lp_normalization,
    MeanVarianceNormalization 9 mean_variance_normalization,
    RMSNormalization 23 rms_normalization,
    "com.microsoft" SimplifiedLayerNormalization 1 rms_normalization,
    SimplifiedLayerNormalization 1 rms_normalization,
    "com.microsoft" SkipLayerNormalization 1 skip_layer_normalization,
    "com.microsoft" SkipSimplifiedLayerNormalization 1 skip_rms_normalization,
}

/// `v`, one element per channel, in a shape that broadcasts with a tensor of `rank` axes.
fn for_channels(g: &mut Graph, v: Value, rank: usize) -> Result<Value> {
    g.unsqueeze(v, &(1..rank.max(2) - 1).collect::<Vec<_>>())
}

/// `x` in the type in which means are computed. With `stash_type=1`, the default, halves become `f32`.
fn stash(g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
    match (n.int_or("stash_type", 1)?, g.dtype(x)) {
        (1, DType::F16 | DType::BF16) => g.cast(DType::F32, x),
        (0 | 1 | 10 | 11 | 16, _) => Ok(x),
        (other, _) => Err(Error::invalid(format!("unknown stash_type {other}"))),
    }
}

/// `(X - mean) / sqrt(variance + epsilon) * scale + bias` by channel. Mean and variance are inputs 3 and 4. With
/// `training_mode=1` they are those of the batch. Then outputs 1 and 2 are the running mean and variance, updated with
/// `momentum`.
///
/// Limits: no `spatial=0`; training only from opset 14.
///
/// `BatchNormalization([[[1, 3]]], [2], [10], [1], [4]; epsilon=0.0) = [[[10, 12]]]`
fn batch_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let [x, scale, bias, mean, variance] = [0, 1, 2, 3, 4].map(|k| n.input(k));
    let x = x?;
    let scale = scale?;
    let bias = bias?;
    let mean = mean?;
    let variance = variance?;

    let epsilon = n.float_or("epsilon", 1e-5)?;
    let momentum = n.float_or("momentum", 0.9)?;
    if n.opset < 9 && n.int_or("spatial", 1)? != 1 {
        return Err(Error::unsupported("BatchNormalization with spatial=0"));
    }
    if n.opset < 7 && !n.flag("is_test", false)? {
        return Err(Error::unsupported("BatchNormalization in training before version 14"));
    }

    let rank = g.rank(x);
    if rank < 2 {
        return Err(Error::invalid("BatchNormalization needs at least 2 axes"));
    }

    let training = n.flag("training_mode", false)?;
    let (used_mean, used_variance) = if training {
        let axes: Vec<usize> = (0..rank).filter(|k| *k != 1).collect();
        let mean = g.mean(x, &axes, true)?;
        let centred = g.sub(x, mean)?;
        let squares = g.mul(centred, centred)?;
        let variance = g.mean(squares, &axes, false)?;
        (g.squeeze(mean, &axes)?, variance)
    } else {
        (mean, variance)
    };

    let dtype = g.dtype(x);
    let inverse = inverse_deviation(g, used_variance, epsilon)?;
    let scale = g.cast(g.dtype(inverse), scale)?;
    let bias = g.cast(g.dtype(inverse), bias)?;

    let factor = g.mul(scale, inverse)?;
    let shift = g.mul(used_mean, factor)?;
    let summand = g.sub(bias, shift)?;

    let factor = for_channels(g, factor, rank)?;
    let summand = for_channels(g, summand, rank)?;

    let wide = g.cast(g.dtype(factor), x)?;
    let scaled = g.mul(wide, factor)?;
    let y = g.add(scaled, summand)?;
    let y = g.cast(dtype, y)?;
    if !training {
        return Ok(vec![Some(y)]);
    }

    let mut running = |old: Value, new: Value| -> Result<Value> {
        let keep = g.number(g.dtype(old), momentum)?;
        let take = g.number(g.dtype(old), 1.0 - momentum)?;
        let new = g.cast(g.dtype(old), new)?;
        let old = g.mul(old, keep)?;
        let new = g.mul(new, take)?;
        g.add(old, new)
    };

    Ok(vec![Some(y), Some(running(mean, used_mean)?), Some(running(variance, used_variance)?)])
}

/// `(X - mean) / sqrt(variance + epsilon) * scale + bias`, with mean and variance over each of `num_groups` groups of
/// channels and all spatial axes. `scale` and `bias` have one element per channel.
///
/// `GroupNormalization([[[1], [3]]], [1, 2], [0, 0]; num_groups=1, epsilon=0.0) = [[[-1], [2]]]`
fn group_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let scale = n.input(1)?;
    let bias = n.input(2)?;

    let normal = groups(g, n, x)?;
    let normal = g.cast(g.dtype(x), normal)?;

    let scale = for_channels(g, scale, g.rank(x))?;
    let bias = for_channels(g, bias, g.rank(x))?;
    let scaled = g.mul(normal, scale)?;

    g.add(scaled, bias)
}

/// As in opset 21, with one element per group in `scale` and `bias`.
///
/// `GroupNormalization@18([[[1], [3]]], [2], [1]; num_groups=1, epsilon=0.0) = [[[-1], [3]]]`
fn group_normalization_by_group(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let scale = n.input(1)?;
    let bias = n.input(2)?;
    let normal = groups(g, n, x)?;
    let normal = g.cast(g.dtype(x), normal)?;
    let split = groups_of_channels(g, x, n.int_or("num_groups", 0)?)?;
    let normal = g.reshape(normal, split)?;
    let scale = for_channels(g, scale, g.rank(normal))?;
    let bias = for_channels(g, bias, g.rank(normal))?;
    let scaled = g.mul(normal, scale)?;
    let y = g.add(scaled, bias)?;
    g.reshape(y, g.shape(x).to_vec())
}

/// `x`, normalised within each group.
fn groups(g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
    let epsilon = n.float_or("epsilon", 1e-5)?;
    let count = n.int_or("num_groups", 0)?;
    let x = stash(g, n, x)?;
    standardised_groups(g, x, count, epsilon)
}

/// `(X - mean) / sqrt(variance + epsilon) * scale + bias`, with mean and variance over the spatial axes of each channel
/// of each sample. `scale` and `bias` have one element per channel.
///
/// `InstanceNormalization([[[1, 3]]], [2], [1]; epsilon=0.0) = [[[-1, 3]]]`
fn instance_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let scale = n.input(1)?;
    let bias = n.input(2)?;
    let epsilon = n.float_or("epsilon", 1e-5)?;
    let normal = standardised_channels(g, x, epsilon)?;
    let scale = for_channels(g, scale, g.rank(x))?;
    let bias = for_channels(g, bias, g.rank(x))?;
    let scaled = g.mul(normal, scale)?;
    g.add(scaled, bias)
}

/// `X / (bias + alpha / size * Σ X²)^beta`. The sum is over `size` adjacent channels.
///
/// `LRN([[[1], [2]]]; size=1, alpha=1.0, beta=1.0) = [[[0.5], [0.4]]]`
fn lrn(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let alpha = n.float_or("alpha", 1e-4)?;
    let beta = n.float_or("beta", 0.75)?;
    let bias = n.float_or("bias", 1.0)?;
    let size = n.int("size")?.filter(|size| *size > 0 && *size < 1 << 31);
    let size = size.ok_or_else(|| Error::invalid("LRN needs a positive attribute `size`"))?;

    let rank = g.rank(x);
    let dtype = g.dtype(x);
    if rank < 2 {
        return Err(Error::invalid("LRN needs at least 2 axes"));
    }

    let squares = g.mul(x, x)?;
    let mut lo = vec![Dim::zero(); rank];
    let mut hi = vec![Dim::zero(); rank];
    (lo[1], hi[1]) = (((size - 1) / 2).into(), (size / 2).into());

    let padded = g.pad(squares, &lo, &hi, Scalar::from_i64(dtype, 0))?;
    let seen = g.window(padded, &[1], &[size], &[1], &[1])?;
    let sum = g.reduce(ReduceOp::Sum, seen, &[rank], false)?;

    let factor = g.number(dtype, alpha / size as f64)?;
    let scaled = g.mul(sum, factor)?;
    let bias = g.number(dtype, bias)?;
    let base = g.add(scaled, bias)?;
    let beta = g.number(dtype, beta)?;
    let below = g.pow(base, beta)?;

    g.div(x, below)
}

/// `(X - mean) / sqrt(variance + epsilon) * scale + bias`, with mean and variance over the axes from `axis` on. The
/// bias is optional. Outputs 1 and 2 are the mean and `1 / sqrt(variance + epsilon)`.
///
/// `LayerNormalization([[1, 3]], [2, 2], [0, 1]; epsilon=0.0) = [[-2, 3]], [[2]], [[1]]`
fn layer_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let scale = n.input(1)?;
    let bias = n.optional(2);
    layer(g, n, x, scale, bias)
}

fn layer(g: &mut Graph, n: &OnnxNode, x: Value, scale: Value, bias: Option<Value>) -> Result<Vec<Value>> {
    let axis = n.axis(g, x, Some(-1))?;
    let epsilon = n.float_or("epsilon", 1e-5)?;
    let axes: Vec<usize> = (axis..g.rank(x)).collect();

    let wide = stash(g, n, x)?;
    let [centred, inverse, mean] = standardised(g, wide, &axes, epsilon)?;
    let normal = g.mul(centred, inverse)?;
    let normal = g.cast(g.dtype(x), normal)?;

    let mut y = g.mul(normal, scale)?;
    if let Some(bias) = bias {
        y = g.add(y, bias)?;
    }

    Ok(vec![y, mean, inverse])
}

/// `X / (Σ |X|^p)^(1/p)` along `axis`. 0 where the divisor is 0.
///
/// `LpNormalization([[3, 4]]; p=2) = [[0.6, 0.8]]`
fn lp_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let axis = n.axis(g, x, Some(-1))?;
    let length = norm(g, x, &[axis], n.int_or("p", 2)?, true)?;
    let zero = g.number(g.dtype(x), 0.0)?;
    let none = g.compare(crate::scalar::CompareOp::Eq, length, zero)?;
    let quotient = g.div(x, length)?;
    g.select(none, zero, quotient)
}

/// `(X - mean) / (sqrt(mean of X² - mean²) + 1e-9)`, with means over `axes`, by default 0, 2 and 3.
///
/// `MeanVarianceNormalization([[[[1, 3]]]]) = [[[[-1, 1]]]]`
fn mean_variance_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let axes = normal_axes(&n.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]), g.rank(x))?;
    let mean = g.mean(x, &axes, true)?;
    let squares = g.mul(x, x)?;
    let of_squares = g.mean(squares, &axes, true)?;

    let square = g.mul(mean, mean)?;
    let variance = g.sub(of_squares, square)?;
    let deviation = g.sqrt(variance)?;
    let tiny = g.number(g.dtype(x), 1e-9)?;
    let above = g.sub(x, mean)?;
    let below = g.add(deviation, tiny)?;

    g.div(above, below)
}

/// `X / sqrt(mean of X² + epsilon) * scale`, with the mean over the axes from `axis` on.
///
/// `RMSNormalization([[1, 7]], [1, 5]; epsilon=0.0) = [[0.2, 7]]`
fn rms_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let scale = n.input(1)?;
    rms(g, n, x, scale)
}

fn rms(g: &mut Graph, n: &OnnxNode, x: Value, scale: Value) -> Result<Vec<Value>> {
    let axis = n.axis(g, x, Some(-1))?;
    let epsilon = n.float_or("epsilon", 1e-5)?;
    let axes: Vec<usize> = (axis..g.rank(x)).collect();

    let wide = stash(g, n, x)?;
    let squares = g.mul(wide, wide)?;
    let mean = g.mean(squares, &axes, true)?;
    let inverse = inverse_deviation(g, mean, epsilon)?;
    let normal = g.mul(wide, inverse)?;

    let scaled = if g.dtype(scale) == g.dtype(x) {
        let normal = g.cast(g.dtype(x), normal)?;
        g.mul(normal, scale)?
    } else {
        let normal = g.cast(g.dtype(scale), normal)?;
        g.mul(normal, scale)?
    };

    Ok(vec![scaled, inverse])
}

/// The sum of the first two inputs and the optional bias in input `bias`.
fn skipped(g: &mut Graph, n: &OnnxNode, bias: usize) -> Result<Value> {
    let sum = g.add(n.input(0)?, n.input(1)?)?;
    match n.optional(bias) {
        Some(bias) => g.add(sum, bias),
        None => Ok(sum),
    }
}

/// `LayerNormalization` of `input + skip + bias` (inputs 0, 1 and 4) over the last axis. The bias is optional. Output 3
/// is the sum.
///
/// `SkipLayerNormalization([[1, 2]], [[0, 1]], [1, 1]; epsilon=0.0) = [[-1, 1]]`
fn skip_layer_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let sum = skipped(g, n, 4)?;
    let scale = n.input(2)?;
    let bias = n.optional(3);
    let mut outputs = layer(g, n, sum, scale, bias)?;
    outputs.push(sum);
    Ok(outputs)
}

/// `RMSNormalization` of `input + skip + bias` (inputs 0, 1 and 3) over the last axis. The bias is optional. Output 3
/// is the sum.
///
/// `SkipSimplifiedLayerNormalization([[1, 6]], [[0, 1]], [1, 5]; epsilon=0.0) = [[0.2, 7]]`
fn skip_rms_normalization(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let sum = skipped(g, n, 3)?;
    let scale = n.input(2)?;
    let outputs = rms(g, n, sum, scale)?;
    Ok(vec![Some(outputs[0]), None, Some(outputs[1]), Some(sum)])
}
