//! Memory that grows: for models whose symbols have no upper bound, and only for those.
//!
//! A call that needs more than any before replaces the context's memory by a larger one before it stores anything;
//! all other calls allocate nothing. Nothing that lies in the old memory is needed any more: a call's results end with
//! the next call.

use crate::{CallError, Context, arena::Arena, context::MemoryLayout};

impl Context {
    /// How many calls needed more memory than any call before, and got it. Always 0 of a model whose symbols all have
    /// upper bounds.
    pub fn growths(&self) -> u64 {
        self.growths
    }

    /// Bytes of arena that calls can use without growth.
    pub fn arena_capacity(&self) -> usize {
        self.layout.arena_bytes
    }

    /// Makes room for a call at the bound dims, and for its outputs if they stay here.
    pub(crate) fn make_room(&mut self, outputs: bool) -> Result<(), CallError> {
        if !self.model.grows() {
            return Ok(());
        }
        let arena = self.model.desc.arena_bytes(&self.dims);
        let count = if outputs { self.layout.outputs_at.len() } else { 0 };
        let enough = (0..count).all(|idx| self.output_bytes(idx) <= self.layout.output_bytes(idx));
        if arena <= self.layout.arena_bytes && enough {
            return Ok(());
        }
        // What is larger than before doubles at least: growing to any size takes few steps.
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
