//! The one place where a model's compiled code runs on memory.

use crate::{CallError, Context, TensorRef, desc::Broken, pool};

impl Context {
    /// Runs the model: `inputs` were bound last, and the outputs' slots were just set to memory that takes them,
    /// borrowed by the caller of this function until it returns.
    pub(crate) fn call(&mut self, inputs: &[TensorRef<'_>]) -> Result<(), CallError> {
        let desc = &self.model.desc;
        let (needed, got) = (desc.arena_bytes(&self.dims), self.room.arena_bytes);
        assert!(needed <= got, "the arena's bound was proven by the compiler");
        for (idx, input) in inputs.iter().enumerate() {
            self.slots.set_input(idx, input.bytes().as_ptr());
        }
        let arena = self.memory.at(self.room.arena_at);
        #[cfg(feature = "std")]
        let exec = self.pool.as_mut().map_or(pool::SERIAL, |pool| pool.exec());
        #[cfg(not(feature = "std"))]
        let exec = pool::SERIAL;
        // SAFETY: `dims` are those that `bind` checked for the shapes of these inputs, whose memory `TensorRef` sized
        // and aligned; the outputs' memory was compared with the shapes at these dims; the arena holds as many
        // bytes as were just asked for, from a 64-byte boundary on, and `&mut self` makes it this call's alone; the host is none, or a pool
        // that is this context's alone.
        let result = unsafe { desc.run(&self.slots, &mut self.dims, arena, exec) };
        result.map_err(|error| CallError::reported(Broken::new(desc, error)))?;
        if self.model.desc.finds() {
            self.shape_outputs();
        }
        Ok(())
    }
}
