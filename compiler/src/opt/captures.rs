//! Moves constants into the branches and loops that capture them.
//!
//! The importer copies constants into regions. Folding finds more constants in the enclosing graph, such as weights
//! that an exporter puts together from slices. As an operand of a region such a weight would be packed in no
//! contraction.

use super::rebuild::rebuild;
use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value, eval},
    tensor::Tensor,
};
use std::collections::HashMap;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn captures(graph: &mut Graph) -> Result<()> {
    rebuild(graph, |new, node| {
        let constants = captured_constants(new, node)?;
        if constants.is_empty() {
            return Ok(None);
        }

        let mut op = node.op.clone();
        let first_operands: Vec<usize> = node.op.regions().iter().map(|(first, _)| *first).collect();
        for (first, region) in first_operands.into_iter().zip(op.regions_mut()) {
            replace_inputs(region, |input| constants.get(&(first + input)));
        }
        let is_operand = |(k, _): &(usize, &Value)| !constants.contains_key(k);
        let operands: Vec<Value> =
            node.operands.iter().enumerate().filter(is_operand).map(|(_, value)| *value).collect();
        new.push_multi(op, &operands).map(Some)
    })?;
    super::dead::dead(graph)
}

/// The constants among the captured operands of `node`, by the position of the operand. A view of a constant counts if
/// it has no more elements than the constant.
fn captured_constants(graph: &Graph, node: &Node) -> Result<HashMap<usize, Tensor>> {
    let mut constants = HashMap::new();
    for (k, value) in node.operands.iter().enumerate().skip(first_captured(&node.op)) {
        if let Some(tensor) = constant(graph, *value)? {
            constants.insert(k, tensor);
        }
    }
    Ok(constants)
}

/// The position of the first operand that a region of `op` captures.
fn first_captured(op: &Op) -> usize {
    match op {
        Op::If { .. } => 1,
        Op::Loop { carried, .. } => 2 + carried,
        _ => usize::MAX,
    }
}

fn constant(graph: &Graph, value: Value) -> Result<Option<Tensor>> {
    let source = graph.through_views(value);
    let Op::Const(tensor) = graph.op(source) else { return Ok(None) };
    if source == value {
        return Ok(Some(tensor.clone()));
    }

    let elems: Option<i64> =
        graph.shape(value).iter().map(symshape::Dim::as_i64).try_fold(1i64, |n, dim| n.checked_mul(dim?));
    if elems.is_none_or(|elems| elems > tensor.elems() as i64) {
        return Ok(None);
    }
    Ok(eval::values(graph, &eval::Binding::new(), &[], &[value])?.pop())
}

/// Turns the inputs of a region for which `constant` has a tensor into constants, and numbers the others again.
fn replace_inputs<'a>(region: &mut Graph, constant: impl Fn(usize) -> Option<&'a Tensor>) {
    let inputs = std::mem::take(&mut region.inputs);
    for (k, (_, value)) in inputs.into_iter().enumerate() {
        let number = region.inputs.len() as u32;
        let op = match constant(k) {
            Some(tensor) => Op::Const(tensor.clone()),
            None => {
                region.inputs.push((format!("in{number}"), value));
                Op::Input(number)
            }
        };
        let source = region.values[value].def;
        region.nodes[source].op = op;
    }
}
