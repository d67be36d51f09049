//! Reductions whose points are in many pages.

use crate::{kernel::Axis, target::PAGE_BYTES};
use symshape::{Dim, Facts};

/// The pages of this many points stay in a first-level TLB together with those of the other operand and the result.
const NEAR_PAGES: i64 = 48;

/// Whether the points of a reduction along `k` may be in more pages than a first-level TLB holds. `index` is the
/// address of an `f32` operand.
pub(super) fn are_many(facts: &Facts, index: &Dim, k: &Axis) -> bool {
    let Some((step, _)) = facts.linear_in(index, &k.var) else { return false };
    let bytes = (step * 4).min(PAGE_BYTES.into()) * &k.extent;
    facts.bounds(&bytes).hi.is_none_or(|hi| hi > (NEAR_PAGES * PAGE_BYTES).into())
}
