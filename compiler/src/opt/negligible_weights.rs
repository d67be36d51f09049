//! Weights and biases of contractions that are too small to matter become zero.
//!
//! Training with weight decay leaves channels whose weights and biases are about 1e-39. Such numbers are subnormal, or
//! products with them are, and a multiply-add with a subnormal operand or result takes over a hundred cycles on some
//! processors.
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
use std::collections::BTreeSet;
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
    let is_candidate = |node: &Node| matches!(&node.op, Op::Const(tensor) if has_small_elements(tensor));
    let candidates: BTreeSet<Value> = (graph.nodes.values())
        .filter(|node| !others.contains(&node.results[0]) && is_candidate(node))
        .map(|node| node.results[0])
        .collect();
    if candidates.is_empty() {
        return Ok(());
    }

    rebuild(graph, |new, node| {
        let Op::Const(tensor) = &node.op else { return Ok(None) };
        if !candidates.contains(&node.results[0]) {
            return Ok(None);
        }
        without_negligible(tensor).map(|tensor| Ok(vec![new.constant(tensor)?])).transpose()
    })
}

/// The constants that are read by anything but contractions and the additions of biases to them.
fn read_otherwise(graph: &Graph) -> BTreeSet<Value> {
    let outputs = graph.outputs.iter().map(|(_, value)| *value);
    let mut others: BTreeSet<Value> = outputs.map(|value| source(graph, value)).collect();
    for node in graph.nodes.values() {
        for (k, operand) in node.operands.iter().enumerate() {
            let constant = source(graph, *operand);
            if graph.as_constant(constant).is_some() && !is_view(node) && !is_term(graph, node, k) {
                others.insert(constant);
            }
        }
    }
    others
}

fn is_view(node: &Node) -> bool {
    matches!(node.op, Op::View { .. })
}

/// The value that views of `value` read.
fn source(graph: &Graph, mut value: Value) -> Value {
    while let Op::View { .. } = graph.op(value) {
        value = graph.operands(value)[0];
    }
    value
}

/// Whether operand `k` of a node is a factor of a contraction, or is only added to the result of one.
fn is_term(graph: &Graph, node: &Node, k: usize) -> bool {
    match &node.op {
        Op::Contraction { .. } => true,
        Op::Map(body) => {
            let is_sum = |reg: Reg| {
                let operand = node.operands.get(reg.0 as usize);
                operand.is_some_and(|operand| {
                    matches!(graph.op(source(graph, *operand)), Op::Contraction { .. })
                })
            };
            let own = Reg(k as u32);
            let mut readers = body.steps.iter().filter(|step| step.operands().contains(&own));
            body.result != own
                && readers.all(|step| match step {
                    Step::Binary(BinaryOp::Add, x, y) => is_sum(if *x == own { *y } else { *x }),
                    _ => false,
                })
        }
        _ => false,
    }
}

/// Whether an `f32` constant in memory or in a file has elements below the limit that are not zero. Computed weights
/// are integers with scales, or of other types of floats.
fn has_small_elements(tensor: &Tensor) -> bool {
    if tensor.dtype() != DType::F32 || tensor.few_bits().is_some() {
        return false;
    }
    let bytes = tensor.head();
    let is_small = |bits: &[u8; 4]| {
        // Positive floats are ordered as their bits.
        let magnitude = u32::from_le_bytes(*bits) & (i32::MAX as u32);
        magnitude.wrapping_sub(1) < MIN_MAGNITUDE.to_bits() - 1
    };
    // Without a branch for each element.
    let any_small = |chunk: &[[u8; 4]]| chunk.iter().fold(false, |any, bits| any | is_small(bits));
    let found = bytes.len() == tensor.size_bytes() && bytes.as_chunks::<4>().0.chunks(1 << 12).any(any_small);
    // The weights of a file are packed one after another much later.
    tensor.release();
    found
}

/// The constant with zeros for its negligible elements, if it has some.
fn without_negligible(tensor: &Tensor) -> Option<Tensor> {
    let elems = tensor.f32s();
    let largest = elems.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let limit = (largest * MIN_SHARE).min(MIN_MAGNITUDE);
    let is_negligible = |x: &f32| *x != 0.0 && x.abs() < limit;
    if !elems.iter().any(is_negligible) {
        return None;
    }
    let kept = elems.iter().map(|x| if is_negligible(x) { 0.0 } else { *x }).collect();
    Tensor::from_f32s(tensor.shape().to_vec(), kept)
}
