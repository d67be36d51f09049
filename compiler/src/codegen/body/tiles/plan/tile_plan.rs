//! The plan of a contraction as tiles: everything that its microkernels have in common, and their arguments.

use super::{
    division::{max_tile_rows, unpacks},
    isa::Isa,
    k_blocking::KBlocking,
    lhs::{self, LhsPlan},
    line_batch::LineBatch,
    packing::Packing,
    reduction::{ReductionLoop, constant_depth},
    rhs::{RhsPlan, RhsReads},
    zero_taps::ZeroTaps,
};
use crate::{
    codegen::{
        body::body_builder::{ScalarArg, Stream},
        microkernel::{contraction::DotOp, op::Body},
        vector::{VectorShape, vcode::TILE_ROWS},
    },
    kernel::{
        Axis, Contraction, Kernel, MemorySpace, Program, Rhs,
        lanes::{EpilogueForm, epilogue_form},
    },
};
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Share of the second-level cache that the lhs of a block of rows may take: panels of the rhs need the rest.
const BLOCK_SHARE: (i64, i64) = (3, 8);

/// Share of the second-level cache up to which a rhs is near: it is read again for each small block of rows.
const NEAR_RHS_SHARE: (i64, i64) = (1, 2);

/// A rhs of this many elements is read from beyond the second-level cache.
const LARGE_RHS_ELEMS: i64 = 1 << 18;

/// A rhs of this many elements has left the second-level cache by the next call, whatever that cache's size: the
/// panels of a tile are worth prefetching.
const MIN_PREFETCHED_RHS_ELEMS: i64 = 1 << 16;

/// Largest depth, in words, at which panels are prefetched where the reduction has no parts: two such panels fit the
/// second-level cache together, so the next panel does not evict the one that all rows are multiplied with.
const MAX_PREFETCHED_DEPTH: i64 = 3072;

/// Smallest depth, in words, at which vectors prefetch rows of the result during the reduction.
const MIN_DEPTH_TO_PREFETCH_ROWS: i64 = 16;

/// Most loops of a reduction that microkernels run.
const MAX_REDUCTION_LOOPS: usize = 4;

/// The numbers of rows that a plan is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowCount {
    /// Any.
    Any,
    /// Those of one tile.
    OneTile,
    /// More than one tile of this many rows has.
    MoreThan(usize),
}

/// A plan for a contraction: everything that its microkernels have in common, and their arguments.
pub(crate) struct TilePlan<'a> {
    pub(crate) contraction: &'a Contraction,
    /// Facts about the symbols here, with the ranges of the contraction's axes.
    pub(crate) facts: Facts,
    pub(crate) shape: VectorShape,
    /// The shape of the narrower ISA, which a rest of the columns may take.
    pub(super) narrower: Option<VectorShape>,
    /// All microkernels are those of the narrower ISA.
    pub(super) is_narrow: bool,
    pub(crate) row_count: RowCount,
    /// The plan for more rows than one tile has, if it is another one: few bits are unpacked there.
    pub(crate) for_more_rows: Option<Box<TilePlan<'a>>>,
    /// Largest number of rows of a tile.
    pub(crate) max_tile_rows: usize,
    /// Bytes of the lhs that a block of rows may have.
    pub(crate) block_bytes: i64,
    pub(crate) lhs: LhsPlan,
    pub(crate) rhs: RhsPlan,
    /// The loops of the reduction, innermost first.
    pub(crate) loops: Vec<ReductionLoop>,
    /// How the operands become 32-bit elements, where they are not multiplied as they are.
    pub(crate) packing: Option<Packing>,
    /// The taps that see only padding at some rows.
    pub(crate) zero_taps: Option<ZeroTaps>,
    /// How the reduction is divided where there are many rows.
    pub(crate) k_blocking: Option<KBlocking>,
    /// How several lines are computed by one call.
    pub(crate) line_batch: Option<LineBatch>,
    /// Two iterations of the outer row axes form one tile, see `emit::paired_tiles`.
    pub(crate) pairs_rows: bool,
    /// The rhs is larger than the second-level cache.
    pub(crate) has_large_rhs: bool,
    /// Blocks have few rows: tile registers multiply them quickly, and the rhs is near enough to be read again for
    /// each.
    pub(crate) small_blocks: bool,
    /// Tiles prefetch the next panels of the rhs.
    pub(crate) prefetches_panels: bool,
    /// Tiles prefetch the rows of the result and of other operands of the epilogue for the next tile of columns.
    pub(super) prefetches_rows: bool,
    pub(crate) streams: Vec<Stream>,
    pub(crate) scalars: Vec<ScalarArg>,
    pub(crate) epilogue: Body,
}

/// The plan for a contraction on an ISA, or `None` where microkernels can't compute it. `facts` hold around the
/// contraction; the ranges of its axes are added to them.
pub(crate) fn plan<'a>(
    program: &Program,
    kernel: &Kernel,
    facts: &Facts,
    contraction: &'a Contraction,
    isa: &Isa,
) -> Option<TilePlan<'a>> {
    let isa = &isa.of_contraction(contraction);
    let plan_for = |reads, row_count| plan_for(program, kernel, facts, contraction, isa, reads, row_count);
    if !unpacks(contraction) {
        return plan_for(RhsReads::Stored, RowCount::Any);
    }

    // Each tile computes all elements of few bits, which takes about as long as unpacking them.
    let one_tile = plan_for(RhsReads::Stored, RowCount::OneTile)?;
    let more_rows = plan_for(RhsReads::Unpacked, RowCount::MoreThan(one_tile.max_tile_rows))?;
    Some(match one_tile.is_one_tile() {
        Some(true) => one_tile,
        Some(false) => more_rows,
        None => TilePlan { for_more_rows: Some(Box::new(more_rows)), ..one_tile },
    })
}

/// The plan for some numbers of rows.
fn plan_for<'a>(
    program: &Program,
    kernel: &Kernel,
    facts: &Facts,
    contraction: &'a Contraction,
    isa: &Isa,
    reads: RhsReads,
    row_count: RowCount,
) -> Option<TilePlan<'a>> {
    let (last, outer) = contraction.m.split_last()?;
    let facts = contraction.facts_inside(facts);

    let packing = Packing::of(program, &facts, contraction, isa);
    let rounds_lhs = matches!(&contraction.rhs, Rhs::FewBits(panels) if panels.form.rounds_lhs);
    if rounds_lhs && packing.as_ref().is_none_or(|packing| packing.rounding.is_none()) {
        return None;
    }
    let is_f32 = |buffer| program.buffers[buffer].dtype == DType::F32;
    if packing.is_none() && (contraction.dtype != DType::F32 || !is_f32(contraction.lhs.buffer)) {
        return None;
    }

    let (lhs, lhs_steps) = lhs::in_memory(&facts, contraction)?;
    let (rhs, rhs_steps) = RhsPlan::of(program, &facts, contraction, packing.as_ref(), reads)?;
    let mut loops = Vec::new();
    for ((axis, lhs_step), rhs_step) in contraction.k.iter().zip(lhs_steps).zip(rhs_steps).rev() {
        loops.push(ReductionLoop { extent: axis.extent.clone(), lhs_step, rhs_step });
    }

    if loops.len() > MAX_REDUCTION_LOOPS {
        return None;
    }
    let EpilogueForm { body: epilogue, streams, scalars } =
        epilogue_form(program, kernel, &facts, contraction).ok()?;
    let (lhs, loops) = LhsPlan::of(packing.as_ref(), lhs, loops)?;

    let dot = packing.as_ref().map_or(DotOp::F32, |packing| packing.dot);
    let is_amx = dot.is_amx();
    let rhs_elems = (contraction.depth() * &contraction.n.extent).as_i64();
    let max_near_bytes = isa.caches.l2_bytes * NEAR_RHS_SHARE.0 / NEAR_RHS_SHARE.1;
    let is_near = rhs_elems.is_some_and(|elems| elems.saturating_mul(dot.rhs_bytes()) <= max_near_bytes);

    let has_lines = is_amx && scalars.is_empty();
    let line_batch = has_lines.then(|| LineBatch::of(&facts, contraction, &lhs, &streams)).flatten();
    // Rows that share elements are packed in large blocks, and one call computes many lines that are read in place.
    let rows_are_disjoint =
        outer.is_empty() || loops.len() == 1 && (line_batch.is_none() || lhs.packed.is_some());
    let small_blocks = is_amx && is_near && rhs.source.is_none() && rows_are_disjoint;
    // On tile registers the one call that has all rows of a block prefetches.
    let one_call = is_amx.then(|| rhs.source.is_none() && (outer.is_empty() || line_batch.is_some()));

    let may_be_k_blocked = packing.is_none() || reads == RhsReads::Unpacked;
    let k_blocking =
        may_be_k_blocked.then(|| KBlocking::of(&loops, &lhs.stream, &rhs, &epilogue, &streams)).flatten();
    let zero_taps = packing.is_none().then(|| ZeroTaps::of(&facts, contraction, rhs.form, &loops)).flatten();
    // Few bits are near when their elements are computed.
    let reads_panels = !matches!(contraction.rhs, Rhs::FewBits(_));
    let group = packing.as_ref().map_or(1, |packing| packing.dot.group());
    let prefetches_panels = reads_panels
        && prefetches_panels(program, contraction, group, k_blocking.is_some(), one_call, max_near_bytes);
    let is_packed_float = packing.is_some() && contraction.dtype == DType::F32;
    let prefetches_rows =
        small_blocks || !is_packed_float && !is_amx && has_long_result_rows(contraction, group);
    let is_short = last.extent.as_i64().is_some_and(|rows| rows <= TILE_ROWS as i64);
    Some(TilePlan {
        contraction,
        shape: isa.shape,
        narrower: isa.narrower,
        is_narrow: isa.is_narrow,
        row_count,
        for_more_rows: None,
        max_tile_rows: max_tile_rows(program, contraction, isa, reads),
        block_bytes: isa.caches.l2_bytes * BLOCK_SHARE.0 / BLOCK_SHARE.1,
        zero_taps,
        k_blocking,
        line_batch,
        pairs_rows: is_amx && is_short && !outer.is_empty(),
        has_large_rhs: rhs_elems.is_some_and(|elems| elems >= LARGE_RHS_ELEMS),
        small_blocks,
        prefetches_panels,
        prefetches_rows,
        facts,
        lhs,
        rhs,
        loops,
        packing,
        streams,
        scalars,
        epilogue,
    })
}

/// Whether tiles prefetch the next panels of the rhs: not where these are near, nor so deep that they would evict the
/// panels in use. If the reduction has parts, many rows are multiplied with a part of the panels at a time, and few
/// rows read a panel so few times that it may be evicted. A word has `group` elements. On tile registers `on_tiles`
/// tells whether one call has all rows of a block. A rhs of at most `max_near_bytes` bytes is near.
fn prefetches_panels(
    program: &Program,
    contraction: &Contraction,
    group: i64,
    has_parts: bool,
    on_tiles: Option<bool>,
    max_near_bytes: i64,
) -> bool {
    let depth = contraction.depth();
    let is_large =
        (&depth * &contraction.n.extent).as_i64().is_some_and(|elems| elems >= MIN_PREFETCHED_RHS_ELEMS);
    let is_shallow = depth.as_i64().is_some_and(|depth| depth <= MAX_PREFETCHED_DEPTH * group);
    (is_large || is_part_of_large(program, contraction, max_near_bytes))
        && on_tiles.unwrap_or(has_parts || is_shallow)
}

/// Whether the rhs is a constant of more than `max_near_bytes` bytes, or a part of one. Its parts are multiplied one
/// after another, as the filters of a convolution in another basis are.
fn is_part_of_large(program: &Program, contraction: &Contraction, max_near_bytes: i64) -> bool {
    let Rhs::Panels { buffer, .. } = contraction.rhs else { return false };
    let buffer = &program.buffers[buffer];
    let is_const = matches!(buffer.space, MemorySpace::Const(_));
    let bytes = buffer.elems.as_i64().map(|elems| elems.saturating_mul(buffer.dtype.size_bytes() as i64));
    is_const && bytes.is_some_and(|bytes| bytes > max_near_bytes)
}

/// Whether rows of the result are much longer than those of the lhs. Reading and writing them then takes as long as
/// many multiplications, and there are enough of these to hide a few more instructions. A word of the lhs has `group`
/// elements.
fn has_long_result_rows(contraction: &Contraction, group: i64) -> bool {
    let sizes = contraction.depth().as_i64().zip(contraction.n.extent.as_i64());
    sizes.is_some_and(|(depth, columns)| depth >= MIN_DEPTH_TO_PREFETCH_ROWS * group && columns >= 2 * depth)
}

impl TilePlan<'_> {
    /// The multiplication of the microkernels.
    pub(crate) fn dot(&self) -> DotOp {
        self.packing.as_ref().map_or(DotOp::F32, |packing| packing.dot)
    }

    /// Depth of one iteration of the outermost loop of the reduction, if it is a constant.
    pub(crate) fn inner_depth(&self) -> Option<i64> {
        let (_, inner) = self.loops.split_last()?;
        constant_depth(inner)
    }

    /// Rows of the last row axis, along which tiles are cut.
    pub(crate) fn last_rows(&self) -> &Dim {
        &self.contraction.m.last().expect("a plan has row axes").extent
    }

    /// The row axes around the last one.
    pub(crate) fn outer_axes(&self) -> &[Axis] {
        let (_, outer) = self.contraction.m.split_last().expect("a plan has row axes");
        outer
    }

    /// Whether there are no outer row axes.
    pub(crate) fn has_one_row_axis(&self) -> bool {
        self.outer_axes().is_empty()
    }
}
