//! Left operands that are packed at run time, a block of rows at a time: row by row, or pixel by pixel where rows
//! overlap.
//!
//! A block of joint iterations of the outer row axes reads one sequence of pixels, see [`SlidingWindows`]: from where
//! the window of its first row begins to where that of its last row ends. These pixels are packed once each, and rows
//! are read from there.

use super::{reduction::ReductionLoop, rounding::Rounding};
use crate::{
    codegen::{body::body_builder::Stream, microkernel::pack_rows::RowForm},
    kernel::{BufferId, Contraction, SlidingWindows},
};
use std::rc::Rc;
use symshape::Dim;

/// A left operand that is packed, a block of rows at a time.
pub(crate) enum PackedLhs {
    /// Row by row.
    Rows(PackedRows),
    /// Pixel by pixel: rows overlap.
    Pixels(PackedPixels),
}

/// A lhs that is packed row by row.
pub(crate) struct PackedRows {
    /// The pack buffer, and the byte of it where the first row begins.
    pub(crate) buffer: BufferId,
    pub(crate) first: Dim,
    /// The conversion of its elements, and their bytes in memory.
    pub(crate) form: RowForm,
    pub(crate) element_bytes: i64,
    /// 32-bit elements from one packed row to the next.
    pub(super) step_elems: Dim,
    /// Bytes of one part of a packed row.
    pub(crate) part_bytes: Dim,
    /// How elements are rounded to 8 bits.
    pub(crate) rounding: Option<Rounding>,
    /// The lhs in memory, and the loops of its reduction, innermost first.
    pub(crate) stream: Stream,
    pub(crate) loops: Vec<ReductionLoop>,
}

impl PackedRows {
    /// Bytes from one packed row to the next.
    pub(crate) fn step_bytes(&self) -> Dim {
        &self.step_elems * 4
    }

    /// Bytes from one iteration of the innermost outer row axis, with this many rows, to the next.
    pub(super) fn line_bytes(&self, rows: &Dim) -> Dim {
        rows * &self.step_bytes()
    }
}

/// A lhs that is packed pixel by pixel.
pub(crate) struct PackedPixels {
    pub(crate) windows: Rc<SlidingWindows>,
    /// The pack buffer.
    pub(crate) buffer: BufferId,
    /// The conversion of its elements, and their bytes in memory.
    pub(crate) form: RowForm,
    pub(crate) element_bytes: i64,
    /// Bytes from one packed pixel to the next.
    pub(crate) step_bytes: Dim,
    /// Bytes of one part of a packed pixel.
    pub(crate) part_bytes: Dim,
}

/// The pixels that a block takes.
pub(crate) struct BlockPixels {
    /// Pixels that a block takes whatever its size.
    pub(crate) fixed: Dim,
    /// Pixels that each row adds where there is one row axis, or else at most each joint iteration of the outer ones.
    pub(crate) each: Dim,
}

impl PackedPixels {
    /// Bytes from one iteration of the innermost outer row axis to the next.
    pub(super) fn line_bytes(&self) -> Option<Dim> {
        Some(self.windows.outer_steps.last()? * &self.step_bytes)
    }

    /// The pixels that a block of `contraction` takes.
    pub(crate) fn block_pixels(&self, contraction: &Contraction) -> BlockPixels {
        let windows = &self.windows;
        let (last, outer) = contraction.m.split_last().expect("a plan has row axes");
        match (outer, &windows.outer_steps[..]) {
            ([], _) => BlockPixels { fixed: windows.span_of_row(), each: windows.row_step.clone() },
            ([_, axis], [around, step]) => {
                // The step from the last iteration of the inner axis to the next of the outer one may be longer.
                let extent = axis.extent.clone().max(1.into());
                let further = (around - step * &extent).max(0.into());
                let each = step + further.ceil_div(&extent);
                BlockPixels { fixed: windows.span_of_rows(&last.extent) + further, each }
            }
            (_, steps) => {
                let each = steps.iter().fold(Dim::zero(), |each, step| each + step);
                BlockPixels { fixed: windows.span_of_rows(&last.extent), each }
            }
        }
    }
}
