//! Operators along an axis: reductions, arg-reductions, scans, sorts.

use super::{
    index::{each, strides},
    rounding::Rounding,
    writer::TensorBuilder,
};
use crate::{
    error::{Error, Result},
    scalar::{CompareOp, ReduceOp, Scalar, eval as scalar},
    tensor::Tensor,
};
use std::cmp::Ordering;
use symshape_runtime::DType;

/// The type in which values are combined.
fn working_type(op: ReduceOp, dtype: DType, rounding: Rounding) -> DType {
    match (op, rounding) {
        (ReduceOp::Sum | ReduceOp::Prod, Rounding::Last | Rounding::Quick) if dtype.is_float() => DType::F64,
        (ReduceOp::Sum | ReduceOp::Prod, Rounding::Each) if dtype.is_float() && dtype != DType::F64 => {
            DType::F32
        }
        _ => dtype,
    }
}

pub(super) fn reduce(
    op: ReduceOp,
    axes: &[usize],
    x: &Tensor,
    shape: &[usize],
    rounding: Rounding,
) -> Result<Tensor> {
    let work = working_type(op, x.dtype(), rounding);
    let mut accumulators = vec![scalar::neutral(op, work); shape.iter().product()];
    let mut kept = strides(shape).into_iter();
    let steps: Vec<usize> =
        (0..x.shape().len()).map(|k| if axes.contains(&k) { 0 } else { kept.next().unwrap_or(0) }).collect();

    let mut next = 0;
    each(x.shape(), |at| {
        let sum = &mut accumulators[at.iter().zip(&steps).map(|(idx, step)| idx * step).sum::<usize>()];
        *sum = scalar::combine(op, *sum, scalar::cast(work, x.get(next)));
        next += 1;
        Ok(())
    })?;

    let mut out = TensorBuilder::new(x.dtype(), shape);
    accumulators.into_iter().for_each(|sum| out.push(scalar::cast(x.dtype(), sum)));
    out.finish(shape)
}

/// The one-dimensional slices of a tensor along one axis, in row-major order of the other axes.
struct AxisSlices {
    /// Elements of a slice.
    len: usize,
    /// Elements from one element of a slice to the next.
    step: usize,
    /// The product of the sizes of the axes before.
    outer: usize,
}

impl AxisSlices {
    fn new(shape: &[usize], axis: usize) -> AxisSlices {
        AxisSlices {
            len: shape[axis],
            step: shape[axis + 1..].iter().product(),
            outer: shape[..axis].iter().product(),
        }
    }

    fn starts(&self) -> impl Iterator<Item = usize> {
        let step = self.step;
        let block = self.step * self.len;
        (0..self.outer).flat_map(move |i| (0..step).map(move |j| i * block + j))
    }

    fn read(&self, x: &Tensor, start: usize) -> Vec<Scalar> {
        (0..self.len).map(|i| x.get(start + i * self.step)).collect()
    }

    fn write(&self, elems: &mut [Scalar], start: usize, slice: &[Scalar]) {
        for (i, value) in slice.iter().enumerate() {
            elems[start + i * self.step] = *value;
        }
    }
}

fn from_elems(dtype: DType, shape: &[usize], elems: &[Scalar]) -> Result<Tensor> {
    let mut out = TensorBuilder::new(dtype, shape);
    elems.iter().for_each(|elem| out.push(*elem));
    out.finish(shape)
}

fn is_nan(x: Scalar) -> bool {
    x.dtype().is_float() && x.as_f64().is_nan()
}

/// The order of sorting: NaN is larger than all other values, and zeros are equal.
fn order(x: Scalar, y: Scalar) -> Ordering {
    let less = |x, y| scalar::compare(CompareOp::Lt, x, y);
    match (is_nan(x), is_nan(y)) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        _ if less(x, y) => Ordering::Less,
        _ if less(y, x) => Ordering::Greater,
        _ => Ordering::Equal,
    }
}

/// A NaN is both largest and smallest, as in NumPy.
pub(super) fn argreduce(
    op: ReduceOp,
    axis: usize,
    last: bool,
    x: &Tensor,
    shape: &[usize],
) -> Result<Tensor> {
    let slices = AxisSlices::new(x.shape(), axis);
    let mut out = TensorBuilder::new(DType::I64, shape);
    for start in slices.starts() {
        let slice = slices.read(x, start);
        let mut best = 0;
        for (i, value) in slice.iter().enumerate().skip(1) {
            let order = match op {
                ReduceOp::Min if is_nan(*value) == is_nan(slice[best]) => order(slice[best], *value),
                _ => order(*value, slice[best]),
            };
            if order == Ordering::Greater || (last && order == Ordering::Equal) {
                best = i;
            }
        }

        if slice.is_empty() {
            let message = format!("axis {axis} is empty, so it has no largest or smallest element");
            return Err(Error::invalid(message));
        }

        out.push(Scalar::i64(best as i64));
    }

    out.finish(shape)
}

pub(super) fn scan(
    op: ReduceOp,
    axis: usize,
    exclusive: bool,
    reverse: bool,
    x: &Tensor,
    rounding: Rounding,
) -> Result<Tensor> {
    let slices = AxisSlices::new(x.shape(), axis);
    let work = working_type(op, x.dtype(), rounding);

    let mut elems: Vec<Scalar> = vec![scalar::neutral(op, x.dtype()); x.elems()];
    for start in slices.starts() {
        let mut slice = slices.read(x, start);
        if reverse {
            slice.reverse();
        }

        let mut sum = scalar::neutral(op, work);
        for value in &mut slice {
            let with = scalar::combine(op, sum, scalar::cast(work, *value));
            *value = scalar::cast(x.dtype(), if exclusive { sum } else { with });
            sum = with;
        }

        if reverse {
            slice.reverse();
        }

        slices.write(&mut elems, start, &slice);
    }

    from_elems(x.dtype(), x.shape(), &elems)
}

/// The first elements of each sorted slice, as many as `shape` has.
pub(super) fn sort(
    axis: usize,
    descending: bool,
    x: &Tensor,
    bound: Option<Scalar>,
    shape: &[usize],
) -> Result<Vec<Tensor>> {
    let wanted = shape[axis];
    if wanted > x.shape()[axis] {
        let message = format!("{wanted} elements are sorted of an axis that has {}", x.shape()[axis]);
        return Err(Error::invalid(message));
    }

    let slices = AxisSlices::new(x.shape(), axis);
    let targets = AxisSlices::new(shape, axis);
    let elems = shape.iter().product();
    let beyond = if descending { CompareOp::Gt } else { CompareOp::Lt };
    let is_kept = |x: Scalar| bound.is_none_or(|bound| scalar::compare(beyond, x, bound));
    let mut values: Vec<Scalar> = vec![bound.unwrap_or(Scalar::from_bits(x.dtype(), 0)); elems];
    let mut positions: Vec<Scalar> = vec![Scalar::i64(0); elems];
    for (start, target) in slices.starts().zip(targets.starts()) {
        let slice = slices.read(x, start);
        let mut order_of_slice: Vec<usize> = (0..slice.len()).filter(|i| is_kept(slice[*i])).collect();
        order_of_slice.sort_by(|i, j| {
            let order = order(slice[*i], slice[*j]);
            if descending { order.reverse() } else { order }
        });

        order_of_slice.truncate(wanted);

        let sorted: Vec<Scalar> = order_of_slice.iter().map(|i| slice[*i]).collect();
        let sorted_positions: Vec<Scalar> = order_of_slice.iter().map(|i| Scalar::i64(*i as i64)).collect();
        targets.write(&mut values, target, &sorted);
        targets.write(&mut positions, target, &sorted_positions);
    }
    Ok(vec![from_elems(x.dtype(), shape, &values)?, from_elems(DType::I64, shape, &positions)?])
}
