//! Stores of the bytes of a row of a tile: one for two or four vectors, whose lanes become bytes together.

use super::key::TileKey;
use crate::codegen::{
    microkernel::{
        memory,
        op::{Op, Ty},
    },
    vector::{
        Builder, VectorShape,
        vcode::{Mem, NarrowInt, Vector},
    },
};
use std::collections::BTreeSet;

/// The most vectors that one store has.
const MAX_VECTORS: usize = 4;

/// The bytes of one stream, as a vector of lanes for each vector of the tile.
struct PackedStream {
    stream: u32,
    narrow: NarrowInt,
    vectors: Vec<Vector>,
}

/// The bytes that are stored after the last vector of a row.
pub(super) struct PackedBytes(Vec<PackedStream>);

impl PackedBytes {
    /// `None` where each vector is stored for itself: another one might load the bytes, or a stream is stored twice.
    pub(super) fn of(key: &TileKey, shape: VectorShape) -> Option<PackedBytes> {
        let has_pairs = key.vectors.is_multiple_of(2) && !key.tail;
        let mut stored = BTreeSet::new();
        let is_stored_once = key
            .epilogue
            .insts
            .iter()
            .all(|(op, _)| !matches!(op, Op::Store(stream, _) if !stored.insert(*stream)));
        let may_wait = key.epilogue.stores_elsewhere && is_stored_once;
        (shape.clamping_stores && has_pairs && may_wait).then(|| PackedBytes(Vec::new()))
    }

    /// Adds the next vector of a stream. Returns false, and adds nothing, unless the store clamps them to bytes.
    pub(super) fn add(&mut self, stream: u32, ty: Ty, value: Vector) -> bool {
        let Some(narrow) = memory::clamping(ty) else { return false };
        match self.0.iter_mut().find(|packed| packed.stream == stream) {
            Some(packed) => packed.vectors.push(value),
            None => self.0.push(PackedStream { stream, narrow, vectors: vec![value] }),
        }
        true
    }

    /// Stores all bytes. `address` gives the first element of a stream in this row.
    pub(super) fn store(self, b: &mut Builder, address: impl Fn(u32) -> Mem) {
        for PackedStream { stream, narrow, vectors } in self.0 {
            for (idx, together) in vectors.chunks(MAX_VECTORS).enumerate() {
                let mem = address(stream).plus(idx * MAX_VECTORS * b.lanes());
                b.store_packed(mem, together.to_vec(), narrow);
            }
        }
    }
}
