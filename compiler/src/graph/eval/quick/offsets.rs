//! Where the elements of a view are in its operand: a sum of one number for each axis.

use super::threads::run_jobs;
use crate::{
    error::{Error, Result},
    graph::{
        axis,
        eval::{
            binding::Binding,
            index::{Index, strides},
            writer::{from_floats, tensor},
        },
    },
    tensor::Tensor,
};
use std::iter::repeat_n;
use symshape::Dim;
use symshape_runtime::DType;

/// Inner axes are joined up to this many elements, so that rows are long.
const MAX_ROW: usize = 4096;

/// Elements of a job.
const JOB: usize = 1 << 16;

/// Multiplications that take as long as moving one element.
const ELEMENT_WORK: usize = 16;

/// For each axis and each index along it, the elements that it moves the address by. The sum for an element is its
/// place in the operand.
pub(crate) struct Offsets(Vec<Vec<usize>>);

impl Offsets {
    /// The elements of a dense tensor.
    pub(super) fn dense(shape: &[usize]) -> Offsets {
        let axes = shape.iter().zip(strides(shape));
        Offsets(axes.map(|(size, step)| (0..*size).map(|idx| idx * step).collect()).collect())
    }

    /// The elements of `x` that `index` addresses. `None` if an expression mixes axes other than by a sum, or moves
    /// against the order of the axis.
    ///
    /// # Errors
    /// An address outside of `x`.
    pub(crate) fn of(
        index: &[Dim],
        x: &Tensor,
        shape: &[usize],
        binding: &Binding,
    ) -> Result<Option<Offsets>> {
        let Some((base, mut offsets)) = sums(index, x, shape, binding)? else { return Ok(None) };
        if shape.contains(&0) {
            return Ok(Some(Offsets(shape.iter().map(|size| vec![0; *size]).collect())));
        }
        match offsets.first_mut() {
            Some(first) => first.iter_mut().for_each(|offset| *offset += base),
            // A result of rank 0 has one element, at the base.
            None => offsets.push(vec![base]),
        }
        let end = |pick: fn(i64, i64) -> i64| -> i64 {
            offsets.iter().filter_map(|axis| axis.iter().copied().reduce(pick)).sum()
        };
        if end(i64::min) < 0 || end(i64::max) >= x.elems() as i64 {
            return Err(Error::invalid("a view reads outside of its operand"));
        }
        let unsigned = |axis: Vec<i64>| axis.into_iter().map(|offset| usize::try_from(offset).ok()).collect();
        Ok(offsets.into_iter().map(unsigned).collect::<Option<_>>().map(Offsets))
    }

    /// The axes in another order.
    pub(super) fn permuted(&self, order: &[usize]) -> Offsets {
        Offsets(order.iter().map(|axis| self.0[*axis].clone()).collect())
    }

    /// The offset of a tensor of this rank that no axis has: that of rank 0.
    pub(super) fn base(&self, rank: usize) -> usize {
        self.0.iter().skip(rank).filter_map(|axis| axis.first()).sum()
    }

    /// The offsets along one axis.
    pub(super) fn axis(&self, k: usize) -> &[usize] {
        &self.0[k]
    }

    /// The elements as rows.
    pub(super) fn rows(&self) -> Rows<'_> {
        let mut n_outer = self.0.len();
        let mut row = vec![0];
        while n_outer > 0 && (row.len() == 1 || row.len() * self.0[n_outer - 1].len() <= MAX_ROW) {
            n_outer -= 1;
            row = joined(&self.0[n_outer], &row);
        }
        let steps = || row.iter().zip(row.iter().skip(1));
        let kind = if steps().all(|(a, b)| *b == a + 1) {
            RowKind::Run
        } else if steps().all(|(a, b)| a == b) {
            RowKind::Same
        } else {
            RowKind::Any
        };
        Rows { outer: &self.0[..n_outer], row, kind }
    }

    /// The elements of `x`, as a tensor of this shape.
    pub(super) fn gather(&self, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
        let elems: usize = shape.iter().product();
        let rows = self.rows();
        if x.dtype() == DType::F32 {
            let from = x.f32s();
            let mut floats = vec![0.0; elems];
            let jobs = floats.chunks_mut(JOB).enumerate().collect();
            run_jobs(elems * ELEMENT_WORK, jobs, |(idx, out)| {
                let mut block = Vec::with_capacity(out.len());
                rows.gather(&from, idx * JOB, out.len(), &mut block);
                out.copy_from_slice(&block);
                Ok(())
            })?;
            return from_floats(shape, floats);
        }
        let width = x.dtype().size_bytes();
        let from = x.bytes();
        let mut bytes = Vec::with_capacity(elems * width);
        for place in rows.places(0, elems) {
            bytes.extend_from_slice(&from[place * width..][..width]);
        }
        tensor(x.dtype(), shape, bytes)
    }
}

/// The elements of a view in rows of equal length. The places of a row are those of the first row, moved by a number.
pub(super) struct Rows<'o> {
    outer: &'o [Vec<usize>],
    row: Vec<usize>,
    kind: RowKind,
}

enum RowKind {
    /// Adjacent elements.
    Run,
    /// One element, again and again.
    Same,
    Any,
}

impl Rows<'_> {
    /// Appends the elements from `start` on, as many as `len`.
    pub(super) fn gather<T: Copy>(&self, from: &[T], start: usize, len: usize, out: &mut Vec<T>) {
        self.parts(start, len, |base, row| match (row.first(), &self.kind) {
            (Some(first), RowKind::Run) => out.extend_from_slice(&from[base + first..][..row.len()]),
            (Some(first), RowKind::Same) => out.extend(repeat_n(from[base + first], row.len())),
            _ => out.extend(row.iter().map(|offset| from[base + offset])),
        });
    }

    /// The places of the elements from `start` on, as many as `len`.
    pub(super) fn places(&self, start: usize, len: usize) -> Vec<usize> {
        let mut places = Vec::with_capacity(len);
        self.parts(start, len, |base, row| places.extend(row.iter().map(|offset| base + offset)));
        places
    }

    /// Visits the rows with these elements, or parts of them: a number, and the places that it moves.
    fn parts(&self, start: usize, len: usize, mut visit: impl FnMut(usize, &[usize])) {
        let mut at = start;
        while at < start + len {
            let mut rest = at / self.row.len();
            let mut base = 0;
            for axis in self.outer.iter().rev() {
                base += axis[rest % axis.len()];
                rest /= axis.len();
            }
            let first = at % self.row.len();
            let part = &self.row[first..self.row.len().min(first + start + len - at)];
            visit(base, part);
            at += part.len();
        }
    }
}

/// The sums of all pairs, the second faster.
pub(super) fn joined(slow: &[usize], fast: &[usize]) -> Vec<usize> {
    slow.iter().flat_map(|slow| fast.iter().map(move |fast| slow + fast)).collect()
}

/// The base and the numbers for each axis.
fn sums(
    index: &[Dim],
    x: &Tensor,
    shape: &[usize],
    binding: &Binding,
) -> Result<Option<(i64, Vec<Vec<i64>>)>> {
    let rank = shape.len();
    let mut offsets: Vec<Vec<i64>> = shape.iter().map(|size| vec![0; *size]).collect();
    let mut base = 0;
    let mut stack = Vec::new();
    for (dim, stride) in index.iter().zip(strides(x.shape())) {
        let stride = stride as i64;
        match Index::new(dim, rank, binding)? {
            Index::Affine { base: start, coefs } => {
                base += start * stride;
                for (offsets, coef) in offsets.iter_mut().zip(coefs) {
                    offsets
                        .iter_mut()
                        .enumerate()
                        .for_each(|(i, offset)| *offset += i as i64 * coef * stride);
                }
            }
            program => {
                let mut moving = (0..rank).filter(|k| dim.contains(&axis(*k)));
                let (Some(k), None) = (moving.next(), moving.next()) else { return Ok(None) };
                let mut at = vec![0; rank];
                for (i, offset) in offsets[k].iter_mut().enumerate() {
                    at[k] = i;
                    *offset += program.at(&at, &mut stack)? * stride;
                }
            }
        }
    }
    Ok(Some((base, offsets)))
}
