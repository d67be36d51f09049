//! Transposition of squares, as many rows and columns as a vector has lanes, and of blocks of bytes.
//!
//! A stage of words pairs the vectors whose indices differ in one bit. It exchanges this bit of the vector's index with
//! one bit of the lane's index. The stages are independent of each other: each exchanges other bits.

use super::Builder;
use crate::codegen::vector::vcode::{Int, IntOp, Mem, QUAD_BYTES, VBinary, VInst, Vector, VectorHalf};

/// The stages that exchange lanes within each four lanes.
const QUAD_STAGES: u8 = 2;

impl Builder {
    /// Transposes as many vectors as there are lanes: vector `i` of the result holds lane `i` of each vector.
    pub fn transpose(&mut self, rows: Vec<Vector>) -> Vec<Vector> {
        let stages = self.lanes().trailing_zeros() as u8;
        self.exchange(rows, stages)
    }

    /// Loads a vector from each address and transposes them.
    ///
    /// Later stages move four lanes at a time. Loads of four lanes from different addresses save them.
    pub(crate) fn load_transposed(&mut self, addresses: &[Mem]) -> Vec<Vector> {
        let lanes = self.lanes();
        debug_assert_eq!(addresses.len(), lanes, "a square");
        let rows = (0..lanes).map(|row| {
            let quads = (0..lanes / 4).map(|quad| addresses[4 * quad + row % 4].plus(16 * (row / 4)));
            self.load_quads(quads.collect())
        });
        let rows = rows.collect();
        self.exchange(rows, QUAD_STAGES)
    }

    /// Four lanes from each address.
    pub(crate) fn load_quads(&mut self, mems: Vec<Mem>) -> Vector {
        let dst = self.vector();
        self.push(VInst::LoadQuads(dst, mems));
        dst
    }

    /// Four lanes to each address.
    pub(crate) fn store_quads(&mut self, mems: Vec<Mem>, src: Vector) {
        self.push(VInst::StoreQuads(mems, src));
    }

    /// Transposes 16 vectors of bytes in each group of four lanes: vector `i` of the result holds byte `i` of the group
    /// of each vector.
    ///
    /// A stage puts the bytes of the first eight vectors between those of the others. So it rotates the eight bits of
    /// the indices of vectors and bytes by one, and four stages exchange both indices.
    pub(crate) fn transpose_bytes(&mut self, mut rows: Vec<Vector>) -> Vec<Vector> {
        debug_assert_eq!(rows.len(), QUAD_BYTES, "a square");
        for _ in 0..QUAD_BYTES.trailing_zeros() {
            let (first, second) = rows.split_at(QUAD_BYTES / 2);
            let pairs: Vec<(Vector, Vector)> = first.iter().copied().zip(second.iter().copied()).collect();
            rows = Vec::with_capacity(QUAD_BYTES);
            for (a, b) in pairs {
                rows.extend(
                    [VectorHalf::First, VectorHalf::Second]
                        .map(|half| self.binary(VBinary::ZipBytes(half), a, b)),
                );
            }
        }
        rows
    }

    /// The addresses of the groups of four lanes of 16 vectors, `stride` bytes apart: those of the first groups of all
    /// vectors, then those of the second ones. `visit` gets the addresses of each vector in order.
    pub(crate) fn quad_addresses(
        &mut self,
        first: Int,
        stride: Int,
        mut visit: impl FnMut(&mut Builder, usize, Vec<Mem>),
    ) {
        let rows = QUAD_BYTES as i32;
        let mut bases = vec![self.copy(first)];
        for _ in 1..self.lanes() / 4 {
            let between = self.int_op(IntOp::Mul, stride, rows);
            let base = *bases.last().expect("the first one");
            bases.push(self.int_op(IntOp::Add, base, between));
        }
        let thrice = self.address(Mem { base: stride, index: Some((stride, 2)), disp: 0 });
        let four = self.int_op(IntOp::Shl, stride, 2);
        let places = [None, Some((stride, 1)), Some((stride, 2)), Some((thrice, 1))];
        for row in 0..QUAD_BYTES {
            if row > 0 && row % 4 == 0 {
                bases.iter().for_each(|base| self.advance(*base, four));
            }
            let addresses = bases.iter().map(|&base| Mem { base, index: places[row % 4], disp: 0 });
            let addresses = addresses.collect();
            visit(self, row, addresses);
        }
    }

    /// Runs the first stages, and brings their results into order.
    fn exchange(&mut self, mut rows: Vec<Vector>, stages: u8) -> Vec<Vector> {
        let lanes = self.lanes();
        debug_assert_eq!(rows.len(), lanes, "a square");
        for stage in 0..stages {
            let bit = 1 << stage;
            for first in (0..lanes).filter(|row| row & bit == 0) {
                let a = rows[first];
                let b = rows[first | bit];
                rows[first] = self.binary(VBinary::Exchange { stage, second: false }, a, b);
                rows[first | bit] = self.binary(VBinary::Exchange { stage, second: true }, a, b);
            }
        }

        // Stage 0 exchanges bit 1 of the lane's index, and stage 1 bit 0.
        let vector_of = |lane: usize| lane & !3 | (lane & 1) << 1 | (lane & 2) >> 1;
        (0..lanes).map(|lane| rows[vector_of(lane)]).collect()
    }
}
