//! Loads and stores of stream elements as lanes, for elements of any width up to 32 bits. [`super::wide`] has those of
//! 64 bits.
//!
//! A lane extends a narrower element. A bf16 is the high half of its lane, and an f16 is
//! held as a float.
//!
//! Not every ISA has masked loads and stores of narrow elements, and none has strided ones. Partial and strided
//! accesses of narrow elements go through scratch memory on the stack, so that no other byte is touched.

use super::{f16, op::Ty};
use crate::{
    codegen::vector::{
        Builder,
        vcode::{Int, IntOp, IntWidth, Mask, Mem, NarrowInt, Narrowing, ShiftOp, VBinary, Vector},
    },
    scalar::CompareOp,
};

/// The integer that stores an element of this type, if it is narrower than a lane.
fn narrow_int(ty: Ty) -> Option<NarrowInt> {
    match ty {
        Ty::F32 | Ty::I32 | Ty::I64 | Ty::F64 => None,
        Ty::U8 | Ty::ClampToU8 | Ty::Bool => Some(NarrowInt::U8),
        Ty::I8 | Ty::ClampToI8 => Some(NarrowInt::I8),
        Ty::U16 => Some(NarrowInt::U16),
        Ty::I16 | Ty::Bf16 | Ty::RoundToBf16 | Ty::F16 => Some(NarrowInt::I16),
    }
}

/// How stores of lanes of this type narrow them.
fn narrowing(ty: Ty) -> Narrowing {
    if clamping(ty).is_some() { Narrowing::Clamp } else { Narrowing::Low }
}

/// The bytes of a store that clamps lanes to them.
pub(super) fn clamping(ty: Ty) -> Option<NarrowInt> {
    match ty {
        Ty::ClampToU8 => Some(NarrowInt::U8),
        Ty::ClampToI8 => Some(NarrowInt::I8),
        _ => None,
    }
}

/// Bytes of an element in memory.
pub(super) fn elem_bytes(ty: Ty) -> usize {
    if ty.is_wide() { 8 } else { narrow_int(ty).map_or(4, NarrowInt::bytes) }
}

/// The access that copies one narrow element.
fn int_width(narrow: NarrowInt) -> IntWidth {
    if narrow.bytes() == 2 { IntWidth::I16 } else { IntWidth::U8 }
}

/// All lanes from consecutive narrow elements.
fn load_narrow(b: &mut Builder, mem: impl Into<Mem>, ty: Ty, narrow: NarrowInt) -> Vector {
    if ty == Ty::F16 && b.shape().f16 {
        return b.load_f16(mem);
    }
    let value = b.load_narrow(mem, narrow);
    extended(b, ty, value)
}

/// One narrow element in all lanes.
fn broadcast_narrow(b: &mut Builder, mem: Mem, ty: Ty, narrow: NarrowInt) -> Vector {
    if ty == Ty::F16 && b.shape().f16 {
        return b.broadcast_f16(mem);
    }
    let value = b.broadcast_narrow(mem, narrow);
    extended(b, ty, value)
}

fn extended(b: &mut Builder, ty: Ty, value: Vector) -> Vector {
    match ty {
        Ty::Bf16 => b.shift(ShiftOp::Left, value, 16),
        Ty::F16 => f16::from_bits(b, value),
        _ => value,
    }
}

/// All lanes to consecutive narrow elements.
fn store_narrow(b: &mut Builder, mem: impl Into<Mem>, ty: Ty, narrow: NarrowInt, value: Vector) {
    match ty {
        Ty::RoundToBf16 => b.store_bf16(mem, value),
        Ty::F16 if b.shape().f16 => b.store_f16(mem, value),
        Ty::F16 => {
            let bits = f16::to_bits(b, value);
            b.store_narrow(mem, bits, narrow, Narrowing::Low);
        }
        Ty::Bf16 => {
            let high_half = b.shift(ShiftOp::RightSigned, value, 16);
            b.store_narrow(mem, high_half, narrow, Narrowing::Low);
        }
        _ => {
            let value = with_sign(b, ty, value);
            b.store_narrow(mem, value, narrow, narrowing(ty));
        }
    }
}

/// Lanes that have the sign of the bytes that a store clamps them to, as [`Narrowing::Clamp`] needs them.
fn with_sign(b: &mut Builder, ty: Ty, value: Vector) -> Vector {
    if ty != Ty::ClampToU8 {
        return value;
    }
    let zero = b.bits(0);
    b.binary(VBinary::MaxInt, value, zero)
}

/// All lanes from consecutive elements.
pub(super) fn load(b: &mut Builder, mem: Mem, ty: Ty) -> Vector {
    match narrow_int(ty) {
        None => b.load(mem),
        Some(narrow) => load_narrow(b, mem, ty, narrow),
    }
}

/// The first `n` lanes from consecutive elements; the other lanes are undefined.
pub(super) fn load_first(b: &mut Builder, mem: Mem, ty: Ty, n: Int, mask: Mask) -> Vector {
    let Some(narrow) = narrow_int(ty) else { return b.load_first(mem, n, mask) };
    if b.shape().narrow_masks {
        let value = b.load_narrow_first(mem, mask, narrow);
        return extended(b, ty, value);
    }
    let scratch = b.narrow_scratch();
    let size = narrow.bytes();
    let lanes = b.lanes() as i32;

    b.when(CompareOp::Ge, n, lanes, |b| copy_bytes(b, mem, scratch.into(), lanes as usize * size));
    b.when(CompareOp::Lt, n, lanes, |b| copy_first(b, mem, scratch.into(), n, size));
    load_narrow(b, scratch, ty, narrow)
}

/// One element in all lanes.
pub(super) fn broadcast(b: &mut Builder, mem: Mem, ty: Ty) -> Vector {
    match narrow_int(ty) {
        None => b.broadcast(mem),
        Some(narrow) => broadcast_narrow(b, mem, ty, narrow),
    }
}

/// Lane 0 from memory; the other lanes are undefined.
pub(super) fn load_one(b: &mut Builder, mem: Mem, ty: Ty) -> Vector {
    match narrow_int(ty) {
        None => b.load_one(mem),
        Some(narrow) => broadcast_narrow(b, mem, ty, narrow),
    }
}

/// Each lane from its own address.
pub(super) fn load_lanes(b: &mut Builder, addresses: Vec<Mem>, ty: Ty) -> Vector {
    let Some(narrow) = narrow_int(ty) else { return b.load_lanes(addresses) };
    let scratch = b.narrow_scratch();
    for (lane, mem) in addresses.into_iter().enumerate() {
        let elem = b.load_int(mem, int_width(narrow));
        b.store_int(Mem::from(scratch).plus(lane * narrow.bytes()), elem, int_width(narrow));
    }
    load_narrow(b, scratch, ty, narrow)
}

/// All lanes to consecutive elements.
pub(super) fn store(b: &mut Builder, mem: Mem, ty: Ty, value: Vector) {
    match narrow_int(ty) {
        None => b.store(mem, value),
        Some(narrow) => store_narrow(b, mem, ty, narrow, value),
    }
}

/// The first `n` lanes to consecutive elements. The mask is theirs; only shapes with `masked_stores` need it.
pub(super) fn store_first(b: &mut Builder, mem: Mem, ty: Ty, value: Vector, n: Int, mask: Option<Mask>) {
    let Some(narrow) = narrow_int(ty) else { return b.store_first(mem, value, n, mask) };
    let has_masks = b.shape().narrow_masks && !matches!(ty, Ty::F16 | Ty::Bf16 | Ty::RoundToBf16);
    if let Some(mask) = mask.filter(|_| has_masks) {
        let value = with_sign(b, ty, value);
        return b.store_narrow_first(mem, value, mask, narrow, narrowing(ty));
    }
    let scratch = b.narrow_scratch();
    let size = narrow.bytes();
    let lanes = b.lanes() as i32;

    store_narrow(b, scratch, ty, narrow, value);
    b.when(CompareOp::Ge, n, lanes, |b| copy_bytes(b, scratch.into(), mem, lanes as usize * size));
    b.when(CompareOp::Lt, n, lanes, |b| copy_first(b, scratch.into(), mem, n, size));
}

/// The low three bytes of the first `n` lanes to consecutive memory.
pub(super) fn store_first_triples(b: &mut Builder, mem: Mem, value: Vector, n: Int) {
    let scratch = b.narrow_scratch();
    b.store_triples(scratch, value);
    copy_first(b, scratch.into(), mem, n, 3);
}

/// Integers that a store of their low bits keeps, where `ty` is the type of a store that clamps.
pub(super) fn clamped(b: &mut Builder, ty: Ty, value: Vector) -> Vector {
    let (lo, hi) = match ty {
        Ty::ClampToI8 => (i32::from(i8::MIN), i32::from(i8::MAX)),
        Ty::ClampToU8 => (0, i32::from(u8::MAX)),
        _ => return value,
    };
    let [lo, hi] = [lo, hi].map(|bound| b.bits(bound as u32));
    let value = b.binary(VBinary::MaxInt, value, lo);
    b.binary(VBinary::MinInt, value, hi)
}

/// Lane 0 to memory.
pub(super) fn store_one(b: &mut Builder, mem: Mem, ty: Ty, value: Vector) {
    match narrow_int(ty) {
        None => b.store_one(mem, value),
        Some(_) => store_lanes(b, vec![mem], ty, value),
    }
}

/// Each lane to its own address, from lane 0 on; there may be fewer addresses than lanes.
pub(super) fn store_lanes(b: &mut Builder, addresses: Vec<Mem>, ty: Ty, value: Vector) {
    let Some(narrow) = narrow_int(ty) else { return b.store_lanes(addresses, value) };
    let scratch = b.narrow_scratch();
    store_narrow(b, scratch, ty, narrow, value);
    for (lane, mem) in addresses.into_iter().enumerate() {
        let elem = b.load_int(Mem::from(scratch).plus(lane * narrow.bytes()), int_width(narrow));
        b.store_int(mem, elem, int_width(narrow));
    }
}

/// Wraps each lane to the range of a narrow integer type.
pub(super) fn wrapped(b: &mut Builder, value: Vector, ty: Ty) -> Vector {
    let distance = 32 - 8 * elem_bytes(ty) as u8;
    let up = b.shift(ShiftOp::Left, value, distance);
    let down = if matches!(ty, Ty::U8 | Ty::U16) { ShiftOp::Right } else { ShiftOp::RightSigned };
    b.shift(down, up, distance)
}

/// Copies a constant number of bytes, a multiple of 4.
fn copy_bytes(b: &mut Builder, from: Mem, to: Mem, bytes: usize) {
    for at in (0..bytes).step_by(8) {
        let width = if bytes - at >= 8 { IntWidth::I64 } else { IntWidth::I32 };
        let word = b.load_int(from.plus(at), width);
        b.store_int(to.plus(at), word, width);
    }
}

/// Copies `n` elements of `size` bytes each; `n` is smaller than the number of lanes.
///
/// Each set bit of `n` copies that many elements.
fn copy_first(b: &mut Builder, from: Mem, to: Mem, n: Int, size: usize) {
    let from = b.address(from);
    let to = b.address(to);
    let lanes = b.lanes();

    for elems in [8, 4, 2, 1].into_iter().filter(|elems| *elems < lanes) {
        let bit = b.int_op(IntOp::And, n, elems as i32);
        b.when(CompareOp::Ne, bit, 0, |b| {
            let bytes = elems * size;
            let mut at = 0;
            while at < bytes {
                let (width, step) = match bytes - at {
                    8.. => (IntWidth::I64, 8),
                    4.. => (IntWidth::I32, 4),
                    2.. => (IntWidth::I16, 2),
                    _ => (IntWidth::U8, 1),
                };
                let word = b.load_int(Mem::from(from).plus(at), width);
                b.store_int(Mem::from(to).plus(at), word, width);
                at += step;
            }

            b.advance(from, bytes as i32);
            b.advance(to, bytes as i32);
        });
    }
}
