//! Rows of few elements: a few vectors, without loops. What a phase stores is in registers when another one loads it.

use super::{
    kept::KeptValues,
    position::{ActiveLanes, Position, StripRegisters, VectorAccess},
    rows::{ACCUMULATORS, start_reductions},
};
use crate::codegen::{
    microkernel::{
        body,
        op::{Body, StreamStep},
    },
    vector::Builder,
};

/// Most vectors of a row.
const MAX_VECTORS: usize = 4;

/// The fewest lanes of vectors for which rows are unrolled. Vectors of fewer lanes have no masks.
const MIN_LANES: usize = 8;

/// A row of few elements.
pub(super) struct ShortRow {
    start: Position,
    vectors: usize,
    /// The lanes of the last vector.
    last: ActiveLanes,
}

impl ShortRow {
    /// The rows of a strip, if they are short. The mask of the last vector is set before the loop over the rows.
    pub(super) fn of(strip: &StripRegisters<'_>, b: &mut Builder) -> Option<ShortRow> {
        let elements = strip.key.short_row? as usize;
        let lanes = b.lanes();
        let vectors = elements.div_ceil(lanes);
        let has_lanes =
            strip.key.pointers.iter().all(|step| matches!(step, StreamStep::Unit | StreamStep::Fixed));
        if vectors > MAX_VECTORS || lanes < MIN_LANES || !has_lanes {
            return None;
        }

        let start = Position::first(b);
        let last = match elements % lanes {
            0 => ActiveLanes::All,
            rest => {
                let count = b.imm(rest as i64);
                ActiveLanes::First(count, b.mask_first(count))
            }
        };
        Some(ShortRow { start, vectors, last })
    }

    /// Emits a loop phase, without a loop.
    pub(super) fn emit_loop(
        &self,
        strip: &StripRegisters<'_>,
        b: &mut Builder,
        body: &Body,
        kept: &KeptValues,
    ) {
        // Partial results are combined in pairs.
        let partials = if self.vectors == ACCUMULATORS { ACCUMULATORS } else { self.vectors.min(2) };
        let reductions = start_reductions(b, body, partials);
        for vector in 0..self.vectors {
            let lanes = if vector + 1 == self.vectors { self.last } else { ActiveLanes::All };
            let mut access = VectorAccess {
                reductions: &reductions,
                partial: vector % partials,
                offset: vector * b.lanes(),
                kept: Some(kept),
                ..VectorAccess::at(strip, &self.start, lanes)
            };
            body::emit(body, b, &mut access);
        }
        for reduction in &reductions {
            reduction.finish(b, strip.variables[reduction.var as usize]);
        }
    }
}
