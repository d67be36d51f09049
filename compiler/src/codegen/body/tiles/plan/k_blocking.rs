//! Blocking of deep reductions: the parts of the reduction that run one after another over many rows.

use super::{
    reduction::{ReductionLoop, constant_depth, stream_step},
    rhs::RhsPlan,
};
use crate::{
    codegen::{
        body::body_builder::Stream,
        microkernel::{
            contraction,
            op::{Body, Op, StreamStep, Ty},
        },
    },
    target::PAGE_BYTES,
};

/// Depth from which on reductions are divided where there are many rows, and the approximate depth of a part.
#[derive(Clone, Copy)]
struct Depths {
    min: i64,
    part: i64,
}

/// A panel of a part leaves room for the rows of a block in the second-level cache.
const DEEP: Depths = Depths { min: 2048, part: 1024 };

/// The depths where rows are whole pages apart. All rows of a tile then compete for the same few lines of the
/// first-level cache, and the panel of a part should stay there with them.
const DEEP_IN_PAGES: Depths = Depths { min: 1024, part: 384 };

/// Iterations of the unrolled innermost loop.
const UNROLLED: i64 = 8;

/// Most codes of a word of few bits.
const MAX_WORD_CODES: i64 = 16;

/// A deep reduction in parts. Between two reads of the lhs, the panel of a part stays in the first-level cache and the
/// part of the lhs in the second.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct KBlocking {
    /// The stream that holds partial sums from one part to the next.
    pub(crate) stream: u32,
    /// Iterations of the outermost loop of the reduction in each part but the last.
    pub(crate) step: i64,
    /// Iterations of that loop in all.
    pub(crate) extent: i64,
}

impl KBlocking {
    /// The blocking of a reduction, where it is deep and partial sums have memory to wait in: a stream that the
    /// epilogue finally stores to and never loads.
    pub(super) fn of(
        loops: &[ReductionLoop],
        lhs: &Stream,
        rhs: &RhsPlan,
        epilogue: &Body,
        streams: &[Stream],
    ) -> Option<KBlocking> {
        let (outermost, inner) = loops.split_last()?;
        let extent = outermost.extent.as_i64()?;
        let depth = extent * constant_depth(inner)?;
        let is_in_pages = lhs.row.as_i64().is_some_and(|row| row * 4 % PAGE_BYTES == 0);
        let depths = if is_in_pages { DEEP_IN_PAGES } else { DEEP };
        if !matches!(rhs.form, contraction::Rhs::Panels(_)) || depth < depths.min {
            return None;
        }

        let stream = epilogue.insts.iter().find_map(|(op, _)| match op {
            Op::Store(stream, value) if epilogue.insts[*value as usize].1 == Ty::F32 => Some(*stream),
            _ => None,
        })?;
        let buffer = |stream: u32| streams[stream as usize].origin.buffer;
        let is_loaded = epilogue
            .insts
            .iter()
            .any(|(op, _)| matches!(op, Op::Load(other) if buffer(*other) == buffer(stream)));
        let is_operand = [lhs.origin.buffer, rhs.stream.origin.buffer].contains(&buffer(stream));
        let is_consecutive = stream_step(&streams[stream as usize].column) == StreamStep::Unit;
        if is_loaded || is_operand || !is_consecutive {
            return None;
        }

        let parts = (depth + depths.part - 1) / depths.part;
        let step = (extent + parts - 1) / parts;
        // Parts of the innermost loop are whole rounds of its unrolled form, and begin with a word of few bits.
        let unit = if rhs.is_unpacked() { MAX_WORD_CODES } else { UNROLLED };
        let step = if inner.is_empty() { (step + unit - 1) / unit * unit } else { step };
        (step < extent).then_some(KBlocking { stream, step, extent })
    }

    /// The number of parts.
    pub(crate) fn parts(&self) -> i64 {
        (self.extent + self.step - 1) / self.step
    }
}
