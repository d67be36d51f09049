//! Contraction: both operands are laid out with the summed labels last, then every element is one dot product.

use super::{
    index::{each, strides},
    node::Writer,
};
use crate::{error::Result, graph::Label, scalar::Scalar, tensor::Tensor};
use std::collections::BTreeMap;
use symshape_runtime::DType;

pub(super) fn contract(
    lhs: &[Label],
    rhs: &[Label],
    out: &[Label],
    dtype: DType,
    operands: &[Tensor],
    shape: &[usize],
) -> Result<Tensor> {
    let mut sizes: BTreeMap<Label, usize> = BTreeMap::new();
    sizes.extend(lhs.iter().copied().zip(operands[0].shape().iter().copied()));
    sizes.extend(rhs.iter().copied().zip(operands[1].shape().iter().copied()));
    let summed: Vec<Label> = lhs.iter().copied().filter(|label| !out.contains(label)).collect();
    let count: usize = summed.iter().map(|label| sizes[label]).product();
    let a = Rows::new(&operands[0], lhs, out, &summed, &sizes);
    let b = Rows::new(&operands[1], rhs, out, &summed, &sizes);
    let mut result = Writer::new(dtype, shape);
    if dtype.is_float() {
        let (x, y) = (a.elems(&operands[0], Scalar::as_f64)?, b.elems(&operands[1], Scalar::as_f64)?);
        each(shape, |at| {
            let (x, y) = (&x[a.row(at) * count..][..count], &y[b.row(at) * count..][..count]);
            result.push(Scalar::from_f64(dtype, dot(x, y)));
            Ok(())
        })?;
    } else {
        let (x, y) = (a.elems(&operands[0], Scalar::as_i64)?, b.elems(&operands[1], Scalar::as_i64)?);
        each(shape, |at| {
            let (x, y) = (&x[a.row(at) * count..][..count], &y[b.row(at) * count..][..count]);
            let sum = x.iter().zip(y).fold(0i64, |sum, (x, y)| sum.wrapping_add(x.wrapping_mul(*y)));
            result.push(Scalar::from_i64(dtype, sum));
            Ok(())
        })?;
    }
    result.finish(shape)
}

/// Four sums side by side: one alone would wait for itself.
fn dot(x: &[f64], y: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let (xs, ys) = (x.chunks_exact(4), y.chunks_exact(4));
    let tail: f64 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in xs.zip(ys) {
        for lane in 0..4 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f64>() + tail
}

/// An operand seen as rows of the summed labels, one for each index of the labels that it shares with the result.
struct Rows {
    /// Elements from one index to the next in the operand, for each axis of its layout: kept labels, then summed.
    steps: Vec<usize>,
    shape: Vec<usize>,
    /// Rows from one index to the next along each axis of the result.
    row_steps: Vec<usize>,
}

impl Rows {
    fn new(
        x: &Tensor,
        labels: &[Label],
        out: &[Label],
        summed: &[Label],
        sizes: &BTreeMap<Label, usize>,
    ) -> Rows {
        let kept: Vec<Label> = out.iter().copied().filter(|label| labels.contains(label)).collect();
        let from = strides(x.shape());
        let axis_of = |label: &Label| labels.iter().position(|other| other == label).unwrap_or(0);
        let order = || kept.iter().chain(summed);
        let kept_strides = strides(&kept.iter().map(|label| sizes[label]).collect::<Vec<_>>());
        let row_step =
            |label: &Label| kept.iter().position(|other| other == label).map_or(0, |k| kept_strides[k]);
        Rows {
            steps: order().map(|label| from[axis_of(label)]).collect(),
            shape: order().map(|label| sizes[label]).collect(),
            row_steps: out.iter().map(row_step).collect(),
        }
    }

    fn elems<T>(&self, x: &Tensor, read: fn(Scalar) -> T) -> Result<Vec<T>> {
        let mut elems = Vec::with_capacity(x.elems());
        each(&self.shape, |at| {
            elems.push(read(x.get(at.iter().zip(&self.steps).map(|(idx, step)| idx * step).sum())));
            Ok(())
        })?;
        Ok(elems)
    }

    fn row(&self, at: &[usize]) -> usize {
        at.iter().zip(&self.row_steps).map(|(idx, step)| idx * step).sum()
    }
}
