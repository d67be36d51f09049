//! The reduction over panels of few bits with a rounded lhs: integers are multiplied, and the sum of each block is
//! scaled, see `scalar/activations.rs`.
//!
//! A word of 32 bits in each lane of rhs has the codes of a group of reduction indices. Shifted to the right by a
//! multiple of their bits and masked, it has two or four of them, which one instruction multiplies with as many codes
//! of lhs. Codes are not signed yet: they are higher by half of their range. The sums of a block begin with the
//! correction for that and for the zero points.

use super::{
    few_bits_panels::Panels,
    key::{BlockDot, PANEL, TileKey},
    prefetch::FollowingPrefetch,
    tile::Tile,
};
use crate::{
    codegen::{
        microkernel::{memory, op::Ty},
        vector::{
            Builder, VectorShape,
            vcode::{Int, IntOp, NarrowInt, ShiftOp, VBinary, VUnary, Vector},
        },
    },
    kernel::rounded_rows::HEADER_WORDS,
    scalar::CompareOp,
};

/// Largest number of rows of a tile. Each has the sums of a block besides its accumulators, which are in memory during
/// a block if registers don't suffice. A tile of two vectors reads half as many elements of lhs for a multiplication as
/// one of twice the rows.
pub(super) fn max_rounded_rows(shape: VectorShape) -> usize {
    match (shape.registers, PANEL / shape.lanes) {
        (32, _) => 6,
        (_, 2) => 4,
        _ => 2,
    }
}

/// Vectors of columns of the widest tile of `rows` rows.
pub(super) fn wide_rounded_vectors(shape: VectorShape, rows: usize, dot: BlockDot) -> usize {
    let wide = match (shape.registers, rows) {
        // Sums of 16 bits need registers too.
        (16, 2..) if dot == BlockDot::BytePairs => 2,
        (32, 1..=2) => 4,
        (32, 3..=6) => 2,
        (_, 1) => 4,
        _ => 1,
    };
    wide.max(PANEL / shape.lanes)
}

/// The form of the codes, and how they are multiplied.
#[derive(Clone, Copy)]
pub(super) struct RoundedCode {
    pub(super) bits: usize,
    /// The type of scales.
    pub(super) scale: Ty,
    pub(super) has_zeros: bool,
    pub(super) dot: BlockDot,
}

impl RoundedCode {
    /// Reduction indices of a word of rhs.
    fn group(self) -> usize {
        32 / self.bits
    }

    /// Multiplications of a word of rhs.
    fn steps(self) -> usize {
        self.group() / self.dot.codes_of_word()
    }

    /// Words of rhs whose products are added at once. Sums of 16 bits hold those of 32 codes of 4 bits: at most
    /// `16 * 15 * 127`.
    fn words_of_round(self) -> usize {
        if self.dot == BlockDot::BytePairs { 32 / self.group() } else { 1 }
    }

    /// The lowest bits of each part of a word.
    fn mask(self) -> u32 {
        let parts = self.dot.codes_of_word();
        let part_bits = 32 / parts;
        (0..parts).fold(0, |mask, part| mask | ((1 << self.bits) - 1) << (part_bits * part))
    }

    /// Whether the codes of a word are all that it has.
    fn fills_parts(self) -> bool {
        self.bits * self.dot.codes_of_word() == 32
    }

    /// The codes that multiplication `step` of words takes.
    fn codes(self, b: &mut Builder, words: Vector, step: usize) -> Vector {
        let shifted =
            if step == 0 { words } else { b.shift(ShiftOp::Right, words, (self.bits * step) as u8) };
        if self.fills_parts() {
            return shifted;
        }
        let mask = b.bits(self.mask());
        b.binary(VBinary::And, shifted, mask)
    }
}

impl Tile<'_> {
    /// The reduction from these addresses on, which are those of the first block of lhs and of the first panel.
    pub(super) fn rounded(&self, b: &mut Builder, code: RoundedCode, lhs: Int, rhs: Int) {
        let count = b.arg(TileKey::level(0));
        let block = b.arg(TileKey::BLOCK);
        let blocks = b.arg(TileKey::BLOCKS);
        let offsets = self.panels(b);
        let panels = Panels { at: rhs, offsets: &offsets, vectors: usize::from(self.key.vectors) };
        let prefetch = FollowingPrefetch::new(b, self.key, rhs).filter(|_| self.key.rows == 1);

        b.repeat(blocks, 1, |b| {
            let indices = b.copy(block);
            b.when(CompareOp::Lt, count, indices, |b| b.set_copy(indices, count));
            b.set_int_op(IntOp::Sub, count, indices);
            let first = b.copy(rhs);
            let sums = self.start_block(b, code, &panels, lhs);

            let codes = b.int_op(IntOp::Add, lhs, 4 * HEADER_WORDS as i32);
            let header = PANEL * (memory::elem_bytes(code.scale) + usize::from(code.has_zeros));
            b.advance(rhs, header as i32);
            let padded = b.int_op(IntOp::Add, indices, code.group() as i32 - 1);
            let rounds = if code.words_of_round() > 1 { vec![code.words_of_round(), 1] } else { vec![1] };
            for words in rounds {
                b.repeat(padded, (words * code.group()) as i32, |b| {
                    self.multiply_words(b, code, &panels, codes, &sums, words);
                    b.advance(codes, (4 * words * code.steps()) as i32);
                    b.advance(rhs, (4 * words * PANEL) as i32);
                    for _ in 0..words {
                        if let Some(prefetch) = prefetch {
                            prefetch.advance(b);
                        }
                    }
                });
            }

            self.finish_block(b, code, &Panels { at: first, ..panels }, lhs, &sums);
            if let Some(prefetch) = prefetch {
                prefetch.advance_by(b, header);
            }
            b.set_copy(lhs, codes);
        });
    }

    /// The sums of a block before the first product, by row and vector.
    fn start_block(
        &self,
        b: &mut Builder,
        code: RoundedCode,
        panels: &Panels<'_>,
        lhs: Int,
    ) -> Vec<Vec<Vector>> {
        let mut sums = Vec::new();
        for row in 0..usize::from(self.key.rows) {
            let start = b.broadcast(self.lhs_mem(lhs, row).plus(4));
            sums.push((0..panels.vectors).map(|_| b.variable(start)).collect::<Vec<_>>());
        }
        if code.has_zeros {
            let scale_bytes = PANEL * memory::elem_bytes(code.scale);
            for vector in 0..panels.vectors {
                let mem = panels.mem(b, vector, 1).plus(scale_bytes);
                let zeros = b.load_narrow(mem, NarrowInt::I8);
                for (row, sums) in sums.iter().enumerate() {
                    let sum = b.broadcast(self.lhs_mem(lhs, row).plus(8));
                    let products = b.binary(VBinary::MulInt, sum, zeros);
                    b.set_binary(VBinary::SubInt, sums[vector], products);
                }
            }
        }
        sums
    }

    /// Whether words stay in registers for all their multiplications. Otherwise each loads them again, which was faster
    /// for tiles of many rows; bytes would also be made unsigned again.
    fn keeps_words(&self, code: RoundedCode) -> bool {
        code.bits == 8 || self.key.rows <= 2
    }

    /// Adds the products of `words` words at the current place of all panels.
    fn multiply_words(
        &self,
        b: &mut Builder,
        code: RoundedCode,
        panels: &Panels<'_>,
        lhs: Int,
        sums: &[Vec<Vector>],
        words: usize,
    ) {
        // Sums of 16 bits.
        let mut halves: Vec<Vec<Option<Vector>>> = sums.iter().map(|sums| vec![None; sums.len()]).collect();
        for word in 0..words {
            let lhs_mem = |row, step| self.lhs_mem(lhs, row).plus(4 * (word * code.steps() + step));
            if let ([sums], [halves]) = (sums, &mut halves[..]) {
                // The elements of one row stay in registers rather than the words of all vectors.
                let elements: Vec<Vector> =
                    (0..code.steps()).map(|step| b.broadcast(lhs_mem(0, step))).collect();
                for (vector, sum) in sums.iter().enumerate() {
                    let words = load_codes(b, code, panels, vector, word);
                    for (step, x) in elements.iter().enumerate() {
                        let codes = code.codes(b, words, step);
                        multiply(b, code.dot, (codes, *x), *sum, &mut halves[vector]);
                    }
                }
                continue;
            }

            let loaded: Option<Vec<Vector>> = self.keeps_words(code).then(|| {
                (0..panels.vectors).map(|vector| load_codes(b, code, panels, vector, word)).collect()
            });
            for step in 0..code.steps() {
                let codes: Vec<Vector> = (0..panels.vectors)
                    .map(|vector| {
                        let words = match &loaded {
                            Some(words) => words[vector],
                            None => load_codes(b, code, panels, vector, word),
                        };
                        code.codes(b, words, step)
                    })
                    .collect();
                for row in 0..sums.len() {
                    let x = b.broadcast(lhs_mem(row, step));
                    for (vector, codes) in codes.iter().enumerate() {
                        multiply(b, code.dot, (*codes, x), sums[row][vector], &mut halves[row][vector]);
                    }
                }
            }
        }

        let ones = b.bits(0x0001_0001);
        for (sums, halves) in sums.iter().zip(halves) {
            for (sum, halves) in sums.iter().zip(halves) {
                if let Some(halves) = halves {
                    b.add_dot_pairs(*sum, halves, ones);
                }
            }
        }
    }

    /// Adds the scaled sums of a block to the accumulators. `panels` are at the first byte of the block.
    fn finish_block(
        &self,
        b: &mut Builder,
        code: RoundedCode,
        panels: &Panels<'_>,
        lhs: Int,
        sums: &[Vec<Vector>],
    ) {
        for vector in 0..panels.vectors {
            let mem = panels.mem(b, vector, memory::elem_bytes(code.scale));
            let scales = memory::load(b, mem, code.scale);
            for (row, sums) in sums.iter().enumerate() {
                let scale = b.broadcast(self.lhs_mem(lhs, row));
                let scale = b.binary(VBinary::Mul, scale, scales);
                let sum = b.unary(VUnary::ToFloat, sums[vector]);
                b.set_fma(self.accumulators[row][vector], sum, scale);
            }
        }
    }
}

/// The codes of a vector of columns, `word` words after the current place.
fn load_codes(b: &mut Builder, code: RoundedCode, panels: &Panels<'_>, vector: usize, word: usize) -> Vector {
    let mem = panels.mem(b, vector, 4).plus(4 * PANEL * word);
    let words = b.load(mem);
    if code.bits < 8 || code.dot.is_signed(code.bits as u8) {
        return words;
    }
    // Signed bytes become unsigned ones.
    let highest = b.bits(0x8080_8080);
    b.binary(VBinary::Xor, words, highest)
}

/// Adds the products of codes and elements of lhs to sums of 32 bits, or of 16 bits if there are any.
fn multiply(
    b: &mut Builder,
    dot: BlockDot,
    (codes, x): (Vector, Vector),
    sum: Vector,
    halves: &mut Option<Vector>,
) {
    match dot {
        BlockDot::Bytes => b.set_dot_bytes(sum, codes, x),
        BlockDot::Signed => b.set_dot_signed(sum, codes, x),
        BlockDot::Pairs => b.add_dot_pairs(sum, codes, x),
        BlockDot::BytePairs => {
            let products = b.binary(VBinary::DotBytePairs, codes, x);
            match halves {
                Some(halves) => b.set_binary(VBinary::AddHalves, *halves, products),
                None => *halves = Some(b.variable(products)),
            }
        }
    }
}
