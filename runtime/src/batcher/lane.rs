//! Lanes: memory for the inputs of a batch, and for its results.

use super::{
    error::{BatchError, MAX_TENSORS},
    layout::BatchLayout,
    rows::{RowShapes, Run, Share, Unit},
};
use crate::{
    CallError, Context, TensorInfo, TensorMut, TensorName, TensorRef, arena::Arena, bytes::array_at, tensor,
};

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

    /// Copies a request's items from the batch. The padding after them is zero.
    fn copy_alone(&mut self, run: Run, padding: usize, item_bytes: usize) {
        let half = self.half_bytes;
        let all = self.memory.slice_mut(0, 2 * half);
        let end = half + run.count * item_bytes;
        all[end..end + padding * item_bytes].fill(0);
        all.copy_within(run.first * item_bytes..run.end() * item_bytes, half);
    }

    /// Copies the items of a request that has run alone to the batch.
    fn copy_back(&mut self, run: Run, item_bytes: usize) {
        let half = self.half_bytes;
        let all = self.memory.slice_mut(0, 2 * half);
        all.copy_within(half..half + run.count * item_bytes, run.first * item_bytes);
    }
}

/// Adds `distance` to offsets.
fn move_offsets(offsets: &mut [u8], distance: i64) {
    for bytes in offsets.chunks_exact_mut(size_of::<i64>()) {
        let offset = i64::from_ne_bytes(array_at(bytes, 0));
        bytes.copy_from_slice(&offset.wrapping_add(distance).to_ne_bytes());
    }
}

/// The inputs of a batch.
pub(super) struct Lane {
    inputs: Vec<BatchMemory>,
    shapes: RowShapes,
    requests: Vec<Share>,
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
            requests: Vec::with_capacity(layout.max_requests()),
        })
    }

    /// Copies the rows of a request to the batch. All requests of a batch have rows of one shape.
    pub(super) fn put(&mut self, layout: &BatchLayout, share: Share, inputs: &[TensorRef<'_>]) {
        self.shapes.set(inputs);
        for (idx, (memory, row)) in self.inputs.iter_mut().zip(&self.shapes.0).enumerate() {
            let unit = layout.input_unit(idx);
            let run = share.along(unit);
            let batch = memory.slice_mut(Half::Batch, run.end() * row.bytes);
            let own = &mut batch[run.first * row.bytes..];
            own.copy_from_slice(inputs[idx].bytes());
            if unit == Unit::Offsets {
                move_offsets(own, share.rows.first as i64);
            }
        }
        self.requests.push(share);
    }

    /// Runs the batch, or each request alone if the call fails. Clears the list of requests.
    pub(super) fn run(&mut self, layout: &BatchLayout, context: &mut Context, results: &mut Results) {
        results.errors.clear();
        let last = self.requests.iter().max_by_key(|share| (share.sequences.end(), share.rows.end()));
        let all = last.map_or(Share::default(), |share| share.whole());
        if self.call(layout, context, Half::Batch, all, results).is_err() {
            self.run_each(layout, context, results);
        }
        self.requests.clear();
    }

    /// Runs each request alone, and records the errors.
    fn run_each(&mut self, layout: &BatchLayout, context: &mut Context, results: &mut Results) {
        for idx in 0..self.requests.len() {
            let share = self.requests[idx];
            for (input, (memory, row)) in self.inputs.iter_mut().zip(&self.shapes.0).enumerate() {
                let unit = layout.input_unit(input);
                let run = share.along(unit);
                memory.copy_alone(run, layout.padded_count(unit, run.count) - run.count, row.bytes);
                if unit == Unit::Offsets {
                    let own = memory.slice_mut(Half::Alone, run.count * row.bytes);
                    move_offsets(own, -(share.rows.first as i64));
                }
            }

            match self.call(layout, context, Half::Alone, share.alone(), results) {
                Ok(()) => {
                    for (output, (memory, row)) in
                        results.outputs.iter_mut().zip(&results.shapes.0).enumerate()
                    {
                        memory.copy_back(share.along(layout.output_unit(output)), row.bytes);
                    }
                }
                Err(error) => results.errors.push((share, error)),
            }
        }
    }

    /// Calls the model on this share, which begins with the first item, and its padding.
    fn call(
        &self,
        layout: &BatchLayout,
        context: &mut Context,
        half: Half,
        share: Share,
        results: &mut Results,
    ) -> Result<(), CallError> {
        let count = |unit: Unit| layout.padded_count(unit, share.along(unit).count);
        let inputs = self.refs(half, |idx| count(layout.input_unit(idx)));
        let inputs = &inputs[..self.inputs.len()];
        context.bind(inputs)?;
        for (idx, row) in results.shapes.0.iter_mut().enumerate() {
            row.set(context.output_shape(idx));
        }

        let mut outputs: [TensorMut<'_>; MAX_TENSORS] =
            std::array::from_fn(|_| TensorMut::new::<u8>(&mut []));
        let memories = results.outputs.iter_mut().zip(&results.shapes.0).enumerate();
        for (slot, (idx, (memory, row))) in outputs.iter_mut().zip(memories) {
            let bytes = memory.slice_mut(half, count(layout.output_unit(idx)) * row.bytes);
            *slot = TensorMut::from_bytes(row.dtype, bytes).expect("reserved memory is aligned");
        }
        context.run(inputs, &mut outputs[..results.shapes.0.len()])
    }

    /// The first `count` items of each input, a function of its index.
    fn refs(&self, half: Half, count: impl Fn(usize) -> usize) -> [TensorRef<'_>; MAX_TENSORS] {
        let mut refs = [tensor::EMPTY; MAX_TENSORS];
        for (idx, (memory, row)) in self.inputs.iter().zip(&self.shapes.0).enumerate() {
            let count = count(idx);
            let bytes = memory.slice(half, count * row.bytes);
            refs[idx] = TensorRef::from_bytes(row.dtype, &row.shape(count)[..row.rank], bytes)
                .expect("the memory has the shape's bytes and is aligned");
        }
        refs
    }
}

/// The outputs of a batch.
pub(super) struct Results {
    outputs: Vec<BatchMemory>,
    shapes: RowShapes,
    /// The share of each request that failed, and its error.
    errors: Vec<(Share, CallError)>,
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
            errors: Vec::with_capacity(layout.max_requests()),
        })
    }

    /// Copies the results of a request to the caller.
    pub(super) fn take(
        &self,
        layout: &BatchLayout,
        share: Share,
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), BatchError> {
        let expected = self.shapes.0.len();
        let got = outputs.len();
        if expected != got {
            return Err(CallError::WrongOutputCount { expected, got }.into());
        }
        if let Some((_, error)) = self.errors.iter().find(|(failed, _)| *failed == share) {
            return Err(error.clone().into());
        }

        for (idx, (output, row)) in outputs.iter_mut().zip(&self.shapes.0).enumerate() {
            let tensor = || TensorName::output(&layout.model.desc, idx);
            if output.dtype() != row.dtype {
                let expected = row.dtype;
                let got = output.dtype();
                return Err(CallError::WrongDType { tensor: tensor(), expected, got }.into());
            }

            let run = share.along(layout.output_unit(idx));
            let needed = run.count * row.bytes;
            let got = output.len_bytes();
            if got < needed {
                return Err(CallError::TooSmall { tensor: tensor(), needed, got }.into());
            }

            let batch = self.outputs[idx].slice(Half::Batch, run.end() * row.bytes);
            output.bytes()[..needed].copy_from_slice(&batch[run.first * row.bytes..]);
        }
        Ok(())
    }
}
