//! Transposition of squares, as many rows and columns as a vector has lanes.
//!
//! A stage pairs the vectors whose indices differ in one bit. It exchanges this bit of the vector's index with one bit
//! of the lane's index. The stages are independent of each other: each exchanges other bits.

use super::Builder;
use crate::codegen::vector::vcode::{Mem, VBinary, VInst, Vector};

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
            let dst = self.vector();
            let quads = quads.collect();
            self.push(VInst::LoadQuads(dst, quads));
            dst
        });
        let rows = rows.collect();
        self.exchange(rows, QUAD_STAGES)
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
