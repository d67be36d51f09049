//! Contractions as loops around calls of tile leaves.
//!
//! Rows are cut along the last row axis into as few tiles as the ISA's tallest allows, of two heights that differ by
//! one at most, so no tail is padded: `high` tiles of `rows` rows, then `low` ones of one row less. Columns are cut into
//! wide tiles while they last, then tiles of one panel, then a masked rest. The loops, from outside:
//!
//! ```text
//! for each block of rows whose part of A stays in the second-level cache
//!   for each tile of columns
//!     for the outer row axes
//!       the leaf, over the high tiles; the leaf, over the low ones
//! ```
//!
//! Which leaves these are depends on the number of rows, which may be known at run time only: then a chain of
//! compares picks the functions' addresses, once a contraction.

use super::{
    function::FuncCtx,
    lanes::{Args, Binding, Scalar, Stream, split},
    leaf::{
        LeafKey,
        body::Body,
        contract::{Columns, PANEL, Rhs, TileKey, max_rows, narrow_vectors, wide_vectors},
    },
    split::{self, way},
    vector::Shape,
};
use crate::{
    error::Result,
    kernel::{self, Access, Axis, Contract, Kernel},
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, SigRef, Value, condcodes::IntCC, types};
use cranelift_module::FuncId;
use num_traits::ToPrimitive;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// Bytes of A that a block of rows may have: half of a small second-level cache.
const BLOCK_BYTES: i64 = 192 << 10;

/// A right factor of so many elements stays in the second-level cache whatever else is touched.
const SMALL_B_ELEMS: i64 = 1 << 16;

/// A right factor of so many elements is read from beyond the second-level cache.
const LARGE_B_ELEMS: i64 = 1 << 18;

/// Rows of a block that are multiplied with so large a factor.
const FEWEST_ROWS: i64 = 144;

/// Two panels so deep still fit the second-level cache together: what is asked for ahead does not drive out what all
/// rows are multiplied with.
const MOST_DEPTH_AHEAD: i64 = 2048;

/// Columns that stay together where there are many.
const MANY_COLUMNS: i64 = 64;

/// What the leaves of a contraction have in common, and their arguments.
struct Plan<'a> {
    contract: &'a Contract,
    shape: Shape,
    dense: bool,
    /// Loops of the reduction, innermost first: extent, what A and B move in elements.
    levels: Vec<(Dim, Dim, Dim)>,
    lhs: Stream,
    rhs: Rhs,
    /// B is larger than the second-level cache.
    large: bool,
    /// B comes from beyond the second-level cache, and the next panels are worth asking for.
    ahead: bool,
    /// B's first element at column 0 and reduction index 0; `column` is from panel to panel or column to column.
    rhs_stream: Stream,
    streams: Vec<Stream>,
    scalars: Vec<Scalar>,
    epilogue: Body,
}

/// Emits a contraction by tiles, or the part of it that the frame and `range` say; false where leaves can't do it, and
/// nothing was emitted.
pub(super) fn contraction(
    f: &mut FuncCtx,
    kernel: &Kernel,
    contract: &Contract,
    range: Option<(Value, Value)>,
) -> Result<bool> {
    let mut facts = f.facts().clone();
    for axis in contract.m.iter().chain(&contract.k).chain([&contract.n]) {
        facts.declare_index(&axis.var, &axis.extent);
    }
    let Some(plan) = plan(f, kernel, &facts, contract) else { return Ok(false) };
    emit(f, &facts, &plan, range)?;
    Ok(true)
}

/// Columns that are not divided among threads: cache lines of the result, and wide tiles where there are many.
fn column_step(facts: &Facts, contract: &Contract) -> i64 {
    let many = facts.bounds(&contract.n.extent).lo.is_some_and(|lo| lo >= (8 * MANY_COLUMNS).into());
    if many { MANY_COLUMNS } else { PANEL as i64 }
}

/// Row units that can be divided among threads: tiles where there is one row axis, else the outer axes' iterations.
fn row_units(shape: Shape, contract: &Contract) -> Dim {
    match contract.m.split_last() {
        Some((last, [])) => last.extent.ceil_div(max_rows(shape) as i64),
        Some((_, outer)) => product(outer),
        None => Dim::one(),
    }
}

fn product(axes: &[Axis]) -> Dim {
    axes.iter().fold(Dim::one(), |all, axis| all * &axis.extent)
}

/// What of a contraction to divide among `threads`, see [`way`], and into how many units at most.
pub(super) fn ways(f: &mut FuncCtx, contract: &Contract, threads: Value) -> Result<(Value, Value)> {
    let step = column_step(f.facts(), contract);
    let columns = f.dim(&contract.n.extent.ceil_div(step))?;
    let rows = row_units(f.unit.vector_isa().shape(), contract);
    let rows = f.dim(&rows)?;
    // Of A and B, each thread reads the whole of one and a part of the other: let that be the larger one.
    let (height, width) = (f.dim(&product(&contract.m))?, f.dim(&contract.n.extent)?);
    let wide = f.builder.ins().icmp(IntCC::SignedGreaterThanOrEqual, width, height);
    let many_columns = f.builder.ins().icmp(IntCC::SignedGreaterThanOrEqual, columns, threads);
    let few_rows = f.builder.ins().icmp(IntCC::SignedLessThan, rows, threads);
    let by_columns = f.builder.ins().band(wide, many_columns);
    let by_columns = f.builder.ins().bor(by_columns, few_rows);
    let (row_way, column_way) = (f.int(way::ROWS), f.int(way::COLUMNS));
    let way = f.builder.ins().select(by_columns, column_way, row_way);
    Ok((way, f.builder.ins().select(by_columns, columns, rows)))
}

fn is_f32(f: &FuncCtx, access: &Access) -> bool {
    f.unit.program.buffers[access.buffer].dtype == DType::F32
}

fn plan<'a>(f: &FuncCtx, kernel: &Kernel, facts: &Facts, contract: &'a Contract) -> Option<Plan<'a>> {
    let (last, outer) = contract.m.split_last()?;
    if contract.dtype != DType::F32 || !is_f32(f, &contract.lhs) {
        return None;
    }
    let (lhs_steps, origin) = steps(facts, &contract.lhs.at, &contract.k)?;
    let (row, origin) = split(facts, &origin, Some(&last.var))?;
    let fixed = |step: &Dim| outer.iter().all(|axis| !step.contains(&axis.var));
    if origin.contains(&contract.n.var) || !fixed(&row) || !lhs_steps.iter().all(fixed) {
        return None;
    }
    let lhs = Stream { origin: Access { at: origin, ..contract.lhs.clone() }, row, column: Dim::zero() };
    let (rhs, rhs_steps, rhs_stream) = right(f, facts, contract)?;
    let mut levels: Vec<(Dim, Dim, Dim)> = Vec::new();
    for ((axis, a), b) in contract.k.iter().zip(lhs_steps).zip(rhs_steps).rev() {
        levels.push((axis.extent.clone(), a, b));
    }
    let mut binding = Binding {
        program: f.unit.program,
        kernel,
        facts,
        row: Some(&last.var),
        streams: Vec::new(),
        scalars: Vec::new(),
        variables: Vec::new(),
        inner: Vec::new(),
        wide: Vec::new(),
    };
    let epilogue = binding.body(&contract.epilogue, Some(&contract.n.var))?;
    if !binding.variables.is_empty() || levels.len() > 4 {
        return None;
    }
    let dense = levels[0].1.as_i64() == Some(1);
    let (streams, scalars) = (binding.streams, binding.scalars);
    if !streams.iter().all(|stream| fixed(&stream.row) && fixed(&stream.column)) {
        return None;
    }
    let shape = f.unit.vector_isa().shape();
    let depth = contract.k.iter().fold(Dim::one(), |depth, axis| depth * &axis.extent);
    let large = (&depth * &contract.n.extent).as_i64().is_some_and(|elems| elems >= LARGE_B_ELEMS);
    let ahead = large && depth.as_i64().is_some_and(|depth| depth <= MOST_DEPTH_AHEAD);
    Some(Plan {
        contract,
        shape,
        dense,
        levels,
        lhs,
        rhs,
        large,
        ahead,
        rhs_stream,
        streams,
        scalars,
        epilogue,
    })
}

/// What `expr` moves by along each axis, and its value where all are zero.
fn steps(facts: &Facts, expr: &Dim, axes: &[Axis]) -> Option<(Vec<Dim>, Dim)> {
    let mut rest = expr.clone();
    let mut steps = Vec::new();
    for axis in axes {
        let (step, left) = split(facts, &rest, Some(&axis.var))?;
        steps.push(step);
        rest = left;
    }
    let closed = |step: &Dim| axes.iter().all(|axis| !step.contains(&axis.var));
    steps.iter().all(closed).then_some((steps, rest))
}

/// The form of B, its steps along the reduction axes, and where it starts.
fn right(f: &FuncCtx, facts: &Facts, contract: &Contract) -> Option<(Rhs, Vec<Dim>, Stream)> {
    let rows: Vec<&Symbol> = contract.m.iter().map(|axis| &axis.var).collect();
    match &contract.rhs {
        kernel::Rhs::Panels { buffer, base, width } => {
            if f.unit.program.buffers[*buffer].dtype != DType::F32 || !(*width as usize).is_multiple_of(PANEL)
            {
                return None;
            }
            let depth = contract.k.iter().fold(Dim::one(), |depth, axis| depth * &axis.extent);
            let origin = Access { buffer: *buffer, at: base.clone() };
            let column = depth * i64::from(*width);
            let steps = vec![Dim::zero(); contract.k.len()];
            Some((Rhs::Panels(*width), steps, Stream { origin, row: Dim::zero(), column }))
        }
        kernel::Rhs::At(access) => {
            let (steps, rest) = steps(facts, &access.at, &contract.k)?;
            let (column, at) = split(facts, &rest, Some(&contract.n.var))?;
            let moves = |expr: &Dim| rows.iter().any(|row| expr.contains(row));
            if !is_f32(f, access) || moves(&at) || moves(&column) || steps.iter().any(moves) {
                return None;
            }
            let form = if column.as_i64() == Some(1) { Rhs::Rows } else { Rhs::Scattered };
            let origin = Access { buffer: access.buffer, at };
            // The innermost step stands where a stream has its row step.
            let row = steps.last()?.clone();
            Some((form, steps, Stream { origin, row, column }))
        }
    }
}

impl Plan<'_> {
    fn key(&self, rows: usize, vectors: usize, tail: bool) -> LeafKey {
        LeafKey::Tile(TileKey {
            rows: rows as u8,
            vectors: vectors as u8,
            tail,
            dense: self.dense,
            levels: self.levels.len() as u8,
            rhs: self.rhs,
            ahead: self.ahead,
            streams: self.streams.iter().map(|stream| columns(&stream.column)).collect(),
            scalars: self.scalars.len() as u32,
            epilogue: self.epilogue.clone(),
        })
    }

    fn narrow(&self) -> usize {
        narrow_vectors(self.shape)
    }

    /// The arguments that stay the same for all tiles, at the current values of the outer row axes.
    fn args(&self, f: &mut FuncCtx) -> Result<(TileKey, Args)> {
        let LeafKey::Tile(key) = self.key(1, 1, false) else { unreachable!("made as a tile") };
        let mut args = Args::new(key.slots());
        args.set(TileKey::A, f.address(&self.lhs.origin)?);
        args.set(TileKey::A_ROW, f.dim(&(&self.lhs.row * 4))?);
        args.set(TileKey::A_K, f.dim(&(&self.levels[0].1 * 4))?);
        args.set(TileKey::B_K, f.dim(&(&self.rhs_stream.row * 4))?);
        args.set(TileKey::B_COLUMN, f.dim(&(&self.rhs_stream.column * 4))?);
        for (level, (extent, a, b)) in self.levels.iter().enumerate() {
            let slot = TileKey::level(level as u8);
            args.set(slot, f.dim(extent)?);
            if level > 0 {
                args.set(slot + 1, f.dim(&(a * 4))?);
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

fn columns(column: &Dim) -> Columns {
    match column.as_i64() {
        Some(0) => Columns::Fixed,
        Some(1) => Columns::Unit,
        _ => Columns::Stride,
    }
}

/// Largest value of an expression, if it has one that fits.
fn upper(facts: &Facts, dim: &Dim) -> Option<i64> {
    facts.bounds(dim).hi?.to_i64()
}

/// How the rows are cut; all are run-time values.
struct Rows {
    /// Of a high tile.
    rows: Value,
    /// Number of high tiles.
    high: Value,
    /// Number of all tiles.
    tiles: Value,
}

/// How the columns are cut, and with which leaves.
struct Cut {
    /// Columns of a wide tile.
    wide: Value,
    /// Number of wide tiles.
    n_wide: Value,
    /// Number of tiles that are not masked.
    n_whole: Value,
    /// Number of tiles.
    n_tiles: Value,
    /// Addresses of the leaves: wide, narrow and masked, high and low of each.
    leaves: [Value; 6],
}

fn emit(f: &mut FuncCtx, facts: &Facts, plan: &Plan, range: Option<(Value, Value)>) -> Result<()> {
    let m = plan.contract.m.last().expect("checked in plan");
    let (count, columns) = (f.dim(&m.extent)?, f.dim(&plan.contract.n.extent)?);
    let zero = f.int(0);
    let columns = match range {
        None => (zero, columns),
        Some(range) => {
            let step = column_step(f.facts(), plan.contract);
            split::range(f, range, way::COLUMNS, step, columns)?
        }
    };
    let any_rows = f.builder.ins().icmp_imm_s(IntCC::SignedGreaterThan, count, 0);
    let any_columns = f.builder.ins().icmp(IntCC::SignedLessThan, columns.0, columns.1);
    let any = f.builder.ins().band(any_rows, any_columns);
    let (work, done) = (f.builder.create_block(), f.builder.create_block());
    let exit = f.builder.ins().brif(any, work, &[], done, &[]);
    f.builder.switch_to_block(work);
    f.builder.seal_block(work);
    f.push_scope(exit);
    let rows = cut_rows(f, plan, count);
    let cut = pick(f, facts, plan, &rows, columns)?;
    blocks(f, plan, &rows, &cut, columns, range)?;
    f.builder.ins().jump(done, &[]);
    f.pop_scope();
    f.builder.switch_to_block(done);
    f.builder.seal_block(done);
    Ok(())
}

fn cut_rows(f: &mut FuncCtx, plan: &Plan, count: Value) -> Rows {
    let most = max_rows(plan.shape) as i64;
    let padded = f.builder.ins().iadd_imm_s(count, most - 1);
    let most = f.int(most);
    let tiles = f.builder.ins().udiv(padded, most);
    let low = f.builder.ins().udiv(count, tiles);
    let used = f.builder.ins().imul(low, tiles);
    let extra = f.builder.ins().isub(count, used);
    let even = f.builder.ins().icmp_imm_s(IntCC::Equal, extra, 0);
    let higher = f.builder.ins().iadd_imm_s(low, 1);
    let rows = f.builder.ins().select(even, low, higher);
    let high = f.builder.ins().select(even, tiles, extra);
    Rows { rows, high, tiles }
}

/// Picks the leaves by the height of the tiles.
fn pick(
    f: &mut FuncCtx,
    facts: &Facts,
    plan: &Plan,
    rows: &Rows,
    (first, end): (Value, Value),
) -> Result<Cut> {
    let columns = f.builder.ins().isub(end, first);
    let m = &plan.contract.m.last().expect("checked in plan").extent;
    let n = &plan.contract.n.extent;
    let masked = !facts.divides(&Dim::from(PANEL), n).is_yes();
    let most = max_rows(plan.shape);
    let merge = f.builder.create_block();
    let params: Vec<Value> = (0..7).map(|_| f.builder.append_block_param(merge, types::I64)).collect();
    let heights: Vec<usize> = match m.as_i64() {
        Some(m) => vec![(m as usize).div_ceil((m as usize).div_ceil(most).max(1)).max(1)],
        None => (1..=upper(facts, m).map_or(most, |hi| most.min(hi.max(1) as usize))).collect(),
    };
    // Only evenly cut rows never need the low tile.
    let even = m.as_i64().is_some_and(|m| (m as usize).is_multiple_of((m as usize).div_ceil(most).max(1)));
    for (idx, &height) in heights.iter().enumerate() {
        let next = (idx + 1 < heights.len()).then(|| f.builder.create_block());
        if let Some(next) = next {
            let this = f.builder.create_block();
            let is = f.builder.ins().icmp_imm_s(IntCC::Equal, rows.rows, height as i64);
            f.builder.ins().brif(is, this, &[], next, &[]);
            f.builder.switch_to_block(this);
            f.builder.seal_block(this);
        }
        let addresses = leaves(f, facts, plan, height, masked, even)?;
        let args: Vec<BlockArg> = addresses.into_iter().map(BlockArg::Value).collect();
        f.builder.ins().jump(merge, &args);
        if let Some(next) = next {
            f.builder.switch_to_block(next);
            f.builder.seal_block(next);
        }
    }
    f.builder.switch_to_block(merge);
    f.builder.seal_block(merge);
    let wide = params[0];
    let n_wide = f.builder.ins().udiv(columns, wide);
    let used = f.builder.ins().imul(n_wide, wide);
    let rest = f.builder.ins().isub(columns, used);
    let narrow = f.builder.ins().ushr_imm_u(rest, i64::from(PANEL.trailing_zeros()));
    let n_whole = f.builder.ins().iadd(n_wide, narrow);
    let padded = f.builder.ins().iadd_imm_s(rest, PANEL as i64 - 1);
    let all = f.builder.ins().ushr_imm_u(padded, i64::from(PANEL.trailing_zeros()));
    let n_tiles = f.builder.ins().iadd(n_wide, all);
    let leaves = [params[1], params[2], params[3], params[4], params[5], params[6]];
    Ok(Cut { wide, n_wide, n_whole, n_tiles, leaves })
}

/// The columns of a wide tile of this height, and the addresses of the leaves, see [`Cut`].
fn leaves(
    f: &mut FuncCtx,
    facts: &Facts,
    plan: &Plan,
    height: usize,
    masked: bool,
    even: bool,
) -> Result<Vec<Value>> {
    let n = &plan.contract.n.extent;
    let mut wide = wide_vectors(plan.shape, height);
    // A tile wider than all columns is never called.
    while wide > plan.narrow() && upper(facts, n).is_some_and(|n| n < (wide * plan.shape.lanes) as i64) {
        wide /= 2;
    }
    let mut values = vec![f.int((wide * plan.shape.lanes) as i64)];
    let narrow = plan.narrow();
    // What is left over is whole vectors, or needs a mask.
    let lanes = plan.shape.lanes;
    let whole = narrow == 2 && facts.divides(&Dim::from(lanes), n).is_yes();
    let rest = if whole { (1, false) } else { (narrow, true) };
    for (number, (vectors, tail)) in [(wide, false), (narrow, false), rest].into_iter().enumerate() {
        for rows in [height, height.saturating_sub(1)] {
            let high = rows == height;
            let used = if high { true } else { rows > 0 && !even };
            let address = match used && (masked || number < 2) {
                true => {
                    let leaf = f.unit.leaf(plan.key(rows, vectors, tail))?;
                    function_address(f, leaf)
                }
                false => f.int(0),
            };
            values.push(address);
        }
    }
    Ok(values)
}

fn function_address(f: &mut FuncCtx, func: FuncId) -> Value {
    let reference = f.func_ref(func);
    f.builder.ins().func_addr(types::I64, reference)
}

/// A loop variable that no kernel uses.
fn counter(name: &str, extent: &Dim) -> Axis {
    Axis { var: Symbol::new(name), extent: extent.clone() }
}

/// The loop over blocks of rows, of tiles where there is one row axis, else of joint iterations of the outer ones.
fn blocks(
    f: &mut FuncCtx,
    plan: &Plan,
    rows: &Rows,
    cut: &Cut,
    columns: (Value, Value),
    range: Option<(Value, Value)>,
) -> Result<()> {
    let (_, outer) = plan.contract.m.split_last().expect("checked in plan");
    let total = if outer.is_empty() { rows.tiles } else { f.dim(&product(outer))? };
    let (begin, end) = match range {
        None => (f.int(0), total),
        Some(range) => split::range(f, range, way::ROWS, 1, total)?,
    };
    let total = f.builder.ins().isub(end, begin);
    let bytes = step_bytes(f, plan, rows)?;
    let one = f.int(1);
    let bytes = f.builder.ins().smax(bytes, one);
    let budget = f.int(BLOCK_BYTES);
    let steps = f.builder.ins().udiv(budget, bytes);
    let fewest = fewest_steps(f, plan, rows)?;
    let steps = f.builder.ins().smax(steps, fewest);
    let padded = f.builder.ins().iadd(total, steps);
    let padded = f.builder.ins().iadd_imm_s(padded, -1);
    let n_blocks = f.builder.ins().udiv(padded, steps);
    let zero = f.int(0);
    let axis = counter("row block", &Dim::from(i64::MAX));
    f.count_between(&axis, zero, n_blocks, |f| {
        let (block, _) = f.symbol(&axis.var)?;
        let next = f.builder.ins().iadd_imm_s(block, 1);
        let [first, end] = [block, next].map(|number| {
            let before = f.builder.ins().imul(number, total);
            let before = f.builder.ins().udiv(before, n_blocks);
            f.builder.ins().iadd(before, begin)
        });
        let tiles = counter("column tile", &Dim::from(i64::MAX));
        let zero = f.int(0);
        f.count_between(&tiles, zero, cut.n_tiles, |f| {
            let (tile, _) = f.symbol(&tiles.var)?;
            let at = Position::new(f, plan, cut, tile, columns);
            match outer {
                [] => call(f, plan, rows, &at, Some((first, end))),
                [axis] => f.count_between(axis, first, end, |f| call(f, plan, rows, &at, None)),
                _ => joint(f, plan, rows, &at, (first, end)),
            }
        })
    })
}

/// Tiles, or iterations of the outer axes, of the smallest block: where B comes from far away, enough rows that
/// computing takes much longer than reading it once more.
fn fewest_steps(f: &mut FuncCtx, plan: &Plan, rows: &Rows) -> Result<Value> {
    let one = f.int(1);
    if !plan.large {
        return Ok(one);
    }
    let (last, outer) = plan.contract.m.split_last().expect("checked in plan");
    let height = if outer.is_empty() { rows.rows } else { f.dim(&last.extent)? };
    let height = f.builder.ins().smax(height, one);
    let fewest = f.int(FEWEST_ROWS);
    let steps = f.builder.ins().udiv(fewest, height);
    Ok(f.builder.ins().smax(steps, one))
}

/// About the bytes that one more tile, or one more iteration of the outer axes, touches: those of A, and where B is
/// small and the result wider than A those of the result, which then is written to in a few places at a time.
fn step_bytes(f: &mut FuncCtx, plan: &Plan, rows: &Rows) -> Result<Value> {
    let (last, outer) = plan.contract.m.split_last().expect("checked in plan");
    let distance = match outer.last() {
        None => Some(plan.lhs.row.clone()),
        Some(axis) => split(f.facts(), &plan.lhs.origin.at, Some(&axis.var)).map(|(step, _)| step),
    };
    let depth = plan.levels.iter().filter(|level| level.1.as_i64() != Some(0));
    let depth = depth.fold(Dim::one(), |depth, level| depth * &level.0);
    // Windows overlap: what is new is what the address moves by. Where it doesn't move, the same bytes are read again.
    let n = &plan.contract.n.extent;
    let small = (&depth * n).as_i64().is_some_and(|elems| elems <= SMALL_B_ELEMS)
        && n.as_i64().zip(depth.as_i64()).is_some_and(|(n, depth)| n >= 2 * depth);
    let result = if small { n.clone() } else { Dim::zero() };
    let row = match (&distance, outer.is_empty()) {
        (Some(distance), true) => distance.clone().min(depth) + result,
        (Some(distance), false) => distance.clone() + result * &last.extent,
        (None, _) => (depth + result) * &last.extent,
    };
    let bytes = f.dim(&(row * 4))?;
    Ok(if outer.is_empty() { f.builder.ins().imul(bytes, rows.rows) } else { bytes })
}

/// Joint iterations `first..end` of the outer row axes, counted from the innermost.
fn joint(
    f: &mut FuncCtx,
    plan: &Plan,
    rows: &Rows,
    at: &Position,
    (first, end): (Value, Value),
) -> Result<()> {
    let (_, outer) = plan.contract.m.split_last().expect("checked in plan");
    let extents: Vec<Value> = outer.iter().map(|axis| f.dim(&axis.extent)).collect::<Result<_>>()?;
    let all = counter("row", &Dim::from(i64::MAX));
    f.count_between(&all, first, end, |f| {
        let (mut number, _) = f.symbol(&all.var)?;
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
        call(f, plan, rows, at, None)
    })
}

/// A tile of columns.
struct Position {
    /// Its first column.
    column: Value,
    /// Byte offset of its panel, or of its first column, in B.
    rhs_offset: Value,
    /// Columns from it on.
    left: Value,
    /// The leaves for its high and low tiles.
    leaves: [Value; 2],
}

impl Position {
    fn new(f: &mut FuncCtx, plan: &Plan, cut: &Cut, tile: Value, (first, end): (Value, Value)) -> Position {
        let is_wide = f.builder.ins().icmp(IntCC::SignedLessThan, tile, cut.n_wide);
        let is_whole = f.builder.ins().icmp(IntCC::SignedLessThan, tile, cut.n_whole);
        let wide = f.builder.ins().smin(tile, cut.n_wide);
        let narrow = f.builder.ins().isub(tile, wide);
        let wide = f.builder.ins().imul(wide, cut.wide);
        let narrow = f.builder.ins().ishl_imm_u(narrow, i64::from(PANEL.trailing_zeros()));
        let column = f.builder.ins().iadd(wide, narrow);
        let column = f.builder.ins().iadd(column, first);
        let left = f.builder.ins().isub(end, column);
        let leaves = [0, 1].map(|low| {
            let rest = f.builder.ins().select(is_whole, cut.leaves[2 + low], cut.leaves[4 + low]);
            f.builder.ins().select(is_wide, cut.leaves[low], rest)
        });
        let rhs_offset = rhs_offset(f, plan, column);
        Position { column, rhs_offset, left, leaves }
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

/// Calls the leaves for tiles `range` of all (or for all) at one tile of columns.
fn call(
    f: &mut FuncCtx,
    plan: &Plan,
    rows: &Rows,
    at: &Position,
    range: Option<(Value, Value)>,
) -> Result<()> {
    let (key, mut args) = plan.args(f)?;
    let rhs = f.address(&plan.rhs_stream.origin)?;
    args.set(TileKey::B, f.builder.ins().iadd(rhs, at.rhs_offset));
    args.set(TileKey::COLUMNS, at.left);
    for idx in 0..plan.streams.len() as u32 {
        let slot = key.stream(idx);
        move_by(f, &mut args, slot, slot + 2, at.column);
    }
    let zero = f.int(0);
    let (first, end) = range.unwrap_or((zero, rows.tiles));
    let (high_first, high_end) =
        (f.builder.ins().smin(first, rows.high), f.builder.ins().smin(end, rows.high));
    let (low_first, low_end) = (f.builder.ins().smax(first, rows.high), f.builder.ins().smax(end, rows.high));
    let before = f.builder.ins().imul(high_first, rows.rows);
    let signature = f.unit.signature(&[types::I64], &[]);
    let signature = f.builder.import_signature(signature);
    let high = Tiles { first_row: before, count: (high_first, high_end), leaf: at.leaves[0] };
    tiles(f, plan, &key, &args, signature, &high)?;
    let high_rows = f.builder.ins().imul(rows.high, rows.rows);
    let low_rows = f.builder.ins().iadd_imm_s(rows.rows, -1);
    let skipped = f.builder.ins().isub(low_first, rows.high);
    let skipped = f.builder.ins().imul(skipped, low_rows);
    let before = f.builder.ins().iadd(high_rows, skipped);
    let low = Tiles { first_row: before, count: (low_first, low_end), leaf: at.leaves[1] };
    tiles(f, plan, &key, &args, signature, &low)
}

/// A run of tiles of one height.
struct Tiles {
    first_row: Value,
    count: (Value, Value),
    leaf: Value,
}

/// Calls the leaf if there are any tiles of its height.
fn tiles(
    f: &mut FuncCtx,
    plan: &Plan,
    key: &TileKey,
    args: &Args,
    signature: SigRef,
    tiles: &Tiles,
) -> Result<()> {
    let (first, end) = tiles.count;
    let any = f.builder.ins().icmp(IntCC::SignedLessThan, first, end);
    let (work, done) = (f.builder.create_block(), f.builder.create_block());
    f.builder.ins().brif(any, work, &[], done, &[]);
    f.builder.switch_to_block(work);
    f.builder.seal_block(work);
    let mut args = args.clone();
    let count = f.builder.ins().isub(end, first);
    args.set(TileKey::TILES, count);
    move_by(f, &mut args, TileKey::A, TileKey::A_ROW, tiles.first_row);
    for idx in 0..plan.streams.len() as u32 {
        let slot = key.stream(idx);
        move_by(f, &mut args, slot, slot + 1, tiles.first_row);
    }
    let block = args.place(f);
    f.builder.ins().call_indirect(signature, tiles.leaf, &[block]);
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
