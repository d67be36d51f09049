//! The discrete Fourier transform.
//!
//! Transforms of constant length are contractions with constant tables of sines and cosines ([`tables`]). Very short
//! and very long ones are fast transforms ([`fourier`]). Other transforms are contractions with tables that each call
//! computes in double precision.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        node::{OnnxNode, axes::normal_axis},
        ops::{
            shared::arithmetic::int,
            signal::{
                fourier,
                spectrum::{angles, count_parts, double, filled, fitted, joined, parts, transformed},
                tables::{self, LONG, TableSize, folded, folds, turns},
            },
        },
    },
    scalar::CompareOp,
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    DFT 17 dft,
}

/// The discrete Fourier transform along an axis, or with `inverse=1` its inverse, of length `dft_length` (input 1). The
/// last axis holds real and imaginary parts: size 1 or 2. With `onesided=1`, the transform returns the first half of
/// the spectrum. The inverse then takes this half. The axis is input 2, before opset 20 the attribute `axis`.
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
        // The transform changes the size of its axis and of the last axis only.
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
    let inverse = n.flag("inverse", false)?;
    let onesided = n.flag("onesided", false)?;
    if along + 1 == rank {
        return Err(Error::invalid("the transform can't run along the axis of real and imaginary parts"));
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
    if let Some(points) = points.as_ref().and_then(Dim::as_i64)
        && !inverse
        && dtype != DType::F64
    {
        let bins = if onesided { points / 2 + 1 } else { points };
        let is_fitting = points >= SHORT && (points < LONG || steps.is_none());
        if is_fitting && !(TableSize { count: points, parts: count_parts(g, x)?, bins }).is_too_large() {
            return contracted(g, x, along, points, bins);
        }
    }

    if let Some(factors) = steps {
        return fast(g, x, along, &factors, inverse, onesided);
    }

    let wide = g.cast(DType::F64, x)?;
    let (real, imaginary) = parts(g, wide)?;
    let half = |points: &Dim| points.floor_div(2) + 1;

    // The number of elements of the input that count, and the number of elements of the output.
    let two = int(g, 2)?;
    let one = int(g, 1)?;
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
    let cos = g.cos(table)?;
    let sin = g.sin(table)?;

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
        // Half a spectrum holds each pair of conjugate values once. The first and the middle value are not in a pair.
        let first = int(g, 0)?;
        let is_first = g.compare(CompareOp::Eq, place, first)?;
        let twice = g.add(place, place)?;
        let is_middle = g.compare(CompareOp::Eq, twice, length)?;
        let single = g.or(is_first, is_middle)?;
        let both = g.add(weight, weight)?;
        weight = g.select(single, weight, both)?;
    }

    let cos = g.mul(cos, weight)?;
    let sin = g.mul(sin, weight)?;
    let minus = g.neg(sin)?;

    // `e^(-iφ)` forwards, `e^(iφ)` backwards.
    let (forth, back) = if inverse { (sin, minus) } else { (minus, sin) };

    let mut re = transformed(g, real, cos, along)?;
    let mut im = transformed(g, real, forth, along)?;
    if let Some(imaginary) = imaginary {
        let a = transformed(g, imaginary, back, along)?;
        let b = transformed(g, imaginary, cos, along)?;
        (re, im) = (g.add(re, a)?, g.add(im, b)?);
    }

    joined(g, [re, im], dtype, inverse && onesided)
}

/// Shorter transforms run in double precision. This is cheap, and exact zeros show no rounding errors.
const SHORT: i64 = 64;

/// The forward [`transform`] of `points` points, as a contraction of the elements that the signal has.
fn contracted(g: &mut Graph, x: Value, along: usize, points: i64, bins: i64) -> Result<Value> {
    let dtype = g.dtype(x);
    let last = g.rank(x) - 1;

    let x = g.cast(DType::F32, x)?;
    let count = g.shape(x)[along].as_i64().map_or(points, |have| have.min(points));
    let x = fitted(g, x, along, &count.into())?;
    let parts = count_parts(g, x)?;
    if parts == 1 && folds(points, count) {
        let x = g.squeeze(x, &[last])?;
        let y = folded(g, x, along, points, bins)?;
        return g.cast(dtype, y);
    }

    let table = turns(g, points, TableSize { count, parts, bins })?;
    let mut labels: Vec<u8> = (0..=last as u8).map(|k| b'A' + k).collect();
    (labels[along], labels[last]) = (b'l', b'c');
    let mut out = labels.clone();
    (out[along], out[last]) = (b'k', b'p');
    let y = tables::contracted(g, x, &labels, table, &out)?;

    g.cast(dtype, y)
}

/// [`transform`] of as many points as the product of `factors`.
fn fast(
    g: &mut Graph,
    x: Value,
    along: usize,
    factors: &[i64],
    inverse: bool,
    onesided: bool,
) -> Result<Value> {
    let dtype = g.dtype(x);
    let points = factors.iter().product::<i64>();
    let x = g.cast(fourier::working_type(dtype, inverse), x)?;
    let taken = Dim::from(if inverse && onesided { points / 2 + 1 } else { points });

    let mut x = filled(g, x, along, &taken)?;
    if inverse && onesided {
        // The second half is the complex conjugate of the first, in reverse order.
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
        (re, im) =
            (g.slice(re, along, Dim::zero(), half.clone(), 1)?, g.slice(im, along, Dim::zero(), half, 1)?);
    }

    joined(g, [re, im], dtype, inverse && onesided)
}
