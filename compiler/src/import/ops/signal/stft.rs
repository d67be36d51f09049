//! Transforms of windows of a signal.
//!
//! Windows of constant length and step are views of the signal, contracted with a constant table of sines and cosines.
//! The table includes the weights, unless the windows are folded first. Long windows use the fast transform
//! ([`fourier`]). Data-dependent lengths use tables that each call computes.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        node::OnnxNode,
        ops::{
            shared::arithmetic::int,
            signal::{
                fourier,
                spectrum::{angles, count_parts, double, filled, joined, parts, transformed},
                tables::{LONG, TableSize, contracted, folded, folds, turns},
            },
        },
    },
    scalar::CompareOp,
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    STFT 17 stft,
}

/// The transforms of windows of the signal, `[N, T, 1 or 2]`. A window starts every `frame_step` elements (input 1) and
/// is weighted by `window` (input 2). `frame_length` (input 3) is its length, by default the size of `window`. With
/// `onesided=1`, the default, the output holds the first half of each spectrum.
///
/// `STFT([[[1], [2], [3], [4]]], i64:2, [1, 1]; onesided=0) = [[[[3, 0], [-1, 0]], [[7, 0], [-1, 0]]]]`
fn stft(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    // Exporters omit the last axis of a real signal.
    let x = match (n.input(0)?, g.rank(n.input(0)?)) {
        (x, 3) => x,
        (x, 2) => g.unsqueeze(x, &[2])?,
        _ => return Err(Error::invalid("the signal must have 3 axes, or 2 if it is real")),
    };

    if n.optional(2).is_some_and(|weights| g.rank(weights) != 1) {
        return Err(Error::invalid("the window must have 1 axis"));
    }

    let onesided = n.flag("onesided", true)?;
    match Windows::known(g, n, x, onesided)? {
        Some(windows) => windows.transformed(g, x),
        None => general(g, n, x, onesided),
    }
}

/// Windows of constant length and step.
struct Windows {
    length: i64,
    step: i64,
    /// Number of elements of a window that have weights; the others count as zero.
    taken: i64,
    /// Number of frequencies in the output.
    bins: i64,
    /// `[taken]`; without them all weights are 1.
    weights: Option<Value>,
    /// 1 for a real signal, 2 for a complex one.
    parts: i64,
    /// The factors of the fast transform, if it is used.
    factors: Option<Vec<i64>>,
}

impl Windows {
    fn known(g: &mut Graph, n: &OnnxNode, x: Value, onesided: bool) -> Result<Option<Windows>> {
        let number = |value: Value| g.contents(value).and_then(|dims| dims.first()?.as_i64());
        let weights = n.optional(2);

        let have = weights.map(|weights| g.shape(weights).first().and_then(Dim::as_i64));
        let length = match (n.optional(3), have) {
            (Some(length), _) => number(length),
            (None, Some(have)) => have,
            (None, None) => g.shape(x)[1].as_i64(),
        };

        let (Some(length), Some(step)) = (length, number(n.input(1)?)) else { return Ok(None) };
        let Some(have) = have.unwrap_or(Some(length)) else { return Ok(None) };
        if length < 1 || step < 1 {
            return Err(Error::invalid(format!(
                "frame_length {length} and frame_step {step} must be positive"
            )));
        }

        let taken = have.min(length);
        let bins = if onesided { length / 2 + 1 } else { length };
        let parts = count_parts(g, x)?;
        let is_large = TableSize { count: taken, parts, bins }.is_too_large();
        let factors = (length >= LONG || is_large).then(|| fourier::factors(length)).flatten();
        if factors.is_none() && is_large {
            return Ok(None);
        }

        let weights = match weights {
            Some(weights) => Some(g.slice(weights, 0, Dim::zero(), taken.into(), 1)?),
            None => None,
        };

        Ok(Some(Windows { length, step, taken, bins, weights, parts, factors }))
    }

    fn transformed(&self, g: &mut Graph, x: Value) -> Result<Value> {
        let dtype = g.dtype(x);
        let x = g.cast(if dtype == DType::F64 { DType::F64 } else { DType::F32 }, x)?;
        let seen = g.window(x, &[1], &[self.length], &[self.step], &[1])?;
        let seen = g.slice(seen, 3, Dim::zero(), self.taken.into(), 1)?;
        let y = match &self.factors {
            Some(factors) => self.fast(g, seen, factors)?,
            None => self.contracted(g, seen)?,
        };
        g.cast(dtype, y)
    }

    /// Frames `[N, frames, 1 or 2, taken]`, contracted with the weighted table.
    fn contracted(&self, g: &mut Graph, seen: Value) -> Result<Value> {
        if self.parts == 1 && folds(self.length, self.taken) {
            let seen = g.squeeze(seen, &[2])?;
            let seen = self.weighted(g, seen)?;
            return folded(g, seen, 2, self.length, self.bins);
        }

        let size = TableSize { count: self.taken, parts: self.parts, bins: self.bins };
        let mut table = turns(g, self.length, size)?;
        if let Some(weights) = self.weights {
            let weights = g.cast(DType::F64, weights)?;
            let weights = g.unsqueeze(weights, &[1, 2, 3])?;
            table = g.mul(table, weights)?;
        }

        contracted(g, seen, b"nfcl", table, b"nfkp")
    }

    /// Frames times the weights, which belong to the last axis.
    fn weighted(&self, g: &mut Graph, seen: Value) -> Result<Value> {
        let Some(weights) = self.weights else { return Ok(seen) };
        let weights = g.cast(g.dtype(seen), weights)?;
        g.mul(seen, weights)
    }

    /// Frames `[N, frames, 1 or 2, taken]`, weighted and transformed by the fast transform.
    fn fast(&self, g: &mut Graph, seen: Value, factors: &[i64]) -> Result<Value> {
        let working = g.dtype(seen);
        let seen = self.weighted(g, seen)?;
        let seen = g.transpose(seen, &[0, 1, 3, 2])?;
        let x = filled(g, seen, 2, &self.length.into())?;
        let y = fourier::transformed(g, x, 2, factors, false)?;
        let bins = Dim::from(self.bins);
        let re = g.slice(y[0], 2, Dim::zero(), bins.clone(), 1)?;
        let im = g.slice(y[1], 2, Dim::zero(), bins, 1)?;
        joined(g, [re, im], working, false)
    }
}

/// [`stft`] with data-dependent length or step.
fn general(g: &mut Graph, n: &OnnxNode, x: Value, onesided: bool) -> Result<Value> {
    let dtype = g.dtype(x);
    let size = g.shape(x)[1].clone();

    let step = n.input(1)?;
    let step = g.reshape(step, Vec::new())?;
    let step = g.cast(DType::I64, step)?;
    let window = n.optional(2);
    let bins = n.declared_dim(g, 0, 2);

    let (length, max_length) = match (n.optional(3), window) {
        (Some(length), _) => {
            let known = g.contents(length).and_then(|dims| dims.first()).cloned();
            let length = g.reshape(length, Vec::new())?;
            let length = g.cast(DType::I64, length)?;
            let max_length = known.or_else(|| window.map(|window| g.shape(window)[0].clone()));
            // Half a spectrum has the same size for a length and the next odd length.
            let max_length =
                max_length.or_else(|| bins.map(|bins| if onesided { bins * 2 - 1 } else { bins }));
            (length, max_length.unwrap_or_else(|| size.clone()))
        }
        (None, Some(window)) => {
            let max_length = g.shape(window)[0].clone();
            (g.dim(DType::I64, max_length.clone())?, max_length)
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

    let rows = if onesided {
        let two = int(g, 2)?;
        let half = g.div(length, two)?;
        g.add(half, one)?
    } else {
        length
    };

    let rows = n.size(g, rows, 2, Some(max_length.clone()))?;

    // Positions in the signal, `[frames, max_length]`.
    let frame = g.index(DType::I64, vec![frames, Dim::one()], axis(0).into())?;
    let start = g.mul(frame, stride)?;

    let inner = g.index(DType::I64, vec![max_length.clone()], axis(0).into())?;
    let at = g.add(start, inner)?;

    let zero = int(g, 0)?;
    let last = g.dim(DType::I64, &size - 1)?;
    let at = g.max(at, zero)?;
    let at = g.min(at, last)?;
    let counts = g.compare(CompareOp::Lt, inner, length)?;

    let one = double(g, 1.0)?;
    let none = double(g, 0.0)?;

    let mut weight = g.select(counts, one, none)?;
    if let Some(window) = window {
        let window = g.cast(DType::F64, window)?;
        weight = g.mul(weight, window)?;
    }

    let table = angles(g, &rows, &max_length, length)?;
    let cos = g.cos(table)?;
    let sin = g.sin(table)?;
    let cos = g.mul(cos, weight)?;
    let sin = g.mul(sin, weight)?;

    let wide = g.cast(DType::F64, x)?;
    let (real, imaginary) = parts(g, wide)?;
    let framed = |g: &mut Graph, x: Value| g.gather(x, at, 1);
    let real = framed(g, real)?;
    let minus = g.neg(sin)?;

    let mut re = transformed(g, real, cos, 2)?;
    let mut im = transformed(g, real, minus, 2)?;
    if let Some(imaginary) = imaginary {
        let imaginary = framed(g, imaginary)?;
        let a = transformed(g, imaginary, sin, 2)?;
        let b = transformed(g, imaginary, cos, 2)?;
        (re, im) = (g.add(re, a)?, g.add(im, b)?);
    }

    joined(g, [re, im], dtype, false)
}
