//! The table of a model's partitions, and calls that run them by a policy of the caller's own.

use crate::{
    CallError, Context, Model, QueryError, StepError, TensorMut, TensorRef, arena::ALIGN_BYTES,
    descriptor::Desc,
};
use alloc::{string::String, vec::Vec};
use core::{
    fmt,
    ops::Range,
    sync::atomic::{AtomicI32, AtomicU8, Ordering},
};

/// A part of a model that runs as one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionInfo {
    pub(crate) name: String,
    pub(crate) target: String,
    pub(crate) cost: String,
    pub(crate) after: Vec<usize>,
    pub(crate) symbols: Vec<usize>,
    pub(crate) stage: usize,
}

impl PartitionInfo {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the target that it runs on.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Its estimated work as a formula of the dims, in multiplications with addition of a vector unit.
    pub fn cost_formula(&self) -> &str {
        &self.cost
    }

    /// The partitions that must have run before: earlier entries of the table.
    pub fn after(&self) -> &[usize] {
        &self.after
    }

    /// The symbols that it uses, as places in [`Model::symbols`].
    pub fn symbols(&self) -> &[usize] {
        &self.symbols
    }

    /// Partitions of one stage may run at once; those of earlier stages are done before any of a later one.
    pub fn stage(&self) -> usize {
        self.stage
    }
}

impl Model {
    /// The table of partitions; empty where the model is in one piece.
    pub fn partitions(&self) -> &[PartitionInfo] {
        &self.desc.partitions
    }

    /// Whether partitions may run in any order that respects what each waits for, several at once. If not, they run one
    /// after another in the order of the table.
    pub fn any_order(&self) -> bool {
        self.desc.any_order()
    }

    /// Estimated work of a partition on so many threads, in multiplications with addition of a vector unit.
    ///
    /// # Errors
    /// Dims outside the contract, and a partition that there is none of.
    pub fn partition_cost(&self, partition: usize, dims: &[i64], threads: u32) -> Result<i64, QueryError> {
        self.allowed(dims)?;
        self.accept_partition(partition)?;
        Ok(self.desc.cost(partition, dims, threads.max(1)))
    }

    /// The part of the arena that a partition touches, in bytes; parts of partitions that may run at once can be
    /// entwined, the buffers in them never are.
    ///
    /// # Errors
    /// As [`Model::partition_cost`].
    pub fn arena_slice(&self, partition: usize, dims: &[i64]) -> Result<Range<usize>, QueryError> {
        self.allowed(dims)?;
        self.accept_partition(partition)?;
        Ok(self.desc.arena_slice(partition, dims))
    }

    fn accept_partition(&self, number: usize) -> Result<(), QueryError> {
        match number < self.partitions().len() {
            true => Ok(()),
            false => Err(QueryError::NoPartition { number }),
        }
    }
}

impl Context {
    /// Runs a model with partitions into the caller's buffers; `policy` runs the partitions, each once, after those that
    /// it waits for, on threads of its own if it likes. Results are the same bits for any policy.
    ///
    /// ```no_run
    /// # use symshape_runtime::{CallError, Context, TensorMut, TensorRef};
    /// # fn call(context: &mut Context, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), CallError> {
    /// context.run_steps(inputs, outputs, |steps| {
    ///     for number in 0..steps.len() {
    ///         if steps.run(number).is_err() {
    ///             break;
    ///         }
    ///     }
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Context::run`]; and [`CallError::NotRun`] where the policy left something out, the outputs are undefined then.
    pub fn run_steps(
        &mut self,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        policy: impl FnOnce(&Steps<'_>),
    ) -> Result<(), CallError> {
        self.bind_into(inputs, outputs)?;
        if self.model.partitions().is_empty() {
            return self.call(inputs);
        }
        self.call_steps(inputs, policy)
    }
}

/// States of a partition in a call.
mod state {
    pub(super) const FREE: u8 = 0;
    pub(super) const TAKEN: u8 = 1;
    pub(super) const DONE: u8 = 2;
}

/// A cache line of a frame.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; ALIGN_BYTES]);

/// What calls by steps need beside the arena, made once for each context.
pub(crate) struct Memory {
    frame: Vec<Line>,
    states: Vec<AtomicU8>,
    code: AtomicI32,
}

impl Memory {
    /// Nothing for a model without partitions.
    pub(crate) fn new(model: &Model) -> Memory {
        let count = model.partitions().len();
        let lines = if count == 0 { 0 } else { model.desc.frame_bytes().div_ceil(ALIGN_BYTES) };
        Memory {
            frame: alloc::vec![Line([0; ALIGN_BYTES]); lines],
            states: (0..count).map(|_| AtomicU8::new(state::FREE)).collect(),
            code: AtomicI32::new(0),
        }
    }

    /// The frame's memory.
    pub(crate) fn frame(&mut self) -> *mut u8 {
        self.frame.as_mut_ptr().cast()
    }

    /// The steps of a call whose frame was prepared.
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

/// The partitions of one call; threads may share it.
pub struct Steps<'c> {
    desc: &'c Desc,
    frame: *mut u8,
    states: &'c [AtomicU8],
    code: &'c AtomicI32,
}

// SAFETY: compiled code lets partitions of one frame run at once where the table allows it, which `run` sees to; the
// states are atomic.
unsafe impl Sync for Steps<'_> {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Steps<'_> {}

impl Steps<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Never true: a model without partitions has no steps.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Whether all that a partition waits for has run.
    pub fn is_ready(&self, number: usize) -> bool {
        number < self.len() && self.waits_for(number).is_none()
    }

    /// Runs a partition on this thread.
    ///
    /// # Errors
    /// It must not run now, or it failed: the call then ends with that error, and nothing more should be run.
    pub fn run(&self, number: usize) -> Result<(), StepError> {
        let own = self.states.get(number).ok_or(StepError::NoPartition { number })?;
        if let Some(other) = self.waits_for(number) {
            return Err(StepError::TooEarly { number, other });
        }
        let taken =
            own.compare_exchange(state::FREE, state::TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !taken {
            return Err(StepError::Twice { number });
        }
        // SAFETY: the frame was prepared for these steps, which don't outlive it; what this partition waits for is done, and nobody else
        // runs it.
        let code = unsafe { self.desc.step(number, self.frame) };
        if code != 0 {
            _ = self.code.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed);
            return Err(StepError::Failed { number });
        }
        own.store(state::DONE, Ordering::Release);
        Ok(())
    }

    /// A partition that must run before this one and has not.
    fn waits_for(&self, number: usize) -> Option<usize> {
        let open = |other: &usize| self.states[*other].load(Ordering::Acquire) != state::DONE;
        match self.desc.any_order() {
            true => self.desc.partitions[number].after.iter().copied().find(|other| open(other)),
            false => (0..number).find(|other| open(other)),
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
