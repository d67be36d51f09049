//! Permutations that repeat one lane of each group of lanes.

use crate::codegen::{
    microkernel::op::LaneOfGroup,
    vector::{
        Builder,
        vcode::{VBinary, VUnary, Vector},
    },
};

/// The lane that the last permutation of groups of eight repeated, and the numbers of the lanes that it read. Most
/// permutations repeat the lane of the one before.
#[derive(Clone, Copy, Default)]
pub(super) struct LastPermutation(Option<(LaneOfGroup, Vector)>);

impl LastPermutation {
    /// This lane of each group, in all lanes of the group.
    pub(super) fn repeat(&mut self, b: &mut Builder, elements: Vector, place: LaneOfGroup) -> Vector {
        if place.group == 4 {
            return b.unary(VUnary::RepeatOfFour(place.lane), elements);
        }
        let numbers = match self.0 {
            Some((last, numbers)) if last == place => numbers,
            _ => numbers(b, place),
        };
        self.0 = Some((place, numbers));
        b.binary(VBinary::Permute, numbers, elements)
    }
}

/// For all lanes, the number of this lane in the same group.
fn numbers(b: &mut Builder, LaneOfGroup { group, lane }: LaneOfGroup) -> Vector {
    let zero = b.imm(0);
    let all = b.count_from(zero);
    let group = b.bits(u32::from(group).wrapping_neg());
    let first = b.binary(VBinary::And, all, group);
    let lane = b.bits(lane.into());
    b.binary(VBinary::AddInt, first, lane)
}
