//! The leaf that lays out panels of a right factor for tile registers: pairs of bf16, one below the other.
//!
//! Two numbers of a column that follow one another become a pair, the first in the low half, and pairs of 16 columns a row
//! of a tile register; 16 such rows are a register of high bf16, which one of low ones follows where there are any. What is
//! missing of the last register, and columns behind the last, are zeros. No memory is read but the factor's own.

use super::{bf16, contraction::PANEL};
use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{Int, IntOp, Mask, Mem, ShiftOp, TILE_ROW_BYTES, TILE_ROWS, VBinary, VCode, Vector},
};
use crate::scalar::CompareOp;

/// Everything that the leaf's code depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PackPanelsKey {
    /// There are low bf16 too.
    pub low: bool,
}

/// Where the arguments lie in the argument block; distances are in bytes.
impl PackPanelsKey {
    /// The factor at the first column.
    pub const FROM: usize = 0;
    /// From number to number of a column.
    pub const FROM_STEP: usize = 1;
    /// From panel to panel.
    pub const FROM_PANEL: usize = 2;
    /// Where panels go, one behind the other.
    pub const TO: usize = 3;
    /// Columns, which lie side by side; at least one.
    pub const COLUMNS: usize = 4;
    /// Numbers of a column.
    pub const DEPTH: usize = 5;
    /// Length of the argument block.
    pub const SLOTS: usize = 6;
}

/// Bytes of a tile register.
const REGISTER_BYTES: i32 = (TILE_ROWS * TILE_ROW_BYTES) as i32;

/// The leaf's code on an ISA of this shape.
pub fn emit(key: &PackPanelsKey, shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    let (panel, to) = (b.arg(PackPanelsKey::FROM), b.arg(PackPanelsKey::TO));
    let (step, columns) = (b.arg(PackPanelsKey::FROM_STEP), b.arg(PackPanelsKey::COLUMNS));
    let rounded = b.int_op(IntOp::Add, columns, PANEL as i32 - 1);
    b.repeat(rounded, PANEL as i32, |b| {
        let parts = parts(b, columns);
        let writer = Writer { low: key.low, step, parts };
        let (from, depth) = (b.copy(panel), b.arg(PackPanelsKey::DEPTH));
        b.repeat(depth, 2 * TILE_ROWS as i32, |b| {
            let pairs = b.imm(TILE_ROWS as i64);
            writer.pairs(b, pairs, from, to);
            b.advance(to, writer.skipped());
        });
        b.when(CompareOp::Gt, depth, 0, |b| {
            writer.clear(b, to);
            let end = b.int_op(IntOp::Add, to, REGISTER_BYTES + writer.skipped());
            let pairs = b.int_op(IntOp::Shr, depth, 1);
            writer.pairs(b, pairs, from, to);
            let odd = b.int_op(IntOp::And, depth, 1);
            b.when(CompareOp::Gt, odd, 0, |b| writer.pair(b, from, to, false));
            b.set_copy(to, end);
        });
        b.advance(columns, -(PANEL as i32));
        let next = b.arg(PackPanelsKey::FROM_PANEL);
        b.advance(panel, next);
    });
    b.finish()
}

/// For each vector of a panel the columns from it on, and the mask of those that it holds.
fn parts(b: &mut Builder, columns: Int) -> Vec<(Int, Mask)> {
    let lanes = b.lanes();
    (0..PANEL / lanes)
        .map(|vector| {
            let left = b.int_op(IntOp::Sub, columns, (vector * lanes) as i32);
            let mask = b.mask_first(left);
            (left, mask)
        })
        .collect()
}

struct Writer {
    low: bool,
    step: Int,
    parts: Vec<(Int, Mask)>,
}

impl Writer {
    /// Bytes of low bf16 behind a register of high ones.
    fn skipped(&self) -> i32 {
        if self.low { REGISTER_BYTES } else { 0 }
    }

    /// Zeros in the registers that begin here.
    fn clear(&self, b: &mut Builder, to: Int) {
        let zero = b.bits(0);
        for at in (0..(REGISTER_BYTES + self.skipped()) as usize).step_by(4 * b.lanes()) {
            b.store(Mem::from(to).plus(at), zero);
        }
    }

    /// So many pairs; both places move behind them.
    fn pairs(&self, b: &mut Builder, pairs: Int, from: Int, to: Int) {
        b.repeat(pairs, 1, |b| {
            self.pair(b, from, to, true);
            b.advance(from, self.step);
            b.advance(from, self.step);
            b.advance(to, TILE_ROW_BYTES as i32);
        });
    }

    /// One pair of each column, or the first of one.
    fn pair(&self, b: &mut Builder, from: Int, to: Int, both: bool) {
        for (vector, &(left, mask)) in self.parts.iter().enumerate() {
            let at = 4 * vector * b.lanes();
            let second = Mem { base: from, index: Some((self.step, 1)), disp: 0 };
            let first = b.load_first(Mem::from(from).plus(at), left, mask);
            let first = bf16::split(b, first, self.low);
            let second = both.then(|| {
                let second = b.load_first(second.plus(at), left, mask);
                bf16::split(b, second, self.low)
            });
            for (part, x) in first.into_iter().enumerate() {
                let y = second.as_ref().map(|parts| parts[part]);
                let pair = joined(b, x, y);
                b.store(Mem::from(to).plus(at + part * REGISTER_BYTES as usize), pair);
            }
        }
    }
}

/// The high half of `x` below that of `y`.
fn joined(b: &mut Builder, x: Vector, y: Option<Vector>) -> Vector {
    let x = b.shift(ShiftOp::Right, x, 16);
    y.map_or(x, |y| b.binary(VBinary::Or, x, y))
}
