//! Calls of a model's compiled code. No other file runs it.

use crate::{
    CallError, Context, State, Steps, TensorRef, Violation,
    abi::{Error, Exec},
    descriptor, pool,
};

impl Context {
    /// Sets the input pointers. Returns the arena and the executor of the call.
    fn prepare(&mut self, inputs: &[TensorRef<'_>]) -> (*mut u8, Exec) {
        let needed = self.model.desc.arena_bytes(&self.dims);
        assert!(needed <= self.layout.arena_bytes, "the compiler has proved the arena's bound");

        for (idx, input) in inputs.iter().enumerate() {
            self.slots.set_input(idx, input.bytes().as_ptr());
        }

        #[cfg(feature = "std")]
        let exec = match (&mut self.rehearsal, &mut self.pool) {
            (Some(rehearsal), _) => rehearsal.exec(),
            (None, Some(pool)) => pool.exec(),
            (None, None) => pool::SERIAL,
        };
        #[cfg(not(feature = "std"))]
        let exec = pool::SERIAL;
        (self.memory.at(self.layout.arena_at), Exec { policy: self.policy as u32, ..exec })
    }

    /// Runs the model. The caller has bound `inputs` last, and has set the outputs' slots to memory that is large
    /// enough and that it borrows until this function returns.
    pub(crate) fn call(&mut self, inputs: &[TensorRef<'_>]) -> Result<(), CallError> {
        let (arena, exec) = self.prepare(inputs);
        let desc = &self.model.desc;

        // SAFETY: `bind` checked `dims` for the shapes of these inputs; `TensorRef` checked the size and alignment of
        // their memory. The outputs' memory was compared with their shapes at these dims. `prepare` checked that the
        // arena is large enough; it begins at a 64-byte boundary, and `&mut self` makes it exclusive to this call. The
        // weights are those of the artefact, and the model keeps them. The host is null, or a part of this
        // context.
        let result = unsafe { desc.run(&self.slots, &mut self.dims, arena, exec) };
        result.map_err(|error| CallError::reported(Violation::new(desc, error)))?;

        if self.model.desc.has_data_dependent_sizes() {
            self.shape_outputs();
        }

        Ok(())
    }

    /// As [`Context::call`], for a model with state. The caller has bound the words of the states along with `inputs`.
    pub(crate) fn call_stateful(
        &mut self,
        inputs: &[TensorRef<'_>],
        states: &mut [&mut State],
    ) -> Result<(), CallError> {
        states.iter_mut().enumerate().for_each(|(idx, state)| self.slots.set_state(idx, state.block()));
        let (arena, exec) = self.prepare(inputs);
        let desc = &self.model.desc;
        // SAFETY: as in `call`. The caller has checked that each `State` is a block of this model. `&mut` makes each
        // exclusive to this call, so no two are the same block.
        let result = unsafe { desc.run_stateful(&self.slots, states.len(), &mut self.dims, arena, exec) };
        result.map_err(|error| CallError::reported(Violation::new(desc, error)))?;
        if self.model.desc.has_data_dependent_sizes() {
            self.shape_outputs();
        }
        Ok(())
    }

    /// As [`Context::call`], but `policy` runs the partitions. If the artefact is planned for one partition after
    /// another, the kernels of each partition use the context's threads; otherwise they run on the thread of their
    /// partition.
    pub(crate) fn call_steps(
        &mut self,
        inputs: &[TensorRef<'_>],
        policy: impl FnOnce(&Steps<'_>),
    ) -> Result<(), CallError> {
        let (arena, exec) = self.prepare(inputs);
        let desc = self.model.desc.clone();
        let mut error = Error::NONE;
        let exec = if desc.any_order() { pool::SERIAL } else { exec };
        let exec = Exec { error: &mut error, ..exec };
        let frame = self.steps.frame();
        // SAFETY: as in `call`. The frame has the size that the descriptor states. The frame, `exec` and `error` live
        // until the end of this function, and all steps end before: `policy` can't keep the steps that it borrows.
        let code = unsafe { desc.begin(&self.slots, &mut self.dims, arena, &exec, frame) };
        let code = if code == 0 {
            let steps = self.steps.begin(&desc);
            policy(&steps);
            steps.code()
        } else {
            code
        };

        descriptor::outcome(code, error)
            .map_err(|error| CallError::reported(Violation::new(&desc, error)))?;
        if let Some(missing) = self.steps.missing() {
            return Err(CallError::NotRun { partition: desc.partitions[missing].name().into() });
        }
        if desc.has_data_dependent_sizes() {
            self.shape_outputs();
        }
        Ok(())
    }
}
