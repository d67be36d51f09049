//! The loops over blocks of tiles, and their bodies.
//!
//! A block consists of a few rows of tiles of one image, or of a few whole images. It has enough rows for contractions
//! to run at full speed, and is small enough for intermediate values to stay in the caches. If there are few blocks,
//! threads share their columns (`codegen/body/column_split.rs`).

use super::{
    form::{Form, TAPS},
    recognise::Convolution,
};
use crate::{
    kernel::{Access, Axis, Buffer, BufferId, Contraction, Inst, InstSeq, MemorySpace, Program, Rhs, Stmt},
    scalar::{Precision, Reg},
    schedule::fresh_symbols::FreshSymbols,
};
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// The largest number of tiles in a block of rows of tiles.
const MAX_TILES: i64 = 56;

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
struct TileBlock {
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
    let m = form.outputs() as i64;
    let [down, across] = convolution.size.each_ref().map(|axis| facts.simplify(&axis.extent.ceil_div(m)));
    let most = |dim: &Dim| facts.bounds(dim).hi.and_then(|hi| i64::try_from(hi).ok()).unwrap_or(1);
    let widest = most(&across);
    let by_images = most(&down).checked_mul(widest).filter(|tiles| *tiles <= MAX_TILES);
    // With unknown sizes, the verifier does not prove that the images of a block are within the batch.
    let is_known = down.as_i64().is_some() && across.as_i64().is_some() && convolution.images.is_some();
    let group = by_images.filter(|_| is_known).map_or(1, |tiles| (ENOUGH_TILES / tiles).max(1));
    let rows = rows_of_block(convolution, form, widest);
    let max_tiles = by_images.map_or(rows * widest, |tiles| group * tiles);
    let points = (form.inputs() * form.inputs()) as i64;

    let mut scratch = |name: &str, channels: i64, dtype: DType| {
        let elems = Dim::from(points * max_tiles * channels);
        program.buffers.push(Buffer { name: name.into(), dtype, elems, space: MemorySpace::Scratch })
    };
    let (narrow, wide) =
        if convolution.is_whole { (DType::I16, DType::I32) } else { (DType::F32, DType::F32) };
    let inputs = scratch("tiles of inputs", convolution.channels, narrow);
    let products = scratch("products", convolution.columns, wide);

    let mut builder =
        KernelBuilder { convolution, form, facts, across, max_tiles, inputs, products, filters, selected };
    if by_images.is_some() { builder.by_images(symbols, group) } else { builder.by_rows(symbols, rows) }
}

/// The number of rows of tiles of a block, of at most `widest` tiles: a divisor of the number of rows of an image, if
/// that is known.
fn rows_of_block(convolution: &Convolution, form: &Form, widest: i64) -> i64 {
    let enough = (MAX_TILES / widest).max(1);
    match convolution.size[0].extent.as_i64().map(|extent| extent / form.outputs() as i64) {
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
        let m = self.form.outputs();
        let extent = &self.convolution.size[axis].extent;
        let whole = self.facts.simplify(&extent.floor_div(m));
        let rest = self.convolution.rest(axis, self.form);
        let full = TileRun { first: Dim::zero(), count: whole, outputs: m, last: None };
        let last = rest.map(|rest| TileRun {
            first: self.facts.simplify(&(extent.ceil_div(m) - 1)),
            count: rest.count,
            outputs: rest.outputs,
            last: Some(extent - rest.outputs as i64),
        });
        let is_none = |run: &TileRun| run.count.as_i64() == Some(0);
        [full].into_iter().chain(last).filter(|run| !is_none(run)).collect()
    }

    /// Blocks of `group` whole images.
    fn by_images(&mut self, symbols: &mut FreshSymbols, group: i64) -> Vec<Stmt> {
        let runs = self.runs(0);
        let down = &self.convolution.size[0].extent;
        let rows = self.facts.simplify(&down.ceil_div(self.form.outputs()));

        let Some(images) = self.convolution.images.clone() else {
            let block = TileBlock { images: None, first: Dim::zero(), rows, runs };
            let body = self.block(symbols, &block);
            return self.where_selected(symbols, body);
        };

        let count = images.extent.ceil_div(group) * self.selected;
        let blocks = Axis { var: symbols.fresh(), extent: self.facts.simplify(&count) };
        self.facts.declare_index(&blocks.var, &blocks.extent);

        let start = Dim::from(&blocks.var) * group;
        let rest = &images.extent - &start;
        let extent = if group == 1 { Dim::one() } else { self.facts.simplify(&rest.min(group.into())) };
        let inner = Axis { var: symbols.fresh(), extent };
        let block = TileBlock { images: Some((inner, start)), first: Dim::zero(), rows, runs };
        let body = self.block(symbols, &block);

        in_loop(Some(blocks), true, body)
    }

    /// Blocks of `rows` rows of tiles, and one of the smaller last row. They are separate loops, so that threads share
    /// the rows of a single image.
    fn by_rows(&mut self, symbols: &mut FreshSymbols, rows: i64) -> Vec<Stmt> {
        let mut body = Vec::new();
        for run in self.runs(0) {
            let image = self.convolution.images.as_ref().map(|images| {
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
                TileBlock { images, first: run.first.clone(), rows: Dim::one(), runs: vec![run] }
            } else {
                let start = Dim::from(&blocks.var) * rows;
                let first = self.facts.simplify(&(&run.first + &start));
                let count = self.facts.simplify(&(&run.count - start).min(rows.into()));
                let runs = vec![TileRun { first: first.clone(), count: count.clone(), ..run }];
                TileBlock { images, first, rows: count, runs }
            };
            let inner = self.block(symbols, &block);
            body.extend(in_loop(image, true, in_loop(Some(blocks), true, inner)));
        }

        body
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
            builder.change_outputs(tile, symbols)
        });
        body
    }

    /// A statement for each tile of a block, with loops over the tiles of one size.
    fn tiles(
        &self,
        symbols: &mut FreshSymbols,
        block: &TileBlock,
        body: &mut Vec<Stmt>,
        write: &dyn Fn(&Self, &OutputTile, &mut FreshSymbols) -> Stmt,
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
                    image: image.as_ref().map(|(axis, start)| *start + Dim::from(&axis.var)),
                    corner: [top, left].map(|at| facts.simplify(&at)),
                    outputs: [down.outputs, across.outputs],
                    index: facts.simplify(&(image_index * &block.rows * &self.across + in_image)),
                    facts,
                };

                let stmt = write(self, &tile, symbols);
                let axes = image.map(|(axis, _)| axis).into_iter().chain([row, column]);
                body.extend(axes.rev().fold(vec![stmt], |body, axis| in_loop(Some(axis), false, body)));
            }
        }
    }

    /// The index of each point of a tile in a buffer with `channels` channels.
    fn indices(&self, tile: &OutputTile, channels: i64, channel: &Symbol) -> Vec<Dim> {
        let first = tile.facts.simplify(&(&tile.index * channels + Dim::from(channel)));
        let points = (self.form.inputs() * self.form.inputs()) as i64;
        (0..points).map(|point| &first + point * self.max_tiles * channels).collect()
    }

    fn change_inputs(&self, tile: &OutputTile, symbols: &mut FreshSymbols) -> Stmt {
        let convolution = self.convolution;
        let channel = Axis { var: symbols.fresh(), extent: convolution.channels.into() };
        let image = convolution.images.as_ref().map(|axis| &axis.var);
        let origin = convolution
            .input
            .index
            .substitute(&|symbol| image.filter(|var| *var == symbol).and(tile.image.clone()));
        let [y, x] = [0, 1].map(|axis| &tile.corner[axis] * &convolution.steps[axis]);
        let corner = tile.facts.simplify(&(origin + y + x + Dim::from(&channel.var)));
        let inputs = self.form.inputs();
        let indices = self.indices(tile, convolution.channels, &channel.var);
        let mut code = InstSeq::default();
        let mut columns = Vec::new();
        for j in 0..inputs {
            let load = |i: usize| {
                let exists = i < tile.outputs[0] + TAPS - 1 && j < tile.outputs[1] + TAPS - 1;
                let [y, x] = [(0, i), (1, j)].map(|(axis, k)| &convolution.steps[axis] * k as i64);
                let at = &corner + y + x;
                let load = Inst::Load(Access { buffer: convolution.input.buffer, index: at });
                exists.then(|| {
                    let loaded = code.push(load);
                    if convolution.is_whole { code.push(Inst::Cast(DType::I32, loaded)) } else { loaded }
                })
            };

            let loaded: Vec<Option<Reg>> = (0..inputs).map(load).collect();
            columns.push(self.form.change_inputs(&mut code, &loaded));
        }

        for i in 0..inputs {
            let row: Vec<Option<Reg>> = columns.iter().map(|column| column[i]).collect();
            for (j, value) in self.form.change_inputs(&mut code, &row).into_iter().enumerate() {
                let value = value.unwrap_or_else(|| code.push(Inst::Const(self.form.constant(0.0))));
                let value =
                    if convolution.is_whole { code.push(Inst::Cast(DType::I16, value)) } else { value };
                let at = indices[i * inputs + j].clone();
                code.push(Inst::Store(Access { buffer: self.inputs, index: at }, value));
            }
        }
        Stmt::Strip { axis: channel, code }
    }

    /// The contractions at all points.
    fn multiply(&self, symbols: &mut FreshSymbols, block: &TileBlock) -> Stmt {
        let [point, tile, column, channel] = [(); 4].map(|()| symbols.fresh());
        let points = self.form.inputs() * self.form.inputs();
        let images = block.images.as_ref().map_or(Dim::one(), |(axis, _)| axis.extent.clone());
        let tiles = self.facts.simplify(&(images * &block.rows * &self.across));
        let Convolution { channels, columns, .. } = *self.convolution;
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
            k: vec![Axis { var: channel.clone(), extent: channels.into() }],
            lhs: Access { buffer: self.inputs, index: self.facts.simplify(&at(channels, &channel)) },
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
        let inputs = self.form.inputs();
        let [height, width] = tile.outputs;
        let indices = self.indices(tile, self.convolution.columns, &column.var);
        let mut code = InstSeq::default();
        let mut columns = Vec::new();
        for j in 0..inputs {
            let load = |i: usize| {
                let at = indices[i * inputs + j].clone();
                code.push(Inst::Load(Access { buffer: self.products, index: at }))
            };
            let loaded: Vec<Reg> = (0..inputs).map(load).collect();
            columns.push(self.form.change_outputs(&mut code, &loaded, height));
        }

        for i in 0..height {
            let row: Vec<Reg> = columns.iter().map(|column| column[i]).collect();
            for (j, sum) in self.form.change_outputs(&mut code, &row, width).into_iter().enumerate() {
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
                None => {
                    convolution.images.as_ref().filter(|axis| axis.var == *symbol).and(tile.image.clone())
                }
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
    image: Option<Dim>,
    /// The row and column of its first output.
    corner: [Dim; 2],
    /// The number of its outputs down and across.
    outputs: [usize; 2],
    /// The index of the tile in its block.
    index: Dim,
    facts: Facts,
}
