//! The outputs of a ragged call, for each sequence or padded.

use super::{
    batch::RaggedBatch,
    error::RaggedError,
    ports::{PaddedRows, Part, item_bytes},
};
use crate::{CallError, Context, Model, Outputs, TensorMut, TensorName, TensorRef, tensor::MAX_AXES};
use alloc::vec::Vec;

/// The outputs of [`crate::Context::run_ragged`], in the context's memory.
#[derive(Clone, Copy, Debug)]
pub struct RaggedOutputs<'a> {
    outputs: Outputs<'a>,
    model: &'a Model,
    batch: &'a RaggedBatch,
}

impl<'a> RaggedOutputs<'a> {
    /// The outputs with the rows of all sequences.
    pub fn all(&self) -> Outputs<'a> {
        self.outputs
    }

    /// Output `idx` of one sequence, in place: `[length, …]` if it has rows, or `[1, …]`.
    ///
    /// # Panics
    /// When the model has no such output, or the batch no such sequence.
    pub fn sequence(&self, idx: usize, sequence: usize) -> TensorRef<'a> {
        let all = self.outputs.get(idx);
        let span = self.batch.offsets()[sequence]..self.batch.offsets()[sequence + 1];
        let (axis, first, count) = match self.part(idx) {
            Part::Rows { axis, .. } => (axis, span.start as usize, (span.end - span.start) as usize),
            Part::Item { axis } => (axis, sequence, 1),
            Part::Shared | Part::Offsets => return all,
        };
        let mut shape = [0; MAX_AXES];
        let shape = &mut shape[..all.shape().len()];
        shape.copy_from_slice(all.shape());
        shape[axis] = count;
        let item = item_bytes(all.shape(), all.dtype().size_bytes(), axis);
        let bytes = &all.bytes()[first * item..][..count * item];
        TensorRef::from_bytes(all.dtype(), shape, bytes).expect("a part of an output")
    }

    /// The shape of output `idx` in the padded model. An output without rows has the same shape in both.
    ///
    /// # Panics
    /// When the model has no such output.
    pub fn padded_shape(&self, idx: usize) -> Vec<usize> {
        let mut shape = self.outputs.get(idx).shape().to_vec();
        if let Part::Rows { axis, sequences: Some(sequences) } = self.part(idx) {
            shape[axis] = self.batch.tokens().positions();
            shape.insert(sequences, self.batch.tokens().spans().len());
        }
        shape
    }

    /// Writes output `idx` as the padded model has it. Only rows of tokens are written: padding keeps its content. An
    /// output without rows is copied.
    ///
    /// # Errors
    /// When `padded` has another type or shape, or too few bytes.
    ///
    /// # Panics
    /// When the model has no such output.
    pub fn pad(&self, idx: usize, padded: &mut TensorMut<'_>) -> Result<(), RaggedError> {
        let all = self.outputs.get(idx);
        let shape = self.padded_shape(idx);
        let needed = shape.iter().product::<usize>() * all.dtype().size_bytes();
        self.accept(idx, padded, &shape, needed)?;
        let bytes = &mut padded.bytes()[..needed];
        let Part::Rows { axis, sequences: Some(sequences) } = self.part(idx) else {
            bytes.copy_from_slice(all.bytes());
            return Ok(());
        };

        let rows = PaddedRows::new(&shape, all.dtype().size_bytes(), axis, Some(sequences));
        let offsets = self.batch.offsets().windows(2);
        for (sequence, (span, offset)) in self.batch.tokens().spans().iter().zip(offsets).enumerate() {
            let own = &all.bytes()[offset[0] as usize * rows.row_bytes()..];
            rows.scatter(own, sequence, span, bytes);
        }
        Ok(())
    }

    fn part(&self, idx: usize) -> Part {
        let ragged = self.model.ragged().expect("the model has a ragged batch");
        Part::of_output(self.model, ragged, idx)
    }

    fn accept(
        &self,
        idx: usize,
        padded: &TensorMut<'_>,
        shape: &[usize],
        needed: usize,
    ) -> Result<(), RaggedError> {
        let tensor = || TensorName::output(&self.model.desc, idx);
        let expected = self.model.outputs()[idx].dtype();
        if padded.dtype() != expected {
            return Err(CallError::WrongDType { tensor: tensor(), expected, got: padded.dtype() }.into());
        }
        if let Some(given) = padded.shape() {
            if given.len() != shape.len() {
                let (expected, got) = (shape.len(), given.len());
                return Err(CallError::WrongRank { tensor: tensor(), expected, got }.into());
            }
            if let Some(axis) = (0..shape.len()).find(|axis| given[*axis] != shape[*axis]) {
                let (expected, got) = (shape[axis], given[axis]);
                return Err(CallError::WrongShape { tensor: tensor(), axis, expected, got }.into());
            }
        }
        let got = padded.len_bytes();
        if got < needed {
            return Err(CallError::TooSmall { tensor: tensor(), needed, got }.into());
        }
        Ok(())
    }
}

impl Context {
    /// Runs a ragged batch. The outputs stay in the context's memory until the next call.
    ///
    /// # Errors
    /// As [`Context::run_views`].
    ///
    /// # Panics
    /// When the batch is of another model.
    pub fn run_ragged<'a>(&'a mut self, batch: &'a RaggedBatch) -> Result<RaggedOutputs<'a>, CallError> {
        assert!(
            alloc::sync::Arc::ptr_eq(&self.model.desc, &batch.model.desc),
            "a batch belongs to the model that it was made for"
        );
        let inputs = batch.refs();
        let outputs = self.run_views(&inputs[..batch.model.inputs().len()])?;
        Ok(RaggedOutputs { outputs, model: &batch.model, batch })
    }
}
