//! Conversions between element types, see [`crate::scalar::Step::Cast`].

use super::FuncCtx;
use cranelift_codegen::ir::{
    InstBuilder, MemFlagsData, Value,
    condcodes::{FloatCC, IntCC},
    types,
};
use symshape_runtime::DType;

impl FuncCtx<'_, '_> {
    /// A register of type `from` as one of type `to`.
    pub(crate) fn cast(&mut self, from: DType, to: DType, x: Value) -> Value {
        match (from, to) {
            _ if from == to => x,
            (_, DType::Bool) => self.is_true(from, x),
            _ if from.is_float() && to.is_float() => self.float_to_float(from, to, x),
            _ if from.is_float() => self.float_to_int(to, x),
            _ if to.is_float() => self.int_to_float(from, to, x),
            _ => self.int_to_int(from, to, x),
        }
    }

    /// The bits of a register of type `from` as one of type `to`, see [`crate::scalar::Step::Bits`].
    pub(crate) fn bits(&mut self, from: DType, to: DType, x: Value) -> Value {
        let bits = match from {
            DType::F16 => self.f16_from_f32(x),
            DType::BF16 => self.bf16_from_f32(x),
            DType::F32 => self.ins().bitcast(types::I32, MemFlagsData::new(), x),
            DType::F64 => self.ins().bitcast(types::I64, MemFlagsData::new(), x),
            _ => x,
        };
        match to {
            DType::F16 => self.f32_from_f16(bits),
            DType::BF16 => self.f32_from_bf16(bits),
            DType::F32 => self.ins().bitcast(types::F32, MemFlagsData::new(), bits),
            DType::F64 => self.ins().bitcast(types::F64, MemFlagsData::new(), bits),
            DType::Bool => self.ins().band_imm_u(bits, 1),
            _ => bits,
        }
    }

    fn is_true(&mut self, from: DType, x: Value) -> Value {
        if from.is_float() {
            let zero = self.float_like(x, 0.0);
            return self.ins().fcmp(FloatCC::NotEqual, x, zero);
        }
        self.ins().icmp_imm_u(IntCC::NotEqual, x, 0)
    }

    fn float_to_float(&mut self, from: DType, to: DType, x: Value) -> Value {
        match (from, to) {
            (_, DType::F64) => self.ins().fpromote(types::F64, x),
            (DType::F64, DType::F32) => self.ins().fdemote(types::F32, x),
            (DType::F64, _) => {
                let odd = self.demote_to_odd(x);
                self.rounded(to, odd)
            }
            // Every half is a single.
            (_, DType::F32) => x,
            _ => self.rounded(to, x),
        }
    }

    /// A single rounded to the precision of `dtype`.
    pub(crate) fn rounded(&mut self, dtype: DType, x: Value) -> Value {
        match dtype {
            DType::F16 => {
                let bits = self.f16_from_f32(x);
                self.f32_from_f16(bits)
            }
            DType::BF16 => {
                let bits = self.bf16_from_f32(x);
                self.f32_from_bf16(bits)
            }
            _ => x,
        }
    }

    /// A double rounded to odd in single precision: an inexact result is the neighbour whose last bit is set. Rounding
    /// it once more gives the same result as rounding the double directly.
    fn demote_to_odd(&mut self, x: Value) -> Value {
        let nearest = self.ins().fdemote(types::F32, x);
        let back = self.ins().fpromote(types::F64, nearest);
        let bits = self.ins().bitcast(types::I32, MemFlagsData::new(), nearest);
        let above = self.ins().iadd_imm_s(bits, 1);
        let below = self.ins().iadd_imm_s(bits, -1);

        // The other neighbour of the double is below the nearest one if that is too large.
        let nearest_magnitude = self.ins().fabs(back);
        let exact_magnitude = self.ins().fabs(x);
        let is_too_large = self.ins().fcmp(FloatCC::GreaterThan, nearest_magnitude, exact_magnitude);
        let other = self.ins().select(is_too_large, below, above);

        let last = self.ins().band_imm_u(bits, 1);
        let even = self.ins().icmp_imm_u(IntCC::Equal, last, 0);
        let inexact = self.ins().fcmp(FloatCC::OrderedNotEqual, back, x);
        let takes_other = self.ins().band(even, inexact);
        let result = self.ins().select(takes_other, other, bits);
        self.ins().bitcast(types::F32, MemFlagsData::new(), result)
    }

    fn float_to_int(&mut self, to: DType, x: Value) -> Value {
        let (lo, hi) = match to {
            DType::I64 => return self.ins().fcvt_to_sint_sat(types::I64, x),
            DType::I32 => return self.ins().fcvt_to_sint_sat(types::I32, x),
            DType::U64 => return self.ins().fcvt_to_uint_sat(types::I64, x),
            DType::U32 => return self.ins().fcvt_to_uint_sat(types::I32, x),
            DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
            DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
            DType::U8 => (0, i64::from(u8::MAX)),
            _ => (0, i64::from(u16::MAX)),
        };

        let wide = self.ins().fcvt_to_sint_sat(types::I32, x);
        let lo = self.ins().iconst(types::I32, lo);
        let hi = self.ins().iconst(types::I32, hi);
        let wide = self.ins().smax(wide, lo);
        let wide = self.ins().smin(wide, hi);
        self.ins().ireduce(Self::reg_type(to), wide)
    }

    fn int_to_float(&mut self, from: DType, to: DType, x: Value) -> Value {
        let ty = Self::reg_type(to);
        let value = match from {
            DType::U64 => self.ins().fcvt_from_uint(ty, x),
            DType::I64 => self.ins().fcvt_from_sint(ty, x),
            _ => {
                let wide = self.widened(x, types::I64, from.is_signed_int());
                self.ins().fcvt_from_sint(ty, wide)
            }
        };
        self.rounded(to, value)
    }

    fn int_to_int(&mut self, from: DType, to: DType, x: Value) -> Value {
        let old = Self::reg_type(from);
        let new = Self::reg_type(to);
        match old.bits().cmp(&new.bits()) {
            std::cmp::Ordering::Equal => x,
            std::cmp::Ordering::Less => self.widened(x, new, from.is_signed_int()),
            std::cmp::Ordering::Greater => self.ins().ireduce(new, x),
        }
    }
}
