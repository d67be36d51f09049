//! [`V`]: a value of the function that is being emitted. It has the operators of Rust, so that formulas are easy to
//! read.
//!
//! All code is straight-line: if a definition has cases, all are computed and [`V::pick`] selects one.

use super::super::FuncCtx;
use crate::error::Result;
use cranelift_codegen::ir::{
    Block, BlockArg, InstBuilder, MemFlagsData, Type, Value,
    condcodes::{FloatCC, IntCC},
    types,
};
use cranelift_frontend::FunctionBuilder;
use std::{
    cell::RefCell,
    ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Shl, Shr, Sub},
};

/// The function that the instructions of a formula are appended to.
pub(super) trait Sink {
    /// Emits instructions.
    fn emit(&self, emit: &mut dyn FnMut(&mut FunctionBuilder<'_>) -> Value) -> Value;

    /// The address of a read-only table.
    fn table(&self, name: &str, words: &[i64]) -> Result<Value>;
}

/// The sink that appends to a [`FuncCtx`].
pub(super) struct Emit<'a, 'f, 'u>(pub(super) RefCell<&'a mut FuncCtx<'f, 'u>>);

impl Sink for Emit<'_, '_, '_> {
    fn emit(&self, emit: &mut dyn FnMut(&mut FunctionBuilder<'_>) -> Value) -> Value {
        emit(&mut self.0.borrow_mut().builder)
    }

    fn table(&self, name: &str, words: &[i64]) -> Result<Value> {
        let mut f = self.0.borrow_mut();
        let data = f.unit.table(name, words)?;
        Ok(f.data_address(data))
    }
}

/// A double, a 64-bit integer, or a truth value.
#[derive(Clone, Copy)]
pub(super) struct V<'e> {
    pub(super) sink: &'e dyn Sink,
    pub(super) value: Value,
}

impl<'e> V<'e> {
    fn with(self, mut emit: impl FnMut(&mut FunctionBuilder<'_>) -> Value) -> V<'e> {
        V { sink: self.sink, value: self.sink.emit(&mut emit) }
    }

    /// A double.
    pub(super) fn float(self, value: f64) -> V<'e> {
        self.with(|b| b.ins().f64const(value))
    }

    /// A 64-bit integer.
    pub(super) fn int(self, value: i64) -> V<'e> {
        self.with(|b| b.ins().iconst(types::I64, value))
    }

    fn is_float(self) -> bool {
        let mut ty: Type = types::I64;
        self.sink.emit(&mut |b| {
            ty = b.func.dfg.value_type(self.value);
            self.value
        });
        ty == types::F64
    }

    /// The bits of a double.
    pub(super) fn bits(self) -> V<'e> {
        self.with(|b| b.ins().bitcast(types::I64, MemFlagsData::new(), self.value))
    }

    /// The double with these bits.
    pub(super) fn with_bits(self) -> V<'e> {
        self.with(|b| b.ins().bitcast(types::F64, MemFlagsData::new(), self.value))
    }

    /// A double whose value is an integer, as that integer.
    pub(super) fn to_int(self) -> V<'e> {
        self.with(|b| b.ins().fcvt_to_sint_sat(types::I64, self.value))
    }

    /// A signed integer as a double.
    pub(super) fn to_float(self) -> V<'e> {
        self.with(|b| b.ins().fcvt_from_sint(types::F64, self.value))
    }

    /// An unsigned integer as a double.
    pub(super) fn unsigned_to_float(self) -> V<'e> {
        self.with(|b| b.ins().fcvt_from_uint(types::F64, self.value))
    }

    /// A truth value as an integer.
    pub(super) fn truth_to_int(self) -> V<'e> {
        self.with(|b| b.ins().uextend(types::I64, self.value))
    }

    pub(super) fn abs(self) -> V<'e> {
        self.with(|b| b.ins().fabs(self.value))
    }

    pub(super) fn sqrt(self) -> V<'e> {
        self.with(|b| b.ins().sqrt(self.value))
    }

    /// Nearest integer, halves to even.
    pub(super) fn round(self) -> V<'e> {
        self.with(|b| b.ins().nearest(self.value))
    }

    pub(super) fn trunc(self) -> V<'e> {
        self.with(|b| b.ins().trunc(self.value))
    }

    /// The smaller one, or NaN if either is NaN.
    pub(super) fn min(self, other: f64) -> V<'e> {
        let other = self.float(other);
        self.with(|b| b.ins().fmin(self.value, other.value))
    }

    /// The larger one, or NaN if either is NaN.
    pub(super) fn max(self, other: f64) -> V<'e> {
        let other = self.float(other);
        self.with(|b| b.ins().fmax(self.value, other.value))
    }

    /// The magnitude of `self` with the sign of `sign`.
    pub(super) fn copysign(self, sign: V<'e>) -> V<'e> {
        self.with(|b| b.ins().fcopysign(self.value, sign.value))
    }

    /// The double without the lower half of its bits.
    pub(super) fn high(self) -> V<'e> {
        (self.bits() & self.int(!0xffff_ffff)).with_bits()
    }

    /// The upper half of the product of two unsigned integers.
    pub(super) fn mul_high(self, other: V<'e>) -> V<'e> {
        self.with(|b| b.ins().umulhi(self.value, other.value))
    }

    /// Shifts right, filling with zeros.
    pub(super) fn shr_unsigned(self, by: V<'e>) -> V<'e> {
        self.with(|b| b.ins().ushr(self.value, by.value))
    }

    /// Shifts left.
    pub(super) fn shl_by(self, by: V<'e>) -> V<'e> {
        self.with(|b| b.ins().ishl(self.value, by.value))
    }

    /// The word at this address.
    pub(super) fn load(self, offset: i32) -> V<'e> {
        self.with(|b| b.ins().load(types::I64, MemFlagsData::trusted().with_readonly(), self.value, offset))
    }

    fn fcmp(self, cc: FloatCC, other: V<'e>) -> V<'e> {
        self.with(|b| b.ins().fcmp(cc, self.value, other.value))
    }

    fn icmp(self, cc: IntCC, other: V<'e>) -> V<'e> {
        self.with(|b| b.ins().icmp(cc, self.value, other.value))
    }

    pub(super) fn lt(self, other: f64) -> V<'e> {
        self.fcmp(FloatCC::LessThan, self.float(other))
    }

    pub(super) fn gt(self, other: f64) -> V<'e> {
        self.fcmp(FloatCC::GreaterThan, self.float(other))
    }

    pub(super) fn ge(self, other: f64) -> V<'e> {
        self.fcmp(FloatCC::GreaterThanOrEqual, self.float(other))
    }

    pub(super) fn eq(self, other: f64) -> V<'e> {
        self.fcmp(FloatCC::Equal, self.float(other))
    }

    /// Equality of two doubles.
    pub(super) fn same(self, other: V<'e>) -> V<'e> {
        self.fcmp(FloatCC::Equal, other)
    }

    pub(super) fn is_nan(self) -> V<'e> {
        self.fcmp(FloatCC::Unordered, self)
    }

    /// Comparisons of signed integers.
    pub(super) fn int_lt(self, other: i64) -> V<'e> {
        self.icmp(IntCC::SignedLessThan, self.int(other))
    }

    pub(super) fn int_ge(self, other: i64) -> V<'e> {
        self.icmp(IntCC::SignedGreaterThanOrEqual, self.int(other))
    }

    pub(super) fn int_eq(self, other: i64) -> V<'e> {
        self.icmp(IntCC::Equal, self.int(other))
    }

    /// Whether an unsigned sum has wrapped: it is below one of its terms.
    pub(super) fn wrapped(self, term: V<'e>) -> V<'e> {
        self.icmp(IntCC::UnsignedLessThan, term).truth_to_int()
    }

    /// `!self` of a truth value.
    pub(super) fn not(self) -> V<'e> {
        self.with(|b| b.ins().bxor_imm_u(self.value, 1))
    }

    /// The first argument if this truth value holds, else the second.
    pub(super) fn pick(self, yes: V<'e>, no: V<'e>) -> V<'e> {
        self.with(|b| b.ins().select(self.value, yes.value, no.value))
    }

    /// `pick` with a constant.
    pub(super) fn pick_const(self, yes: f64, no: V<'e>) -> V<'e> {
        self.pick(self.float(yes), no)
    }

    /// `c[0] + self * (c[1] + self * (…))`.
    pub(super) fn poly(self, coefficients: &[f64]) -> V<'e> {
        let (last, rest) = coefficients.split_last().expect("a polynomial has a coefficient");
        rest.iter().rev().fold(self.float(*last), |sum, c| self * sum + *c)
    }

    /// `self * 2^k`, rounded once even if it is subnormal, for `|k| < 2000`.
    pub(super) fn scale(self, k: V<'e>) -> V<'e> {
        let half = k >> 1;
        let rest = k - half;
        let power = |k: V<'e>| ((k + 1023) << 52).with_bits();
        self * power(half) * power(rest)
    }

    /// Runs the first closure if this truth value holds, else the second. Both return the same number of values.
    pub(super) fn branch<const N: usize>(
        self,
        yes: impl FnOnce() -> Result<[V<'e>; N]>,
        no: impl FnOnce() -> Result<[V<'e>; N]>,
    ) -> Result<[V<'e>; N]> {
        let mut blocks: Vec<Block> = Vec::new();
        self.with(|b| {
            blocks = (0..3).map(|_| b.create_block()).collect();
            b.ins().brif(self.value, blocks[0], &[], blocks[1], &[]);
            b.switch_to_block(blocks[0]);
            self.value
        });

        let results = yes()?;
        self.with(|b| {
            let args = results.map(|v| BlockArg::Value(v.value));
            b.ins().jump(blocks[2], &args);
            b.switch_to_block(blocks[1]);
            self.value
        });

        let others = no()?;
        let mut merged = Vec::new();
        self.with(|b| {
            let args = others.map(|v| BlockArg::Value(v.value));
            b.ins().jump(blocks[2], &args);
            for other in &others {
                let ty = b.func.dfg.value_type(other.value);
                merged.push(b.append_block_param(blocks[2], ty));
            }
            b.switch_to_block(blocks[2]);
            self.value
        });

        Ok(std::array::from_fn(|idx| V { sink: self.sink, value: merged[idx] }))
    }
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $float:ident $int:ident;)*) => { $(
        impl<'e> $trait for V<'e> {
            type Output = V<'e>;
            fn $method(self, other: V<'e>) -> V<'e> {
                if self.is_float() { self.with(|b| b.ins().$float(self.value, other.value)) } else { self.with(|b| b.ins().$int(self.value, other.value)) }
            }
        }
        impl<'e> $trait<f64> for V<'e> {
            type Output = V<'e>;
            fn $method(self, other: f64) -> V<'e> {
                $trait::$method(self, self.float(other))
            }
        }
        impl<'e> $trait<V<'e>> for f64 {
            type Output = V<'e>;
            fn $method(self, other: V<'e>) -> V<'e> {
                $trait::$method(other.float(self), other)
            }
        }
        impl<'e> $trait<i64> for V<'e> {
            type Output = V<'e>;
            fn $method(self, other: i64) -> V<'e> {
                $trait::$method(self, self.int(other))
            }
        }
    )* };
}

arithmetic! {
    Add add fadd iadd;
    Sub sub fsub isub;
    Mul mul fmul imul;
    Div div fdiv sdiv;
}

impl<'e> Neg for V<'e> {
    type Output = V<'e>;
    fn neg(self) -> V<'e> {
        if self.is_float() {
            self.with(|b| b.ins().fneg(self.value))
        } else {
            self.with(|b| b.ins().ineg(self.value))
        }
    }
}

impl<'e> BitAnd for V<'e> {
    type Output = V<'e>;
    fn bitand(self, other: V<'e>) -> V<'e> {
        self.with(|b| b.ins().band(self.value, other.value))
    }
}

impl<'e> BitOr for V<'e> {
    type Output = V<'e>;
    fn bitor(self, other: V<'e>) -> V<'e> {
        self.with(|b| b.ins().bor(self.value, other.value))
    }
}

impl<'e> Shl<i64> for V<'e> {
    type Output = V<'e>;
    fn shl(self, by: i64) -> V<'e> {
        self.with(|b| b.ins().ishl_imm_u(self.value, by))
    }
}

/// Arithmetic.
impl<'e> Shr<i64> for V<'e> {
    type Output = V<'e>;
    fn shr(self, by: i64) -> V<'e> {
        self.with(|b| b.ins().sshr_imm_u(self.value, by))
    }
}
