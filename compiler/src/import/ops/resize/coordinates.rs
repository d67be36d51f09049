//! The coordinates in the old axis that the elements of the new one are sampled at.

use super::resized_axis::{ResizedAxis, Sampling, Scale};
use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    scalar::CompareOp,
};
use symshape_runtime::DType;

/// The coordinate in the old axis of each index of the new one, as doubles.
pub(super) fn coordinates(g: &mut Graph, along: &ResizedAxis, how: &Sampling) -> Result<Value> {
    let position = g.index(DType::I64, vec![along.to.clone()], axis(0).into())?;
    let position = g.cast(DType::F64, position)?;
    let from = g.dim(DType::F64, along.from.clone())?;
    let to = g.dim(DType::F64, along.to.clone())?;

    let scale = along.scale(g)?;

    let one = g.number(DType::F64, 1.0)?;
    let half = g.number(DType::F64, 0.5)?;

    let centre = |g: &mut Graph| -> Result<Value> {
        let shifted = g.add(position, half)?;
        let scaled = g.div(shifted, scale)?;
        g.sub(scaled, half)
    };

    // An axis of one element has no steps.
    let single = g.compare(CompareOp::Le, to, one)?;

    // The new size before rounding. ONNX's reference divides the axis into that many steps.
    let exact = g.mul(scale, from)?;
    let exact = if matches!(along.scale, Scale::Sizes) { to } else { exact };
    let last = g.sub(from, one)?;
    let steps = g.sub(exact, one)?;

    match how.coordinates {
        "half_pixel" => centre(g),
        "asymmetric" => g.div(position, scale),
        "pytorch_half_pixel" => {
            let at = centre(g)?;
            let zero = g.number(DType::F64, 0.0)?;
            g.select(single, zero, at)
        }
        "align_corners" => {
            let way = g.mul(position, last)?;
            let at = g.div(way, steps)?;
            let zero = g.number(DType::F64, 0.0)?;
            g.select(single, zero, at)
        }
        "half_pixel_symmetric" => {
            let full = g.mul(scale, from)?;
            let part = g.div(to, full)?;
            let rest = g.sub(one, part)?;
            let middle = g.mul(from, half)?;
            let offset = g.mul(middle, rest)?;
            let at = centre(g)?;
            g.add(offset, at)
        }
        "tf_crop_and_resize" => {
            let [start, end] = along.roi.ok_or_else(|| Error::internal("each axis must have a region"))?;
            let span = g.sub(end, start)?;
            let first = g.mul(start, last)?;
            let span = g.mul(span, last)?;
            let way = g.mul(position, span)?;
            let walked = g.div(way, steps)?;
            let at = g.add(first, walked)?;
            let middle = g.add(start, end)?;
            let middle = g.mul(middle, half)?;
            let middle = g.mul(middle, last)?;
            g.select(single, middle, at)
        }
        other => Err(Error::invalid(format!("unknown coordinate_transformation_mode `{other}`"))),
    }
}

/// Whether coordinates are outside of the old axis, broadcastable with a result of `rank` axes.
pub(super) fn beyond(g: &mut Graph, at: Value, along: &ResizedAxis, rank: usize) -> Result<Value> {
    let zero = g.number(DType::F64, 0.0)?;
    let last = g.dim(DType::F64, &along.from - 1)?;
    let below = g.compare(CompareOp::Lt, at, zero)?;
    let above = g.compare(CompareOp::Gt, at, last)?;
    let out = g.or(below, above)?;
    g.unsqueeze(out, &(1..rank - along.k).collect::<Vec<_>>())
}
