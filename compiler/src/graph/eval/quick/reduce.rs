//! Reductions of `f32`, a row along the last axis at a time.

use crate::{
    error::Result,
    graph::eval::{
        index::{each, strides},
        writer::from_floats,
    },
    scalar::ReduceOp,
    tensor::Tensor,
};

/// The reduction along `axes`, in double precision.
pub(super) fn reduce(op: ReduceOp, axes: &[usize], x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let neutral = op.neutral(x.dtype()).as_f64();
    let mut accumulators = vec![neutral; shape.iter().product()];
    let mut kept = strides(shape).into_iter();
    let steps: Vec<usize> =
        (0..x.shape().len()).map(|k| if axes.contains(&k) { 0 } else { kept.next().unwrap_or(0) }).collect();
    let elems = x.to_f32s();
    let (Some((len, outer)), Some((step, outer_steps))) = (x.shape().split_last(), steps.split_last()) else {
        return from_floats(shape, &elems);
    };

    let combine = combination(op);
    let mut rows = elems.chunks_exact((*len).max(1));
    each(outer, |at| {
        let first: usize = at.iter().zip(outer_steps).map(|(idx, step)| idx * step).sum();
        let Some(row) = rows.next().filter(|_| *len > 0) else { return Ok(()) };
        if *step == 0 {
            accumulators[first] = row.iter().fold(accumulators[first], |sum, x| combine(sum, f64::from(*x)));
        } else {
            // The last axis is kept, so it is the last of the result.
            for (sum, x) in accumulators[first..][..*len].iter_mut().zip(row) {
                *sum = combine(*sum, f64::from(*x));
            }
        }
        Ok(())
    })?;
    let results: Vec<f32> = accumulators.into_iter().map(|x| x as f32).collect();
    from_floats(shape, &results)
}

fn combination(op: ReduceOp) -> fn(f64, f64) -> f64 {
    match op {
        ReduceOp::Sum => |x, y| x + y,
        ReduceOp::Prod => |x, y| x * y,
        ReduceOp::Min => |x, y| if x.is_nan() || x < y || (x == y && x.is_sign_negative()) { x } else { y },
        ReduceOp::Max => |x, y| if x.is_nan() || x > y || (x == y && y.is_sign_negative()) { x } else { y },
    }
}
