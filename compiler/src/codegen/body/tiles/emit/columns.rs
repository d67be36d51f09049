//! The division of columns into tiles at run time, and the selection of the microkernels for them.

use super::rows::RowTiles;
use crate::{
    codegen::{
        body::{
            split::IterationRange,
            tiles::plan::{AmxChoice, HeightTiling, MicrokernelVariant, N_WIDTHS, SMALL_AMX_ROWS, TilePlan},
        },
        function::FuncCtx,
        microkernel::contraction::{PANEL, ReductionPart},
    },
    error::{Error, Result},
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, condcodes::IntCC, types};

/// Addresses of the microkernels: high and low of wide tiles, of one panel, and of the rest. On tile registers where
/// rows are in pairs, the second of each two computes a pair. Zero where no tile has that form.
pub(super) type Microkernels = [Value; 6];

/// The first of [`Microkernels`] for the rest.
const REST: usize = 4;

/// The column tiles, and the microkernels that compute them. All values are known at run time only.
pub(super) struct ColumnTiles {
    /// Columns of a wide tile.
    pub(super) wide: Value,
    /// Number of wide tiles.
    pub(super) n_wide: Value,
    /// Number of tiles that are not masked.
    pub(super) n_whole: Value,
    /// Number of tiles.
    pub(super) n_tiles: Value,
    pub(super) microkernels: Microkernels,
}

/// The columns of a wide tile, the microkernels, and the joint tile of a plan that has one.
struct Selection {
    wide: Value,
    microkernels: Microkernels,
    joint: Option<JointTile>,
}

/// The tile that computes the rest of the columns at once.
struct JointTile {
    /// It computes more columns than this.
    above: Value,
    /// The most columns that it computes.
    most: Value,
    /// The microkernels for high and low tiles.
    microkernels: [Value; 2],
}

impl ColumnTiles {
    /// Emits the division of columns `first..end`, and the selection of microkernels by the height of the row tiles.
    pub(super) fn emit(
        f: &mut FuncCtx,
        plan: &TilePlan,
        rows: &RowTiles,
        IterationRange { begin: first, end }: IterationRange,
        part: ReductionPart,
    ) -> Result<ColumnTiles> {
        let columns = f.ins().isub(end, first);
        let Selection { wide, mut microkernels, joint } = if plan.dot().is_amx() {
            select_amx(f, plan, rows)?
        } else {
            select_by_height(f, plan, rows, part)?
        };

        let panel_bits = i64::from(PANEL.trailing_zeros());
        let n_wide = f.ins().udiv(columns, wide);
        let used = f.ins().imul(n_wide, wide);
        let rest = f.ins().isub(columns, used);
        let n_panels = f.ins().ushr_imm_u(rest, panel_bits);
        let n_whole = f.ins().iadd(n_wide, n_panels);
        let padded = f.ins().iadd_imm_s(rest, PANEL as i64 - 1);
        let n_narrow = f.ins().ushr_imm_u(padded, panel_bits);
        let n_tiles = f.ins().iadd(n_wide, n_narrow);
        let Some(joint) = joint else {
            return Ok(ColumnTiles { wide, n_wide, n_whole, n_tiles, microkernels });
        };

        let is_above = f.ins().icmp(IntCC::SignedGreaterThan, rest, joint.above);
        let is_within = f.ins().icmp(IntCC::SignedLessThanOrEqual, rest, joint.most);
        let is_joint = f.ins().band(is_above, is_within);
        let n_whole = f.ins().select(is_joint, n_wide, n_whole);
        let n_joint = f.ins().iadd_imm_s(n_wide, 1);
        let n_tiles = f.ins().select(is_joint, n_joint, n_tiles);
        for (rest, joint) in microkernels[REST..].iter_mut().zip(joint.microkernels) {
            *rest = f.ins().select(is_joint, joint, *rest);
        }
        Ok(ColumnTiles { wide, n_wide, n_whole, n_tiles, microkernels })
    }
}

/// Selects the microkernels for tile registers. They accept any number of rows up to that of one register, or of two.
fn select_amx(f: &mut FuncCtx, plan: &TilePlan, rows: &RowTiles) -> Result<Selection> {
    let tiling = plan.amx_tiling();
    let low_rows = f.ins().iadd_imm_s(rows.rows, -1);
    let [high_is_small, low_is_small] = [rows.rows, low_rows]
        .map(|rows| f.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, rows, SMALL_AMX_ROWS as i64));

    let mut microkernels = Vec::new();
    for choice in tiling.choices {
        let [high, low] = match choice {
            AmxChoice::None => [f.int(0); 2],
            AmxChoice::Same(variant) => [address(f, plan, variant, ReductionPart::Whole)?; 2],
            AmxChoice::Pair { alone, pair } => [
                address(f, plan, alone, ReductionPart::Whole)?,
                address(f, plan, pair, ReductionPart::Whole)?,
            ],
            AmxChoice::ByHeight { small, large, low } => {
                let small = address(f, plan, small, ReductionPart::Whole)?;
                let large = address(f, plan, large, ReductionPart::Whole)?;
                let low = address(f, plan, low, ReductionPart::Whole)?;
                let low = f.ins().select(low_is_small, low, large);
                [f.ins().select(high_is_small, small, large), f.ins().select(high_is_small, small, low)]
            }
        };
        microkernels.extend([high, low]);
    }

    let [small, large] = tiling.wide_columns.map(|columns| f.int(columns as i64));
    let wide = if tiling.is_small { small } else { f.ins().select(high_is_small, small, large) };
    let microkernels = microkernels.try_into().map_err(|_| Error::internal("six microkernels"))?;
    Ok(Selection { wide, microkernels, joint: None })
}

/// Selects the microkernels for vector registers: there is one for each height of row tiles.
fn select_by_height(
    f: &mut FuncCtx,
    plan: &TilePlan,
    rows: &RowTiles,
    part: ReductionPart,
) -> Result<Selection> {
    let tilings = plan.height_tilings(part);
    let last = tilings.len() - 1;
    let has_joint = tilings.iter().any(|tiling| tiling.joint_columns.1 > 0);
    let selected = f.create_block();
    let n_values = if has_joint { 3 + 2 * N_WIDTHS } else { 1 + 2 * (N_WIDTHS - 1) };
    let params: Vec<Value> =
        (0..n_values).map(|_| f.builder.append_block_param(selected, types::I64)).collect();

    // The last height needs no comparison.
    for (idx, tiling) in tilings.into_iter().enumerate() {
        let next = (idx < last).then(|| f.create_block());
        if let Some(next) = next {
            let this = f.create_block();
            let is_height = f.ins().icmp_imm_s(IntCC::Equal, rows.rows, tiling.height as i64);
            f.ins().brif(is_height, this, &[], next, &[]);
            f.switch_to_block(this);
            f.builder.seal_block(this);
        }

        let values = height_values(f, plan, &tiling, part)?;
        let args: Vec<BlockArg> = values.into_iter().take(n_values).map(BlockArg::Value).collect();
        f.ins().jump(selected, &args);

        if let Some(next) = next {
            f.switch_to_block(next);
            f.builder.seal_block(next);
        }
    }

    f.switch_to_block(selected);
    f.builder.seal_block(selected);
    let microkernels = params[1..=6].try_into().map_err(|_| Error::internal("six microkernels"))?;
    let joint = match params[7..] {
        [high, low, above, most] => Some(JointTile { above, most, microkernels: [high, low] }),
        _ => None,
    };
    Ok(Selection { wide: params[0], microkernels, joint })
}

/// The columns of a wide tile, the addresses of the microkernels, and the columns of the joint tile, at one height.
fn height_values(
    f: &mut FuncCtx,
    plan: &TilePlan,
    tiling: &HeightTiling,
    part: ReductionPart,
) -> Result<Vec<Value>> {
    let mut values = vec![f.int(tiling.wide_columns as i64)];
    for variant in tiling.variants {
        values.push(match variant {
            Some(variant) => address(f, plan, variant, part)?,
            None => f.int(0),
        });
    }
    let (above, most) = tiling.joint_columns;
    values.extend([f.int(above as i64), f.int(most as i64)]);
    Ok(values)
}

/// The address of a microkernel.
fn address(
    f: &mut FuncCtx,
    plan: &TilePlan,
    variant: MicrokernelVariant,
    part: ReductionPart,
) -> Result<Value> {
    let key = plan.microkernel(variant, part);
    let function = if variant.narrow { f.unit.narrow_microkernel(key)? } else { f.unit.microkernel(key)? };
    Ok(f.function_address(function))
}
