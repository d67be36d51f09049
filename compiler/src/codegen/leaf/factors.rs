//! The leaf that lays out rows of a left factor of `f32` for tile registers: each number as its high bf16 and, where the
//! precision has it, its low one, see [`crate::scalar::precision`].
//!
//! A row becomes a plane of high bf16, one behind the other whatever nest of loops the reduction is, filled up with zeros
//! to whole rows of a tile register, and behind it a plane of low ones. No other memory of the factor is touched.

use super::{body::Ty, memory};
use crate::codegen::vector::{
    Builder, Shape,
    code::{Code, Int, IntOp, Mem, Narrow, Op2, ShiftOp, TILE_ROW_BYTES, Vector, Width},
};
use crate::scalar::CompareOp;

/// Bytes of a bf16.
const BYTES: i32 = 2;

/// Everything that the leaf's code depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FactorsKey {
    /// There are low bf16 too.
    pub low: bool,
    /// The numbers of the innermost loop lie side by side.
    pub dense: bool,
    /// Loops of the reduction, at least one.
    pub levels: u8,
}

/// Where the arguments lie in the argument block; strides are in bytes.
impl FactorsKey {
    /// The factor at the first row.
    pub const FROM: usize = 0;
    /// From row to row of it.
    pub const FROM_ROW: usize = 1;
    /// Where the first row goes.
    pub const TO: usize = 2;
    /// From row to row there.
    pub const TO_ROW: usize = 3;
    /// Number of rows.
    pub const ROWS: usize = 4;
    /// Length of a plane: whole rows of a tile register, at least one.
    pub const PLANE: usize = 5;

    /// Level `level` of the reduction, 0 being the innermost: its count, and what the factor moves.
    pub fn level(level: u8) -> usize {
        6 + 2 * level as usize
    }

    /// Length of the argument block.
    pub fn slots(&self) -> usize {
        FactorsKey::level(self.levels)
    }
}

/// The leaf's code on an ISA of this shape.
pub fn emit(key: &FactorsKey, shape: Shape) -> Code {
    let mut b = Builder::new(shape);
    let (from, to) = (b.arg(FactorsKey::FROM), b.arg(FactorsKey::TO));
    let (rows, plane) = (b.arg(FactorsKey::ROWS), b.arg(FactorsKey::PLANE));
    let writer = Writer { key, plane };
    b.repeat(rows, 1, |b| {
        let place = b.copy(to);
        writer.fill(b, place);
        let inner = b.copy(from);
        writer.level(b, key.levels - 1, inner, place);
        let (step, place_step) = (b.arg(FactorsKey::FROM_ROW), b.arg(FactorsKey::TO_ROW));
        b.advance(from, step);
        b.advance(to, place_step);
    });
    b.finish()
}

struct Writer<'k> {
    key: &'k FactorsKey,
    plane: Int,
}

impl Writer<'_> {
    /// The planes of a place in the first one.
    fn planes(&self, to: Int) -> Vec<Mem> {
        let low = Mem { base: to, index: Some((self.plane, 1)), disp: 0 };
        std::iter::once(to.into()).chain(self.key.low.then_some(low)).collect()
    }

    /// Zeros in the last row of a register of each plane; what is there is written after it.
    fn fill(&self, b: &mut Builder, row: Int) {
        let end = b.int_op(IntOp::Add, row, self.plane);
        b.advance(end, -(TILE_ROW_BYTES as i32));
        let zero = b.bits(0);
        for plane in self.planes(end) {
            for at in (0..TILE_ROW_BYTES).step_by(4 * b.lanes()) {
                b.store(plane.plus(at), zero);
            }
        }
    }

    /// Loop `number` from here on, after which `to` stands behind what was written.
    fn level(&self, b: &mut Builder, number: u8, from: Int, to: Int) {
        let count = b.arg(FactorsKey::level(number));
        if number == 0 {
            return match self.key.dense {
                true => self.run(b, count, from, to),
                false => self.apart(b, count, from, to),
            };
        }
        b.repeat(count, 1, |b| {
            let inner = b.copy(from);
            self.level(b, number - 1, inner, to);
            let step = b.arg(FactorsKey::level(number) + 1);
            b.advance(from, step);
        });
    }

    /// Numbers side by side: whole vectors, the last of which may overlap the one before, or fewer numbers than that.
    fn run(&self, b: &mut Builder, count: Int, from: Int, to: Int) {
        let lanes = b.lanes() as i32;
        let all = b.copy(count);
        let step = |b: &mut Builder| {
            let x = b.load(from);
            self.store(b, x, to);
            b.advance(from, 4 * lanes);
            b.advance(to, BYTES * lanes);
        };
        b.when(CompareOp::Ge, all, lanes, |b| {
            b.repeat(count, lanes, step);
            b.when(CompareOp::Gt, count, 0, |b| {
                let back = b.int_op(IntOp::Sub, count, lanes);
                let back_bytes = b.int_op(IntOp::Mul, back, 4);
                b.advance(from, back_bytes);
                let back_bytes = b.int_op(IntOp::Mul, back, BYTES);
                b.advance(to, back_bytes);
                step(b);
            });
        });
        b.when(CompareOp::Lt, all, lanes, |b| {
            let mask = b.mask_first(all);
            let x = b.load_first(from, all, mask);
            self.store_few(b, x, all, to);
        });
    }

    /// Numbers at any distance.
    fn apart(&self, b: &mut Builder, count: Int, from: Int, to: Int) {
        let lanes = b.lanes() as i32;
        let step = b.arg(FactorsKey::level(0) + 1);
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

    /// The high and low bf16 of a vector.
    fn parts(&self, b: &mut Builder, x: Vector) -> Vec<Vector> {
        let high = high(b, x);
        let low = self.key.low.then(|| low(b, x, high));
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
