//! Rows of `f32` for tile registers: each number as its high bf16 and, where the precision has it, its low one, see
//! [`crate::scalar::precision`].
//!
//! A row becomes a plane of high bf16, filled up with zeros to whole rows of a tile register, and behind it a plane of low
//! ones.

use super::{
    super::{body::Ty, memory},
    Numbers, Writer, overlapping,
};
use crate::codegen::vector::{
    Builder,
    code::{Int, IntOp, Mem, Narrow, Op2, ShiftOp, TILE_ROW_BYTES, Vector, Width},
};
use crate::scalar::CompareOp;

/// Bytes of a bf16.
const BYTES: i32 = 2;

/// The form.
pub(super) struct Bf16 {
    pub(super) low: bool,
    /// Length of a plane.
    pub(super) plane: Int,
}

impl Bf16 {
    /// The planes of a place in the first one.
    fn planes(&self, to: Int) -> Vec<Mem> {
        let low = Mem { base: to, index: Some((self.plane, 1)), disp: 0 };
        std::iter::once(to.into()).chain(self.low.then_some(low)).collect()
    }

    /// The high and low bf16 of a vector.
    fn parts(&self, b: &mut Builder, x: Vector) -> Vec<Vector> {
        let high = high(b, x);
        let low = self.low.then(|| low(b, x, high));
        std::iter::once(high).chain(low).map(|part| b.shift(ShiftOp::RightSigned, part, 16)).collect()
    }

    fn store(&self, b: &mut Builder, x: Vector, to: Int) {
        for (part, plane) in self.parts(b, x).into_iter().zip(self.planes(to)) {
            b.store_narrow(plane, part, Narrow::I16);
        }
    }

    /// The first `count` lanes, fewer than a vector has, and no more memory; `to` moves behind them.
    fn store_few(&self, b: &mut Builder, x: Vector, count: Int, to: Int) {
        let lanes_bytes = BYTES as usize * b.lanes();
        for (part, plane) in self.parts(b, x).into_iter().zip(self.planes(to)) {
            let own = b.scratch(lanes_bytes);
            b.store_narrow(own, part, Narrow::I16);
            let (place, left) = (b.address(plane), b.copy(count));
            b.repeat(left, 1, |b| {
                let one = b.load_int(own, Width::I16);
                b.store_int(place, one, Width::I16);
                b.advance(own, BYTES);
                b.advance(place, BYTES);
            });
        }
        let bytes = b.int_op(IntOp::Mul, count, BYTES);
        b.advance(to, bytes);
    }
}

impl Writer for Bf16 {
    /// Zeros in the last row of a register of each plane; what is there is written after it.
    fn begin(&self, b: &mut Builder, row: Int) {
        let end = b.int_op(IntOp::Add, row, self.plane);
        b.advance(end, -(TILE_ROW_BYTES as i32));
        let zero = b.bits(0);
        for plane in self.planes(end) {
            for at in (0..TILE_ROW_BYTES).step_by(4 * b.lanes()) {
                b.store(plane.plus(at), zero);
            }
        }
    }

    /// Whole vectors, the last of which may overlap the one before, or fewer numbers than that.
    fn run(&self, b: &mut Builder, count: Int, from: Int, to: Int) {
        let lanes = b.lanes() as i32;
        let all = b.copy(count);
        b.when(CompareOp::Ge, all, lanes, |b| {
            let numbers = Numbers { each: lanes, from_bytes: 4, to_bytes: BYTES };
            overlapping(b, count, numbers, (from, to), &|b| {
                let x = b.load(from);
                self.store(b, x, to);
            });
        });
        b.when(CompareOp::Lt, all, lanes, |b| {
            let mask = b.mask_first(all);
            let x = b.load_first(from, all, mask);
            self.store_few(b, x, all, to);
        });
    }

    fn apart(&self, b: &mut Builder, count: Int, from: Int, to: Int, step: Int) {
        let lanes = b.lanes() as i32;
        b.repeat(count, lanes, |b| {
            let places = b.lane_places(from, step);
            let x = memory::load_lanes(b, places, Ty::F32);
            self.store(b, x, to);
            let bytes = b.int_op(IntOp::Mul, step, lanes);
            b.advance(from, bytes);
            b.advance(to, BYTES * lanes);
        });
        b.repeat(count, 1, |b| {
            let x = b.load_one(from);
            let one = b.imm(1);
            self.store_few(b, x, one, to);
            b.advance(from, step);
        });
    }
}

/// The nearest bf16, ties to even, as the high half of each lane, the low half zero.
fn rounded(b: &mut Builder, x: Vector) -> Vector {
    let (one, half, mask) = (b.bits(1), b.bits(0x7fff), b.bits(0xffff_0000));
    let shifted = b.shift(ShiftOp::Right, x, 16);
    let even = b.op2(Op2::And, shifted, one);
    let moved = b.op2(Op2::AddInt, x, half);
    let moved = b.op2(Op2::AddInt, moved, even);
    b.op2(Op2::And, moved, mask)
}

fn high(b: &mut Builder, x: Vector) -> Vector {
    let high = rounded(b, x);
    let (is_nan, nan) = (b.compare(CompareOp::Ne, x, x), b.bits(0x7fc0_0000));
    b.select(is_nan, nan, high)
}

/// What `high` misses, rounded likewise; 0 where `high` is not finite.
fn low(b: &mut Builder, x: Vector, high: Vector) -> Vector {
    let missed = b.op2(Op2::Sub, x, high);
    let low = rounded(b, missed);
    let (magnitude, infinite, zero) = (b.bits(0x7fff_ffff), b.bits(0x7f80_0000), b.bits(0));
    let size = b.op2(Op2::And, high, magnitude);
    let is_finite = b.compare_int(CompareOp::Lt, size, infinite);
    b.select(is_finite, low, zero)
}
