//! The statements for a tile, and the products of a block.

use super::{
    form::{Form, Group},
    recognise::Convolution,
};
use crate::{
    kernel::{Access, Axis, Buffer, BufferId, Contraction, Inst, InstSeq, MemorySpace, Program, Rhs, Stmt},
    scalar::{BinaryOp, Precision, Reg},
    schedule::{epilogues, fresh_symbols::FreshSymbols},
    target::LINE_BYTES,
};
use std::ops::Range;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// A buffer with the channels of the tiles of a block at each point.
///
/// Points that are a multiple of 4 KB apart would share one set of the first-level cache. So the number of rows is odd,
/// and a row is not a multiple of 1 KB.
#[derive(Clone, Copy)]
pub(super) struct PointBuffer {
    pub(super) buffer: BufferId,
    /// Elements from one tile to the next.
    pub(super) row_elems: i64,
    /// Elements from one point to the next.
    pub(super) point_elems: i64,
}

impl PointBuffer {
    pub(super) fn new(
        program: &mut Program,
        name: &str,
        [points, tiles, channels]: [i64; 3],
        dtype: DType,
    ) -> PointBuffer {
        let size = dtype.size_bytes() as i64;
        let padding = if channels * size % 1024 == 0 { LINE_BYTES / size } else { 0 };
        let row_elems = channels + padding;
        let point_elems = (tiles | 1) * row_elems;
        let elems = Dim::from(points * point_elems);
        let space = MemorySpace::Scratch;
        let buffer = program.buffers.push(Buffer { name: name.into(), dtype, elems, space });
        PointBuffer { buffer, row_elems, point_elems }
    }

    /// A channel of a row at the first point of a filter of a group. Points of one filter are adjacent in each tile.
    fn filter(&self, group: &Group<'_>, filter: &Dim, row: &Dim, channel: &Dim) -> Dim {
        let point = filter * group.points_of_filter() as i64 + group.first_point as i64;
        point * self.point_elems + row * self.row_elems + channel
    }

    /// A channel of a tile at the first point of a group.
    fn tile(&self, tile: &OutputTile, group: &Group<'_>, channel: &Dim) -> Dim {
        let row = &tile.index * group.points_of_filter() as i64;
        tile.facts.simplify(&self.filter(group, &Dim::zero(), &row, channel))
    }

    /// The access to the given points of the parts of a group, where `first` is the address of its first point.
    fn at(&self, group: &Group<'_>, first: &Dim, points: [usize; 2]) -> Access {
        let (filter, point) = group.place(points);
        let from_first = (filter * group.points_of_filter()) as i64 * self.point_elems;
        Access { buffer: self.buffer, index: first + (from_first + point as i64 * self.row_elems) }
    }
}

/// The facts and buffers that all blocks share.
pub(super) struct KernelBuilder<'a> {
    pub(super) convolution: &'a Convolution,
    pub(super) form: &'a Form,
    pub(super) facts: Facts,
    /// The number of tiles across an image.
    pub(super) across: Dim,
    pub(super) inputs: PointBuffer,
    pub(super) products: PointBuffer,
    /// The filters in the basis, and the number of elements of one.
    pub(super) filters: (BufferId, i64),
    /// One where the form is used, and zero elsewhere.
    pub(super) selected: &'a Dim,
}

/// A tile within its loops.
pub(super) struct OutputTile {
    /// The values of the outer axes.
    pub(super) outer: Vec<Dim>,
    /// The row and column of its first output.
    pub(super) corner: [Dim; 2],
    /// The number of its outputs down and across.
    pub(super) outputs: [usize; 2],
    /// The index of the tile in its block.
    pub(super) index: Dim,
    pub(super) facts: Facts,
}

impl OutputTile {
    /// The value of an outer axis.
    fn outer_value(&self, convolution: &Convolution, symbol: &Symbol) -> Option<Dim> {
        let axis = convolution.outer.iter().position(|axis| axis.var == *symbol)?;
        Some(self.outer[axis].clone())
    }
}

impl KernelBuilder<'_> {
    /// The change of the inputs of all slices.
    pub(super) fn change_inputs(&self, tile: &OutputTile, symbols: &mut FreshSymbols) -> Vec<Stmt> {
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
        let strides = [0, 1].map(|axis| self.form.axis(axis).stride as i64);
        let [y, x] = [0, 1].map(|axis| &tile.corner[axis] * strides[axis] * &convolution.steps[axis]);
        let corner = tile.facts.simplify(&(origin + y + x + offset + Dim::from(&channel.var)));
        let in_depth = slice * convolution.channels + Dim::from(&channel.var);
        let code = self.change_code(tile, &corner, taps, &in_depth);
        let strip = Stmt::Strip { axis: channel, code };
        axes.retain(|axis| axis.extent.as_i64() != Some(1));
        epilogues::loops(&axes, false, vec![strip])
    }

    /// The change of the inputs of a window with `taps` taps down a column, from those at `corner` to the channel
    /// `in_depth` of all slices.
    fn change_code(&self, tile: &OutputTile, corner: &Dim, taps: usize, in_depth: &Dim) -> InstSeq {
        let (convolution, outputs) = (self.convolution, tile.outputs);
        let [down, across] = [0, 1].map(|axis| self.form.axis(axis));
        let present = [down.inputs_of(outputs[0], taps), across.inputs_of(outputs[1], across.taps())];
        let zero = down.constant(0.0);
        let mut code = InstSeq::default();
        for group in self.form.groups() {
            let [down, across] = &group.parts;
            let first = self.inputs.tile(tile, &group, in_depth);
            let mut columns = Vec::new();
            for j in across.inputs() {
                let load = |i: usize| {
                    let [y, x] = [(0, i), (1, j)].map(|(axis, k)| &convolution.steps[axis] * k as i64);
                    let load = Inst::Load(Access { buffer: convolution.input.buffer, index: corner + y + x });
                    (i < present[0] && j < present[1]).then(|| {
                        let loaded = code.push(load);
                        if convolution.is_whole { code.push(Inst::Cast(DType::I32, loaded)) } else { loaded }
                    })
                };

                let loaded: Vec<Option<Reg>> = down.inputs().map(load).collect();
                columns.push(down.change_inputs(&mut code, &loaded));
            }

            for i in 0..down.point_count() {
                let row: Vec<Option<Reg>> = columns.iter().map(|column| column[i]).collect();
                for (j, value) in across.change_inputs(&mut code, &row).into_iter().enumerate() {
                    let value = value.unwrap_or_else(|| code.push(Inst::Const(zero)));
                    let value =
                        if convolution.is_whole { code.push(Inst::Cast(DType::I16, value)) } else { value };
                    code.push(Inst::Store(self.inputs.at(&group, &first, [i, j]), value));
                }
            }
        }
        code
    }

    /// The contractions at all points, for blocks of `tiles` tiles.
    pub(super) fn multiply(&self, symbols: &mut FreshSymbols, tiles: &Dim) -> Vec<Stmt> {
        self.form.groups().iter().map(|group| self.multiply_group(symbols, group, tiles)).collect()
    }

    /// The contractions at the points of a group: one for each filter.
    fn multiply_group(&self, symbols: &mut FreshSymbols, group: &Group<'_>, tiles: &Dim) -> Stmt {
        let [filter, row, column, channel] = [(); 4].map(|()| symbols.fresh());
        let (depth, columns) = (self.convolution.depth(), self.convolution.columns);
        let rows = self.facts.simplify(&(tiles * group.points_of_filter() as i64));
        let at = |points: &PointBuffer, channel: &Symbol| {
            let [filter, row, channel] = [&filter, &row, channel].map(Dim::from);
            let index = self.facts.simplify(&points.filter(group, &filter, &row, &channel));
            Access { buffer: points.buffer, index }
        };

        let (filters, filter_elems) = self.filters;
        let mut epilogue = InstSeq::default();
        let sum = epilogue.push(Inst::Sum);
        epilogue.push(Inst::Store(at(&self.products, &column), sum));

        let contraction = Contraction {
            m: vec![Axis { var: row.clone(), extent: rows }],
            n: Axis { var: column.clone(), extent: columns.into() },
            k: vec![Axis { var: channel.clone(), extent: depth.into() }],
            lhs: at(&self.inputs, &channel),
            rhs: Rhs::Panels {
                buffer: filters,
                base: (Dim::from(&filter) + group.first_filter as i64) * filter_elems,
                width: self.convolution.panel_width() as u32,
            },
            dtype: if self.convolution.is_whole { DType::I32 } else { DType::F32 },
            precision: Precision::F32,
            padding: None,
            pack_buffer: None,
            epilogue,
        };

        let axis = Axis { var: filter.clone(), extent: group.filter_count().into() };
        Stmt::For { axis, parallel: false, body: vec![Stmt::Contraction(Box::new(contraction))] }
    }

    /// The change of the products of a tile to its outputs, and their epilogues.
    pub(super) fn change_outputs(&self, tile: &OutputTile, symbols: &mut FreshSymbols) -> Stmt {
        let column = Axis { var: symbols.fresh(), extent: self.convolution.columns.into() };
        let mut code = InstSeq::default();
        let sums = self.sums(tile, &column.var, &mut code);
        for (idx, sum) in sums.into_iter().enumerate() {
            let output = [idx / tile.outputs[1], idx % tile.outputs[1]];
            let sum = self.form.restored(&mut code, sum);
            self.finish(tile, output, &column.var, &mut code, sum);
        }
        Stmt::Strip { axis: column, code }
    }

    /// The sums of a tile in a column of the products, row by row.
    fn sums(&self, tile: &OutputTile, column: &Symbol, code: &mut InstSeq) -> Vec<Reg> {
        let [height, width] = tile.outputs;
        let mut sums: Vec<Reg> = Vec::new();
        for group in self.form.groups() {
            let [down, across] = &group.parts;
            let first = self.products.tile(tile, &group, &Dim::from(column));
            let mut columns = Vec::new();
            for j in 0..across.point_count() {
                let load = |i: usize| code.push(Inst::Load(self.products.at(&group, &first, [i, j])));
                let loaded: Vec<Reg> = (0..down.point_count()).map(load).collect();
                columns.push(down.change_outputs(code, &loaded, height));
            }

            let mut terms = Vec::new();
            for i in 0..height {
                let row: Vec<Reg> = columns.iter().map(|column| column[i]).collect();
                terms.extend(across.change_outputs(code, &row, width));
            }
            if sums.is_empty() {
                sums = terms;
            } else {
                let add = |(sum, term)| code.push(Inst::Binary(BinaryOp::Add, sum, term));
                sums = sums.into_iter().zip(terms).map(add).collect();
            }
        }
        sums
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
