//! The neighbours of a coordinate, and their weights.

use super::resized_axis::{ResizedAxis, Sampling};
use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::node::axes::larger,
    scalar::{CompareOp, ReduceOp, Scalar},
};
use symshape::Dim;
use symshape_runtime::DType;

/// The largest number of taps that are added term by term.
const MAX_TERMS: i64 = 4;

/// Coordinates rounded to those of elements.
pub(super) fn nearest(g: &mut Graph, at: Value, how: &str) -> Result<Value> {
    let half = g.number(DType::F64, 0.5)?;
    match how {
        "floor" => g.floor(at),
        "ceil" => g.ceil(at),
        "round_prefer_floor" => {
            let shifted = g.sub(at, half)?;
            g.ceil(shifted)
        }
        "round_prefer_ceil" => {
            let shifted = g.add(at, half)?;
            g.floor(shifted)
        }
        other => Err(Error::invalid(format!("unknown nearest_mode `{other}`"))),
    }
}

/// Coordinates as indices, clamped to the old axis.
pub(super) fn clamped(g: &mut Graph, at: Value, along: &ResizedAxis) -> Result<Value> {
    let at = g.cast(DType::I64, at)?;
    let zero = g.scalar(Scalar::i64(0))?;
    let last = g.dim(DType::I64, &along.from - 1)?;
    let at = g.max(at, zero)?;
    g.min(at, last)
}

/// The weighted sum of the neighbours of `at`, whose positions and weights are tables `[taps, O]`.
pub(super) fn interpolated(
    g: &mut Graph,
    x: Value,
    at: Value,
    along: &ResizedAxis,
    how: &Sampling,
) -> Result<Value> {
    let reach = if how.mode == "cubic" { 2 } else { 1 };
    let support: Dim = match (how.antialias, along.scale.number()) {
        (false, _) => reach.into(),
        (true, Some(scale)) => ((reach as f64 / scale.min(1.0)).ceil().min(1e4) as i64).into(),
        // A scale known at run time is at least the ratio of the sizes, so these neighbours suffice.
        (true, None) => {
            let to = larger(g, &along.to, &Dim::one());
            let wide = g.facts.simplify(&(&along.from * reach).ceil_div(to));
            g.facts.simplify(&larger(g, &wide, &reach.into()))
        }
    };

    let taps = g.facts.simplify(&(&support * 2));
    let floor = g.floor(at)?;
    let ratio = g.sub(at, floor)?;
    let floor = g.unsqueeze(floor, &[0])?;
    let ratio = g.unsqueeze(ratio, &[0])?;

    let offset = g.index(DType::I64, vec![taps.clone(), Dim::one()], Dim::from(axis(0)) - (support - 1))?;
    let offset = g.cast(DType::F64, offset)?;
    let place = g.add(floor, offset)?;
    let distance = g.sub(offset, ratio)?;
    let one = g.number(DType::F64, 1.0)?;

    let distance = if how.antialias {
        let scale = along.scale(g)?;
        let shrink = g.min(scale, one)?;
        g.mul(distance, shrink)?
    } else {
        distance
    };
    let distance = g.abs(distance)?;
    let mut weight =
        if how.mode == "cubic" { cubic(g, distance, how.cubic)? } else { triangle(g, distance)? };
    if how.exclude_outside {
        let zero = g.number(DType::F64, 0.0)?;
        let last = g.dim(DType::F64, &along.from - 1)?;
        let above = g.compare(CompareOp::Ge, place, zero)?;
        let below = g.compare(CompareOp::Le, place, last)?;
        let inside = g.and(above, below)?;
        weight = g.select(inside, weight, zero)?;
    }

    if how.exclude_outside || how.antialias {
        let sum = g.reduce(ReduceOp::Sum, weight, &[0], true)?;
        weight = g.div(weight, sum)?;
    }

    let place = clamped(g, place, along)?;
    let dtype = g.dtype(x);
    let wide = if dtype.is_float() { dtype } else { DType::F32 };

    let weight = g.cast(wide, weight)?;
    let x = g.cast(wide, x)?;
    let y = match taps.as_i64() {
        Some(taps) if taps <= MAX_TERMS => sum_of_taps(g, x, place, weight, taps, along.k)?,
        _ => contraction_of_taps(g, x, place, weight, along.k)?,
    };

    g.cast(dtype, y)
}

/// The sum over few taps, term by term.
fn sum_of_taps(g: &mut Graph, x: Value, place: Value, weight: Value, taps: i64, k: usize) -> Result<Value> {
    let after: Vec<usize> = (1..g.rank(x) - k).collect();
    let mut sum = None;
    for tap in 0..taps {
        let row = |g: &mut Graph, table: Value| {
            let row = g.slice(table, 0, tap.into(), Dim::one(), 1)?;
            g.squeeze(row, &[0])
        };
        let place = row(g, place)?;
        let weight = row(g, weight)?;
        let weight = g.unsqueeze(weight, &after)?;
        let near = g.gather(x, place, k)?;
        let term = g.mul(near, weight)?;
        sum = Some(match sum {
            None => term,
            Some(sum) => g.add(sum, term)?,
        });
    }
    sum.ok_or_else(|| Error::internal("resampling without taps"))
}

/// The sum over many taps: `[…, taps, O]` gathered and contracted with the weights.
fn contraction_of_taps(g: &mut Graph, x: Value, place: Value, weight: Value, k: usize) -> Result<Value> {
    let near = g.gather(x, place, k)?;
    let labels: Vec<u8> = (0..g.rank(near) as u8).map(|k| b'A' + k).collect();
    let tap = labels[k];
    let to = labels[k + 1];
    let out: Vec<u8> = labels.iter().copied().filter(|label| *label != tap).collect();
    g.contract(near, &labels, weight, &[tap, to], &out)
}

/// `max(0, 1 - d)`.
fn triangle(g: &mut Graph, distance: Value) -> Result<Value> {
    let one = g.number(DType::F64, 1.0)?;
    let slope = g.sub(one, distance)?;
    g.relu(slope)
}

/// Keys' cubic kernel with the coefficient `a`.
fn cubic(g: &mut Graph, d: Value, a: f64) -> Result<Value> {
    let mut horner = |coefficients: [f64; 4]| -> Result<Value> {
        let mut acc = g.number(DType::F64, coefficients[0])?;
        for coefficient in &coefficients[1..] {
            let product = g.mul(acc, d)?;
            let coefficient = g.number(DType::F64, *coefficient)?;
            acc = g.add(product, coefficient)?;
        }
        Ok(acc)
    };

    let near = horner([a + 2.0, -(a + 3.0), 0.0, 1.0])?;
    let far = horner([a, -5.0 * a, 8.0 * a, -4.0 * a])?;

    let one = g.number(DType::F64, 1.0)?;
    let two = g.number(DType::F64, 2.0)?;
    let zero = g.number(DType::F64, 0.0)?;
    let is_near = g.compare(CompareOp::Le, d, one)?;
    let is_far = g.compare(CompareOp::Lt, d, two)?;
    let far = g.select(is_far, far, zero)?;

    g.select(is_near, near, far)
}
