//! Contractions of `f32` as matrix multiplications.

use super::offsets::{Offsets, joined};
use crate::{
    error::{Error, Result},
    graph::{Label, eval::writer::from_floats},
    scalar::Precision,
    tensor::Tensor,
};
use ndarray::{ArrayView2, ArrayViewMut2, linalg::general_mat_mul};
use std::{
    collections::BTreeMap,
    sync::Mutex,
    thread::{self, available_parallelism},
};

/// Multiplications below this run on one thread: to start others would take as long.
const MIN_PARALLEL_WORK: usize = 1 << 22;

/// Elements of a block of rows, which stays in the second-level cache.
const BLOCK_ELEMS: usize = 1 << 17;

/// An operand: a tensor, and the places of its elements there if it is a view of the tensor.
pub(crate) struct Operand<'o> {
    pub(crate) tensor: &'o Tensor,
    pub(crate) shape: &'o [usize],
    pub(crate) offsets: Option<&'o Offsets>,
}

/// The sums of products at a precision. `None` for elements that are not finite, whose products the definition decides.
pub(crate) fn contraction(
    [lhs, rhs, out]: [&[Label]; 3],
    precision: Precision,
    operands: [Operand<'_>; 2],
) -> Result<Option<Tensor>> {
    let labelled = lhs.iter().zip(operands[0].shape).chain(rhs.iter().zip(operands[1].shape));
    let sizes: BTreeMap<Label, usize> = labelled.map(|(label, size)| (*label, *size)).collect();
    let pick = |from: &[Label], keep: &dyn Fn(&Label) -> bool| -> Vec<Label> {
        from.iter().copied().filter(|label| keep(label)).collect()
    };
    let batch = pick(out, &|label| lhs.contains(label) && rhs.contains(label));
    let rows = pick(out, &|label| lhs.contains(label) && !rhs.contains(label));
    let columns = pick(out, &|label| !lhs.contains(label));
    let depth = pick(lhs, &|label| !out.contains(label));

    let a = Matrices::of(&operands[0], lhs, [&batch, &rows, &depth]);
    let b = Matrices::of(&operands[1], rhs, [&batch, &depth, &columns]);
    if !a.elems.iter().chain(&b.elems).all(|x| x.is_finite()) {
        return Ok(None);
    }
    let products = a.times(&b, precision)?;

    let shape: Vec<usize> = out.iter().map(|label| sizes[label]).collect();
    let order = [&batch[..], &rows, &columns].concat();
    let ordered: Vec<usize> = order.iter().map(|label| sizes[label]).collect();
    let products = from_floats(&ordered, &products)?;
    if order == out {
        return Ok(Some(products));
    }
    let places = Offsets::dense(&ordered);
    let axis = |label: &Label| order.iter().position(|other| other == label).unwrap_or(0);
    places.permuted(&out.iter().map(axis).collect::<Vec<_>>()).gather(&products, &shape).map(Some)
}

/// Matrices of equal size, one for each index of the batch. An element is at the sum of three offsets.
struct Matrices {
    elems: Vec<f32>,
    batch: Vec<usize>,
    rows: Vec<usize>,
    columns: Vec<usize>,
}

/// The parts of the elements of a dense matrix that are multiplied.
struct Parts {
    /// The elements, or the sum of their parts.
    whole: Vec<f32>,
    /// The low parts, at `bf16x3`.
    low: Option<Vec<f32>>,
}

impl Matrices {
    /// The elements of an operand with the labels of the batch, of rows and of columns.
    fn of(operand: &Operand<'_>, labels: &[Label], groups: [&[Label]; 3]) -> Matrices {
        let dense;
        let offsets = match operand.offsets {
            Some(offsets) => offsets,
            None => {
                dense = Offsets::dense(operand.shape);
                &dense
            }
        };
        let of_group = |group: &[Label]| {
            let axes = group.iter().filter_map(|label| labels.iter().position(|other| other == label));
            axes.fold(vec![0], |all, axis| joined(&all, offsets.axis(axis)))
        };
        let [batch, rows, columns] = groups.map(of_group);
        let base = offsets.base(labels.len());
        let batch = batch.into_iter().map(|offset| offset + base).collect();
        Matrices { elems: operand.tensor.to_f32s(), batch, rows, columns }
    }

    /// The dense elements of some rows of a matrix.
    fn dense(&self, batch: usize, rows: &[usize]) -> Vec<f32> {
        let mut dense = Vec::with_capacity(rows.len() * self.columns.len());
        let is_run = self.columns.iter().enumerate().all(|(idx, offset)| *offset == idx);
        for row in rows {
            let first = self.batch[batch] + row;
            if is_run {
                dense.extend_from_slice(&self.elems[first..][..self.columns.len()]);
            } else {
                dense.extend(self.columns.iter().map(|offset| self.elems[first + offset]));
            }
        }
        dense
    }

    /// The row-major products, one for each index of the batch.
    fn times(&self, other: &Matrices, precision: Precision) -> Result<Vec<f32>> {
        let [n_rows, n_columns, depth] = [self.rows.len(), other.columns.len(), self.columns.len()];
        let mut products = vec![0.0; self.batch.len() * n_rows * n_columns];
        if products.is_empty() || depth == 0 {
            return Ok(products);
        }
        let is_small = products.len() * depth < MIN_PARALLEL_WORK;
        let n_threads = if is_small { 1 } else { available_parallelism().map_or(1, |cores| cores.get()) };
        let block = (BLOCK_ELEMS / depth).clamp(16, n_rows.div_ceil(n_threads).max(16));
        for (batch, sums) in products.chunks_mut(n_rows * n_columns).enumerate() {
            let right = Parts::of(other.dense(batch, &other.rows), precision);
            let jobs = sums.chunks_mut(block * n_columns).zip(self.rows.chunks(block));
            let multiply = |(sums, rows): (&mut [f32], &[usize])| {
                Parts::of(self.dense(batch, rows), precision).times(
                    &right,
                    [rows.len(), depth, n_columns],
                    sums,
                )
            };
            if n_threads == 1 {
                jobs.into_iter().try_for_each(multiply)?;
            } else {
                on_threads(n_threads, jobs.collect(), &multiply)?;
            }
        }
        Ok(products)
    }
}

impl Parts {
    fn of(mut elems: Vec<f32>, precision: Precision) -> Parts {
        match precision {
            Precision::Bf16x3 => {
                let mut low = vec![0.0; elems.len()];
                for (x, low) in elems.iter_mut().zip(&mut low) {
                    let high = high_of_finite(*x);
                    let rest = high_of_finite(*x - high);
                    // The rest of an element that rounds to infinity is 0.
                    *low = if high.is_infinite() { 0.0 } else { rest };
                    *x = high + *low;
                }
                Parts { whole: elems, low: Some(low) }
            }
            Precision::Bf16 => {
                elems.iter_mut().for_each(|x| *x = high_of_finite(*x));
                Parts { whole: elems, low: None }
            }
            Precision::F32 | Precision::Full | Precision::Exact | Precision::Int8 => {
                Parts { whole: elems, low: None }
            }
        }
    }

    /// Adds the products to `sums`. The three products of `bf16x3` are all of `x̃ * ỹ` but that of the low parts, where
    /// `x̃ = high(x) + low(x)` is exact in `f32`.
    fn times(&self, other: &Parts, [rows, depth, columns]: [usize; 3], sums: &mut [f32]) -> Result<()> {
        let wrong = |_| Error::internal("a matrix has another size than its elements");
        let mut sums = ArrayViewMut2::from_shape((rows, columns), sums).map_err(wrong)?;
        let mut add = |factor: f32, a: &[f32], b: &[f32]| -> Result<()> {
            let a = ArrayView2::from_shape((rows, depth), a).map_err(wrong)?;
            let b = ArrayView2::from_shape((depth, columns), b).map_err(wrong)?;
            general_mat_mul(factor, &a, &b, 1.0, &mut sums);
            Ok(())
        };
        add(1.0, &self.whole, &other.whole)?;
        match (&self.low, &other.low) {
            (Some(a), Some(b)) => add(-1.0, a, b),
            _ => Ok(()),
        }
    }
}

/// As [`crate::scalar::precision::high`], for elements that are not NaN, without branches.
fn high_of_finite(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    let is_denormal = bits & 0x7f80_0000 == 0;
    f32::from_bits(if is_denormal { bits & 0x8000_0000 } else { rounded })
}

/// Runs all jobs on this many threads.
fn on_threads<J: Send>(
    n_threads: usize,
    jobs: Vec<J>,
    run: &(impl Fn(J) -> Result<()> + Sync),
) -> Result<()> {
    let jobs = Mutex::new(jobs);
    let next = || jobs.lock().ok().and_then(|mut jobs| jobs.pop());
    let work = || {
        while let Some(job) = next() {
            run(job)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let panicked = |_| Error::internal("a thread of a matrix multiplication panicked");
        others.into_iter().map(|other| other.join().map_err(panicked)?).fold(own, Result::and)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::precision;

    #[test]
    fn parts_are_those_of_the_definition() {
        let patterns = (0..=u32::MAX).step_by(65_521).chain([0, 1, 0x007f_ffff, 0x0080_0000, 0x7f7f_ffff]);
        let elems: Vec<f32> = patterns.map(f32::from_bits).filter(|x| x.is_finite()).collect();
        let parts = Parts::of(elems.clone(), Precision::Bf16x3);
        let lows = parts.low.expect("split");
        for ((x, whole), low) in elems.iter().zip(&parts.whole).zip(&lows) {
            assert_eq!(low.to_bits() << 1, precision::low(*x).to_bits() << 1, "{x}");
            assert_eq!(f64::from(*whole), f64::from(precision::high(*x)) + f64::from(precision::low(*x)));
        }
    }
}
