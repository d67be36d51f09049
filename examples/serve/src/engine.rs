//! Runs requests: finds the shapes of their results, and runs them in batches.

use crate::{
    error::Refusal,
    tensor::{Buffer, Input, Output, Sent},
};
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};
use symshape_runtime::{BatchError, BatchOptions, Batcher, Context, Model, TensorMut, TensorRef};

/// The way to run a request of one or more rows. It may wait for others.
pub trait Backend: Send + Sync {
    /// Fills the outputs, whose sizes are right.
    fn run(&self, inputs: &[TensorRef<'_>], outputs: &mut [Output]) -> Result<(), Refusal>;

    /// Number of calls of the model.
    fn batches(&self) -> u64;
}

impl Backend for Batcher {
    fn run(&self, inputs: &[TensorRef<'_>], outputs: &mut [Output]) -> Result<(), Refusal> {
        let outputs = outputs.iter_mut();
        let outputs = outputs.map(|output| TensorMut::from_bytes(output.dtype, output.data.as_mut()));
        let mut outputs = outputs.collect::<Result<Vec<_>, _>>().map_err(BatchError::from)?;
        Ok(self.call(inputs, &mut outputs)?)
    }

    fn batches(&self) -> u64 {
        self.n_batches()
    }
}

/// A model and the way to run it.
pub struct Engine {
    model: Model,
    backend: Box<dyn Backend>,
    /// Checks the contract and knows the shapes of outputs; runs nothing.
    binder: Mutex<Context>,
    max_rows: usize,
    /// The index of the symbol whose value is the number of rows of a request; without one, it is the first axis of the
    /// first input.
    row_symbol: Option<usize>,
    rows: AtomicU64,
}

impl Engine {
    /// An engine over the runtime's batcher, which makes batches along `symbol`.
    pub fn new(model: Model, symbol: &str, options: BatchOptions) -> Result<Engine, BatchError> {
        let batcher = Batcher::mixed(&model, symbol, options)?;
        Engine::over(model, Box::new(batcher), options.max_rows)
    }

    /// An engine over the runtime's batcher of sequences, for a model with a ragged batch.
    pub fn ragged(model: Model, options: BatchOptions) -> Result<Engine, BatchError> {
        let batcher = Batcher::ragged(&model, options)?;
        Engine::over(model, Box::new(batcher), options.max_rows)
    }

    /// An engine over any backend.
    pub fn over(model: Model, backend: Box<dyn Backend>, max_rows: usize) -> Result<Engine, BatchError> {
        let binder = Mutex::new(Context::new(&model)?);
        let row_symbol = model.ragged().map(|ragged| ragged.rows());
        Ok(Engine { model, backend, binder, max_rows, row_symbol, rows: AtomicU64::new(0) })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Largest number of rows of a request.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Numbers of calls and of rows that have run.
    pub fn counts(&self) -> [u64; 2] {
        [self.backend.batches(), self.rows.load(Ordering::Relaxed)]
    }

    /// The indices of the outputs with these names; all outputs if there are no names.
    pub fn choose_outputs(&self, names: &[&str]) -> Result<Vec<usize>, Refusal> {
        let infos = self.model.outputs();
        if names.is_empty() {
            return Ok((0..infos.len()).collect());
        }
        let mut chosen = Vec::new();
        for name in names {
            let idx = infos.iter().position(|info| info.name() == *name);
            let idx = idx.ok_or_else(|| Refusal::Invalid(format!("the model has no output `{name}`")))?;
            if chosen.contains(&idx) {
                return Err(Refusal::Invalid(format!("output `{name}` is requested twice")));
            }
            chosen.push(idx);
        }
        Ok(chosen)
    }

    /// The inputs in the order of the model.
    pub fn accept(&self, sent: Vec<Sent>) -> Result<Vec<Input>, Refusal> {
        let infos = self.model.inputs();
        let mut inputs: Vec<Option<Input>> = infos.iter().map(|_| None).collect();
        for sent in sent {
            let name = &sent.name;
            let idx = infos.iter().position(|info| info.name() == name);
            let idx = idx.ok_or_else(|| Refusal::Invalid(format!("the model has no input `{name}`")))?;
            if inputs[idx].is_some() {
                return Err(Refusal::Invalid(format!("input `{name}` occurs twice")));
            }
            inputs[idx] = Some(Input::new(&infos[idx], sent)?);
        }
        let found = inputs.into_iter().zip(infos).map(|(input, info)| {
            input.ok_or_else(|| Refusal::Invalid(format!("input `{}` is missing", info.name())))
        });
        found.collect()
    }

    /// Runs a request on this thread, which may wait for others.
    pub fn infer(&self, inputs: &[Input]) -> Result<Vec<Output>, Refusal> {
        let tensors = inputs.iter().map(Input::tensor).collect::<Result<Vec<_>, _>>()?;
        let (mut outputs, rows) = self.outputs(&tensors)?;
        self.backend.run(&tensors, &mut outputs)?;
        self.rows.fetch_add(rows, Ordering::Relaxed);
        Ok(outputs)
    }

    /// Checks the contract, and makes memory for the outputs. Returns the number of rows as well.
    fn outputs(&self, tensors: &[TensorRef<'_>]) -> Result<(Vec<Output>, u64), Refusal> {
        let mut binder = self.binder.lock().unwrap_or_else(PoisonError::into_inner);
        let dims = binder.bind(tensors).map_err(BatchError::from)?;
        let first_axis = || tensors.first()?.shape().first().map(|rows| *rows as u64);
        let rows = match self.row_symbol {
            Some(symbol) => u64::try_from(dims[symbol]).unwrap_or(0),
            None => first_axis().unwrap_or(0),
        };
        let infos = self.model.outputs().iter().enumerate();
        let shapes: Vec<_> = infos.map(|(idx, info)| (info, binder.output_shape(idx).to_vec())).collect();
        drop(binder);

        let outputs = shapes.into_iter().map(|(info, shape)| Output {
            name: info.name().into(),
            dtype: info.dtype(),
            data: Buffer::zeroed(shape.iter().product::<usize>() * info.dtype().size_bytes()),
            shape,
        });
        Ok((outputs.collect(), rows))
    }
}
