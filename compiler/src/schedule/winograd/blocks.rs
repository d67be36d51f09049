//! The loops over blocks of tiles, and their bodies.
//!
//! A block consists of a few rows of tiles of one image, or of a few whole images. It has enough rows for contractions
//! to run at full speed, and is small enough for intermediate values to stay in the caches. If there are few blocks,
//! threads share their columns (`codegen/body/column_split.rs`).

use super::{
    form::Form,
    recognise::Convolution,
    tiles::{KernelBuilder, OutputTile, PointBuffer},
};
use crate::{
    kernel::{Axis, BufferId, Program, Stmt},
    schedule::{epilogues, fresh_symbols::FreshSymbols},
};
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
    let (narrow, wide) =
        if convolution.is_whole { (DType::I16, DType::I32) } else { (DType::F32, DType::F32) };
    let points = form.point_count() as i64;
    let sizes = [points, max_tiles, convolution.depth()];
    let inputs = PointBuffer::new(program, "tiles of inputs", sizes, narrow);
    let products = PointBuffer::new(program, "products", [points, max_tiles, convolution.columns], wide);

    let mut builder = KernelBuilder { convolution, form, facts, across, inputs, products, filters, selected };
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
        let images = block.images.as_ref().map_or(Dim::one(), |(axis, _)| axis.extent.clone());
        let tiles = self.facts.simplify(&(images * &block.rows * &self.across));
        body.extend(self.multiply(symbols, &tiles));
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
}
