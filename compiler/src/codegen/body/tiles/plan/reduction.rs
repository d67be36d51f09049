//! The loops of a reduction, as microkernels run them.

use crate::codegen::microkernel::op::StreamStep;
use symshape::Dim;

/// A loop of the reduction.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ReductionLoop {
    pub(crate) extent: Dim,
    /// What the lhs moves by in each iteration; on tile registers, what it moves by after the loop inside has moved it.
    pub(crate) lhs_step: Dim,
    /// What the rhs moves by in each iteration, in elements. Packed panels just run on: zero.
    pub(crate) rhs_step: Dim,
}

/// The step of an epilogue's stream from column to column, as far as microkernels distinguish.
pub(super) fn stream_step(column: &Dim) -> StreamStep {
    match column.as_i64() {
        Some(0) => StreamStep::Fixed,
        Some(1) => StreamStep::Unit,
        _ => StreamStep::Stride,
    }
}
