//! Calls that run partition by partition: the frame, the state of each partition, and their order.

use crate::{StepError, arena::ALIGN_BYTES, descriptor::Desc};
use alloc::vec::Vec;
use core::{
    fmt,
    sync::atomic::{AtomicI32, AtomicU8, Ordering},
};

/// States of a partition in a call.
mod state {
    pub(super) const FREE: u8 = 0;
    /// Running, or failed.
    pub(super) const TAKEN: u8 = 1;
    pub(super) const DONE: u8 = 2;
}

/// A cache line of a frame.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; ALIGN_BYTES]);

/// Memory of calls by steps in addition to the arena, allocated once for each context.
pub(crate) struct StepMemory {
    frame: Vec<CacheLine>,
    states: Vec<AtomicU8>,
    code: AtomicI32,
}

impl StepMemory {
    /// Memory for the partitions of a model; empty if it has none.
    pub(crate) fn new(desc: &Desc) -> StepMemory {
        let count = desc.partitions.len();
        let lines = if count == 0 { 0 } else { desc.frame_bytes().div_ceil(ALIGN_BYTES) };
        StepMemory {
            frame: alloc::vec![CacheLine([0; ALIGN_BYTES]); lines],
            states: (0..count).map(|_| AtomicU8::new(state::FREE)).collect(),
            code: AtomicI32::new(0),
        }
    }

    /// The frame's memory.
    pub(crate) fn frame(&mut self) -> *mut u8 {
        self.frame.as_mut_ptr().cast()
    }

    /// The steps of a call whose frame is prepared.
    pub(crate) fn begin<'c>(&'c mut self, desc: &'c Desc) -> Steps<'c> {
        self.states.iter_mut().for_each(|state| *state.get_mut() = state::FREE);
        *self.code.get_mut() = 0;
        Steps { desc, frame: self.frame.as_mut_ptr().cast(), states: &self.states, code: &self.code }
    }

    /// The first partition that has not run.
    pub(crate) fn missing(&self) -> Option<usize> {
        self.states.iter().position(|state| state.load(Ordering::Acquire) != state::DONE)
    }
}

/// The partitions of one call. Several threads may share it.
pub struct Steps<'c> {
    desc: &'c Desc,
    frame: *mut u8,
    states: &'c [AtomicU8],
    code: &'c AtomicI32,
}

// SAFETY: compiled code lets partitions of one frame run at once if the table allows it, which `run` checks; the states
// are atomic.
unsafe impl Sync for Steps<'_> {}
// SAFETY: as above; no field is bound to a thread.
unsafe impl Send for Steps<'_> {}

impl Steps<'_> {
    /// The number of partitions.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Never true: a model without partitions has no steps.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Whether all partitions that it depends on have run.
    pub fn is_ready(&self, number: usize) -> bool {
        number < self.len() && self.waits_for(number).is_none()
    }

    /// Runs a partition on this thread.
    ///
    /// # Errors
    /// When the partition must not run now, or when it failed. The call then returns its error, and no other partition
    /// should run.
    pub fn run(&self, number: usize) -> Result<(), StepError> {
        let own = self.states.get(number).ok_or(StepError::NoPartition { number })?;
        if let Some(other) = self.waits_for(number) {
            return Err(StepError::TooEarly { number, other });
        }

        let taken = own.compare_exchange(state::FREE, state::TAKEN, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_err() {
            return Err(StepError::Twice { number });
        }

        // SAFETY: the frame is prepared for these steps, which don't outlive it. The partitions before this one are
        // done, and no other thread runs it.
        let code = unsafe { self.desc.step(number, self.frame) };
        if code != 0 {
            _ = self.code.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed);
            return Err(StepError::Failed { number });
        }
        own.store(state::DONE, Ordering::Release);
        Ok(())
    }

    /// A partition that must run before this one and is not done.
    fn waits_for(&self, number: usize) -> Option<usize> {
        let open = |other: &usize| self.states[*other].load(Ordering::Acquire) != state::DONE;
        if self.desc.any_order() {
            self.desc.partitions[number].after.iter().copied().find(|other| open(other))
        } else {
            (0..number).find(|other| open(other))
        }
    }

    /// The code of the first failure.
    pub(crate) fn code(&self) -> i32 {
        self.code.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").field("states", &self.states).finish()
    }
}
