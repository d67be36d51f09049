//! Elementwise operators: each step of the body for a block of elements.

use crate::{
    error::{Error, Result},
    graph::eval::writer::{TensorBuilder, from_floats},
    scalar::{BinaryOp, Body, Reg, Scalar, Step, UnaryOp, eval as scalar},
    tensor::Tensor,
};
use symshape_runtime::DType;

/// Elements of a block: its registers stay in the first-level cache.
const BLOCK: usize = 512;

/// The values of a register for the elements of a block.
enum Column {
    Floats(Vec<f32>),
    Scalars(Vec<Scalar>),
}

/// The operand of a map in the form that columns are cut from.
enum Operand<'t> {
    Floats(Vec<f32>),
    Other(&'t Tensor),
}

/// The body for all elements. `None` if nothing of it is `f32`.
pub(super) fn map(body: &Body, operands: &[Tensor], shape: &[usize]) -> Result<Option<Tensor>> {
    let types = body.types();
    if !types.contains(&DType::F32) {
        return Ok(None);
    }
    let operands: Vec<Operand> = operands.iter().map(Operand::of).collect();
    let elems: usize = shape.iter().product();
    let dtype = body.dtype();
    let mut results = Vec::new();
    let mut out = TensorBuilder::new(dtype, shape);
    for start in (0..elems).step_by(BLOCK) {
        let len = BLOCK.min(elems - start);
        let mut columns: Vec<Column> = operands.iter().map(|operand| operand.column(start, len)).collect();
        for (step, dtype) in body.steps.iter().zip(&types[body.params.len()..]) {
            let column = column(step, *dtype, &columns, len);
            columns.push(column);
        }
        let result = columns.get(body.result.0 as usize);
        match result.ok_or_else(|| Error::internal("a body without its result"))? {
            Column::Floats(block) => results.extend_from_slice(block),
            Column::Scalars(block) => block.iter().for_each(|value| out.push(*value)),
        }
    }
    if dtype == DType::F32 { from_floats(shape, &results).map(Some) } else { out.finish(shape).map(Some) }
}

impl Operand<'_> {
    fn of(tensor: &Tensor) -> Operand<'_> {
        if tensor.dtype() == DType::F32 { Operand::Floats(tensor.to_f32s()) } else { Operand::Other(tensor) }
    }

    fn column(&self, start: usize, len: usize) -> Column {
        match self {
            Operand::Floats(elems) => Column::Floats(elems[start..start + len].to_vec()),
            Operand::Other(tensor) => {
                Column::Scalars((start..start + len).map(|idx| tensor.get(idx)).collect())
            }
        }
    }
}

impl Column {
    fn get(&self, idx: usize) -> Scalar {
        match self {
            Column::Floats(elems) => Scalar::f32(elems[idx]),
            Column::Scalars(elems) => elems[idx],
        }
    }
}

/// The values of a step, of this type.
fn column(step: &Step, dtype: DType, columns: &[Column], len: usize) -> Column {
    if dtype == DType::F32
        && let Some(elems) = floats_of(step, columns, len)
    {
        return Column::Floats(elems);
    }
    let at = |reg: &Reg, idx: usize| columns[reg.0 as usize].get(idx);
    let value = |idx: usize| match step {
        Step::Const(value) => *value,
        Step::Unary(op, x) => scalar::unary(*op, at(x, idx)),
        Step::Binary(op, x, y) => scalar::binary(*op, at(x, idx), at(y, idx)),
        Step::Compare(op, x, y) => Scalar::bool(scalar::compare(*op, at(x, idx), at(y, idx))),
        Step::Select(c, x, y) => at(if at(c, idx).is_true() { x } else { y }, idx),
        Step::Cast(to, x) => scalar::cast(*to, at(x, idx)),
        Step::Bits(to, x) => Scalar::from_bits(*to, at(x, idx).bits()),
    };
    if dtype == DType::F32 {
        Column::Floats((0..len).map(|idx| value(idx).as_f64() as f32).collect())
    } else {
        Column::Scalars((0..len).map(value).collect())
    }
}

/// The values of a step that has a loop over slices.
fn floats_of(step: &Step, columns: &[Column], len: usize) -> Option<Vec<f32>> {
    let operand = |reg: &Reg| match &columns[reg.0 as usize] {
        Column::Floats(elems) => Some(&elems[..]),
        Column::Scalars(_) => None,
    };
    Some(match step {
        Step::Const(value) => vec![value.as_f64() as f32; len],
        Step::Unary(op, x) => unary(*op, operand(x)?)?,
        Step::Binary(op, x, y) => binary(*op, operand(x)?, operand(y)?)?,
        _ => return None,
    })
}

fn unary(op: UnaryOp, x: &[f32]) -> Option<Vec<f32>> {
    fn each(x: &[f32], f: impl Fn(f32) -> f32) -> Option<Vec<f32>> {
        Some(x.iter().map(|x| f(*x)).collect())
    }
    match op {
        UnaryOp::Neg => each(x, |x| -x),
        UnaryOp::Abs => each(x, f32::abs),
        UnaryOp::Sqrt => each(x, f32::sqrt),
        UnaryOp::Recip => each(x, |x| 1.0 / x),
        UnaryOp::Exp => each(x, |x| f64::from(x).exp() as f32),
        UnaryOp::Tanh => each(x, |x| f64::from(x).tanh() as f32),
        UnaryOp::Erf => each(x, |x| libm::erf(f64::from(x)) as f32),
        _ => None,
    }
}

fn binary(op: BinaryOp, x: &[f32], y: &[f32]) -> Option<Vec<f32>> {
    fn each(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> Option<Vec<f32>> {
        Some(x.iter().zip(y).map(|(x, y)| f(*x, *y)).collect())
    }
    match op {
        BinaryOp::Add => each(x, y, |x, y| x + y),
        BinaryOp::Sub => each(x, y, |x, y| x - y),
        BinaryOp::Mul => each(x, y, |x, y| x * y),
        BinaryOp::Div => each(x, y, |x, y| x / y),
        // NaN of either operand is the result, and `-0 < 0`.
        BinaryOp::Min => {
            each(x, y, |x, y| if x.is_nan() || x < y || (x == y && x.is_sign_negative()) { x } else { y })
        }
        BinaryOp::Max => {
            each(x, y, |x, y| if x.is_nan() || x > y || (x == y && y.is_sign_negative()) { x } else { y })
        }
        _ => None,
    }
}
