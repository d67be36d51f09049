//! Elements of streams in memory as lanes, and back, whatever their width: 32 bits, or a byte that a lane extends.
//!
//! There are no masked loads and stores of bytes on every ISA, and none of bytes that lie apart. Where the whole vector
//! of bytes is not there, they go by way of the leaf's own memory, so no other byte is touched.

use super::body::Ty;
use crate::{
    codegen::vector::{
        Builder,
        code::{Int, IntOp, Mask, Mem, Narrow, ShiftOp, Vector, Width},
    },
    scalar::CompareOp,
};

/// The byte that an element of this type is in memory, if it is one.
fn narrow(ty: Ty) -> Option<Narrow> {
    match ty {
        Ty::F32 | Ty::I32 => None,
        Ty::U8 | Ty::Bool => Some(Narrow::U8),
        Ty::I8 => Some(Narrow::I8),
    }
}

/// Bytes of an element in memory.
pub(super) fn elem_bytes(ty: Ty) -> usize {
    if narrow(ty).is_some() { 1 } else { 4 }
}

/// All lanes from consecutive elements.
pub(super) fn load(b: &mut Builder, mem: Mem, ty: Ty) -> Vector {
    match narrow(ty) {
        None => b.load(mem),
        Some(narrow) => b.load_narrow(mem, narrow),
    }
}

/// The first `n` lanes from consecutive elements; the others are anything.
pub(super) fn load_first(b: &mut Builder, mem: Mem, ty: Ty, n: Int, mask: Mask) -> Vector {
    let Some(narrow) = narrow(ty) else { return b.load_first(mem, n, mask) };
    let place = b.bytes();
    let lanes = b.lanes() as i32;
    b.when(CompareOp::Ge, n, lanes, |b| copy_bytes(b, mem, place.into(), lanes as usize));
    b.when(CompareOp::Lt, n, lanes, |b| copy_rest(b, mem, place.into(), n));
    b.load_narrow(place, narrow)
}

/// One element in all lanes.
pub(super) fn broadcast(b: &mut Builder, mem: Mem, ty: Ty) -> Vector {
    match narrow(ty) {
        None => b.broadcast(mem),
        Some(narrow) => b.broadcast_narrow(mem, narrow),
    }
}

/// Lane 0 from memory; the others are anything.
pub(super) fn load_one(b: &mut Builder, mem: Mem, ty: Ty) -> Vector {
    match narrow(ty) {
        None => b.load_one(mem),
        Some(narrow) => b.broadcast_narrow(mem, narrow),
    }
}

/// Lane by lane.
pub(super) fn load_lanes(b: &mut Builder, places: Vec<Mem>, ty: Ty) -> Vector {
    let Some(narrow) = narrow(ty) else { return b.load_lanes(places) };
    let place = b.bytes();
    for (lane, mem) in places.into_iter().enumerate() {
        let byte = b.load_int(mem, Width::U8);
        b.store_int(Mem::from(place).plus(lane), byte, Width::U8);
    }
    b.load_narrow(place, narrow)
}

/// All lanes to consecutive elements.
pub(super) fn store(b: &mut Builder, mem: Mem, ty: Ty, value: Vector) {
    match narrow(ty) {
        None => b.store(mem, value),
        Some(_) => b.store_narrow(mem, value),
    }
}

/// The first `n` lanes to consecutive elements.
pub(super) fn store_first(b: &mut Builder, mem: Mem, ty: Ty, value: Vector, n: Int, mask: Mask) {
    if narrow(ty).is_none() {
        return b.store_first(mem, value, n, mask);
    }
    let place = b.bytes();
    b.store_narrow(place, value);
    let lanes = b.lanes() as i32;
    b.when(CompareOp::Ge, n, lanes, |b| copy_bytes(b, place.into(), mem, lanes as usize));
    b.when(CompareOp::Lt, n, lanes, |b| copy_rest(b, place.into(), mem, n));
}

/// Lane 0.
pub(super) fn store_one(b: &mut Builder, mem: Mem, ty: Ty, value: Vector) {
    match narrow(ty) {
        None => b.store_one(mem, value),
        Some(_) => store_lanes(b, vec![mem], ty, value),
    }
}

/// Lane by lane, as many as there are places.
pub(super) fn store_lanes(b: &mut Builder, places: Vec<Mem>, ty: Ty, value: Vector) {
    if narrow(ty).is_none() {
        return b.store_lanes(places, value);
    }
    let place = b.bytes();
    b.store_narrow(place, value);
    for (lane, mem) in places.into_iter().enumerate() {
        let byte = b.load_int(Mem::from(place).plus(lane), Width::U8);
        b.store_int(mem, byte, Width::U8);
    }
}

/// The lowest byte of each lane, extended as the type says.
pub(super) fn wrapped(b: &mut Builder, value: Vector, ty: Ty) -> Vector {
    let up = b.shift(ShiftOp::Left, value, 24);
    let down = if ty == Ty::I8 { ShiftOp::RightSigned } else { ShiftOp::Right };
    b.shift(down, up, 24)
}

/// A constant number of bytes, a multiple of 4.
fn copy_bytes(b: &mut Builder, from: Mem, to: Mem, bytes: usize) {
    for at in (0..bytes).step_by(8) {
        let width = if bytes - at >= 8 { Width::I64 } else { Width::I32 };
        let word = b.load_int(from.plus(at), width);
        b.store_int(to.plus(at), word, width);
    }
}

/// The first `n` bytes, which are fewer than lanes.
fn copy_rest(b: &mut Builder, from: Mem, to: Mem, n: Int) {
    let (from, to) = (b.address(from), b.address(to));
    let lanes = b.lanes();
    for bytes in [8, 4, 2, 1].into_iter().filter(|bytes| *bytes < lanes) {
        let part = b.int_op(IntOp::And, n, bytes as i32);
        b.when(CompareOp::Ne, part, 0, |b| {
            let (width, times) = match bytes {
                8 => (Width::I64, 1),
                4 => (Width::I32, 1),
                _ => (Width::U8, bytes),
            };
            for at in 0..times {
                let word = b.load_int(Mem::from(from).plus(at), width);
                b.store_int(Mem::from(to).plus(at), word, width);
            }
            b.advance(from, bytes as i32);
            b.advance(to, bytes as i32);
        });
    }
}
