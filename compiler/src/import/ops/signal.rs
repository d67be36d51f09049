//! Fourier transforms and what belongs to them: fast ones where the length is known ([`super::fourier`]), otherwise
//! contractions with tables of sines and cosines in double precision.

use super::{
    super::{
        node::{OnnxNode, normal_axis},
        weights,
    },
    fourier, smaller,
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
    STFT 17 stft,
}

fn int(g: &mut Graph, value: i64) -> Result<Value> {
    g.scalar(Scalar::i64(value))
}

fn double(g: &mut Graph, value: f64) -> Result<Value> {
    g.number(DType::F64, value)
}

/// The angles `2πkj/n` for `k` below `rows` and `j` below `columns`; products are taken modulo `n`, so they are exact.
fn angles(g: &mut Graph, rows: &Dim, columns: &Dim, n: Value) -> Result<Value> {
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

/// The real and the imaginary part of `x`, whose last axis holds one or both.
fn parts(g: &mut Graph, x: Value) -> Result<(Value, Option<Value>)> {
    let last = g.rank(x).checked_sub(1).ok_or_else(|| Error::invalid("a signal without axes"))?;
    let count = g.shape(x)[last].as_i64();
    let part = |g: &mut Graph, k: i64| {
        let part = g.slice(x, last, k.into(), Dim::one(), 1)?;
        g.squeeze(part, &[last])
    };
    match count {
        Some(1) => Ok((part(g, 0)?, None)),
        Some(2) => Ok((part(g, 0)?, Some(part(g, 1)?))),
        _ => Err(Error::invalid("the last axis of a signal has one element, or two for complex numbers")),
    }
}

/// `Σ x[…, j, …] table[k, j]` along axis `along`.
fn transformed(g: &mut Graph, x: Value, table: Value, along: usize) -> Result<Value> {
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

/// [`transform`] of as many points as the product of `factors`.
fn fast(g: &mut Graph, x: Value, along: usize, factors: &[i64], (inverse, onesided): (bool, bool)) -> Result<Value> {
    let dtype = g.dtype(x);
    let points = factors.iter().product::<i64>();
    let x = g.cast(fourier::working_type(dtype, inverse), x)?;
    let (real, imaginary) = parts(g, x)?;
    let imaginary = match imaginary {
        Some(imaginary) => imaginary,
        None => {
            let (zero, shape) = (g.number(g.dtype(real), 0.0)?, g.shape(real).to_vec());
            g.broadcast_to(zero, &shape)?
        }
    };
    let taken = Dim::from(if inverse && onesided { points / 2 + 1 } else { points });
    let mut x = [fitted(g, real, along, &taken)?, fitted(g, imaginary, along, &taken)?];
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

/// Real and imaginary parts side by side along a new last axis; without the latter, where it is known that there are none.
fn joined(g: &mut Graph, [re, im]: [Value; 2], dtype: DType, is_real: bool) -> Result<Value> {
    let last = g.rank(re);
    let re = g.unsqueeze(re, &[last])?;
    let y = match is_real {
        true => re,
        false => {
            let im = g.unsqueeze(im, &[last])?;
            g.concat(&[re, im], last)?
        }
    };
    g.cast(dtype, y)
}

/// The first `size` elements along axis `k`, with zeros behind them where there are less.
fn fitted(g: &mut Graph, x: Value, k: usize, size: &Dim) -> Result<Value> {
    let keep = g.facts.simplify(&smaller(g, &g.shape(x)[k].clone(), size));
    let x = g.slice(x, k, Dim::zero(), keep.clone(), 1)?;
    let (lo, mut hi) = (vec![Dim::zero(); g.rank(x)], vec![Dim::zero(); g.rank(x)]);
    hi[k] = g.facts.simplify(&(size - keep));
    g.pad(x, &lo, &hi, Scalar::from_i64(g.dtype(x), 0))
}

/// Transforms of windows of the signal `[N, T, 1 or 2]`, every `frame_step` (input 1) elements, weighted by input 2; input
/// 3 is their length.
///
/// `STFT([[[1], [2], [3], [4]]], i64:2, [1, 1]; onesided=0) = [[[[3, 0], [-1, 0]], [[7, 0], [-1, 0]]]]`
fn stft(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    // Exporters leave out the last axis of a real signal.
    let x = match (n.input(0)?, g.rank(n.input(0)?)) {
        (x, 3) => x,
        (x, 2) => g.unsqueeze(x, &[2])?,
        _ => return Err(Error::invalid("a signal has 3 axes, or 2 where it is real")),
    };
    let onesided = n.flag("onesided", true)?;
    let dtype = g.dtype(x);
    let size = g.shape(x)[1].clone();
    let step = n.input(1)?;
    let step = g.reshape(step, Vec::new())?;
    let step = g.cast(DType::I64, step)?;
    let window = n.optional(2);
    let bins = n.declared_dim(g, 0, 2);
    let (length, most) = match (n.optional(3), window) {
        (Some(length), _) => {
            let known = g.contents(length).and_then(|dims| dims.first()).cloned();
            let length = g.reshape(length, Vec::new())?;
            let length = g.cast(DType::I64, length)?;
            let most = known.or_else(|| window.map(|window| g.shape(window)[0].clone()));
            // Half a spectrum leaves open whether the length is even.
            let most = most.or_else(|| bins.map(|bins| if onesided { bins * 2 - 1 } else { bins }));
            (length, most.unwrap_or_else(|| size.clone()))
        }
        (None, Some(window)) => {
            let most = g.shape(window)[0].clone();
            (g.dim(DType::I64, most.clone())?, most)
        }
        (None, None) => (g.dim(DType::I64, size.clone())?, size.clone()),
    };
    let one = int(g, 1)?;
    let all = g.dim(DType::I64, size.clone())?;
    let rest = g.sub(all, length)?;
    let stride = g.max(step, one)?;
    let frames = g.div(rest, stride)?;
    let frames = g.add(frames, one)?;
    let frames = n.size(g, frames, 1, Some(size.clone()))?;
    let rows = match onesided {
        false => length,
        true => {
            let two = int(g, 2)?;
            let half = g.div(length, two)?;
            g.add(half, one)?
        }
    };
    let rows = n.size(g, rows, 2, Some(most.clone()))?;
    // [frames, most] places in the signal.
    let frame = g.index(DType::I64, vec![frames, Dim::one()], axis(0).into())?;
    let start = g.mul(frame, stride)?;
    let inner = g.index(DType::I64, vec![most.clone()], axis(0).into())?;
    let at = g.add(start, inner)?;
    let (zero, last) = (int(g, 0)?, g.dim(DType::I64, &size - 1)?);
    let at = g.max(at, zero)?;
    let at = g.min(at, last)?;
    let counts = g.compare(CompareOp::Lt, inner, length)?;
    let (one, none) = (double(g, 1.0)?, double(g, 0.0)?);
    let mut weight = g.select(counts, one, none)?;
    if let Some(window) = window {
        let window = g.cast(DType::F64, window)?;
        weight = g.mul(weight, window)?;
    }
    let table = angles(g, &rows, &most, length)?;
    let (cos, sin) = (g.cos(table)?, g.sin(table)?);
    let (cos, sin) = (g.mul(cos, weight)?, g.mul(sin, weight)?);
    let wide = g.cast(DType::F64, x)?;
    let (real, imaginary) = parts(g, wide)?;
    let framed = |g: &mut Graph, x: Value| g.gather(x, at, 1);
    let real = framed(g, real)?;
    let minus = g.neg(sin)?;
    let (mut re, mut im) = (transformed(g, real, cos, 2)?, transformed(g, real, minus, 2)?);
    if let Some(imaginary) = imaginary {
        let imaginary = framed(g, imaginary)?;
        let (a, b) = (transformed(g, imaginary, sin, 2)?, transformed(g, imaginary, cos, 2)?);
        (re, im) = (g.add(re, a)?, g.add(im, b)?);
    }
    let (re, im) = (g.unsqueeze(re, &[3])?, g.unsqueeze(im, &[3])?);
    let y = g.concat(&[re, im], 3)?;
    g.cast(dtype, y)
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
