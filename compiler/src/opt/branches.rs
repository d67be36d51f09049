//! Adds up the branches of convolutions that read the same image. Networks for training have such branches, which their
//! authors merge for inference: RepVGG, MobileOne and others.
//!
//! ```text
//! contraction(x, v) + contraction(x, w)        = contraction(x, v + w)
//! contraction(x, v) + contraction(window x, w) = contraction(x, v + w in a part of the window)
//! contraction(x, v) + x * s                    = contraction(x, v + s where the window shows x itself)
//! ```
//!
//! Vectors that are added along an axis of the results are added up too. The larger window stays, so the sum takes no
//! more products than before.
//!
//! The laws hold for real numbers. On floats they round differently, by no more than the contraction itself rounds.
//!
//! Source: X. Ding and others, "RepVGG: Making VGG-style ConvNets Great Again", CVPR 2021.

use super::{
    affine::{ByChannel, by_channel, combined, is_bf16, with_vector},
    rebuild_by_uses::rebuild_by_uses,
    views::compose,
};
use crate::{
    error::Result,
    graph::{Graph, Label, Op, Value, axis},
    scalar::{BinaryOp, Body, Precision, Scalar, Step},
    tensor::Tensor,
};
use cranelift_entity::SecondaryMap;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// Most zeros that are left out of a branch.
const MAX_ZEROS: usize = 4;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn branches(graph: &mut Graph) -> Result<()> {
    rebuild_by_uses(graph, |new, node, used| {
        let (Op::Map(body), &[a, b]) = (&node.op, &node.operands[..]) else { return Ok(None) };
        if !is_sum(body) || new.shape(a) != new.shape(b) {
            return Ok(None);
        }
        for [x, y] in [[a, b], [b, a]] {
            if let Some(sum) = joined(new, x, y, used)? {
                return Ok(Some(sum));
            }
        }
        Ok(None)
    })
}

fn is_sum(body: &Body) -> bool {
    let [Step::Binary(BinaryOp::Add, x, y)] = body.steps[..] else { return false };
    x != y && body.params == [DType::F32; 2] && body.result.0 == 2
}

/// A value that is added along an axis.
type Bias = Option<(usize, Vec<Scalar>)>;

/// The sum of a branch with a contraction and of another branch.
fn joined(new: &mut Graph, x: Value, y: Value, used: &SecondaryMap<Value, u32>) -> Result<Option<Value>> {
    let [(sum, bias), (other, other_bias)] = [x, y].map(|value| without_bias(new, value, used));
    let Some(first) = Branch::of(new, sum, used) else { return Ok(None) };
    let weights = match Branch::of(new, other, used) {
        Some(second) => first.with_branch(new, &second),
        None => first.with_image(new, other),
    };
    let bias = match (bias, other_bias) {
        (Some((axis, x)), Some((other, y))) if axis == other => Some((axis, combined(BinaryOp::Add, &x, &y))),
        (Some(_), Some(_)) => return Ok(None),
        (one, other) => one.or(other),
    };
    let Some(weights) = weights else { return Ok(None) };

    let weights = new.constant(weights)?;
    let sum = new.push(first.op, &[first.lhs, weights])?;
    let sum = match first.view {
        Some((shape, index)) => new.view(sum, shape, index)?,
        None => sum,
    };
    match bias {
        Some((axis, vector)) => with_vector(new, BinaryOp::Add, sum, axis, &vector).map(Some),
        None => Ok(Some(sum)),
    }
}

/// The value that a vector is added to, with this vector. A few zeros that are added are left out.
fn without_bias(graph: &Graph, mut value: Value, used: &SecondaryMap<Value, u32>) -> (Value, Bias) {
    for _ in 0..MAX_ZEROS {
        if used[value] <= 1 && adds_zero(graph, value) {
            value = graph.operands(value)[0];
        }
    }
    match by_channel(graph, graph.op(value), graph.operands(value)) {
        Some(ByChannel { op: BinaryOp::Add, x, axis, vector }) if used[value] <= 1 => {
            (x, Some((axis, vector)))
        }
        _ => (value, None),
    }
}

fn adds_zero(graph: &Graph, value: Value) -> bool {
    let Op::Map(body) = graph.op(value) else { return false };
    let [Step::Const(zero), Step::Binary(BinaryOp::Add, x, y)] = body.steps[..] else { return false };
    let operands = [x.0, y.0];
    zero.as_f64() == 0.0 && (operands == [0, 1] || operands == [1, 0]) && body.result.0 == 2
}

/// A contraction with constant weights as its right operand.
struct Branch {
    op: Op,
    lhs: Value,
    weights: Tensor,
    labels: [Vec<Label>; 3],
    precision: Precision,
    /// The view of the contraction, without axes of one element.
    view: Option<(Vec<Dim>, Vec<Dim>)>,
    /// The tensor that the left operand shows, and the element that it shows at an index. Elements outside of the
    /// tensor are 0.
    image: Value,
    index: Vec<Dim>,
}

impl Branch {
    /// `None` if the value has other uses or another form. The uses of new values are not known; they have one.
    fn of(graph: &Graph, mut value: Value, used: &SecondaryMap<Value, u32>) -> Option<Branch> {
        let mut view = None;
        if let Op::View { shape, index } = graph.op(value) {
            let is_axis = |dim: &Dim| (0..shape.len()).any(|k| *dim == Dim::from(axis(k)));
            if used[value] > 1 || !index.iter().all(|dim| is_axis(dim) || dim.as_i64() == Some(0)) {
                return None;
            }
            view = Some((shape.clone(), index.clone()));
            value = graph.operands(value)[0];
        }
        let op = graph.op(value);
        let Op::Contraction { lhs, rhs, out, dtype: DType::F32, precision } = op else { return None };
        let &[data, weights] = graph.operands(value) else { return None };
        let weights = graph.as_constant(weights)?;
        let is_float = weights.dtype() == DType::F32 && weights.few_bits().is_none();
        if used[value] > 1 || !is_float || is_bf16(weights) {
            return None;
        }
        let (image, index) = shown(graph, data, &|_| false);
        let labels = [lhs.clone(), rhs.clone(), out.clone()];
        Some(Branch {
            op: op.clone(),
            lhs: data,
            weights: weights.clone(),
            labels,
            precision: *precision,
            view,
            image,
            index,
        })
    }

    /// The axis of the branch's value that a label belongs to.
    fn place(&self, label: Label) -> Option<usize> {
        let at = self.labels[2].iter().position(|other| *other == label)?;
        match &self.view {
            Some((shape, index)) => (0..shape.len()).find(|k| index[at] == Dim::from(axis(*k))),
            None => Some(at),
        }
    }

    /// The places in `lhs` of the axes that are summed.
    fn summed(&self) -> impl Iterator<Item = usize> + '_ {
        let [lhs, _, out] = &self.labels;
        (0..lhs.len()).filter(|k| !out.contains(&lhs[*k]))
    }

    /// The weights of the sum with another contraction, whose window is a part of this one.
    fn with_branch(&self, graph: &Graph, other: &Branch) -> Option<Tensor> {
        if self.labels != other.labels || self.precision != other.precision || self.view != other.view {
            return None;
        }
        let (image, index) = shown(graph, other.lhs, &|value| value == self.image);
        if image != self.image {
            return None;
        }
        let [lhs, rhs, _] = &self.labels;
        let facts = graph.index_facts(graph.shape(other.lhs));
        let mut offsets = vec![0; rhs.len()];
        let mut moved = self.index.clone();
        for k in self.summed() {
            let [most, some] = [self.lhs, other.lhs].map(|value| graph.shape(value)[k].as_i64());
            let spare = most?.checked_sub(some?).filter(|spare| *spare >= 0)?;
            let at = rhs.iter().position(|label| *label == lhs[k])?;
            let (offset, places) =
                matching(&facts, &moved, k, 0..=spare, &index, &|at| Dim::from(axis(k)) + at)?;
            offsets[at] = offset as usize;
            moved = places;
        }
        let is_same = moved.iter().zip(&index).all(|(x, y)| facts.prove_eq(x, y).is_yes());
        if is_same { self.plus(&other.weights, &offsets) } else { None }
    }

    /// The weights of the sum with a part of the image, or with its product with a vector.
    fn with_image(&self, graph: &Graph, value: Value) -> Option<Tensor> {
        let scaled = by_channel(graph, graph.op(value), graph.operands(value));
        let scaled = scaled.filter(|scaled| scaled.op == BinaryOp::Mul);
        let part = scaled.as_ref().map_or(value, |scaled| scaled.x);
        let (image, wanted) = shown(graph, part, &|value| value == self.image);
        if image != self.image {
            return None;
        }

        // Axes of the value have the numbers after those of the left operand.
        let [lhs, rhs, out] = &self.labels;
        let moved_axis = |k: usize| Dim::from(axis(lhs.len() + k));
        let all: Vec<Dim> = (0..graph.rank(value)).map(moved_axis).collect();
        let wanted = compose(&wanted, &all);
        let mut facts = graph.index_facts(graph.shape(self.lhs));
        for (k, extent) in graph.shape(value).iter().enumerate() {
            facts.declare_index(&axis(lhs.len() + k), extent);
        }
        let kept = |k: usize| match self.place(lhs[k]) {
            Some(at) => moved_axis(at),
            None if out.contains(&lhs[k]) => Dim::zero(),
            None => Dim::from(axis(k)),
        };
        let mut moved = compose(&self.index, &(0..lhs.len()).map(kept).collect::<Vec<_>>());

        // The output channel, if the contraction sums over channels.
        let channel = out.iter().find(|label| !lhs.contains(label));
        let channel = channel.and_then(|label| Some((*label, self.place(*label)?)));
        let mut taps = vec![None; rhs.len()];
        let mut diagonal = None;
        for k in self.summed() {
            let extent = graph.shape(self.lhs)[k].as_i64()?;
            let at = rhs.iter().position(|label| *label == lhs[k])?;
            if let Some((label, place)) = channel
                && diagonal.is_none()
                && graph.shape(value)[place].as_i64() == Some(extent)
                && (0..moved.len()).any(|d| moved[d] == Dim::from(axis(k)) && wanted[d] == moved_axis(place))
            {
                let by = |symbol: &Symbol| (*symbol == axis(k)).then(|| moved_axis(place));
                moved = moved.iter().map(|dim| dim.substitute(&by)).collect();
                diagonal = Some((at, rhs.iter().position(|other| *other == label)?));
                continue;
            }
            let (tap, places) = matching(&facts, &moved, k, 0..=extent - 1, &wanted, &Dim::from)?;
            taps[at] = Some(tap as usize);
            moved = places;
        }
        // Products of rows keep their residual, which is exact at any precision of the products.
        let is_convolution = taps.iter().any(Option::is_some);
        let is_same = moved.iter().zip(&wanted).all(|(x, y)| facts.prove_eq(x, y).is_yes());
        if !is_convolution || !is_same || channel.is_some() != diagonal.is_some() {
            return None;
        }
        let along = match &scaled {
            Some(scaled) => {
                let at = rhs.iter().position(|label| self.place(*label) == Some(scaled.axis))?;
                Some((at, &scaled.vector))
            }
            None => None,
        };

        let shape = self.weights.shape();
        let mut elems = self.weights.f32s().into_owned();
        for_indices(shape, &mut |flat, index| {
            let is_tap = taps.iter().zip(index).all(|(tap, at)| tap.is_none_or(|tap| tap == *at));
            if is_tap && diagonal.is_none_or(|(x, y)| index[x] == index[y]) {
                elems[flat] += along.map_or(1.0, |(at, vector)| vector[index[at]].as_f64() as f32);
            }
        });
        Tensor::from_f32(shape.to_vec(), &elems)
    }

    /// The weights plus others, which begin at these offsets and end within.
    fn plus(&self, other: &Tensor, offsets: &[usize]) -> Option<Tensor> {
        let shape = self.weights.shape();
        let mut elems = self.weights.f32s().into_owned();
        let others = other.f32s();
        for_indices(other.shape(), &mut |flat, index| {
            let places = index.iter().zip(offsets).zip(shape);
            let at = places.fold(0, |at, ((index, offset), size)| at * size + index + offset);
            elems[at] += others[flat];
        });
        Tensor::from_f32(shape.to_vec(), &elems)
    }
}

/// Calls `visit` with the number and the index of each element, in order.
fn for_indices(shape: &[usize], visit: &mut dyn FnMut(usize, &[usize])) {
    let mut index = vec![0; shape.len()];
    for flat in 0..shape.iter().product() {
        visit(flat, &index);
        for (at, size) in index.iter_mut().zip(shape).rev() {
            *at += 1;
            if *at < *size {
                break;
            }
            *at = 0;
        }
    }
}

/// The first number for which replacing axis `k` by `by(number)` makes the only coordinate with this axis equal to
/// `wanted`, with all coordinates then. The number is 0 if no coordinate has the axis.
fn matching(
    facts: &Facts,
    index: &[Dim],
    k: usize,
    mut numbers: std::ops::RangeInclusive<i64>,
    wanted: &[Dim],
    by: &dyn Fn(i64) -> Dim,
) -> Option<(i64, Vec<Dim>)> {
    let replaced =
        |dim: &Dim, number: i64| dim.substitute(&|symbol| (*symbol == axis(k)).then(|| by(number)));
    let mut with_axis = (0..index.len()).filter(|d| index[*d].contains(&axis(k)));
    let number = match (with_axis.next(), with_axis.next()) {
        (Some(d), None) => {
            numbers.find(|number| facts.prove_eq(&replaced(&index[d], *number), &wanted[d]).is_yes())?
        }
        (None, _) => 0,
        _ => return None,
    };
    Some((number, index.iter().map(|dim| replaced(dim, number)).collect()))
}

/// The tensor that a value shows through views and at most one padding with zeros, and the index of the element that it
/// shows. The search ends at the padded tensor, or where `is_end` holds.
fn shown(graph: &Graph, mut value: Value, is_end: &dyn Fn(Value) -> bool) -> (Value, Vec<Dim>) {
    let mut index: Vec<Dim> = (0..graph.rank(value)).map(|k| Dim::from(axis(k))).collect();
    while !is_end(value) {
        match graph.op(value) {
            Op::View { index: map, .. } => index = compose(map, &index),
            Op::Pad { value: blank, lo, .. } if blank.as_f64() == 0.0 => {
                index = index.iter().zip(lo).map(|(dim, lo)| dim - lo).collect();
                return (graph.operands(value)[0], index);
            }
            _ => break,
        }
        value = graph.operands(value)[0];
    }
    (value, index)
}
