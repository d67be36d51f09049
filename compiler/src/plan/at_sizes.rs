//! The arena at given values of the symbols.

use super::{Plan, layout, layout::OffsetArithmetic, size::reserved_bytes};
use crate::{
    error::{Error, Result},
    kernel::{BufferId, Program},
};
use num_bigint::BigInt;
use symshape::Symbol;

/// Bytes of the arena at these values of the symbols. They may be outside of the declared ranges; the order of the plan
/// stays the same.
///
/// # Errors
/// A size has no value.
pub(crate) fn arena_bytes(
    program: &Program,
    plan: &Plan,
    value: &dyn Fn(&Symbol) -> Option<BigInt>,
) -> Result<BigInt> {
    let spans = layout(&plan.placements, &mut AtSizes { program, value })?;
    let end = spans.into_iter().map(|span| span.end).max().unwrap_or_default();
    Ok(end * program.arena_slices())
}

struct AtSizes<'a> {
    program: &'a Program,
    value: &'a dyn Fn(&Symbol) -> Option<BigInt>,
}

impl OffsetArithmetic for AtSizes<'_> {
    type Offset = BigInt;

    fn largest(&mut self, ends: Vec<BigInt>) -> Result<BigInt> {
        Ok(ends.into_iter().max().unwrap_or_default())
    }

    fn end(&mut self, buffer: BufferId, begin: &BigInt) -> Result<BigInt> {
        let bytes = reserved_bytes(self.program, buffer).eval(&self.value);
        let bytes = bytes.map_err(|error| Error::internal(format!("{buffer}: {error}")))?;
        Ok(begin + bytes)
    }
}
