//! Real and imaginary parts of signals and spectra.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        node::axes::smaller,
        ops::{shared::arithmetic::int, signal::fourier},
    },
    scalar::{BinaryOp, Scalar},
};
use symshape::Dim;
use symshape_runtime::DType;

pub(crate) fn double(g: &mut Graph, value: f64) -> Result<Value> {
    g.number(DType::F64, value)
}

/// The angles `2πkj/n` for `k` below `rows` and `j` below `columns`. `kj` is reduced modulo `n`, so angles are exact.
pub(crate) fn angles(g: &mut Graph, rows: &Dim, columns: &Dim, n: Value) -> Result<Value> {
    let product = Dim::from(axis(0)) * Dim::from(axis(1));
    let product = g.index(DType::I64, vec![rows.clone(), columns.clone()], product)?;
    let one = int(g, 1)?;
    let n = g.max(n, one)?;
    let turn = g.binary(BinaryOp::Mod, product, n)?;
    let turn = g.cast(DType::F64, turn)?;
    let n = g.cast(DType::F64, n)?;
    let turn = g.div(turn, n)?;
    let circle = double(g, std::f64::consts::TAU)?;
    g.mul(turn, circle)
}

/// The size of the last axis of `x`: 1 for real signals, 2 for complex signals.
pub(crate) fn count_parts(g: &Graph, x: Value) -> Result<i64> {
    let last = g.shape(x).last().ok_or_else(|| Error::invalid("the signal must have at least 1 axis"))?;
    let count = last.as_i64().filter(|count| [1, 2].contains(count));
    count.ok_or_else(|| {
        Error::invalid("the last axis of the signal must have 1 element (real) or 2 elements (complex)")
    })
}

/// The real and the imaginary part of `x`, whose last axis holds one or both.
pub(crate) fn parts(g: &mut Graph, x: Value) -> Result<(Value, Option<Value>)> {
    let count = count_parts(g, x)?;
    let last = g.rank(x) - 1;
    let mut part = |k: i64| {
        let part = g.slice(x, last, k.into(), Dim::one(), 1)?;
        g.squeeze(part, &[last])
    };
    Ok((part(0)?, if count == 2 { Some(part(1)?) } else { None }))
}

/// Both parts of `x`, with `taken` elements along an axis. The imaginary part of a real signal is zero.
pub(crate) fn filled(g: &mut Graph, x: Value, along: usize, taken: &Dim) -> Result<fourier::Pair> {
    let (real, imaginary) = parts(g, x)?;
    let imaginary = match imaginary {
        Some(imaginary) => imaginary,
        None => {
            let zero = g.number(g.dtype(real), 0.0)?;
            let shape = g.shape(real).to_vec();
            g.broadcast_to(zero, &shape)?
        }
    };
    Ok([fitted(g, real, along, taken)?, fitted(g, imaginary, along, taken)?])
}

/// `Σ x[…, j, …] table[k, j]` along axis `along`.
pub(crate) fn transformed(g: &mut Graph, x: Value, table: Value, along: usize) -> Result<Value> {
    let labels: Vec<u8> = (0..g.rank(x) as u8).map(|k| b'A' + k).collect();
    let mut out = labels.clone();
    out[along] = b'z';
    g.contract(x, &labels, table, &[b'z', labels[along]], &out)
}

/// Real and imaginary parts along a new last axis, or the real part alone if `is_real`.
///
/// In memory, all real parts come before all imaginary parts. Consumers of both then read contiguous memory.
pub(crate) fn joined(g: &mut Graph, [re, im]: [Value; 2], dtype: DType, is_real: bool) -> Result<Value> {
    let last = g.rank(re);
    let [re, im] = [g.cast(dtype, re)?, g.cast(dtype, im)?];
    if is_real {
        return g.unsqueeze(re, &[last]);
    }

    let before = last.saturating_sub(1);
    let re = g.unsqueeze(re, &[before])?;
    let im = g.unsqueeze(im, &[before])?;
    let y = g.concat(&[re, im], before)?;
    let mut order: Vec<usize> = (0..=last).collect();
    order.swap(before, last);

    g.transpose(y, &order)
}

/// The first `size` elements along axis `k`, padded with zeros.
pub(crate) fn fitted(g: &mut Graph, x: Value, k: usize, size: &Dim) -> Result<Value> {
    let keep = g.facts.simplify(&smaller(g, &g.shape(x)[k].clone(), size));
    let x = g.slice(x, k, Dim::zero(), keep.clone(), 1)?;
    let lo = vec![Dim::zero(); g.rank(x)];
    let mut hi = vec![Dim::zero(); g.rank(x)];
    hi[k] = g.facts.simplify(&(size - keep));
    g.pad(x, &lo, &hi, Scalar::from_i64(g.dtype(x), 0))
}
