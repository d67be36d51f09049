//! Steps on 64-bit lanes, and 64-bit operations that not all ISAs have as one instruction.

use super::Builder;
use crate::{
    codegen::vector::vcode::{Cond, VBinary},
    codegen::vector::vcode::{
        Int, IntOperand, Mask, MaskOp, Mem, ShiftOp, VInst, Vector, VectorHalf, WideBinary, WideUnary,
    },
    scalar::CompareOp,
};

/// The sign bit of a 64-bit lane.
const SIGN: u64 = 1 << 63;

/// The double `2^52` as bits. Its last bit has the weight 1.
const TWO_52: u64 = (1023 + 52) << 52;

/// The double `2^84` as bits. Its last bit has the weight `2^32`.
const TWO_84: u64 = (1023 + 84) << 52;

/// The double `1.5 * 2^52`: added to integers below `2^51`, it leaves them in the low bits of the sum.
const INT_SHIFTER: f64 = 6_755_399_441_055_744.0;

impl Builder {
    /// The same 64 bits in all lanes. There is one register for each value, set once at the start.
    pub fn wide_bits(&mut self, bits: u64) -> Vector {
        if let Some(&known) = self.wide_constants.get(&bits) {
            return known;
        }
        let dst = self.vector();
        self.hoisted.push(VInst::WideConstant(dst, bits));
        self.wide_constants.insert(bits, dst);
        dst
    }

    /// A double in all lanes.
    pub fn double(&mut self, value: f64) -> Vector {
        self.wide_bits(value.to_bits())
    }

    /// One 64-bit element in all lanes.
    pub(crate) fn wide_broadcast(&mut self, mem: impl Into<Mem>) -> Vector {
        let dst = self.vector();
        self.push(VInst::WideBroadcast(dst, mem.into()));
        dst
    }

    /// See [`WideBinary`].
    pub fn wide_binary(&mut self, op: WideBinary, a: Vector, b: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::WideBinary(op, dst, a, b));
        dst
    }

    /// See [`WideUnary`].
    pub fn wide_unary(&mut self, op: WideUnary, a: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::WideUnary(op, dst, a));
        dst
    }

    /// Shifts 64-bit lanes by a constant below 64.
    pub fn wide_shift(&mut self, op: ShiftOp, a: Vector, by: u8) -> Vector {
        if op == ShiftOp::RightSigned {
            // The sign bit, at its new place, fills the bits above it.
            let sign = self.wide_bits(SIGN >> by);
            let shifted = self.wide_shift(ShiftOp::Right, a, by);
            let flipped = self.binary(VBinary::Xor, shifted, sign);
            return self.wide_binary(WideBinary::SubInt, flipped, sign);
        }
        let dst = self.vector();
        self.push(VInst::WideShift(op, dst, a, by));
        dst
    }

    /// Compares doubles.
    pub fn wide_compare(&mut self, op: CompareOp, a: Vector, b: Vector) -> Mask {
        let dst = self.mask();
        self.push(VInst::WideCompare(op, dst, a, b));
        dst
    }

    /// Compares signed 64-bit integers.
    pub fn wide_compare_int(&mut self, op: CompareOp, a: Vector, b: Vector) -> Mask {
        let dst = self.mask();
        self.push(VInst::WideCompareInt(op, dst, a, b));
        dst
    }

    /// `a` where the mask of 64-bit lanes holds, else `b`.
    pub fn wide_select(&mut self, mask: Mask, a: Vector, b: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::WideSelect(dst, mask, a, b));
        dst
    }

    /// The masks of 64-bit lanes of both halves of a mask of 32-bit lanes.
    pub(crate) fn mask_halves(&mut self, mask: Mask) -> [Mask; 2] {
        [VectorHalf::First, VectorHalf::Second].map(|half| {
            let dst = self.mask();
            self.push(VInst::MaskHalf(dst, mask, half));
            dst
        })
    }

    /// The mask of 32-bit lanes of two masks of 64-bit lanes.
    pub(crate) fn join_masks(&mut self, [first, second]: [Mask; 2]) -> Mask {
        self.mask_op(MaskOp::Join, first, second)
    }

    /// Not zero if any lane of the mask holds.
    pub(crate) fn any_lane(&mut self, mask: Mask) -> Int {
        let dst = self.int();
        self.push(VInst::AnyLane(dst, mask));
        dst
    }

    /// Begins code that runs if the condition holds, up to [`Builder::end_when`].
    pub(crate) fn begin_when(&mut self, op: CompareOp, a: Int, b: impl Into<IntOperand>) {
        self.push(VInst::If(Cond { op, a, b: b.into() }));
    }

    /// Ends the code of the last [`Builder::begin_when`] that is still open.
    pub(crate) fn end_when(&mut self) {
        self.push(VInst::EndIf);
    }

    /// The low 64 bits of the products of integers.
    pub(crate) fn wide_mul(&mut self, a: Vector, b: Vector) -> Vector {
        if self.shape().long_ints {
            return self.wide_binary(WideBinary::MulInt, a, b);
        }
        let a_high = self.wide_shift(ShiftOp::Right, a, 32);
        let b_high = self.wide_shift(ShiftOp::Right, b, 32);
        let low = self.wide_binary(WideBinary::MulLow, a, b);
        let cross = self.wide_binary(WideBinary::MulLow, a_high, b);
        let other = self.wide_binary(WideBinary::MulLow, a, b_high);
        let cross = self.wide_binary(WideBinary::AddInt, cross, other);
        let cross = self.wide_shift(ShiftOp::Left, cross, 32);
        self.wide_binary(WideBinary::AddInt, low, cross)
    }

    /// The high 64 bits of the products of unsigned integers.
    pub(crate) fn wide_mul_high(&mut self, a: Vector, b: Vector) -> Vector {
        let low_half = self.wide_bits(u64::from(u32::MAX));
        let a_high = self.wide_shift(ShiftOp::Right, a, 32);
        let b_high = self.wide_shift(ShiftOp::Right, b, 32);
        let low = self.wide_binary(WideBinary::MulLow, a, b);
        let cross = self.wide_binary(WideBinary::MulLow, a_high, b);
        let other = self.wide_binary(WideBinary::MulLow, a, b_high);
        let high = self.wide_binary(WideBinary::MulLow, a_high, b_high);

        // None of these sums exceeds 64 bits.
        let carry = self.wide_shift(ShiftOp::Right, low, 32);
        let middle = self.wide_binary(WideBinary::AddInt, cross, carry);
        let middle_low = self.binary(VBinary::And, middle, low_half);
        let middle_low = self.wide_binary(WideBinary::AddInt, middle_low, other);
        let from_middle = self.wide_shift(ShiftOp::Right, middle, 32);
        let from_low = self.wide_shift(ShiftOp::Right, middle_low, 32);
        let high = self.wide_binary(WideBinary::AddInt, high, from_middle);
        self.wide_binary(WideBinary::AddInt, high, from_low)
    }

    /// Unsigned 64-bit integers as doubles, rounded to nearest.
    pub(crate) fn unsigned_to_double(&mut self, x: Vector) -> Vector {
        self.halves_to_double(x, TWO_84)
    }

    /// Signed 64-bit integers as doubles, rounded to nearest.
    pub(crate) fn int_to_double(&mut self, x: Vector) -> Vector {
        if self.shape().long_ints {
            return self.wide_unary(WideUnary::LongsToDoubles, x);
        }
        // With the sign bit inverted, the integer is unsigned and larger by 2^63.
        self.halves_to_double(x, TWO_84 | 1 << 31)
    }

    /// Both halves of the lanes become doubles by their place in the bits of a double. `high_bits` are the bits above
    /// the high half, and a bit that inverts the sign. The difference is exact, and the sum is rounded.
    fn halves_to_double(&mut self, x: Vector, high_bits: u64) -> Vector {
        let low_half = self.wide_bits(u64::from(u32::MAX));
        let above_low = self.wide_bits(TWO_52);
        let above_high = self.wide_bits(high_bits);
        let bias = self.double(f64::from_bits(high_bits) + f64::from_bits(TWO_52));
        let low = self.binary(VBinary::And, x, low_half);
        let low = self.binary(VBinary::Or, low, above_low);
        let high = self.wide_shift(ShiftOp::Right, x, 32);
        let high = self.binary(VBinary::Xor, high, above_high);
        let high = self.wide_binary(WideBinary::Sub, high, bias);
        self.wide_binary(WideBinary::Add, high, low)
    }

    /// Doubles whose values are integers in `-2^51..2^51`, as integers.
    pub(crate) fn small_double_to_int(&mut self, x: Vector) -> Vector {
        let shifter = self.double(INT_SHIFTER);
        let shifted = self.wide_binary(WideBinary::Add, x, shifter);
        self.wide_binary(WideBinary::SubInt, shifted, shifter)
    }

    /// Doubles as 64-bit integers, toward zero, saturating; NaN gives 0.
    pub(crate) fn double_to_int(&mut self, x: Vector) -> Vector {
        let value = if self.shape().long_ints {
            self.wide_unary(WideUnary::DoublesToLongs, x)
        } else {
            self.halves_to_int(x)
        };

        let limit = self.double(2f64.powi(63));
        let largest = self.wide_bits(i64::MAX as u64);
        let over = self.wide_compare(CompareOp::Ge, x, limit);
        let value = self.wide_select(over, largest, value);
        let limit = self.double(-2f64.powi(63));
        let smallest = self.wide_bits(i64::MIN as u64);
        let under = self.wide_compare(CompareOp::Lt, x, limit);
        let value = self.wide_select(under, smallest, value);
        let zero = self.wide_bits(0);
        let nan = self.wide_compare(CompareOp::Ne, x, x);
        self.wide_select(nan, zero, value)
    }

    /// Doubles as 64-bit integers, toward zero. A lane is undefined where the integer doesn't fit.
    fn halves_to_int(&mut self, x: Vector) -> Vector {
        let whole = self.wide_unary(WideUnary::Trunc, x);

        // The high half is below 2^31 in magnitude, and the low half is an unsigned integer. Both are exact.
        let down = self.double(2f64.powi(-32));
        let up = self.double(2f64.powi(32));
        let high = self.wide_binary(WideBinary::Mul, whole, down);
        let high = self.wide_unary(WideUnary::Floor, high);
        let below = self.wide_binary(WideBinary::Mul, high, up);
        let low = self.wide_binary(WideBinary::Sub, whole, below);
        let high = self.small_double_to_int(high);
        let low = self.small_double_to_int(low);
        let high = self.wide_shift(ShiftOp::Left, high, 32);
        self.wide_binary(WideBinary::AddInt, high, low)
    }
}
