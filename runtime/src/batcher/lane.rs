//! Lanes: memory for the inputs of a batch, and for its results.

use super::{
    error::{BatchError, MAX_TENSORS},
    layout::BatchLayout,
    rows::RowShapes,
};
use crate::{CallError, Context, TensorInfo, TensorMut, TensorName, TensorRef, arena::Arena, tensor};

/// Memory of a tensor: for a batch, and for one request that runs alone.
struct BatchMemory {
    memory: Arena,
    half_bytes: usize,
}

/// A half of the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Batch,
    Alone,
}

impl BatchMemory {
    fn reserve(half_bytes: usize) -> Result<BatchMemory, BatchError> {
        let bytes = half_bytes.checked_mul(2).ok_or(crate::OpenError::Reserve { bytes: usize::MAX })?;
        Ok(BatchMemory { memory: Arena::reserve(bytes, &[])?, half_bytes })
    }

    fn start(&self, half: Half) -> usize {
        if half == Half::Batch { 0 } else { self.half_bytes }
    }

    fn slice(&self, half: Half, bytes: usize) -> &[u8] {
        self.memory.slice(self.start(half), bytes)
    }

    fn slice_mut(&mut self, half: Half, bytes: usize) -> &mut [u8] {
        self.memory.slice_mut(self.start(half), bytes)
    }

    /// Copies a request's rows from the batch; the rest of the half is zero.
    fn copy_alone(&mut self, rows: RequestRows, row_bytes: usize) {
        let half = self.half_bytes;
        let all = self.memory.slice_mut(0, 2 * half);
        all[half..].fill(0);
        all.copy_within(rows.first * row_bytes..rows.end() * row_bytes, half);
    }

    /// Copies the rows of a request that has run alone to the batch.
    fn copy_back(&mut self, rows: RequestRows, row_bytes: usize) {
        let half = self.half_bytes;
        let all = self.memory.slice_mut(0, 2 * half);
        all.copy_within(half..half + rows.count * row_bytes, rows.first * row_bytes);
    }
}

/// The rows of a request in a batch.
#[derive(Clone, Copy)]
pub(super) struct RequestRows {
    pub(super) first: usize,
    pub(super) count: usize,
}

impl RequestRows {
    fn end(self) -> usize {
        self.first + self.count
    }
}

/// The inputs of a batch.
pub(super) struct Lane {
    inputs: Vec<BatchMemory>,
    shapes: RowShapes,
    requests: Vec<RequestRows>,
}

impl Lane {
    pub(super) fn new(layout: &BatchLayout) -> Result<Lane, BatchError> {
        let infos = layout.model.inputs().iter().enumerate();
        let memory = |(idx, info): (usize, &TensorInfo)| {
            BatchMemory::reserve(layout.batch_bytes(info, layout.fixed_input_bytes(idx)))
        };
        Ok(Lane {
            inputs: infos.map(memory).collect::<Result<_, _>>()?,
            shapes: RowShapes::of(layout.model.inputs()),
            requests: Vec::with_capacity(layout.limits.rows),
        })
    }

    /// Copies the rows of a request to the batch. All requests of a batch have rows of one shape.
    pub(super) fn put(&mut self, rows: RequestRows, inputs: &[TensorRef<'_>]) {
        self.shapes.set(inputs);
        for ((memory, input), row) in self.inputs.iter_mut().zip(inputs).zip(&self.shapes.0) {
            let batch = memory.slice_mut(Half::Batch, rows.end() * row.bytes);
            batch[rows.first * row.bytes..].copy_from_slice(input.bytes());
        }
        self.requests.push(rows);
    }

    /// Runs the batch, or each request alone if the call fails. Clears the list of requests.
    pub(super) fn run(&mut self, layout: &BatchLayout, context: &mut Context, results: &mut Results) {
        results.errors.clear();
        let rows = self.requests.iter().map(|request| request.end()).max().unwrap_or(0);
        if self.call(layout, context, Half::Batch, rows, results).is_err() {
            self.run_each(layout, context, results);
        }
        self.requests.clear();
    }

    /// Runs each request alone, and records the errors.
    fn run_each(&mut self, layout: &BatchLayout, context: &mut Context, results: &mut Results) {
        for idx in 0..self.requests.len() {
            let rows = self.requests[idx];
            for (memory, row) in self.inputs.iter_mut().zip(&self.shapes.0) {
                memory.copy_alone(rows, row.bytes);
            }

            match self.call(layout, context, Half::Alone, rows.count, results) {
                Ok(()) => {
                    for (memory, row) in results.outputs.iter_mut().zip(&results.shapes.0) {
                        memory.copy_back(rows, row.bytes);
                    }
                }
                Err(error) => results.errors.push((rows.first, error)),
            }
        }
    }

    /// Calls the model on `rows` rows and their padding.
    fn call(
        &self,
        layout: &BatchLayout,
        context: &mut Context,
        half: Half,
        rows: usize,
        results: &mut Results,
    ) -> Result<(), CallError> {
        let rows = layout.padded(rows).unwrap_or(rows);
        let inputs = self.refs(half, rows);
        let inputs = &inputs[..self.inputs.len()];
        context.bind(inputs)?;
        for (idx, row) in results.shapes.0.iter_mut().enumerate() {
            row.set(context.output_shape(idx));
        }

        let mut outputs: [TensorMut<'_>; MAX_TENSORS] =
            std::array::from_fn(|_| TensorMut::new::<u8>(&mut []));
        for ((slot, memory), row) in outputs.iter_mut().zip(&mut results.outputs).zip(&results.shapes.0) {
            let bytes = memory.slice_mut(half, rows * row.bytes);
            *slot = TensorMut::from_bytes(row.dtype, bytes).expect("reserved memory is aligned");
        }
        context.run(inputs, &mut outputs[..results.shapes.0.len()])
    }

    /// The first `rows` rows of all inputs.
    fn refs(&self, half: Half, rows: usize) -> [TensorRef<'_>; MAX_TENSORS] {
        let mut refs = [tensor::EMPTY; MAX_TENSORS];
        for ((slot, memory), row) in refs.iter_mut().zip(&self.inputs).zip(&self.shapes.0) {
            let bytes = memory.slice(half, rows * row.bytes);
            *slot = TensorRef::from_bytes(row.dtype, &row.shape(rows)[..row.rank], bytes)
                .expect("the memory has the shape's bytes and is aligned");
        }
        refs
    }
}

/// The outputs of a batch.
pub(super) struct Results {
    outputs: Vec<BatchMemory>,
    shapes: RowShapes,
    /// The first row of each request that failed, and its error.
    errors: Vec<(usize, CallError)>,
}

impl Results {
    pub(super) fn new(layout: &BatchLayout) -> Result<Results, BatchError> {
        let infos = layout.model.outputs().iter().enumerate();
        let memory = |(idx, info): (usize, &TensorInfo)| {
            BatchMemory::reserve(layout.batch_bytes(info, layout.fixed_output_bytes(idx)))
        };
        Ok(Results {
            outputs: infos.map(memory).collect::<Result<_, _>>()?,
            shapes: RowShapes::of(layout.model.outputs()),
            errors: Vec::with_capacity(layout.limits.rows),
        })
    }

    /// Copies the results of a request to the caller.
    pub(super) fn take(
        &self,
        layout: &BatchLayout,
        rows: RequestRows,
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), BatchError> {
        let expected = self.shapes.0.len();
        let got = outputs.len();
        if expected != got {
            return Err(CallError::WrongOutputCount { expected, got }.into());
        }
        if let Some((_, error)) = self.errors.iter().find(|(failed, _)| *failed == rows.first) {
            return Err(error.clone().into());
        }

        for (idx, (output, row)) in outputs.iter_mut().zip(&self.shapes.0).enumerate() {
            let tensor = || TensorName::output(&layout.model.desc, idx);
            if output.dtype() != row.dtype {
                let expected = row.dtype;
                let got = output.dtype();
                return Err(CallError::WrongDType { tensor: tensor(), expected, got }.into());
            }

            let needed = rows.count * row.bytes;
            let got = output.len_bytes();
            if got < needed {
                return Err(CallError::TooSmall { tensor: tensor(), needed, got }.into());
            }

            let batch = self.outputs[idx].slice(Half::Batch, rows.end() * row.bytes);
            output.bytes()[..needed].copy_from_slice(&batch[rows.first * row.bytes..]);
        }
        Ok(())
    }
}
