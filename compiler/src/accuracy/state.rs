//! The error of a model whose state has rows of 16 bits.

use super::{
    calls::{run_calls, worst},
    inputs,
};
use crate::{error::Result, graph::Graph, opt, pipeline::Pipeline, state, state::StateRequest};
use symshape_runtime::DType;

/// The largest error of an output that rows of 16 bits cause.
#[derive(Clone, PartialEq, Debug)]
pub struct StateError {
    /// The type of the rows.
    pub row_type: DType,
    /// Largest difference in all calls, relative to the largest element of its output. Infinite if integers, infinities
    /// or NaNs differ.
    pub max_error: f64,
    /// Sizes of the call with the largest difference: `past=8,steps=2`.
    pub at: String,
}

/// Runs a graph with rows of `f32` and with those of the request, on the same seeded inputs, and compares the outputs
/// that are not state. `None` if the request keeps the type of the rows.
///
/// # Errors
/// As [`state::round_rows`] and [`Pipeline::lower`]; the model can't run on this machine, or takes too long.
pub fn state_error(graph: &Graph, request: &StateRequest) -> Result<Option<StateError>> {
    let Some(row_type) = request.row_type else { return Ok(None) };
    let mut rounded = graph.clone();
    opt::optimize(&mut rounded)?;
    state::round_rows(&mut rounded, request)?;

    let model = Pipeline::new(graph).jit()?;
    let calls = run_calls(graph, &model, inputs::inputs_of_step)?;
    // Keep only one of the two models in memory.
    drop(model);
    let model = Pipeline::new(&rounded).jit()?;

    // Outputs that are state have other types.
    let dtype = |graph: &Graph, idx: usize| graph.dtype(graph.outputs[idx].1);
    let keeps_type = |idx| dtype(graph, idx) == dtype(&rounded, idx);
    let (max_error, at) = worst(&calls, &model, inputs::inputs_of_step, keeps_type)?;
    Ok(Some(StateError { row_type, max_error, at }))
}
