//! Vectors of every second word of a row.
//!
//! Such a vector takes two loads, which cross cache lines. Streams that are one word apart, as neighbours in a row of a
//! filter with stride two, share both loads: one has the even lanes of the two vectors, the other one the odd lanes.

use super::key::StripKey;
use crate::codegen::{
    microkernel::op::{Body, Op, StreamStep},
    vector::{
        Builder,
        vcode::{Int, IntOp, Mask, VBinary, Vector},
    },
};

/// Bytes of a word.
pub(super) const WORD: usize = 4;

/// Pairs of vectors that wait for their second stream. With more of them, the oldest are forgotten and loaded again.
const MAX_WAITING: usize = 8;

/// The first lanes of a vector: their number and mask.
pub(super) type FirstLanes = (Int, Mask);

/// The lanes of the first and of the second vector that are elements of the row.
#[derive(Clone, Copy)]
pub(super) struct AlternateLanes {
    /// Of the first vector, for one stream. It ends with the last element of the stream.
    single: FirstLanes,
    /// Of the first vector, for two streams. It ends with the last element of the second one.
    shared: FirstLanes,
    second: FirstLanes,
}

impl AlternateLanes {
    /// The lanes of the first `n` elements.
    pub(super) fn first(b: &mut Builder, n: Int) -> AlternateLanes {
        let twice = b.int_op(IntOp::Shl, n, 1);
        let single = b.int_op(IntOp::Sub, twice, 1);
        let second = b.int_op(IntOp::Sub, twice, b.lanes() as i32);
        let [single, shared, second] = [single, twice, second].map(|count| (count, b.mask_first(count)));
        AlternateLanes { single, shared, second }
    }

    /// Of both vectors, where they are shared and where they are not.
    pub(super) fn of(&self, are_shared: bool) -> [FirstLanes; 2] {
        [if are_shared { self.shared } else { self.single }, self.second]
    }
}

/// The streams of a body that are loaded in pairs.
pub(super) struct AlternatePairs {
    /// At the index of each stream: the other one of its pair, and whether that is the second one.
    others: Vec<Option<(u32, bool)>>,
}

impl AlternatePairs {
    /// Pairs neighbours that `body` loads, from the first one in memory.
    pub(super) fn of(key: &StripKey, body: &Body) -> AlternatePairs {
        let is_alternate = |stream: &u32| key.step(*stream) == StreamStep::Alternate;
        let place = |stream: &u32| {
            let stream = key.streams[*stream as usize];
            (stream.pointer, stream.offset)
        };
        let loaded = body.insts.iter().filter_map(|(op, _)| match op {
            Op::Load(stream) => Some(*stream),
            _ => None,
        });
        let mut loaded: Vec<u32> = loaded.filter(is_alternate).collect();
        loaded.sort_unstable_by_key(place);
        loaded.dedup();

        let mut others = vec![None; key.streams.len()];
        let mut rest = &loaded[..];
        while let [first, after @ ..] = rest {
            rest = after;
            let (pointer, offset) = place(first);
            let Some(second) =
                after.first().filter(|second| place(second) == (pointer, offset + WORD as i32))
            else {
                continue;
            };
            others[*first as usize] = Some((*second, true));
            others[*second as usize] = Some((*first, false));
            rest = &after[1..];
        }
        AlternatePairs { others }
    }
}

/// Two vectors, which a stream that is not loaded yet has elements of.
#[derive(Clone, Copy)]
struct Waiting {
    stream: u32,
    vectors: [Vector; 2],
}

/// The vectors of pairs that one vector of iterations has loaded for one of two streams.
#[derive(Clone, Copy, Default)]
pub(super) struct WaitingPairs([Option<Waiting>; MAX_WAITING]);

impl WaitingPairs {
    /// The elements of a stream, or `None` if it has no pair. `load` loads both vectors, from the first element of the
    /// stream that it gets.
    pub(super) fn load(
        &mut self,
        b: &mut Builder,
        pairs: &AlternatePairs,
        stream: u32,
        load: impl FnOnce(&mut Builder, u32) -> [Vector; 2],
    ) -> Option<Vector> {
        let (other, is_first) = pairs.others[stream as usize]?;
        let waiting = self.0.iter_mut().find(|waiting| waiting.is_some_and(|pair| pair.stream == stream));
        let vectors = match waiting.and_then(Option::take) {
            Some(pair) => pair.vectors,
            None => {
                let vectors = load(b, if is_first { stream } else { other });
                self.0.rotate_right(1);
                self.0[0] = Some(Waiting { stream: other, vectors });
                vectors
            }
        };
        let lanes = if is_first { VBinary::Even } else { VBinary::Odd };
        Some(b.binary(lanes, vectors[0], vectors[1]))
    }
}
