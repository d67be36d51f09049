//! Rows of `f32`, rounded to 8 bits by blocks, see `scalar/activations.rs` and `kernel/rounded_rows.rs`.
//!
//! A row whose elements are not adjacent is copied into scratch memory first. A block is read twice: for its largest
//! magnitude, and to round its elements.

use crate::{
    codegen::{
        microkernel::contraction::BlockDot,
        vector::{
            Builder,
            vcode::{
                Int, IntOp, IntWidth, MaskOp, Mem, NarrowInt, Narrowing, ShiftOp, VBinary, VUnary, Vector,
            },
        },
    },
    kernel::rounded_rows::HEADER_WORDS,
    scalar::{
        CompareOp,
        activations::{MAX_CODE, SMALLEST},
    },
};

/// Elements that are rounded at once: whole groups and vectors.
const CHUNK: usize = 16;

/// Bytes of scratch memory. A vector of bytes may be stored at any of the first [`CHUNK`] ones.
const SCRATCH_BYTES: usize = 2 * CHUNK;

/// The form of rounded rows.
pub(super) struct Rounded {
    /// Bits of a code of rhs.
    pub(super) bits: u8,
    pub(super) dot: BlockDot,
}

/// The factors of a block, in all lanes.
struct Factors {
    inverse: Vector,
    /// All bits, or none if codes are 0.
    kept: Vector,
}

impl Rounded {
    /// Indices that are padded to.
    fn group(&self) -> usize {
        32 / usize::from(self.bits)
    }

    /// Bytes of a code.
    fn code_bytes(&self) -> usize {
        4 / self.dot.codes_of_word()
    }

    /// Rounds `elems` elements, at least one. Both pointers move past the block.
    pub(super) fn block(&self, b: &mut Builder, elems: Int, from: Int, to: Int) {
        let largest = largest_magnitude(b, elems, from);
        let most = b.float(MAX_CODE);
        let scale = b.binary(VBinary::Div, largest, most);
        b.store_one(Mem::from(to), scale);
        let factors = factors(b, largest);

        let header = b.copy(to);
        b.advance(to, 4 * HEADER_WORDS as i32);
        let zero = b.bits(0);
        let sums = b.variable(zero);
        let scratch = b.scratch(SCRATCH_BYTES);
        b.repeat(elems, CHUNK as i32, |b| {
            for first in (0..CHUNK).step_by(b.lanes()) {
                let x = b.load(Mem::from(from).plus(4 * first));
                let codes = factors.codes(b, x);
                b.set_binary(VBinary::AddInt, sums, codes);
                b.store_narrow(Mem::from(scratch).plus(first), codes, NarrowInt::I8, Narrowing::Low);
            }
            for first in (0..CHUNK).step_by(self.group()) {
                self.order(b, scratch, first, to);
            }
            b.advance(from, 4 * CHUNK as i32);
        });
        b.when(CompareOp::Gt, elems, 0, |b| self.rest(b, elems, from, to, &factors, sums));

        let sum = across_lanes(b, sums, VBinary::AddInt);
        b.store_one(Mem::from(header).plus(8), sum);
        let start = if self.dot.is_signed(self.bits) {
            b.bits(0)
        } else {
            let offset = b.shift(ShiftOp::Left, sum, self.bits - 1);
            let zero = b.bits(0);
            b.binary(VBinary::SubInt, zero, offset)
        };
        b.store_one(Mem::from(header).plus(4), start);
    }

    /// Rounds fewer elements than a chunk has, and pads them with zeros.
    fn rest(&self, b: &mut Builder, elems: Int, from: Int, to: Int, factors: &Factors, sums: Vector) {
        let scratch = b.scratch(SCRATCH_BYTES);
        let zero = b.imm(0);
        for word in (0..CHUNK).step_by(8) {
            b.store_int(Mem::from(scratch).plus(word), zero, IntWidth::I64);
        }
        let padded = b.int_op(IntOp::Add, elems, self.group() as i32 - 1);
        let place = b.copy(scratch);
        b.repeat(elems, 1, |b| {
            // The other lanes are zero, and so are their codes.
            let x = b.load_one(Mem::from(from));
            let codes = factors.codes(b, x);
            b.set_binary(VBinary::AddInt, sums, codes);
            b.store_narrow(Mem::from(place), codes, NarrowInt::I8, Narrowing::Low);
            b.advance(from, 4);
            b.advance(place, 1);
        });
        let place = b.copy(scratch);
        b.repeat(padded, self.group() as i32, |b| {
            self.order(b, place, 0, to);
            b.advance(place, self.group() as i32);
        });
    }

    /// Copies the codes of a group, which begins `first` bytes after `from`, into words. `to` moves past them.
    fn order(&self, b: &mut Builder, from: Int, first: usize, to: Int) {
        let steps = self.group() / self.dot.codes_of_word();
        if steps == 2 && self.code_bytes() == 1 {
            let codes = b.load_int(Mem::from(from).plus(first), IntWidth::I64);
            swap_bits(b, codes, 8, 0x0000_ff00_0000_ff00);
            swap_bits(b, codes, 16, 0x0000_0000_ffff_0000);
            b.store_int(to, codes, IntWidth::I64);
            b.advance(to, 4 * steps as i32);
            return;
        }
        for step in 0..steps {
            for part in 0..self.dot.codes_of_word() {
                let code = b.load_int(Mem::from(from).plus(first + step + steps * part), IntWidth::I8);
                let place = Mem::from(to).plus(4 * step + self.code_bytes() * part);
                b.store_int(place, code, if self.code_bytes() == 1 { IntWidth::U8 } else { IntWidth::I16 });
            }
        }
        b.advance(to, 4 * steps as i32);
    }
}

/// Exchanges the bits of `mask` with those that are `distance` places higher.
fn swap_bits(b: &mut Builder, x: Int, distance: i32, mask: i64) {
    let higher = b.int_op(IntOp::Shr, x, distance);
    b.set_int_op(IntOp::Xor, higher, x);
    let mask = b.imm(mask);
    b.set_int_op(IntOp::And, higher, mask);
    b.set_int_op(IntOp::Xor, x, higher);
    b.set_int_op(IntOp::Shl, higher, distance);
    b.set_int_op(IntOp::Xor, x, higher);
}

impl Factors {
    /// The codes of elements.
    fn codes(&self, b: &mut Builder, x: Vector) -> Vector {
        let scaled = b.binary(VBinary::Mul, x, self.inverse);
        let codes = b.unary(VUnary::ToNearest, scaled);
        b.binary(VBinary::And, codes, self.kept)
    }
}

/// The largest magnitude of `elems` elements, in all lanes. Magnitudes are compared by their bits, in which NaN is
/// largest.
fn largest_magnitude(b: &mut Builder, elems: Int, from: Int) -> Vector {
    let zero = b.bits(0);
    let largest = b.variable(zero);
    let count = b.copy(elems);
    let place = b.copy(from);
    let lanes = b.lanes();
    b.repeat(count, lanes as i32, |b| {
        let x = b.load(Mem::from(place));
        take_larger(b, largest, x);
        b.advance(place, 4 * lanes as i32);
    });
    b.repeat(count, 1, |b| {
        let x = b.load_one(Mem::from(place));
        take_larger(b, largest, x);
        b.advance(place, 4);
    });
    across_lanes(b, largest, VBinary::MaxInt)
}

fn take_larger(b: &mut Builder, largest: Vector, x: Vector) {
    let magnitude = b.bits(0x7fff_ffff);
    let magnitude = b.binary(VBinary::And, x, magnitude);
    b.set_binary(VBinary::MaxInt, largest, magnitude);
}

/// Combines all lanes. Each lane has the result.
fn across_lanes(b: &mut Builder, mut x: Vector, op: VBinary) -> Vector {
    let mut distance = 1;
    while distance < b.lanes() {
        let other = b.butterfly(x, distance as u8);
        x = b.binary(op, x, other);
        distance *= 2;
    }
    x
}

fn factors(b: &mut Builder, largest: Vector) -> Factors {
    let most = b.float(MAX_CODE);
    let inverse = b.binary(VBinary::Div, most, largest);
    let smallest = b.bits(SMALLEST.to_bits());
    let finite = b.bits(f32::MAX.to_bits());
    let is_large = b.compare_int(CompareOp::Ge, largest, smallest);
    let is_finite = b.compare_int(CompareOp::Le, largest, finite);
    let is_kept = b.mask_op(MaskOp::And, is_large, is_finite);
    let all = b.bits(u32::MAX);
    let none = b.bits(0);
    Factors { inverse, kept: b.select(is_kept, all, none) }
}
