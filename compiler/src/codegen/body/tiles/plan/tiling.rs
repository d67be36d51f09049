//! The microkernels that run the tiles of a contraction, by the height of row tiles and by the width of column tiles.
//!
//! Columns are divided into wide tiles as long as they last. The rest is one joint tile of several panels where the
//! plan has one of that width, else tiles of one panel and a masked rest. Rows are divided into high tiles and low ones
//! with one row less.

use super::{
    division::column_step,
    keys::MicrokernelVariant,
    tile_plan::{RowCount, TilePlan},
};
use crate::codegen::microkernel::contraction::{
    AMX_ROWS, DotOp, PANEL, ReductionPart, Rhs, amx_columns, narrow_vectors, wide_few_bits_vectors,
    wide_vectors,
};
use crate::kernel::few_bits::MAX_UNPACKED_COLUMNS;
use num_traits::ToPrimitive;
use symshape::Dim;

/// Number of row tiles from which on a deep reduction is divided: with fewer, the rhs is hardly read twice.
const TILES_TO_BLOCK: usize = 4;

/// The microkernels for vector registers at one height of row tiles.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct HeightTiling {
    /// Rows of a high tile.
    pub(crate) height: usize,
    /// Columns of a wide tile.
    pub(crate) wide_columns: usize,
    /// The columns that a joint tile computes: more than the first number, and at most the second. Both are zero where
    /// there is no joint tile.
    pub(crate) joint_columns: (usize, usize),
    /// High and low variant for each width: a wide tile, a panel, a rest of a panel, and a joint tile. `None` where no
    /// tile has that form.
    pub(crate) variants: [Option<MicrokernelVariant>; 2 * N_WIDTHS],
}

/// The widths of tiles on vector registers.
pub(crate) const N_WIDTHS: usize = 4;

/// The tile that computes the rest of the columns after wide tiles at once.
struct JointTile {
    vectors: usize,
    tail: bool,
    /// More columns than this.
    above: usize,
}

/// The microkernels for tile registers. They accept any number of rows up to that of one register, or of two.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct AmxTiling {
    /// Columns of a wide tile where high tiles fit one register, and where they need two.
    pub(crate) wide_columns: [usize; 2],
    /// All rows fit one register, whatever the values of the symbols.
    pub(crate) is_small: bool,
    /// The microkernels for each of the three widths.
    pub(crate) choices: [AmxChoice; 3],
}

/// The microkernels for one width on tile registers.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum AmxChoice {
    /// No tile has this width.
    None,
    /// One for high and low tiles.
    Same(MicrokernelVariant),
    /// One for an iteration of the outer row axes alone, and one for a pair.
    Pair { alone: MicrokernelVariant, pair: MicrokernelVariant },
    /// By the height at run time.
    ByHeight {
        /// For high tiles of at most one register, and their low ones.
        small: MicrokernelVariant,
        /// For tiles of two registers.
        large: MicrokernelVariant,
        /// For low tiles that fit one register next to high ones that don't: as wide as these.
        low: MicrokernelVariant,
    },
}

/// Rows of the largest tile that fits one register.
pub(crate) const SMALL_AMX_ROWS: usize = AMX_ROWS / 2;

impl TilePlan<'_> {
    /// Largest value of an extent, if it has an upper bound that fits.
    fn upper_bound(&self, dim: &Dim) -> Option<i64> {
        self.facts.bounds(dim).hi?.to_i64()
    }

    /// Whether a rest of the columns may be less than a panel.
    fn has_tail(&self) -> bool {
        !self.facts.divides(&Dim::from(PANEL), &self.contraction.n.extent).is_yes()
    }

    /// The widest tile of at most `columns` columns that there are enough columns for, but at least `min` wide. A
    /// wider one would never be called.
    fn useful_columns(&self, mut columns: usize, min: usize) -> usize {
        let n = &self.contraction.n.extent;
        while columns > min && self.upper_bound(n).is_some_and(|n| n < columns as i64) {
            columns /= 2;
        }
        columns
    }

    /// The tilings for vector registers, for every height of row tiles that is possible in a part of the reduction.
    pub(crate) fn height_tilings(&self, part: ReductionPart) -> Vec<HeightTiling> {
        let max_rows = self.max_tile_rows;
        let rows = self.last_rows();

        let constant_rows = rows.as_i64().map(|rows| rows as usize);
        let heights: Vec<usize> = match constant_rows {
            Some(rows) => vec![rows.div_ceil(rows.div_ceil(max_rows).max(1)).max(1)],
            None => {
                let min = self.min_height(part);
                let max = self.upper_bound(rows).map_or(max_rows, |hi| max_rows.min(hi.max(1) as usize));
                (min..=max).collect()
            }
        };

        // Only constant rows are known to need no low tiles.
        let has_equal_tiles =
            constant_rows.is_some_and(|rows| rows.is_multiple_of(rows.div_ceil(max_rows).max(1)));
        let has_low_tiles = self.row_count != RowCount::OneTile && !has_equal_tiles;
        heights.into_iter().map(|height| self.height_tiling(height, has_low_tiles)).collect()
    }

    fn height_tiling(&self, height: usize, has_low_tiles: bool) -> HeightTiling {
        let lanes = self.shape.lanes;
        let narrow = narrow_vectors(self.shape);
        let wide = match self.rhs.form {
            Rhs::FewBits(code) => wide_few_bits_vectors(self.shape, height, code),
            Rhs::Panels(_) | Rhs::Rows | Rhs::Scattered => wide_vectors(self.shape, height, self.dot()),
        };
        let columns = wide * lanes;
        let columns =
            if self.rhs.is_unpacked() { columns.min(MAX_UNPACKED_COLUMNS as usize) } else { columns };
        let widest = columns / lanes;
        // A joint tile may be the only one: then there are fewer columns than a wide tile has.
        let only = self.is_narrower_than(columns).then(|| self.joint_tile(widest, narrow)).flatten();
        let wide = if only.is_some() { widest } else { self.useful_columns(columns, narrow * lanes) / lanes };

        let has_tail = self.has_tail();
        let joint = only.or_else(|| self.joint_tile(wide, narrow));
        // Shares of threads begin and end at whole steps, so each rest of their columns is that of all columns.
        let step = column_step(&self.facts, self.contraction) as usize;
        let only_joint = joint.is_some()
            && self.contraction.n.extent.as_i64().is_some()
            && step.is_multiple_of(wide * lanes);

        let variant = |vectors, tail| self.variant(height, vectors, tail);
        let widths: [Option<MicrokernelVariant>; N_WIDTHS] = [
            (!self.is_narrower_than(wide * lanes)).then(|| variant(wide, false)),
            (!only_joint && !self.is_narrower_than(PANEL)).then(|| variant(narrow, false)),
            (has_tail && !only_joint).then(|| self.rest_variant(height)),
            joint.as_ref().map(|joint| variant(joint.vectors, joint.tail)),
        ];
        let mut variants = [None; 2 * N_WIDTHS];
        for (width, high) in widths.into_iter().enumerate() {
            variants[2 * width] = high;
            let low = high.map(|high| MicrokernelVariant { rows: height.saturating_sub(1), ..high });
            variants[2 * width + 1] = low.filter(|low| low.rows > 0 && has_low_tiles);
        }
        let joint_columns = joint.map_or((0, 0), |joint| (joint.above, joint.vectors * lanes));
        HeightTiling { height, wide_columns: wide * lanes, joint_columns, variants }
    }

    /// A tile on vector registers.
    fn variant(&self, rows: usize, vectors: usize, tail: bool) -> MicrokernelVariant {
        MicrokernelVariant { rows, vectors, tail, pair: false, narrow: self.is_narrow }
    }

    /// The tile for the rest after whole panels. A constant rest has no more vectors than it needs, and a short one has
    /// a vector of the narrower ISA.
    fn rest_variant(&self, rows: usize) -> MicrokernelVariant {
        let lanes = self.shape.lanes;
        let narrow = narrow_vectors(self.shape);
        let Some(rest) = self.constant_rest() else {
            let n = &self.contraction.n.extent;
            let is_vector = narrow == 2 && self.facts.divides(&Dim::from(lanes), n).is_yes();
            return if is_vector { self.variant(rows, 1, false) } else { self.variant(rows, narrow, true) };
        };
        match self.narrower.filter(|shape| rest <= shape.lanes) {
            Some(shape) => MicrokernelVariant { narrow: true, ..self.variant(rows, 1, rest < shape.lanes) },
            None => self.variant(rows, rest.div_ceil(lanes), !rest.is_multiple_of(lanes)),
        }
    }

    /// The columns after whole panels, if their number is known and not zero, and tiles may be as narrow as they are.
    fn constant_rest(&self) -> Option<usize> {
        let is_f32 = self.dot() == DotOp::F32 && !self.rhs.form.is_few_bits();
        let columns = self.contraction.n.extent.as_i64().filter(|_| is_f32)?;
        Some(columns as usize % PANEL).filter(|rest| *rest > 0)
    }

    /// Whether the number of columns is known, and less than this one.
    fn is_narrower_than(&self, columns: usize) -> bool {
        self.contraction.n.extent.as_i64().is_some_and(|n| n < columns as i64)
    }

    /// The joint tile for the rest of the columns after tiles of `wide` vectors: exactly as wide as a constant rest, or
    /// a masked wide tile where the rest varies.
    fn joint_tile(&self, wide: usize, narrow: usize) -> Option<JointTile> {
        // Masks of rows in memory take registers in the loop where the ISA has none for masks.
        let has_masks = narrow == 1;
        let is_cheap = match self.rhs.form {
            Rhs::Panels(_) => self.rhs.source.is_none(),
            Rhs::Rows => has_masks,
            Rhs::Scattered | Rhs::FewBits(_) => false,
        };
        if wide <= narrow || !is_cheap || self.dot() != DotOp::F32 {
            return None;
        }
        let lanes = self.shape.lanes;
        let n = &self.contraction.n.extent;
        let Some(n) = n.as_i64() else {
            // Few rows are bound by memory, and their tiles have many vectors.
            let joint = JointTile { vectors: wide, tail: true, above: narrow * lanes };
            return (has_masks && wide == 2 * narrow).then_some(joint);
        };
        let rest = n as usize % (wide * lanes);
        let vectors = rest.div_ceil(lanes);
        let tail = !rest.is_multiple_of(lanes);
        (vectors > narrow).then(|| JointTile { vectors, tail, above: (vectors - 1) * lanes })
    }

    /// Smallest height of row tiles in a part of the reduction.
    fn min_height(&self, part: ReductionPart) -> usize {
        let [_] = &self.contraction.m[..] else { return 1 };
        match (self.row_count, part) {
            (RowCount::MoreThan(rows), _) => {
                // Tiles are lowest where there is just one more of them than fewer rows need.
                let tiles = (rows + 1).div_ceil(self.max_tile_rows);
                let lowest_of_next = (tiles * self.max_tile_rows + 1).div_ceil(tiles + 1);
                (rows + 1).div_ceil(tiles).min(lowest_of_next)
            }
            (RowCount::Any | RowCount::OneTile, ReductionPart::Whole) => 1,
            // There are at least `TILES_TO_BLOCK` tiles.
            _ => ((TILES_TO_BLOCK - 1) * self.max_tile_rows + 1).div_ceil(TILES_TO_BLOCK),
        }
    }

    /// The tiling for tile registers.
    pub(crate) fn amx_tiling(&self) -> AmxTiling {
        let is_small = self.upper_bound(self.last_rows()).is_some_and(|hi| hi <= SMALL_AMX_ROWS as i64);
        let wide_columns = [SMALL_AMX_ROWS, AMX_ROWS].map(|rows| {
            let rows = if self.pairs_rows { AMX_ROWS } else { rows };
            self.useful_columns(amx_columns(rows), PANEL)
        });

        let choices =
            [(wide_columns, false), ([PANEL; 2], false), ([PANEL; 2], true)].map(|(columns, tail)| {
                if tail && !self.has_tail() {
                    return AmxChoice::None;
                }
                self.amx_choice(columns, tail, is_small)
            });

        AmxTiling { wide_columns, is_small, choices }
    }

    /// The microkernels for tiles of `columns[0]` columns where high tiles fit one register and of `columns[1]`
    /// elsewhere.
    fn amx_choice(&self, columns: [usize; 2], tail: bool, is_small: bool) -> AmxChoice {
        let [small_vectors, large_vectors] = columns.map(|columns| columns / self.shape.lanes);
        let variant = |rows, vectors, pair| MicrokernelVariant { rows, vectors, tail, pair, narrow: false };
        if self.line_batch.is_some() {
            return AmxChoice::Same(variant(AMX_ROWS, large_vectors, self.pairs_rows));
        }

        let small = variant(SMALL_AMX_ROWS, small_vectors, false);
        if self.pairs_rows {
            return AmxChoice::Pair { alone: small, pair: variant(AMX_ROWS, small_vectors, true) };
        }
        if is_small {
            return AmxChoice::Same(small);
        }

        let large = variant(AMX_ROWS, large_vectors, false);
        let low = variant(SMALL_AMX_ROWS, large_vectors, false);
        AmxChoice::ByHeight { small, large, low }
    }

    /// Whether there are always, or never, enough row tiles for a deep reduction to be divided; `None` where that
    /// depends on symbols.
    pub(crate) fn is_k_blocked(&self) -> Option<bool> {
        // Unpacked panels should be in a cache when they are read.
        if let RowCount::MoreThan(_) = self.row_count {
            return Some(true);
        }
        let rows = self.contraction.rows();
        let limit = Dim::from(((TILES_TO_BLOCK - 1) * self.max_tile_rows) as i64);
        if self.facts.prove_lt(&limit, &rows).is_yes() {
            return Some(true);
        }
        self.facts.prove_le(&rows, &limit).is_yes().then_some(false)
    }

    /// Number of row tiles from which on the reduction is divided.
    pub(crate) fn tiles_to_block(&self) -> i64 {
        TILES_TO_BLOCK as i64
    }

    /// Whether all rows always, or never, form one tile; `None` where that depends on symbols.
    pub(super) fn is_one_tile(&self) -> Option<bool> {
        let rows = self.contraction.rows();
        let max = Dim::from(self.max_tile_rows as i64);
        if self.facts.prove_lt(&max, &rows).is_yes() {
            return Some(false);
        }
        let has_one_line = self.facts.prove_le(&self.contraction.outer_rows(), &Dim::one()).is_yes();
        (has_one_line && self.facts.prove_le(&rows, &max).is_yes()).then_some(true)
    }
}
