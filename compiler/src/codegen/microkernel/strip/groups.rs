//! Elements of neighbouring streams that are stored together, as the channels of an image that change from planes to
//! pixels.
//!
//! The streams of a group store each `n`-th element: see [`StreamStep::Group`](super::super::op::StreamStep::Group).
//! Bytes become one lane for each iteration, and lanes are consecutive in memory. Words are interleaved.

use super::alternate::FirstLanes;
use crate::codegen::{
    microkernel::{
        memory,
        op::{GROUP_STREAMS, Ty},
    },
    vector::{
        Builder, VectorShape,
        vcode::{Mem, ShiftOp, VBinary, Vector},
    },
};

/// The streams of a group whose values are known, at their distance in elements from the first stream.
#[derive(Clone, Copy, Default)]
pub(super) struct WaitingStreams([Option<Vector>; *GROUP_STREAMS.end()]);

/// Whether vectors of this shape store groups of this number of streams of bytes together: all lanes or the first ones.
pub(super) fn are_bytes_stored_together(streams: u8, ty: Ty, shape: VectorShape) -> bool {
    memory::elem_bytes(ty) == 1 && (streams != 3 || shape.byte_triples)
}

/// Whether vectors of this shape store whole vectors of words of a group together.
pub(super) fn are_words_stored_together(ty: Ty, shape: VectorShape) -> bool {
    memory::elem_bytes(ty) == 4 && shape.interleaving_stores
}

impl WaitingStreams {
    /// Adds the values of a stream. Stores the group to `mem` if they are the last ones of `streams` streams: all
    /// lanes, or only the first ones.
    pub(super) fn add(
        &mut self,
        b: &mut Builder,
        mem: Mem,
        first: Option<FirstLanes>,
        [stream, streams]: [usize; 2],
        (ty, value): (Ty, Vector),
    ) {
        self.0[stream] = Some(value);
        let Some(values) = self.0[..streams].iter().copied().collect::<Option<Vec<Vector>>>() else { return };
        *self = WaitingStreams::default();
        if memory::elem_bytes(ty) == 4 {
            return b.store_interleaved(mem, values);
        }
        let joined = joined(b, &values);
        match first {
            None if streams == 3 => b.store_triples(mem, joined),
            None => memory::store(b, mem, lane(streams), joined),
            Some((n, _)) if streams == 3 => memory::store_first_triples(b, mem, joined, n),
            Some((n, mask)) => memory::store_first(b, mem, lane(streams), joined, n, Some(mask)),
        }
    }
}

/// The type of two or of four bytes.
fn lane(streams: usize) -> Ty {
    if streams == 2 { Ty::U16 } else { Ty::I32 }
}

/// Lanes whose lowest bytes are those of the values, in order. Of two values, the other bytes are zero.
fn joined(b: &mut Builder, values: &[Vector]) -> Vector {
    let low_byte = b.bits(0xff);
    let last = values.len() - 1;
    let mut joined = b.binary(VBinary::And, values[0], low_byte);
    for (idx, &value) in values.iter().enumerate().skip(1) {
        // Stores of three or four bytes leave out the bytes above the last one.
        let byte = if idx == last && last > 1 { value } else { b.binary(VBinary::And, value, low_byte) };
        let byte = b.shift(ShiftOp::Left, byte, 8 * idx as u8);
        joined = b.binary(VBinary::Or, joined, byte);
    }
    joined
}
