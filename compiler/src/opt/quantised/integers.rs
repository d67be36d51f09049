//! The contents of constants of integers, read without an evaluation of their definition.
//!
//! Weights usually are `cast(q) - cast(z)` or views of that, where `q` and `z` are stored in one byte. The evaluator
//! would compute four bytes for each element, one step after another. Here the bytes themselves are read.

use super::real::{binary, cast, evaluated};
use crate::{
    error::Result,
    graph::{Graph, Op, Value},
    opt::bodies::number,
    scalar::BinaryOp,
    tensor::{Bytes, OwnedBytes, Tensor},
};
use symshape_runtime::DType;

/// The integers of a constant in as few bytes as they need, one or two.
pub(super) struct Integers {
    /// `i8` or `i16`.
    pub(super) stored: Tensor,
    /// The largest magnitude.
    pub(super) largest: i64,
}

impl Integers {
    /// The contents of a fixed value of integers, if all are in -255..=255.
    pub(super) fn of(graph: &mut Graph, value: Value) -> Result<Option<Integers>> {
        let Some(Difference { bytes, zero }) = difference(graph, value)? else {
            return Ok(evaluated(graph, value).and_then(|tensor| Integers::of_tensor(&tensor)));
        };
        let Some(bytes) = evaluated(graph, bytes) else { return Ok(None) };
        let integers = match zero {
            ZeroPoint::Number(0) => Integers::of_tensor(&bytes),
            ZeroPoint::Number(zero) => narrowed(bytes.shape(), integers(&bytes).map(|byte| byte - zero)),
            ZeroPoint::Bytes(zero) => evaluated(graph, zero).and_then(|zeros| {
                let differences = integers(&bytes).zip(integers(&zeros)).map(|(byte, zero)| byte - zero);
                narrowed(bytes.shape(), differences)
            }),
        };
        Ok(integers)
    }

    /// `None` unless all elements are integers in -255..=255.
    fn of_tensor(tensor: &Tensor) -> Option<Integers> {
        match tensor.dtype() {
            DType::I8 => {
                let largest = tensor.bytes().iter().map(|byte| (*byte as i8).unsigned_abs()).max();
                Some(Integers { stored: tensor.clone(), largest: largest.unwrap_or(0).into() })
            }
            DType::U8 => {
                let largest = tensor.bytes().iter().copied().max().unwrap_or(0);
                if largest > i8::MAX as u8 {
                    return narrowed(tensor.shape(), integers(tensor));
                }
                let stored = Tensor::new(DType::I8, tensor.shape().to_vec(), tensor.shared_bytes())?;
                Some(Integers { stored, largest: largest.into() })
            }
            DType::I32 => {
                let elems = tensor.bytes().as_chunks::<4>().0.iter();
                narrowed(tensor.shape(), elems.map(|bytes| i32::from_le_bytes(*bytes).into()))
            }
            _ => narrowed(tensor.shape(), (0..tensor.elems()).map(|idx| tensor.get(idx).as_i64())),
        }
    }
}

/// Integers of one byte less their zero points.
struct Difference {
    bytes: Value,
    zero: ZeroPoint,
}

#[derive(Clone, Copy)]
enum ZeroPoint {
    /// The same for all elements, -255..=255.
    Number(i64),
    /// Bytes of the shape of the difference.
    Bytes(Value),
}

/// `value` as a difference of bytes. No difference wraps, because its type has more bits.
fn difference(graph: &mut Graph, value: Value) -> Result<Option<Difference>> {
    let is_byte = |dtype: DType| matches!(dtype, DType::U8 | DType::I8);
    if is_byte(graph.dtype(value)) {
        return Ok(Some(Difference { bytes: value, zero: ZeroPoint::Number(0) }));
    }
    if !matches!(graph.dtype(value), DType::I16 | DType::I32 | DType::I64) {
        return Ok(None);
    }

    if let Some((_, bytes)) = cast(graph, value) {
        let is_byte = is_byte(graph.dtype(bytes));
        return Ok(is_byte.then_some(Difference { bytes, zero: ZeroPoint::Number(0) }));
    }
    if let Op::View { shape, index } = graph.op(value).clone() {
        let operand = graph.operands(value)[0];
        let Some(Difference { bytes, zero }) = difference(graph, operand)? else { return Ok(None) };
        let bytes = graph.view(bytes, shape.clone(), index.clone())?;
        let zero = match zero {
            ZeroPoint::Number(_) => zero,
            ZeroPoint::Bytes(zero) => ZeroPoint::Bytes(graph.view(zero, shape, index)?),
        };
        return Ok(Some(Difference { bytes, zero }));
    }

    let Some((BinaryOp::Sub, x, zero)) = binary(graph, value) else { return Ok(None) };
    let Some(Difference { bytes, zero: ZeroPoint::Number(0) }) = difference(graph, x)? else {
        return Ok(None);
    };
    Ok(zero_point(graph, zero)?.map(|zero| Difference { bytes, zero }))
}

fn zero_point(graph: &mut Graph, value: Value) -> Result<Option<ZeroPoint>> {
    if let Some(number) = number(graph, value) {
        let number = number.as_i64();
        return Ok((-255..=255).contains(&number).then_some(ZeroPoint::Number(number)));
    }
    let Some(Difference { bytes, zero: ZeroPoint::Number(0) }) = difference(graph, value)? else {
        return Ok(None);
    };
    let zero = number(graph, bytes).map_or(ZeroPoint::Bytes(bytes), |zero| ZeroPoint::Number(zero.as_i64()));
    Ok(Some(zero))
}

/// The bytes of a tensor as integers.
fn integers(tensor: &Tensor) -> impl Iterator<Item = i64> + Clone {
    let is_signed = tensor.dtype() == DType::I8;
    let integer = move |byte: &u8| if is_signed { i64::from(*byte as i8) } else { i64::from(*byte) };
    tensor.bytes().iter().map(integer)
}

/// Integers of one byte, or of two where they need them.
fn narrowed(shape: &[usize], elems: impl Iterator<Item = i64> + Clone) -> Option<Integers> {
    let lo = elems.clone().min().unwrap_or(0);
    let hi = elems.clone().max().unwrap_or(0);
    let (dtype, bytes): (DType, OwnedBytes) = if lo >= -128 && hi <= 127 {
        (DType::I8, elems.map(|elem| elem as u8).collect())
    } else if lo >= -255 && hi <= 255 {
        (DType::I16, elems.flat_map(|elem| (elem as i16).to_le_bytes()).collect())
    } else {
        return None;
    };
    let stored = Tensor::new(dtype, shape.to_vec(), Bytes::Owned(bytes))?;
    Some(Integers { stored, largest: lo.abs().max(hi.abs()) })
}

/// The sums over the axes `reduced` of a tensor of `i8` or `i16`, as an `i32` tensor of the other axes. Sums wrap.
pub(super) fn sums(tensor: &Tensor, reduced: &[usize]) -> Option<Tensor> {
    let shape = tensor.shape();
    let rank = shape.len();
    let is_reduced = |k: usize| reduced.contains(&k);
    let kept: Vec<usize> = (0..rank).filter(|k| !is_reduced(*k)).map(|k| shape[k]).collect();

    // Inner axes of one kind are one row.
    let inner_is_reduced = rank > 0 && is_reduced(rank - 1);
    let n_outer = (0..rank).rev().find(|k| is_reduced(*k) != inner_is_reduced).map_or(0, |k| k + 1);
    let row_elems: usize = shape[n_outer..].iter().product();
    let mut step = if inner_is_reduced { 1 } else { row_elems };
    let mut steps = vec![0; n_outer];
    for k in (0..n_outer).rev().filter(|k| !is_reduced(*k)) {
        steps[k] = step;
        step *= shape[k];
    }

    let mut sums = vec![0i32; kept.iter().product()];
    let rows = tensor.bytes().chunks_exact((row_elems * tensor.dtype().size_bytes()).max(1));
    for (mut row, bytes) in rows.enumerate() {
        let mut at = 0;
        for k in (0..n_outer).rev() {
            at += row % shape[k] * steps[k];
            row /= shape[k];
        }
        let sums = if inner_is_reduced { &mut sums[at..=at] } else { &mut sums[at..at + row_elems] };
        match tensor.dtype() {
            DType::I8 => add(sums, bytes.iter().map(|byte| i32::from(*byte as i8))),
            _ => add(sums, bytes.as_chunks::<2>().0.iter().map(|bytes| i16::from_le_bytes(*bytes).into())),
        }
    }
    let bytes: OwnedBytes = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    Tensor::new(DType::I32, kept, Bytes::Owned(bytes))
}

/// Adds a row to as many sums, or to one.
fn add(sums: &mut [i32], row: impl Iterator<Item = i32>) {
    match sums {
        [sum] => *sum = row.fold(*sum, i32::wrapping_add),
        sums => sums.iter_mut().zip(row).for_each(|(sum, elem)| *sum = sum.wrapping_add(elem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        graph::eval::{Binding, values},
        scalar::{ReduceOp, Scalar},
    };

    /// Values of different signs and sizes; those of small types wrap.
    fn constant(graph: &mut Graph, dtype: DType, shape: &[usize], step: i64) -> Value {
        let elems =
            (0..shape.iter().product::<usize>() as i64).map(|k| Scalar::from_i64(dtype, k * step + step));
        let tensor = Tensor::from_scalars(dtype, shape.to_vec(), &elems.collect::<Vec<_>>());
        graph.constant(tensor.expect("as many elements as the shape has")).expect("a constant")
    }

    fn assert_contents(graph: &mut Graph, value: Value) {
        let expected = values(graph, &Binding::new(), &[], &[value]).expect("a fixed value")[0].to_i64s();
        let integers = Integers::of(graph, value).expect("a view has a type");
        let largest = expected.iter().map(|elem| elem.abs()).max().unwrap_or(0);
        if largest > 255 {
            assert!(integers.is_none(), "{expected:?}");
            return;
        }
        let Integers { stored, largest: found } = integers.expect("integers of one byte or two");
        let is_byte = expected.iter().all(|elem| (-128..=127).contains(elem));
        assert_eq!(stored.dtype(), if is_byte { DType::I8 } else { DType::I16 });
        assert_eq!((stored.to_i64s(), found), (expected, largest));
        assert_eq!(stored.shape().len(), graph.rank(value));
    }

    #[test]
    fn integers_are_those_of_the_evaluator() {
        for (dtype, step) in [(DType::U8, 1), (DType::U8, 37), (DType::I8, 1), (DType::I8, 91)] {
            for zero_step in [0, 1, 77] {
                let graph = &mut Graph::default();
                let bytes = constant(graph, dtype, &[4, 6], step);
                assert_contents(graph, bytes);
                for wide in [DType::I16, DType::I32, DType::I64, DType::U16] {
                    let cast = graph.cast(wide, bytes).expect("a cast");
                    assert_contents(graph, cast);
                    let zeros = constant(graph, dtype, &[4, 1], zero_step);
                    let zeros = graph.cast(wide, zeros).expect("a cast");
                    let difference = graph.sub(cast, zeros).expect("a difference");
                    assert_contents(graph, difference);
                    let turned = graph.transpose(difference, &[1, 0]).expect("a permutation");
                    assert_contents(graph, turned);
                    let doubled = graph.add(difference, difference).expect("a sum");
                    assert_contents(graph, doubled);
                    let zero = graph.number(wide, zero_step as f64 - 3.0).expect("a number");
                    let difference = graph.sub(turned, zero).expect("a difference");
                    assert_contents(graph, difference);
                    let difference = graph.sub(cast, zero).expect("a difference");
                    assert_contents(graph, difference);
                }
            }
        }
    }

    #[test]
    fn a_difference_of_bytes_that_wraps_is_evaluated() {
        let graph = &mut Graph::default();
        let bytes = constant(graph, DType::U8, &[5], 50);
        let zeros = constant(graph, DType::U8, &[5], 70);
        let difference = graph.sub(bytes, zeros).expect("a difference");
        let wide = graph.cast(DType::I32, difference).expect("a cast");
        assert_contents(graph, difference);
        assert_contents(graph, wide);
    }

    #[test]
    fn sums_are_those_of_the_evaluator() {
        let reduced: [&[usize]; 8] = [&[], &[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];
        for shape in [[3, 4, 5], [2, 1, 7], [1, 1, 1], [3, 0, 2], [0, 2, 3], [2, 3, 0]] {
            for (dtype, step) in [(DType::I8, 37), (DType::I16, 41)] {
                for axes in reduced {
                    let graph = &mut Graph::default();
                    let stored = constant(graph, dtype, &shape, step);
                    let wide = graph.cast(DType::I32, stored).expect("a cast");
                    let sum = graph.reduce(ReduceOp::Sum, wide, axes, false).expect("a reduction");
                    let expected = &values(graph, &Binding::new(), &[], &[sum]).expect("a fixed value")[0];
                    let stored = graph.as_constant(stored).expect("a constant");
                    let sums = sums(stored, axes).expect("sums of the kept axes");
                    assert_eq!(sums.shape(), expected.shape());
                    assert_eq!(sums.to_i64s(), expected.to_i64s(), "{shape:?} over {axes:?}");
                }
            }
        }
    }
}
