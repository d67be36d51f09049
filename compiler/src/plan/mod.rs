//! The arena plan: which buffer lies above which others, from lifetimes and symbolic sizes.
//!
//! A plan is an order, not numbers: `offset(b) = max over a in below(b) of offset(a) + size(a)`, sizes rounded up to
//! [`ALIGN_BYTES`]. Buffers that are alive at once are always ordered, directly or through others, so they are
//! disjoint for every value of the symbols, and small sizes stay compact.

use crate::kernel::BufferId;

/// Every buffer begins at a multiple of this.
pub const ALIGN_BYTES: i64 = 64;

/// A buffer of the arena and those that it lies directly above; empty means at the bottom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The buffer.
    pub buffer: BufferId,
    /// All of them stand earlier in [`Plan::placements`].
    pub below: Vec<BufferId>,
}

/// Where everything in the arena lies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// All buffers in the spaces `Arena` and `Scratch`, each after those below it.
    pub placements: Vec<Placement>,
    /// Bytes that suffice for every allowed value of the symbols.
    pub arena_max: u64,
    /// No plan can do with fewer at the symbols' upper bounds.
    pub lower_bound: u64,
}
