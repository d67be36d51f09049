//! Rows of floats as contiguous `f32`. Unpacked rows that are whole pages apart would compete for the same few lines
//! of the first-level cache.

use super::{
    super::{memory, op::Ty},
    row_packer::{CopySize, RowPacker, copy_overlapping},
};
use crate::codegen::vector::{
    Builder,
    vcode::{Int, IntOp},
};
use crate::scalar::CompareOp;

/// Bytes of a packed element.
const BYTES: i32 = 4;

/// The form of rows of `f32`.
pub(super) struct Floats {
    pub(super) from: Ty,
}

impl RowPacker for Floats {
    /// Packs whole vectors, the last of which may overlap the one before, or fewer elements than a vector has.
    fn contiguous(&self, b: &mut Builder, count: Int, from: Int, to: Int) {
        let lanes = b.lanes() as i32;
        let all = b.copy(count);

        b.when(CompareOp::Ge, all, lanes, |b| {
            let size = CopySize {
                elements: lanes,
                from_bytes: memory::elem_bytes(self.from) as i32,
                to_bytes: BYTES,
            };
            copy_overlapping(b, count, size, from, to, &|b| {
                let x = memory::load(b, from.into(), self.from);
                b.store(to, x);
            });
        });
        b.when(CompareOp::Lt, all, lanes, |b| {
            let mask = b.mask_first(all);
            let x = memory::load_first(b, from.into(), self.from, all, mask);
            b.store_first(to, x, all, Some(mask));
            let bytes = b.int_op(IntOp::Mul, all, BYTES);
            b.advance(to, bytes);
        });
    }

    fn strided(&self, b: &mut Builder, count: Int, from: Int, to: Int, step: Int) {
        let lanes = b.lanes() as i32;
        b.repeat(count, lanes, |b| {
            let places = b.lane_addresses(from, step);
            let x = memory::load_lanes(b, places, self.from);
            b.store(to, x);
            let bytes = b.int_op(IntOp::Mul, step, lanes);
            b.advance(from, bytes);
            b.advance(to, BYTES * lanes);
        });
        b.repeat(count, 1, |b| {
            let x = memory::load_one(b, from.into(), self.from);
            b.store_one(to, x);
            b.advance(from, step);
            b.advance(to, BYTES);
        });
    }
}
