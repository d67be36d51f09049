//! Weights and biases of contractions that are too small to matter become zero.
//!
//! Trained models have channels whose weights and biases are about 1e-39. Such numbers are subnormal, or products with
//! them are, and a multiply-add with a subnormal operand or result takes over a hundred cycles on some processors.
//!
//! An element is negligible below `2^-100` and below `2^-60` of the largest magnitude of its constant. The change is
//! then far below the rounding errors of `f32`, relative to the norm of the constant. Constants that other nodes read
//! too stay as they are.

use super::rebuild::rebuild;
use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value},
    scalar::{BinaryOp, Reg, Step},
    tensor::Tensor,
};
use std::collections::{BTreeMap, BTreeSet};
use symshape_runtime::DType;

/// Magnitudes from here on are never negligible: `2^-100`.
const MIN_MAGNITUDE: f32 = f32::from_bits((127 - 100) << 23);

/// Magnitudes from this share of the largest one on are never negligible: `2^-60`.
const MIN_SHARE: f32 = f32::from_bits((127 - 60) << 23);

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn negligible_weights(graph: &mut Graph) -> Result<()> {
    let others = read_otherwise(graph);
    let mut replacements = BTreeMap::new();
    for node in graph.nodes.values() {
        let Op::Const(tensor) = &node.op else { continue };
        if !others.contains(&node.results[0])
            && has_small_elements(tensor)
            && let Some(replacement) = without_negligible(tensor)
        {
            replacements.insert(node.results[0], replacement);
        }
    }
    if replacements.is_empty() {
        return Ok(());
    }

    rebuild(graph, |new, node| {
        let Some(tensor) = replacements.remove(&node.results[0]) else { return Ok(None) };
        Ok(Some(vec![new.constant(tensor)?]))
    })
}

/// The constants that are read by anything but contractions and the additions of biases to them.
fn read_otherwise(graph: &Graph) -> BTreeSet<Value> {
    let outputs = graph.outputs.iter().map(|(_, value)| *value);
    let mut others: BTreeSet<Value> = outputs.map(|value| graph.through_views(value)).collect();
    for node in graph.nodes.values().filter(|node| !matches!(node.op, Op::View { .. })) {
        for (k, operand) in node.operands.iter().enumerate() {
            let source = graph.through_views(*operand);
            if graph.as_constant(source).is_some() && !is_term(graph, node, k) {
                others.insert(source);
            }
        }
    }
    others
}

/// Whether operand `k` of a node is a factor of a contraction, or is only added to the result of one.
fn is_term(graph: &Graph, node: &Node, k: usize) -> bool {
    let Op::Map(body) = &node.op else { return matches!(node.op, Op::Contraction { .. }) };
    let is_sum = |reg: Reg| {
        let operand = node.operands.get(reg.0 as usize);
        operand
            .is_some_and(|operand| matches!(graph.op(graph.through_views(*operand)), Op::Contraction { .. }))
    };
    let own = Reg(k as u32);
    let mut readers = body.steps.iter().filter(|step| step.operands().contains(&own));
    body.result != own
        && readers.all(|step| match step {
            Step::Binary(BinaryOp::Add, x, y) => is_sum(if *x == own { *y } else { *x }),
            _ => false,
        })
}

/// Whether an `f32` constant has elements below the limit that are not zero. Computed weights are not searched, because
/// that would compute all of them.
fn has_small_elements(tensor: &Tensor) -> bool {
    let is_in_memory = tensor.few_bits().is_none() && tensor.head().len() == tensor.size_bytes();
    if tensor.dtype() != DType::F32 || !is_in_memory {
        return false;
    }
    let found = !tensor.all_f32s(|x| x == 0.0 || x.abs() >= MIN_MAGNITUDE || x.is_nan());
    // The pages of a file are read again when the weights are packed, one after another.
    tensor.release();
    found
}

/// The constant with zeros for its negligible elements, if it has some.
fn without_negligible(tensor: &Tensor) -> Option<Tensor> {
    let mut elems = tensor.f32s().into_owned();
    let largest = elems.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let limit = (largest * MIN_SHARE).min(MIN_MAGNITUDE);
    let mut found = false;
    for x in elems.iter_mut().filter(|x| **x != 0.0 && x.abs() < limit) {
        *x = 0.0;
        found = true;
    }
    tensor.release();
    found.then(|| Tensor::from_f32s(tensor.shape().to_vec(), elems)).flatten()
}
