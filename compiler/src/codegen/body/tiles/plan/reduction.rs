//! The loops of a reduction, as microkernels run them.

use crate::codegen::microkernel::op::StreamStep;
use symshape::Dim;

/// A loop of the reduction.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ReductionLoop {
    pub(crate) extent: Dim,
    /// Step of the lhs in each iteration. On tile registers, the step after the inner loop has advanced the lhs.
    pub(crate) lhs_step: Dim,
    /// Step of the rhs in each iteration, in elements. It is zero for packed panels, which are consecutive.
    pub(crate) rhs_step: Dim,
}

/// The depth of nested loops, if it is a constant.
pub(super) fn constant_depth(loops: &[ReductionLoop]) -> Option<i64> {
    loops.iter().map(|level| level.extent.as_i64()).product()
}

/// The step of an epilogue's stream from column to column, as far as microkernels distinguish.
pub(super) fn stream_step(column: &Dim) -> StreamStep {
    match column.as_i64() {
        Some(0) => StreamStep::Fixed,
        Some(1) => StreamStep::Unit,
        _ => StreamStep::Stride,
    }
}
