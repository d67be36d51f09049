//! The leaf that lays out rows of a left factor of bytes: one behind the other, as the product of a tile wants them.
//!
//! A row is a nest of reduction loops in memory, as in the contraction leaf, whose innermost runs over bytes that lie
//! side by side or apart. Runs are copied in vectors, the last of which may overlap the one before; no other byte of
//! the factor is touched. What stands behind the end of a row's bytes is anything: the right factor is zero there.

use crate::codegen::vector::{
    Builder, Shape,
    code::{Code, Int, IntOp, Mem, Narrow, Width},
};
use crate::scalar::CompareOp;

/// Everything that the leaf's code depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RowsKey {
    /// What bytes mean.
    pub from: Narrow,
    /// The bytes of the innermost loop lie side by side.
    pub dense: bool,
    /// Loops of the reduction, at least one.
    pub levels: u8,
}

/// Where the arguments lie in the argument block; strides are in bytes.
impl RowsKey {
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

    /// Level `level` of the reduction, 0 being the innermost: its count, and what the factor moves.
    pub fn level(level: u8) -> usize {
        5 + 2 * level as usize
    }

    /// Length of the argument block.
    pub fn slots(&self) -> usize {
        RowsKey::level(self.levels)
    }

    /// How a byte is loaded.
    fn width(&self) -> Width {
        match self.from {
            Narrow::U8 => Width::U8,
            Narrow::I8 => Width::I8,
        }
    }
}

/// The leaf's code on an ISA of this shape.
pub fn emit(key: &RowsKey, shape: Shape) -> Code {
    let mut b = Builder::new(shape);
    let (from, to) = (b.arg(RowsKey::FROM), b.arg(RowsKey::TO));
    let rows = b.arg(RowsKey::ROWS);
    b.repeat(rows, 1, |b| {
        let (inner, place) = (b.copy(from), b.copy(to));
        level(key, b, key.levels - 1, inner, place);
        let (step, place_step) = (b.arg(RowsKey::FROM_ROW), b.arg(RowsKey::TO_ROW));
        b.advance(from, step);
        b.advance(to, place_step);
    });
    b.finish()
}

/// Loop `number` from here on, after which `to` stands behind what was written.
fn level(key: &RowsKey, b: &mut Builder, number: u8, from: Int, to: Int) {
    let count = b.arg(RowsKey::level(number));
    if number == 0 {
        return match key.dense {
            true => run(key, b, count, from, to),
            false => apart(key, b, count, from, to),
        };
    }
    b.repeat(count, 1, |b| {
        let inner = b.copy(from);
        level(key, b, number - 1, inner, to);
        let step = b.arg(RowsKey::level(number) + 1);
        b.advance(from, step);
    });
}

/// Bytes side by side.
fn run(key: &RowsKey, b: &mut Builder, count: Int, from: Int, to: Int) {
    let bytes = 2 * b.lanes() as i32;
    let vector = |b: &mut Builder| {
        let halves = b.load_halves(from, key.from);
        b.store(to, halves);
        b.advance(from, bytes);
        b.advance(to, 2 * bytes);
    };
    let short = b.copy(count);
    b.when(CompareOp::Ge, count, bytes, |b| {
        b.repeat(count, bytes, vector);
        b.when(CompareOp::Gt, count, 0, |b| {
            // The last bytes once more.
            let back = b.int_op(IntOp::Sub, count, bytes);
            b.advance(from, back);
            let back = b.int_op(IntOp::Add, back, back);
            b.advance(to, back);
            vector(b);
        });
    });
    b.when(CompareOp::Lt, short, bytes, |b| apart_by(key, b, short, from, to, None));
}

/// Bytes at any distance.
fn apart(key: &RowsKey, b: &mut Builder, count: Int, from: Int, to: Int) {
    let step = b.arg(RowsKey::level(0) + 1);
    apart_by(key, b, count, from, to, Some(step));
}

/// Bytes at this distance, or side by side, one at a time.
fn apart_by(key: &RowsKey, b: &mut Builder, count: Int, from: Int, to: Int, step: Option<Int>) {
    b.repeat(count, 1, |b| {
        let byte = b.load_int(Mem::from(from), key.width());
        b.store_int(Mem::from(to), byte, Width::I16);
        match step {
            Some(step) => b.advance(from, step),
            None => b.advance(from, 1),
        }
        b.advance(to, 2);
    });
}
