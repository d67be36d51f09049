//! The scalar vocabulary as instructions: constants, operators and conversions on registers.
//!
//! Halves are kept in single precision and are rounded by stores and casts. All other semantics are those of
//! [`crate::scalar::eval`].

use super::{FuncCtx, math::Math};
use crate::{
    error::{Error, Result},
    scalar::{BinaryOp, CompareOp, ReduceOp, Scalar, UnaryOp},
};
use cranelift_codegen::ir::{
    InstBuilder, MemFlagsData, Type, Value,
    condcodes::{FloatCC, IntCC},
    types,
};
use symshape_runtime::DType;

impl FuncCtx<'_, '_> {
    /// A constant in a register.
    pub(crate) fn constant(&mut self, scalar: Scalar) -> Value {
        match Self::reg_type(scalar.dtype()) {
            types::F32 => self.ins().f32const(scalar.as_f64() as f32),
            types::F64 => self.ins().f64const(scalar.as_f64()),
            ty => self.ins().iconst(ty, narrowed(scalar.bits(), ty)),
        }
    }

    /// Loads an element.
    pub(crate) fn load(&mut self, dtype: DType, address: Value, offset: i32) -> Value {
        let flags = MemFlagsData::new().with_notrap();
        match dtype {
            DType::F16 => {
                let bits = self.ins().load(types::I16, flags, address, offset);
                self.f32_from_f16(bits)
            }
            DType::BF16 => {
                let bits = self.ins().load(types::I16, flags, address, offset);
                self.f32_from_bf16(bits)
            }
            _ => self.ins().load(Self::reg_type(dtype), flags, address, offset),
        }
    }

    /// Stores an element.
    pub(crate) fn store(&mut self, dtype: DType, value: Value, address: Value, offset: i32) {
        let value = match dtype {
            DType::F16 => self.f16_from_f32(value),
            DType::BF16 => self.bf16_from_f32(value),
            _ => value,
        };
        self.ins().store(MemFlagsData::new().with_notrap(), value, address, offset);
    }

    pub(crate) fn f32_from_bf16(&mut self, bits: Value) -> Value {
        let wide = self.ins().uextend(types::I32, bits);
        let wide = self.ins().ishl_imm_u(wide, 16);
        self.ins().bitcast(types::F32, MemFlagsData::new(), wide)
    }

    pub(crate) fn bf16_from_f32(&mut self, value: Value) -> Value {
        let bits = self.ins().bitcast(types::I32, MemFlagsData::new(), value);
        let high = self.ins().ushr_imm_u(bits, 16);
        let odd = self.ins().band_imm_u(high, 1);
        let biased = self.ins().iadd_imm_u(bits, 0x7fff);
        let sum = self.ins().iadd(biased, odd);
        let rounded = self.ins().ushr_imm_u(sum, 16);
        let quiet = self.ins().bor_imm_u(high, 0x40);
        let nan = self.ins().fcmp(FloatCC::Unordered, value, value);
        let result = self.ins().select(nan, quiet, rounded);
        self.ins().ireduce(types::I16, result)
    }

    /// A multiplication changes the bias of the exponent. It is exact, for subnormal numbers too.
    pub(crate) fn f32_from_f16(&mut self, bits: Value) -> Value {
        let wide = self.ins().uextend(types::I32, bits);
        let magnitude = self.ins().band_imm_u(wide, 0x7fff);
        let shifted = self.ins().ishl_imm_u(magnitude, 13);
        let small = self.ins().bitcast(types::F32, MemFlagsData::new(), shifted);
        let scale = self.ins().f32const(f32::from_bits((112 + 127) << 23));
        let finite = self.ins().fmul(small, scale);
        let finite = self.ins().bitcast(types::I32, MemFlagsData::new(), finite);
        let special = self.ins().bor_imm_u(shifted, 0x7f80_0000);
        let is_special = self.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, magnitude, 0x7c00);
        let unsigned = self.ins().select(is_special, special, finite);
        let sign = self.ins().band_imm_u(wide, 0x8000);
        let sign = self.ins().ishl_imm_u(sign, 16);
        let result = self.ins().bor(unsigned, sign);

        self.ins().bitcast(types::F32, MemFlagsData::new(), result)
    }

    /// Rounds to nearest even: normal results by an addition to the bits, subnormal ones by adding a float so large
    /// that the last bit of the sum is the last bit to keep.
    pub(crate) fn f16_from_f32(&mut self, value: Value) -> Value {
        let bits = self.ins().bitcast(types::I32, MemFlagsData::new(), value);
        let sign = self.ins().ushr_imm_u(bits, 16);
        let sign = self.ins().band_imm_u(sign, 0x8000);
        let magnitude = self.ins().band_imm_u(bits, 0x7fff_ffff);
        let odd = self.ins().ushr_imm_u(magnitude, 13);
        let odd = self.ins().band_imm_u(odd, 1);

        let rebias = 0xfff - (112i64 << 23);
        let sum = self.ins().iadd_imm_s(magnitude, rebias);
        let sum = self.ins().iadd(sum, odd);
        let normal = self.ins().ushr_imm_u(sum, 13);

        let half = self.ins().f32const(0.5);
        let absolute = self.ins().fabs(value);
        let aligned = self.ins().fadd(absolute, half);
        let aligned = self.ins().bitcast(types::I32, MemFlagsData::new(), aligned);
        let subnormal = self.ins().iadd_imm_s(aligned, -0x3f00_0000);

        let is_small = self.ins().icmp_imm_u(IntCC::UnsignedLessThan, magnitude, 0x3880_0000);
        let finite = self.ins().select(is_small, subnormal, normal);

        let infinity = self.ins().iconst(types::I32, 0x7c00);
        let overflows = self.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, magnitude, 0x477f_f000);
        let result = self.ins().select(overflows, infinity, finite);

        let nan = self.ins().iconst(types::I32, 0x7e00);
        let is_nan = self.ins().fcmp(FloatCC::Unordered, value, value);
        let result = self.ins().select(is_nan, nan, result);
        let result = self.ins().bor(result, sign);

        self.ins().ireduce(types::I16, result)
    }

    /// The operator applied to a register of this type.
    pub(crate) fn unary(&mut self, op: UnaryOp, dtype: DType, x: Value) -> Result<Value> {
        if let Some(math) = Math::unary(op) {
            return self.math(math, dtype, &[x]);
        }
        if dtype.is_float() { self.unary_float(op, x) } else { self.unary_int(op, dtype, x) }
    }

    fn unary_float(&mut self, op: UnaryOp, x: Value) -> Result<Value> {
        Ok(match op {
            UnaryOp::Neg => self.ins().fneg(x),
            UnaryOp::Abs => self.ins().fabs(x),
            UnaryOp::Floor => self.ins().floor(x),
            UnaryOp::Ceil => self.ins().ceil(x),
            UnaryOp::Round => self.ins().nearest(x),
            UnaryOp::Trunc => self.ins().trunc(x),
            UnaryOp::Sqrt => self.ins().sqrt(x),
            UnaryOp::IsNan => self.ins().fcmp(FloatCC::Unordered, x, x),
            UnaryOp::Sign => {
                let one = self.float_like(x, 1.0);
                let zero = self.float_like(x, 0.0);
                let unit = self.ins().fcopysign(one, x);
                let signed = self.ins().fcmp(FloatCC::OrderedNotEqual, x, zero);
                self.ins().select(signed, unit, x)
            }
            UnaryOp::Recip => {
                let one = self.float_like(x, 1.0);
                self.ins().fdiv(one, x)
            }
            UnaryOp::RoundBf16 => {
                let rounded = self.rounded(DType::BF16, x);
                let magnitude = self.ins().fabs(x);
                let zero = self.float_like(x, 0.0);
                let smallest_normal = self.float_like(x, f32::MIN_POSITIVE.into());
                let zero = self.ins().fcopysign(zero, x);
                let is_denormal = self.ins().fcmp(FloatCC::LessThan, magnitude, smallest_normal);
                self.ins().select(is_denormal, zero, rounded)
            }
            UnaryOp::IsInf => {
                let magnitude = self.ins().fabs(x);
                let infinity = self.float_like(x, f64::INFINITY);
                self.ins().fcmp(FloatCC::Equal, magnitude, infinity)
            }
            _ => return Err(Error::internal(format!("{op:?} of a float"))),
        })
    }

    fn unary_int(&mut self, op: UnaryOp, dtype: DType, x: Value) -> Result<Value> {
        let ty = Self::reg_type(dtype);
        Ok(match op {
            UnaryOp::Neg => self.ins().ineg(x),
            UnaryOp::Abs if dtype.is_signed_int() => self.ins().iabs(x),
            UnaryOp::Abs | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => x,
            UnaryOp::Not if dtype == DType::Bool => self.ins().bxor_imm_u(x, 1),
            UnaryOp::Not => self.ins().bnot(x),
            UnaryOp::IsNan | UnaryOp::IsInf => self.zero(types::I8),
            UnaryOp::Sign => {
                let zero = self.zero(ty);
                let above = if dtype.is_signed_int() { IntCC::SignedGreaterThan } else { IntCC::NotEqual };
                let positive = self.ins().icmp(above, x, zero);
                let positive = self.widened(positive, ty, false);
                if !dtype.is_signed_int() {
                    return Ok(positive);
                }
                let negative = self.ins().icmp(IntCC::SignedLessThan, x, zero);
                let negative = self.widened(negative, ty, false);
                self.ins().isub(positive, negative)
            }
            _ => return Err(Error::internal(format!("{op:?} of {dtype}"))),
        })
    }

    /// The operator applied to two registers of this type.
    pub(crate) fn binary(&mut self, op: BinaryOp, dtype: DType, a: Value, b: Value) -> Result<Value> {
        if dtype.is_float() {
            return self.binary_float(op, dtype, a, b);
        }

        let unsigned = !dtype.is_signed_int();
        Ok(match op {
            // Sums and products of bools are bools, as in NumPy.
            BinaryOp::Add if dtype == DType::Bool => self.ins().bor(a, b),
            BinaryOp::Mul if dtype == DType::Bool => self.ins().band(a, b),
            BinaryOp::Sub if dtype == DType::Bool => self.ins().bxor(a, b),
            BinaryOp::Add => self.ins().iadd(a, b),
            BinaryOp::Sub => self.ins().isub(a, b),
            BinaryOp::Mul => self.ins().imul(a, b),
            BinaryOp::Div => self.divide(dtype, a, b),
            BinaryOp::Rem => self.remainder(dtype, a, b),
            BinaryOp::Mod => self.modulo(dtype, a, b),
            BinaryOp::Pow => return self.math(Math::Pow, dtype, &[a, b]),
            BinaryOp::Min if unsigned => self.ins().umin(a, b),
            BinaryOp::Min => self.ins().smin(a, b),
            BinaryOp::Max if unsigned => self.ins().umax(a, b),
            BinaryOp::Max => self.ins().smax(a, b),
            BinaryOp::And => self.ins().band(a, b),
            BinaryOp::Or => self.ins().bor(a, b),
            BinaryOp::Xor => self.ins().bxor(a, b),
            BinaryOp::Shl | BinaryOp::Shr => self.shift(op, dtype, a, b),
            BinaryOp::Atan2 => return Err(Error::internal(format!("{op:?} of {dtype}"))),
        })
    }

    fn binary_float(&mut self, op: BinaryOp, dtype: DType, a: Value, b: Value) -> Result<Value> {
        Ok(match op {
            BinaryOp::Add => self.ins().fadd(a, b),
            BinaryOp::Sub => self.ins().fsub(a, b),
            BinaryOp::Mul => self.ins().fmul(a, b),
            BinaryOp::Div => self.ins().fdiv(a, b),
            BinaryOp::Min => self.ins().fmin(a, b),
            BinaryOp::Max => self.ins().fmax(a, b),
            BinaryOp::Rem => return self.math(Math::Fmod, dtype, &[a, b]),
            BinaryOp::Mod => return self.math(Math::Mod, dtype, &[a, b]),
            BinaryOp::Pow => return self.math(Math::Pow, dtype, &[a, b]),
            BinaryOp::Atan2 => return self.math(Math::Atan2, dtype, &[a, b]),
            _ => return Err(Error::internal(format!("{op:?} of {dtype}"))),
        })
    }

    /// A divisor that can't trap, and whether the divisor is 0. The divisor is replaced by 1 if it is 0, or if it is
    /// -1 and the dividend is the smallest integer: 1 then gives the wrapped quotient and the remainder.
    fn safe_divisor(&mut self, dtype: DType, a: Value, b: Value) -> (Value, Value) {
        let ty = Self::reg_type(dtype);
        let one = self.ins().iconst(ty, 1);
        let by_zero = self.ins().icmp_imm_u(IntCC::Equal, b, 0);
        let safe = self.ins().select(by_zero, one, b);
        if !dtype.is_signed_int() {
            return (safe, by_zero);
        }
        let is_min = self.ins().icmp_imm_s(IntCC::Equal, a, i64::MIN >> (64 - ty.bits()));
        let is_minus_one = self.ins().icmp_imm_s(IntCC::Equal, b, -1);
        let overflows = self.ins().band(is_min, is_minus_one);
        (self.ins().select(overflows, one, safe), by_zero)
    }

    fn divide(&mut self, dtype: DType, a: Value, b: Value) -> Value {
        let (safe, by_zero) = self.safe_divisor(dtype, a, b);
        let quotient =
            if dtype.is_signed_int() { self.ins().sdiv(a, safe) } else { self.ins().udiv(a, safe) };
        let zero = self.zero(Self::reg_type(dtype));
        self.ins().select(by_zero, zero, quotient)
    }

    fn remainder(&mut self, dtype: DType, a: Value, b: Value) -> Value {
        let (safe, by_zero) = self.safe_divisor(dtype, a, b);
        let remainder =
            if dtype.is_signed_int() { self.ins().srem(a, safe) } else { self.ins().urem(a, safe) };
        let zero = self.zero(Self::reg_type(dtype));
        self.ins().select(by_zero, zero, remainder)
    }

    fn modulo(&mut self, dtype: DType, a: Value, b: Value) -> Value {
        let remainder = self.remainder(dtype, a, b);
        if !dtype.is_signed_int() {
            return remainder;
        }
        let signs = self.ins().bxor(remainder, b);
        let differ = self.ins().icmp_imm_s(IntCC::SignedLessThan, signs, 0);
        let inexact = self.ins().icmp_imm_s(IntCC::NotEqual, remainder, 0);
        let wrong = self.ins().band(differ, inexact);
        let shifted = self.ins().iadd(remainder, b);
        self.ins().select(wrong, shifted, remainder)
    }

    fn shift(&mut self, op: BinaryOp, dtype: DType, a: Value, b: Value) -> Value {
        let ty = Self::reg_type(dtype);
        let last = i64::from(ty.bits()) - 1;
        let beyond = self.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, b, last);
        if op == BinaryOp::Shr && dtype.is_signed_int() {
            let all = self.ins().iconst(ty, last);
            let by = self.ins().select(beyond, all, b);
            return self.ins().sshr(a, by);
        }

        let shifted = match op {
            BinaryOp::Shl => self.ins().ishl(a, b),
            _ => self.ins().ushr(a, b),
        };

        let zero = self.zero(ty);
        self.ins().select(beyond, zero, shifted)
    }

    /// The comparison of two registers of this type, as a bool.
    pub(crate) fn compare(&mut self, op: CompareOp, dtype: DType, a: Value, b: Value) -> Value {
        if dtype.is_float() {
            let cc = match op {
                CompareOp::Eq => FloatCC::Equal,
                CompareOp::Ne => FloatCC::NotEqual,
                CompareOp::Lt => FloatCC::LessThan,
                CompareOp::Le => FloatCC::LessThanOrEqual,
                CompareOp::Gt => FloatCC::GreaterThan,
                CompareOp::Ge => FloatCC::GreaterThanOrEqual,
            };
            return self.ins().fcmp(cc, a, b);
        }

        let cc = match op {
            CompareOp::Eq => IntCC::Equal,
            CompareOp::Ne => IntCC::NotEqual,
            CompareOp::Lt => IntCC::SignedLessThan,
            CompareOp::Le => IntCC::SignedLessThanOrEqual,
            CompareOp::Gt => IntCC::SignedGreaterThan,
            CompareOp::Ge => IntCC::SignedGreaterThanOrEqual,
        };

        let cc = if dtype.is_signed_int() { cc } else { cc.unsigned() };
        self.ins().icmp(cc, a, b)
    }

    /// `yes` if the bool holds, else `no`.
    pub(crate) fn select(&mut self, cond: Value, yes: Value, no: Value) -> Value {
        self.ins().select(cond, yes, no)
    }

    /// Combines a value into an accumulator.
    pub(crate) fn reduce(&mut self, op: ReduceOp, dtype: DType, acc: Value, value: Value) -> Result<Value> {
        let op = match op {
            ReduceOp::Sum => BinaryOp::Add,
            ReduceOp::Prod => BinaryOp::Mul,
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::Max => BinaryOp::Max,
        };
        self.binary(op, dtype, acc, value)
    }

    /// The initial value of an accumulator.
    pub(crate) fn neutral(&mut self, op: ReduceOp, dtype: DType) -> Value {
        let ty = Self::reg_type(dtype);
        let bits = u64::MAX >> (64 - ty.bits());

        let (min, max) = match dtype {
            DType::Bool => (0, 1),
            _ if dtype.is_signed_int() => (1 << (ty.bits() - 1), bits >> 1),
            _ => (0, bits),
        };

        match (op, dtype.is_float()) {
            (ReduceOp::Sum, _) => self.zero(ty),
            (ReduceOp::Prod, _) => self.constant(Scalar::from_i64(dtype, 1)),
            (ReduceOp::Min, true) => self.constant(Scalar::from_f64(dtype, f64::INFINITY)),
            (ReduceOp::Max, true) => self.constant(Scalar::from_f64(dtype, f64::NEG_INFINITY)),
            (ReduceOp::Min, false) => self.constant(Scalar::from_bits(dtype, max)),
            (ReduceOp::Max, false) => self.constant(Scalar::from_bits(dtype, min)),
        }
    }

    /// A float constant of the type of `x`.
    pub(crate) fn float_like(&mut self, x: Value, value: f64) -> Value {
        match self.builder.func.dfg.value_type(x) {
            types::F32 => self.ins().f32const(value as f32),
            _ => self.ins().f64const(value),
        }
    }

    /// An integer extended to a type of at least its width.
    pub(crate) fn widened(&mut self, x: Value, to: Type, signed: bool) -> Value {
        match self.builder.func.dfg.value_type(x) {
            from if from == to => x,
            _ if signed => self.ins().sextend(to, x),
            _ => self.ins().uextend(to, x),
        }
    }
}

/// The bits of an integer as an immediate of its type.
pub(crate) fn narrowed(bits: u64, ty: Type) -> i64 {
    (bits & (u64::MAX >> (64 - ty.bits()))) as i64
}
