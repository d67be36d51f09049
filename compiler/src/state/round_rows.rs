//! Stores the appended rows of a state in 16 bits.
//!
//! A pair of `f32`, `present = concat(past, rows)`, becomes one of a shorter type, and its readers read a cast:
//!
//! ```text
//! present16 = concat(past16, cast f16 rows)
//! present   = cast f32 present16
//! ```
//!
//! The readers of a call see its own rows rounded too, so a prompt gives the same values in chunks of any sizes.
//! Overwritten tensors keep their type: their errors would add up from call to call.

use super::{pairs::proofs, prove::Proof, request::StateRequest};
use crate::{
    error::{Error, ErrorKind, Result},
    graph::{Graph, Node, Op, Value},
    opt::rebuild::rebuild,
};
use std::collections::{HashMap, HashSet};
use symshape_runtime::DType;

/// Changes the type of the appended pairs of `f32` to that of the request, if it has one. `graph` must be optimised
/// before, and again after.
///
/// # Errors
/// As [`super::declare`]; the type is neither `f16` nor `bf16`; no pair has appended rows of `f32`.
pub fn round_rows(graph: &mut Graph, request: &StateRequest) -> Result<()> {
    let Some(row_type) = request.row_type else { return Ok(()) };
    let usage = |message: String| Error::new(ErrorKind::Usage, message);
    if !matches!(row_type, DType::F16 | DType::BF16) {
        return Err(usage(format!("--state-type {row_type}: expected f16 or bf16")));
    }
    if request.is_empty() {
        return Err(usage(format!(
            "--state-type {row_type}: the model has no state; add --stateful or --state IN=OUT"
        )));
    }

    let is_f32 = |input: usize| graph.dtype(graph.inputs[input].1) == DType::F32;
    let appended = |proof: &Proof| proof.rows.is_some() && is_f32(proof.input);
    let pairs: Vec<(usize, usize)> = proofs(graph, request)?
        .iter()
        .filter(|proof| appended(proof))
        .map(|proof| (proof.input, proof.output))
        .collect();
    if pairs.is_empty() {
        return Err(usage(format!("--state-type {row_type}: no pair of the state has appended rows of f32")));
    }

    let concats: HashMap<Value, usize> =
        pairs.iter().map(|(_, output)| (graph.outputs[*output].1, *output)).collect();
    for (input, _) in &pairs {
        let value = graph.inputs[*input].1;
        graph.values[value].ty.dtype = row_type;
    }
    let inputs: HashSet<u32> = pairs.iter().map(|(input, _)| *input as u32).collect();
    let mut presents = Vec::new();
    rebuild(graph, |new, node| {
        let Some(output) = concats.get(&node.results[0]) else { return widened(new, node, &inputs) };
        let operands: Vec<Value> =
            node.operands.iter().map(|operand| new.cast(row_type, *operand)).collect::<Result<_>>()?;
        let present = new.push(node.op.clone(), &operands)?;
        presents.push((*output, present));
        Ok(Some(vec![new.cast(DType::F32, present)?]))
    })?;
    for (output, present) in presents {
        graph.outputs[output].1 = present;
    }
    Ok(())
}

/// The node, with casts of those inputs that it reads; `None` if it reads none.
fn widened(graph: &mut Graph, node: &Node, inputs: &HashSet<u32>) -> Result<Option<Vec<Value>>> {
    let is_rounded =
        |graph: &Graph, value: Value| matches!(graph.op(value), Op::Input(input) if inputs.contains(input));
    if !node.operands.iter().any(|operand| is_rounded(graph, *operand)) {
        return Ok(None);
    }
    let mut operands = node.operands.clone();
    for operand in &mut operands {
        if is_rounded(graph, *operand) {
            *operand = graph.cast(DType::F32, *operand)?;
        }
    }
    graph.push_multi(node.op.clone(), &operands).map(Some)
}
