//! Convolutions and pools of ONNX Runtime's domain over images whose last axis holds the channels.
//!
//! They are the operators with channels on axis 1, between two transposes. The transposes are views: `lower/layout.rs`
//! stores images with their channels last anyway.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::OnnxNode,
        ops::{
            conv::convolution, microsoft::fused::activated_by_attributes, pool::maximum,
            quant::quantised_convolution,
        },
    },
};

ops! {
    "com.microsoft" NhwcConv 1 nhwc_conv,
    "com.microsoft" NhwcFusedConv 1 nhwc_fused_conv,
    "com.microsoft" NhwcMaxPool 1 nhwc_max_pool,
    "com.microsoft" QLinearConv 1 qlinear_conv,
}

/// `[N, D1, …, C]` as `[N, C, D1, …]`.
pub(crate) fn channels_first(g: &mut Graph, x: Value) -> Result<Value> {
    let rank = at_least_two(g, x)?;
    let perm: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    g.transpose(x, &perm)
}

/// `[N, C, D1, …]` as `[N, D1, …, C]`.
pub(crate) fn channels_last(g: &mut Graph, x: Value) -> Result<Value> {
    let rank = at_least_two(g, x)?;
    let perm: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    g.transpose(x, &perm)
}

fn at_least_two(g: &Graph, x: Value) -> Result<usize> {
    match g.rank(x) {
        0 | 1 => Err(Error::invalid("an image must have at least 2 axes")),
        rank => Ok(rank),
    }
}

/// `Conv` of `[N, D1, …, C]` with kernels `[M, k1, …, C/group]`. The result is `[N, …, M]`.
///
/// Limits: as `Conv`.
///
/// `NhwcConv([[[1], [2], [3]]], [[[1], [10]]], [5]) = [[[26], [37]]]`
fn nhwc_conv(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = channels_first(g, n.input(0)?)?;
    let w = channels_first(g, n.input(1)?)?;
    let y = convolution(g, n, x, w)?;
    channels_last(g, y)
}

/// `FusedConv` of `[N, D1, …, C]` with kernels `[M, C/group, k1, …]`. The result and `Z` (input 3) are `[N, …, M]`.
///
/// Limits: as `Conv`.
///
/// `NhwcFusedConv([[[1], [2], [3]]], [[[1, -2]]], [4], [[[1], [-9]]]; activation="Relu") = [[[2], [0]]]`
fn nhwc_fused_conv(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = channels_first(g, n.input(0)?)?;
    let y = convolution(g, n, x, n.input(1)?)?;
    let mut y = channels_last(g, y)?;
    if let Some(other) = n.optional(3) {
        y = g.add(y, other)?;
    }
    activated_by_attributes(g, n, y)
}

/// `MaxPool` of `[N, D1, …, C]`.
///
/// `NhwcMaxPool(u8[[[1], [3], [2]]]; kernel_shape=[2]) = u8[[[3], [3]]]`
fn nhwc_max_pool(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = channels_first(g, n.input(0)?)?;
    let y = maximum(g, n, x)?;
    channels_last(g, y)
}

/// `QLinearConv`. With `channels_last=1`, image and result are `[N, D1, …, C]`. The kernels are `[M, C/group, k1, …]`
/// in both cases.
///
/// Limits: as `Conv`.
///
/// `QLinearConv(u8[[[3], [1]]], 0.5, u8:1, u8[[[2]]], 2, u8:0, 1, u8:10; channels_last=1) = u8[[[14], [10]]]`
fn qlinear_conv(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let w = n.input(3)?;
    if !n.flag("channels_last", false)? {
        return quantised_convolution(g, n, x, w);
    }
    let x = channels_first(g, x)?;
    let y = quantised_convolution(g, n, x, w)?;
    channels_last(g, y)
}
