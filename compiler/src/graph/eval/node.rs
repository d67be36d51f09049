//! Evaluates each core operator from its definition, in one match.

use super::{
    binding::{Binding, checked, sizes},
    contraction,
    index::{Index, each, strides},
    reduce,
    rounding::Rounding,
    writer::{TensorBuilder, tensor},
};
use crate::{
    error::{Error, Result},
    graph::{Coord, Label, Op, ScatterMode},
    scalar::{Body, Scalar, eval as scalar},
    tensor::Tensor,
};
use symshape::Dim;
use symshape_runtime::DType;

/// The results of `op`. Sizes follow from the operands rather than from inference, so that tests can compare both.
pub(super) fn eval(
    op: &Op,
    operands: &[Tensor],
    binding: &Binding,
    rounding: Rounding,
) -> Result<Vec<Tensor>> {
    let shape = &result_shape(op, operands, binding)?[..];
    let result = match op {
        Op::Input(_) => return Err(Error::internal("an input is given, not computed")),
        Op::Const(tensor) => tensor.clone(),
        Op::Index { dtype, expr, .. } => index(*dtype, shape, expr, binding)?,
        Op::Map(body) => map(body, operands, shape, rounding)?,
        Op::View { index, .. } => {
            let coords: Vec<Coord> = index.iter().cloned().map(Coord::At).collect();
            gather(&coords, operands, shape, binding)?
        }
        Op::Pad { lo, value, .. } => pad(&operands[0], shape, lo, *value, binding)?,
        Op::Concat { axis } => concat(operands, shape, *axis)?,
        Op::Gather { coords, .. } => gather(coords, operands, shape, binding)?,
        Op::Scatter { coords, mode } => scatter(coords, *mode, operands, binding)?,
        Op::Reduce { op, axes } => reduce::reduce(*op, axes, &operands[0], shape, rounding)?,
        Op::ArgReduce { op, axis, last } => reduce::argreduce(*op, *axis, *last, &operands[0], shape)?,
        Op::Contraction { lhs, rhs, out, dtype, precision } => {
            contraction::contraction([lhs, rhs, out], (*dtype, *precision), operands, shape, rounding)?
        }
        Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Call { .. } | Op::Fail { .. } => {
            return Err(Error::internal("regions are evaluated elsewhere"));
        }
        Op::Sort { axis, descending, .. } => {
            let bound = operands.get(1).map(|bound| bound.get(0));
            return reduce::sort(*axis, *descending, &operands[0], bound, shape);
        }
        Op::Scan { op, axis, exclusive, reverse } => {
            reduce::scan(*op, *axis, *exclusive, *reverse, &operands[0], rounding)?
        }
    };

    Ok(vec![result])
}

fn result_shape(op: &Op, operands: &[Tensor], binding: &Binding) -> Result<Vec<usize>> {
    let first = || operands[0].shape().to_vec();
    let without = |axes: &[usize]| {
        let kept = operands[0].shape().iter().enumerate().filter(|(k, _)| !axes.contains(k));
        kept.map(|(_, size)| *size).collect()
    };

    match op {
        Op::Input(_) | Op::Const(_) => Ok(Vec::new()),
        Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Call { .. } | Op::Fail { .. } => {
            Ok(Vec::new())
        }
        Op::Index { shape, .. } | Op::View { shape, .. } | Op::Gather { shape, .. } => sizes(shape, binding),
        Op::Map(_) | Op::Scatter { .. } | Op::Scan { .. } => Ok(first()),
        Op::Sort { axis, first: wanted, .. } => {
            let mut shape = first();
            if let Some(wanted) = wanted {
                shape[*axis] = sizes(std::slice::from_ref(wanted), binding)?[0];
            }
            Ok(shape)
        }
        Op::Pad { lo, hi, .. } => {
            let lo = sizes(lo, binding)?;
            let hi = sizes(hi, binding)?;
            checked((0..lo.len()).map(|k| lo[k] + operands[0].shape()[k] + hi[k]).collect())
        }
        Op::Concat { axis } => {
            let mut shape = first();
            shape[*axis] = operands.iter().map(|operand| operand.shape()[*axis]).sum();
            checked(shape)
        }
        Op::Reduce { axes, .. } => Ok(without(axes)),
        Op::ArgReduce { axis, .. } => Ok(without(&[*axis])),
        Op::Contraction { lhs, rhs, out, .. } => {
            let all = || lhs.iter().chain(rhs).zip(operands.iter().flat_map(|operand| operand.shape()));
            let size = |label: &Label| all().find(|(other, _)| *other == label).map_or(1, |(_, size)| *size);
            checked(out.iter().map(size).collect())
        }
    }
}

fn index(dtype: DType, shape: &[usize], expr: &Dim, binding: &Binding) -> Result<Tensor> {
    let expr = Index::new(expr, shape.len(), binding)?;
    let mut out = TensorBuilder::new(dtype, shape);
    let mut stack = Vec::new();
    each(shape, |at| {
        out.push(Scalar::from_i64(dtype, expr.at(at, &mut stack)?));
        Ok(())
    })?;
    out.finish(shape)
}

fn map(body: &Body, operands: &[Tensor], shape: &[usize], rounding: Rounding) -> Result<Tensor> {
    let mut out = TensorBuilder::new(body.dtype(), shape);
    let mut args = Vec::new();
    let mut regs = Vec::new();
    for i in 0..shape.iter().product() {
        args.clear();
        args.extend(operands.iter().map(|operand| operand.get(i)));
        out.push(match rounding {
            Rounding::Each if i % 2 == 0 => body.eval_rounded_away(&args, &mut regs),
            _ => body.eval(&args, &mut regs),
        });
    }

    out.finish(shape)
}

fn pad(x: &Tensor, shape: &[usize], lo: &[Dim], fill: Scalar, binding: &Binding) -> Result<Tensor> {
    let lo: Vec<usize> = sizes(lo, binding)?;
    let Some((len, outer)) = x.shape().split_last() else { return Ok(x.clone()) };
    let width = x.dtype().size_bytes();
    let fill = &fill.bits().to_le_bytes()[..width];
    let mut bytes = fill.repeat(shape.iter().product());
    let strides = strides(shape);
    let mut rows = x.bytes().chunks_exact((len * width).max(1));

    each(outer, |at| {
        let inner = std::iter::repeat_n(&0, 1);
        let first: usize =
            at.iter().chain(inner).zip(&lo).zip(&strides).map(|((i, lo), step)| (i + lo) * step).sum();
        if let Some(row) = rows.next() {
            bytes[first * width..][..row.len()].copy_from_slice(row);
        }
        Ok(())
    })?;
    tensor(x.dtype(), shape, bytes)
}

fn concat(operands: &[Tensor], shape: &[usize], axis: usize) -> Result<Tensor> {
    let mut bytes = Vec::new();
    let outer: usize = shape[..axis].iter().product();
    for row in 0..outer {
        for operand in operands {
            let run = operand.bytes().len() / outer;
            bytes.extend_from_slice(&operand.bytes()[row * run..(row + 1) * run]);
        }
    }
    tensor(operands[0].dtype(), shape, bytes)
}

/// Coordinates compiled for one binding.
struct Coords<'a> {
    coords: Vec<CompiledCoord<'a>>,
    shape: Vec<usize>,
    stack: Vec<i64>,
}

enum CompiledCoord<'a> {
    At(Index),
    Load { from: &'a Tensor, at: Vec<Index> },
}

impl<'a> Coords<'a> {
    fn new(coords: &[Coord], rank: usize, operands: &'a [Tensor], binding: &Binding) -> Result<Coords<'a>> {
        let compile = |coord: &Coord| {
            Ok(match coord {
                Coord::At(expr) => CompiledCoord::At(Index::new(expr, rank, binding)?),
                Coord::Load { operand, at } => CompiledCoord::Load {
                    from: &operands[*operand],
                    at: at.iter().map(|expr| Index::new(expr, rank, binding)).collect::<Result<_>>()?,
                },
            })
        };
        let coords = coords.iter().map(compile).collect::<Result<_>>()?;
        Ok(Coords { coords, shape: operands[0].shape().to_vec(), stack: Vec::new() })
    }

    /// The flat index as one affine expression, `base + Σ step * index`, if every coordinate is affine and not loaded.
    /// All are inside if the corners of `shape` are. Most views of real models have this form.
    fn affine(&self, shape: &[usize]) -> Result<Option<(i64, Vec<i64>)>> {
        let mut flat = 0;
        let mut steps = vec![0; shape.len()];
        if shape.contains(&0) {
            return Ok(None);
        }

        for (k, (coord, size)) in self.coords.iter().zip(&self.shape).enumerate() {
            let CompiledCoord::At(Index::Affine { base, coefs }) = coord else { return Ok(None) };
            let reach = coefs.iter().zip(shape).map(|(coef, size)| coef * (*size as i64 - 1));
            let lowest: i64 = reach.clone().filter(|reach| *reach < 0).sum();
            let highest: i64 = reach.filter(|reach| *reach > 0).sum();
            inside(base + lowest, *size, k)?;
            inside(base + highest, *size, k)?;
            flat = flat * *size as i64 + base;
            steps = steps.iter().zip(coefs).map(|(step, coef)| step * *size as i64 + coef).collect();
        }

        Ok(Some((flat, steps)))
    }

    /// Whether an index of the last axis is added to the last coordinate, and changes nothing else.
    fn has_rows(&self) -> bool {
        let moves_by = |index: &Index, step: i64| matches!(index, Index::Affine { coefs, .. } if coefs.last() == Some(&step));
        let Some((CompiledCoord::At(last), others)) = self.coords.split_last() else { return false };
        let stays = |coord: &CompiledCoord| match coord {
            CompiledCoord::At(index) => moves_by(index, 0),
            CompiledCoord::Load { at, .. } => at.iter().all(|index| moves_by(index, 0)),
        };
        moves_by(last, 1) && others.iter().all(stays)
    }

    /// The flat index of the element of operand 0 for this index of the result.
    fn flat(&mut self, at: &[usize]) -> Result<usize> {
        let mut flat = 0;
        for (k, (coord, size)) in self.coords.iter().zip(&self.shape).enumerate() {
            let idx = match coord {
                CompiledCoord::At(index) => index.at(at, &mut self.stack)?,
                CompiledCoord::Load { from, at: inner } => {
                    let mut from_flat = 0;
                    for (index, size) in inner.iter().zip(from.shape()) {
                        from_flat = from_flat * size + inside(index.at(at, &mut self.stack)?, *size, k)?;
                    }
                    from.get(from_flat).as_i64()
                }
            };
            flat = flat * size + inside(idx, *size, k)?;
        }

        Ok(flat)
    }
}

fn inside(idx: i64, size: usize, axis: usize) -> Result<usize> {
    match usize::try_from(idx) {
        Ok(idx) if idx < size => Ok(idx),
        _ => Err(Error::invalid(format!("index {idx} along axis {axis} of size {size}"))),
    }
}

fn gather(coords: &[Coord], operands: &[Tensor], shape: &[usize], binding: &Binding) -> Result<Tensor> {
    let mut coords = Coords::new(coords, shape.len(), operands, binding)?;
    if let Some((base, steps)) = coords.affine(shape)? {
        return strided(&operands[0], shape, base, &steps);
    }
    let mut out = TensorBuilder::new(operands[0].dtype(), shape);
    each(shape, |at| {
        out.push(operands[0].get(coords.flat(at)?));
        Ok(())
    })?;
    out.finish(shape)
}

/// As a gather of `coords`, a row along the last axis at a time. `None` if the elements of a row are not adjacent.
pub(super) fn gather_rows(
    coords: &[Coord],
    operands: &[Tensor],
    shape: &[usize],
    binding: &Binding,
) -> Result<Option<Tensor>> {
    let mut coords = Coords::new(coords, shape.len(), operands, binding)?;
    let Some((len, outer)) = shape.split_last().filter(|(len, _)| **len > 0 && coords.has_rows()) else {
        return Ok(None);
    };
    let x = &operands[0];
    let width = x.dtype().size_bytes();
    let mut bytes = Vec::with_capacity(shape.iter().product::<usize>() * width);
    let mut element = vec![0; shape.len()];
    each(outer, |at| {
        element[..at.len()].copy_from_slice(at);
        // Both ends must be inside, and so is then all between.
        element[at.len()] = len - 1;
        coords.flat(&element)?;
        element[at.len()] = 0;
        let first = coords.flat(&element)?;
        bytes.extend_from_slice(&x.bytes()[first * width..][..len * width]);
        Ok(())
    })?;
    tensor(x.dtype(), shape, bytes).map(Some)
}

/// The elements `base + Σ step * index` of `x`, all inside. They are copied in runs along the last axis. All elements
/// in order, as in a reshape, share the memory of `x`.
fn strided(x: &Tensor, shape: &[usize], base: i64, steps: &[i64]) -> Result<Tensor> {
    let (sizes, steps) = merged_axes(shape, steps);
    let [outer @ .., len] = &sizes[..] else { return Err(Error::internal("merged axes of rank 0")) };
    let [outer_steps @ .., step] = &steps[..] else { return Err(Error::internal("merged axes of rank 0")) };
    let width = x.dtype().size_bytes();
    if outer.is_empty() && *step == 1 && *len == x.elems() {
        let shared = Tensor::new(x.dtype(), shape.to_vec(), x.shared_bytes());
        return shared.ok_or_else(|| Error::internal("a reshape has another number of elements"));
    }

    let mut bytes = Vec::with_capacity(shape.iter().product::<usize>() * width);
    each(outer, |at| {
        let first = at.iter().zip(outer_steps).fold(base, |flat, (idx, step)| flat + *idx as i64 * step);
        if *step == 1 {
            bytes.extend_from_slice(&x.bytes()[first as usize * width..][..len * width]);
            return Ok(());
        }
        for i in 0..*len {
            let flat = (first + i as i64 * step) as usize;
            bytes.extend_from_slice(&x.bytes()[flat * width..][..width]);
        }
        Ok(())
    })?;
    tensor(x.dtype(), shape, bytes)
}

/// Axes that address the same elements in the same order, as few as possible but at least one. Neighbours are one axis
/// if an index of the outer one moves as far as all of the inner one.
fn merged_axes(shape: &[usize], steps: &[i64]) -> (Vec<usize>, Vec<i64>) {
    let mut sizes = vec![1];
    let mut merged = vec![1];
    for (size, step) in shape.iter().zip(steps).filter(|(size, _)| **size != 1) {
        let last = sizes.len() - 1;
        if sizes[last] == 1 || merged[last] == step * *size as i64 {
            sizes[last] *= size;
            merged[last] = *step;
        } else {
            sizes.push(*size);
            merged.push(*step);
        }
    }
    (sizes, merged)
}

fn scatter(coords: &[Coord], mode: ScatterMode, operands: &[Tensor], binding: &Binding) -> Result<Tensor> {
    let data = &operands[0];
    let updates = &operands[1];
    let mut coords = Coords::new(coords, updates.shape().len(), operands, binding)?;
    let mut elems: Vec<Scalar> = (0..data.elems()).map(|i| data.get(i)).collect();
    let mut next = 0;

    each(updates.shape(), |at| {
        let slot = &mut elems[coords.flat(at)?];
        let new = updates.get(next);
        next += 1;
        *slot = match mode {
            ScatterMode::Assign => new,
            ScatterMode::Combine(op) => scalar::combine(op, *slot, new),
        };
        Ok(())
    })?;

    let mut out = TensorBuilder::new(data.dtype(), data.shape());
    elems.into_iter().for_each(|elem| out.push(elem));
    out.finish(data.shape())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The elements `base + Σ step * index` of 0, 1, … 23, and whether they share the memory of these.
    fn numbers(shape: &[usize], base: i64, steps: &[i64]) -> (Vec<i64>, bool) {
        let x = Tensor::from_i64(vec![24], &(0..24).collect::<Vec<_>>()).expect("24 elements");
        let result = strided(&x, shape, base, steps).expect("inside");
        assert_eq!(result.shape(), shape);
        (result.to_i64s(), std::ptr::eq(result.stored(), x.stored()))
    }

    #[test]
    fn strided_elements_are_those_of_their_indices() {
        let all: Vec<i64> = (0..24).collect();
        for shape in [&[24][..], &[2, 12], &[2, 1, 3, 4], &[1, 24, 1]] {
            assert_eq!(
                numbers(shape, 0, &strides(shape).iter().map(|step| *step as i64).collect::<Vec<_>>()),
                (all.clone(), true)
            );
        }
        let cases: [(&[usize], i64, &[i64]); 8] = [
            (&[2, 3], 1, &[12, 4]),
            (&[4, 6], 0, &[1, 4]),
            (&[2, 3, 4], 23, &[-12, -4, -1]),
            (&[2, 3, 2], 0, &[12, 4, 1]),
            (&[3, 2, 2], 5, &[0, 0, 0]),
            (&[2, 2, 3], 0, &[0, 3, 1]),
            (&[1, 1], 7, &[9, 9]),
            (&[], 11, &[]),
        ];
        for (shape, base, steps) in cases {
            let mut expected = Vec::new();
            each(shape, |at| {
                expected.push(at.iter().zip(steps).fold(base, |flat, (idx, step)| flat + *idx as i64 * step));
                Ok(())
            })
            .expect("no error");
            assert_eq!(numbers(shape, base, steps), (expected, false), "{shape:?} by {steps:?}");
        }
    }
}
