//! How rows and columns are cut into tiles, and which microkernels run them: all decisions on run-time sizes.

use super::{plan::Plan, product};
use crate::{
    codegen::{
        function::FuncCtx,
        microkernel::contraction::{AMX_ROWS, PANEL, ReductionPart, amx_columns, wide_vectors},
    },
    error::{Error, Result},
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, StackSlot, Value, condcodes::IntCC, types};
use cranelift_module::FuncId;
use num_traits::ToPrimitive;
use symshape::{Dim, Facts};

/// Largest value of an expression, if it has one that fits.
fn upper(facts: &Facts, dim: &Dim) -> Option<i64> {
    facts.bounds(dim).hi?.to_i64()
}

/// How the rows are cut; all are run-time values.
pub(super) struct Rows {
    /// Of a high tile.
    pub(super) rows: Value,
    /// Number of high tiles.
    pub(super) high: Value,
    /// Number of all tiles.
    pub(super) tiles: Value,
    /// Where tile registers stay as they are: the rows that they have been configured for, 0 at first.
    configured: Option<StackSlot>,
}

impl Rows {
    /// The number of rows: low tiles have one less.
    pub(super) fn all(&self, f: &mut FuncCtx) -> Value {
        let low = f.builder.ins().isub(self.tiles, self.high);
        let all = f.builder.ins().imul(self.tiles, self.rows);
        f.builder.ins().isub(all, low)
    }

    /// Whether tile registers stand ready for tiles of `height` rows, for the microkernel that is called next and makes them so.
    pub(super) fn ready(&self, f: &mut FuncCtx, height: Value) -> Value {
        let Some(slot) = self.configured else { return f.int(0) };
        let last = f.builder.ins().stack_load(types::I64, types::I64, slot, 0);
        f.builder.ins().stack_store(types::I64, height, slot, 0);
        let same = f.builder.ins().icmp(IntCC::Equal, last, height);
        f.builder.ins().uextend(types::I64, same)
    }
}

/// How the columns are cut, and with which microkernels.
pub(super) struct ColumnTiling {
    /// Columns of a wide tile.
    pub(super) wide: Value,
    /// Number of wide tiles.
    pub(super) n_wide: Value,
    /// Number of tiles that are not masked.
    pub(super) n_whole: Value,
    /// Number of tiles.
    pub(super) n_tiles: Value,
    /// Addresses of the microkernels: wide, narrow and masked, high and low of each.
    pub(super) microkernels: [Value; 6],
}
pub(super) fn rows(f: &mut FuncCtx, plan: &Plan, count: Value) -> Rows {
    let most = plan.max_tile_rows as i64;
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
    let keeps = plan.product().is_amx() && f.unit.vector_isa().keeps_tiles();
    let configured = keeps.then(|| {
        let slot = f.slot(8, 8);
        let none = f.int(0);
        f.builder.ins().stack_store(types::I64, none, slot, 0);
        slot
    });
    Rows { rows, high, tiles, configured }
}

/// Picks the microkernels by the height of the tiles.
pub(super) fn select_tiling(
    f: &mut FuncCtx,
    facts: &Facts,
    plan: &Plan,
    rows: &Rows,
    (first, end): (Value, Value),
    part: ReductionPart,
) -> Result<ColumnTiling> {
    let columns = f.builder.ins().isub(end, first);
    let (wide, microkernels) = match plan.product().is_amx() {
        true => of_registers(f, facts, plan, rows)?,
        false => by_height(f, facts, plan, rows, part)?,
    };
    let n_wide = f.builder.ins().udiv(columns, wide);
    let used = f.builder.ins().imul(n_wide, wide);
    let rest = f.builder.ins().isub(columns, used);
    let narrow = f.builder.ins().ushr_imm_u(rest, i64::from(PANEL.trailing_zeros()));
    let n_whole = f.builder.ins().iadd(n_wide, narrow);
    let padded = f.builder.ins().iadd_imm_s(rest, PANEL as i64 - 1);
    let all = f.builder.ins().ushr_imm_u(padded, i64::from(PANEL.trailing_zeros()));
    let n_tiles = f.builder.ins().iadd(n_wide, all);
    Ok(ColumnTiling { wide, n_wide, n_whole, n_tiles, microkernels })
}

/// The columns of a wide tile and the microkernels, see [`ColumnTiling`], on tile registers: a microkernel takes any number of rows up to those of
/// one register or of two. Where rows are in pairs, the low microkernel of each is that of a pair.
fn of_registers(f: &mut FuncCtx, facts: &Facts, plan: &Plan, rows: &Rows) -> Result<(Value, [Value; 6])> {
    let m = &plan.contraction.m.last().expect("checked in plan").extent;
    let n = &plan.contraction.n.extent;
    let (few, lanes) = (AMX_ROWS / 2, plan.shape.lanes);
    let low = f.builder.ins().iadd_imm_s(rows.rows, -1);
    let heights = [rows.rows, low]
        .map(|height| f.builder.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, height, few as i64));
    let is_small = upper(facts, m).is_some_and(|hi| hi <= few as i64);
    let widths = [few, AMX_ROWS].map(|rows| {
        let mut wide = amx_columns(if plan.pairs { AMX_ROWS } else { rows });
        // A tile wider than all columns is never called.
        while wide > PANEL && upper(facts, n).is_some_and(|n| n < wide as i64) {
            wide /= 2;
        }
        wide
    });
    let masked = !facts.divides(&Dim::from(PANEL), n).is_yes();
    let mut microkernels = Vec::new();
    // Low tiles stand beside high ones, and so are as wide.
    for (columns, tail) in [(None, false), (Some(PANEL), false), (Some(PANEL), true)] {
        if tail && !masked {
            let none = f.int(0);
            microkernels.extend([none; 2]);
            continue;
        }
        let microkernel = |f: &mut FuncCtx, rows: usize, columns: usize| -> Result<Value> {
            let microkernel =
                f.unit.microkernel(plan.key(rows, columns / lanes, tail, ReductionPart::Whole))?;
            Ok(function_address(f, microkernel))
        };
        if plan.line_batch.is_some() {
            let vectors = columns.unwrap_or(widths[1]) / lanes;
            let key = match plan.pairs {
                true => plan.pair_key(vectors, tail),
                false => plan.key(AMX_ROWS, vectors, tail, ReductionPart::Whole),
            };
            let microkernel = f.unit.microkernel(key)?;
            microkernels.extend([function_address(f, microkernel); 2]);
            continue;
        }
        let small = microkernel(f, few, columns.unwrap_or(widths[0]))?;
        if plan.pairs {
            let pair = f.unit.microkernel(plan.pair_key(columns.unwrap_or(widths[0]) / lanes, tail))?;
            microkernels.extend([small, function_address(f, pair)]);
            continue;
        }
        if is_small {
            microkernels.extend([small; 2]);
            continue;
        }
        let large = microkernel(f, AMX_ROWS, columns.unwrap_or(widths[1]))?;
        let beside = microkernel(f, few, columns.unwrap_or(widths[1]))?;
        let low = f.builder.ins().select(heights[1], beside, large);
        microkernels.push(f.builder.ins().select(heights[0], small, large));
        microkernels.push(f.builder.ins().select(heights[0], small, low));
    }
    let [small, large] = widths.map(|wide| f.int(wide as i64));
    let wide = if is_small { small } else { f.builder.ins().select(heights[0], small, large) };
    let microkernels = microkernels.try_into().map_err(|_| Error::internal("six microkernels"))?;
    Ok((wide, microkernels))
}

/// The columns of a wide tile and the microkernels, see [`ColumnTiling`], on vectors: a microkernel for each height.
fn by_height(
    f: &mut FuncCtx,
    facts: &Facts,
    plan: &Plan,
    rows: &Rows,
    part: ReductionPart,
) -> Result<(Value, [Value; 6])> {
    let m = &plan.contraction.m.last().expect("checked in plan").extent;
    let n = &plan.contraction.n.extent;
    let masked = !facts.divides(&Dim::from(PANEL), n).is_yes();
    let most = plan.max_tile_rows;
    let merge = f.builder.create_block();
    let params: Vec<Value> = (0..7).map(|_| f.builder.append_block_param(merge, types::I64)).collect();
    let heights: Vec<usize> = match m.as_i64() {
        Some(m) => vec![(m as usize).div_ceil((m as usize).div_ceil(most).max(1)).max(1)],
        None => {
            let least = if part == ReductionPart::Whole { 1 } else { min_height(plan, most) };
            (least..=upper(facts, m).map_or(most, |hi| most.min(hi.max(1) as usize))).collect()
        }
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
        let addresses = microkernels(f, facts, plan, (height, even), masked, part)?;
        let args: Vec<BlockArg> = addresses.into_iter().map(BlockArg::Value).collect();
        f.builder.ins().jump(merge, &args);
        if let Some(next) = next {
            f.builder.switch_to_block(next);
            f.builder.seal_block(next);
        }
    }
    f.builder.switch_to_block(merge);
    f.builder.seal_block(merge);
    Ok((params[0], [params[1], params[2], params[3], params[4], params[5], params[6]]))
}

/// Tiles of rows from which on a reduction is cut: with fewer, B is hardly read twice.
pub(super) const MIN_TILES_TO_BLOCK: usize = 4;

/// The least height of tiles where there are at least [`MIN_TILES_TO_BLOCK`] along one axis.
fn min_height(plan: &Plan, most: usize) -> usize {
    match &plan.contraction.m[..] {
        [_] => ((MIN_TILES_TO_BLOCK - 1) * most + 1).div_ceil(MIN_TILES_TO_BLOCK),
        _ => 1,
    }
}

/// The columns of a wide tile of this height, and the addresses of the microkernels, see [`ColumnTiling`].
fn microkernels(
    f: &mut FuncCtx,
    facts: &Facts,
    plan: &Plan,
    (height, even): (usize, bool),
    masked: bool,
    part: ReductionPart,
) -> Result<Vec<Value>> {
    let n = &plan.contraction.n.extent;
    let mut wide = wide_vectors(plan.shape, height, plan.product());
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
                    let microkernel = f.unit.microkernel(plan.key(rows, vectors, tail, part))?;
                    function_address(f, microkernel)
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

/// Whether there are always, or never, as many tiles of rows as make cutting a deep reduction worth it.
pub(super) fn proves_many_tiles(facts: &Facts, plan: &Plan) -> Option<bool> {
    let rows = plan.contraction.rows();
    let limit = Dim::from(((MIN_TILES_TO_BLOCK - 1) * plan.max_tile_rows) as i64);
    if facts.prove_lt(&limit, &rows).is_yes() {
        return Some(true);
    }
    facts.prove_le(&rows, &limit).is_yes().then_some(false)
}

/// 1 where there are so many, else 0.
pub(super) fn has_many_tiles(f: &mut FuncCtx, plan: &Plan, rows: &Rows) -> Result<Value> {
    let (_, outer) = plan.contraction.m.split_last().expect("checked in plan");
    let outer = f.dim(&product(outer))?;
    let tiles = f.builder.ins().imul(rows.tiles, outer);
    let many = f.builder.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, tiles, MIN_TILES_TO_BLOCK as i64);
    Ok(f.builder.ins().uextend(types::I64, many))
}
