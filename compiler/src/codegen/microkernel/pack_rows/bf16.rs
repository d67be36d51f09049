//! Rows of floats that are multiplied as bf16. An element becomes its high bf16, a high and a low bf16, or three bf16
//! whose sum is the element, see [`crate::scalar::precision`].
//!
//! A row becomes a plane of high bf16, padded with zeros to whole rows of a tile register, or to whole vectors on ISAs
//! without these. A plane for each lower part follows.

use super::{
    super::{bf16, memory, op::Ty},
    row_packer::{CopySize, RowPacker, copy_overlapping},
};
use crate::codegen::vector::{
    Builder,
    vcode::{Int, IntOp, Mask, Mem, TILE_ROW_BYTES, VBinary, Vector},
};
use crate::scalar::CompareOp;

/// Bytes of a bf16.
const BYTES: i32 = 2;

/// The form of rows of bf16.
pub(super) struct Bf16 {
    pub(super) from: Ty,
    pub(super) parts: u8,
    /// Length of a plane.
    pub(super) plane: Int,
}

impl Bf16 {
    /// The addresses in all planes of an address in the first one.
    fn planes(&self, to: Int) -> Vec<Mem> {
        let at = |part: u8| Mem { base: to, index: (part > 0).then_some((self.plane, part)), disp: 0 };
        (0..self.parts).map(at).collect()
    }

    /// The parts of a vector as floats, which the store rounds.
    fn parts(&self, b: &mut Builder, x: Vector) -> Vec<Vector> {
        match self.parts {
            1 => vec![x],
            2 => {
                let high = b.round_bf16(x);
                vec![x, bf16::remainder(b, x, high, high)]
            }
            _ => {
                let high = cut(b, x);
                let rest = bf16::remainder(b, x, x, high);
                let middle = cut(b, rest);
                vec![high, middle, b.binary(VBinary::Sub, rest, middle)]
            }
        }
    }

    /// The parts of two vectors, packed side by side.
    fn packed(&self, b: &mut Builder, both: [Vector; 2]) -> Vec<Vector> {
        if self.parts != 2 {
            let [first, second] = both.map(|x| self.parts(b, x));
            return first.into_iter().zip(second).map(|(x, y)| b.pack_bf16([x, y])).collect();
        }
        let high = b.pack_bf16(both);
        let floats = b.unpack_bf16(high);
        let missed = [0, 1].map(|idx| bf16::remainder(b, both[idx], floats[idx], floats[idx]));
        vec![high, b.pack_bf16(missed)]
    }

    fn store_two(&self, b: &mut Builder, both: [Vector; 2], to: Int) {
        for (part, plane) in self.packed(b, both).into_iter().zip(self.planes(to)) {
            b.store(plane, part);
        }
    }

    fn store(&self, b: &mut Builder, x: Vector, to: Int) {
        for (part, plane) in self.parts(b, x).into_iter().zip(self.planes(to)) {
            b.store_bf16(plane, part);
        }
    }

    /// Stores the first `count` lanes, fewer than a vector has, and no other memory; `to` advances past them.
    fn store_few(&self, b: &mut Builder, x: Vector, count: Int, mask: Mask, to: Int) {
        for (part, plane) in self.parts(b, x).into_iter().zip(self.planes(to)) {
            b.store_bf16_first(plane, part, count, mask);
        }
        let bytes = b.int_op(IntOp::Mul, count, BYTES);
        b.advance(to, bytes);
    }
}

impl RowPacker for Bf16 {
    /// Clears the last register row or vector of each plane, before the elements in it are stored.
    fn begin(&self, b: &mut Builder, row: Int) {
        let end = b.int_op(IntOp::Add, row, self.plane);
        let last = if b.shape().tiles { TILE_ROW_BYTES } else { 4 * b.lanes() };
        b.advance(end, -(last as i32));
        let zero = b.bits(0);
        for plane in self.planes(end) {
            for at in (0..last).step_by(4 * b.lanes()) {
                b.store(plane.plus(at), zero);
            }
        }
    }

    /// Packs two vectors or one at a time, the last of which may overlap those before, or fewer elements than a vector
    /// has.
    fn contiguous(&self, b: &mut Builder, count: Int, from: Int, to: Int) {
        let lanes = b.lanes() as i32;
        let all = b.copy(count);

        let size = |elements: i32| CopySize {
            elements,
            from_bytes: memory::elem_bytes(self.from) as i32,
            to_bytes: BYTES,
        };

        b.when(CompareOp::Ge, all, 2 * lanes, |b| {
            copy_overlapping(b, count, size(2 * lanes), from, to, &|b| {
                let second = lanes as usize * memory::elem_bytes(self.from);
                let both = [0, second].map(|at| memory::load(b, Mem::from(from).plus(at), self.from));
                self.store_two(b, both, to);
            });
        });
        b.when(CompareOp::Ge, all, lanes, |b| {
            b.when(CompareOp::Lt, all, 2 * lanes, |b| {
                copy_overlapping(b, count, size(lanes), from, to, &|b| {
                    let x = memory::load(b, from.into(), self.from);
                    self.store(b, x, to);
                });
            });
        });
        b.when(CompareOp::Lt, all, lanes, |b| {
            let mask = b.mask_first(all);
            let x = memory::load_first(b, from.into(), self.from, all, mask);
            self.store_few(b, x, all, mask, to);
        });
    }

    fn strided(&self, b: &mut Builder, count: Int, from: Int, to: Int, step: Int) {
        let lanes = b.lanes() as i32;
        b.repeat(count, lanes, |b| {
            let places = b.lane_addresses(from, step);
            let x = memory::load_lanes(b, places, self.from);
            self.store(b, x, to);
            let bytes = b.int_op(IntOp::Mul, step, lanes);
            b.advance(from, bytes);
            b.advance(to, BYTES * lanes);
        });
        b.repeat(count, 1, |b| {
            let x = memory::load_one(b, from.into(), self.from);
            let one = b.imm(1);
            let mask = b.mask_first(one);
            self.store_few(b, x, one, mask, to);
            b.advance(from, step);
        });
    }
}

/// `x` truncated to bf16.
fn cut(b: &mut Builder, x: Vector) -> Vector {
    let kept = b.bits(0xffff_0000);
    b.binary(VBinary::And, x, kept)
}
