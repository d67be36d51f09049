//! Calls of a compiled model with seeded inputs.

use super::{
    dims::for_each_size,
    distance, inputs,
    work::{self, UnknownSizes},
};
use crate::{
    error::{Error, ErrorKind, Result},
    graph::Graph,
    tensor::{self, Tensor},
};
use symshape_runtime::{Context, Model};

/// The largest difference of the outputs that `counts` selects by their index, and the sizes of its call: those of
/// `calls` next to those of this model.
pub(super) fn worst(
    calls: &[MeasuredCall],
    model: &Model,
    make_inputs: MakeInputs,
    counts: impl Fn(usize) -> bool,
) -> Result<(f64, String)> {
    let counted = |outputs: &[Tensor]| {
        let outputs = outputs.iter().enumerate().filter(|(idx, _)| counts(*idx));
        outputs.map(|(_, output)| output.clone()).collect::<Vec<_>>()
    };
    let mut max_error = 0.0;
    let mut at = String::new();
    for call in calls {
        let outputs = run_seeded(model, &call.dims, make_inputs)?;
        let error = distance::max_error(&counted(&outputs), &counted(&call.outputs));
        if error >= max_error {
            max_error = error;
            at = inputs::binding(model, &call.dims);
        }
    }
    Ok((max_error, at))
}

/// Makes the seeded inputs of a call with these dims.
pub(super) type MakeInputs = fn(&Model, &[i64]) -> Result<Vec<Tensor>>;

/// Runs the model on seeded inputs with these dims and returns its outputs.
fn run_seeded(model: &Model, dims: &[i64], make_inputs: MakeInputs) -> Result<Vec<Tensor>> {
    let limit = |error: String| Error::new(ErrorKind::Limit, error);
    let inputs = make_inputs(model, dims)?;
    let mut context = Context::new(model).map_err(|error| limit(error.to_string()))?;
    let outputs = context.run_views(&tensor::refs(&inputs)?).map_err(|error| limit(error.to_string()))?;
    Ok(tensor::copies(&outputs))
}

/// A call of the check.
pub(super) struct MeasuredCall {
    /// One for each symbol of the model.
    dims: Vec<i64>,
    outputs: Vec<Tensor>,
}

/// Runs the calls of the check: at the smallest sizes, at the largest that don't take long, and at about half of these.
///
/// A model may refuse sizes within their ranges, because of its other constraints. Such calls are left out.
///
/// # Errors
/// When calls take too long at all sizes, or the model refuses all of them.
pub(super) fn run_calls(graph: &Graph, model: &Model, make_inputs: MakeInputs) -> Result<Vec<MeasuredCall>> {
    let work = |dims: &[i64]| work::work(graph, model, dims, UnknownSizes::UpperBound).in_multiplications();
    let mut failure = Error::new(ErrorKind::Limit, "calls take too long even at the smallest sizes");
    let mut calls: Vec<MeasuredCall> = Vec::new();
    for_each_size(model.symbols(), work, |dims| match run_seeded(model, &dims, make_inputs) {
        Ok(outputs) => {
            calls.push(MeasuredCall { dims, outputs });
            true
        }
        Err(error) => {
            failure = error;
            false
        }
    });

    if calls.is_empty() { Err(failure) } else { Ok(calls) }
}
