//! Products of a rounded left-hand side with weights of few bits as tiles: vectors multiply integers of 16 bits.
//!
//! ```text
//! for each pair of rows
//!     round their blocks to integers, in pairs that one multiplication reads
//!     for each panel of 16 columns: eight sums
//!         for each block: dot products of integers; their sums times the scales of both operands
//!         the epilogue of each sum
//! ```
//!
//! A 32-bit word of a column has `32 / bits` codes. Shifted and masked, it has two of them, as integers of 16 bits.
//! They are higher than the weights by half of their range, which the sum of the row's integers corrects.
//! [`crate::scalar::activations`] defines the rounding.

use super::{
    few_bits_tiles::scale_vector,
    kernel_printer::{ColumnNames, KernelPrinter},
    names,
    tiles::{LANES, TileNames, VECTORS},
};
use crate::{
    error::Result,
    kernel::{Axis, Contraction, FewBitsPanels, Rhs, few_bits::WIDTH},
};
use symshape_runtime::DType;

/// Reduction indices whose integers stay on the stack. The stack has space for those of two rows.
const MAX_DEPTH: i64 = 16_384;

/// A contraction whose left-hand side is rounded.
pub(super) struct RoundedTiles<'k> {
    contraction: &'k Contraction,
    row: &'k Axis,
    panels: &'k FewBitsPanels,
    depth: i64,
    panel_bytes: i64,
}

/// The C names of the rounded rows of a tile.
struct RowNames {
    /// Pairs of integers.
    pairs: String,
    /// The scale of each block.
    scales: String,
    /// The sum of the integers of each block.
    totals: String,
}

impl<'k> RoundedTiles<'k> {
    /// The contraction as tiles; `None` if its left-hand side is not rounded, or has too many elements in a row.
    pub(super) fn of(contraction: &'k Contraction) -> Option<RoundedTiles<'k>> {
        let Rhs::FewBits(panels) = &contraction.rhs else { return None };
        let row = contraction.m.last()?;
        let depth = contraction.depth().as_i64()?;
        let is_supported = panels.form.rounds_lhs
            && contraction.dtype == DType::F32
            && depth <= MAX_DEPTH
            && !panels.base.contains(&row.var)
            && !contraction.lhs.index.contains(&contraction.n.var);
        let panel_bytes = panels.panel_bytes(contraction)?;
        is_supported.then_some(RoundedTiles { contraction, row, panels, depth, panel_bytes })
    }

    fn block(&self) -> i64 {
        i64::from(self.panels.form.block).min(self.depth).max(1)
    }

    fn n_blocks(&self) -> i64 {
        (self.depth + self.block() - 1) / self.block()
    }

    /// Words of a column in a block of `depth` reduction indices.
    fn words(&self, depth: i64) -> i64 {
        (depth + self.panels.form.group() - 1) / self.panels.form.group()
    }

    /// Pairs of integers in a word.
    fn pairs_of_word(&self) -> i64 {
        self.panels.form.group() / 2
    }

    /// Pairs of integers of a row. The words of a shorter block at the end are counted as those of a whole one.
    fn pairs_of_row(&self) -> i64 {
        self.n_blocks() * self.words(self.block()) * self.pairs_of_word()
    }
}

impl KernelPrinter<'_> {
    /// Prints the loops over the tiles of one block of rows.
    pub(super) fn rounded_tiles(&mut self, tiles: &RoundedTiles<'_>) -> Result<()> {
        let contraction = tiles.contraction;
        let columns = ColumnNames { first: self.fresh('n'), end: self.fresh('n'), sums: self.fresh('s') };
        let names = TileNames { columns, row: self.fresh('m'), panel: self.fresh('p') };
        let own = RowNames { pairs: self.fresh('q'), scales: self.fresh('x'), totals: self.fresh('s') };
        let ColumnNames { first, end, .. } = &names.columns;

        let outside = self.facts.clone();
        self.facts.declare_index(&contraction.n.var, &contraction.n.extent);
        self.facts.declare_index(&tiles.row.var, &tiles.row.extent);
        let extent = self.dim(&contraction.n.extent)?;
        let buffer = names::buffer(self.program, tiles.panels.buffer);
        let base = self.dim(&tiles.panels.base)?;
        self.row_loops(tiles.row, &names.row, &mut |this, rows| {
            for idx in 0..rows {
                this.round_row(tiles, &names, &own, idx)?;
            }
            this.open(&format!("for (int64_t {first} = 0; {first} < {extent}; {first} += {WIDTH}) {{"));
            this.line(&format!("const int64_t {end} = min_i64({first} + {WIDTH}, {extent});"));
            this.line(&format!(
                "const uint8_t *{} = {buffer} + ({base}) + {first} / {WIDTH} * {};",
                names.panel, tiles.panel_bytes
            ));
            this.zero_vectors(&names.columns.sums, rows);
            this.multiply_rounded_tile(tiles, &names, &own, rows);
            this.finish_tile(contraction, tiles.row, &names, rows)?;
            this.close("}");
            Ok(())
        })?;
        self.facts = outside;
        Ok(())
    }

    /// Prints the rounding of row `idx` of a tile.
    fn round_row(
        &mut self,
        tiles: &RoundedTiles<'_>,
        names: &TileNames,
        own: &RowNames,
        idx: u32,
    ) -> Result<()> {
        let contraction = tiles.contraction;
        let (block, depth) = (tiles.block(), tiles.depth);
        let [pairs, scales, totals] =
            [&own.pairs, &own.scales, &own.totals].map(|name| format!("{name}_{idx}"));
        let integers = self.fresh('q');
        let row = self.symbol(tiles.row)?;
        self.line(&format!("int32_t {pairs}[{}];", tiles.pairs_of_row().max(1)));
        self.line(&format!("float {scales}[{}];", tiles.n_blocks().max(1)));
        self.line(&format!("int32_t {totals}[{}];", tiles.n_blocks().max(1)));
        self.open("{");
        self.line(&format!("const int64_t {row} = {} + {idx};", names.row));
        self.line(&format!("(void){row};"));
        self.line(&format!("int32_t *{integers} = {pairs};"));

        let [from, until, largest, total] = ['k', 'k', 'x', 's'].map(|letter| self.fresh(letter));
        self.open(&format!("for (int64_t {from} = 0; {from} < {depth}; {from} += {block}) {{"));
        self.line(&format!("const int64_t {until} = min_i64({from} + {block}, {depth});"));
        let inverse = self.largest_magnitude(contraction, &from, &until, &largest)?;
        self.line(&format!("{scales}[{from} / {block}] = block_scale({largest});"));

        let codes = self.fresh('q');
        let padded = tiles.words(block) * tiles.panels.form.group();
        self.line(&format!("int16_t {codes}[{padded}] = {{0}};"));
        self.line(&format!("int32_t {total} = 0;"));
        let name = self.fresh('a');
        let joint = self.fresh('k');
        self.line(&format!("int64_t {joint} = 0;"));
        self.over_indices(contraction, &from, &until, &mut |this| {
            this.load_lhs(contraction, &name)?;
            this.line(&format!("{codes}[{joint}] = (int16_t)rounded_code({name}, {inverse});"));
            this.line(&format!("{total} += {codes}[{joint}++];"));
            Ok(())
        })?;
        self.line(&format!("{totals}[{from} / {block}] = {total};"));

        let (word, pair) = (self.fresh('k'), self.fresh('k'));
        let (group, half) = (tiles.panels.form.group(), tiles.pairs_of_word());
        self.open(&format!("for (int64_t {word} = 0; {word} < {until} - {from}; {word} += {group}) {{"));
        self.open(&format!("for (int64_t {pair} = {word}; {pair} < {word} + {half}; {pair}++) {{"));
        self.line(&format!("*{integers}++ = pair_of_i16({codes}[{pair}], {codes}[{pair} + {half}]);"));
        self.close("}");
        self.close("}");
        self.close("}");
        self.close("}");
        Ok(())
    }

    /// Prints the sums of a tile of `rows` rows.
    fn multiply_rounded_tile(
        &mut self,
        tiles: &RoundedTiles<'_>,
        names: &TileNames,
        own: &RowNames,
        rows: u32,
    ) {
        let form = &tiles.panels.form;
        let (block, depth) = (tiles.block(), tiles.depth);
        let panel = &names.panel;
        let dots = self.fresh('s');
        let [number, pair, codes, words] = ['k', 'k', 'p', 'k'].map(|letter| self.fresh(letter));

        self.line(&format!("int64_t {pair} = 0;"));
        self.open(&format!("for (int64_t {number} = 0; {number} < {}; {number}++) {{", tiles.n_blocks()));
        for idx in 0..rows {
            let zeros: Vec<String> =
                (0..VECTORS).map(|vector| format!("{dots}_{idx}_{vector} = i32x4_splat(0)")).collect();
            self.line(&format!("i32x4 {};", zeros.join(", ")));
        }
        self.line(&format!("const uint8_t *{codes} = {panel} + {};", form.header_bytes()));
        let group = form.group();
        let count = if depth % block == 0 {
            tiles.words(block).to_string()
        } else {
            format!("(min_i64({block}, {depth} - {number} * {block}) + {}) / {group}", group - 1)
        };
        let word = self.fresh('k');
        self.line(&format!("const int64_t {words} = {count};"));
        self.open(&format!("for (int64_t {word} = 0; {word} < {words}; {word}++) {{"));
        self.rounded_word(tiles, own, &dots, rows, &RoundedPlace { codes: &codes, pair: &pair });
        self.line(&format!("{codes} += {};", form.group_bytes()));
        self.line(&format!("{pair} += {};", tiles.pairs_of_word()));
        self.close("}");
        self.scale_dots(tiles, names, own, &dots, rows, &number);
        self.line(&format!("{panel} = {codes};"));
        self.close("}");
    }

    /// Prints the products of the codes of one word in each column.
    fn rounded_word(
        &mut self,
        tiles: &RoundedTiles<'_>,
        own: &RowNames,
        dots: &str,
        rows: u32,
        place: &RoundedPlace<'_>,
    ) {
        let bits = tiles.panels.form.bits;
        let words = self.fresh('w');
        // Codes of 8 bits are stored with a sign.
        let flipped = if bits == 8 { " ^ 0x80808080u" } else { "" };
        for vector in 0..VECTORS {
            let bytes = 16 * vector;
            self.line(&format!(
                "const u32x4 {words}_{vector} = u32x4_load({} + {bytes}){flipped};",
                place.codes
            ));
        }
        let mask = ((1u32 << bits) - 1) * 0x0001_0001;
        let element = self.fresh('x');
        for pair in 0..tiles.pairs_of_word() {
            for idx in 0..rows {
                let pairs = &own.pairs;
                self.line(&format!(
                    "const i32x4 {element}_{idx}_{pair} = i32x4_splat({pairs}_{idx}[{} + {pair}]);",
                    place.pair
                ));
            }
            let shift = pair * i64::from(bits);
            for vector in 0..VECTORS {
                let codes = format!("({words}_{vector} >> {shift}) & {mask:#x}u");
                for idx in 0..rows {
                    let sum = format!("{dots}_{idx}_{vector}");
                    self.line(&format!("{sum} = i32x4_add_dot({sum}, {element}_{idx}_{pair}, {codes});"));
                }
            }
        }
    }

    /// Adds the dot products of a block, times the scales of both operands, to the sums.
    fn scale_dots(
        &mut self,
        tiles: &RoundedTiles<'_>,
        names: &TileNames,
        own: &RowNames,
        dots: &str,
        rows: u32,
        number: &str,
    ) {
        let form = &tiles.panels.form;
        let panel = &names.panel;
        let half = 1 << (form.bits - 1);
        let scale = scale_vector(form.scale);
        for vector in 0..VECTORS {
            let lane = i64::from(vector * LANES);
            let [scales, offsets] = ['w', 'z'].map(|letter| self.fresh(letter));
            let at = lane * form.scale.size_bytes() as i64;
            self.line(&format!("const f32x4 {scales} = {scale}({panel} + {at});"));
            let offset = if form.has_zeros {
                format!("i32x4_splat({half}) + i32x4_from_i8({panel} + {})", form.scale_bytes() + lane)
            } else {
                format!("i32x4_splat({half})")
            };
            self.line(&format!("const i32x4 {offsets} = {offset};"));
            for idx in 0..rows {
                let dots = format!("{dots}_{idx}_{vector}");
                let total = format!("i32x4_splat({}_{idx}[{number}])", own.totals);
                let factor = format!("f32x4_splat({}_{idx}[{number}]) * {scales}", own.scales);
                let sum = format!("{}_{idx}_{vector}", names.columns.sums);
                self.line(&format!(
                    "{sum} = f32x4_add_product({sum}, f32x4_from_i32({dots} - {offsets} * {total}), {factor});"
                ));
            }
        }
    }
}

/// The C names of the next word: its codes, and the first of its pairs.
struct RoundedPlace<'n> {
    codes: &'n str,
    pair: &'n str,
}
