//! Several lines of an image in one call, on tile registers.
//!
//! A line is an iteration of the innermost outer row axis. Where each line but the last moves everything that a
//! microkernel reads and writes by the same steps, one call goes through as many lines as there are: it finishes a
//! line while it multiplies the next, and configures registers once. All tiles of a line must have the same number of
//! rows. Two lines that each fill half of the registers form a pair.

use super::{lhs::LhsPlan, packed_lhs::PackedLhs};
use crate::{
    codegen::{
        body::body_builder::{Stream, linear_parts},
        microkernel::contraction::AMX_ROWS,
    },
    kernel::Contraction,
};
use symshape::{Dim, Facts};

/// The steps from line to line.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LineBatch {
    /// Bytes that the lhs moves by.
    pub(crate) lhs_bytes: Dim,
    /// Steps of the epilogue's streams.
    pub(crate) streams: Vec<LineStep>,
}

/// The step of a stream from line to line, in elements.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LineStep {
    /// From the first row of a line to that of the next.
    line: Dim,
    /// From after the last row of a line to the first row of the next.
    pub(crate) after_rows: Dim,
}

impl LineBatch {
    /// The line batch of a contraction, if it allows one.
    pub(super) fn of(
        facts: &Facts,
        contraction: &Contraction,
        lhs: &LhsPlan,
        streams: &[Stream],
    ) -> Option<LineBatch> {
        let (last, outer) = contraction.m.split_last()?;
        let line = &outer.last()?.var;
        let rows = last.extent.as_i64().filter(|rows| *rows > 0)?;
        let max_rows = AMX_ROWS as i64;
        let has_even_tiles = rows % ((rows + max_rows - 1) / max_rows) == 0;

        let is_fixed = |step: &Dim| contraction.m.iter().all(|axis| !step.contains(&axis.var));
        let line_step = |at: &Dim| {
            let (step, _) = linear_parts(facts, at, Some(line))?;
            is_fixed(&step).then_some(step)
        };
        let lhs_bytes = match &lhs.packed {
            None => line_step(&lhs.stream.origin.index)? * lhs.unit_bytes,
            Some(PackedLhs::Rows(packing)) => packing.line_bytes(&last.extent),
            Some(PackedLhs::Pixels(packing)) => packing.line_bytes()?,
        };
        let streams = streams.iter().map(|stream| {
            let line = line_step(&stream.origin.index)?;
            let after_rows = &line - &stream.row * rows;
            Some(LineStep { line, after_rows })
        });
        let streams: Vec<_> = streams.collect::<Option<_>>()?;
        (has_even_tiles && is_fixed(&lhs_bytes)).then_some(LineBatch { lhs_bytes, streams })
    }

    /// Whether lines don't move a stream.
    pub(super) fn is_still(&self, stream: usize) -> bool {
        self.streams[stream].line.as_i64() == Some(0)
    }
}
