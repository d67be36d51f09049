//! The reduction by products of small matrices: two rows of lhs times two columns of rhs. Each has eight bytes or four
//! bf16.
//!
//! A register has the sums of two rows and two columns, so a vector of columns of two rows takes two registers. They
//! are those of the accumulators of both rows, which are turned into this form before the reduction, and back after it.
//! An odd last row is paired with itself.

use super::{
    key::{DotOp, PANEL},
    tile::{Pair, Tile, UNROLL},
};
use crate::codegen::vector::{
    Builder,
    vcode::{Int, Mem, VBinary, Vector},
};

/// 32-bit elements of a row of lhs that one multiplication takes.
const STEP: usize = 2;

/// Bytes of these elements.
const STEP_BYTES: usize = 4 * STEP;

/// Exchanges the second half of one vector with the first half of another.
const EXCHANGE_HALVES: [VBinary; 2] =
    [VBinary::Exchange { stage: 1, second: false }, VBinary::Exchange { stage: 1, second: true }];

impl Tile<'_> {
    /// The registers of each pair of rows. An odd last row has as many registers besides its accumulators.
    pub(super) fn pairs_of_rows(&self, b: &mut Builder) -> Vec<Pair> {
        let mut pair = |rows: &[Vec<Vector>]| match rows {
            [first, second] => first.iter().zip(second).map(|(a, b)| [*a, *b]).collect(),
            _ => rows[0].iter().map(|accumulator| [*accumulator, b.vector()]).collect(),
        };
        self.accumulators.chunks(2).map(&mut pair).collect()
    }

    /// Turns the accumulators of rows into sums of pairs.
    pub(super) fn pair_rows(&self, b: &mut Builder) {
        if let (1, Some(pair)) = (self.key.rows % 2, self.pairs.last()) {
            pair.iter().for_each(|[row, copy]| b.set(*copy, *row));
        }
        self.exchange_halves(b);
    }

    /// Turns the sums of pairs into accumulators of rows.
    pub(super) fn unpair_rows(&self, b: &mut Builder) {
        self.exchange_halves(b);
    }

    fn exchange_halves(&self, b: &mut Builder) {
        for &[first, second] in self.pairs.iter().flatten() {
            let exchanged = EXCHANGE_HALVES.map(|exchange| b.binary(exchange, first, second));
            b.set(first, exchanged[0]);
            b.set(second, exchanged[1]);
        }
    }

    /// The innermost loop, over an even number of 32-bit elements.
    pub(super) fn multiply_pairs(&self, b: &mut Builder, count: Int, lhs: Int, rhs: Int) {
        let panels = self.panels(b);
        for block in [UNROLL, STEP] {
            b.repeat(count, block as i32, |b| {
                let places = self.panel_places(b, rhs, &panels);
                let elements: Vec<Vec<Vector>> =
                    (0..self.pairs.len()).map(|pair| self.load_pair(b, lhs, pair, block)).collect();
                for step in 0..block / STEP {
                    let factors = elements.iter().map(|steps| steps[step]);
                    let at_once = self.loads_at_once(b, 2 * elements.len() + self.copies());
                    self.multiply_step(b, factors, at_once, &|at| {
                        let (panel, column) = (at / PANEL, at % PANEL);
                        let offset = STEP_BYTES * (PANEL * step + column);
                        places[panel].plus(offset)
                    });
                }
                b.advance(lhs, 4 * block as i32);
                let bytes = (4 * PANEL * block) as i32;
                b.advance(rhs, bytes);
                if let Some(prefetch) = self.prefetch.filter(|_| block == UNROLL) {
                    prefetch.advance(b, bytes, &panels);
                }
            });
        }
    }

    /// Adds the products of each pair of rows with all columns. `rhs` is the place of a column.
    fn multiply_step(
        &self,
        b: &mut Builder,
        factors: impl Iterator<Item = Vector> + Clone,
        at_once: usize,
        rhs: &dyn Fn(usize) -> Mem,
    ) {
        for vector in 0..usize::from(self.key.vectors) {
            for halves in [0, 1].chunks(at_once) {
                let place = |half: &usize| rhs(vector * b.lanes() + 2 * half);
                let places: Vec<Mem> = halves.iter().map(place).collect();
                let loaded: Vec<Vector> = places.into_iter().map(|place| b.load(place)).collect();
                for (half, columns) in halves.iter().zip(loaded) {
                    for (pair, rows) in self.pairs.iter().zip(factors.clone()) {
                        match self.key.dot {
                            DotOp::MatrixBf16 => b.set_dot_matrix_bf16(pair[vector][*half], rows, columns),
                            _ => b.set_dot_matrix(pair[vector][*half], rows, columns),
                        }
                    }
                }
            }
        }
    }

    /// Registers of the copy of an odd last row.
    fn copies(&self) -> usize {
        usize::from(self.key.rows % 2) * usize::from(self.key.vectors)
    }

    /// The next `block` elements of two rows of lhs: for each step, those of the first row and those of the second.
    fn load_pair(&self, b: &mut Builder, lhs: Int, pair: usize, block: usize) -> Vec<Vector> {
        let last = usize::from(self.key.rows) - 1;
        let [first, second] = [2 * pair, (2 * pair + 1).min(last)].map(|row| self.lhs_mem(lhs, row));
        if block == UNROLL {
            let [x, y] = [first, second].map(|row| b.load(row));
            return EXCHANGE_HALVES.map(|exchange| b.binary(exchange, x, y)).into();
        }
        let [x, y] = [first, second].map(|row| b.wide_broadcast(row));
        vec![b.binary(EXCHANGE_HALVES[0], x, y)]
    }
}
