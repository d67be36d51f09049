//! Keys: integers in the order of the elements.
//!
//! NaN is larger than all other values, and zeros are equal. A descending order has the complement of each key, so the
//! smallest key always goes first.

use crate::{
    kernel::{Inst, InstSeq},
    scalar::{BinaryOp, CompareOp, Reg, Scalar, UnaryOp},
};
use symshape_runtime::DType;

/// How elements become keys.
#[derive(Clone, Copy)]
pub(super) struct Key {
    /// The type of the elements.
    pub(super) dtype: DType,
    /// Whether the largest element goes first.
    pub(super) descending: bool,
    /// Whether NaN goes before all other values, rather than after them, in an ascending order.
    pub(super) nan_first: bool,
}

impl Key {
    /// The type of the keys, which microkernels support if it has 32 bits.
    pub(super) fn lane(self) -> DType {
        match self.dtype {
            DType::F64 | DType::I64 | DType::U64 => DType::I64,
            _ => DType::I32,
        }
    }

    /// The bytes in which keys differ, the lowest first; an even number.
    pub(super) fn bytes(self) -> Vec<u32> {
        match self.dtype {
            DType::Bool | DType::U8 | DType::I8 | DType::U16 | DType::I16 => vec![0, 1],
            // The lower half only repeats the sign.
            DType::BF16 => vec![2, 3],
            _ => (0..self.lane().size_bytes() as u32).collect(),
        }
    }

    /// The bits that are inverted in byte `byte` of a key, such that bytes without a sign have the order of the keys.
    pub(super) fn flipped(self, byte: u32) -> i64 {
        if Some(&byte) == self.bytes().last() && self.dtype != DType::U16 { 0x80 } else { 0 }
    }

    /// Emits the key of an element.
    pub(super) fn emit(self, code: &mut InstSeq, element: Reg) -> Reg {
        let lane = self.lane();
        let key = match self.dtype {
            DType::F32 | DType::F64 => self.of_float(code, element),
            DType::F16 | DType::BF16 => {
                let wide = code.push(Inst::Cast(DType::F32, element));
                self.of_float(code, wide)
            }
            DType::U32 | DType::U64 => {
                let bits = code.push(Inst::Bits(lane, element));
                let lowest = code.push(Inst::Const(Scalar::lowest(lane)));
                code.push(Inst::Binary(BinaryOp::Xor, bits, lowest))
            }
            dtype if dtype == lane => element,
            _ => code.push(Inst::Cast(lane, element)),
        };
        if self.descending { code.push(Inst::Unary(UnaryOp::Not, key)) } else { key }
    }

    /// The bits of a float, those of negative floats inverted up to the sign.
    fn of_float(self, code: &mut InstSeq, x: Reg) -> Reg {
        let lane = self.lane();
        let wide = if lane == DType::I64 { DType::F64 } else { DType::F32 };
        let sign_at = 8 * lane.size_bytes() as i64 - 1;
        let bits = code.push(Inst::Bits(lane, x));
        let distance = code.push(Inst::Const(Scalar::from_i64(lane, sign_at)));
        let sign = code.push(Inst::Binary(BinaryOp::Shr, bits, distance));
        let largest = code.push(Inst::Const(Scalar::highest(lane)));
        let mask = code.push(Inst::Binary(BinaryOp::And, sign, largest));
        let ordered = code.push(Inst::Binary(BinaryOp::Xor, bits, mask));

        let zero = code.push(Inst::Const(Scalar::from_i64(wide, 0)));
        let is_zero = code.push(Inst::Compare(CompareOp::Eq, x, zero));
        let zero_key = code.push(Inst::Const(Scalar::from_i64(lane, 0)));
        let key = code.push(Inst::Select(is_zero, zero_key, ordered));
        let is_nan = code.push(Inst::Unary(UnaryOp::IsNan, x));
        let nan =
            if self.nan_first && !self.descending { Scalar::lowest(lane) } else { Scalar::highest(lane) };
        let nan = code.push(Inst::Const(nan));
        code.push(Inst::Select(is_nan, nan, key))
    }
}
