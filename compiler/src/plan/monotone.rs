//! Whether the arena never shrinks as one symbol grows: then a budget can be bisected.

use super::arena::Plan;
use crate::kernel::{Program, monotone};
use std::collections::HashSet;
use symshape::Dim;

/// Whether `arena_bytes` provably never decreases as one symbol grows within its declaration and the others stay.
///
/// The arena is the longest path of a fixed order, so it is monotone if every buffer is. Relations between symbols
/// hold in calls, but not on the way from one call to a larger one: a program that has any is not proven.
pub(crate) fn is_monotone(program: &Program, plan: &Plan) -> bool {
    if !program.facts.assumptions().is_empty() {
        return false;
    }
    let Some(facts) = monotone::declarations(program) else { return false };

    // Many buffers have the same size.
    let sizes: HashSet<Dim> =
        plan.placements.iter().map(|placement| program.bytes(placement.buffer)).collect();
    let never_decreases =
        |bytes: &Dim| bytes.symbols().iter().all(|symbol| monotone::never_decreases(&facts, bytes, symbol));
    sizes.iter().all(never_decreases)
}
