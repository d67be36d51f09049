//! Fourier transforms and what belongs to them. Where the length is known they are contractions with constant tables of
//! sines and cosines ([`super::stft`]), or fast ones ([`super::fourier`]) of signals that are very short or long;
//! otherwise contractions with tables that each call computes, in double precision.

use super::{
    super::{
        node::{OnnxNode, normal_axis},
        weights,
    },
    fourier, int, smaller, stft,
};
use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    scalar::{BinaryOp, CompareOp, Scalar},
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    DFT 17 dft,
    MelWeightMatrix 17 mel_weight_matrix,
}

pub(super) fn double(g: &mut Graph, value: f64) -> Result<Value> {
    g.number(DType::F64, value)
}

/// The angles `2πkj/n` for `k` below `rows` and `j` below `columns`; products are taken modulo `n`, so they are exact.
pub(super) fn angles(g: &mut Graph, rows: &Dim, columns: &Dim, n: Value) -> Result<Value> {
    let product = Dim::from(axis(0)) * Dim::from(axis(1));
    let product = g.index(DType::I64, vec![rows.clone(), columns.clone()], product)?;
    let one = int(g, 1)?;
    let n = g.max(n, one)?;
    let turn = g.binary(BinaryOp::Mod, product, n)?;
    let (turn, n) = (g.cast(DType::F64, turn)?, g.cast(DType::F64, n)?);
    let turn = g.div(turn, n)?;
    let circle = double(g, std::f64::consts::TAU)?;
    g.mul(turn, circle)
}

/// The parts of the elements of `x`, whose last axis holds them: 1 where they are real, 2 where they are complex.
pub(super) fn count_parts(g: &Graph, x: Value) -> Result<i64> {
    let last = g.shape(x).last().ok_or_else(|| Error::invalid("a signal without axes"))?;
    let count = last.as_i64().filter(|count| [1, 2].contains(count));
    count.ok_or_else(|| {
        Error::invalid("the last axis of a signal has one element, or two for complex numbers")
    })
}

/// The real and the imaginary part of `x`, whose last axis holds one or both.
pub(super) fn parts(g: &mut Graph, x: Value) -> Result<(Value, Option<Value>)> {
    let (count, last) = (count_parts(g, x)?, g.rank(x) - 1);
    let mut part = |k: i64| {
        let part = g.slice(x, last, k.into(), Dim::one(), 1)?;
        g.squeeze(part, &[last])
    };
    Ok((part(0)?, if count == 2 { Some(part(1)?) } else { None }))
}

/// Both parts of `x`, zeros for the imaginary one of what is real, with as many elements along an axis as are taken.
pub(super) fn filled(g: &mut Graph, x: Value, along: usize, taken: &Dim) -> Result<fourier::Pair> {
    let (real, imaginary) = parts(g, x)?;
    let imaginary = match imaginary {
        Some(imaginary) => imaginary,
        None => {
            let (zero, shape) = (g.number(g.dtype(real), 0.0)?, g.shape(real).to_vec());
            g.broadcast_to(zero, &shape)?
        }
    };
    Ok([fitted(g, real, along, taken)?, fitted(g, imaginary, along, taken)?])
}

/// `Σ x[…, j, …] table[k, j]` along axis `along`.
pub(super) fn transformed(g: &mut Graph, x: Value, table: Value, along: usize) -> Result<Value> {
    let labels: Vec<u8> = (0..g.rank(x) as u8).map(|k| b'A' + k).collect();
    let mut out = labels.clone();
    out[along] = b'z';
    g.contract(x, &labels, table, &[b'z', labels[along]], &out)
}

/// The discrete Fourier transform along an axis, of length `dft_length` (input 1): `onesided` gives (or with `inverse`
/// takes) only the first half of a spectrum that is symmetric. The last axis holds real and imaginary parts.
///
/// `DFT@19([[[1], [2]]]; axis=1) = [[[3, 0], [-1, 0]]]`
/// `DFT@19([[[3, 0], [-1, 0]]]; axis=1, inverse=1) = [[[1, 0], [2, 0]]]`
fn dft(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let rank = g.rank(x);
    if n.opset < 20 {
        let along = normal_axis(n.int_or("axis", 1)?, rank)?;
        return transform(g, n, x, along);
    }
    let declared = n.declared(g, 0);
    let fits = |g: &Graph, axes: &[usize]| {
        // The dims of other axes, and their number, are those of the input.
        let same = |(k, (dim, other)): (usize, (&Dim, &Option<Dim>))| {
            axes.contains(&k) || k + 1 == rank || other.as_ref().is_none_or(|other| dim == other)
        };
        !axes.contains(&(rank - 1))
            && declared.as_ref().is_none_or(|list| g.shape(x).iter().zip(list).enumerate().all(same))
    };
    n.by_axes(g, 2, rank, fits, |g, axes| {
        let along = axes.unwrap_or_default().first().copied();
        transform(g, n, x, along.unwrap_or(rank.saturating_sub(2)))
    })
}

fn transform(g: &mut Graph, n: &OnnxNode, x: Value, along: usize) -> Result<Value> {
    let rank = g.rank(x);
    let (inverse, onesided) = (n.flag("inverse", false)?, n.flag("onesided", false)?);
    if along + 1 == rank {
        return Err(Error::invalid("the transform runs along the axis of real and imaginary parts"));
    }
    let dtype = g.dtype(x);
    let have = g.shape(x)[along].clone();
    let usual = if inverse && onesided { (&have - 1) * 2 } else { have.clone() };
    let (length, points) = match n.optional(1) {
        None => (g.dim(DType::I64, usual.clone())?, Some(usual)),
        Some(length) => {
            let known = g.contents(length).and_then(|dims| dims.first()).cloned();
            let length = g.reshape(length, Vec::new())?;
            (g.cast(DType::I64, length)?, known)
        }
    };
    let steps = points.as_ref().and_then(Dim::as_i64).and_then(fourier::factors);
    if let (Some(points), false, true) = (points.as_ref().and_then(Dim::as_i64), inverse, dtype != DType::F64) {
        let bins = if onesided { points / 2 + 1 } else { points };
        let is_fitting = points >= SHORT && (points < stft::LONG || steps.is_none());
        if is_fitting && stft::entries(points, count_parts(g, x)?, bins) <= stft::MAX_TABLE {
            return contracted(g, x, along, points, bins);
        }
    }
    if let Some(factors) = steps {
        return fast(g, x, along, &factors, (inverse, onesided));
    }
    let wide = g.cast(DType::F64, x)?;
    let (real, imaginary) = parts(g, wide)?;
    let half = |points: &Dim| points.floor_div(2) + 1;
    // Values of the signal (or spectrum) that count, and those that come out.
    let (two, one) = (int(g, 2)?, int(g, 1)?);
    let half_length = g.div(length, two)?;
    let half_length = g.add(half_length, one)?;
    let rows = match (&points, onesided && !inverse) {
        (Some(points), true) => g.facts.simplify(&half(points)),
        (Some(points), false) => points.clone(),
        (None, true) => n.size(g, half_length, along, None)?,
        (None, false) => n.size(g, length, along, None)?,
    };
    let counted = if inverse && onesided { half_length } else { length };
    let table = angles(g, &rows, &have, length)?;
    let (cos, sin) = (g.cos(table)?, g.sin(table)?);
    let place = g.index(DType::I64, vec![have.clone()], axis(0).into())?;
    let counts = g.compare(CompareOp::Lt, place, counted)?;
    let zero = double(g, 0.0)?;
    let mut weight = double(g, 1.0)?;
    if inverse {
        let length = g.cast(DType::F64, length)?;
        weight = g.recip(length)?;
    }
    let mut weight = g.select(counts, weight, zero)?;
    if inverse && onesided {
        // Each value but the first stands for two, and so does the last one unless it is in the middle.
        let first = int(g, 0)?;
        let is_first = g.compare(CompareOp::Eq, place, first)?;
        let twice = g.add(place, place)?;
        let is_middle = g.compare(CompareOp::Eq, twice, length)?;
        let single = g.or(is_first, is_middle)?;
        let both = g.add(weight, weight)?;
        weight = g.select(single, weight, both)?;
    }
    let (cos, sin) = (g.mul(cos, weight)?, g.mul(sin, weight)?);
    let minus = g.neg(sin)?;
    // e^(-iφ) forwards, e^(iφ) back.
    let (ahead, back) = if inverse { (sin, minus) } else { (minus, sin) };
    let mut re = transformed(g, real, cos, along)?;
    let mut im = transformed(g, real, ahead, along)?;
    if let Some(imaginary) = imaginary {
        let (a, b) = (transformed(g, imaginary, back, along)?, transformed(g, imaginary, cos, along)?);
        (re, im) = (g.add(re, a)?, g.add(im, b)?);
    }
    joined(g, [re, im], dtype, inverse && onesided)
}

/// Below this length a transform runs in double precision, which is cheap there and leaves nothing of the rounding where the
/// result is 0.
const SHORT: i64 = 64;

/// [`transform`] forwards of so many points, as a contraction of what there is of the signal.
fn contracted(g: &mut Graph, x: Value, along: usize, points: i64, bins: i64) -> Result<Value> {
    let (dtype, last) = (g.dtype(x), g.rank(x) - 1);
    let x = g.cast(DType::F32, x)?;
    let count = g.shape(x)[along].as_i64().map_or(points, |have| have.min(points));
    let x = fitted(g, x, along, &count.into())?;
    let parts = count_parts(g, x)?;
    if parts == 1 && stft::folds(points, count) {
        let x = g.squeeze(x, &[last])?;
        let y = stft::folded(g, x, along, points, bins)?;
        return g.cast(dtype, y);
    }
    let table = stft::turns(g, points, (count, parts, bins))?;
    let mut labels: Vec<u8> = (0..=last as u8).map(|k| b'A' + k).collect();
    (labels[along], labels[last]) = (b'l', b'c');
    let mut out = labels.clone();
    (out[along], out[last]) = (b'k', b'p');
    let y = stft::contracted(g, x, &labels, table, &out)?;
    g.cast(dtype, y)
}

/// [`transform`] of as many points as the product of `factors`.
fn fast(g: &mut Graph, x: Value, along: usize, factors: &[i64], (inverse, onesided): (bool, bool)) -> Result<Value> {
    let dtype = g.dtype(x);
    let points = factors.iter().product::<i64>();
    let x = g.cast(fourier::working_type(dtype, inverse), x)?;
    let taken = Dim::from(if inverse && onesided { points / 2 + 1 } else { points });
    let mut x = filled(g, x, along, &taken)?;
    if inverse && onesided {
        // The other half is the mirror image, with the opposite imaginary part.
        let count = (points - 1) / 2;
        for (part, other) in x.iter_mut().zip([false, true]) {
            let mirrored = g.slice(*part, along, count.into(), count.into(), -1)?;
            let mirrored = if other { g.neg(mirrored)? } else { mirrored };
            *part = g.concat(&[*part, mirrored], along)?;
        }
    }
    let [mut re, mut im] = fourier::transformed(g, x, along, factors, inverse)?;
    if inverse {
        let weight = g.number(g.dtype(re), 1.0 / points as f64)?;
        (re, im) = (g.mul(re, weight)?, g.mul(im, weight)?);
    } else if onesided {
        let half = Dim::from(points / 2 + 1);
        (re, im) = (g.slice(re, along, Dim::zero(), half.clone(), 1)?, g.slice(im, along, Dim::zero(), half, 1)?);
    }
    joined(g, [re, im], dtype, inverse && onesided)
}

/// Real and imaginary parts along a new last axis; without the latter, where it is known that there are none. In memory
/// each part of the last axis is by itself, so that whatever reads both goes along memory.
pub(super) fn joined(g: &mut Graph, [re, im]: [Value; 2], dtype: DType, is_real: bool) -> Result<Value> {
    let last = g.rank(re);
    let [re, im] = [g.cast(dtype, re)?, g.cast(dtype, im)?];
    if is_real {
        return g.unsqueeze(re, &[last]);
    }
    let before = last.saturating_sub(1);
    let (re, im) = (g.unsqueeze(re, &[before])?, g.unsqueeze(im, &[before])?);
    let y = g.concat(&[re, im], before)?;
    let mut order: Vec<usize> = (0..=last).collect();
    order.swap(before, last);
    g.transpose(y, &order)
}

/// The first `size` elements along axis `k`, with zeros behind them where there are less.
pub(super) fn fitted(g: &mut Graph, x: Value, k: usize, size: &Dim) -> Result<Value> {
    let keep = g.facts.simplify(&smaller(g, &g.shape(x)[k].clone(), size));
    let x = g.slice(x, k, Dim::zero(), keep.clone(), 1)?;
    let (lo, mut hi) = (vec![Dim::zero(); g.rank(x)], vec![Dim::zero(); g.rank(x)]);
    hi[k] = g.facts.simplify(&(size - keep));
    g.pad(x, &lo, &hi, Scalar::from_i64(g.dtype(x), 0))
}

/// Triangles over the bins of a spectrum, evenly spaced on the mel scale: number of triangles, length of the transform,
/// sample rate, lowest and highest frequency.
///
/// `MelWeightMatrix(i64:1, i64:4, i64:8, 0, 4) = [[1], [0], [0]]`
fn mel_weight_matrix(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let dtype = weights::dtype(i32::try_from(n.int_or("output_datatype", 1)?).unwrap_or(-1))?;
    let scalar = |g: &mut Graph, k: usize, dtype: DType| -> Result<Value> {
        let value = g.reshape(n.input(k)?, Vec::new())?;
        g.cast(dtype, value)
    };
    let (count, length) = (scalar(g, 0, DType::I64)?, scalar(g, 1, DType::I64)?);
    let rate = scalar(g, 2, DType::F64)?;
    let (low, high) = (scalar(g, 3, DType::F64)?, scalar(g, 4, DType::F64)?);
    let (one, two) = (int(g, 1)?, int(g, 2)?);
    let bins = g.div(length, two)?;
    let bins = g.add(bins, one)?;
    let rows = n.size(g, bins, 0, None)?;
    let columns = n.size(g, count, 1, None)?;
    let mel = |g: &mut Graph, hertz: Value| -> Result<Value> {
        let (unit, scale) = (double(g, 1.0 / 700.0)?, double(g, 2595.0 / std::f64::consts::LN_10)?);
        let ratio = g.mul(hertz, unit)?;
        let log = g.log1p(ratio)?;
        g.mul(log, scale)
    };
    let (low, high) = (mel(g, low)?, mel(g, high)?);
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
    let (rise, run) = (g.sub(bin, left)?, g.sub(middle, left)?);
    let up = slope(g, rise, run)?;
    let (rise, run) = (g.sub(right, bin)?, g.sub(right, middle)?);
    let down = slope(g, rise, run)?;
    let (zero, one) = (double(g, 0.0)?, double(g, 1.0)?);
    let (after, until) = (g.compare(CompareOp::Ge, bin, left)?, g.compare(CompareOp::Le, bin, middle)?);
    let rising = g.and(after, until)?;
    let (from, before) = (g.compare(CompareOp::Ge, bin, middle)?, g.compare(CompareOp::Lt, bin, right)?);
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
