//! The keys of the microkernels that run a plan.

use super::{packing::Packing, reduction::stream_step, tile_plan::TilePlan};
use crate::codegen::{
    body::body_builder::Stream,
    microkernel::{
        MicrokernelKey,
        contraction::{ReductionPart, TileKey},
        op::Body,
    },
};

/// A variant of the tile microkernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MicrokernelVariant {
    /// Rows of the tile; on tile registers, the most that it accepts.
    pub(crate) rows: usize,
    /// Vectors of columns.
    pub(crate) vectors: usize,
    /// Some of the last columns are masked.
    pub(crate) tail: bool,
    /// The tile consists of two iterations of the outer row axes.
    pub(crate) pair: bool,
    /// The code is that of the narrower ISA, and so are the vectors.
    pub(crate) narrow: bool,
}

impl TilePlan<'_> {
    /// Whether the inner loop's elements of a row are consecutive.
    fn is_dense(&self) -> bool {
        self.loops[0].lhs_step.as_i64() == Some(1)
    }

    /// The microkernel for a variant of the tile and a part of the reduction.
    pub(crate) fn microkernel(&self, variant: MicrokernelVariant, part: ReductionPart) -> MicrokernelKey {
        MicrokernelKey::Tile(self.tile_key(variant, part))
    }

    /// The key whose slots the arguments have: all variants and parts take the same.
    pub(crate) fn args_key(&self) -> TileKey {
        let variant = MicrokernelVariant { rows: 1, vectors: 1, tail: false, pair: false, narrow: false };
        self.tile_key(variant, ReductionPart::Whole)
    }

    fn tile_key(&self, variant: MicrokernelVariant, part: ReductionPart) -> TileKey {
        let leaves_sums = matches!(part, ReductionPart::First(_) | ReductionPart::Middle(_));
        TileKey {
            rows: variant.rows as u8,
            vectors: variant.vectors as u8,
            tail: variant.tail,
            dot: self.dot(),
            dense: self.is_dense(),
            flips_signs: self.lhs.packed.is_none()
                && self.packing.as_ref().is_some_and(Packing::has_wrong_sign),
            shared_bytes: self.lhs.shared_bytes,
            levels: self.loops.len() as u8,
            rhs: self.rhs.form,
            rhs_element: self.rhs.element,
            prefetch_panels: self.prefetches_panels,
            part,
            paired: variant.pair,
            line_batch: self.line_batch.is_some(),
            streams: self.streams.iter().map(|stream| stream_step(&stream.column)).collect(),
            row_invariant: self.still_streams(),
            prefetch_epilogue: self.prefetches_rows,
            scalars: self.scalars.len() as u32,
            epilogue: if leaves_sums { Body::default() } else { self.epilogue.clone() },
        }
    }

    /// A bit for each of the epilogue's first 32 streams that neither rows nor lines move, on tile registers.
    fn still_streams(&self) -> u32 {
        let is_still = |(idx, stream): (usize, &Stream)| {
            let is_still_by_line = self.line_batch.as_ref().is_none_or(|lines| lines.is_still(idx));
            self.dot().is_amx() && stream.row.as_i64() == Some(0) && is_still_by_line
        };
        let streams = self.streams.iter().take(32).enumerate();
        streams.fold(0, |bits, stream| bits | u32::from(is_still(stream)) << stream.0)
    }
}
