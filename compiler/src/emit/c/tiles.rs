//! Contractions of `f32` as tiles: two rows and sixteen columns whose sums are vectors.
//!
//! ```text
//! for each panel of columns
//!     for each pair of rows: eight sums, in registers
//!         for each k: multiply two elements of the left-hand side with four vectors of the panel
//!         the epilogue of each sum
//! ```
//!
//! The columns are outermost, so a panel stays in the first-level cache. If all panels fit into it, the rows are.

use super::{
    code::RegisterText,
    kernel_printer::{ColumnNames, KernelPrinter},
    names, scalars,
};
use crate::{
    error::Result,
    kernel::{Access, Axis, BufferId, Contraction, Rhs, lanes::builder::linear_steps},
};
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Columns of a tile: four vectors.
const COLUMNS: u32 = 16;

/// Rows of a tile.
const ROWS: u32 = 2;

/// Floats of a vector.
pub(super) const LANES: u32 = 4;

/// Vectors of a row of a tile.
pub(super) const VECTORS: u32 = COLUMNS / LANES;

/// Floats of all panels that stay in the first-level cache next to the rows.
const MAX_CACHED_FLOATS: i64 = 4096;

/// A contraction whose operands are addressed by pointers that move by constant steps.
pub(super) struct Tiles<'k> {
    contraction: &'k Contraction,
    /// The row axis that tiles are cut along.
    row: &'k Axis,
    lhs: Operand,
    rhs: Operand,
    /// Whether the memory of the right-hand side is readable beyond the last column, up to a whole tile.
    is_padded: bool,
}

/// An operand: the index of the first element of a row or of a tile's columns, and the offset of the element at `k`.
pub(super) struct Operand {
    pub(super) buffer: BufferId,
    pub(super) origin: Dim,
    pub(super) offset: Dim,
}

impl Operand {
    /// The operand of an access whose index is linear in the axes `k`.
    pub(super) fn along_k(facts: &Facts, access: &Access, k: &[Axis]) -> Option<Operand> {
        let (steps, origin) = linear_steps(facts, &access.index, k)?;
        let axes = k.iter().zip(steps);
        let offset = axes.fold(Dim::zero(), |sum, (axis, step)| sum + Dim::from(&axis.var) * step);
        Some(Operand { buffer: access.buffer, origin, offset })
    }
}

impl<'k> Tiles<'k> {
    /// The contraction as tiles; `None` if its operands are not dense vectors of `f32`.
    pub(super) fn of(printer: &KernelPrinter<'_>, contraction: &'k Contraction) -> Option<Tiles<'k>> {
        let dtype = |buffer| printer.program.buffers[buffer].dtype;
        if contraction.dtype != DType::F32 {
            return None;
        }

        let facts = contraction.facts_inside(&printer.facts);
        let lhs = Operand::along_k(&facts, &contraction.lhs, &contraction.k)?;
        if lhs.origin.contains(&contraction.n.var) {
            return None;
        }

        let row = contraction.m.last()?;
        let (rhs, is_padded) = match &contraction.rhs {
            Rhs::Panels { buffer, base, width: COLUMNS }
                if dtype(*buffer) == DType::F32 && !base.contains(&row.var) =>
            {
                // The index of the k-th row of a panel, in row-major order.
                let k = contraction.k.iter();
                let k = k.fold(Dim::zero(), |k, axis| k * &axis.extent + Dim::from(&axis.var));
                let origin = base + Dim::from(&contraction.n.var) * contraction.depth();
                (Operand { buffer: *buffer, origin, offset: k * Dim::from(i64::from(COLUMNS)) }, true)
            }
            Rhs::Indexed(access) if dtype(access.buffer) == DType::F32 => {
                let (step, _) = facts.linear_in(&access.index, &contraction.n.var)?;
                if step.as_i64() != Some(1) || access.index.contains(&row.var) {
                    return None;
                }
                (Operand::along_k(&facts, access, &contraction.k)?, false)
            }
            _ => return None,
        };
        Some(Tiles { contraction, row, lhs, rhs, is_padded })
    }
}

impl Tiles<'_> {
    /// Whether the number of columns is a multiple of that of a tile.
    fn has_whole_tiles(&self) -> bool {
        self.contraction.n.extent.as_i64().is_some_and(|extent| extent % i64::from(COLUMNS) == 0)
    }

    /// Whether all panels stay in the first-level cache.
    fn are_cached(&self) -> bool {
        let floats = self.contraction.depth() * &self.contraction.n.extent;
        floats.as_i64().is_some_and(|floats| floats <= MAX_CACHED_FLOATS)
    }
}

/// The C names of a tile.
pub(super) struct TileNames {
    pub(super) columns: ColumnNames,
    /// The first row.
    pub(super) row: String,
    /// The pointer to the columns at `k = 0`.
    pub(super) panel: String,
}

impl KernelPrinter<'_> {
    /// Prints the loops over the tiles of one block of rows.
    pub(super) fn tiles(&mut self, tiles: &Tiles<'_>) -> Result<()> {
        let contraction = tiles.contraction;
        let columns = ColumnNames { first: self.fresh('n'), end: self.fresh('n'), sums: self.fresh('s') };
        let names = TileNames { columns, row: self.fresh('m'), panel: self.fresh('p') };

        let outside = self.facts.clone();
        self.facts.declare_index(&contraction.n.var, &contraction.n.extent);
        self.facts.declare_index(&tiles.row.var, &tiles.row.extent);
        if tiles.are_cached() {
            self.row_loops(tiles.row, &names.row, &mut |this, rows| {
                this.column_loop(tiles, &names, &mut |this| this.tile(tiles, &names, rows))
            })?;
        } else {
            self.column_loop(tiles, &names, &mut |this| {
                this.row_loops(tiles.row, &names.row, &mut |this, rows| this.tile(tiles, &names, rows))
            })?;
        }
        self.facts = outside;

        // Memory beyond the last columns is not readable.
        if !tiles.is_padded && !tiles.has_whole_tiles() {
            let extent = self.dim(&contraction.n.extent)?;
            let begin = format!("({extent})/{COLUMNS}*{COLUMNS}");
            self.loop_over(tiles.row, |this| this.row(contraction, &begin))?;
        }
        Ok(())
    }

    /// Prints a loop over pairs of rows, and the row that may remain.
    pub(super) fn row_loops(
        &mut self,
        axis: &Axis,
        row: &str,
        body: &mut dyn FnMut(&mut Self, u32) -> Result<()>,
    ) -> Result<()> {
        let extent = self.dim(&axis.extent)?;
        let count = axis.extent.as_i64();
        self.line(&format!("int64_t {row} = 0;"));
        if count != Some(1) {
            self.open(&format!("for (; {row} + {ROWS} <= {extent}; {row} += {ROWS}) {{"));
            body(self, ROWS)?;
            self.close("}");
        }
        if count.is_none_or(|count| count % i64::from(ROWS) != 0) {
            self.open(&format!("if ({row} < {extent}) {{"));
            body(self, 1)?;
            self.close("}");
        }
        Ok(())
    }

    /// Prints a loop over the columns of tiles.
    fn column_loop(
        &mut self,
        tiles: &Tiles<'_>,
        names: &TileNames,
        body: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let ColumnNames { first, end, .. } = &names.columns;
        let extent = self.dim(&tiles.contraction.n.extent)?;
        let next = format!("{first} + {COLUMNS}");
        if tiles.is_padded && !tiles.has_whole_tiles() {
            self.open(&format!("for (int64_t {first} = 0; {first} < {extent}; {first} += {COLUMNS}) {{"));
            self.line(&format!("const int64_t {end} = min_i64({next}, {extent});"));
        } else {
            self.open(&format!("for (int64_t {first} = 0; {next} <= {extent}; {first} += {COLUMNS}) {{"));
            self.line(&format!("const int64_t {end} = {next};"));
        }

        self.pointer(&tiles.rhs, &names.panel, &tiles.contraction.n, first)?;
        body(self)?;
        self.close("}");
        Ok(())
    }

    /// Defines a pointer to the first element of an operand at `var = value`.
    pub(super) fn pointer(&mut self, operand: &Operand, name: &str, axis: &Axis, value: &str) -> Result<()> {
        let memory = names::memory_type(self.program.buffers[operand.buffer].dtype);
        let buffer = names::buffer(self.program, operand.buffer);
        let var = self.symbol(axis)?;
        let origin = self.dim(&operand.origin)?;
        self.line(&format!("const {memory} *{name};"));
        self.line(&format!(
            "{{ const int64_t {var} = {value}; (void){var}; {name} = {buffer} + ({origin}); }}"
        ));
        Ok(())
    }

    /// Prints the sums of a tile of `rows` rows, and their epilogues.
    fn tile(&mut self, tiles: &Tiles<'_>, names: &TileNames, rows: u32) -> Result<()> {
        let lhs = self.fresh('a');
        for idx in 0..rows {
            self.pointer(&tiles.lhs, &format!("{lhs}_{idx}"), tiles.row, &format!("{} + {idx}", names.row))?;
        }
        self.zero_vectors(&names.columns.sums, rows);
        self.multiply_tile(tiles, names, &lhs, rows)?;
        self.finish_tile(tiles.contraction, tiles.row, names, rows)
    }

    /// Defines the vectors of a tile, all zeros.
    pub(super) fn zero_vectors(&mut self, name: &str, rows: u32) {
        for idx in 0..rows {
            let zeros: Vec<String> =
                (0..VECTORS).map(|vector| format!("{name}_{idx}_{vector} = f32x4_splat(0.0f)")).collect();
            self.line(&format!("f32x4 {};", zeros.join(", ")));
        }
    }

    /// Prints the epilogue of each sum of a tile.
    pub(super) fn finish_tile(
        &mut self,
        contraction: &Contraction,
        row_axis: &Axis,
        names: &TileNames,
        rows: u32,
    ) -> Result<()> {
        let ColumnNames { first, end, sums } = &names.columns;
        let row = &names.row;
        self.line(&format!("float {sums}[{rows}][{COLUMNS}];"));
        for idx in 0..rows {
            for vector in 0..VECTORS {
                let at = vector * LANES;
                self.line(&format!("f32x4_store(&{sums}[{idx}][{at}], {sums}_{idx}_{vector});"));
            }
        }
        let at = self.symbol(row_axis)?;
        let n = self.symbol(&contraction.n)?;
        self.open(&format!("for (int64_t {at} = {row}; {at} < {row} + {rows}; {at}++) {{"));
        self.open(&format!("for (int64_t {n} = {first}; {n} < {end}; {n}++) {{"));
        let sum = RegisterText::name(format!("{sums}[{at} - {row}][{n} - {first}]"), contraction.dtype);
        self.code(&contraction.epilogue, Some(sum), &[])?;
        self.close("}");
        self.close("}");
        Ok(())
    }

    /// Prints the loops that add products to the sums of a tile.
    fn multiply_tile(&mut self, tiles: &Tiles<'_>, names: &TileNames, lhs: &str, rows: u32) -> Result<()> {
        let contraction = tiles.contraction;
        let sums = &names.columns.sums;
        let panel = &names.panel;
        let weights = self.fresh('w');
        let element = self.fresh('x');
        let from = self.program.buffers[tiles.lhs.buffer].dtype;
        self.nested_loops(&contraction.k, &mut |this| {
            let offset = this.dim(&tiles.rhs.offset)?;
            for vector in 0..VECTORS {
                let at = vector * LANES;
                this.line(&format!(
                    "const f32x4 {weights}_{vector} = f32x4_load({panel} + ({offset}) + {at});"
                ));
            }
            let offset = this.dim(&tiles.lhs.offset)?;
            for idx in 0..rows {
                let value = scalars::loaded(from, contraction.dtype, &format!("{lhs}_{idx}[{offset}]"));
                this.line(&format!("const f32x4 {element}_{idx} = f32x4_splat({value});"));
                for vector in 0..VECTORS {
                    let sum = format!("{sums}_{idx}_{vector}");
                    let weights = format!("{weights}_{vector}");
                    this.line(&format!("{sum} = f32x4_add_product({sum}, {element}_{idx}, {weights});"));
                }
            }
            Ok(())
        })
    }
}
