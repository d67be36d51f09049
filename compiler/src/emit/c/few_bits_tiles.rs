//! Contractions with weights of few bits as tiles: the sums of a block of weights are vectors, and each is multiplied
//! by the scales of its columns.
//!
//! ```text
//! for each panel of 16 columns
//!     for each pair of rows: eight sums, in registers
//!         for each block: sums of elements times integers; multiply them by the scales
//!         the epilogue of each sum
//! ```
//!
//! See [`crate::kernel::few_bits`] for the form of the panels.

use super::{
    kernel_printer::{ColumnNames, KernelPrinter},
    names, scalars,
    tiles::{LANES, Operand, TileNames, VECTORS},
};
use crate::{
    error::Result,
    kernel::{Axis, Contraction, FewBitsPanels, Rhs, few_bits::WIDTH},
};
use symshape::Dim;
use symshape_runtime::DType;

/// Numbers of codes of 8 bits that one step of the loop over a block may read in each column.
const BYTE_STEPS: [i64; 3] = [4, 2, 1];

/// A contraction whose right-hand side has few bits and whose left-hand side is addressed by pointers.
pub(super) struct FewBitsTiles<'k> {
    contraction: &'k Contraction,
    row: &'k Axis,
    lhs: Operand,
    /// Elements from one index of the innermost reduction axis to the next.
    lhs_step: Dim,
    panels: &'k FewBitsPanels,
    depth: i64,
    panel_bytes: i64,
    /// Reduction indices that one step of the loop over a block has.
    step: i64,
}

impl<'k> FewBitsTiles<'k> {
    /// The contraction as tiles; `None` if the other operand is rounded, or its elements are in no order that is known
    /// here.
    pub(super) fn of(printer: &KernelPrinter<'_>, contraction: &'k Contraction) -> Option<FewBitsTiles<'k>> {
        let Rhs::FewBits(panels) = &contraction.rhs else { return None };
        let row = contraction.m.last()?;
        if panels.form.rounds_lhs || contraction.dtype != DType::F32 || panels.base.contains(&row.var) {
            return None;
        }

        let depth = contraction.depth().as_i64()?;
        let panel_bytes = panels.panel_bytes(contraction)?;
        let facts = contraction.facts_inside(&printer.facts);
        let lhs = Operand::along_k(&facts, &contraction.lhs, &contraction.k)?;
        let inner = contraction.k.last()?;
        let (lhs_step, _) = facts.linear_in(&lhs.offset, &inner.var)?;
        if lhs.origin.contains(&contraction.n.var) {
            return None;
        }

        // The indices of a step differ in the innermost axis only.
        let extent = inner.extent.as_i64()?;
        let group = panels.form.group();
        let is_whole = |step: i64| extent % step == 0 && i64::from(panels.form.block) % step == 0;
        let fits = |step: &i64| contraction.k.len() == 1 || is_whole(*step);
        let step = if group > 1 { Some(group).filter(fits) } else { BYTE_STEPS.into_iter().find(fits) }?;
        Some(FewBitsTiles { contraction, row, lhs, lhs_step, panels, depth, panel_bytes, step })
    }

    /// Bytes of the codes of one step.
    fn step_bytes(&self) -> i64 {
        self.step / self.panels.form.group() * self.panels.form.group_bytes()
    }
}

/// The C names of the loop over blocks.
struct BlockNames {
    /// The pointer to the codes of the next step.
    codes: String,
    /// The sums of a block, before they are multiplied by the scales.
    dots: String,
    zeros: String,
}

impl KernelPrinter<'_> {
    /// Prints the loops over the tiles of one block of rows.
    pub(super) fn few_bits_tiles(&mut self, tiles: &FewBitsTiles<'_>) -> Result<()> {
        let contraction = tiles.contraction;
        let columns = ColumnNames { first: self.fresh('n'), end: self.fresh('n'), sums: self.fresh('s') };
        let names = TileNames { columns, row: self.fresh('m'), panel: self.fresh('p') };
        let ColumnNames { first, end, .. } = &names.columns;

        let outside = self.facts.clone();
        self.facts.declare_index(&contraction.n.var, &contraction.n.extent);
        self.facts.declare_index(&tiles.row.var, &tiles.row.extent);
        let extent = self.dim(&contraction.n.extent)?;
        self.open(&format!("for (int64_t {first} = 0; {first} < {extent}; {first} += {WIDTH}) {{"));
        self.line(&format!("const int64_t {end} = min_i64({first} + {WIDTH}, {extent});"));
        let buffer = names::buffer(self.program, tiles.panels.buffer);
        let base = self.dim(&tiles.panels.base)?;
        let panel_bytes = tiles.panel_bytes;
        self.line(&format!(
            "const uint8_t *const {} = {buffer} + ({base}) + {first} / {WIDTH} * {panel_bytes};",
            names.panel
        ));
        self.row_loops(tiles.row, &names.row, &mut |this, rows| this.few_bits_tile(tiles, &names, rows))?;
        self.close("}");
        self.facts = outside;
        Ok(())
    }

    /// Prints the sums of a tile of `rows` rows, and their epilogues.
    fn few_bits_tile(&mut self, tiles: &FewBitsTiles<'_>, names: &TileNames, rows: u32) -> Result<()> {
        let lhs = self.fresh('a');
        for idx in 0..rows {
            self.pointer(&tiles.lhs, &format!("{lhs}_{idx}"), tiles.row, &format!("{} + {idx}", names.row))?;
        }
        let sums = &names.columns.sums;
        self.zero_vectors(sums, rows);

        let form = &tiles.panels.form;
        let block = i64::from(form.block).min(tiles.depth);
        let n_blocks = tiles.depth / block;
        if n_blocks > 0 {
            let from = self.fresh('k');
            self.open(&format!(
                "for (int64_t {from} = 0; {from} < {}; {from} += {block}) {{",
                n_blocks * block
            ));
            let start = format!("{} + {from} / {block} * {}", names.panel, form.block_bytes(block));
            self.few_bits_block(tiles, names, &lhs, rows, &Block { start, from, depth: block })?;
            self.close("}");
        }
        if tiles.depth % block > 0 {
            let start = format!("{} + {}", names.panel, n_blocks * form.block_bytes(block));
            let from = (n_blocks * block).to_string();
            self.open("{");
            self.few_bits_block(
                tiles,
                names,
                &lhs,
                rows,
                &Block { start, from, depth: tiles.depth % block },
            )?;
            self.close("}");
        }
        self.finish_tile(tiles.contraction, tiles.row, names, rows)
    }

    /// Prints the sums of one block of weights, times its scales.
    fn few_bits_block(
        &mut self,
        tiles: &FewBitsTiles<'_>,
        names: &TileNames,
        lhs: &str,
        rows: u32,
        block: &Block,
    ) -> Result<()> {
        let form = &tiles.panels.form;
        let start = self.fresh('p');
        let own = BlockNames { codes: self.fresh('p'), dots: self.fresh('s'), zeros: self.fresh('z') };
        self.line(&format!("const uint8_t *const {start} = {};", block.start));
        self.line(&format!("const uint8_t *{} = {start} + {};", own.codes, form.header_bytes()));
        if form.has_zeros {
            for vector in 0..VECTORS {
                let at = form.scale_bytes() + i64::from(vector * LANES);
                self.line(&format!("const f32x4 {}_{vector} = f32x4_from_i8({start} + {at});", own.zeros));
            }
        }
        self.zero_vectors(&own.dots, rows);

        let (step, whole) = (tiles.step, block.depth / tiles.step * tiles.step);
        if whole > 0 {
            let at = self.fresh('k');
            self.open(&format!(
                "for (int64_t {at} = {0}; {at} < {0} + {whole}; {at} += {step}) {{",
                block.from
            ));
            self.few_bits_step(tiles, &own, lhs, rows, &at, step)?;
            self.line(&format!("{} += {};", own.codes, tiles.step_bytes()));
            self.close("}");
        }
        if block.depth > whole {
            self.open("{");
            let at = format!("{} + {whole}", block.from);
            self.few_bits_step(tiles, &own, lhs, rows, &at, block.depth - whole)?;
            self.close("}");
        }

        let scale = scale_vector(form.scale);
        let sums = &names.columns.sums;
        for vector in 0..VECTORS {
            let at = i64::from(vector * LANES) * form.scale.size_bytes() as i64;
            let scales = self.fresh('w');
            self.line(&format!("const f32x4 {scales} = {scale}({start} + {at});"));
            for idx in 0..rows {
                let dots = format!("{}_{idx}_{vector}", own.dots);
                let sum = format!("{sums}_{idx}_{vector}");
                self.line(&format!("{sum} = f32x4_add_product({sum}, {dots}, {scales});"));
            }
        }
        Ok(())
    }

    /// Prints the products of `count` reduction indices from `at` on.
    fn few_bits_step(
        &mut self,
        tiles: &FewBitsTiles<'_>,
        own: &BlockNames,
        lhs: &str,
        rows: u32,
        at: &str,
        count: i64,
    ) -> Result<()> {
        let form = &tiles.panels.form;
        let outside = self.facts.clone();
        self.define_indices(tiles.contraction, at)?;
        let offset = self.dim(&tiles.lhs.offset)?;
        let lhs_step = self.dim(&tiles.lhs_step)?;
        let from = self.program.buffers[tiles.lhs.buffer].dtype;
        let words = self.fresh('w');
        if form.group() > 1 {
            let flipped = u32::from_le_bytes([form.flipped_bits(); 4]);
            for vector in 0..VECTORS {
                let bytes = 16 * vector;
                self.line(&format!(
                    "const u32x4 {words}_{vector} = u32x4_load({} + {bytes}) ^ {flipped:#x}u;",
                    own.codes
                ));
            }
        }

        let element = self.fresh('x');
        let integer = self.fresh('q');
        for k in 0..count {
            for idx in 0..rows {
                let place = format!("{lhs}_{idx}[{offset} + {k}*({lhs_step})]");
                let value = scalars::loaded(from, DType::F32, &place);
                self.line(&format!("const f32x4 {element}_{idx}_{k} = f32x4_splat({value});"));
            }
            for vector in 0..VECTORS {
                let mut value = if form.group() > 1 {
                    let low = k * i64::from(form.bits);
                    format!("f32x4_from_field({words}_{vector}, {low}, {})", form.bits)
                } else {
                    let byte = WIDTH * k + i64::from(vector * LANES);
                    format!("f32x4_from_i8({} + {byte})", own.codes)
                };
                if form.has_zeros {
                    value = format!("{value} - {}_{vector}", own.zeros);
                }
                self.line(&format!("const f32x4 {integer}_{k}_{vector} = {value};"));
                for idx in 0..rows {
                    let dots = format!("{}_{idx}_{vector}", own.dots);
                    self.line(&format!(
                        "{dots} = f32x4_add_product({dots}, {element}_{idx}_{k}, {integer}_{k}_{vector});"
                    ));
                }
            }
        }
        self.facts = outside;
        Ok(())
    }
}

/// The function that loads a vector of scales of this type.
pub(super) fn scale_vector(scale: DType) -> &'static str {
    match scale {
        DType::F16 => "f32x4_from_f16",
        DType::BF16 => "f32x4_from_bf16",
        _ => "f32x4_from_bytes",
    }
}

/// A block of a panel.
struct Block {
    /// The address of its first byte.
    start: String,
    /// The first reduction index.
    from: String,
    /// Number of reduction indices.
    depth: i64,
}
