//! The microkernels that pack panels of rhs as bf16.
//!
//! For tile registers, two consecutive elements of a column become a pair, the first in the low half. Pairs of 16
//! columns are a row of a tile register, and 16 rows are a register of high bf16. A register of low bf16 follows it if
//! the key says so. The rest of the last register, and columns after the last, are zeros.
//!
//! For vector registers, four consecutive elements of a column follow those of the column before. Only memory of rhs is
//! read.

use super::{bf16, contraction::PANEL};
use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{Int, IntOp, Mask, Mem, ShiftOp, TILE_ROW_BYTES, TILE_ROWS, VBinary, VCode, Vector},
};
use crate::scalar::CompareOp;

/// Everything that the code depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PackPanelsKey {
    /// Whether there are low bf16 too.
    pub low: bool,
    /// Whether four elements of a column follow each other, see [`DotOp::MatrixBf16`]. Otherwise, pairs do.
    ///
    /// [`DotOp::MatrixBf16`]: super::contraction::DotOp::MatrixBf16
    pub fours: bool,
}

/// Slots of the argument block. Distances are in bytes.
impl PackPanelsKey {
    /// Address of the first column of rhs.
    pub const FROM: usize = 0;
    /// From element to element of a column.
    pub(crate) const FROM_STEP: usize = 1;
    /// From panel to panel.
    pub(crate) const FROM_PANEL: usize = 2;
    /// Address of the first packed panel. The others follow it.
    pub const TO: usize = 3;
    /// Number of columns, which are contiguous. At least one.
    pub const COLUMNS: usize = 4;
    /// Elements of a column.
    pub(crate) const DEPTH: usize = 5;
    /// Length of the argument block.
    pub(crate) const SLOTS: usize = 6;
}

/// Bytes of a tile register.
const REGISTER_BYTES: i32 = (TILE_ROWS * TILE_ROW_BYTES) as i32;

/// Bytes of a panel of four elements of each column.
const FOUR_BYTES: i32 = (4 * 2 * PANEL) as i32;

/// The code on an ISA of this shape.
pub(crate) fn emit(key: &PackPanelsKey, shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    if key.fours {
        emit_fours(&mut b);
        return b.finish();
    }
    let panel = b.arg(PackPanelsKey::FROM);
    let to = b.arg(PackPanelsKey::TO);
    let step = b.arg(PackPanelsKey::FROM_STEP);
    let columns = b.arg(PackPanelsKey::COLUMNS);
    let rounded = b.int_op(IntOp::Add, columns, PANEL as i32 - 1);
    b.repeat(rounded, PANEL as i32, |b| {
        let parts = parts(b, columns);
        let packer = PanelPacker { low: key.low, step, parts };

        let from = b.copy(panel);
        let depth = b.arg(PackPanelsKey::DEPTH);

        b.repeat(depth, 2 * TILE_ROWS as i32, |b| {
            let pairs = b.imm(TILE_ROWS as i64);
            packer.pairs(b, pairs, from, to);
            b.advance(to, packer.skipped());
        });
        b.when(CompareOp::Gt, depth, 0, |b| {
            packer.clear(b, to);
            let end = b.int_op(IntOp::Add, to, REGISTER_BYTES + packer.skipped());
            let pairs = b.int_op(IntOp::Shr, depth, 1);
            packer.pairs(b, pairs, from, to);
            let odd = b.int_op(IntOp::And, depth, 1);
            b.when(CompareOp::Gt, odd, 0, |b| packer.pair(b, from, to, false));
            b.set_copy(to, end);
        });

        b.advance(columns, -(PANEL as i32));
        let next = b.arg(PackPanelsKey::FROM_PANEL);
        b.advance(panel, next);
    });

    b.finish()
}

/// Packs fours. Columns are padded with zeros to twice four elements.
fn emit_fours(b: &mut Builder) {
    let panel = b.arg(PackPanelsKey::FROM);
    let to = b.arg(PackPanelsKey::TO);
    let step = b.arg(PackPanelsKey::FROM_STEP);
    let thrice = b.address(Mem { base: step, index: Some((step, 2)), disp: 0 });
    let columns = b.arg(PackPanelsKey::COLUMNS);
    let rounded = b.int_op(IntOp::Add, columns, PANEL as i32 - 1);
    b.repeat(rounded, PANEL as i32, |b| {
        let parts = parts(b, columns);
        let packer = FourPacker { step, thrice, parts };
        let from = b.copy(panel);
        let depth = b.arg(PackPanelsKey::DEPTH);

        b.repeat(depth, 8, |b| {
            for at in [0, FOUR_BYTES] {
                packer.four(b, from, Mem::from(to).plus(at as usize), 4);
                b.advance(from, step);
                b.advance(from, thrice);
            }
            b.advance(to, 2 * FOUR_BYTES);
        });
        b.when(CompareOp::Gt, depth, 0, |b| {
            let zero = b.bits(0);
            for at in (0..2 * FOUR_BYTES as usize).step_by(4 * b.lanes()) {
                b.store(Mem::from(to).plus(at), zero);
            }
            let end = b.int_op(IntOp::Add, to, 2 * FOUR_BYTES);
            b.repeat(depth, 4, |b| {
                packer.four(b, from, to.into(), 4);
                b.advance(from, step);
                b.advance(from, thrice);
                b.advance(to, FOUR_BYTES);
            });
            for rows in 1..4 {
                b.when(CompareOp::Eq, depth, rows, |b| packer.four(b, from, to.into(), rows as usize));
            }
            b.set_copy(to, end);
        });

        b.advance(columns, -(PANEL as i32));
        let next = b.arg(PackPanelsKey::FROM_PANEL);
        b.advance(panel, next);
    });
}

/// Packs four elements of each column of a panel, one column after another.
struct FourPacker {
    step: Int,
    /// Three times the step.
    thrice: Int,
    parts: Vec<(Int, Mask)>,
}

impl FourPacker {
    /// Packs the first `rows` of four elements of each column; zeros take the place of the others.
    fn four(&self, b: &mut Builder, from: Int, to: Mem, rows: usize) {
        let indices = [None, Some((self.step, 1)), Some((self.step, 2)), Some((self.thrice, 1))];
        for (vector, &(left, mask)) in self.parts.iter().enumerate() {
            let at = 4 * vector * b.lanes();
            let elements: Vec<Vector> = indices[..rows]
                .iter()
                .map(|index| {
                    let mem = Mem { base: from, index: *index, disp: 0 };
                    let element = b.load_first(mem.plus(at), left, mask);
                    b.round_bf16(element)
                })
                .collect();
            let first = joined(b, elements[0], elements.get(1).copied());
            let second = match elements.get(2) {
                None => b.bits(0),
                Some(third) => joined(b, *third, elements.get(3).copied()),
            };
            for (half, is_second) in [false, true].into_iter().enumerate() {
                let columns = b.binary(VBinary::Exchange { stage: 0, second: is_second }, first, second);
                b.store(to.plus(2 * at + 4 * half * b.lanes()), columns);
            }
        }
    }
}

/// For each vector of a panel, the number of columns from its first lane on, and the mask of its existing columns.
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

struct PanelPacker {
    low: bool,
    step: Int,
    parts: Vec<(Int, Mask)>,
}

impl PanelPacker {
    /// Bytes of low bf16 after a register of high ones.
    fn skipped(&self) -> i32 {
        if self.low { REGISTER_BYTES } else { 0 }
    }

    /// Fills the registers that begin at `to` with zeros.
    fn clear(&self, b: &mut Builder, to: Int) {
        let zero = b.bits(0);
        for at in (0..(REGISTER_BYTES + self.skipped()) as usize).step_by(4 * b.lanes()) {
            b.store(Mem::from(to).plus(at), zero);
        }
    }

    /// Packs `pairs` pairs of each column. Both pointers advance.
    fn pairs(&self, b: &mut Builder, pairs: Int, from: Int, to: Int) {
        b.repeat(pairs, 1, |b| {
            self.pair(b, from, to, true);
            b.advance(from, self.step);
            b.advance(from, self.step);
            b.advance(to, TILE_ROW_BYTES as i32);
        });
    }

    /// Packs one pair of each column, or only its first element.
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

/// Pairs the high halves of `x` and `y`: that of `x` becomes the low half.
fn joined(b: &mut Builder, x: Vector, y: Option<Vector>) -> Vector {
    let x = b.shift(ShiftOp::Right, x, 16);
    y.map_or(x, |y| b.binary(VBinary::Or, x, y))
}
