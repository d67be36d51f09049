//! The arena plan: an order of buffers in each memory.

use crate::kernel::{BufferId, Program};

/// Alignment of every buffer, in bytes.
pub const ALIGN_BYTES: i64 = 64;

/// The order of all buffers in the arena.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The buffers in planned spaces that a kernel touches, each after those below it.
    pub placements: Vec<Placement>,
    /// Bytes that suffice for every allowed value of the symbols.
    pub arena_max: u64,
    /// Whether the arena provably never shrinks as one symbol grows and the others stay.
    pub is_monotone: bool,
    /// Bytes that every plan needs at the symbols' upper bounds, summed over the memories.
    pub lower_bound: u64,
    /// Usage of each device's memory, in the order of the program's devices.
    pub devices: Vec<ArenaUsage>,
}

impl Plan {
    /// The buffer with which a device's memory begins, if anything is in it.
    pub(crate) fn lowest_of(&self, program: &Program, device: u32) -> Option<BufferId> {
        let mut placed = self.placements.iter().map(|placement| placement.buffer);
        placed.find(|buffer| program.buffers[*buffer].space.device() == Some(device))
    }
}

/// Bytes of one memory that a plan uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArenaUsage {
    /// Bytes that suffice for every allowed value of the symbols.
    pub max: u64,
    /// Bytes that every plan needs at the symbols' upper bounds.
    pub lower_bound: u64,
}

/// A buffer of the arena, and the buffers directly below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The buffer.
    pub buffer: BufferId,
    /// The buffers directly below, all earlier in [`Plan::placements`]. Empty at the bottom of the arena.
    pub below: Vec<BufferId>,
}
