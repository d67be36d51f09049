//! Calls that detect stray reads and writes: poisoned memory, and canaries around it that are checked afterwards.

use crate::{CallError, Context, Outputs, TensorRef, context::GUARD_BYTES};

/// A pattern that is a NaN in every float type, and a large value in every integer type.
const POISON: u8 = 0xff;
/// The content of guards, which float results are unlikely to contain.
const CANARY: u8 = 0xa5;

impl Context {
    /// As [`Context::run_views`], in memory filled with NaN patterns and with canaries right before and after the bytes
    /// that the call may write. They follow `arena_bytes(dims)`, not the upper bound. The second result is false when a
    /// canary was overwritten.
    ///
    /// # Errors
    /// As [`Context::run`].
    pub fn run_guarded(&mut self, inputs: &[TensorRef<'_>]) -> Result<(Outputs<'_>, bool), CallError> {
        self.bind(inputs)?;
        if self.layout.outputs_at.is_empty() && !self.model.outputs().is_empty() {
            return Err(CallError::NoOutputMemory);
        }
        self.grow_memory(true)?;
        let arena =
            (self.layout.arena_at, self.model.desc.arena_bytes(&self.dims).min(self.model.arena_max()));
        self.poison(arena);
        // The sizes before the call: a data-dependent output may be smaller afterwards.
        let outputs: alloc::vec::Vec<(usize, usize)> =
            (0..self.layout.outputs_at.len()).map(|idx| self.output_range(idx)).collect();
        outputs.iter().for_each(|range| self.poison(*range));
        self.run_bound(inputs)?;

        let is_intact = self.intact(arena) && outputs.iter().all(|range| self.intact(*range));
        Ok((self.outputs(), is_intact))
    }

    /// Offset and bytes of output `idx` at the bound dims.
    fn output_range(&self, idx: usize) -> (usize, usize) {
        (self.layout.outputs_at[idx], self.output_bytes(idx).min(self.model.outputs()[idx].max_bytes()))
    }

    /// Fills a range with poison and its surroundings with canaries.
    fn poison(&mut self, (at, bytes): (usize, usize)) {
        self.memory.slice_mut(at - GUARD_BYTES, GUARD_BYTES).fill(CANARY);
        self.memory.slice_mut(at, bytes).fill(POISON);
        self.memory.slice_mut(at + bytes, GUARD_BYTES).fill(CANARY);
    }

    /// True if the canaries around a range are intact.
    fn intact(&self, (at, bytes): (usize, usize)) -> bool {
        let canaries = |from: usize| self.memory.slice(from, GUARD_BYTES).iter().all(|byte| *byte == CANARY);
        canaries(at - GUARD_BYTES) && canaries(at + bytes)
    }
}
