//! Elements of streams in memory as lanes, and back, whatever their width: 32 bits, or fewer that a lane extends. A bf16 is
//! the high half of a lane.
//!
//! There are no masked loads and stores of narrow elements on every ISA, and none of such that lie apart. Where the whole
//! vector of them is not there, they go by way of the leaf's own memory, so no other byte is touched.

use super::op::Ty;
use crate::{
    codegen::vector::{
        Builder,
        vcode::{Int, IntOp, IntWidth, Mask, Mem, NarrowInt, ShiftOp, Vector},
    },
    scalar::CompareOp,
};

/// What an element of this type is in memory, if it is narrower than a lane.
fn narrow(ty: Ty) -> Option<NarrowInt> {
    match ty {
        Ty::F32 | Ty::I32 => None,
        Ty::U8 | Ty::Bool => Some(NarrowInt::U8),
        Ty::I8 => Some(NarrowInt::I8),
        Ty::I16 | Ty::Bf16 | Ty::Nearest => Some(NarrowInt::I16),
    }
}

/// Bytes of an element in memory.
pub(super) fn elem_bytes(ty: Ty) -> usize {
    narrow(ty).map_or(4, NarrowInt::bytes)
}

/// How one element is read and written as an integer.
fn width(narrow: NarrowInt) -> IntWidth {
    if narrow == NarrowInt::I16 { IntWidth::I16 } else { IntWidth::U8 }
}

/// Lanes that consecutive elements of this width are.
fn load_narrow(b: &mut Builder, mem: impl Into<Mem>, (ty, narrow): (Ty, NarrowInt)) -> Vector {
    let value = b.load_narrow(mem, narrow);
    extended(b, ty, value)
}

/// One element of this width in all lanes.
fn broadcast_narrow(b: &mut Builder, mem: Mem, (ty, narrow): (Ty, NarrowInt)) -> Vector {
    let value = b.broadcast_narrow(mem, narrow);
    extended(b, ty, value)
}

fn extended(b: &mut Builder, ty: Ty, value: Vector) -> Vector {
    if ty == Ty::Bf16 { b.shift(ShiftOp::Left, value, 16) } else { value }
}

/// Lanes to consecutive elements of this width.
fn store_narrow(b: &mut Builder, mem: impl Into<Mem>, (ty, narrow): (Ty, NarrowInt), value: Vector) {
    match ty {
        Ty::Nearest => b.store_bf16(mem, value),
        Ty::Bf16 => {
            let low = b.shift(ShiftOp::RightSigned, value, 16);
            b.store_narrow(mem, low, narrow);
        }
        _ => b.store_narrow(mem, value, narrow),
    }
}

/// All lanes from consecutive elements.
pub(super) fn load(b: &mut Builder, mem: Mem, ty: Ty) -> Vector {
    match narrow(ty) {
        None => b.load(mem),
        Some(narrow) => load_narrow(b, mem, (ty, narrow)),
    }
}

/// The first `n` lanes from consecutive elements; the others are anything.
pub(super) fn load_first(b: &mut Builder, mem: Mem, ty: Ty, n: Int, mask: Mask) -> Vector {
    let Some(narrow) = narrow(ty) else { return b.load_first(mem, n, mask) };
    let (place, size) = (b.bytes(), narrow.bytes());
    let lanes = b.lanes() as i32;
    b.when(CompareOp::Ge, n, lanes, |b| copy_bytes(b, mem, place.into(), lanes as usize * size));
    b.when(CompareOp::Lt, n, lanes, |b| copy_rest(b, mem, place.into(), n, size));
    load_narrow(b, place, (ty, narrow))
}

/// One element in all lanes.
pub(super) fn broadcast(b: &mut Builder, mem: Mem, ty: Ty) -> Vector {
    match narrow(ty) {
        None => b.broadcast(mem),
        Some(narrow) => broadcast_narrow(b, mem, (ty, narrow)),
    }
}

/// Lane 0 from memory; the others are anything.
pub(super) fn load_one(b: &mut Builder, mem: Mem, ty: Ty) -> Vector {
    match narrow(ty) {
        None => b.load_one(mem),
        Some(narrow) => broadcast_narrow(b, mem, (ty, narrow)),
    }
}

/// Lane by lane.
pub(super) fn load_lanes(b: &mut Builder, places: Vec<Mem>, ty: Ty) -> Vector {
    let Some(narrow) = narrow(ty) else { return b.load_lanes(places) };
    let place = b.bytes();
    for (lane, mem) in places.into_iter().enumerate() {
        let elem = b.load_int(mem, width(narrow));
        b.store_int(Mem::from(place).plus(lane * narrow.bytes()), elem, width(narrow));
    }
    load_narrow(b, place, (ty, narrow))
}

/// All lanes to consecutive elements.
pub(super) fn store(b: &mut Builder, mem: Mem, ty: Ty, value: Vector) {
    match narrow(ty) {
        None => b.store(mem, value),
        Some(narrow) => store_narrow(b, mem, (ty, narrow), value),
    }
}

/// The first `n` lanes to consecutive elements.
pub(super) fn store_first(b: &mut Builder, mem: Mem, ty: Ty, value: Vector, n: Int, mask: Mask) {
    let Some(narrow) = narrow(ty) else { return b.store_first(mem, value, n, mask) };
    let (place, size) = (b.bytes(), narrow.bytes());
    store_narrow(b, place, (ty, narrow), value);
    let lanes = b.lanes() as i32;
    b.when(CompareOp::Ge, n, lanes, |b| copy_bytes(b, place.into(), mem, lanes as usize * size));
    b.when(CompareOp::Lt, n, lanes, |b| copy_rest(b, place.into(), mem, n, size));
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
    let Some(narrow) = narrow(ty) else { return b.store_lanes(places, value) };
    let place = b.bytes();
    store_narrow(b, place, (ty, narrow), value);
    for (lane, mem) in places.into_iter().enumerate() {
        let elem = b.load_int(Mem::from(place).plus(lane * narrow.bytes()), width(narrow));
        b.store_int(mem, elem, width(narrow));
    }
}

/// The low end of each lane, extended as the type says.
pub(super) fn wrapped(b: &mut Builder, value: Vector, ty: Ty) -> Vector {
    let distance = 32 - 8 * elem_bytes(ty) as u8;
    let up = b.shift(ShiftOp::Left, value, distance);
    let down = if ty == Ty::U8 { ShiftOp::Right } else { ShiftOp::RightSigned };
    b.shift(down, up, distance)
}

/// A constant number of bytes, a multiple of 4.
fn copy_bytes(b: &mut Builder, from: Mem, to: Mem, bytes: usize) {
    for at in (0..bytes).step_by(8) {
        let width = if bytes - at >= 8 { IntWidth::I64 } else { IntWidth::I32 };
        let word = b.load_int(from.plus(at), width);
        b.store_int(to.plus(at), word, width);
    }
}

/// The first `n` elements of so many bytes, which are fewer than lanes.
fn copy_rest(b: &mut Builder, from: Mem, to: Mem, n: Int, size: usize) {
    let (from, to) = (b.address(from), b.address(to));
    let lanes = b.lanes();
    for elems in [8, 4, 2, 1].into_iter().filter(|elems| *elems < lanes) {
        let part = b.int_op(IntOp::And, n, elems as i32);
        b.when(CompareOp::Ne, part, 0, |b| {
            let bytes = elems * size;
            let (width, step) = match bytes {
                8 | 16 => (IntWidth::I64, 8),
                4 => (IntWidth::I32, 4),
                _ if size == 2 => (IntWidth::I16, 2),
                _ => (IntWidth::U8, 1),
            };
            for at in (0..bytes).step_by(step) {
                let word = b.load_int(Mem::from(from).plus(at), width);
                b.store_int(Mem::from(to).plus(at), word, width);
            }
            b.advance(from, bytes as i32);
            b.advance(to, bytes as i32);
        });
    }
}
