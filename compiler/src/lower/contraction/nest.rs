//! The axes of a contraction, the addresses of its operands, and the classes of the axes.

use crate::{
    Error, Result,
    graph::{Graph, Label, Op, Value},
    kernel::{Axis, InstSeq, Padding},
    lower::{
        fuse::sum_index,
        index::{address, row_major, substitute},
        inline::Inliner,
        lowering::{KernelScope, Lowering},
        nest::{AxisRole, Nest, axes_of, exprs_of, step},
        scattered_columns::MIN_COLUMNS,
        windows::{MAX_STEP, MAX_WINDOW},
    },
    scalar::{Precision, Scalar},
    tensor::Tensor,
};
use std::mem;
use symshape::Dim;
use symshape_runtime::DType;

/// A gathered operand is copied once for all columns of the other one. With fewer terms for each column, the copy takes
/// less time than stores of single elements.
const TERMS_PER_COLUMN: i64 = 4;

/// Only axes whose smallest size is less than this multiple of its padding can have many zeros.
const MAX_SIZE_TO_PADDING: i64 = 32;

/// The facts about one contraction that determine its loops. Expressions 0 and 1 of the nest are the addresses of the
/// two operands. Then follow those of the epilogue, the last of which is the address of the result, and the positions
/// of `padded`.
pub(super) struct ContractionNest {
    pub(super) root: Value,
    pub(super) nest: Nest,
    pub(super) operands: [Operand; 2],
    /// The axes of the left operand that are padded with zeros.
    pub(super) padded: Vec<Padding>,
    pub(super) epilogue: InstSeq,
    pub(super) dtype: DType,
    pub(super) precision: Precision,
}

pub(super) struct Operand {
    pub(super) value: Value,
    pub(super) dtype: DType,
    pub(super) constant: Option<Tensor>,
}

impl Operand {
    /// Whether it is a constant of few bits.
    pub(super) fn has_few_bits(&self) -> bool {
        self.constant.as_ref().is_some_and(|constant| constant.few_bits().is_some())
    }
}

/// The form of a contraction's loops.
pub(super) enum LoopForm {
    /// A batch of matrix multiplications.
    Matrix,
    /// As [`LoopForm::Matrix`], with the operands in the other order.
    SwappedMatrix,
    /// Strips along a batch axis, along which both operands are streamed, or along the rows of a plane, which have
    /// the same weights.
    Strips,
}

/// The class of a kept axis. The order is that of the loops, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AxisClass {
    /// It moves both operands.
    Batch,
    /// It moves the left operand only.
    Row,
    /// It moves the right operand only.
    Column,
}

impl ContractionNest {
    /// Sets up the axes, the operands' addresses and the epilogue.
    pub(super) fn new(
        lowering: &mut Lowering,
        scope: &mut KernelScope,
        root: Value,
        sum: Value,
    ) -> Result<ContractionNest> {
        let graph = lowering.graph;
        let Op::Contraction { lhs, rhs, out, dtype, precision } = graph.op(sum) else {
            return Err(Error::internal("not a contraction"));
        };

        let (kept, index) = axes_of(scope, graph.shape(root));
        let at_sum = if root == sum {
            index.clone()
        } else {
            let map = sum_index(graph, lowering.fusion, root, sum);
            substitute(&map.ok_or_else(|| Error::internal("the epilogue does not read its sum"))?, &index)
        };

        let values = [graph.operands(sum)[0], graph.operands(sum)[1]];
        let summed = reduced_labels(lhs, out);
        let extents: Vec<Dim> = summed.iter().map(|label| extent(graph, values[0], lhs, *label)).collect();
        let (reduced, reduced_index) = axes_of(scope, &extents);
        let at = |label: &Label| match out.iter().position(|other| other == label) {
            Some(k) => at_sum[k].clone(),
            None => summed
                .iter()
                .position(|other| other == label)
                .map_or_else(Dim::zero, |k| reduced_index[k].clone()),
        };

        let mut exprs = Vec::new();
        let mut operands = Vec::new();
        let mut padded = Vec::new();
        for (value, labels) in values.into_iter().zip([lhs, rhs]) {
            let at: Vec<Dim> = labels.iter().map(at).collect();
            let (operand, index) = operand_at(lowering, scope, value, &at);
            if operands.is_empty() {
                padded = padded_axes(graph, scope, operand.value, &index, &reduced);
            }
            exprs.push(address_at(lowering, scope, &operand, &index));
            operands.push(operand);
        }

        let mut inliner = Inliner::new(lowering, scope);
        inliner.sum = Some(sum);
        let reg = inliner.define(root, &index)?;
        inliner.store_everywhere(root, &index, reg);
        let epilogue = inliner.code;
        exprs.extend(exprs_of(&epilogue));
        if !padded.is_empty() && !operands[1].constant.as_ref().is_some_and(Tensor::is_finite) {
            padded.clear();
        }
        exprs.extend(padded.iter().map(|padding| padding.position.clone()));

        let [lhs, rhs] = <[Operand; 2]>::try_from(operands).map_err(|_| Error::internal("two operands"))?;
        let nest = Nest::new(kept, reduced, exprs);
        let precision = if *precision == Precision::Full { Precision::F32 } else { *precision };
        Ok(ContractionNest { root, nest, operands: [lhs, rhs], padded, epilogue, dtype: *dtype, precision })
    }

    /// The form of the loops, from the operands that the innermost axis of the result moves. `target` is the address of
    /// the result. A constant operand is packed and has its columns adjacent, so it is the right one where the other
    /// operand would be gathered.
    pub(super) fn form(&self, scope: &KernelScope, target: &Dim) -> LoopForm {
        if self.precision == Precision::Int8 {
            let is_right = self.operands[1].has_few_bits();
            return if is_right { LoopForm::Matrix } else { LoopForm::SwappedMatrix };
        }
        let [lhs, rhs] = [&self.nest.exprs[0], &self.nest.exprs[1]];
        let kept = self.nest.axes(AxisRole::Kept);
        let unit = kept.iter().rev().find(|axis| step(&scope.facts, target, axis) == 1).or(kept.last());
        let Some(unit) = unit else { return LoopForm::Matrix };

        match (lhs.contains(&unit.var), rhs.contains(&unit.var)) {
            (true, true) => LoopForm::Strips,
            (true, false) if self.has_planes(scope, 0, unit) => LoopForm::Strips,
            (false, true) if self.has_planes(scope, 1, unit) => LoopForm::Strips,
            (false, true) if self.has_few_columns(scope, 0, unit) => LoopForm::Strips,
            (true, false) if self.has_few_columns(scope, 1, unit) => LoopForm::Strips,
            (true, false) if self.gathers(scope, 0, unit) => LoopForm::Matrix,
            (_, true) if self.gathers(scope, 1, unit) => LoopForm::SwappedMatrix,
            // A single column is a row of the other operand, whose columns are adjacent.
            (true, false) if step(&scope.facts, lhs, unit) == 1 => LoopForm::SwappedMatrix,
            (true, false) => LoopForm::Matrix,
            (false, _) => LoopForm::Matrix,
        }
    }

    /// Whether the other operand has a few constant weights for each step of a batch axis, with which operand `varying`
    /// is multiplied along `unit`: the planes of a depthwise convolution.
    fn has_planes(&self, scope: &KernelScope, varying: usize, unit: &Axis) -> bool {
        let [image, weights] = [varying, 1 - varying].map(|side| &self.nest.exprs[side]);
        let kept = self.nest.axes(AxisRole::Kept);
        let moves_weights = |axis: &&Axis| weights.contains(&axis.var);
        let has_channels = kept.iter().any(|axis| moves_weights(&axis));
        let has_columns = kept.iter().filter(moves_weights).any(|axis| !image.contains(&axis.var));
        let Operand { constant, .. } = &self.operands[1 - varying];
        constant.as_ref().is_some_and(|weights| weights.few_bits().is_none())
            && has_channels
            && !has_columns
            && matches!(step(&scope.facts, image, unit), 1..=MAX_STEP)
            && self.terms().is_some_and(|terms| terms <= MAX_WINDOW)
    }

    /// Whether each channel of operand `varying` has a few columns of constant weights along `unit`, as in a depthwise
    /// convolution with more channels of the result. Strips along the channels fill vectors, but the columns do not.
    fn has_few_columns(&self, scope: &KernelScope, varying: usize, unit: &Axis) -> bool {
        let [image, weights] = [varying, 1 - varying].map(|side| &self.nest.exprs[side]);
        let is_constant =
            |extent: &Dim, from: i64, to: i64| extent.as_i64().is_some_and(|n| (from..to).contains(&n));
        let is_channel = |axis: &Axis| {
            weights.contains(&axis.var)
                && image.contains(&axis.var)
                && step(&scope.facts, image, axis) == 1
                && is_constant(&axis.extent, MIN_COLUMNS, i64::MAX)
        };
        let kept = self.nest.axes(AxisRole::Kept);
        let next = kept.iter().rev().nth(1);
        let Operand { constant, dtype, .. } = &self.operands[1 - varying];
        self.dtype == DType::F32
            && *dtype == DType::F32
            && constant.as_ref().is_some_and(|weights| weights.few_bits().is_none())
            && is_constant(&unit.extent, 1, MIN_COLUMNS)
            && kept.last().is_some_and(|last| last.var == unit.var)
            && next.is_some_and(is_channel)
            && self.terms().is_some_and(|terms| terms <= MAX_WINDOW)
    }

    /// The number of products of each sum.
    pub(super) fn terms(&self) -> Option<i64> {
        let reduced = self.nest.axes(AxisRole::Reduced);
        reduced.iter().try_fold(1i64, |n, axis| n.checked_mul(axis.extent.as_i64()?))
    }

    /// Whether operand `varying` is not adjacent along `unit`, and the other one is a constant that has enough columns,
    /// with sums that are deep enough to pay for stores of single elements.
    fn gathers(&self, scope: &KernelScope, varying: usize, unit: &Axis) -> bool {
        let constant = 1 - varying;
        let points = |role: AxisRole| {
            let axes = self.nest.axes(role);
            let moving = axes.iter().filter(|axis| self.nest.exprs[constant].contains(&axis.var));
            moving.map(|axis| axis.extent.as_i64()).try_fold(1i64, |n, extent| n.checked_mul(extent?))
        };
        let (Some(columns), Some(depth)) = (points(AxisRole::Kept), points(AxisRole::Reduced)) else {
            return false;
        };
        self.operands[constant].constant.is_some()
            && step(&scope.facts, &self.nest.exprs[varying], unit) != 1
            && columns >= MIN_COLUMNS
            && depth / columns >= TERMS_PER_COLUMN
    }

    /// The address of the result.
    pub(super) fn target(&self) -> &Dim {
        &self.nest.exprs[self.nest.exprs.len() - self.padded.len() - 1]
    }

    /// Takes the padded axes out of the nest, with their positions.
    pub(super) fn take_padding(&mut self) -> Vec<Padding> {
        let positions = self.nest.exprs.split_off(self.nest.exprs.len() - self.padded.len());
        let padded = mem::take(&mut self.padded).into_iter().zip(positions);
        padded.map(|(padding, position)| Padding { position, ..padding }).collect()
    }

    /// Merges axes. Returns the padding along the first axis of the reduction, if there is one and merging allows it.
    pub(super) fn merge(&mut self, scope: &mut KernelScope) -> Option<Padding> {
        let padded = self.take_padding();
        let reduced = self.nest.axes(AxisRole::Reduced);
        let is_along_first = |padding: &Padding| {
            let mut moving =
                reduced.iter().enumerate().filter(|(_, axis)| padding.position.contains(&axis.var));
            moving.next().is_some_and(|(idx, _)| idx == 0) && moving.next().is_none()
        };
        let Some(padding) = padded.into_iter().find(is_along_first) else {
            self.nest.merge(scope);
            return None;
        };

        let mut with_position = self.nest.clone();
        with_position.exprs.push(padding.position.clone());
        with_position.merge(scope);
        self.nest.merge(scope);
        if self.nest.len() < with_position.len() {
            return None;
        }
        self.nest = with_position;
        let position = self.nest.exprs.pop()?;
        Some(Padding { position, ..padding })
    }

    pub(super) fn swap_operands(&mut self) {
        self.take_padding();
        self.operands.swap(0, 1);
        self.nest.exprs.swap(0, 1);
    }

    /// Classifies kept axes by the operands that they move.
    pub(super) fn classify(&self) -> impl Fn(&Axis) -> AxisClass + use<> {
        let lhs = self.nest.exprs[0].clone();
        let rhs = self.nest.exprs[1].clone();
        move |axis| match (lhs.contains(&axis.var), rhs.contains(&axis.var)) {
            (true, true) => AxisClass::Batch,
            (_, false) => AxisClass::Row,
            (false, true) => AxisClass::Column,
        }
    }
}

fn reduced_labels(lhs: &[Label], out: &[Label]) -> Vec<Label> {
    lhs.iter().copied().filter(|label| !out.contains(label)).collect()
}

fn extent(graph: &Graph, operand: Value, labels: &[Label], label: Label) -> Dim {
    let axis = labels.iter().position(|other| *other == label);
    axis.map_or_else(Dim::one, |axis| graph.shape(operand)[axis].clone())
}

/// The memory of an operand, and the index of its element at `index` of the operand.
fn operand_at(
    lowering: &Lowering,
    scope: &KernelScope,
    operand: Value,
    index: &[Dim],
) -> (Operand, Vec<Dim>) {
    let graph = lowering.graph;
    let mut value = operand;
    let mut index = index.to_vec();
    while !lowering.storage.contains_key(&value)
        && let Op::View { index: map, .. } = graph.op(value)
    {
        index = substitute(map, &index).iter().map(|expr| scope.facts.simplify(expr)).collect();
        value = graph.operands(value)[0];
    }
    let constant = graph.as_constant(value).cloned();
    (Operand { value, dtype: graph.dtype(value), constant }, index)
}

/// The address of the element of an operand at `index` of its memory.
fn address_at(lowering: &Lowering, scope: &KernelScope, operand: &Operand, index: &[Dim]) -> Dim {
    let at = match lowering.storage.get(&operand.value) {
        Some(storage) => storage.at(index).index,
        None => address(Dim::zero(), &row_major(lowering.graph.shape(operand.value)), index),
    };
    scope.facts.simplify(&at)
}

/// The axes of `value` that are padded with zeros, and along which reduced axes move `index`.
fn padded_axes(
    graph: &Graph,
    scope: &KernelScope,
    value: Value,
    index: &[Dim],
    reduced: &[Axis],
) -> Vec<Padding> {
    let Op::Pad { lo, hi, value: filled } = graph.op(value) else { return Vec::new() };
    let is_zero = *filled == Scalar::from_i64(graph.dtype(value), 0);
    if !is_zero || graph.dtype(value) != DType::F32 {
        return Vec::new();
    }
    let image = graph.shape(graph.operands(value)[0]);
    let padded = index.iter().zip(image).zip(lo.iter().zip(hi)).filter_map(|((position, size), (lo, hi))| {
        let is_reduced = reduced.iter().any(|axis| position.contains(&axis.var));
        let many = (lo + hi) * MAX_SIZE_TO_PADDING;
        let smallest = scope.facts.bounds(size).lo?;
        let may_matter = scope.facts.bounds(&many).hi.is_none_or(|many| smallest < many);
        let end = scope.facts.simplify(&(lo + size));
        (is_reduced && may_matter).then(|| Padding { position: position.clone(), begin: lo.clone(), end })
    });
    padded.collect()
}
