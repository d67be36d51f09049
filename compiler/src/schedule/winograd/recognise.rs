//! Recognises convolutions with windows of three taps on two axes, or of at least three on one, by the addresses of a
//! kernel.

use super::{
    basis::TAPS,
    filters::Filters,
    form::Form,
    split::{self, Divided},
};
use crate::{
    kernel::{
        Access, Axis, BufferId, Contraction, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt,
        WeightForm, walk,
    },
    scalar::Precision,
    schedule::fresh_symbols::FreshSymbols,
};
use symshape::{Bounds, Dim, Facts, Symbol};
use symshape_runtime::DType;

/// With fewer channels, changing the basis takes longer than it saves.
const MIN_CHANNELS: i64 = 16;

/// With more slices, a block that holds all of them has too few tiles to hide the reading of filters.
const MAX_SLICES: i64 = 24;

/// A contraction over windows that move by one element, down and across an image. The image of a window on one axis is
/// a column.
pub(super) struct Convolution {
    /// The axes outside of an image, such as that of images and that of the slices of a volume.
    pub(super) outer: Vec<Axis>,
    /// Rows and columns of an image of outputs.
    pub(super) size: [Axis; 2],
    /// Elements from input row to input row, and from column to column. Along an axis without a window, those of
    /// adjacent outputs count.
    pub(super) steps: [Dim; 2],
    /// The element of the input for tap zero of the output at row and column zero. Its index contains the outer axes.
    /// Channels are adjacent.
    pub(super) input: Access,
    /// The slices of a window, whose sums are added, outermost first. Windows on three axes have slices, and so have
    /// those of more than three taps on one axis: up to three taps each.
    pub(super) slices: Vec<Slices>,
    /// The number of taps of a window. Its slices have three taps on each axis with a window, but the last may have
    /// fewer.
    pub(super) taps: usize,
    /// Whether there is a window across an image, besides that down an image.
    pub(super) is_square: bool,
    /// The number of taps between the windows of adjacent outputs: one or two.
    pub(super) stride: i64,
    /// Channels of the input.
    pub(super) channels: i64,
    /// Channels of the output.
    pub(super) columns: i64,
    /// The variable of the output's channels.
    pub(super) column: Symbol,
    /// The code that runs on each sum.
    pub(super) epilogue: InstSeq,
    /// The contraction for outputs that don't belong to whole rows.
    pub(super) remainder: Option<Stmt>,
    /// Whether inputs are bytes and sums are integers.
    pub(super) is_whole: bool,
    filters: PackedFilters,
    facts: Facts,
}

/// The panels of the filters of a contraction.
#[derive(Clone, Copy)]
struct PackedFilters {
    buffer: BufferId,
    /// The number of columns of a panel.
    width: i64,
    /// Whether filters and inputs are integers.
    is_whole: bool,
}

impl PackedFilters {
    /// The filters of a contraction, if its types and precision allow another basis.
    fn of(program: &Program, contraction: &Contraction) -> Option<PackedFilters> {
        let Rhs::Panels { buffer, base, width } = &contraction.rhs else { return None };
        if base.as_i64() != Some(0) {
            return None;
        }
        let buffers = &program.buffers;
        let types = [buffers[contraction.lhs.buffer].dtype, buffers[*buffer].dtype, contraction.dtype];
        let is_whole = matches!(types, [DType::U8 | DType::I8, DType::I8, DType::I32]);
        // Other precisions promise an error that a change of basis would exceed. Where tile registers multiply exactly,
        // their peak is 171 multiply-adds a cycle. That of vectors is 32, which the larger form turns into 128.
        let is_float = types == [DType::F32; 3]
            && contraction.precision == Precision::F32
            && !program.is_exact_in_bf16(contraction);
        let filters = PackedFilters { buffer: *buffer, width: i64::from(*width), is_whole };
        (is_whole || is_float).then_some(filters)
    }
}

/// Slices of a window.
#[derive(Clone)]
pub(super) struct Slices {
    pub(super) count: i64,
    /// Elements from one to the next.
    pub(super) step: Dim,
}

/// A tile at the end of an axis that is smaller than the others.
pub(super) struct LastTile {
    /// The number of its outputs along the axis.
    pub(super) outputs: usize,
    /// The number of such tiles: one, or zero at some or all sizes of the image.
    pub(super) count: Dim,
}

impl Convolution {
    /// The convolution that `kernel` computes, if it computes one.
    pub(super) fn of(program: &Program, kernel: &Kernel, symbols: &mut FreshSymbols) -> Option<Convolution> {
        let [Stmt::Contraction(contraction)] = &kernel.body[..] else { return None };
        let is_plain = |inst: &Inst| !matches!(inst, Inst::Bind(..) | Inst::Check(_) | Inst::Index(..));
        if kernel.control.is_some() || !contraction.epilogue.insts.iter().all(is_plain) {
            return None;
        }
        let filters = PackedFilters::of(program, contraction)?;
        Convolution::of_windows(program, contraction, filters, None, symbols).or_else(|| {
            let facts = contraction.facts_inside(&program.facts);
            let Divided { rows, remainder } = split::divided(&facts, contraction, TAPS, symbols)?;
            Convolution::of_windows(program, &rows, filters, remainder, symbols)
        })
    }

    /// The convolution of a contraction whose left operand consists of windows, and of another one for the remainder
    /// of the outputs. `None` if it has few channels or many slices.
    fn of_windows(
        program: &Program,
        contraction: &Contraction,
        filters: PackedFilters,
        remainder: Option<Stmt>,
        symbols: &mut FreshSymbols,
    ) -> Option<Convolution> {
        let facts = contraction.facts_inside(&program.facts);
        let steps = Steps::of(&facts, contraction)?;
        let max_stride = if filters.is_whole { 1 } else { 2 };
        let windows = (1..=max_stride).find_map(|stride| Windows::of(&facts, contraction, &steps, stride))?;
        let columns = contraction.n.extent.as_i64()?;
        let slice_count: i64 = windows.slices.iter().map(|slices| slices.count).product();
        if windows.channels.min(columns) < MIN_CHANNELS || slice_count > MAX_SLICES {
            return None;
        }

        let unit = || Axis { var: symbols.fresh(), extent: Dim::one() };
        let (height, width) = windows.size;
        Some(Convolution {
            outer: windows.outer.to_vec(),
            size: [height.clone(), width.map_or_else(unit, Axis::clone)],
            steps: windows.steps,
            input: windows.input,
            slices: windows.slices,
            taps: windows.taps,
            is_square: windows.is_square,
            stride: windows.stride,
            channels: windows.channels,
            columns,
            column: contraction.n.var.clone(),
            epilogue: contraction.epilogue.clone(),
            remainder,
            is_whole: filters.is_whole,
            filters,
            facts,
        })
    }

    /// The axis of images, the last of the outer axes.
    pub(super) fn images(&self) -> Option<&Axis> {
        self.outer.last()
    }

    /// Whether an image has one column.
    pub(super) fn is_column(&self) -> bool {
        self.size[1].extent.as_i64() == Some(1)
    }

    /// The smallest height and width, and the largest ones.
    pub(super) fn sizes(&self) -> [[i64; 2]; 2] {
        let bounds = self.size.each_ref().map(|axis| self.facts.bounds(&axis.extent));
        let extent = |bound: Option<i64>| bound.unwrap_or(1).max(1);
        let least = |range: &Bounds| extent(range.lo.as_ref().and_then(|lo| i64::try_from(lo).ok()));
        let most = |range: &Bounds| extent(range.hi.as_ref().and_then(|hi| i64::try_from(hi).ok()));
        [bounds.each_ref().map(least), bounds.each_ref().map(most)]
    }

    /// Whether all images have one size, and the numbers of all outer axes but the first are known.
    pub(super) fn is_fixed(&self) -> bool {
        self.size.iter().chain(self.outer.iter().skip(1)).all(|axis| axis.extent.as_i64().is_some())
    }

    /// The smaller tiles at the end of an axis, of which at most one exists. `None` if their sizes are unknown.
    pub(super) fn last_tiles(&self, axis: usize, form: &Form) -> Option<Vec<LastTile>> {
        let extent = &self.size[axis].extent;
        let m = form.axis(axis).outputs() as i64;
        let divides = |divisor: i64| self.facts.divides(&divisor.into(), extent).is_yes();
        let tile = |outputs: i64, count: Dim| LastTile {
            outputs: outputs as usize,
            count: self.facts.simplify(&count),
        };
        match extent.as_i64().map(|extent| extent % m) {
            Some(0) => Some(Vec::new()),
            Some(outputs) => Some(vec![tile(outputs, Dim::one())]),
            None if divides(m) => Some(Vec::new()),
            // The tile has half of the outputs if it exists.
            None if divides(m / 2) => {
                Some(vec![tile(m / 2, extent.floor_div(m / 2) - extent.floor_div(m) * 2)])
            }
            // Code for many sizes of tiles is long where both axes have windows.
            None if self.is_square => None,
            None => {
                let count = |outputs: i64| {
                    (extent + m - outputs).floor_div(m) - (extent + m - outputs - 1).floor_div(m)
                };
                Some((1..m).map(|outputs| tile(outputs, count(outputs))).collect())
            }
        }
    }

    /// Whether the sizes of all tiles are known.
    pub(super) fn allows(&self, form: &Form) -> bool {
        [0, 1].into_iter().all(|axis| self.last_tiles(axis, form).is_some())
    }

    /// The forms for its windows and the type of its elements.
    pub(super) fn forms(&self) -> &'static [Form] {
        match (self.is_square, self.is_whole, self.stride) {
            (true, true, _) => &Form::INTEGERS,
            (false, true, _) => &Form::COLUMNS_OF_INTEGERS,
            (true, false, 1) => &Form::FLOATS,
            (true, false, _) => &Form::FLOATS_AT_STRIDE_2,
            (false, false, 1) => &Form::COLUMNS_OF_FLOATS,
            (false, false, _) => &Form::COLUMNS_OF_FLOATS_AT_STRIDE_2,
        }
    }

    /// The number of slices.
    pub(super) fn slice_count(&self) -> i64 {
        self.slices.iter().map(|slices| slices.count).product()
    }

    /// The number of slices that the taps of a window are divided into.
    pub(super) fn segments(&self) -> usize {
        if self.is_square { 1 } else { self.taps.div_ceil(TAPS) }
    }

    /// The number of channels of all slices, over which products are added.
    pub(super) fn depth(&self) -> i64 {
        self.slice_count() * self.channels
    }

    /// The number of products of the plain convolution for each output and channel.
    pub(super) fn plain_products(&self) -> i64 {
        self.slice_count() / self.segments() as i64 * self.taps as i64
    }

    /// Bytes of the filters in the basis of a form.
    pub(super) fn filter_bytes(&self, form: &Form) -> i64 {
        let element_bytes = if self.is_whole { 2 } else { 4 };
        form.filter_count() as i64 * self.depth() * self.columns * element_bytes
    }

    /// The buffer of the filters in the other basis, with panels for each of them, and the number of elements of one.
    /// It replaces the buffer of the panels unless these are kept.
    pub(super) fn filters(
        &self,
        program: &mut Program,
        form: &'static Form,
        keep_panels: bool,
    ) -> Option<(BufferId, i64)> {
        let PackedFilters { buffer, width, .. } = self.filters;
        let MemorySpace::Const(packed) = program.buffers[buffer].space.clone() else { return None };
        let filters = Filters {
            packed,
            is_whole: self.is_whole,
            outer_slices: self.slice_count() as usize / self.segments(),
            segments: self.segments(),
            taps: self.taps,
            channels: self.channels as usize,
            width: width as usize,
            panels: (self.columns as u64).div_ceil(width as u64) as usize,
        };
        let filter_elems = filters.elems();
        let tensor = filters.changed(form)?;
        let dtype = tensor.dtype();
        let elems = Dim::from(tensor.elems());
        // A buffer with other users keeps its panels.
        let users = program.kernels.iter().filter(|kernel| reads(kernel, buffer)).count();
        let new = if users == 1 && !keep_panels {
            buffer
        } else {
            let copy = program.buffers[buffer].clone();
            program.buffers.push(copy)
        };
        program.buffers[new].space = MemorySpace::Const(tensor);
        program.buffers[new].elems = elems;
        program.buffers[new].dtype = dtype;
        if let Some(weight) = program.weights.get(&buffer).cloned() {
            program.weights.insert(new, WeightForm { form: "Winograd filters", ..weight });
        }
        Some((new, filter_elems as i64))
    }

    /// The number of columns of a panel.
    pub(super) fn panel_width(&self) -> i64 {
        self.filters.width
    }
}

fn reads(kernel: &Kernel, buffer: BufferId) -> bool {
    let mut reads = kernel.control.as_ref().is_some_and(|control| control.touched().0.contains(&buffer));
    walk::accesses(&kernel.body, &mut |site| reads |= site.access.buffer == buffer);
    reads
}

/// The left operand of a convolution.
struct Windows<'c> {
    outer: &'c [Axis],
    /// The axes down and across an image. An image of windows on one axis may be a column.
    size: (&'c Axis, Option<&'c Axis>),
    steps: [Dim; 2],
    input: Access,
    slices: Vec<Slices>,
    taps: usize,
    is_square: bool,
    stride: i64,
    channels: i64,
}

/// Elements of the left operand from one value of an axis to the next.
struct Steps {
    /// Those of the two innermost axes of outputs. The second of them is `None` if it does not exist or has no step.
    x: Dim,
    y: Option<Dim>,
    /// Those of the outer axes of the sum.
    taps: Vec<Dim>,
}

impl Steps {
    /// `None` if the innermost elements of the sum are not adjacent, or another axis of the sum has no constant step.
    fn of(facts: &Facts, contraction: &Contraction) -> Option<Steps> {
        let Contraction { m, n, k, lhs, .. } = contraction;
        let step_of = |axis: &Axis| {
            let (step, _) = facts.linear_in(&lhs.index, &axis.var)?;
            let mut axes = m.iter().chain(k).chain([n]);
            (!axes.any(|axis| step.contains(&axis.var))).then_some(step)
        };
        let (x, before_x) = m.split_last()?;
        let (inner, outer) = k.split_last()?;
        let taps = outer.iter().map(step_of).collect::<Option<Vec<Dim>>>()?;
        let is_adjacent = step_of(inner)?.as_i64() == Some(1);
        let y = before_x.last().and_then(step_of);
        is_adjacent.then_some(Steps { x: step_of(x)?, y, taps })
    }
}

/// An axis of taps.
struct Taps {
    count: i64,
    step: Dim,
    /// Whether adjacent outputs of the axis down or across an image are `stride` taps apart.
    moves: [bool; 2],
}

impl<'c> Windows<'c> {
    /// `None` unless the left operand is a window of taps that moves by `stride` taps with the output.
    fn of(facts: &Facts, contraction: &'c Contraction, steps: &Steps, stride: i64) -> Option<Windows<'c>> {
        let m = &contraction.m[..];
        let (x, before_x) = m.split_last()?;
        let y = before_x.last().zip(steps.y.as_ref());

        let moves_by = |tap: &Dim, output: &Dim| facts.prove_eq(&(tap * stride), output).is_yes();
        let (inner, outer) = contraction.k.split_last()?;
        let elems = inner.extent.as_i64()?;
        let mut taps = Vec::new();
        for (axis, step) in outer.iter().zip(&steps.taps) {
            let count = axis.extent.as_i64()?;
            let moves = [y.is_some_and(|(_, y_step)| moves_by(step, y_step)), moves_by(step, &steps.x)];
            taps.push(Taps { count, step: step.clone(), moves });
        }
        // If the window takes all channels, its columns are adjacent and merged into one axis.
        let merged = steps.x.as_i64().filter(|step| step % stride == 0).map(|step| step / stride);
        let merged = merged.filter(|step| (1..elems).contains(step) && elems % step == 0);
        let channels = merged.unwrap_or(elems);
        if merged.is_some() {
            taps.push(Taps { count: elems / channels, step: channels.into(), moves: [false, true] });
        }

        let (last, outer_taps) = taps.split_last().filter(|(last, _)| last.count >= TAPS as i64)?;
        let second = outer_taps.last().filter(|taps| taps.moves[0] && taps.count == TAPS as i64);
        let is_square = last.moves[1] && last.count == TAPS as i64 && second.is_some();
        let (outer, size, input_steps) = match (y, second) {
            (Some((y, _)), Some(second)) if is_square => {
                (&m[..m.len() - 2], (y, Some(x)), [second.step.clone(), last.step.clone()])
            }
            _ if last.moves[1] => (before_x, (x, None), [last.step.clone(), Dim::zero()]),
            (Some((y, _)), _) if last.moves[0] => {
                (&m[..m.len() - 2], (y, Some(x)), [last.step.clone(), steps.x.clone()])
            }
            _ => return None,
        };

        let outer_taps = if is_square { &outer_taps[..outer_taps.len() - 1] } else { outer_taps };
        let segments = if is_square { 1 } else { last.count.unsigned_abs().div_ceil(TAPS as u64) as i64 };
        let mut slices: Vec<Slices> =
            outer_taps.iter().map(|taps| Slices { count: taps.count, step: taps.step.clone() }).collect();
        slices.push(Slices { count: segments, step: &last.step * TAPS as i64 });
        slices.retain(|slices| slices.count != 1);

        // Without the axes that have steps, the index is that of the first window.
        let mut moving = contraction.k.iter().chain([size.0]).chain(size.1);
        let first = moving
            .try_fold(contraction.lhs.index.clone(), |at, axis| Some(facts.linear_in(&at, &axis.var)?.1))?;
        let taps = if is_square { TAPS * TAPS } else { last.count as usize };
        let input = Access { buffer: contraction.lhs.buffer, index: first };
        let is_input = !input.index.contains(&contraction.n.var);
        is_input.then_some(Windows {
            outer,
            size,
            steps: input_steps,
            input,
            slices,
            taps,
            is_square,
            stride,
            channels,
        })
    }
}
