//! Memory that grows, for models with unbounded symbols only.
//!
//! A call that needs more memory than any before replaces the context's memory before it stores anything. All other
//! calls allocate nothing. The old memory can be dropped, since the results of a call are valid only until the next
//! call.

use crate::{CallError, Context, arena::Arena, context::MemoryLayout};

impl Context {
    /// Number of calls that made the memory grow. Always 0 if all symbols have upper bounds.
    pub fn growths(&self) -> u64 {
        self.growths
    }

    /// Bytes of arena that calls can use without growth.
    pub fn arena_capacity(&self) -> usize {
        self.layout.arena_bytes
    }

    /// Grows the memory for a call at the bound dims, and for its outputs if they stay in the context.
    pub(crate) fn grow_memory(&mut self, outputs: bool) -> Result<(), CallError> {
        if !self.model.grows() {
            return Ok(());
        }

        let arena = self.model.desc.arena_bytes(&self.dims);
        let count = if outputs { self.layout.outputs_at.len() } else { 0 };
        let outputs_fit = (0..count).all(|idx| self.output_bytes(idx) <= self.layout.output_bytes(idx));
        if arena <= self.layout.arena_bytes && outputs_fit {
            return Ok(());
        }

        // Each growth at least doubles a part, so that growth to any size takes few steps.
        let larger =
            |needed: usize, got: usize| if needed > got { needed.max(got.saturating_mul(2)) } else { got };
        let wanted = (0..self.layout.outputs_at.len()).map(|idx| {
            let needed = if outputs { self.output_bytes(idx) } else { 0 };
            larger(needed, self.layout.output_bytes(idx))
        });
        let layout = MemoryLayout::new(larger(arena, self.layout.arena_bytes), wanted);
        let layout = layout.ok_or(CallError::NoMemory { bytes: usize::MAX })?;
        let memory = Arena::reserve(layout.bytes, &layout.outputs_at);
        self.memory = memory.map_err(|_| CallError::NoMemory { bytes: layout.bytes })?;
        self.layout = layout;
        self.growths += 1;
        Ok(())
    }
}
