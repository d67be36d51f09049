//! The offset rule: a buffer begins at the largest end of the buffers below it, or at 0, and ends its
//! [reserved bytes](super::reserved_bytes) later.
//!
//! The rule is written here once for every form in which offsets are computed: numbers, formulas, machine code and
//! C source. [`super::verify`] repeats it on purpose, because it must not share code with the planner.

use super::arena::Placement;
use crate::{
    error::{Error, Result},
    kernel::BufferId,
};
use std::collections::HashMap;

/// A way to compute offsets within the arena, in bytes: at compile time, or by emitting code.
pub(crate) trait OffsetArithmetic {
    /// An offset: a number, an expression, or a value of the code that is emitted.
    type Offset: Clone;

    /// The largest of `ends`, in the order of [`Placement::below`]; 0 where there are none.
    fn largest(&mut self, ends: Vec<Self::Offset>) -> Result<Self::Offset>;

    /// The end of `buffer`, which begins at `begin`.
    fn end(&mut self, buffer: BufferId, begin: &Self::Offset) -> Result<Self::Offset>;
}

/// The bytes `begin..end` of the arena, which one buffer occupies.
pub(crate) struct Span<Offset> {
    pub(crate) buffer: BufferId,
    pub(crate) begin: Offset,
    pub(crate) end: Offset,
}

/// The span of each buffer, in the order of `placements`.
///
/// # Errors
/// A buffer comes before one that is below it, or the arithmetic fails.
pub(crate) fn layout<A: OffsetArithmetic>(
    placements: &[Placement],
    arithmetic: &mut A,
) -> Result<Vec<Span<A::Offset>>> {
    let mut ends: HashMap<BufferId, A::Offset> = HashMap::new();
    let mut spans = Vec::with_capacity(placements.len());

    for Placement { buffer, below } in placements {
        let mut ends_below = Vec::with_capacity(below.len());
        for other in below {
            let end = ends.get(other).cloned();
            ends_below.push(end.ok_or_else(|| {
                Error::internal(format!("{buffer} is placed before {other}, which is below it"))
            })?);
        }

        let begin = arithmetic.largest(ends_below)?;
        let end = arithmetic.end(*buffer, &begin)?;
        ends.insert(*buffer, end.clone());
        spans.push(Span { buffer: *buffer, begin, end });
    }
    Ok(spans)
}
