//! The leaf that lays out rows of a left factor of bytes: one behind the other, as the product of a tile wants them, each
//! byte as one of 16 bits, or as one without a sign: 128 more than one with a sign.
//!
//! A row is a nest of reduction loops in memory, as in the contraction leaf, whose innermost runs over bytes that lie
//! side by side or apart. Runs are copied in vectors, the last of which may overlap the one before; no other byte of
//! the factor is touched. What stands behind the end of a row's bytes is anything: the right factor is zero there.

use crate::codegen::vector::{
    Builder, Shape,
    code::{Code, Int, IntOp, Mem, Narrow, Op2, Width},
};
use crate::scalar::CompareOp;

/// Everything that the leaf's code depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RowsKey {
    /// What bytes mean.
    pub from: Narrow,
    /// They stay bytes, else they get 16 bits.
    pub quads: bool,
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

    /// Whether bytes lose their sign.
    fn is_shifted(&self) -> bool {
        self.quads && self.from == Narrow::I8
    }

    /// Bytes that one becomes.
    fn widened(&self) -> i32 {
        if self.quads { 1 } else { 2 }
    }

    /// One byte.
    fn byte(&self, b: &mut Builder, from: Int, to: Int) {
        let width = if self.from == Narrow::I8 { Width::I8 } else { Width::U8 };
        let mut byte = b.load_int(Mem::from(from), width);
        if self.is_shifted() {
            byte = b.int_op(IntOp::Add, byte, 128);
        }
        b.store_int(Mem::from(to), byte, if self.quads { Width::U8 } else { Width::I16 });
    }

    /// Bytes that a vector is made of.
    fn vector_bytes(&self, b: &Builder) -> i32 {
        (if self.quads { 4 } else { 2 }) * b.lanes() as i32
    }

    /// A vector of bytes.
    fn vector(&self, b: &mut Builder, from: Int, to: Int) {
        let vector = match (self.quads, self.is_shifted()) {
            (false, _) => b.load_halves(from, self.from),
            (true, false) => b.load(from),
            (true, true) => {
                let (bytes, signs) = (b.load(from), b.bits(0x8080_8080));
                b.op2(Op2::Xor, bytes, signs)
            }
        };
        b.store(to, vector);
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

/// Bytes side by side: whole vectors, the last of which may overlap; where there are fewer, words of 8 bytes alike.
fn run(key: &RowsKey, b: &mut Builder, count: Int, from: Int, to: Int) {
    let bytes = key.vector_bytes(b);
    let short = b.copy(count);
    b.when(CompareOp::Ge, short, bytes, |b| {
        overlapping(key, b, count, bytes, from, to, &|b| key.vector(b, from, to));
    });
    b.when(CompareOp::Lt, short, bytes, |b| {
        if !key.quads || key.is_shifted() {
            return apart_by(key, b, count, from, to, None);
        }
        b.when(CompareOp::Ge, short, 8, |b| {
            overlapping(key, b, count, 8, from, to, &|b| {
                let word = b.load_int(from, Width::I64);
                b.store_int(to, word, Width::I64);
            });
        });
        b.when(CompareOp::Lt, short, 8, |b| apart_by(key, b, count, from, to, None));
    });
}

/// At least `bytes` bytes, so many at a time by `copy`; the last ones once more where the count is no multiple.
fn overlapping(
    key: &RowsKey,
    b: &mut Builder,
    count: Int,
    bytes: i32,
    from: Int,
    to: Int,
    copy: &dyn Fn(&mut Builder),
) {
    let step = |b: &mut Builder| {
        copy(b);
        b.advance(from, bytes);
        b.advance(to, key.widened() * bytes);
    };
    b.repeat(count, bytes, step);
    b.when(CompareOp::Gt, count, 0, |b| {
        let back = b.int_op(IntOp::Sub, count, bytes);
        b.advance(from, back);
        let back = b.int_op(IntOp::Mul, back, key.widened());
        b.advance(to, back);
        step(b);
    });
}

/// Bytes at any distance.
fn apart(key: &RowsKey, b: &mut Builder, count: Int, from: Int, to: Int) {
    let step = b.arg(RowsKey::level(0) + 1);
    apart_by(key, b, count, from, to, Some(step));
}

/// Bytes at this distance, or side by side, one at a time.
fn apart_by(key: &RowsKey, b: &mut Builder, count: Int, from: Int, to: Int, step: Option<Int>) {
    b.repeat(count, 1, |b| {
        key.byte(b, from, to);
        match step {
            Some(step) => b.advance(from, step),
            None => b.advance(from, 1),
        }
        b.advance(to, key.widened());
    });
}
