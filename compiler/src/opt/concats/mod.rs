//! Moves work through concatenations, so that no kernel copies their operands first.
//!
//! An operand that is computed is computed in the memory of the concatenation. An operand that is in memory elsewhere
//! (an input, a constant, a part of another value) would be copied there. The copy is not needed if every reader can
//! work on the operands one by one:
//!
//! ```text
//! f(concat(a, b))                   = concat(f(a), f(b))           elementwise
//! reduce(concat(a, b))              = concat(reduce a, reduce b)   across the axis
//! reduce(concat(a, b))              = reduce a op reduce b         along the axis
//! contraction(concat(a, b), w)      = concat of contractions       rows, columns, batches
//! contraction(concat(a, b), [u; v]) = contraction(a, u) + contraction(b, v)
//! ```
//!
//! Sums of floats along the axis are added operand by operand then. Their order depends on the extents alone, as
//! everywhere.
//!
//! [`adjacent`] first finds operands that are parts of a value or of an earlier concatenation. [`readers`] decides
//! which concatenations are divided. This pass runs last, because offload targets see whole operators.

mod adjacent;
mod pieces;
mod readers;

use super::{dead::dead, rebuild::rebuild};
use crate::{
    error::Result,
    graph::{Graph, Label, Node, Op, Value},
    scalar::{BinaryOp, Precision, ReduceOp},
};
use pieces::{Pieces, Split};
use readers::Divided;
use symshape_runtime::DType;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn concats(graph: &mut Graph) -> Result<()> {
    if !graph.nodes.values().any(|node| matches!(node.op, Op::Concat { .. })) {
        return Ok(());
    }
    adjacent::merge(graph)?;

    let divided = readers::divided(graph);
    if divided.is_empty() {
        return Ok(());
    }
    let mut pieces = Pieces::default();
    rebuild(graph, |new, node| Ok(divide(new, node, &divided, &mut pieces)?.map(|value| vec![value])))?;
    dead(graph)
}

/// The value that replaces the result of `node`, if it is computed piece by piece or has pieces.
fn divide(new: &mut Graph, node: &Node, divided: &Divided, pieces: &mut Pieces) -> Result<Option<Value>> {
    let result = node.results[0];
    match &node.op {
        Op::Concat { axis } => {
            let Some(is_copied) = divided.get(&result) else { return Ok(None) };
            let parts = pieces.parts_of(new, &node.operands, *axis);
            let value = new.push(node.op.clone(), &node.operands)?;
            let is_copied = if is_copied.len() == parts.len() { is_copied.clone() } else { vec![] };
            pieces.insert(value, Split { axis: *axis, parts, is_copied, is_pushed: true });
            Ok(Some(value))
        }
        Op::View { shape, index } => pieces.view(new, node.operands[0], shape, index),
        Op::Map(_) => map(new, node, divided.contains_key(&result), pieces),
        Op::Reduce { op, axes } => reduce(new, node, *op, axes, pieces),
        Op::Contraction { .. } => contraction(new, node, divided.contains_key(&result), pieces),
        _ => Ok(None),
    }
}

/// The operand that is divided, and its position.
fn pushed<'p>(node: &Node, pieces: &'p Pieces) -> Option<(usize, &'p Split)> {
    let split = |(at, operand): (usize, &Value)| Some((at, pieces.get(*operand)?));
    node.operands.iter().enumerate().filter_map(split).find(|(_, split)| split.is_pushed)
}

fn map(new: &mut Graph, node: &Node, is_divided: bool, pieces: &mut Pieces) -> Result<Option<Value>> {
    let Some((_, split)) = pushed(node, pieces) else { return Ok(None) };
    let split = split.clone();
    let mut parts = Vec::new();
    for idx in 0..split.parts.len() {
        let operands: Vec<Value> = node
            .operands
            .iter()
            .map(|operand| pieces.slice(new, *operand, split.axis, &split.parts, split.axis, idx))
            .collect::<Result<_>>()?;
        parts.push(new.push(node.op.clone(), &operands)?);
    }

    let value = new.concat(&parts, split.axis)?;
    pieces.insert(value, Split { parts, is_copied: vec![], is_pushed: is_divided, ..split });
    Ok(Some(value))
}

fn reduce(
    new: &mut Graph,
    node: &Node,
    op: ReduceOp,
    axes: &[usize],
    pieces: &mut Pieces,
) -> Result<Option<Value>> {
    let Some((_, split)) = pushed(node, pieces) else { return Ok(None) };
    let split = split.clone();
    if !axes.contains(&split.axis) {
        let reduced = |part: &Value| new.push(node.op.clone(), &[*part]);
        let parts: Vec<Value> = split.parts.iter().map(reduced).collect::<Result<_>>()?;
        let axis = split.axis - axes.iter().filter(|gone| **gone < split.axis).count();
        let value = new.concat(&parts, axis)?;
        pieces.insert(value, Split { axis, parts, is_copied: vec![], is_pushed: false });
        return Ok(Some(value));
    }

    let dtype = new.dtype(node.operands[0]);
    let wide = accumulator(dtype);
    let mut total = None;
    for part in split.parts {
        let part = if wide == dtype { part } else { new.cast(wide, part)? };
        let partial = new.push(node.op.clone(), &[part])?;
        total = Some(match total {
            None => partial,
            Some(total) => new.binary(op.binary(), total, partial)?,
        });
    }
    let Some(total) = total else { return Ok(None) };
    if wide == dtype { Ok(Some(total)) } else { new.cast(dtype, total).map(Some) }
}

/// The type in which partial results are combined.
fn accumulator(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

fn contraction(new: &mut Graph, node: &Node, is_divided: bool, pieces: &mut Pieces) -> Result<Option<Value>> {
    let Op::Contraction { lhs, rhs, out, precision, .. } = &node.op else { return Ok(None) };
    let Some((side, split)) = pushed(node, pieces) else { return Ok(None) };
    let split = split.clone();
    let labels = [lhs, rhs];
    let label = labels[side][split.axis];
    let position = |labels: &[Label]| labels.iter().position(|other| *other == label);
    let Some(axis) = position(out) else {
        // Blocks of rounded activations would be divided too.
        if *precision == Precision::Int8 {
            return Ok(None);
        }
        return sum_of_contractions(new, node, side, label, &split, pieces);
    };

    let mut parts = Vec::new();
    for idx in 0..split.parts.len() {
        let mut operands = node.operands.clone();
        operands[side] = split.parts[idx];
        if let Some(k) = position(labels[1 - side]) {
            operands[1 - side] = pieces.slice(new, operands[1 - side], k, &split.parts, split.axis, idx)?;
        }
        parts.push(new.push(node.op.clone(), &operands)?);
    }

    let value = new.concat(&parts, axis)?;
    pieces.insert(value, Split { axis, parts, is_copied: vec![], is_pushed: is_divided });
    Ok(Some(value))
}

/// A contraction for each operand that would be copied, and for each run of the other operands; and their sum.
fn sum_of_contractions(
    new: &mut Graph,
    node: &Node,
    side: usize,
    label: Label,
    split: &Split,
    pieces: &Pieces,
) -> Result<Option<Value>> {
    let Op::Contraction { lhs, rhs, out, dtype, precision } = &node.op else { return Ok(None) };
    let labels = [lhs, rhs];
    let Some(other_axis) = labels[1 - side].iter().position(|other| *other == label) else {
        return Ok(None);
    };

    let mut groups = Vec::new();
    for group in readers::groups(&split.is_copied) {
        groups.push(match &split.parts[group] {
            [part] => *part,
            run => new.concat(run, split.axis)?,
        });
    }

    let wide = accumulator(*dtype);
    let [lhs, rhs, out] = [lhs, rhs, out].map(Clone::clone);
    let op = Op::Contraction { lhs, rhs, out, dtype: wide, precision: *precision };
    let mut total: Option<Value> = None;
    for idx in 0..groups.len() {
        let mut operands = node.operands.clone();
        operands[side] = groups[idx];
        operands[1 - side] = pieces.slice(new, operands[1 - side], other_axis, &groups, split.axis, idx)?;
        let partial = new.push(op.clone(), &operands)?;
        total = Some(match total {
            None => partial,
            Some(total) => new.binary(BinaryOp::Add, total, partial)?,
        });
    }
    let Some(total) = total else { return Ok(None) };
    if wide == *dtype { Ok(Some(total)) } else { new.cast(*dtype, total).map(Some) }
}
