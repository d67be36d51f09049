//! Recognises convolutions with 3×3 windows by the addresses of a kernel.

use super::{
    filters::Filters,
    form::{Form, TAPS},
};
use crate::{
    kernel::{
        Access, Axis, BufferId, Contraction, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt,
        WeightForm, walk,
    },
    scalar::Precision,
};
use symshape::{Bounds, Dim, Facts, Symbol};
use symshape_runtime::DType;

/// With fewer channels, changing the basis takes longer than it saves.
const MIN_CHANNELS: i64 = 16;

/// A contraction over windows that move by one element.
pub(super) struct Convolution {
    /// The axis of images, if there is one.
    pub(super) images: Option<Axis>,
    /// Rows and columns of an image of outputs.
    pub(super) size: [Axis; 2],
    /// Elements from input row to input row, and from column to column.
    pub(super) steps: [Dim; 2],
    /// The element of the input for tap zero of the output at row and column zero. Its index contains the axis of
    /// images. Channels are adjacent.
    pub(super) input: Access,
    /// Channels of the input.
    pub(super) channels: i64,
    /// Channels of the output.
    pub(super) columns: i64,
    /// The variable of the output's channels.
    pub(super) column: Symbol,
    /// The code that runs on each sum.
    pub(super) epilogue: InstSeq,
    /// Whether inputs are bytes and sums are integers.
    pub(super) is_whole: bool,
    /// The packed filters, and the number of columns of a panel.
    panels: (BufferId, i64),
    facts: Facts,
}

/// A tile at the end of an axis that is smaller than the others.
pub(super) struct Rest {
    /// The number of its outputs along the axis.
    pub(super) outputs: usize,
    /// The number of such tiles: one, or zero at some or all sizes of the image.
    pub(super) count: Dim,
}

impl Convolution {
    /// The convolution that `kernel` computes, if it computes one.
    pub(super) fn of(program: &Program, kernel: &Kernel) -> Option<Convolution> {
        let [Stmt::Contraction(contraction)] = &kernel.body[..] else { return None };
        let Rhs::Panels { buffer, base, width } = &contraction.rhs else { return None };
        let is_plain = |inst: &Inst| !matches!(inst, Inst::Bind(..) | Inst::Check(_) | Inst::Index(..));
        let buffers = &program.buffers;
        let types = [buffers[contraction.lhs.buffer].dtype, buffers[*buffer].dtype, contraction.dtype];
        let is_whole = matches!(types, [DType::U8 | DType::I8, DType::I8, DType::I32]);
        // Other precisions promise an error that a change of basis would exceed. Where tile registers multiply exactly,
        // their peak is 171 multiply-adds a cycle. That of vectors is 32, which the larger form turns into 128.
        let is_float = types == [DType::F32; 3]
            && contraction.precision == Precision::F32
            && !program.is_exact_in_bf16(contraction);
        let wanted = (is_whole || is_float) && kernel.control.is_none() && base.as_i64() == Some(0);
        if !wanted || !contraction.epilogue.insts.iter().all(is_plain) {
            return None;
        }

        let (images, y, x) = match &contraction.m[..] {
            [y, x] => (None, y, x),
            [images, y, x] => (Some(images.clone()), y, x),
            _ => return None,
        };

        let facts = contraction.facts_inside(&program.facts);
        let (channels, input, steps) = windows(&facts, contraction, y, x)?;
        let convolution = Convolution {
            images,
            size: [y.clone(), x.clone()],
            steps,
            input,
            channels,
            columns: contraction.n.extent.as_i64()?,
            column: contraction.n.var.clone(),
            epilogue: contraction.epilogue.clone(),
            is_whole,
            panels: (*buffer, i64::from(*width)),
            facts,
        };
        (channels >= MIN_CHANNELS && convolution.columns >= MIN_CHANNELS).then_some(convolution)
    }

    /// The smallest height and width, and the largest ones.
    pub(super) fn sizes(&self) -> [[i64; 2]; 2] {
        let bounds = self.size.each_ref().map(|axis| self.facts.bounds(&axis.extent));
        let extent = |bound: Option<i64>| bound.unwrap_or(1).max(1);
        let least = |range: &Bounds| extent(range.lo.as_ref().and_then(|lo| i64::try_from(lo).ok()));
        let most = |range: &Bounds| extent(range.hi.as_ref().and_then(|hi| i64::try_from(hi).ok()));
        [bounds.each_ref().map(least), bounds.each_ref().map(most)]
    }

    /// Whether all images have one size.
    pub(super) fn is_fixed(&self) -> bool {
        self.size.iter().all(|axis| axis.extent.as_i64().is_some())
    }

    /// The smaller tile at the end of an axis. `None` if its size is unknown.
    pub(super) fn rest(&self, axis: usize, form: &Form) -> Option<Rest> {
        let extent = &self.size[axis].extent;
        let m = form.outputs() as i64;
        let divides = |divisor: i64| self.facts.divides(&divisor.into(), extent).is_yes();
        let (outputs, count) = match extent.as_i64() {
            Some(extent) => (extent % m, Dim::from((extent % m).min(1))),
            None if divides(m) => (0, Dim::zero()),
            // The tile has half of the outputs if it exists.
            None => {
                let half = m / 2;
                let count = extent.floor_div(half) - extent.floor_div(m) * 2;
                divides(half).then(|| (half, self.facts.simplify(&count)))?
            }
        };
        Some(Rest { outputs: outputs as usize, count })
    }

    /// Whether the sizes of all tiles are known.
    pub(super) fn allows(&self, form: &Form) -> bool {
        self.rest(0, form).is_some() && self.rest(1, form).is_some()
    }

    /// The forms for the type of its elements.
    pub(super) fn forms(&self) -> &'static [Form] {
        if self.is_whole { &Form::INTEGERS } else { &Form::FLOATS }
    }

    /// Bytes of the filters in the basis of a form.
    pub(super) fn filter_bytes(&self, form: &Form) -> i64 {
        let points = (form.inputs() * form.inputs()) as i64;
        let element_bytes = if self.is_whole { 2 } else { 4 };
        points * self.channels * self.columns * element_bytes
    }

    /// The buffer of the filters in the other basis, with panels for each point, and the number of elements of a point.
    /// It replaces the buffer of the panels unless these are kept.
    pub(super) fn filters(
        &self,
        program: &mut Program,
        form: &'static Form,
        keep_panels: bool,
    ) -> Option<(BufferId, i64)> {
        let (buffer, width) = self.panels;
        let MemorySpace::Const(packed) = program.buffers[buffer].space.clone() else { return None };
        let filters = Filters {
            packed,
            is_whole: self.is_whole,
            channels: self.channels as usize,
            width: width as usize,
            panels: (self.columns as u64).div_ceil(width as u64) as usize,
        };
        let point_elems = filters.point_elems();
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
        Some((new, point_elems as i64))
    }

    /// The number of columns of a panel.
    pub(super) fn panel_width(&self) -> i64 {
        self.panels.1
    }
}

fn reads(kernel: &Kernel, buffer: BufferId) -> bool {
    let mut reads = kernel.control.as_ref().is_some_and(|control| control.touched().0.contains(&buffer));
    walk::accesses(&kernel.body, &mut |site| reads |= site.access.buffer == buffer);
    reads
}

/// The number of channels, the first element of the input, and its steps from row to row and from column to column.
/// `None` unless the left operand is a window of taps that moves with the output.
fn windows(facts: &Facts, contraction: &Contraction, y: &Axis, x: &Axis) -> Option<(i64, Access, [Dim; 2])> {
    let taps = TAPS as i64;
    let mut at = contraction.lhs.index.clone();
    let mut step = |axis: &Axis| {
        let (step, rest) = facts.linear_in(&at, &axis.var)?;
        let open =
            [&contraction.n, y, x].into_iter().chain(&contraction.k).any(|axis| step.contains(&axis.var));
        at = rest;
        (!open).then_some(step)
    };

    let steps = [step(y)?, step(x)?];
    let inner = contraction.k.last()?;
    let row = step(contraction.k.first()?)?;
    let unit = step(inner)?;

    let channels = match &contraction.k[..] {
        // If the window takes all channels, its columns are adjacent and merged into one axis.
        [_, inner] => {
            let elems = inner.extent.as_i64()?;
            let channels = elems / taps;
            (elems % taps == 0 && facts.prove_eq(&steps[1], &channels.into()).is_yes()).then_some(channels)?
        }
        [_, column, inner] => {
            let moved = step(column)?;
            let is_window =
                column.extent.as_i64() == Some(taps) && facts.prove_eq(&moved, &steps[1]).is_yes();
            is_window.then(|| inner.extent.as_i64()).flatten()?
        }
        _ => return None,
    };

    let is_window = contraction.k[0].extent.as_i64() == Some(taps)
        && unit.as_i64() == Some(1)
        && facts.prove_eq(&row, &steps[0]).is_yes()
        && !at.contains(&contraction.n.var);
    is_window.then(|| (channels, Access { buffer: contraction.lhs.buffer, index: at }, steps))
}
