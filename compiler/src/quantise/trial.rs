//! Runs a model with some of its weights rounded, and measures how far its outputs move.
//!
//! The weights are inputs of the model that runs, so one compilation serves all trials.

use super::{find::Weight, rewrite, round::Rounded};
use crate::{
    accuracy::{
        dims::{aligned, halved},
        inputs,
        work::{UnknownSizes, work},
    },
    error::{Error, ErrorKind, Result},
    graph::Graph,
    parallel,
    pipeline::Pipeline,
    tensor::{self, Tensor},
};
use std::collections::BTreeSet;
use symshape_runtime::{Context, Model, TensorRef};

/// Largest work of all trials, in multiplications of contractions.
const MAX_WORK: f64 = 4e11;

/// Multiplications that take as long as reading and packing one element of a weight.
const MULTIPLICATIONS_PER_WEIGHT: f64 = 8.0;

/// A model whose weights are inputs.
pub(super) struct Trial {
    context: Context,
    /// The inputs of the original model.
    inputs: Vec<Tensor>,
    /// The original weights.
    weights: Vec<Tensor>,
    /// The outputs with the original weights.
    outputs: Vec<Tensor>,
    /// The sizes of the calls: `N=8,S=128`.
    pub(super) at: String,
}

impl Trial {
    /// Compiles the model and runs it with its original weights, at the largest sizes at which `n_trials` trials don't
    /// take long.
    ///
    /// # Errors
    /// The model has no such sizes, refuses the seeded inputs, or can't run on this machine.
    pub(super) fn new(graph: &Graph, weights: &[&Weight], n_trials: usize) -> Result<Trial> {
        let tensors = weights.iter().map(|weight| {
            let tensor = graph.as_constant(weight.value).and_then(aligned_floats);
            tensor.ok_or_else(|| Error::internal("a weight is a constant"))
        });
        let tensors: Vec<Tensor> = tensors.collect::<Result<_>>()?;
        let weight_elems: usize = tensors.iter().map(Tensor::elems).sum();
        let n_inputs = graph.inputs.len();
        let has_floats = graph.outputs.iter().any(|(_, value)| graph.dtype(*value).is_float());
        if !has_floats {
            return Err(limit("no output has floats".into()));
        }

        let mut with_inputs = graph.clone();
        rewrite::as_inputs(&mut with_inputs, weights)?;
        let model = Pipeline::new(&with_inputs).jit()?;
        let cost = |dims: &[i64]| {
            let call = work(graph, &model, dims, UnknownSizes::UpperBound).in_multiplications();
            (call + MULTIPLICATIONS_PER_WEIGHT * weight_elems as f64) * n_trials as f64
        };

        let mut failure = limit("trials take too long even at the smallest sizes".into());
        let mut seen: BTreeSet<Vec<i64>> = BTreeSet::new();
        for times in 0..=u64::BITS {
            let dims = halved(model.symbols(), times);
            for dims in [aligned(model.symbols(), &dims), dims] {
                if !seen.insert(dims.clone()) || cost(&dims) > MAX_WORK {
                    continue;
                }
                match Trial::at(&model, &dims, n_inputs, tensors.clone()) {
                    Ok(trial) => return Ok(trial),
                    Err(error) => failure = error,
                }
            }
        }
        Err(failure)
    }

    /// Runs the model with its original weights at these sizes.
    fn at(model: &Model, dims: &[i64], n_inputs: usize, weights: Vec<Tensor>) -> Result<Trial> {
        let inputs = model.inputs().iter().take(n_inputs).enumerate().map(|(idx, info)| {
            let shape = inputs::shape(info, model, dims)?;
            inputs::random(idx as u64, info.dtype(), shape)
        });
        let inputs = inputs.collect::<Result<_>>()?;
        let mut context = Context::new(model).map_err(|error| limit(error.to_string()))?;
        let threads = parallel::cores() as u32;
        context.set_threads(threads).map_err(|error| limit(error.to_string()))?;

        let at = inputs::binding(model, dims);
        let mut trial = Trial { context, inputs, weights, outputs: Vec::new(), at };
        trial.outputs = trial.run(&[])?;
        Ok(trial)
    }

    /// The error of the outputs if these weights, by index, are rounded: the root of the mean squared difference,
    /// relative to that of the output, for the output with the largest.
    pub(super) fn error(&mut self, replaced: &[(usize, &Rounded)]) -> Result<f64> {
        let outputs = self.run(replaced)?;
        let errors = self.outputs.iter().zip(&outputs).map(|(want, got)| output_error(want, got));
        Ok(errors.fold(0.0, f64::max))
    }

    /// The error of the outputs of another model with the same inputs, as in [`Trial::error`].
    pub(super) fn error_of(&self, model: &Model) -> Result<f64> {
        let mut context = Context::new(model).map_err(|error| limit(error.to_string()))?;
        let refs: Vec<TensorRef<'_>> = tensor::refs(&self.inputs)?;
        let outputs = context.run_views(&refs).map_err(|error| limit(error.to_string()))?;
        let errors = self.outputs.iter().zip(tensor::copies(&outputs));
        Ok(errors.map(|(want, got)| output_error(want, &got)).fold(0.0, f64::max))
    }

    fn run(&mut self, replaced: &[(usize, &Rounded)]) -> Result<Vec<Tensor>> {
        let mut tensors: Vec<Tensor> = self.inputs.iter().chain(&self.weights).cloned().collect();
        for (index, rounded) in replaced {
            // The expanded elements are dropped after the call.
            let shape = rounded.tensor.shape().to_vec();
            let floats = Tensor::from_f32(shape, &rounded.tensor.f32s());
            tensors[self.inputs.len() + index] = floats.ok_or_else(|| Error::internal("all elements"))?;
        }
        let refs: Vec<TensorRef<'_>> = tensor::refs(&tensors)?;
        let outputs = self.context.run_views(&refs).map_err(|error| limit(error.to_string()))?;
        Ok(tensor::copies(&outputs))
    }
}

/// The tensor in memory that a call accepts. A file may have it at any address.
fn aligned_floats(tensor: &Tensor) -> Option<Tensor> {
    if tensor.bytes().as_ptr().cast::<f32>().is_aligned() {
        return Some(tensor.clone());
    }
    Tensor::from_f32(tensor.shape().to_vec(), &tensor.f32s())
}

/// The error of one output. Infinite if an element is finite in only one of the tensors.
fn output_error(want: &Tensor, got: &Tensor) -> f64 {
    if !want.dtype().is_float() || want.shape() != got.shape() {
        return 0.0;
    }
    let square = |x: f64| x * x;
    let mut difference = 0.0;
    let mut size = 0.0;
    for idx in 0..want.elems() {
        let want = want.get(idx).as_f64();
        let got = got.get(idx).as_f64();
        match (want.is_finite(), got.is_finite()) {
            (true, true) => {
                difference += square(want - got);
                size += square(want);
            }
            (false, false) => {}
            _ => return f64::INFINITY,
        }
    }
    if difference == 0.0 { 0.0 } else { (difference / size).sqrt() }
}

fn limit(message: String) -> Error {
    Error::new(ErrorKind::Limit, message)
}
