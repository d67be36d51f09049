//! The loops over blocks of tiles, and their bodies.
//!
//! A block consists of a few rows of tiles of one image, or of a few whole images. It has enough rows for contractions
//! to run at full speed, and is small enough for intermediate values to stay in the caches. If there are few blocks,
//! threads share their columns (`codegen/body/column_split.rs`).

use super::{form::Form, recognise::Convolution};
use crate::{
    kernel::{Access, Axis, Buffer, BufferId, Contraction, Inst, InstSeq, MemorySpace, Program, Rhs, Stmt},
    scalar::{Precision, Reg},
    schedule::{epilogues, fresh_symbols::FreshSymbols},
};
use std::ops::Range;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// The largest number of tiles in a block of rows of tiles.
const MAX_TILES: i64 = 56;

/// The largest number of points of the tiles of a block, for each channel: a block of the larger form on two axes.
const MAX_POINTS: i64 = MAX_TILES * 36;

/// The number of tiles up to which small images are added to a block.
const ENOUGH_TILES: i64 = 64;

/// Adjacent tiles of one size along an axis.
#[derive(Clone)]
struct TileRun {
    /// The index of the first tile.
    first: Dim,
    count: Dim,
    /// The number of outputs of each tile along the axis.
    outputs: usize,
    /// The position of the only tile, the last one of the axis. It follows from the end of the axis, which proofs need.
    last: Option<Dim>,
}

impl TileRun {
    /// The index and the position of the tile that a loop over the run is at.
    fn tile(&self, var: &Symbol) -> (Dim, Dim) {
        match &self.last {
            Some(position) => (self.first.clone(), position.clone()),
            None => {
                let index = &self.first + Dim::from(var);
                let position = &index * self.outputs as i64;
                (index, position)
            }
        }
    }
}

/// The facts and buffers that all blocks share.
struct KernelBuilder<'a> {
    convolution: &'a Convolution,
    form: &'a Form,
    facts: Facts,
    /// The number of tiles across an image.
    across: Dim,
    /// The number of tiles that the buffers of a block hold.
    max_tiles: i64,
    inputs: BufferId,
    products: BufferId,
    /// The filters, and the number of filter elements at a point.
    filters: (BufferId, i64),
    /// One where the form is used, and zero elsewhere.
    selected: &'a Dim,
}

/// The images and rows of tiles of a block.
struct TileBlock<'b> {
    /// The values of the outer axes but that of images.
    batch: &'b [Dim],
    /// The loop over its images, and the first of them.
    images: Option<(Axis, Dim)>,
    /// Its first row of tiles.
    first: Dim,
    rows: Dim,
    /// The rows of tiles by size.
    runs: Vec<TileRun>,
}

/// The statements of a form. They compute nothing unless `selected` is one.
pub(super) fn write(
    program: &mut Program,
    symbols: &mut FreshSymbols,
    convolution: &Convolution,
    form: &Form,
    filters: (BufferId, i64),
    selected: &Dim,
) -> Vec<Stmt> {
    let facts = program.facts.clone();
    let [down, across] = [0, 1].map(|axis| tiles_along(convolution, form, &facts, axis));
    let most = |dim: &Dim| facts.bounds(dim).hi.and_then(|hi| i64::try_from(hi).ok()).unwrap_or(1);
    let widest = most(&across);
    let most_tiles = most_tiles(convolution, form);
    let by_images = most(&down).checked_mul(widest).filter(|tiles| *tiles <= most_tiles);
    // With unknown sizes, the verifier does not prove that the images of a block are within the batch.
    let is_known = down.as_i64().is_some() && across.as_i64().is_some() && convolution.images().is_some();
    let group =
        by_images.filter(|_| is_known).map_or(1, |tiles| (ENOUGH_TILES.min(most_tiles) / tiles).max(1));
    let rows = rows_of_block(convolution, form, widest);
    let max_tiles = by_images.map_or(rows * widest, |tiles| group * tiles);
    let points = form.point_count() as i64;

    let mut scratch = |name: &str, channels: i64, dtype: DType| {
        let elems = Dim::from(points * max_tiles * channels);
        program.buffers.push(Buffer { name: name.into(), dtype, elems, space: MemorySpace::Scratch })
    };
    let (narrow, wide) =
        if convolution.is_whole { (DType::I16, DType::I32) } else { (DType::F32, DType::F32) };
    let inputs = scratch("tiles of inputs", convolution.depth(), narrow);
    let products = scratch("products", convolution.columns, wide);

    let mut builder =
        KernelBuilder { convolution, form, facts, across, max_tiles, inputs, products, filters, selected };
    if by_images.is_some() { builder.by_images(symbols, group) } else { builder.by_rows(symbols, rows) }
}

/// The largest number of tiles of a block that holds all slices of each tile.
fn most_tiles(convolution: &Convolution, form: &Form) -> i64 {
    (MAX_POINTS / (form.point_count() as i64 * convolution.slice_count())).clamp(1, MAX_TILES)
}

/// The number of tiles along an axis.
fn tiles_along(convolution: &Convolution, form: &Form, facts: &Facts, axis: usize) -> Dim {
    facts.simplify(&convolution.size[axis].extent.ceil_div(form.axis(axis).outputs() as i64))
}

/// The number of rows of tiles of a block, of at most `widest` tiles: a divisor of the number of rows of an image, if
/// that is known.
fn rows_of_block(convolution: &Convolution, form: &Form, widest: i64) -> i64 {
    let enough = (most_tiles(convolution, form) / widest).max(1);
    match convolution.size[0].extent.as_i64().map(|extent| extent / form.axis(0).outputs() as i64) {
        Some(whole) => (1..=enough).rev().find(|rows| whole % rows == 0).unwrap_or(1),
        None => enough,
    }
}

fn in_loop(axis: Option<Axis>, parallel: bool, body: Vec<Stmt>) -> Vec<Stmt> {
    match axis {
        Some(axis) => vec![Stmt::For { axis, parallel, body }],
        None => body,
    }
}

impl KernelBuilder<'_> {
    /// The runs of tiles along an axis.
    fn runs(&self, axis: usize) -> Vec<TileRun> {
        let m = self.form.axis(axis).outputs();
        let extent = &self.convolution.size[axis].extent;
        let whole = self.facts.simplify(&extent.floor_div(m));
        let last_tiles = self.convolution.last_tiles(axis, self.form).unwrap_or_default();
        let full = TileRun { first: Dim::zero(), count: whole, outputs: m, last: None };
        let last = last_tiles.into_iter().map(|tile| TileRun {
            first: self.facts.simplify(&(extent.ceil_div(m) - 1)),
            count: tile.count,
            outputs: tile.outputs,
            last: Some(extent - tile.outputs as i64),
        });
        let is_none = |run: &TileRun| run.count.as_i64() == Some(0);
        [full].into_iter().chain(last).filter(|run| !is_none(run)).collect()
    }

    /// Loops over the outer axes but that of images, around the statements for their values.
    fn in_batch(
        &mut self,
        symbols: &mut FreshSymbols,
        write: impl FnOnce(&mut Self, &mut FreshSymbols, &[Dim]) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let mut axes = Vec::new();
        if let Some((_, batch)) = self.convolution.outer.split_last() {
            axes.extend(batch.iter().map(|axis| Axis { var: symbols.fresh(), extent: axis.extent.clone() }));
        }
        axes.iter().for_each(|axis| self.facts.declare_index(&axis.var, &axis.extent));
        let values: Vec<Dim> = axes.iter().map(|axis| Dim::from(&axis.var)).collect();
        let body = write(self, symbols, &values);
        epilogues::loops(&axes, true, body)
    }

    /// Blocks of `group` whole images.
    fn by_images(&mut self, symbols: &mut FreshSymbols, group: i64) -> Vec<Stmt> {
        let runs = self.runs(0);
        let rows = tiles_along(self.convolution, self.form, &self.facts, 0);

        let Some(images) = self.convolution.images().cloned() else {
            let block = TileBlock { batch: &[], images: None, first: Dim::zero(), rows, runs };
            let body = self.block(symbols, &block);
            return self.where_selected(symbols, body);
        };

        let count = self.facts.simplify(&(images.extent.ceil_div(group) * self.selected));
        self.in_batch(symbols, |builder, symbols, batch| {
            let blocks = Axis { var: symbols.fresh(), extent: count.clone() };
            builder.facts.declare_index(&blocks.var, &blocks.extent);

            let start = Dim::from(&blocks.var) * group;
            let remaining = &images.extent - &start;
            let extent =
                if group == 1 { Dim::one() } else { builder.facts.simplify(&remaining.min(group.into())) };
            let images = Some((Axis { var: symbols.fresh(), extent }, start));
            let block =
                TileBlock { batch, images, first: Dim::zero(), rows: rows.clone(), runs: runs.clone() };
            in_loop(Some(blocks), true, builder.block(symbols, &block))
        })
    }

    /// Blocks of `rows` rows of tiles, and one of the smaller last row. They are separate loops, so that threads share
    /// the rows of a single image.
    fn by_rows(&mut self, symbols: &mut FreshSymbols, rows: i64) -> Vec<Stmt> {
        let mut body = Vec::new();
        for run in self.runs(0) {
            body.extend(self.in_batch(symbols, |builder, symbols, batch| {
                builder.rows_of_run(symbols, batch, rows, &run)
            }));
        }
        body
    }

    /// Blocks of `rows` rows of the tiles of a run, or of the only row of the last tile.
    fn rows_of_run(
        &mut self,
        symbols: &mut FreshSymbols,
        batch: &[Dim],
        rows: i64,
        run: &TileRun,
    ) -> Vec<Stmt> {
        let image = self.convolution.images().map(|images| {
            let axis = Axis { var: symbols.fresh(), extent: &images.extent * self.selected };
            self.facts.declare_index(&axis.var, &axis.extent);
            axis
        });

        let mut only = || Axis { var: symbols.fresh(), extent: Dim::one() };
        let images = image.as_ref().map(|axis| (only(), Dim::from(&axis.var)));

        // Either the images or the blocks are none if the form is not selected.
        let is_last = run.last.is_some();
        let count = if is_last { run.count.clone() } else { run.count.ceil_div(rows) };
        let count = if image.is_some() { count } else { count * self.selected };
        let blocks = Axis { var: symbols.fresh(), extent: self.facts.simplify(&count) };
        self.facts.declare_index(&blocks.var, &blocks.extent);

        let block = if is_last {
            TileBlock { batch, images, first: run.first.clone(), rows: Dim::one(), runs: vec![run.clone()] }
        } else {
            let start = Dim::from(&blocks.var) * rows;
            let first = self.facts.simplify(&(&run.first + &start));
            let count = self.facts.simplify(&(&run.count - start).min(rows.into()));
            let runs = vec![TileRun { first: first.clone(), count: count.clone(), ..run.clone() }];
            TileBlock { batch, images, first, rows: count, runs }
        };
        let inner = self.block(symbols, &block);
        in_loop(image, true, in_loop(Some(blocks), true, inner))
    }

    /// A loop that runs once if the form is selected.
    fn where_selected(&self, symbols: &mut FreshSymbols, body: Vec<Stmt>) -> Vec<Stmt> {
        let is_always = self.selected.as_i64() == Some(1);
        let axis = (!is_always).then(|| Axis { var: symbols.fresh(), extent: self.selected.clone() });
        in_loop(axis, true, body)
    }

    fn block(&self, symbols: &mut FreshSymbols, block: &TileBlock) -> Vec<Stmt> {
        let mut body = Vec::new();
        self.tiles(symbols, block, &mut body, &|builder, tile, symbols| builder.change_inputs(tile, symbols));
        body.push(self.multiply(symbols, block));
        self.tiles(symbols, block, &mut body, &|builder, tile, symbols| {
            vec![builder.change_outputs(tile, symbols)]
        });
        body
    }

    /// A statement for each tile of a block, with loops over the tiles of one size.
    fn tiles(
        &self,
        symbols: &mut FreshSymbols,
        block: &TileBlock,
        body: &mut Vec<Stmt>,
        write: &dyn Fn(&Self, &OutputTile, &mut FreshSymbols) -> Vec<Stmt>,
    ) {
        for down in &block.runs {
            for across in self.runs(1) {
                let mut facts = self.facts.clone();
                let mut fresh = |extent: &Dim| {
                    let axis = Axis { var: symbols.fresh(), extent: extent.clone() };
                    facts.declare_index(&axis.var, &axis.extent);
                    axis
                };

                // The loop occurs several times in one kernel, so each occurrence needs fresh variables.
                let image = block.images.as_ref().map(|(axis, start)| (fresh(&axis.extent), start));
                let row = fresh(&down.count);
                let column = fresh(&across.count);

                let (y, top) = down.tile(&row.var);
                let (x, left) = across.tile(&column.var);
                let in_image = (&y - &block.first) * &self.across + &x;
                let several = image.as_ref().filter(|(axis, _)| axis.extent.as_i64() != Some(1));
                let image_index = several.map_or(Dim::zero(), |(axis, _)| Dim::from(&axis.var));

                let tile = OutputTile {
                    outer: block
                        .batch
                        .iter()
                        .cloned()
                        .chain(image.as_ref().map(|(axis, start)| *start + Dim::from(&axis.var)))
                        .collect(),
                    corner: [top, left].map(|at| facts.simplify(&at)),
                    outputs: [down.outputs, across.outputs],
                    index: facts.simplify(&(image_index * &block.rows * &self.across + in_image)),
                    facts,
                };

                let inner = write(self, &tile, symbols);
                let axes: Vec<Axis> = image.map(|(axis, _)| axis).into_iter().chain([row, column]).collect();
                body.extend(epilogues::loops(&axes, false, inner));
            }
        }
    }

    /// The index of each point of a tile in a buffer with `channels` channels.
    fn indices(&self, tile: &OutputTile, channels: i64, channel: &Dim) -> Vec<Dim> {
        let first = tile.facts.simplify(&(&tile.index * channels + channel));
        let points = self.form.point_count() as i64;
        (0..points).map(|point| &first + point * self.max_tiles * channels).collect()
    }

    /// The change of the inputs of all slices.
    fn change_inputs(&self, tile: &OutputTile, symbols: &mut FreshSymbols) -> Vec<Stmt> {
        let taps = self.form.axis(0).taps();
        let count = self.convolution.slices.last().map_or(1, |slices| slices.count);
        match self.convolution.taps % taps {
            0 => self.change_slices(tile, symbols, 0..count, taps),
            // The last slice of a window has fewer taps.
            taps_of_last => {
                let whole = self.change_slices(tile, symbols, 0..count - 1, taps);
                [whole, self.change_slices(tile, symbols, count - 1..count, taps_of_last)].concat()
            }
        }
    }

    /// The change of the inputs of slices with `taps` taps down a column, in a range of the innermost slices.
    fn change_slices(
        &self,
        tile: &OutputTile,
        symbols: &mut FreshSymbols,
        innermost: Range<i64>,
        taps: usize,
    ) -> Vec<Stmt> {
        let convolution = self.convolution;
        let channel = Axis { var: symbols.fresh(), extent: convolution.channels.into() };
        let mut axes = Vec::new();
        let (mut slice, mut offset) = (Dim::zero(), Dim::zero());
        for (idx, slices) in convolution.slices.iter().enumerate() {
            let is_innermost = idx + 1 == convolution.slices.len();
            let range = if is_innermost { innermost.clone() } else { 0..slices.count };
            let axis = Axis { var: symbols.fresh(), extent: (range.end - range.start).into() };
            let index = if axis.extent.as_i64() == Some(1) { Dim::zero() } else { Dim::from(&axis.var) };
            let index = index + range.start;
            slice = slice * slices.count + &index;
            offset = offset + index * &slices.step;
            axes.push(axis);
        }

        let origin = convolution.input.index.substitute(&|symbol| tile.outer_value(convolution, symbol));
        let [y, x] = [0, 1].map(|axis| &tile.corner[axis] * &convolution.steps[axis]);
        let corner = tile.facts.simplify(&(origin + y + x + offset + Dim::from(&channel.var)));
        let in_depth = slice * convolution.channels + Dim::from(&channel.var);
        let indices = self.indices(tile, convolution.depth(), &in_depth);
        let code = self.change_code(&corner, tile.outputs, taps, &indices);
        let strip = Stmt::Strip { axis: channel, code };
        axes.retain(|axis| axis.extent.as_i64() != Some(1));
        epilogues::loops(&axes, false, vec![strip])
    }

    /// The change of the inputs of a window with `taps` taps down a column, from those at `corner` to `points`.
    fn change_code(&self, corner: &Dim, outputs: [usize; 2], taps: usize, points: &[Dim]) -> InstSeq {
        let convolution = self.convolution;
        let [height, width] = self.form.inputs();
        let present = [outputs[0] + taps - 1, outputs[1] + self.form.axis(1).taps() - 1];
        let mut code = InstSeq::default();
        let mut columns = Vec::new();
        for j in 0..width {
            let load = |i: usize| {
                let [y, x] = [(0, i), (1, j)].map(|(axis, k)| &convolution.steps[axis] * k as i64);
                let load = Inst::Load(Access { buffer: convolution.input.buffer, index: corner + y + x });
                (i < present[0] && j < present[1]).then(|| {
                    let loaded = code.push(load);
                    if convolution.is_whole { code.push(Inst::Cast(DType::I32, loaded)) } else { loaded }
                })
            };

            let loaded: Vec<Option<Reg>> = (0..height).map(load).collect();
            columns.push(self.form.axis(0).change_inputs(&mut code, &loaded));
        }

        for i in 0..height {
            let row: Vec<Option<Reg>> = columns.iter().map(|column| column[i]).collect();
            for (j, value) in self.form.axis(1).change_inputs(&mut code, &row).into_iter().enumerate() {
                let zero = self.form.axis(0).constant(0.0);
                let value = value.unwrap_or_else(|| code.push(Inst::Const(zero)));
                let value =
                    if convolution.is_whole { code.push(Inst::Cast(DType::I16, value)) } else { value };
                let at = points[i * width + j].clone();
                code.push(Inst::Store(Access { buffer: self.inputs, index: at }, value));
            }
        }
        code
    }

    /// The contractions at all points.
    fn multiply(&self, symbols: &mut FreshSymbols, block: &TileBlock) -> Stmt {
        let [point, tile, column, channel] = [(); 4].map(|()| symbols.fresh());
        let points = self.form.point_count();
        let images = block.images.as_ref().map_or(Dim::one(), |(axis, _)| axis.extent.clone());
        let tiles = self.facts.simplify(&(images * &block.rows * &self.across));
        let (depth, columns) = (self.convolution.depth(), self.convolution.columns);
        let at = |channels: i64, last: &Symbol| {
            (Dim::from(&point) * self.max_tiles + Dim::from(&tile)) * channels + Dim::from(last)
        };
        let (filters, point_elems) = self.filters;
        let mut epilogue = InstSeq::default();
        let sum = epilogue.push(Inst::Sum);
        let to = Access { buffer: self.products, index: self.facts.simplify(&at(columns, &column)) };
        epilogue.push(Inst::Store(to, sum));

        let contraction = Contraction {
            m: vec![Axis { var: tile.clone(), extent: tiles }],
            n: Axis { var: column.clone(), extent: columns.into() },
            k: vec![Axis { var: channel.clone(), extent: depth.into() }],
            lhs: Access { buffer: self.inputs, index: self.facts.simplify(&at(depth, &channel)) },
            rhs: Rhs::Panels {
                buffer: filters,
                base: Dim::from(&point) * point_elems,
                width: self.convolution.panel_width() as u32,
            },
            dtype: if self.convolution.is_whole { DType::I32 } else { DType::F32 },
            precision: Precision::F32,
            padding: None,
            pack_buffer: None,
            epilogue,
        };

        let axis = Axis { var: point.clone(), extent: points.into() };
        Stmt::For { axis, parallel: false, body: vec![Stmt::Contraction(Box::new(contraction))] }
    }

    fn change_outputs(&self, tile: &OutputTile, symbols: &mut FreshSymbols) -> Stmt {
        let column = Axis { var: symbols.fresh(), extent: self.convolution.columns.into() };
        let [rows_of_points, columns_of_points] = self.form.inputs();
        let [height, width] = tile.outputs;
        let indices = self.indices(tile, self.convolution.columns, &Dim::from(&column.var));
        let mut code = InstSeq::default();
        let mut columns = Vec::new();
        for j in 0..columns_of_points {
            let load = |i: usize| {
                let at = indices[i * columns_of_points + j].clone();
                code.push(Inst::Load(Access { buffer: self.products, index: at }))
            };
            let loaded: Vec<Reg> = (0..rows_of_points).map(load).collect();
            columns.push(self.form.axis(0).change_outputs(&mut code, &loaded, height));
        }

        for i in 0..height {
            let row: Vec<Reg> = columns.iter().map(|column| column[i]).collect();
            for (j, sum) in self.form.axis(1).change_outputs(&mut code, &row, width).into_iter().enumerate() {
                let sum = self.form.restored(&mut code, sum);
                self.finish(tile, [i, j], &column.var, &mut code, sum);
            }
        }
        Stmt::Strip { axis: column, code }
    }

    /// Appends the epilogue of one output of a tile.
    fn finish(&self, tile: &OutputTile, output: [usize; 2], column: &Symbol, code: &mut InstSeq, sum: Reg) {
        let convolution = self.convolution;
        let value = |symbol: &Symbol| {
            let axis = convolution.size.iter().position(|axis| axis.var == *symbol);
            match axis {
                Some(axis) => Some(&tile.corner[axis] + output[axis] as i64),
                None if *symbol == convolution.column => Some(Dim::from(column)),
                None => tile.outer_value(convolution, symbol),
            }
        };

        let moved = |access: &Access| Access {
            buffer: access.buffer,
            index: tile.facts.simplify(&access.index.substitute(&value)),
        };
        let mut regs: Vec<Reg> = Vec::with_capacity(convolution.epilogue.insts.len());
        for inst in &convolution.epilogue.insts {
            let reg = match inst {
                Inst::Sum => sum,
                Inst::Load(access) => code.push(Inst::Load(moved(access))),
                Inst::Store(access, reg) => code.push(Inst::Store(moved(access), regs[reg.0 as usize])),
                other => code.push(other.with_operands(&|reg| regs[reg.0 as usize])),
            };
            regs.push(reg);
        }
    }
}

/// A tile within its loops.
struct OutputTile {
    /// The values of the outer axes.
    outer: Vec<Dim>,
    /// The row and column of its first output.
    corner: [Dim; 2],
    /// The number of its outputs down and across.
    outputs: [usize; 2],
    /// The index of the tile in its block.
    index: Dim,
    facts: Facts,
}

impl OutputTile {
    /// The value of an outer axis.
    fn outer_value(&self, convolution: &Convolution, symbol: &Symbol) -> Option<Dim> {
        let axis = convolution.outer.iter().position(|axis| axis.var == *symbol)?;
        Some(self.outer[axis].clone())
    }
}
