//! What is said of a contraction for microkernels to run it: the form of both factors, the loops of the reduction, and the
//! epilogue's streams.

use super::{
    line_batch::LineBatch,
    packing::{self, PackedLhs, Packing},
    rhs::ComputedRhs,
};
use crate::{
    codegen::{
        body::{
            args::Args,
            body_builder::{BodyBuilder, ScalarArg, Stream, linear_parts, linear_steps},
        },
        function::FuncCtx,
        microkernel::{
            MicrokernelKey,
            contraction::{AMX_ROWS, DotOp, PANEL, ReductionPart, Rhs, TileKey, narrow_vectors},
            op::{Body, Op, StreamStep, Ty},
        },
        vector::{VectorShape, vcode::TILE_ROWS},
    },
    error::Result,
    kernel::{self, Access, BufferId, Contraction, Kernel},
};
use cranelift_codegen::ir::{InstBuilder, Value};
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// The part of the second-level cache that a block of rows may have: beside it there are panels of B.
const BLOCK_FRACTION: (i64, i64) = (3, 8);

/// ReductionPart of the second-level cache that a right factor may take which is read again for each block of a few rows.
const NEAR_FRACTION: (i64, i64) = (1, 2);

/// A right factor of so many elements is read from beyond the second-level cache.
const LARGE_RHS_ELEMS: i64 = 1 << 18;

/// One of so many elements has left the second-level cache by the next call, whatever its size: the panels of a tile are
/// worth asking for in time.
const PREFETCH_RHS_ELEMS: i64 = 1 << 16;

/// Two panels so deep still fit the second-level cache together: what is asked for ahead does not drive out what all
/// rows are multiplied with.
const MAX_PREFETCH_DEPTH: i64 = 3072;

/// Points of the shortest reduction during which vectors ask for rows of the result.
const MIN_PREFETCH_POINTS: i64 = 64;

/// Reductions of so many points are cut where there are many rows, into parts of about so many: a panel of a part
/// leaves room for the rows of a block in the second-level cache.
const DEEP: (i64, i64) = (2048, 1024);

/// The same where rows are whole pages apart, so that all rows of a tile compete for the same few lines of the
/// first-level cache: the panel of a part is to stay there beside them.
const DEEP_IN_PAGES: (i64, i64) = (1024, 384);

/// Bytes after which addresses fall into the same lines of the first-level cache.
const PAGE_BYTES: i64 = 4096;

/// What the microkernels of a contraction have in common, and their arguments.
pub(super) struct Plan<'a> {
    pub(super) contraction: &'a Contraction,
    pub(super) shape: VectorShape,
    /// Most rows of a tile.
    pub(super) max_tile_rows: usize,
    /// Bytes of A that a block of rows may have.
    pub(super) block_bytes: i64,
    pub(super) dense: bool,
    /// Loops of the reduction, innermost first: extent, what A and B move in elements.
    pub(super) levels: Vec<(Dim, Dim, Dim)>,
    pub(super) lhs: Stream,
    pub(super) rhs: Rhs,
    /// B is larger than the second-level cache.
    pub(super) large: bool,
    /// Blocks of few rows do: tile registers multiply them in no time, and B is near enough to be read again for each.
    pub(super) low_blocks: bool,
    /// Whether the next panels of B are worth asking for.
    pub(super) prefetch_panels: bool,
    /// Whether what the next tile of columns reads and writes of each row is.
    prefetch_epilogue: bool,
    /// B's first element at column 0 and reduction index 0; `column` is from panel to panel or column to column.
    pub(super) rhs_stream: Stream,
    pub(super) streams: Vec<Stream>,
    pub(super) scalars: Vec<ScalarArg>,
    pub(super) epilogue: Body,
    /// How the reduction is cut where there are many rows.
    pub(super) k_blocking: Option<KBlocking>,
    /// How factors of bytes become elements.
    pub(super) packing: Option<Packing>,
    /// The left factor before it is laid out, where that has to be done; the plan then speaks of what is laid out.
    pub(super) left: Option<PackedLhs>,
    /// The right factor as it lies, where it is laid out while running.
    pub(super) right: Option<ComputedRhs>,
    /// Lines that one call goes through.
    pub(super) line_batch: Option<LineBatch>,
    /// Two iterations of the outer row axes are one tile, see [`super::paired_tiles`].
    pub(super) pairs: bool,
    /// Bytes of what A's steps count: elements, or bytes where groups of them are read as they lie.
    pub(super) a_bytes: i64,
}

/// A deep reduction in parts: what all rows of a block are multiplied with between two looks at A stays in the
/// first-level cache, and the part of A in the second.
pub(super) struct KBlocking {
    /// The stream that sums wait in.
    pub(super) stream: u32,
    /// Iterations of the outermost loop of the reduction, of a part, and in all.
    pub(super) step: i64,
    pub(super) extent: i64,
    /// Reduction points of an iteration.
    pub(super) inner: i64,
}

impl KBlocking {
    /// Parts in all.
    pub(super) fn parts(&self) -> i64 {
        (self.extent + self.step - 1) / self.step
    }
}
fn is_f32(f: &FuncCtx, access: &Access) -> bool {
    f.unit.program.buffers[access.buffer].dtype == DType::F32
}

pub(super) fn plan<'a>(
    f: &FuncCtx,
    kernel: &Kernel,
    facts: &Facts,
    contraction: &'a Contraction,
) -> Option<Plan<'a>> {
    let (last, outer) = contraction.m.split_last()?;
    let packing = packing::select_packing(f, facts, contraction);
    if packing.is_none() && (contraction.dtype != DType::F32 || !is_f32(f, &contraction.lhs)) {
        return None;
    }
    let (lhs_steps, origin) = linear_steps(facts, &contraction.lhs.index, &contraction.k)?;
    let (row, origin) = linear_parts(facts, &origin, Some(&last.var))?;
    let fixed = |step: &Dim| outer.iter().all(|axis| !step.contains(&axis.var));
    if origin.contains(&contraction.n.var) || !fixed(&row) || !lhs_steps.iter().all(fixed) {
        return None;
    }
    let lhs =
        Stream { origin: Access { index: origin, ..contraction.lhs.clone() }, row, column: Dim::zero() };
    let is_computed = packing.as_ref().is_some_and(Packing::is_right_computed);
    let computed = if is_computed { Some(ComputedRhs::of(facts, contraction)?) } else { None };
    let (rhs, rhs_steps, rhs_stream) = right(f, facts, contraction, packing::repacking(&packing))?;
    let axes = contraction.k.iter().zip(lhs_steps).zip(rhs_steps).rev();
    let levels: Vec<(Dim, Dim, Dim)> = axes.map(|((axis, a), b)| (axis.extent.clone(), a, b)).collect();
    let mut binding = BodyBuilder::new(f.unit.program, kernel, facts, Some(&last.var));
    binding.sum = Some(if contraction.dtype == DType::F32 { Ty::F32 } else { Ty::I32 });
    let epilogue = binding.body(&contraction.epilogue, Some(&contraction.n.var))?;
    if !binding.variables.is_empty() || levels.len() > 4 {
        return None;
    }
    let is_direct = packing.as_ref().is_some_and(|packing| packing.reads(&levels[0]));
    let (lhs, levels, left) = match &packing {
        Some(packing) if !is_direct && packing.is_ready() => return None,
        Some(packing) if is_direct => (lhs, as_it_lies(packing, levels), None),
        Some(packing) => pack_lhs(packing, lhs, levels),
        None => (lhs, levels, None),
    };
    let dense = levels[0].1.as_i64() == Some(1);
    let (streams, scalars) = (binding.streams, binding.scalars);
    if !streams.iter().all(|stream| fixed(&stream.row) && fixed(&stream.column)) {
        return None;
    }
    let isa = f.unit.vector_isa();
    let (shape, max_tile_rows) = (isa.shape(), super::max_tile_rows(f, contraction));
    let block_bytes = isa.caches().l2_bytes * BLOCK_FRACTION.0 / BLOCK_FRACTION.1;
    let right_elems = (contraction.depth() * &contraction.n.extent).as_i64();
    let is_amx = packing.as_ref().is_some_and(|packing| packing.product.is_amx());
    let element_bytes = packing.as_ref().map_or(4, |packing| packing.product.rhs_bytes());
    let most_near = isa.caches().l2_bytes * NEAR_FRACTION.0 / NEAR_FRACTION.1;
    let near = right_elems.is_some_and(|elems| elems.saturating_mul(element_bytes) <= most_near);
    let short = last.extent.as_i64().is_some_and(|rows| rows <= TILE_ROWS as i64);
    let a_bytes = packing.as_ref().filter(|_| is_direct).map_or(4, Packing::element_bytes);
    let can_batch = is_amx && scalars.is_empty();
    let line_batch =
        can_batch.then(|| LineBatch::of(facts, contraction, (&lhs, &left, a_bytes), &streams)).flatten();
    // Rows that share much of what they are made of are laid out in high blocks, and lines that lie ready are many in a call.
    let apart = outer.is_empty() || levels.len() == 1 && (line_batch.is_none() || left.is_some());
    let low_blocks = is_amx && near && !is_computed && apart;
    // On tile registers one call asks, which has all rows of a block.
    let may_prefetch = is_amx.then(|| !is_computed && (outer.is_empty() || line_batch.is_some()));
    let right_buffer = rhs_stream.origin.buffer;
    let k_blocking = match packing {
        None => k_blocking(&levels, rhs, &epilogue, &streams, &lhs, [lhs.origin.buffer, right_buffer]),
        Some(_) => None,
    };
    Some(Plan {
        contraction,
        shape,
        max_tile_rows,
        block_bytes,
        dense,
        levels,
        lhs,
        rhs,
        large: right_elems.is_some_and(|elems| elems >= LARGE_RHS_ELEMS),
        low_blocks,
        prefetch_panels: is_far(contraction, may_prefetch),
        prefetch_epilogue: low_blocks || packing.is_none() && expands(contraction),
        rhs_stream,
        streams,
        scalars,
        epilogue,
        k_blocking,
        a_bytes,
        line_batch,
        packing,
        left,
        right: computed,
        pairs: is_amx && short && !outer.is_empty(),
    })
}

/// Whether tiles ask for the next panels of B: not where these are near, or so deep that they would drive out what is
/// multiplied with; on tile registers it is said whether they may ask.
fn is_far(contraction: &Contraction, on_tiles: Option<bool>) -> bool {
    let depth = contraction.depth();
    let is_large = (&depth * &contraction.n.extent).as_i64().is_some_and(|elems| elems >= PREFETCH_RHS_ELEMS);
    is_large && on_tiles.unwrap_or(depth.as_i64().is_some_and(|depth| depth <= MAX_PREFETCH_DEPTH))
}

/// Whether rows of the result are so much longer than those of A that reading and writing them takes as long as many of the
/// multiplications, of which there are enough for a few more instructions not to be seen.
fn expands(contraction: &Contraction) -> bool {
    let sizes = contraction.depth().as_i64().zip(contraction.n.extent.as_i64());
    sizes.is_some_and(|(depth, columns)| depth >= MIN_PREFETCH_POINTS && columns >= 2 * depth)
}

/// The loops of the reduction over groups of a left factor that is read as it lies; see [`Packing::levels`] for what it moves by
/// on tile registers.
fn as_it_lies(packing: &Packing, levels: Vec<(Dim, Dim, Dim)>) -> Vec<(Dim, Dim, Dim)> {
    let mut moved = Dim::zero();
    let step = |(idx, (extent, step, other)): (usize, (Dim, Dim, Dim))| {
        let inside = std::mem::replace(&mut moved, &step * &extent);
        match idx {
            0 => (packing.grouped(&extent), Dim::one(), Dim::zero()),
            _ if packing.product.is_amx() => (extent, step - inside, other),
            _ => (extent, step, other),
        }
    };
    levels.into_iter().enumerate().map(step).collect()
}

/// The lhs and the loops of the reduction as the tiles see them, and as they are in memory.
fn pack_lhs(
    packing: &Packing,
    stream: Stream,
    levels: Vec<(Dim, Dim, Dim)>,
) -> (Stream, Vec<(Dim, Dim, Dim)>, Option<PackedLhs>) {
    let lhs = Stream { origin: packing.origin(), row: packing.row_step(), column: Dim::zero() };
    let levels = levels.into_iter().map(|(extent, step, _)| (extent, step)).collect();
    let packed = packing.levels().into_iter().map(|(extent, step)| (extent, step, Dim::zero()));
    (lhs, packed.collect(), Some(packing.left(stream, levels)))
}

/// How to cut the reduction, if it is deep and the sums have a place to wait in: one that is stored to in the end and
/// not read before.
fn k_blocking(
    levels: &[(Dim, Dim, Dim)],
    rhs: Rhs,
    epilogue: &Body,
    streams: &[Stream],
    lhs: &Stream,
    others: [BufferId; 2],
) -> Option<KBlocking> {
    let extents: Vec<i64> = levels.iter().map(|level| level.0.as_i64()).collect::<Option<_>>()?;
    let (extent, within) = extents.split_last()?;
    let inner: i64 = within.iter().product();
    let in_pages = lhs.row.as_i64().is_some_and(|row| row * 4 % PAGE_BYTES == 0);
    let (deep, part_depth) = if in_pages { DEEP_IN_PAGES } else { DEEP };
    if !matches!(rhs, Rhs::Panels(_)) || extent * inner < deep {
        return None;
    }
    let buffer = |stream: u32| streams[stream as usize].origin.buffer;
    let loads = |stored: u32| {
        epilogue.insts.iter().any(|(op, _)| matches!(op, Op::Load(other) if buffer(*other) == buffer(stored)))
    };
    let stream = epilogue.insts.iter().find_map(|(op, _)| match op {
        Op::Store(stream, value) if epilogue.insts[*value as usize].1 == Ty::F32 => Some(*stream),
        _ => None,
    })?;
    let waits = columns(&streams[stream as usize].column) == StreamStep::Unit
        && !loads(stream)
        && !others.contains(&buffer(stream));
    let parts = (extent * inner + part_depth - 1) / part_depth;
    let step = (extent + parts - 1) / parts;
    // Whole rounds of the unrolled loop.
    let step = if within.is_empty() { (step + 7) / 8 * 8 } else { step };
    (waits && step < *extent).then_some(KBlocking { stream, step, extent: *extent, inner })
}

/// The form of B, its steps along the reduction axes, and where it starts; `layout` is that of panels that are packed anew.
fn right(
    f: &FuncCtx,
    facts: &Facts,
    contraction: &Contraction,
    packing: Option<&Packing>,
) -> Option<(Rhs, Vec<Dim>, Stream)> {
    let rows: Vec<&Symbol> = contraction.m.iter().map(|axis| &axis.var).collect();
    let still = || vec![Dim::zero(); contraction.k.len()];
    if let Some(packing) = packing.filter(|packing| packing.is_right_computed()) {
        let (_, column) = packing.panels(&Dim::zero());
        let origin = Access { buffer: packing.pack_buffer, index: Dim::zero() };
        return Some((Rhs::Panels(PANEL as u32), still(), Stream { origin, row: Dim::zero(), column }));
    }
    match &contraction.rhs {
        kernel::Rhs::Panels { buffer, base, width } => {
            if let Some(packing) = packing {
                let (at, column) = packing.panels(base);
                let origin = Access { buffer: *buffer, index: at };
                return Some((Rhs::Panels(*width), still(), Stream { origin, row: Dim::zero(), column }));
            }
            if f.unit.program.buffers[*buffer].dtype != DType::F32 || !(*width as usize).is_multiple_of(PANEL)
            {
                return None;
            }
            let origin = Access { buffer: *buffer, index: base.clone() };
            let column = contraction.depth() * i64::from(*width);
            Some((Rhs::Panels(*width), still(), Stream { origin, row: Dim::zero(), column }))
        }
        kernel::Rhs::Indexed(access) => {
            let (steps, rest) = linear_steps(facts, &access.index, &contraction.k)?;
            let (column, at) = linear_parts(facts, &rest, Some(&contraction.n.var))?;
            let moves = |expr: &Dim| rows.iter().any(|row| expr.contains(row));
            if !is_f32(f, access) || moves(&at) || moves(&column) || steps.iter().any(moves) {
                return None;
            }
            let form = if column.as_i64() == Some(1) { Rhs::Rows } else { Rhs::Scattered };
            let origin = Access { buffer: access.buffer, index: at };
            // The innermost step stands where a stream has its row step.
            let row = steps.last()?.clone();
            Some((form, steps, Stream { origin, row, column }))
        }
    }
}

impl Plan<'_> {
    pub(super) fn key(&self, rows: usize, vectors: usize, tail: bool, part: ReductionPart) -> MicrokernelKey {
        let is_left = matches!(part, ReductionPart::First(_) | ReductionPart::Middle(_));
        MicrokernelKey::Tile(TileKey {
            rows: rows as u8,
            vectors: vectors as u8,
            tail,
            dot: self.product(),
            dense: self.dense,
            levels: self.levels.len() as u8,
            rhs: self.rhs,
            prefetch_panels: self.prefetch_panels,
            part,
            paired: false,
            line_batch: self.line_batch.is_some(),
            streams: self.streams.iter().map(|stream| columns(&stream.column)).collect(),
            row_invariant: self.still(),
            prefetch_epilogue: self.prefetch_epilogue,
            scalars: self.scalars.len() as u32,
            epilogue: if is_left { Body::default() } else { self.epilogue.clone() },
        })
    }

    /// The epilogue's streams that tiles on tile registers need not move: those that neither rows nor lines do.
    fn still(&self) -> u32 {
        let is_still = |(idx, stream): (usize, &Stream)| {
            let of_lines = self.line_batch.as_ref().is_none_or(|line_batch| line_batch.is_still(idx));
            self.product().is_amx() && stream.row.as_i64() == Some(0) && of_lines
        };
        let streams = self.streams.iter().take(32).enumerate();
        streams.fold(0, |bits, stream| bits | u32::from(is_still(stream)) << stream.0)
    }

    /// The same for a pair of iterations of the outer row axes.
    pub(super) fn pair_key(&self, vectors: usize, tail: bool) -> MicrokernelKey {
        let MicrokernelKey::Tile(key) = self.key(AMX_ROWS, vectors, tail, ReductionPart::Whole) else {
            unreachable!("made as a tile")
        };
        MicrokernelKey::Tile(TileKey { paired: true, ..key })
    }

    /// Where the right factor begins.
    pub(super) fn rhs_address(&self, f: &mut FuncCtx) -> Result<Value> {
        let packed = packing::repacking(&self.packing).filter(|packing| !packing.is_right_computed());
        let Some(packing) = packed else {
            return f.address(&self.rhs_stream.origin);
        };
        let data = packing.right(f.unit)?;
        let (address, at) = (f.data_address(data), f.dim(&(&self.rhs_stream.origin.index * 4))?);
        Ok(f.builder.ins().iadd(address, at))
    }

    /// What elements are.
    pub(super) fn product(&self) -> DotOp {
        self.packing.as_ref().map_or(DotOp::F32, |packing| packing.product)
    }

    pub(super) fn narrow(&self) -> usize {
        narrow_vectors(self.shape)
    }

    /// The arguments that stay the same for all tiles, at the current values of the outer row axes.
    pub(super) fn args(&self, f: &mut FuncCtx) -> Result<(TileKey, Args)> {
        let MicrokernelKey::Tile(key) = self.key(1, 1, false, ReductionPart::Whole) else {
            unreachable!("made as a tile")
        };
        let mut args = Args::new(key.slots());
        args.set(TileKey::LHS, f.address(&self.lhs.origin)?);
        args.set(TileKey::LHS_ROW, f.dim(&(&self.lhs.row * self.a_bytes))?);
        args.set(TileKey::LHS_K, f.dim(&(&self.levels[0].1 * 4))?);
        args.set(TileKey::RHS_K, f.dim(&(&self.rhs_stream.row * 4))?);
        if let Some(packing) = self.packing.as_ref().filter(|packing| packing.product.is_amx()) {
            args.set(TileKey::LHS_PLANE, f.dim(&packing.plane_bytes())?);
        }
        args.set(TileKey::RHS_COLUMN, f.dim(&(&self.rhs_stream.column * 4))?);
        for (level, (extent, a, b)) in self.levels.iter().enumerate() {
            let slot = TileKey::level(level as u8);
            args.set(slot, f.dim(extent)?);
            if level > 0 {
                args.set(slot + 1, f.dim(&(a * self.a_bytes))?);
                args.set(slot + 2, f.dim(&(b * 4))?);
            }
        }
        for (idx, stream) in self.streams.iter().enumerate() {
            args.set_stream(f, key.stream(idx as u32), stream)?;
        }
        for (idx, scalar) in self.scalars.iter().enumerate() {
            args.set_scalar(f, key.scalar(idx as u32), scalar)?;
        }
        Ok((key, args))
    }
}

fn columns(column: &Dim) -> StreamStep {
    match column.as_i64() {
        Some(0) => StreamStep::Fixed,
        Some(1) => StreamStep::Unit,
        _ => StreamStep::Stride,
    }
}
