//! Rows of bytes: each becomes 16 bits, or an unsigned or signed byte, see [`ByteForm`].
//!
//! Runs are copied in vectors, the last of which may overlap the one before. The bytes after the end of a row are
//! undefined: rhs is zero there.

use super::byte_form::ByteForm;
use super::row_packer::{CopySize, RowPacker, copy_overlapping};
use crate::codegen::vector::{
    Builder,
    vcode::{Int, IntOp, IntOperand, IntWidth, Mem, NarrowInt, VBinary},
};
use crate::scalar::CompareOp;

/// The highest bits of 8 bytes. Flipping them adds 128 to each byte, modulo 256.
const SIGNS: i64 = i64::from_le_bytes([0x80; 8]);

/// The form of rows of bytes.
pub(super) struct Bytes {
    pub(super) from: NarrowInt,
    pub(super) to: ByteForm,
}

impl Bytes {
    /// Whether signed bytes become unsigned, or unsigned ones signed: both flip the highest bit.
    fn is_shifted(&self) -> bool {
        self.to.shift(self.from) != 0
    }

    /// Whether an element takes one byte.
    fn is_byte(&self) -> bool {
        self.to != ByteForm::Halves
    }

    /// Size of a packed element.
    fn widened(&self) -> i32 {
        if self.is_byte() { 1 } else { 2 }
    }

    fn size(&self, elements: i32) -> CopySize {
        CopySize { elements, from_bytes: 1, to_bytes: self.widened() }
    }

    /// Packs one byte.
    fn byte(&self, b: &mut Builder, from: Int, to: Int) {
        let width = if self.from == NarrowInt::I8 { IntWidth::I8 } else { IntWidth::U8 };
        let mut byte = b.load_int(Mem::from(from), width);
        if self.is_shifted() {
            byte = b.int_op(IntOp::Add, byte, self.to.shift(self.from));
        }
        b.store_int(Mem::from(to), byte, if self.is_byte() { IntWidth::U8 } else { IntWidth::I16 });
    }

    /// Elements of a packed vector.
    fn vector_bytes(&self, b: &Builder) -> i32 {
        (if self.is_byte() { 4 } else { 2 }) * b.lanes() as i32
    }

    /// Packs a vector of bytes.
    fn vector(&self, b: &mut Builder, from: Int, to: Int) {
        let vector = match (self.is_byte(), self.is_shifted()) {
            (false, _) => b.load_halves(from, self.from),
            (true, false) => b.load(from),
            (true, true) => {
                let bytes = b.load(from);
                let signs = b.bits(0x8080_8080);
                b.binary(VBinary::Xor, bytes, signs)
            }
        };
        b.store(to, vector);
    }

    /// Packs bytes that are `step` bytes apart, one at a time.
    fn one_by_one(
        &self,
        b: &mut Builder,
        count: Int,
        from: Int,
        to: Int,
        step: impl Into<IntOperand> + Copy,
    ) {
        b.repeat(count, 1, |b| {
            self.byte(b, from, to);
            b.advance(from, step);
            b.advance(to, self.widened());
        });
    }
}

/// Copies of 8 bytes at a time.
#[derive(Clone, Copy)]
struct WordCopy {
    /// The highest bits of 8 bytes, if they are flipped.
    signs: Option<Int>,
}

impl WordCopy {
    fn word(self, b: &mut Builder, from: impl Into<Mem>, to: impl Into<Mem>) {
        let mut word = b.load_int(from, IntWidth::I64);
        if let Some(signs) = self.signs {
            word = b.int_op(IntOp::Xor, word, signs);
        }
        b.store_int(to, word, IntWidth::I64);
    }

    /// Copies `words` words from the start and as many up to the end, which together cover all bytes. Both pointers
    /// advance.
    fn both_ends(self, b: &mut Builder, count: Int, words: usize, (from, to): (Int, Int)) {
        let bytes = 8 * words;
        let copy = |b: &mut Builder| {
            for word in (0..bytes).step_by(8) {
                self.word(b, Mem::from(from).plus(word), Mem::from(to).plus(word));
            }
        };
        copy(b);
        let skipped = b.int_op(IntOp::Sub, count, bytes as i32);
        [from, to].into_iter().for_each(|place| b.advance(place, skipped));
        copy(b);
        [from, to].into_iter().for_each(|place| b.advance(place, bytes as i32));
    }
}

impl RowPacker for Bytes {
    /// Whole vectors, the last of which may overlap the one before. Shorter runs are copied in words of 8 bytes the
    /// same way, a few of them without a loop.
    fn contiguous(&self, b: &mut Builder, count: Int, from: Int, to: Int) {
        let bytes = self.vector_bytes(b);
        let short = b.copy(count);

        b.when(CompareOp::Ge, short, bytes, |b| {
            copy_overlapping(b, count, self.size(bytes), from, to, &|b| self.vector(b, from, to));
        });
        b.when(CompareOp::Lt, short, bytes, |b| {
            if !self.is_byte() {
                return self.one_by_one(b, count, from, to, 1);
            }

            let copy = WordCopy { signs: self.is_shifted().then(|| b.imm(SIGNS)) };
            b.when(CompareOp::Gt, short, 32, |b| {
                copy_overlapping(b, count, self.size(8), from, to, &|b| copy.word(b, from, to));
            });

            for (least, most, words) in [(8, 16, 1), (17, 32, 2)] {
                b.when(CompareOp::Ge, short, least, |b| {
                    b.when(CompareOp::Le, short, most, |b| copy.both_ends(b, short, words, (from, to)));
                });
            }

            b.when(CompareOp::Lt, short, 8, |b| self.one_by_one(b, count, from, to, 1));
        });
    }

    fn strided(&self, b: &mut Builder, count: Int, from: Int, to: Int, step: Int) {
        self.one_by_one(b, count, from, to, step);
    }
}
