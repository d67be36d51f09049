//! The walk over panels of few bits, see `kernel/few_bits.rs`.
//!
//! Scales and zero points of a block stay in registers. A word of 32 bits in each lane holds the codes of several
//! reduction indices. The mantissa of a float has room for most of them, so a code becomes a float where it is: all
//! other bits of the word are replaced by those of a power of two, in which the lowest bit of the code counts 1. A
//! subtraction of that power, and of half of the codes' range, leaves the signed code.
//!
//! Each element is `(code - zero) * scale`. A [`Sink`] takes the elements: it multiplies with them or stores them.

use super::{
    key::{FewBitsCode, PANEL},
    prefetch::panel_mem,
};
use crate::{
    codegen::{
        microkernel::memory,
        vector::{
            Builder,
            vcode::{Int, IntOp, Mem, NarrowInt, ShiftOp, VBinary, VUnary, Vector},
        },
    },
    scalar::CompareOp,
};

/// Reduction indices of a round of the innermost loop, for codes of a byte.
const UNROLL: usize = 4;

/// Bits of the mantissa of a float that are stored.
const MANTISSA_BITS: usize = 23;

/// Takes the elements of a walk, one reduction index after another.
pub(crate) trait Sink {
    /// Takes the elements of reduction index `k` of a group. `element` emits those of a vector of columns.
    fn take(&self, b: &mut Builder, k: usize, element: &mut dyn FnMut(&mut Builder, usize) -> Vector);

    /// Moves past a group of `count` reduction indices.
    fn end_group(&self, b: &mut Builder, count: usize);
}

/// The reduction indices of a walk.
pub(crate) struct Indices {
    /// Their number. The walk counts it down.
    pub(crate) count: Int,
    /// Indices of a block.
    pub(crate) block: Int,
    /// Number of blocks that the indices lie in.
    pub(crate) blocks: Int,
    /// The indices of the first block that come before them.
    pub(crate) before: Option<Before>,
}

/// Indices of a block that a walk leaves out. The walk sets both to 0.
pub(crate) struct Before {
    /// Their number: whole words.
    pub(crate) count: Int,
    /// Bytes of their codes.
    pub(crate) bytes: Int,
}

/// Panels that are read side by side.
pub(crate) struct Panels<'a> {
    /// The current byte of the first panel.
    pub(crate) at: Int,
    /// Offsets of the other panels.
    pub(crate) offsets: &'a [Int],
    /// Vectors of columns in all of them.
    pub(crate) vectors: usize,
}

impl Panels<'_> {
    /// The memory of the first of a vector's elements of `bytes` bytes each.
    pub(super) fn mem(&self, b: &Builder, vector: usize, bytes: usize) -> Mem {
        let first = vector * b.lanes();
        panel_mem(self.at, self.offsets, first / PANEL).plus(first % PANEL * bytes)
    }

    fn words(&self, b: &mut Builder) -> Vec<Vector> {
        (0..self.vectors).map(|vector| self.word(b, vector)).collect()
    }

    fn word(&self, b: &mut Builder, vector: usize) -> Vector {
        let mem = self.mem(b, vector, 4);
        b.load(mem)
    }
}

/// What a block has for each vector of columns.
struct Block {
    scales: Vec<Vector>,
    /// Empty without zero points.
    zeros: Vec<Vector>,
}

impl Block {
    /// The elements of a vector with these codes, which are floats.
    fn elements(&self, b: &mut Builder, vector: usize, code: Vector) -> Vector {
        let centred = match self.zeros.get(vector) {
            Some(zero) => b.binary(VBinary::Sub, code, *zero),
            None => code,
        };
        b.binary(VBinary::Mul, centred, self.scales[vector])
    }
}

/// A reader of panels, with the constants that it needs in registers.
pub(crate) struct Reader {
    code: FewBitsCode,
    /// For codes of less than a byte.
    words: Option<Words>,
}

impl Reader {
    /// A reader of `vectors` vectors of columns. It may use `free` registers for words and constants.
    pub(crate) fn new(b: &mut Builder, code: FewBitsCode, vectors: usize, free: usize) -> Reader {
        Reader { code, words: (code.bits < 8).then(|| Words::new(b, code.bits, vectors, free)) }
    }

    /// Walks over the reduction indices. `panels.at` must be the first byte of a block, and moves to the end of the
    /// last one.
    pub(crate) fn read(&self, b: &mut Builder, panels: &Panels<'_>, indices: &Indices, sink: &dyn Sink) {
        b.repeat(indices.blocks, 1, |b| {
            let count = b.copy(indices.block);
            if let Some(before) = &indices.before {
                b.set_int_op(IntOp::Sub, count, before.count);
            }
            b.when(CompareOp::Lt, indices.count, count, |b| b.set_copy(count, indices.count));
            b.set_int_op(IntOp::Sub, indices.count, count);

            let block = self.block(b, panels);
            if let Some(before) = &indices.before {
                b.advance(panels.at, before.bytes);
                let none = b.imm(0);
                b.set_copy(before.count, none);
                b.set_copy(before.bytes, none);
            }
            match &self.words {
                None => read_bytes(b, panels, &block, count, sink),
                Some(words) => words.read(b, panels, &block, count, sink),
            }
        });
    }

    /// Loads scales and zero points, and moves to the codes.
    fn block(&self, b: &mut Builder, panels: &Panels<'_>) -> Block {
        let scale_bytes = memory::elem_bytes(self.code.scale);
        let mut block = Block { scales: Vec::new(), zeros: Vec::new() };
        for vector in 0..panels.vectors {
            let mem = panels.mem(b, vector, scale_bytes);
            block.scales.push(memory::load(b, mem, self.code.scale));
        }
        b.advance(panels.at, (PANEL * scale_bytes) as i32);

        if self.code.has_zeros {
            for vector in 0..panels.vectors {
                let mem = panels.mem(b, vector, 1);
                let zero = b.load_narrow(mem, NarrowInt::I8);
                block.zeros.push(b.unary(VUnary::ToFloat, zero));
            }
            b.advance(panels.at, PANEL as i32);
        }
        block
    }
}

/// Reads `count` codes of a byte.
fn read_bytes(b: &mut Builder, panels: &Panels<'_>, block: &Block, count: Int, sink: &dyn Sink) {
    for unroll in [UNROLL, 1] {
        b.repeat(count, unroll as i32, |b| {
            for k in 0..unroll {
                sink.take(b, k, &mut |b, vector| {
                    let mem = panels.mem(b, vector, 1).plus(PANEL * k);
                    let code = b.load_narrow(mem, NarrowInt::I8);
                    let code = b.unary(VUnary::ToFloat, code);
                    block.elements(b, vector, code)
                });
            }
            sink.end_group(b, unroll);
            b.advance(panels.at, (PANEL * unroll) as i32);
        });
    }
}

/// The places of codes in words, and the constants that make codes floats. The first places have theirs in registers.
struct Words {
    bits: usize,
    /// Whether the words of a group are in registers.
    is_held: bool,
    masks: Vec<Vector>,
    exponents: Vec<Vector>,
    origins: Vec<Vector>,
}

impl Words {
    fn new(b: &mut Builder, bits: u8, vectors: usize, free: usize) -> Words {
        let is_held = free >= vectors || b.shape().registers >= 32;
        let free = if is_held { free.saturating_sub(vectors) } else { free };
        let mut words = Words {
            bits: usize::from(bits),
            is_held,
            masks: Vec::new(),
            exponents: Vec::new(),
            origins: Vec::new(),
        };
        let places = words.in_mantissa();
        let mut hold = |bits: &dyn Fn(usize) -> u32, from: usize| -> Vec<Vector> {
            (0..places.min(free.saturating_sub(from)))
                .map(|k| {
                    let constant = b.bits(bits(k));
                    b.variable(constant)
                })
                .collect()
        };

        let masks = hold(&|k| words.mask(k), 0);
        let exponents = hold(&|k| words.exponent(k), places);
        let origins = hold(&|k| words.origin(k), 2 * places);
        words.masks = masks;
        words.exponents = exponents;
        words.origins = origins;
        words
    }

    /// The bits of code number `k`.
    fn mask(&self, k: usize) -> u32 {
        ((1 << self.bits) - 1) << (self.bits * k)
    }

    /// The float in which the lowest bit of code number `k` counts 1.
    fn exponent(&self, k: usize) -> u32 {
        ((1 << (MANTISSA_BITS - self.bits * k)) as f32).to_bits()
    }

    /// The float of [`Words::exponent`] plus half of the codes' range, which is the highest bit of a code.
    fn origin(&self, k: usize) -> u32 {
        self.exponent(k) | 1 << (self.bits * k + self.bits - 1)
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
        debug_assert!(k < self.in_mantissa());
        let mut constant = |held: &[Vector], bits: u32| held.get(k).copied().unwrap_or_else(|| b.bits(bits));
        let mask = constant(&self.masks, self.mask(k));
        let exponent = constant(&self.exponents, self.exponent(k));
        let origin = constant(&self.origins, self.origin(k));
        let float = b.and_or(mask, words, exponent);
        b.binary(VBinary::Sub, float, origin)
    }

    /// Shifts the first `codes` codes out of words.
    fn shift_out(&self, b: &mut Builder, words: Vector, codes: usize) -> Vector {
        if codes == 0 { words } else { b.shift(ShiftOp::Right, words, (self.bits * codes) as u8) }
    }

    /// Reads `count` codes of words. The last word may have fewer codes.
    fn read(&self, b: &mut Builder, panels: &Panels<'_>, block: &Block, count: Int, sink: &dyn Sink) {
        b.repeat(count, self.group() as i32, |b| {
            let mut held = if self.is_held { panels.words(b) } else { Vec::new() };
            // The number of codes that were shifted out.
            let mut shifted = 0;
            for k in 0..self.group() {
                if k - shifted == self.in_mantissa() {
                    shifted = k;
                    held = held.iter().map(|words| self.shift_out(b, *words, shifted)).collect();
                }
                sink.take(b, k, &mut |b, vector| {
                    let words = held.get(vector).copied().unwrap_or_else(|| {
                        let words = panels.word(b, vector);
                        self.shift_out(b, words, shifted)
                    });
                    let code = self.code(b, words, k - shifted);
                    block.elements(b, vector, code)
                });
            }
            sink.end_group(b, self.group());
            b.advance(panels.at, (4 * PANEL) as i32);
        });

        b.when(CompareOp::Gt, count, 0, |b| {
            let held = panels.words(b);
            b.repeat(count, 1, |b| {
                sink.take(b, 0, &mut |b, vector| {
                    let code = self.code(b, held[vector], 0);
                    block.elements(b, vector, code)
                });
                for words in &held {
                    let rest = self.shift_out(b, *words, 1);
                    b.set(*words, rest);
                }
                sink.end_group(b, 1);
            });
            b.advance(panels.at, (4 * PANEL) as i32);
        });
    }
}
