//! The mel scale.

use crate::{
    error::Result,
    graph::{Graph, Value, axis},
    import::{
        model::weights,
        node::OnnxNode,
        ops::{shared::arithmetic::int, signal::spectrum::double},
    },
    scalar::CompareOp,
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    MelWeightMatrix 17 mel_weight_matrix,
}

/// Triangular filters over the bins of a spectrum, evenly spaced on the mel scale: `[dft_length / 2 + 1,
/// num_mel_bins]`. The inputs are `num_mel_bins`, `dft_length`, `sample_rate`, `lower_edge_hertz` and
/// `upper_edge_hertz`.
///
/// `MelWeightMatrix(i64:1, i64:4, i64:8, 0, 4) = [[1], [0], [0]]`
fn mel_weight_matrix(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let dtype = weights::dtype(i32::try_from(n.int_or("output_datatype", 1)?).unwrap_or(-1))?;
    let scalar = |g: &mut Graph, k: usize, dtype: DType| -> Result<Value> {
        let value = g.reshape(n.input(k)?, Vec::new())?;
        g.cast(dtype, value)
    };

    let count = scalar(g, 0, DType::I64)?;
    let length = scalar(g, 1, DType::I64)?;
    let rate = scalar(g, 2, DType::F64)?;
    let low = scalar(g, 3, DType::F64)?;
    let high = scalar(g, 4, DType::F64)?;

    let one = int(g, 1)?;
    let two = int(g, 2)?;
    let bins = g.div(length, two)?;
    let bins = g.add(bins, one)?;
    let rows = n.size(g, bins, 0, None)?;
    let columns = n.size(g, count, 1, None)?;

    let mel = |g: &mut Graph, hertz: Value| -> Result<Value> {
        let unit = double(g, 1.0 / 700.0)?;
        let scale = double(g, 2595.0 / std::f64::consts::LN_10)?;
        let ratio = g.mul(hertz, unit)?;
        let log = g.log1p(ratio)?;
        g.mul(log, scale)
    };

    let low = mel(g, low)?;
    let high = mel(g, high)?;
    let span = g.sub(high, low)?;
    let steps = g.add(count, two)?;
    let steps = g.cast(DType::F64, steps)?;
    let step = g.div(span, steps)?;

    let points = g.add(length, one)?;
    let points = g.cast(DType::F64, points)?;

    // The bin of corner `k + offset` of triangle `k`.
    let corner = |g: &mut Graph, offset: i64| -> Result<Value> {
        let place = g.index(DType::I64, vec![columns.clone()], Dim::from(axis(0)) + offset)?;
        let place = g.cast(DType::F64, place)?;
        let way = g.mul(place, step)?;
        let at = g.add(way, low)?;

        let scale = double(g, std::f64::consts::LN_10 / 2595.0)?;
        let power = g.mul(at, scale)?;
        let power = g.expm1(power)?;

        let unit = double(g, 700.0)?;
        let hertz = g.mul(power, unit)?;
        let bin = g.mul(hertz, points)?;
        let bin = g.div(bin, rate)?;

        g.floor(bin)
    };

    let [left, middle, right] = [corner(g, 0)?, corner(g, 1)?, corner(g, 2)?];
    let bin = g.index(DType::I64, vec![rows, Dim::one()], axis(0).into())?;
    let bin = g.cast(DType::F64, bin)?;

    let slope = |g: &mut Graph, rise: Value, run: Value| -> Result<Value> {
        let one = double(g, 1.0)?;
        let run = g.max(run, one)?;
        g.div(rise, run)
    };

    let rise = g.sub(bin, left)?;
    let run = g.sub(middle, left)?;
    let up = slope(g, rise, run)?;
    let rise = g.sub(right, bin)?;
    let run = g.sub(right, middle)?;
    let down = slope(g, rise, run)?;

    let zero = double(g, 0.0)?;
    let one = double(g, 1.0)?;

    let after = g.compare(CompareOp::Ge, bin, left)?;
    let until = g.compare(CompareOp::Le, bin, middle)?;
    let rising = g.and(after, until)?;

    let from = g.compare(CompareOp::Ge, bin, middle)?;
    let before = g.compare(CompareOp::Lt, bin, right)?;
    let falling = g.and(from, before)?;

    let low_to_centre = g.sub(middle, left)?;
    let flat = g.compare(CompareOp::Eq, low_to_centre, zero)?;
    let peak = g.compare(CompareOp::Eq, bin, middle)?;
    let flat = g.and(flat, peak)?;

    let rest = g.select(rising, up, zero)?;
    let rest = g.select(flat, one, rest)?;
    let y = g.select(falling, down, rest)?;

    g.cast(dtype, y)
}
