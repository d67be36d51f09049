//! The memory and registers that the code of a body is emitted for: those of one vector of iterations.

use super::{
    body_value::BodyValue,
    op::{LaneOfGroup, Ty},
    wide::Wide,
};
use crate::{
    codegen::vector::{
        Builder,
        vcode::{Mask, ShiftOp, VBinary, Vector},
    },
    scalar::ReduceOp,
};

/// The weights of sums of products of bytes, in registers.
#[derive(Clone)]
pub(super) struct QuadWeights {
    /// Four weights in each lane.
    pub(super) quads: Vec<Vector>,
    /// Minus 128 times the sum of the weights, for inputs with a sign.
    pub(super) correction: Option<Vector>,
}

/// Loads and stores of one vector of iterations.
pub(super) trait LaneAccess {
    /// The next elements of a stream, whose type in memory is `ty`; bools are 0 or 1.
    fn load(&mut self, b: &mut Builder, stream: u32, ty: Ty) -> Vector;
    /// This lane of each group of the next elements of a stream, in all lanes of the group. Only strips have groups.
    fn load_repeated(&mut self, _: &mut Builder, _stream: u32, _ty: Ty, _lane: LaneOfGroup) -> Vector {
        unreachable!("the code has no groups")
    }
    /// The next bytes of at most four streams in each lane, those of the first stream the lowest. The others are zero.
    fn load_quad(&mut self, b: &mut Builder, streams: &[u32]) -> Vector {
        combined_bytes(self, b, streams)
    }
    /// The weights of the sums of products of bytes, if registers hold them.
    fn quad_weights(&self) -> Option<&QuadWeights> {
        None
    }
    /// Stores the next elements of a stream, whose type in memory is `ty`.
    fn store(&mut self, b: &mut Builder, stream: u32, ty: Ty, value: Vector);
    /// Elements at these distances from an element of a stream that does not move. Only strips have such streams.
    fn gather(&mut self, _: &mut Builder, _stream: u32, _offsets: Vector) -> Vector {
        unreachable!("the code loads no addresses")
    }
    /// The numbers of the iterations in their loop. Only strips have such loops.
    fn column(&mut self, _: &mut Builder) -> Vector {
        unreachable!("the code loads no addresses")
    }
    /// Reports a failure for the lanes of the mask that are iterations. Only strips have checks.
    fn fail_where(&mut self, _: &mut Builder, _failures: Mask) {
        unreachable!("the code has no checks")
    }
    /// A scalar argument in all lanes.
    fn splat(&mut self, b: &mut Builder, slot: u32) -> Vector;
    /// The next elements of a stream of 64-bit elements. Only strips have such elements.
    fn load_wide(&mut self, _: &mut Builder, _stream: u32) -> Wide {
        unreachable!("the code has no lanes of 64 bits")
    }
    /// Stores the next elements of a stream of 64-bit elements.
    fn store_wide(&mut self, _: &mut Builder, _stream: u32, _value: Wide) {
        unreachable!("the code has no lanes of 64 bits")
    }
    /// A scalar argument of 64 bits in all lanes.
    fn splat_wide(&mut self, _: &mut Builder, _slot: u32) -> Wide {
        unreachable!("the code has no lanes of 64 bits")
    }
    /// The accumulators of a contraction.
    fn accumulator(&mut self, b: &mut Builder) -> Vector;
    /// The register of a scalar variable. All of its lanes are equal, of 32 or of 64 bits.
    fn variable(&mut self, var: u32) -> Vector;
    /// Reduces values into a scalar variable.
    fn reduce(&mut self, b: &mut Builder, op: ReduceOp, value: BodyValue, var: u32);
}

/// See [`LaneAccess::load_quad`].
pub(super) fn combined_bytes<L: LaneAccess + ?Sized>(
    lanes: &mut L,
    b: &mut Builder,
    streams: &[u32],
) -> Vector {
    let mut quad = lanes.load(b, streams[0], Ty::U8);
    for (idx, stream) in streams.iter().enumerate().skip(1) {
        let bytes = lanes.load(b, *stream, Ty::U8);
        let bytes = b.shift(ShiftOp::Left, bytes, 8 * idx as u8);
        quad = b.binary(VBinary::Or, quad, bytes);
    }
    quad
}
