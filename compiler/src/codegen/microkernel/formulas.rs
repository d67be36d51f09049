//! Formulas for the 64-bit lanes of a vector, as steps of a microkernel.

use crate::{
    codegen::{
        formulas::{self, Binary, BranchCode, Formula, Handle, Kind, Sink, Table, Unary},
        vector::{
            Builder,
            vcode::{Mask, MaskOp, ShiftOp, VBinary, Vector, WideBinary, WideUnary},
        },
    },
    error::Result,
    scalar::{CompareOp, UnaryOp},
};
use std::cell::RefCell;

/// The sign bit of a 64-bit lane.
pub(super) const SIGN: u64 = 1 << 63;

/// A function of doubles. `in_f32` says that all arguments are representable in `f32`.
pub(super) fn unary(b: &mut Builder, op: UnaryOp, x: Vector, in_f32: bool) -> Vector {
    emit(b, Formula::Unary(op), x, x, in_f32)
}

/// `x^y` of doubles.
pub(super) fn pow(b: &mut Builder, x: Vector, y: Vector) -> Vector {
    emit(b, Formula::Pow, x, y, false)
}

/// The angles of the points `(x, y)`.
pub(super) fn atan2(b: &mut Builder, y: Vector, x: Vector) -> Vector {
    emit(b, Formula::Atan2, y, x, false)
}

fn emit(b: &mut Builder, formula: Formula, x: Vector, y: Vector, in_f32: bool) -> Vector {
    let sink = VectorSink { b: RefCell::new(b), in_f32 };
    let result = formulas::emit(formula, &sink, x.into(), y.into());
    result.expect("these functions have formulas, and vectors need no data objects").into()
}

/// The sink that appends to a [`Builder`].
struct VectorSink<'a> {
    b: RefCell<&'a mut Builder>,
    in_f32: bool,
}

impl From<Vector> for Handle {
    fn from(vector: Vector) -> Handle {
        Handle(vector.0)
    }
}

impl From<Mask> for Handle {
    fn from(mask: Mask) -> Handle {
        Handle(mask.0)
    }
}

impl From<Handle> for Vector {
    fn from(handle: Handle) -> Vector {
        Vector(handle.0)
    }
}

impl From<Handle> for Mask {
    fn from(handle: Handle) -> Mask {
        Mask(handle.0)
    }
}

impl Sink for VectorSink<'_> {
    fn float(&self, value: f64) -> Handle {
        self.b.borrow_mut().double(value).into()
    }

    fn int(&self, value: i64) -> Handle {
        self.b.borrow_mut().wide_bits(value as u64).into()
    }

    fn unary(&self, op: Unary, x: Handle) -> Handle {
        let b = &mut **self.b.borrow_mut();
        let vector = match op {
            Unary::Bits | Unary::WithBits => return x,
            Unary::Not => return not(b, x.into()).into(),
            Unary::ToInt => b.double_to_int(x.into()),
            Unary::ToSmallInt => b.small_double_to_int(x.into()),
            Unary::ToFloat => b.int_to_double(x.into()),
            Unary::UnsignedToFloat => b.unsigned_to_double(x.into()),
            Unary::TruthToInt => {
                let one = b.wide_bits(1);
                let zero = b.wide_bits(0);
                b.wide_select(x.into(), one, zero)
            }
            Unary::Abs => {
                let magnitude = b.wide_bits(!SIGN);
                b.binary(VBinary::And, x.into(), magnitude)
            }
            Unary::Sqrt => b.wide_unary(WideUnary::Sqrt, x.into()),
            Unary::Round => b.wide_unary(WideUnary::Nearest, x.into()),
            Unary::Trunc => b.wide_unary(WideUnary::Trunc, x.into()),
            Unary::NegFloat => {
                let sign = b.wide_bits(SIGN);
                b.binary(VBinary::Xor, x.into(), sign)
            }
            Unary::NegInt => {
                let zero = b.wide_bits(0);
                b.wide_binary(WideBinary::SubInt, zero, x.into())
            }
        };
        vector.into()
    }

    fn binary(&self, op: Binary, x: Handle, y: Handle) -> Handle {
        let b = &mut **self.b.borrow_mut();
        if let Some(mask) = truth_binary(b, op, x, y) {
            return mask.into();
        }

        let x: Vector = x.into();
        let y: Vector = y.into();
        let vector = match op {
            Binary::AddFloat => b.wide_binary(WideBinary::Add, x, y),
            Binary::SubFloat => b.wide_binary(WideBinary::Sub, x, y),
            Binary::MulFloat => b.wide_binary(WideBinary::Mul, x, y),
            Binary::DivFloat => b.wide_binary(WideBinary::Div, x, y),
            // Of unordered operands the second is returned, so `x` if it is NaN. The constant is not NaN.
            Binary::Min => b.wide_binary(WideBinary::Min, y, x),
            Binary::Max => b.wide_binary(WideBinary::Max, y, x),
            Binary::CopySign => {
                let sign = b.wide_bits(SIGN);
                let magnitude = b.wide_bits(!SIGN);
                let x = b.binary(VBinary::And, x, magnitude);
                let y = b.binary(VBinary::And, y, sign);
                b.binary(VBinary::Or, x, y)
            }
            Binary::AddInt => b.wide_binary(WideBinary::AddInt, x, y),
            Binary::SubInt => b.wide_binary(WideBinary::SubInt, x, y),
            Binary::MulInt => b.wide_mul(x, y),
            Binary::MulHigh => b.wide_mul_high(x, y),
            Binary::ShiftLeft => b.wide_binary(WideBinary::ShiftLeft, x, y),
            Binary::ShiftRight => b.wide_binary(WideBinary::ShiftRight, x, y),
            Binary::AndInt => b.binary(VBinary::And, x, y),
            Binary::OrInt => b.binary(VBinary::Or, x, y),
            _ => unreachable!("a truth value"),
        };
        vector.into()
    }

    fn shift(&self, is_left: bool, x: Handle, by: u8) -> Handle {
        let op = if is_left { ShiftOp::Left } else { ShiftOp::RightSigned };
        self.b.borrow_mut().wide_shift(op, x.into(), by).into()
    }

    fn select(&self, truth: Handle, yes: Handle, no: Handle) -> Handle {
        self.b.borrow_mut().wide_select(truth.into(), yes.into(), no.into()).into()
    }

    /// Not all ISAs load each lane from its own address, so the words are constants that are selected by the index.
    fn lookup(&self, table: &Table, idx: Handle, offset: usize) -> Result<Handle> {
        let b = &mut **self.b.borrow_mut();
        let max_idx = if self.in_f32 { table.max_idx_f32 } else { table.max_idx };
        let mut word = b.wide_bits(table.words[offset]);
        for candidate in 1..=max_idx {
            let here = b.wide_bits(candidate as u64);
            let here = b.wide_compare_int(CompareOp::Eq, idx.into(), here);
            let other = b.wide_bits(table.words[candidate as usize + offset]);
            word = b.wide_select(here, other, word);
        }
        Ok(word.into())
    }

    /// Computes the values of `yes` for all lanes, and those of `no` only if some lane needs them.
    fn branch(&self, truth: Handle, yes: BranchCode<'_>, no: BranchCode<'_>) -> Result<Vec<Handle>> {
        let results: Vec<Vector> = yes()?.into_iter().map(|value| self.variable(value)).collect();
        {
            let b = &mut **self.b.borrow_mut();
            let others = not(b, truth.into());
            let any = b.any_lane(others);
            b.begin_when(CompareOp::Ne, any, 0);
        }
        let others = no()?;

        let b = &mut **self.b.borrow_mut();
        for (&result, (other, _)) in results.iter().zip(others) {
            let merged = b.wide_select(truth.into(), result, other.into());
            b.set(result, merged);
        }
        b.end_when();
        Ok(results.into_iter().map(Handle::from).collect())
    }
}

impl VectorSink<'_> {
    /// A fresh register with a value of a branch.
    fn variable(&self, (handle, kind): (Handle, Kind)) -> Vector {
        assert_ne!(kind, Kind::Truth, "branches give numbers");
        self.b.borrow_mut().variable(handle.into())
    }
}

/// The complement of a mask of 64-bit lanes.
fn not(b: &mut Builder, mask: Mask) -> Mask {
    let zero = b.wide_bits(0);
    let all = b.wide_compare_int(CompareOp::Eq, zero, zero);
    b.mask_op(MaskOp::Xor, mask, all)
}

/// The operations whose results are truth values.
fn truth_binary(b: &mut Builder, op: Binary, x: Handle, y: Handle) -> Option<Mask> {
    let float = |op: CompareOp| (false, op);
    let int = |op: CompareOp| (true, op);
    let (is_int, op) = match op {
        Binary::AndTruth => return Some(b.mask_op(MaskOp::And, x.into(), y.into())),
        Binary::OrTruth => return Some(b.mask_op(MaskOp::Or, x.into(), y.into())),
        Binary::Unordered => {
            let first = b.wide_compare(CompareOp::Ne, x.into(), x.into());
            let second = b.wide_compare(CompareOp::Ne, y.into(), y.into());
            return Some(b.mask_op(MaskOp::Or, first, second));
        }
        Binary::Below => {
            let sign = b.wide_bits(SIGN);
            let x = b.binary(VBinary::Xor, x.into(), sign);
            let y = b.binary(VBinary::Xor, y.into(), sign);
            return Some(b.wide_compare_int(CompareOp::Lt, x, y));
        }
        Binary::Lt => float(CompareOp::Lt),
        Binary::Gt => float(CompareOp::Gt),
        Binary::Ge => float(CompareOp::Ge),
        Binary::Eq => float(CompareOp::Eq),
        Binary::IntLt => int(CompareOp::Lt),
        Binary::IntGe => int(CompareOp::Ge),
        Binary::IntEq => int(CompareOp::Eq),
        _ => return None,
    };
    Some(if is_int {
        b.wide_compare_int(op, x.into(), y.into())
    } else {
        b.wide_compare(op, x.into(), y.into())
    })
}
