//! The steps of elementwise operators, for a block of elements.

use super::{functions, wide};
use crate::scalar::{BinaryOp, CompareOp, Reg, Scalar, Step, UnaryOp, eval as scalar};
use std::borrow::Cow;
use symshape_runtime::DType;

/// The values of a register for the elements of a block.
#[derive(Clone)]
pub(super) enum Column<'c> {
    Floats(Cow<'c, [f32]>),
    Bools(Vec<bool>),
    Scalars(Vec<Scalar>),
}

impl Column<'_> {
    pub(super) fn get(&self, idx: usize) -> Scalar {
        match self {
            Column::Floats(elems) => Scalar::f32(elems[idx]),
            Column::Bools(elems) => Scalar::bool(elems[idx]),
            Column::Scalars(elems) => elems[idx],
        }
    }

    /// The elements of an `f32` column.
    pub(super) fn floats(self, len: usize) -> Vec<f32> {
        match self {
            Column::Floats(elems) => elems.into_owned(),
            other => (0..len).map(|idx| other.get(idx).as_f64() as f32).collect(),
        }
    }
}

/// The values of a step, of this type.
pub(super) fn column<'c>(step: &Step, dtype: DType, columns: &[Column<'c>], len: usize) -> Column<'c> {
    if let Some(column) = vector(step, columns, len) {
        return column;
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
    match dtype {
        DType::F32 => Column::Floats((0..len).map(|idx| value(idx).as_f64() as f32).collect()),
        DType::Bool => Column::Bools((0..len).map(|idx| value(idx).is_true()).collect()),
        _ => Column::Scalars((0..len).map(value).collect()),
    }
}

/// The values of a step that has a loop over slices.
fn vector<'c>(step: &Step, columns: &[Column<'c>], len: usize) -> Option<Column<'c>> {
    let floats = |reg: &Reg| match &columns[reg.0 as usize] {
        Column::Floats(elems) => Some(&elems[..]),
        _ => None,
    };
    let result = match step {
        Step::Const(value) if value.dtype() == DType::F32 => vec![value.as_f64() as f32; len],
        Step::Unary(op, x) => unary(*op, floats(x)?)?,
        Step::Binary(op, x, y) => binary(*op, floats(x)?, floats(y)?)?,
        Step::Compare(op, x, y) => return Some(Column::Bools(compare(*op, floats(x)?, floats(y)?))),
        Step::Select(c, x, y) => {
            let Column::Bools(chosen) = &columns[c.0 as usize] else { return None };
            let values = floats(x)?.iter().zip(floats(y)?);
            chosen.iter().zip(values).map(|(first, (x, y))| if *first { *x } else { *y }).collect()
        }
        Step::Cast(DType::F32, x) => match &columns[x.0 as usize] {
            Column::Bools(elems) => elems.iter().map(|x| f32::from(u8::from(*x))).collect(),
            _ => return None,
        },
        _ => return None,
    };
    Some(Column::Floats(Cow::Owned(result)))
}

fn unary(op: UnaryOp, x: &[f32]) -> Option<Vec<f32>> {
    fn all(x: &[f32], f: impl FnOnce(&[f32], &mut [f32])) -> Option<Vec<f32>> {
        let mut out = vec![0.0; x.len()];
        f(x, &mut out);
        Some(out)
    }
    fn each(x: &[f32], f: impl Fn(f32) -> f32) -> Option<Vec<f32>> {
        all(x, |x, out| wide::map(x, out, f))
    }
    match op {
        UnaryOp::Neg => each(x, |x| -x),
        UnaryOp::Abs => each(x, f32::abs),
        UnaryOp::Sqrt => each(x, f32::sqrt),
        UnaryOp::Recip => each(x, |x| 1.0 / x),
        UnaryOp::Exp => all(x, wide::exp),
        UnaryOp::Tanh => all(x, wide::tanh),
        UnaryOp::Erf => all(x, wide::erf),
        _ => None,
    }
}

fn binary(op: BinaryOp, x: &[f32], y: &[f32]) -> Option<Vec<f32>> {
    fn each(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> Option<Vec<f32>> {
        let mut out = vec![0.0; x.len()];
        wide::map_two(x, y, &mut out, f);
        Some(out)
    }
    match op {
        BinaryOp::Add => each(x, y, |x, y| x + y),
        BinaryOp::Sub => each(x, y, |x, y| x - y),
        BinaryOp::Mul => each(x, y, |x, y| x * y),
        BinaryOp::Div => each(x, y, |x, y| x / y),
        BinaryOp::Min => each(x, y, functions::min),
        BinaryOp::Max => each(x, y, functions::max),
        _ => None,
    }
}

fn compare(op: CompareOp, x: &[f32], y: &[f32]) -> Vec<bool> {
    fn each(x: &[f32], y: &[f32], f: impl Fn(&f32, &f32) -> bool) -> Vec<bool> {
        x.iter().zip(y).map(|(x, y)| f(x, y)).collect()
    }
    match op {
        CompareOp::Eq => each(x, y, |x, y| x == y),
        CompareOp::Ne => each(x, y, |x, y| x != y),
        CompareOp::Lt => each(x, y, |x, y| x < y),
        CompareOp::Le => each(x, y, |x, y| x <= y),
        CompareOp::Gt => each(x, y, |x, y| x > y),
        CompareOp::Ge => each(x, y, |x, y| x >= y),
    }
}
