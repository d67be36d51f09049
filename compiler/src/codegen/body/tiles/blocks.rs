//! The loops over blocks of rows, tiles of columns and outer row axes, and the calls of microkernels in them.

use super::{
    line_batch,
    packing::PackedLhs,
    paired_tiles,
    plan::Plan,
    prefetch::PrefetchSchedule,
    product,
    tiling::{ColumnTiling, Rows},
};
use crate::{
    codegen::{
        body::split::{self, split_axis},
        body::{args::Args, body_builder::linear_parts},
        function::FuncCtx,
        microkernel::contraction::{PANEL, Rhs, TileKey},
        vector::vcode::TILE_ROW_BYTES,
    },
    error::Result,
    kernel::Axis,
};
use cranelift_codegen::ir::{InstBuilder, SigRef, Value, condcodes::IntCC, types};
use symshape::{Dim, Symbol};

/// A right factor of so many elements stays in the second-level cache whatever else is touched.
const SMALL_RHS_ELEMS: i64 = 1 << 16;

/// Rows of a block that are multiplied with so large a factor.
const MIN_BLOCK_ROWS: i64 = 144;

/// Rows of a low block: so many that all but one of a few tiles are finished while the next one is multiplied.
const LOW_ROWS: i64 = 128;

/// A loop variable that no kernel uses.
fn counter(name: &str, extent: &Dim) -> Axis {
    Axis { var: Symbol::new(name), extent: extent.clone() }
}

/// The loop over blocks of rows, of tiles where there is one row axis, else of joint iterations of the outer ones.
pub(super) fn blocks(
    f: &mut FuncCtx,
    plan: &Plan,
    rows: &Rows,
    tilings: &[ColumnTiling],
    columns: (Value, Value),
    range: Option<(Value, Value)>,
) -> Result<()> {
    let (_, outer) = plan.contraction.m.split_last().expect("checked in plan");
    let total = if outer.is_empty() { rows.tiles } else { f.dim(&product(outer))? };
    let (begin, end) = match range {
        None => (f.int(0), total),
        Some(range) => split::range(f, range, split_axis::ROWS, 1, total)?,
    };
    let total = f.builder.ins().isub(end, begin);
    let steps = match &plan.left {
        Some(left) => left.steps(f, plan, rows)?,
        None => block_steps(f, plan, rows, tilings.len() > 1)?,
    };
    let steps = if plan.low_blocks { low_steps(f, plan, rows, steps)? } else { steps };
    let padded = f.builder.ins().iadd(total, steps);
    let padded = f.builder.ins().iadd_imm_s(padded, -1);
    let n_blocks = f.builder.ins().udiv(padded, steps);
    let zero = f.int(0);
    let axis = counter("row block", &Dim::from(i64::MAX));
    f.for_axis_range(&axis, zero, n_blocks, |f| {
        let (block, _) = f.symbol(&axis.var)?;
        let next = f.builder.ins().iadd_imm_s(block, 1);
        let [first, end] = [block, next].map(|number| {
            let before = f.builder.ins().imul(number, total);
            let before = f.builder.ins().udiv(before, n_blocks);
            f.builder.ins().iadd(before, begin)
        });
        let packed = pack_block(f, plan, rows, (first, end))?;
        parts(f, plan, tilings, &mut |f, tiling, part| {
            let tiles = counter("column tile", &Dim::from(i64::MAX));
            let zero = f.int(0);
            f.for_axis_range(&tiles, zero, tiling.n_tiles, |f| {
                let (tile, _) = f.symbol(&tiles.var)?;
                let at = Position::new(f, plan, tiling, tile, columns, part);
                if let Some(right) = &plan.right {
                    right.pack(f, plan, &at)?;
                }
                if outer.is_empty() {
                    return call(f, plan, rows, &at, Some((first, end)), packed, None);
                }
                if let Some(lines) = &plan.line_batch {
                    return line_batch::run(f, plan, lines, rows, &at, (first, end));
                }
                if plan.pairs {
                    return paired_tiles::run(f, plan, rows, &at, (first, end));
                }
                joint(f, plan, (first, end), &mut |f, number| {
                    let distance = distance(f, plan, first, number)?;
                    let before = f.builder.ins().isub(number, first);
                    let all = f.builder.ins().isub(end, first);
                    call(f, plan, rows, &at, None, distance, Some((before, all)))
                })
            })
        })
    })
}

/// Tiles, or iterations of the outer axes, of a block of which all columns are done before the next rows: then the result and
/// what the epilogue reads are touched row by row, as they lie.
fn low_steps(f: &mut FuncCtx, plan: &Plan, rows: &Rows, most: Value) -> Result<Value> {
    let (last, outer) = plan.contraction.m.split_last().expect("checked in plan");
    let height = if outer.is_empty() { rows.rows } else { f.dim(&last.extent)? };
    let (all, one) = (f.int(LOW_ROWS), f.int(1));
    let height = f.builder.ins().smax(height, one);
    let steps = f.builder.ins().udiv(all, height);
    let steps = f.builder.ins().smax(steps, one);
    Ok(f.builder.ins().smin(steps, most))
}

/// Tiles, or iterations of the outer axes, of a block whose left factor is read where it lies.
fn block_steps(f: &mut FuncCtx, plan: &Plan, rows: &Rows, in_parts: bool) -> Result<Value> {
    let bytes = step_bytes(f, plan, rows)?;
    let bytes = match &plan.k_blocking {
        Some(depth) if in_parts => f.builder.ins().sdiv_imm_s(bytes, depth.parts()),
        _ => bytes,
    };
    let one = f.int(1);
    let bytes = f.builder.ins().smax(bytes, one);
    let budget = f.int(plan.block_bytes);
    let steps = f.builder.ins().udiv(budget, bytes);
    let fewest = fewest_steps(f, plan, rows)?;
    Ok(f.builder.ins().smax(steps, fewest))
}

/// First iteration of the outermost loop of the reduction, and their number.
type Slice = (Value, Value);

/// What emits one part of the reduction.
type EmitPart<'e> = dyn FnMut(&mut FuncCtx, &ColumnTiling, Option<Slice>) -> Result<()> + 'e;

/// Emits each part of the reduction: the whole of it, or the first, a loop over those between, and the last.
fn parts(f: &mut FuncCtx, plan: &Plan, tilings: &[ColumnTiling], emit: &mut EmitPart<'_>) -> Result<()> {
    let (Some(depth), [first, between @ .., last]) = (&plan.k_blocking, tilings) else {
        return tilings.iter().try_for_each(|tiling| emit(f, tiling, None));
    };
    let (zero, step, end) = (f.int(0), f.int(depth.step), f.int(depth.parts() - 1));
    emit(f, first, Some((zero, step)))?;
    for tiling in between {
        let number = counter("part", &Dim::from(i64::MAX));
        let one = f.int(1);
        f.for_axis_range(&number, one, end, |f| {
            let (number, _) = f.symbol(&number.var)?;
            let from = f.builder.ins().imul_imm_s(number, depth.step);
            emit(f, tiling, Some((from, step)))
        })?;
    }
    let before = depth.step * (depth.parts() - 1);
    let (from, count) = (f.int(before), f.int(depth.extent - before));
    emit(f, last, Some((from, count)))
}

/// Tiles, or iterations of the outer axes, of the smallest block: where B comes from far away, enough rows that
/// computing takes much longer than reading it once more.
fn fewest_steps(f: &mut FuncCtx, plan: &Plan, rows: &Rows) -> Result<Value> {
    let one = f.int(1);
    if !plan.large {
        return Ok(one);
    }
    let (last, outer) = plan.contraction.m.split_last().expect("checked in plan");
    let height = if outer.is_empty() { rows.rows } else { f.dim(&last.extent)? };
    let height = f.builder.ins().smax(height, one);
    let fewest = f.int(MIN_BLOCK_ROWS);
    let steps = f.builder.ins().udiv(fewest, height);
    Ok(f.builder.ins().smax(steps, one))
}

/// About the bytes that one more tile, or one more iteration of the outer axes, touches: those of A, and where B is
/// small and the result wider than A those of the result, which then is written to in a few places at a time.
fn step_bytes(f: &mut FuncCtx, plan: &Plan, rows: &Rows) -> Result<Value> {
    let (last, outer) = plan.contraction.m.split_last().expect("checked in plan");
    let distance = match outer.last() {
        None => Some(plan.lhs.row.clone()),
        Some(axis) => linear_parts(f.facts(), &plan.lhs.origin.index, Some(&axis.var)).map(|(step, _)| step),
    };
    let depth = plan.levels.iter().filter(|level| level.1.as_i64() != Some(0));
    // Elements, of which tile registers count rows.
    let group = if plan.product().is_amx() { (TILE_ROW_BYTES / 4) as i64 } else { 1 };
    let depth = depth.fold(Dim::from(group), |depth, level| depth * &level.0);
    // Windows overlap: what is new is what the address moves by. Where it doesn't move, the same bytes are read again.
    let n = &plan.contraction.n.extent;
    let small = (&depth * n).as_i64().is_some_and(|elems| elems <= SMALL_RHS_ELEMS)
        && n.as_i64().zip(depth.as_i64()).is_some_and(|(n, depth)| n >= 2 * depth);
    let result = if small { n.clone() } else { Dim::zero() };
    let (depth, result) = (depth * 4, result * 4);
    let row = match (distance.map(|distance| distance * plan.a_bytes), outer.is_empty()) {
        (Some(distance), true) => distance.min(depth) + result,
        (Some(distance), false) => distance + result * &last.extent,
        (None, _) => (depth + result) * &last.extent,
    };
    let bytes = f.dim(&row)?;
    Ok(if outer.is_empty() { f.builder.ins().imul(bytes, rows.rows) } else { bytes })
}

/// Joint iterations `first..end` of the outer row axes, counted from the innermost.
pub(super) fn joint(
    f: &mut FuncCtx,
    plan: &Plan,
    (first, end): (Value, Value),
    emit: &mut dyn FnMut(&mut FuncCtx, Value) -> Result<()>,
) -> Result<()> {
    let (_, outer) = plan.contraction.m.split_last().expect("checked in plan");
    if let [axis] = outer {
        return f.for_axis_range(axis, first, end, |f| {
            let (number, _) = f.symbol(&axis.var)?;
            emit(f, number)
        });
    }
    let extents: Vec<Value> = outer.iter().map(|axis| f.dim(&axis.extent)).collect::<Result<_>>()?;
    let all = counter("row", &Dim::from(i64::MAX));
    f.for_axis_range(&all, first, end, |f| {
        let (joint, _) = f.symbol(&all.var)?;
        let mut number = joint;
        for (axis, extent) in outer.iter().zip(extents).skip(1).rev() {
            let around = f.builder.ins().udiv(number, extent);
            let skipped = f.builder.ins().imul(around, extent);
            let inside = f.builder.ins().isub(number, skipped);
            f.facts_mut().declare_index(&axis.var, &axis.extent);
            f.bind(axis.var.clone(), inside);
            number = around;
        }
        f.facts_mut().declare_index(&outer[0].var, &outer[0].extent);
        f.bind(outer[0].var.clone(), number);
        emit(f, joint)
    })
}

/// Lays out the left factor of a block where that has to be done; returns, where there is one row axis, the distance of
/// what is laid out from where the block's first row would have it.
fn pack_block(
    f: &mut FuncCtx,
    plan: &Plan,
    rows: &Rows,
    (first, end): (Value, Value),
) -> Result<Option<Value>> {
    let Some(left) = &plan.left else { return Ok(None) };
    let (last, outer) = plan.contraction.m.split_last().expect("checked in plan");
    if outer.is_empty() {
        return left.pack_tiles(f, rows, (first, end)).map(Some);
    }
    match left {
        PackedLhs::Rows(packed) => joint(f, plan, (first, end), &mut |f, number| {
            let count = f.builder.ins().isub(number, first);
            let distance = packed.distance(f, &last.extent, count)?;
            packed.pack_axis(f, &last.extent, distance)
        })?,
        PackedLhs::Pixels(line) => line.pack_axes(f, plan.contraction, (first, end))?,
    }
    Ok(None)
}

/// How far from its room what is laid out for joint iteration `number` lies, in a block that begins with `first`.
pub(super) fn distance(f: &mut FuncCtx, plan: &Plan, first: Value, number: Value) -> Result<Option<Value>> {
    let (Some(left), Some(last)) = (&plan.left, plan.contraction.m.last()) else { return Ok(None) };
    let distance = match left {
        PackedLhs::Rows(packed) => {
            let count = f.builder.ins().isub(number, first);
            packed.distance(f, &last.extent, count)
        }
        PackedLhs::Pixels(line) => line.distance(f, plan.contraction, first, number),
    };
    distance.map(Some)
}

/// A tile of columns.
pub(super) struct Position {
    /// Its first column.
    pub(super) column: Value,
    /// Columns of a tile like it.
    pub(super) width: Value,
    /// Byte offset of its panel, or of its first column, in B.
    rhs_offset: Value,
    /// Columns from it on.
    pub(super) left: Value,
    /// The microkernels for its high and low tiles, or where rows are in pairs, for one alone and for a pair.
    pub(super) microkernels: [Value; 2],
    /// The part of the reduction.
    pub(super) part: Option<Slice>,
}

impl Position {
    fn new(
        f: &mut FuncCtx,
        plan: &Plan,
        tiling: &ColumnTiling,
        tile: Value,
        (first, end): (Value, Value),
        part: Option<Slice>,
    ) -> Position {
        let is_wide = f.builder.ins().icmp(IntCC::SignedLessThan, tile, tiling.n_wide);
        let is_whole = f.builder.ins().icmp(IntCC::SignedLessThan, tile, tiling.n_whole);
        let wide = f.builder.ins().smin(tile, tiling.n_wide);
        let narrow = f.builder.ins().isub(tile, wide);
        let wide = f.builder.ins().imul(wide, tiling.wide);
        let narrow = f.builder.ins().ishl_imm_u(narrow, i64::from(PANEL.trailing_zeros()));
        let column = f.builder.ins().iadd(wide, narrow);
        let column = f.builder.ins().iadd(column, first);
        let left = f.builder.ins().isub(end, column);
        let microkernels = [0, 1].map(|low| {
            let rest =
                f.builder.ins().select(is_whole, tiling.microkernels[2 + low], tiling.microkernels[4 + low]);
            f.builder.ins().select(is_wide, tiling.microkernels[low], rest)
        });
        // Where the right factor is laid out, the tile's panels begin the room.
        let rhs_offset = if plan.right.is_some() { f.int(0) } else { rhs_offset(f, plan, column) };
        let panel = f.int(PANEL as i64);
        let width = f.builder.ins().select(is_wide, tiling.wide, panel);
        Position { column, width, rhs_offset, left, microkernels, part }
    }
}

fn rhs_offset(f: &mut FuncCtx, plan: &Plan, column: Value) -> Value {
    // Strides are dims that were computed before, so this only looks them up.
    let step = f.dim(&(&plan.rhs_stream.column * 4)).expect("computed for every call");
    match plan.rhs {
        Rhs::Panels(width) => {
            let width = i64::from(width);
            let panel = f.builder.ins().ushr_imm_u(column, i64::from(width.trailing_zeros()));
            let inside = f.builder.ins().band_imm_s(column, width - 1);
            let panel = f.builder.ins().imul(panel, step);
            let inside = f.builder.ins().ishl_imm_u(inside, 2);
            f.builder.ins().iadd(panel, inside)
        }
        Rhs::Rows | Rhs::Scattered => f.builder.ins().imul(column, step),
    }
}

/// Calls the microkernels for tiles `range` of all (or for all) at one tile of columns; A lies at this distance from where its rows
/// are counted from. The call is one of several with the same columns, in the order that `turn` says.
pub(super) fn call(
    f: &mut FuncCtx,
    plan: &Plan,
    rows: &Rows,
    at: &Position,
    range: Option<(Value, Value)>,
    distance: Option<Value>,
    turn: Option<(Value, Value)>,
) -> Result<()> {
    let (key, args) = args(f, plan, at, distance)?;
    let zero = f.int(0);
    let (first, end) = range.unwrap_or((zero, rows.tiles));
    let (high_first, high_end) =
        (f.builder.ins().smin(first, rows.high), f.builder.ins().smin(end, rows.high));
    let (low_first, low_end) = (f.builder.ins().smax(first, rows.high), f.builder.ins().smax(end, rows.high));
    let n_high = f.builder.ins().isub(high_end, high_first);
    let n_low = f.builder.ins().isub(low_end, low_first);
    let count = f.builder.ins().isub(end, first);
    let prefetch = PrefetchSchedule::new(f, plan, at, &args, turn, count);
    let before = f.builder.ins().imul(high_first, rows.rows);
    let signature = f.unit.signature(&[types::I64], &[]);
    let signature = f.builder.import_signature(signature);
    let microkernel = at.microkernels[0];
    let high = Tiles { first_row: before, rows: rows.rows, count: n_high, others: zero, microkernel };
    tiles(f, plan, (rows, &key, &args), signature, &high, &prefetch)?;
    let high_rows = f.builder.ins().imul(rows.high, rows.rows);
    let low_rows = f.builder.ins().iadd_imm_s(rows.rows, -1);
    let skipped = f.builder.ins().isub(low_first, rows.high);
    let skipped = f.builder.ins().imul(skipped, low_rows);
    let before = f.builder.ins().iadd(high_rows, skipped);
    let microkernel = at.microkernels[1];
    let low = Tiles { first_row: before, rows: low_rows, count: n_low, others: n_high, microkernel };
    tiles(f, plan, (rows, &key, &args), signature, &low, &prefetch)
}

/// The arguments that all tiles of rows share at one tile of columns; A lies at this distance from where it is said to.
pub(super) fn args(
    f: &mut FuncCtx,
    plan: &Plan,
    at: &Position,
    distance: Option<Value>,
) -> Result<(TileKey, Args)> {
    let (key, mut args) = plan.args(f)?;
    if let (Some(a), Some(distance)) = (args.get(TileKey::LHS), distance) {
        args.set(TileKey::LHS, f.builder.ins().iadd(a, distance));
    }
    let rhs = plan.rhs_address(f)?;
    args.set(TileKey::RHS, f.builder.ins().iadd(rhs, at.rhs_offset));
    args.set(TileKey::COLUMNS, at.left);
    if let (Some(part), Some(depth)) = (at.part, &plan.k_blocking) {
        take(f, plan, &mut args, depth.inner, part);
    }
    for idx in 0..plan.streams.len() as u32 {
        let slot = key.stream(idx);
        move_by(f, &mut args, slot, slot + 2, at.column);
    }
    Ok((key, args))
}

/// Lets the arguments mean a part of the reduction, whose right factor is packed.
fn take(f: &mut FuncCtx, plan: &Plan, args: &mut Args, inner: i64, (from, count): Slice) {
    let level = plan.levels.len() - 1;
    let slot = TileKey::level(level as u8);
    args.set(slot, count);
    move_by(f, args, TileKey::LHS, if level == 0 { TileKey::LHS_K } else { slot + 1 }, from);
    if let (Rhs::Panels(width), Some(panel)) = (plan.rhs, args.get(TileKey::RHS)) {
        let skipped = f.builder.ins().imul_imm_s(from, inner * i64::from(width) * 4);
        args.set(TileKey::RHS, f.builder.ins().iadd(panel, skipped));
    }
}

/// A run of tiles of one height.
struct Tiles {
    first_row: Value,
    /// Of each.
    rows: Value,
    count: Value,
    /// Tiles of the same call before them.
    others: Value,
    microkernel: Value,
}

/// Calls the microkernel if there are any tiles of its height.
fn tiles(
    f: &mut FuncCtx,
    plan: &Plan,
    (rows, key, args): (&Rows, &TileKey, &Args),
    signature: SigRef,
    tiles: &Tiles,
    prefetch: &Option<PrefetchSchedule>,
) -> Result<()> {
    let any = f.builder.ins().icmp_imm_s(IntCC::SignedGreaterThan, tiles.count, 0);
    let (work, done) = (f.builder.create_block(), f.builder.create_block());
    f.builder.ins().brif(any, work, &[], done, &[]);
    f.builder.switch_to_block(work);
    f.builder.seal_block(work);
    let mut args = args.clone();
    args.set(TileKey::TILES, tiles.count);
    if key.dot.is_amx() {
        args.set(TileKey::TILE_ROWS, tiles.rows);
        args.set(TileKey::CONFIGURED, rows.ready(f, tiles.rows));
    }
    if let Some(prefetch) = prefetch {
        prefetch.set(f, &mut args, tiles.others);
    }
    move_by(f, &mut args, TileKey::LHS, TileKey::LHS_ROW, tiles.first_row);
    for idx in 0..plan.streams.len() as u32 {
        let slot = key.stream(idx);
        move_by(f, &mut args, slot, slot + 1, tiles.first_row);
    }
    let block = args.place(f);
    f.builder.ins().call_indirect(signature, tiles.microkernel, &[block]);
    f.builder.ins().jump(done, &[]);
    f.builder.switch_to_block(done);
    f.builder.seal_block(done);
    Ok(())
}

/// Adds `count` times the value in slot `step` to the one in `slot`.
fn move_by(f: &mut FuncCtx, args: &mut Args, slot: usize, step: usize, count: Value) {
    if let (Some(value), Some(step)) = (args.get(slot), args.get(step)) {
        let moved = f.builder.ins().imul(step, count);
        let moved = f.builder.ins().iadd(value, moved);
        args.set(slot, moved);
    }
}
