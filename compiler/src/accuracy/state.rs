//! The error of a model whose state has rows of 16 bits.

use super::{distance, inputs, run_calls, run_seeded};
use crate::{
    error::Result, graph::Graph, opt, pipeline::Pipeline, state, state::StateRequest, tensor::Tensor,
};
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

    // The outputs that keep their type.
    let kept: Vec<usize> = (0..graph.outputs.len())
        .filter(|idx| graph.dtype(graph.outputs[*idx].1) == rounded.dtype(rounded.outputs[*idx].1))
        .collect();
    let select = |outputs: &[Tensor]| kept.iter().map(|idx| outputs[*idx].clone()).collect::<Vec<_>>();
    let mut worst = StateError { row_type, max_error: 0.0, at: String::new() };
    for call in &calls {
        let outputs = run_seeded(&model, &call.dims, inputs::inputs_of_step)?;
        let max_error = distance::max_error(&select(&call.outputs), &select(&outputs));
        if max_error >= worst.max_error {
            worst = StateError { row_type, max_error, at: inputs::binding(&model, &call.dims) };
        }
    }
    Ok(Some(worst))
}
