//! Copies of bytes between a matrix and its transpose, in blocks of 16 times as many bytes as a vector has.
//!
//! A strip of bytes in [`columns`](super::columns) extends each byte to a lane. A copy needs no lanes: a block is
//! loaded, transposed by exchanges of bytes and stored, a vector of 16 rows or of 16 columns at a time.
//!
//! The last blocks of a matrix overlap those before, which write the same bytes.

use super::position::{StridedPointer, StripRegisters};
use crate::{
    codegen::{
        microkernel::{
            memory,
            op::{Body, Op},
        },
        vector::{
            Builder,
            vcode::{Int, IntOp, Mem, QUAD_BYTES, Vector},
        },
    },
    scalar::CompareOp,
};

/// The only instructions of a strip: loads from a stream and stores to another one.
#[derive(Clone, Copy)]
pub(super) struct ByteCopy {
    from: u32,
    to: u32,
}

/// The rows and columns of a strip.
pub(super) struct Matrix {
    /// The pointer of the stream that is read.
    pub(super) from: StridedPointer,
    pub(super) rows: Int,
    pub(super) columns: Int,
}

/// The sides of a block, in bytes.
#[derive(Clone, Copy)]
struct Block {
    rows: usize,
    columns: usize,
}

impl ByteCopy {
    /// `None` for other bodies.
    pub(super) fn of(body: &Body) -> Option<ByteCopy> {
        let [(Op::Load(from), loaded), (Op::Store(to, 0), stored)] = body.insts[..] else { return None };
        let are_bytes = loaded == stored && memory::elem_bytes(loaded) == 1;
        (are_bytes && body.stores_elsewhere).then_some(ByteCopy { from, to })
    }

    /// Copies a matrix that has at least a block, and sets its number of columns to 0 then.
    ///
    /// Columns that are further apart than the rows of the result are read by whole lines.
    pub(super) fn emit(self, strip: &StripRegisters<'_>, b: &mut Builder, matrix: &Matrix) {
        let long = 4 * b.lanes();
        let wide = Block { rows: QUAD_BYTES, columns: long };
        let tall = Block { rows: long, columns: QUAD_BYTES };
        let wide_columns = b.copy(matrix.columns);
        if long > QUAD_BYTES {
            let between_rows = b.arg(strip.key.pointer(strip.key.streams[self.to as usize].pointer) + 1);
            b.when(CompareOp::Gt, matrix.from.stride, between_rows, |b| {
                b.when(CompareOp::Ge, matrix.rows, long as i32, |b| {
                    let none = b.imm(0);
                    b.set_copy(wide_columns, none);
                });
            });
        }
        self.emit_fitting(strip, b, matrix, wide, wide_columns);
        if long > QUAD_BYTES {
            self.emit_fitting(strip, b, matrix, tall, matrix.columns);
        }
    }

    /// Copies a matrix if it has a block of these sides in this number of columns.
    fn emit_fitting(
        self,
        strip: &StripRegisters<'_>,
        b: &mut Builder,
        matrix: &Matrix,
        block: Block,
        columns: Int,
    ) {
        b.when(CompareOp::Ge, matrix.rows, block.rows as i32, |b| {
            b.when(CompareOp::Ge, columns, block.columns as i32, |b| {
                self.emit_blocks(strip, b, matrix, block);
                let none = b.imm(0);
                b.set_copy(matrix.columns, none);
            });
        });
    }

    /// All blocks of these sides, column by column.
    fn emit_blocks(self, strip: &StripRegisters<'_>, b: &mut Builder, matrix: &Matrix, block: Block) {
        let from = strip.key.streams[self.from as usize];
        let to = strip.key.streams[self.to as usize];
        for_blocks(b, matrix.columns, block.columns, &mut |b, column| {
            let StridedPointer { pointer, stride } = matrix.from;
            let skipped = b.int_op(IntOp::Mul, stride, column);
            let source = b.address(Mem { base: pointer, index: Some((skipped, 1)), disp: from.offset });
            let base = strip.pointers[to.pointer as usize];
            let target = b.address(Mem { base, index: Some((column, 1)), disp: to.offset });
            for_blocks(b, matrix.rows, block.rows, &mut |b, row| {
                let between_rows = b.arg(strip.key.pointer(to.pointer) + 1);
                let source = b.int_op(IntOp::Add, source, row);
                let skipped = b.int_op(IntOp::Mul, between_rows, row);
                let target = b.int_op(IntOp::Add, target, skipped);
                block.copy(b, [source, stride], [target, between_rows]);
            });
        });
    }
}

impl Block {
    /// Copies a block. `source` and `target` have an address and the bytes to the next column or row.
    fn copy(self, b: &mut Builder, source: [Int; 2], target: [Int; 2]) {
        let mut rows = Vec::with_capacity(QUAD_BYTES);
        if self.rows == QUAD_BYTES {
            b.quad_addresses(source[0], source[1], |b, _, quads| rows.push(b.load_quads(quads)));
        } else {
            // The lines of the next columns are far apart, so no hardware foresees them.
            let skipped = b.int_op(IntOp::Mul, source[1], QUAD_BYTES as i32);
            let next = b.int_op(IntOp::Add, source[0], skipped);
            for address in b.addresses(next, source[1], QUAD_BYTES) {
                b.prefetch(address);
            }
            for address in b.addresses(source[0], source[1], QUAD_BYTES) {
                rows.push(b.load(address));
            }
        }
        let rows: Vec<Vector> = b.transpose_bytes(rows);
        if self.rows == QUAD_BYTES {
            for (row, address) in b.addresses(target[0], target[1], QUAD_BYTES).into_iter().enumerate() {
                b.store(address, rows[row]);
            }
        } else {
            b.quad_addresses(target[0], target[1], |b, row, quads| b.store_quads(quads, rows[row]));
        }
    }
}

/// Runs `body` with the first index of each block of `size`. The last one ends with `count`, which is at least `size`.
fn for_blocks(b: &mut Builder, count: Int, size: usize, body: &mut dyn FnMut(&mut Builder, Int)) {
    let last = b.copy(count);
    b.advance(last, -(size as i32));
    let left = b.copy(count);
    b.advance(left, size as i32 - 1);
    let first = b.imm(0);
    b.repeat(left, size as i32, |b| {
        b.when(CompareOp::Gt, first, last, |b| b.set_copy(first, last));
        body(b, first);
        b.advance(first, size as i32);
    });
}
