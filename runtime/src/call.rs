//! Calls of a model's compiled code; no other file runs it.

use crate::{
    CallError, Context, Steps, TensorRef, Violation,
    abi::{Error, Exec},
    descriptor, pool,
};

impl Context {
    /// Sets the input pointers. Returns the arena and the executor of the call.
    fn prepare(&mut self, inputs: &[TensorRef<'_>]) -> (*mut u8, Exec) {
        let (needed, got) = (self.model.desc.arena_bytes(&self.dims), self.layout.arena_bytes);
        assert!(needed <= got, "the arena's bound was proven by the compiler");
        for (idx, input) in inputs.iter().enumerate() {
            self.slots.set_input(idx, input.bytes().as_ptr());
        }
        #[cfg(feature = "std")]
        let exec = self.pool.as_mut().map_or(pool::SERIAL, |pool| pool.exec());
        #[cfg(not(feature = "std"))]
        let exec = pool::SERIAL;
        (self.memory.at(self.layout.arena_at), Exec { policy: self.policy as u32, ..exec })
    }

    /// Runs the model: `inputs` were bound last, and the outputs' slots were just set to memory that takes them,
    /// borrowed by the caller of this function until it returns.
    pub(crate) fn call(&mut self, inputs: &[TensorRef<'_>]) -> Result<(), CallError> {
        let (arena, exec) = self.prepare(inputs);
        let desc = &self.model.desc;
        // SAFETY: `dims` are those that `bind` checked for the shapes of these inputs, whose memory `TensorRef` sized
        // and aligned; the outputs' memory was compared with the shapes at these dims; the arena holds as many
        // bytes as were just asked for, from a 64-byte boundary on, and `&mut self` makes it this call's alone; the host is none, or a pool
        // that is this context's alone.
        let result = unsafe { desc.run(&self.slots, &mut self.dims, arena, exec) };
        result.map_err(|error| CallError::reported(Violation::new(desc, error)))?;
        if self.model.desc.finds() {
            self.shape_outputs();
        }
        Ok(())
    }

    /// As [`Context::call`], with the partitions run by `policy`. The context's own threads, if it has any, are used by
    /// the kernels of each partition where the artefact is planned for one after another, and not otherwise.
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
        // SAFETY: as in `call`; the frame has as many bytes as the descriptor says, and it, `exec` and `error` stay until
        // the end of this function, before which all steps end: `policy` can't keep what it borrows.
        let code = unsafe { desc.begin(&self.slots, &mut self.dims, arena, &exec, frame) };
        let code = match code {
            0 => {
                let steps = self.steps.begin(&desc);
                policy(&steps);
                steps.code()
            }
            code => code,
        };
        descriptor::outcome(code, error)
            .map_err(|error| CallError::reported(Violation::new(&desc, error)))?;
        if let Some(missing) = self.steps.missing() {
            return Err(CallError::NotRun { partition: desc.partitions[missing].name().into() });
        }
        if desc.finds() {
            self.shape_outputs();
        }
        Ok(())
    }
}
