//! Values with the pieces that they are the concatenation of.

use crate::{
    error::Result,
    graph::{Graph, Op, Value, axis},
    opt::views::compose,
};
use std::collections::HashMap;
use symshape::{Dim, Node, Symbol};

/// The pieces of a value along an axis.
#[derive(Clone)]
pub(super) struct Split {
    pub(super) axis: usize,
    pub(super) parts: Vec<Value>,
    /// Whether each part would be copied into the concatenation; empty if the parts are computed.
    pub(super) is_copied: Vec<bool>,
    /// Whether readers work on the pieces. Otherwise the whole value is in memory, and the pieces are parts of it.
    pub(super) is_pushed: bool,
}

/// The values of the new graph that have pieces.
#[derive(Default)]
pub(super) struct Pieces {
    splits: HashMap<Value, Split>,
}

impl Pieces {
    pub(super) fn get(&self, value: Value) -> Option<&Split> {
        self.splits.get(&value)
    }

    pub(super) fn insert(&mut self, value: Value, split: Split) {
        self.splits.insert(value, split);
    }

    /// The operands of a concatenation, with the pieces of nested ones in their place.
    pub(super) fn parts_of(&self, graph: &Graph, operands: &[Value], axis: usize) -> Vec<Value> {
        let mut parts = Vec::new();
        for operand in operands {
            match (self.get(*operand), graph.op(*operand)) {
                (Some(split), Op::Concat { .. }) if split.axis == axis && split.is_pushed => {
                    parts.extend(&split.parts);
                }
                _ => parts.push(*operand),
            }
        }
        parts
    }

    /// The view of `x` and of its pieces.
    pub(super) fn view(
        &mut self,
        new: &mut Graph,
        x: Value,
        shape: &[Dim],
        index: &[Dim],
    ) -> Result<Option<Value>> {
        let Some(split) = self.get(x).cloned() else { return Ok(None) };
        let Some(moved) = moved_axis(new, x, shape, index, split.axis) else { return Ok(None) };

        let mut parts = Vec::new();
        let mut offset = Dim::zero();
        for part in &split.parts {
            let len = new.shape(*part)[split.axis].clone();
            let mut shape = shape.to_vec();
            shape[moved.axis] = new.facts.simplify(&(&len * &moved.step));
            let start = &offset * &moved.step;
            let mut index = shifted(index, moved.axis, &start);
            index[split.axis] = &index[split.axis] - &offset;
            let Some(view) = view_of(new, *part, shape, index)? else { return Ok(None) };
            parts.push(view);
            offset = new.facts.simplify(&(offset + len));
        }

        // A larger tensor or an output that reads the view takes its pieces.
        let value = if split.is_pushed {
            new.concat(&parts, moved.axis)?
        } else {
            new.view(x, shape.to_vec(), index.to_vec())?
        };
        self.insert(value, Split { axis: moved.axis, parts, ..split });
        Ok(Some(value))
    }

    /// The slice of `x` along its axis `k` that belongs to piece `idx` of `parts`, which are divided along `axis`.
    pub(super) fn slice(
        &self,
        new: &mut Graph,
        x: Value,
        k: usize,
        parts: &[Value],
        axis: usize,
        idx: usize,
    ) -> Result<Value> {
        if let Some(split) = self.get(x).filter(|split| split.axis == k && split.parts.len() == parts.len()) {
            let len = |value: &Value, axis: usize| new.shape(*value)[axis].clone();
            let mut pairs = split.parts.iter().zip(parts);
            if pairs.all(|(own, part)| new.facts.prove_eq(&len(own, k), &len(part, axis)).is_yes()) {
                return Ok(split.parts[idx]);
            }
        }

        let start = length(new, &parts[..idx], axis);
        let len = new.shape(parts[idx])[axis].clone();
        let mut shape = new.shape(x).to_vec();
        let index: Vec<Dim> = (0..shape.len()).map(|k| self::axis(k).into()).collect();
        let index = shifted(&index, k, &start);
        shape[k] = len.clone();
        match view_of(new, x, shape, index)? {
            Some(view) => Ok(view),
            None => new.slice(x, k, start, len, 1),
        }
    }
}

/// The axis of a view that shows an axis of its operand: element `i` of the operand at `step * i` and the following.
pub(super) struct MovedAxis {
    pub(super) axis: usize,
    pub(super) step: Dim,
}

/// The axis of this view of `x` along which all of the operand's axis `k` is shown in order.
pub(super) fn moved_axis(
    graph: &Graph,
    x: Value,
    shape: &[Dim],
    index: &[Dim],
    k: usize,
) -> Option<MovedAxis> {
    let (inner, step) = match index[k].node() {
        Node::FloorDiv(inner, step) => (inner.clone(), step.clone()),
        _ => (index[k].clone(), Dim::one()),
    };
    let axis = (0..shape.len()).find(|axis| inner == Dim::from(self::axis(*axis)))?;
    let is_whole = graph.facts.prove_eq(&shape[axis], &(&graph.shape(x)[k] * &step)).is_yes();
    is_whole.then_some(MovedAxis { axis, step })
}

/// `index` with `$k + start` in place of `$k`.
fn shifted(index: &[Dim], k: usize, start: &Dim) -> Vec<Dim> {
    let by = |symbol: &Symbol| (*symbol == axis(k)).then(|| Dim::from(axis(k)) + start);
    index.iter().map(|expr| expr.substitute(&by)).collect()
}

/// A view of `x`, through its views, and of one operand of a concatenation if it shows no other. `None` if an index
/// can't be proven to be inside.
pub(super) fn view_of(
    graph: &mut Graph,
    x: Value,
    shape: Vec<Dim>,
    index: Vec<Dim>,
) -> Result<Option<Value>> {
    let facts = graph.index_facts(&shape);
    let mut x = x;
    let mut index = index;
    loop {
        index = index.iter().map(|expr| facts.simplify(expr)).collect();
        let inside = |(expr, dim): (&Dim, &Dim)| {
            facts.prove_le(&Dim::zero(), expr).is_yes() && facts.prove_lt(expr, dim).is_yes()
        };
        if !index.iter().zip(graph.shape(x)).all(inside) {
            return Ok(None);
        }

        match graph.op(x) {
            Op::View { index: inner, .. } if !graph.op(x).folds() => {
                index = compose(inner, &index);
                x = graph.operands(x)[0];
            }
            Op::Concat { axis } => {
                let axis = *axis;
                let Some((part, offset)) = shown_part(graph, x, axis, &facts, &index[axis]) else { break };
                index[axis] = &index[axis] - offset;
                x = part;
            }
            _ => break,
        }
    }

    let is_identity = index.iter().enumerate().all(|(k, expr)| *expr == Dim::from(axis(k)));
    if is_identity && graph.shape(x) == shape {
        return Ok(Some(x));
    }
    graph.view(x, shape, index).map(Some)
}

/// The operand of the concatenation `x` in which `at`, an index along its axis, always is; and where it begins.
fn shown_part(
    graph: &Graph,
    x: Value,
    axis: usize,
    facts: &symshape::Facts,
    at: &Dim,
) -> Option<(Value, Dim)> {
    let mut begin = Dim::zero();
    for part in graph.operands(x) {
        let end = graph.facts.simplify(&(&begin + &graph.shape(*part)[axis]));
        if facts.prove_lt(at, &end).is_yes() {
            return facts.prove_le(&begin, at).is_yes().then_some((*part, begin));
        }
        begin = end;
    }
    None
}

/// The joint length of `parts` along `axis`.
fn length(graph: &Graph, parts: &[Value], axis: usize) -> Dim {
    let sum = Dim::sum(parts.iter().map(|part| graph.shape(*part)[axis].clone()));
    graph.facts.simplify(&sum)
}
