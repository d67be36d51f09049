//! Where the elements of a view are in its operand: a sum of one number for each axis.

use crate::{
    error::{Error, Result},
    graph::{
        axis,
        eval::{
            binding::Binding,
            index::{Index, each, strides},
            writer::tensor,
        },
    },
    tensor::Tensor,
};
use symshape::Dim;

/// Inner axes are joined up to this many elements, so that rows are long.
const MAX_ROW: usize = 4096;

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

    /// The elements of `x`, as a tensor of this shape.
    pub(crate) fn gather(&self, x: &Tensor, shape: &[usize]) -> Result<Tensor> {
        let width = x.dtype().size_bytes();
        let from = x.bytes();
        let elems: usize = shape.iter().product();
        let mut bytes = Vec::with_capacity(elems * width);
        let mut n_outer = self.0.len();
        let mut row = vec![0];
        while n_outer > 0 && (row.len() == 1 || row.len() * self.0[n_outer - 1].len() <= MAX_ROW) {
            n_outer -= 1;
            row = joined(&self.0[n_outer], &row);
        }
        let outer = &self.0[..n_outer];
        let outer_shape: Vec<usize> = outer.iter().map(Vec::len).collect();
        let is_run = row.iter().zip(row.iter().skip(1)).all(|(a, b)| *b == a + 1);
        each(&outer_shape, |at| {
            let first: usize = at.iter().zip(outer).map(|(idx, offsets)| offsets[*idx]).sum();
            match (row.first(), width) {
                (Some(start), _) if is_run => {
                    bytes.extend_from_slice(&from[(first + start) * width..][..row.len() * width]);
                }
                (_, 4) => {
                    for offset in &row {
                        let place = 4 * (first + offset);
                        let element: [u8; 4] = from[place..place + 4].try_into().unwrap_or_default();
                        bytes.extend_from_slice(&element);
                    }
                }
                _ => {
                    for offset in &row {
                        bytes.extend_from_slice(&from[(first + offset) * width..][..width]);
                    }
                }
            }
            Ok(())
        })?;
        tensor(x.dtype(), shape, bytes)
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
