//! Steps on tile registers, and on bf16, which other ISAs have in part.

use super::Builder;
use crate::codegen::vector::vcode::{Int, Mask, Mem, TileDot, TileReg, VInst, Vector, VectorHalf};

impl Builder {
    /// The nearest bf16 of each float as the high half of the lane.
    pub fn round_bf16(&mut self, a: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::RoundBf16(dst, a));
        dst
    }

    /// The nearest bf16 of each float of two vectors, those of the first vector before those of the second.
    pub(crate) fn pack_bf16(&mut self, [first, second]: [Vector; 2]) -> Vector {
        let dst = self.vector();
        self.push(VInst::PackBf16(dst, first, second));
        dst
    }

    /// The floats of a vector of bf16.
    pub(crate) fn unpack_bf16(&mut self, packed: Vector) -> [Vector; 2] {
        [VectorHalf::First, VectorHalf::Second].map(|half| {
            let dst = self.vector();
            self.push(VInst::UnpackBf16(dst, packed, half));
            dst
        })
    }

    /// The lanes of `a`, or 0 where the float of `b` is infinite.
    pub(crate) fn unless_infinite(&mut self, a: Vector, b: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::UnlessInfinite(dst, a, b));
        dst
    }

    /// The nearest bf16 of each float, to consecutive memory.
    pub fn store_bf16(&mut self, mem: impl Into<Mem>, src: Vector) {
        let temp = self.vector();
        self.push(VInst::StoreBf16(mem.into(), src, temp));
    }

    /// The nearest bf16 of the first `n` lanes, to consecutive memory.
    pub(crate) fn store_bf16_first(&mut self, mem: impl Into<Mem>, src: Vector, n: Int, mask: Mask) {
        let temp = self.vector();
        self.push(VInst::StoreBf16First(mem.into(), src, temp, n, mask));
    }

    /// Configures the sizes of tile registers.
    pub fn tile_config(&mut self, mem: impl Into<Mem>) {
        self.push(VInst::TileConfig(mem.into()));
    }

    /// Ends the use of tile registers.
    pub fn tile_release(&mut self) {
        self.push(VInst::TileRelease);
    }

    /// Zeros a tile register.
    pub fn tile_zero(&mut self, tile: TileReg) {
        self.push(VInst::TileZero(tile));
    }

    /// Loads rows that are `stride` bytes apart, from `first` on.
    pub(crate) fn tile_load(&mut self, tile: TileReg, first: impl Into<Mem>, stride: Int) {
        self.push(VInst::TileLoad(tile, Mem { index: Some((stride, 1)), ..first.into() }));
    }

    /// Stores rows `stride` bytes apart, from `first` on.
    pub(crate) fn tile_store(&mut self, first: impl Into<Mem>, stride: Int, tile: TileReg) {
        self.push(VInst::TileStore(Mem { index: Some((stride, 1)), ..first.into() }, tile));
    }

    /// `accumulator += lhs * rhs`.
    pub fn tile_dot(&mut self, op: TileDot, accumulator: TileReg, lhs: TileReg, rhs: TileReg) {
        self.push(VInst::TileDot(op, accumulator, lhs, rhs));
    }
}
