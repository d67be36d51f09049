//! Steps on 64-bit lanes, of which a vector has two.

use super::{LANES, Translator, float_cc, int_cc};
use crate::codegen::vector::vcode::{Mem, ShiftOp, VInst, Vector, VectorHalf, WideBinary, WideUnary};
use cranelift_codegen::ir::{ConstantData, InstBuilder, Value, condcodes::FloatCC, types};

impl Translator<'_> {
    pub(super) fn wide(&mut self, step: &VInst) {
        match step {
            VInst::WideBinary(op, dst, x, y) => self.wide_binary(*op, *dst, *x, *y),
            VInst::WideUnary(op, dst, x) => self.wide_unary(*op, *dst, *x),
            VInst::WideShift(op, dst, x, by) => self.wide_shift(*op, *dst, *x, *by),
            VInst::WideConstant(dst, bits) => {
                let low = *bits as u32;
                let high = (*bits >> 32) as u32;
                self.constants[dst.0 as usize] = Some([low, high, low, high]);
            }
            VInst::WideBroadcast(dst, mem) => self.wide_broadcast(*dst, *mem),
            VInst::WideCompare(op, dst, x, y) => {
                let x = self.doubles(*x);
                let y = self.doubles(*y);
                let value = self.b.ins().fcmp(float_cc(*op), x, y);
                self.set_mask(*dst, value);
            }
            VInst::WideCompareInt(op, dst, x, y) => {
                let x = self.wide_ints(*x);
                let y = self.wide_ints(*y);
                let value = self.b.ins().icmp(int_cc(*op), x, y);
                self.set_mask(*dst, value);
            }
            VInst::WideSelect(dst, mask, x, y) => {
                let mask = self.mask(*mask);
                let x = self.ints_of(*x);
                let y = self.ints_of(*y);
                let value = self.b.ins().bitselect(mask, x, y);
                self.set(*dst, value);
            }
            VInst::MaskHalf(dst, mask, half) => {
                let mask = self.mask(*mask);
                let value = match half {
                    VectorHalf::First => self.b.ins().swiden_low(mask),
                    VectorHalf::Second => self.b.ins().swiden_high(mask),
                };
                self.set_mask(*dst, value);
            }
            VInst::AnyLane(dst, mask) => {
                let mask = self.mask(*mask);
                let any = self.b.ins().vany_true(mask);
                let any = self.b.ins().uextend(types::I64, any);
                self.set_int(*dst, any);
            }
            _ => unreachable!("not a step on 64-bit lanes: {step:?}"),
        }
    }

    fn doubles(&mut self, vector: Vector) -> Value {
        let value = self.vector(vector);
        self.as_type(types::F64X2, value)
    }

    fn wide_ints(&mut self, vector: Vector) -> Value {
        let value = self.vector(vector);
        self.as_type(types::I64X2, value)
    }

    fn wide_broadcast(&mut self, dst: Vector, mem: Mem) {
        let value = self.load(types::F64, mem);
        let value = self.b.ins().splat(types::F64X2, value);
        self.set(dst, value);
    }

    fn wide_binary(&mut self, op: WideBinary, dst: Vector, x: Vector, y: Vector) {
        let value = match op {
            WideBinary::JoinHalves => {
                let x = self.ints_of(x);
                let y = self.ints_of(y);
                self.shuffled(x, y, [0, 1, 4, 5])
            }
            WideBinary::AddInt | WideBinary::SubInt | WideBinary::MulLow => {
                let x = self.wide_ints(x);
                let y = self.wide_ints(y);
                self.wide_int_binary(op, x, y)
            }
            WideBinary::ShiftLeft | WideBinary::ShiftRight => {
                let x = self.wide_ints(x);
                let y = self.wide_ints(y);
                self.shift_by_lane(op, x, y)
            }
            _ => {
                let x = self.doubles(x);
                let y = self.doubles(y);
                self.double_binary(op, x, y)
            }
        };
        self.set(dst, value);
    }

    fn wide_int_binary(&mut self, op: WideBinary, x: Value, y: Value) -> Value {
        match op {
            WideBinary::AddInt => self.b.ins().iadd(x, y),
            WideBinary::SubInt => self.b.ins().isub(x, y),
            WideBinary::MulLow => {
                let low_half = self.constant(types::I64X2, [u32::MAX, 0, u32::MAX, 0]);
                let x = self.b.ins().band(x, low_half);
                let y = self.b.ins().band(y, low_half);
                self.b.ins().imul(x, y)
            }
            _ => unreachable!("not an integer operation: {op:?}"),
        }
    }

    fn double_binary(&mut self, op: WideBinary, x: Value, y: Value) -> Value {
        match op {
            WideBinary::Add => self.b.ins().fadd(x, y),
            WideBinary::Sub => self.b.ins().fsub(x, y),
            WideBinary::Mul => self.b.ins().fmul(x, y),
            WideBinary::Div => self.b.ins().fdiv(x, y),
            // Cranelift recognises this form as one x86 instruction.
            WideBinary::Min | WideBinary::Max => {
                let (a, b) = if op == WideBinary::Min { (x, y) } else { (y, x) };
                let less = self.b.ins().fcmp(FloatCC::LessThan, a, b);
                let less = self.as_type(types::F64X2, less);
                self.b.ins().bitselect(less, x, y)
            }
            _ => unreachable!("not an operation on doubles: {op:?}"),
        }
    }

    /// Cranelift shifts all lanes of a vector by one distance only.
    fn shift_by_lane(&mut self, op: WideBinary, x: Value, y: Value) -> Value {
        let mut shifted = x;
        for lane in 0..LANES as u8 / 2 {
            let value = self.b.ins().extractlane(x, lane);
            let by = self.b.ins().extractlane(y, lane);
            let value = match op {
                WideBinary::ShiftLeft => self.b.ins().ishl(value, by),
                _ => self.b.ins().ushr(value, by),
            };
            shifted = self.b.ins().insertlane(shifted, value, lane);
        }
        shifted
    }

    fn wide_unary(&mut self, op: WideUnary, dst: Vector, x: Vector) {
        let value = match op {
            WideUnary::SecondHalf => {
                let x = self.ints_of(x);
                self.shuffled(x, x, [2, 3, 2, 3])
            }
            WideUnary::LowInts => {
                let x = self.ints_of(x);
                self.shuffled(x, x, [0, 2, 0, 2])
            }
            WideUnary::ExtendInts => {
                let x = self.ints_of(x);
                self.b.ins().swiden_low(x)
            }
            WideUnary::IntsToDoubles => {
                let x = self.ints_of(x);
                let x = self.b.ins().swiden_low(x);
                self.b.ins().fcvt_from_sint(types::F64X2, x)
            }
            WideUnary::FloatsToDoubles => {
                let x = self.vector(x);
                self.b.ins().fvpromote_low(x)
            }
            _ => {
                let x = self.doubles(x);
                self.double_unary(op, x)
            }
        };
        self.set(dst, value);
    }

    fn double_unary(&mut self, op: WideUnary, x: Value) -> Value {
        match op {
            WideUnary::Sqrt => self.b.ins().sqrt(x),
            WideUnary::Floor => self.b.ins().floor(x),
            WideUnary::Ceil => self.b.ins().ceil(x),
            WideUnary::Nearest => self.b.ins().nearest(x),
            WideUnary::Trunc => self.b.ins().trunc(x),
            WideUnary::DoublesToFloats => self.b.ins().fvdemote(x),
            WideUnary::DoublesToInts => {
                let ints = self.b.ins().fcvt_to_sint_sat(types::I64X2, x);
                let zero = self.constant(types::I64X2, [0; LANES]);
                self.b.ins().snarrow(ints, zero)
            }
            _ => unreachable!("not an operation on doubles: {op:?}"),
        }
    }

    fn wide_shift(&mut self, op: ShiftOp, dst: Vector, x: Vector, by: u8) {
        let x = self.wide_ints(x);
        let value = match op {
            ShiftOp::Left => self.b.ins().ishl_imm_u(x, i64::from(by)),
            ShiftOp::Right => self.b.ins().ushr_imm_u(x, i64::from(by)),
            ShiftOp::RightSigned => unreachable!("the builder composes signed shifts of 64-bit lanes"),
        };
        self.set(dst, value);
    }

    /// The mask of 32-bit lanes of two masks of 64-bit lanes.
    pub(super) fn join_masks(&mut self, x: Value, y: Value) -> Value {
        self.shuffled(x, y, [0, 2, 4, 6])
    }

    /// The vector of these 32-bit lanes: 0 to 3 are those of `x`, 4 to 7 those of `y`.
    pub(super) fn shuffled(&mut self, x: Value, y: Value, lanes: [u8; LANES]) -> Value {
        self.shuffled_bytes(
            x,
            y,
            lanes.iter().flat_map(|lane| (0..4).map(move |byte| 4 * lane + byte)).collect(),
        )
    }

    /// Bytes of two vectors. Those of the second one follow those of the first.
    pub(super) fn shuffled_bytes(&mut self, x: Value, y: Value, bytes: Vec<u8>) -> Value {
        let x = self.as_type(types::I8X16, x);
        let y = self.as_type(types::I8X16, y);
        let order = self.b.func.dfg.immediates.push(ConstantData::from(bytes));
        self.b.ins().shuffle(x, y, order)
    }
}
