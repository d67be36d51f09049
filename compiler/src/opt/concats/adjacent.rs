//! Finds operands of a concatenation that are parts of values in memory.
//!
//! - Slices that are next to each other in one value become one slice, or the value itself.
//! - A run of operands that an earlier concatenation has becomes that concatenation, whose memory can then be a part
//!   of the larger one. The features of a densely connected block so have one buffer.
//! - A view of a concatenation that shows one operand becomes a view of that operand.

use super::pieces::view_of;
use crate::{
    error::Result,
    graph::{Graph, Op, Value, axis as axis_symbol},
    opt::{dead::dead, rebuild::rebuild},
};
use symshape::Dim;

/// Runs the pass.
///
/// # Errors
/// None.
pub(super) fn merge(graph: &mut Graph) -> Result<()> {
    let mut earlier: Vec<Earlier> = Vec::new();
    rebuild(graph, |new, node| {
        let value = match &node.op {
            Op::View { shape, index } if reads_concat(new, node.operands[0]) => {
                view_of(new, node.operands[0], shape.clone(), index.clone())?
            }
            Op::Concat { axis } => Some(concat(new, &node.operands, *axis, &mut earlier)?),
            _ => None,
        };
        Ok(value.map(|value| vec![value]))
    })?;
    dead(graph)
}

/// A concatenation of the new graph, and its operands before runs of them were replaced.
struct Earlier {
    axis: usize,
    operands: Vec<Value>,
    value: Value,
}

fn reads_concat(graph: &Graph, value: Value) -> bool {
    matches!(graph.op(graph.through_views(value)), Op::Concat { .. })
}

fn concat(new: &mut Graph, operands: &[Value], axis: usize, earlier: &mut Vec<Earlier>) -> Result<Value> {
    let mut operands_left: Vec<Value> = Vec::new();
    for operand in operands {
        let last = operands_left.last().copied();
        let joined = match last {
            Some(last) => joined(new, last, *operand, axis)?,
            None => None,
        };
        if joined.is_some() {
            operands_left.pop();
        }
        operands_left.push(joined.unwrap_or(*operand));
    }

    // The operands with those of nested concatenations in their place, so that runs are found however they are nested.
    let flat: Vec<Value> = operands_left
        .iter()
        .flat_map(|operand| {
            let nested = earlier.iter().find(|earlier| earlier.value == *operand && earlier.axis == axis);
            nested.map_or_else(|| vec![*operand], |nested| nested.operands.clone())
        })
        .collect();

    let mut shared = Vec::new();
    let mut at = 0;
    while at < flat.len() {
        let run = earlier
            .iter()
            .filter(|earlier| earlier.axis == axis && flat[at..].starts_with(&earlier.operands))
            .max_by_key(|earlier| earlier.operands.len());
        match run {
            Some(run) => {
                shared.push(run.value);
                at += run.operands.len();
            }
            None => {
                shared.push(flat[at]);
                at += 1;
            }
        }
    }

    let value = match shared[..] {
        [one] => one,
        _ => new.push(Op::Concat { axis }, &shared)?,
    };
    earlier.push(Earlier { axis, operands: flat, value });
    Ok(value)
}

/// The slice of both views, if `second` begins where `first` ends.
fn joined(new: &mut Graph, first: Value, second: Value, axis: usize) -> Result<Option<Value>> {
    let (Op::View { shape: first_shape, index: first_index }, Op::View { index: second_index, .. }) =
        (new.op(first), new.op(second))
    else {
        return Ok(None);
    };
    let x = new.operands(first)[0];
    if new.operands(second)[0] != x || first_index.len() != second_index.len() {
        return Ok(None);
    }

    let len = first_shape[axis].clone();
    let step = |symbol: &symshape::Symbol| {
        (*symbol == axis_symbol(axis)).then(|| Dim::from(axis_symbol(axis)) + &len)
    };
    let mut shape = first_shape.clone();
    shape[axis] = new.facts.simplify(&(&len + &new.shape(second)[axis]));
    let facts = new.index_facts(new.shape(second));
    let continues = first_index.iter().zip(second_index).all(|(first, second)| {
        let next = facts.simplify(&first.substitute(&step));
        next == *second || facts.prove_eq(&next, second).is_yes()
    });
    // A sum of the axis and a constant has no other form in the longer slice.
    let is_slice = first_index.iter().all(|expr| {
        !expr.contains(&axis_symbol(axis)) || facts.linear_in(expr, &axis_symbol(axis)).is_some()
    });
    if !(continues && is_slice) {
        return Ok(None);
    }
    let index = first_index.clone();
    view_of(new, x, shape, index)
}
