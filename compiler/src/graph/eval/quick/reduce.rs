//! Reductions of `f32`.

use super::{functions, map::Reader, source::Source, threads::run_jobs, wide};
use crate::{
    error::Result,
    graph::eval::{
        index::{each, strides},
        writer::from_floats,
    },
    scalar::ReduceOp,
    tensor::Tensor,
};

/// Elements that are read at once, unless the part of a result needs more.
const BLOCK: usize = 4096;

/// Multiplications that take as long as combining one element.
const ELEMENT_WORK: usize = 32;

/// The reduction of an `f32` value along `axes`. Sums and products are in double precision.
pub(super) fn reduce(op: ReduceOp, axes: &[usize], x: &Source<'_>, shape: &[usize]) -> Result<Tensor> {
    let of = x.shape();
    // Parts of the value with an index of the axes before the first that is reduced. They are reduced alike.
    let lead = axes.first().copied().unwrap_or(of.len());
    let part = Part::of(op, &of[lead..], &axes.iter().map(|axis| axis - lead).collect::<Vec<_>>());
    let mut results = vec![op.neutral(x.dtype()).as_f64() as f32; shape.iter().product()];
    if part.size == 0 || results.is_empty() {
        return from_floats(shape, results);
    }

    let reader = Reader::of(x);
    let n_parts = (BLOCK / part.size).max(1);
    let work = ELEMENT_WORK * of.iter().product::<usize>();
    let jobs = results.chunks_mut(n_parts * part.results).enumerate().collect();
    run_jobs(work, jobs, |(idx, results)| {
        let len = results.len() / part.results * part.size;
        let elems = reader.column(idx * n_parts * part.size, len)?.floats(len);
        for (elems, results) in elems.chunks_exact(part.size).zip(results.chunks_exact_mut(part.results)) {
            part.reduce(elems, results)?;
        }
        Ok(())
    })?;
    from_floats(shape, results)
}

/// How a part is reduced.
struct Part {
    op: ReduceOp,
    size: usize,
    results: usize,
    /// The axes before the last group of axes that are all reduced or all kept.
    outer: Vec<usize>,
    /// The elements of the result from one index to the next along each outer axis.
    steps: Vec<usize>,
    /// The elements of the last group.
    row: usize,
    is_row_reduced: bool,
}

impl Part {
    fn of(op: ReduceOp, shape: &[usize], axes: &[usize]) -> Part {
        let is_reduced = |axis: usize| axes.contains(&axis);
        let is_row_reduced = !shape.is_empty() && is_reduced(shape.len() - 1);
        let n_outer = (0..shape.len()).rev().find(|axis| is_reduced(*axis) != is_row_reduced);
        let n_outer = n_outer.map_or(0, |axis| axis + 1);
        let kept: Vec<usize> = (0..shape.len()).filter(|axis| !is_reduced(*axis)).collect();
        let kept_shape: Vec<usize> = kept.iter().map(|axis| shape[*axis]).collect();
        let kept_steps = strides(&kept_shape);
        let step = |axis: usize| kept.iter().position(|other| *other == axis).map_or(0, |k| kept_steps[k]);
        Part {
            op,
            size: shape.iter().product(),
            results: kept_shape.iter().product(),
            outer: shape[..n_outer].to_vec(),
            steps: (0..n_outer).map(step).collect(),
            row: shape[n_outer..].iter().product(),
            is_row_reduced,
        }
    }

    fn reduce(&self, elems: &[f32], results: &mut [f32]) -> Result<()> {
        match self.op {
            ReduceOp::Sum => self.combine(elems, results, 0.0_f64, |x, y| x + y),
            ReduceOp::Prod => self.combine(elems, results, 1.0_f64, |x, y| x * y),
            ReduceOp::Min => {
                self.combine(elems, results, f64::INFINITY, |x, y| functions::min(x as f32, y as f32).into())
            }
            ReduceOp::Max => self
                .combine(elems, results, f64::NEG_INFINITY, |x, y| functions::max(x as f32, y as f32).into()),
        }
    }

    fn combine(
        &self,
        elems: &[f32],
        results: &mut [f32],
        neutral: f64,
        combine: impl Fn(f64, f64) -> f64,
    ) -> Result<()> {
        let mut sums = vec![neutral; self.results];
        let mut rows = elems.chunks_exact(self.row);
        each(&self.outer, |at| {
            let first: usize = at.iter().zip(&self.steps).map(|(idx, step)| idx * step).sum();
            let Some(row) = rows.next() else { return Ok(()) };
            if self.is_row_reduced {
                sums[first] = row.iter().fold(sums[first], |sum, x| combine(sum, f64::from(*x)));
            } else {
                wide::combine(&mut sums[first..], row, &combine);
            }
            Ok(())
        })?;
        results.iter_mut().zip(sums).for_each(|(result, sum)| *result = sum as f32);
        Ok(())
    }
}
