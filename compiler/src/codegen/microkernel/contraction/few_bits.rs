//! The reduction over panels of few bits, see `kernel/few_bits.rs`.
//!
//! Scales and zero points of a block stay in registers. A word of 32 bits in each lane holds the codes of several
//! reduction indices. The mantissa of a float has room for most of them, so a code becomes a float where it is: all
//! other bits of the word are replaced by those of a power of two, in which the lowest bit of the code counts 1. A
//! subtraction of that power, and of half of the codes' range, leaves the signed code.
//!
//! Each element is `(code - zero) * scale`, and is multiplied and added as those of panels of floats are. The sums thus
//! have the same bits as with a right-hand side of floats.

use super::{PANEL, TileKey, key::FewBitsCode, narrow_vectors, prefetch::panel_mem, tile::Tile};
use crate::{
    codegen::{
        microkernel::memory,
        vector::{
            Builder, VectorShape,
            vcode::{Int, IntOp, Mem, NarrowInt, ShiftOp, VBinary, VUnary, Vector},
        },
    },
    scalar::CompareOp,
};

/// Reduction indices of a round of the innermost loop, for codes of a byte.
const UNROLL: usize = 4;

/// Bits of the mantissa of a float that are stored.
const MANTISSA_BITS: usize = 23;

/// Largest number of masks in registers.
const MAX_MASKS: usize = 5;

/// Largest number of rows of a tile whose masks are in registers.
const MAX_ROWS_WITH_MASKS: u8 = 4;

/// Largest number of rows of a tile. Scales, zero points and words need registers too.
pub(crate) fn max_few_bits_rows(shape: VectorShape) -> usize {
    let vectors = narrow_vectors(shape).max(2);
    let held = if holds_words(shape) { 3 } else { 2 };
    (shape.registers.saturating_sub(4 + held * vectors) / vectors).max(1)
}

/// Vectors of columns of the widest tile of `rows` rows.
pub(crate) fn wide_few_bits_vectors(shape: VectorShape, rows: usize, code: FewBitsCode) -> usize {
    let wide = match (shape.registers, rows) {
        (16, 1) if !code.has_zeros => 4,
        (32, 1..=4) => 4,
        _ => 2,
    };
    wide.max(narrow_vectors(shape))
}

/// Whether there are registers for the words of a group.
fn holds_words(shape: VectorShape) -> bool {
    shape.registers >= 32
}

/// A block of the panels of a tile.
struct Block<'a> {
    /// The current byte of the first panel.
    rhs: Int,
    /// Offsets of the other panels.
    panels: &'a [Int],
    /// One for each vector of the tile.
    scales: Vec<Vector>,
    /// One for each vector of the tile. Empty without zero points.
    zeros: Vec<Vector>,
}

impl Block<'_> {
    /// The memory of the first of a vector's elements of `bytes` bytes each.
    fn mem(&self, b: &Builder, vector: usize, bytes: usize) -> Mem {
        let first = vector * b.lanes();
        panel_mem(self.rhs, self.panels, first / PANEL).plus(first % PANEL * bytes)
    }

    /// The elements of a vector with these codes, which are floats.
    fn elements(&self, b: &mut Builder, vector: usize, code: Vector) -> Vector {
        let centred = match self.zeros.get(vector) {
            Some(zero) => b.binary(VBinary::Sub, code, *zero),
            None => code,
        };
        b.binary(VBinary::Mul, centred, self.scales[vector])
    }
}

/// The places of codes in words.
struct Words {
    bits: usize,
    /// The bits of the codes in the mantissa, in registers if there are enough.
    masks: Vec<Vector>,
}

impl Words {
    /// For a tile of `rows` rows.
    fn new(b: &mut Builder, bits: u8, rows: u8) -> Words {
        let mut words = Words { bits: usize::from(bits), masks: Vec::new() };
        if holds_words(b.shape()) && rows <= MAX_ROWS_WITH_MASKS {
            for k in 0..words.in_mantissa().min(MAX_MASKS) {
                let mask = b.bits(words.mask(k));
                words.masks.push(b.variable(mask));
            }
        }
        words
    }

    /// The bits of code number `k`.
    fn mask(&self, k: usize) -> u32 {
        ((1 << self.bits) - 1) << (self.bits * k)
    }

    /// Codes of a word.
    fn group(&self) -> usize {
        32 / self.bits
    }

    /// Codes from the lowest bit on that lie in the mantissa of a float.
    fn in_mantissa(&self) -> usize {
        MANTISSA_BITS / self.bits
    }

    /// Code number `k` of words, as floats. It must be one of those in the mantissa.
    fn code(&self, b: &mut Builder, words: Vector, k: usize) -> Vector {
        let lowest = self.bits * k;
        debug_assert!(k < self.in_mantissa());
        let power = ((1 << (MANTISSA_BITS - lowest)) as f32).to_bits();
        let half = 1u32 << (lowest + self.bits - 1);
        let mask = self.masks.get(k).copied().unwrap_or_else(|| b.bits(self.mask(k)));
        let exponent = b.bits(power);
        // The bits of a float `power + half of the range`: half of the range is the highest bit of a code.
        let origin = b.bits(power | half);
        let float = b.and_or(mask, words, exponent);
        b.binary(VBinary::Sub, float, origin)
    }
}

/// Shifts the lowest bits out of words.
fn shift_out(b: &mut Builder, words: Vector, bits: usize) -> Vector {
    if bits == 0 { words } else { b.shift(ShiftOp::Right, words, bits as u8) }
}

impl Tile<'_> {
    /// The reduction from these addresses on, which are those of the first index and of the first panel.
    pub(super) fn few_bits(&self, b: &mut Builder, code: FewBitsCode, lhs: Int, rhs: Int) {
        let remaining = b.arg(TileKey::level(0));
        let size = b.arg(TileKey::BLOCK);
        let blocks = b.arg(TileKey::BLOCKS);
        let step = (!self.key.dense).then(|| b.arg(TileKey::LHS_K));
        let panels = self.panels(b);
        let words = (code.bits < 8).then(|| Words::new(b, code.bits, self.key.rows));

        b.repeat(blocks, 1, |b| {
            let count = b.copy(size);
            b.when(CompareOp::Lt, remaining, size, |b| b.set_copy(count, remaining));
            b.set_int_op(IntOp::Sub, remaining, count);
            let block = self.block(b, code, rhs, &panels);
            match &words {
                None => self.bytes(b, &block, count, lhs, step),
                Some(words) => self.words(b, words, &block, count, lhs, step),
            }
        });
    }

    /// Loads scales and zero points, and moves to the codes.
    fn block<'p>(&self, b: &mut Builder, code: FewBitsCode, rhs: Int, panels: &'p [Int]) -> Block<'p> {
        let vectors = usize::from(self.key.vectors);
        let scale_bytes = memory::elem_bytes(code.scale);
        let mut block = Block { rhs, panels, scales: Vec::new(), zeros: Vec::new() };
        for vector in 0..vectors {
            let mem = block.mem(b, vector, scale_bytes);
            block.scales.push(memory::load(b, mem, code.scale));
        }
        b.advance(rhs, (PANEL * scale_bytes) as i32);
        if code.has_zeros {
            for vector in 0..vectors {
                let mem = block.mem(b, vector, 1);
                let zero = b.load_narrow(mem, NarrowInt::I8);
                block.zeros.push(b.unary(VUnary::ToFloat, zero));
            }
            b.advance(rhs, PANEL as i32);
        }
        block
    }

    /// The reduction over `count` indices of a block of bytes.
    fn bytes(&self, b: &mut Builder, block: &Block<'_>, count: Int, lhs: Int, step: Option<Int>) {
        for unroll in [UNROLL, 1] {
            b.repeat(count, unroll as i32, |b| {
                for k in 0..unroll {
                    self.products(b, block, lhs, k, |b, vector| {
                        let mem = block.mem(b, vector, 1).plus(PANEL * k);
                        let code = b.load_narrow(mem, NarrowInt::I8);
                        b.unary(VUnary::ToFloat, code)
                    });
                    self.next(b, lhs, step);
                }
                self.skip(b, lhs, step, unroll);
                b.advance(block.rhs, (PANEL * unroll) as i32);
            });
        }
    }

    /// The reduction over `count` indices of a block of words. The last word may have fewer codes.
    fn words(
        &self,
        b: &mut Builder,
        words: &Words,
        block: &Block<'_>,
        count: Int,
        lhs: Int,
        step: Option<Int>,
    ) {
        let vectors = usize::from(self.key.vectors);
        let load = |b: &mut Builder, vector: usize| {
            let mem = block.mem(b, vector, 4);
            b.load(mem)
        };

        b.repeat(count, words.group() as i32, |b| {
            let mut held: Vec<Vector> = match holds_words(b.shape()) {
                true => (0..vectors).map(|vector| load(b, vector)).collect(),
                false => Vec::new(),
            };
            // The number of codes that were shifted out.
            let mut shifted = 0;
            for k in 0..words.group() {
                if k - shifted == words.in_mantissa() {
                    shifted = k;
                    held = held.iter().map(|word| shift_out(b, *word, words.bits * shifted)).collect();
                }
                self.products(b, block, lhs, k, |b, vector| {
                    let word = held.get(vector).copied().unwrap_or_else(|| {
                        let word = load(b, vector);
                        shift_out(b, word, words.bits * shifted)
                    });
                    words.code(b, word, k - shifted)
                });
                self.next(b, lhs, step);
            }
            self.skip(b, lhs, step, words.group());
            b.advance(block.rhs, (4 * PANEL) as i32);
        });

        b.when(CompareOp::Gt, count, 0, |b| {
            let held: Vec<Vector> = (0..vectors).map(|vector| load(b, vector)).collect();
            b.repeat(count, 1, |b| {
                self.products(b, block, lhs, 0, |b, vector| words.code(b, held[vector], 0));
                for word in &held {
                    let rest = b.shift(ShiftOp::Right, *word, words.bits as u8);
                    b.set(*word, rest);
                }
                self.next(b, lhs, step);
                self.skip(b, lhs, step, 1);
            });
            b.advance(block.rhs, (4 * PANEL) as i32);
        });
    }

    /// Moves to the next reduction index, unless these are consecutive.
    fn next(&self, b: &mut Builder, lhs: Int, step: Option<Int>) {
        if let Some(step) = step {
            b.advance(lhs, step);
        }
    }

    /// Moves over `count` consecutive reduction indices.
    fn skip(&self, b: &mut Builder, lhs: Int, step: Option<Int>, count: usize) {
        if step.is_none() {
            b.advance(lhs, 4 * count as i32);
        }
    }

    /// Adds the products of one reduction index, number `k` of the consecutive ones from `lhs` on. `code` emits the
    /// codes of a vector as floats.
    fn products(
        &self,
        b: &mut Builder,
        block: &Block<'_>,
        lhs: Int,
        k: usize,
        mut code: impl FnMut(&mut Builder, usize) -> Vector,
    ) {
        let offset = if self.key.dense { 4 * k } else { 0 };
        let mut elements = |b: &mut Builder, vector: usize| {
            let code = code(b, vector);
            block.elements(b, vector, code)
        };
        let vectors = usize::from(self.key.vectors);

        // One row needs no register for elements but that of the current vector.
        if let [accumulators] = &self.accumulators[..] {
            let x = b.broadcast(self.lhs_mem(lhs, 0).plus(offset));
            for (vector, accumulator) in accumulators.iter().enumerate() {
                let elements = elements(b, vector);
                b.set_fma(*accumulator, x, elements);
            }
            return;
        }

        let elements: Vec<Vector> = (0..vectors).map(|vector| elements(b, vector)).collect();
        for (row, accumulators) in self.accumulators.iter().enumerate() {
            let x = b.broadcast(self.lhs_mem(lhs, row).plus(offset));
            for (accumulator, elements) in accumulators.iter().zip(&elements) {
                b.set_fma(*accumulator, x, *elements);
            }
        }
    }
}
