//! Contexts: the arena and the tables of pointers and shapes that one thread needs to call a model.
//!
//! A context reserves all memory when it is created, at the bounds of the contract. So a call of any size allocates
//! nothing. A call first checks types and ranks, then the whole contract (in the artefact's `check`), then the output
//! buffers. Only then does it write.

use crate::{
    CallError, Model, OpenError, Policy, TensorMut, TensorName, TensorRef, Violation,
    arena::{ALIGN_BYTES, Arena},
    descriptor::Slots,
    steps::StepMemory,
    tensor,
};
use alloc::vec::Vec;
use core::fmt;

/// Untouched bytes around the arena and between outputs, of address space only; see [`Context::run_guarded`].
pub(crate) const GUARD_BYTES: usize = 4096;

/// Memory layout of a context: the arena and the outputs, with guards around each.
pub(crate) struct MemoryLayout {
    /// Offset of the arena.
    pub(crate) arena_at: usize,
    /// Size of the arena.
    pub(crate) arena_bytes: usize,
    /// Offsets of the outputs; empty in lent memory.
    pub(crate) outputs_at: Vec<usize>,
    /// Total size.
    pub(crate) bytes: usize,
}

impl MemoryLayout {
    /// Lays out an arena and outputs of these sizes. `None` if they exceed the address space.
    pub(crate) fn new(arena_bytes: usize, outputs: impl Iterator<Item = usize>) -> Option<MemoryLayout> {
        let end_of = |at: usize, bytes: usize| {
            at.checked_add(bytes.checked_next_multiple_of(ALIGN_BYTES)?)?.checked_add(GUARD_BYTES)
        };
        let arena_at = GUARD_BYTES;
        let mut bytes = end_of(arena_at, arena_bytes)?;
        let mut outputs_at = Vec::new();
        for output in outputs {
            outputs_at.push(bytes);
            bytes = end_of(bytes, output)?;
        }
        Some(MemoryLayout { arena_at, arena_bytes, outputs_at, bytes })
    }

    /// Capacity of output `idx`, in bytes.
    pub(crate) fn output_bytes(&self, idx: usize) -> usize {
        let end = self.outputs_at.get(idx + 1).copied().unwrap_or(self.bytes);
        end - GUARD_BYTES - self.outputs_at[idx]
    }
}

/// A caller of a model, for one thread at a time.
pub struct Context {
    pub(crate) model: Model,
    pub(crate) memory: Arena,
    /// How `memory` is divided.
    pub(crate) layout: MemoryLayout,
    /// Number of times that larger memory replaced the memory.
    pub(crate) growths: u64,
    pub(crate) slots: Slots,
    #[cfg(feature = "std")]
    pub(crate) pool: Option<crate::pool::Pool>,
    #[cfg(feature = "std")]
    pub(crate) rehearsal: Option<crate::rehearsal::Rehearsal>,
    pub(crate) policy: Policy,
    pub(crate) steps: StepMemory,
    in_shapes: Vec<i64>,
    pub(crate) dims: Vec<i64>,
    /// The outputs' shapes, one after another, as of the last successful check.
    out_shapes: Vec<i64>,
    out_sizes: Vec<usize>,
    /// Index of the begin of each output's shape in `out_sizes`, and the end of the last one.
    out_starts: Vec<usize>,
}

impl Context {
    /// A context with its own memory for the arena and the outputs. It reserves their upper bounds now. The system
    /// commits most of it when it is first touched. A model with unbounded symbols gets its memory in calls.
    ///
    /// # Errors
    /// When the system refuses the address space.
    pub fn new(model: &Model) -> Result<Context, OpenError> {
        let layout = if model.grows() {
            MemoryLayout::new(0, model.outputs().iter().map(|_| 0))
        } else {
            MemoryLayout::new(model.arena_max(), model.outputs().iter().map(|output| output.max_bytes()))
        };
        let layout = layout.ok_or(OpenError::Reserve { bytes: usize::MAX })?;
        Ok(Context::over(model, Arena::reserve(layout.bytes, &layout.outputs_at)?, layout))
    }

    /// A context whose arena is lent, for example a static array. It has no memory for outputs; they go to the caller's
    /// buffers.
    ///
    /// # Errors
    /// When the 64-byte aligned part of `memory` is smaller than [`Model::arena_max`].
    pub fn in_memory(model: &Model, memory: &'static mut [u8]) -> Result<Context, OpenError> {
        let memory = Arena::lent(memory);
        let needed = model.arena_max();
        let got = memory.len();
        if got < needed {
            return Err(OpenError::TooSmall { needed, got });
        }
        let layout = MemoryLayout { arena_at: 0, arena_bytes: got, outputs_at: Vec::new(), bytes: got };
        Ok(Context::over(model, memory, layout))
    }

    /// A context over this memory.
    fn over(model: &Model, memory: Arena, layout: MemoryLayout) -> Context {
        let in_axes = model.inputs().iter().map(|input| input.rank()).sum();
        let mut out_starts = alloc::vec![0];
        for output in model.outputs() {
            out_starts.push(out_starts[out_starts.len() - 1] + output.rank());
        }

        let out_axes = out_starts[model.outputs().len()];
        Context {
            model: model.clone(),
            memory,
            layout,
            growths: 0,
            slots: Slots::new(
                model.inputs().len(),
                model.outputs().len(),
                model.max_states(),
                model.weights_address(),
            ),
            #[cfg(feature = "std")]
            pool: None,
            #[cfg(feature = "std")]
            rehearsal: None,
            policy: Policy::Auto,
            steps: StepMemory::new(&model.desc),
            in_shapes: alloc::vec![0; in_axes],
            dims: alloc::vec![0; model.desc.n_dims()],
            out_shapes: alloc::vec![0; out_axes],
            out_sizes: alloc::vec![0; out_axes],
            out_starts,
        }
    }

    /// Sets the number of threads of later calls, the caller included. The others spin between the kernels of a call
    /// and sleep between calls. Results have the same bits for any number of threads.
    ///
    /// # Errors
    /// When the system refuses to start the threads.
    #[cfg(feature = "std")]
    pub fn set_threads(&mut self, threads: u32) -> Result<(), OpenError> {
        self.pool = match threads {
            0 | 1 => None,
            _ => Some(crate::pool::Pool::new(threads).map_err(|_| OpenError::Threads { threads })?),
        };
        Ok(())
    }

    /// Makes later calls divide their work as for this number of threads, and run it on the calling thread alone.
    /// [`Context::take_rounds`] returns the times. With 0, later calls run on the threads of the context again.
    ///
    /// The results have the bits of any other call. The times are those of a machine where threads neither wait for
    /// memory longer than one of them does, nor for data of each other.
    #[cfg(feature = "std")]
    pub fn rehearse(&mut self, threads: u32) {
        self.rehearsal = (threads > 0).then(|| crate::rehearsal::Rehearsal::new(threads));
    }

    /// The rounds of a rehearsal in the order in which they ran, since the last time that they were taken. Work that a
    /// call doesn't divide is in no round.
    #[cfg(feature = "std")]
    pub fn take_rounds(&mut self) -> Vec<crate::Round> {
        self.rehearsal.as_mut().map_or_else(Vec::new, |rehearsal| rehearsal.take_rounds())
    }

    /// Sets how later calls run the partitions of a model. Results have the same bits for any policy.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The model that it calls.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Checks the contract for inputs of these types and shapes, and returns the symbols' values.
    ///
    /// # Errors
    /// The first violation that the check finds in the inputs.
    pub fn bind(&mut self, inputs: &[TensorRef<'_>]) -> Result<&[i64], CallError> {
        if self.model.desc.state.is_some() {
            return Err(CallError::StateMissing);
        }
        self.bind_words(inputs, &[])
    }

    /// As [`Context::bind`], with the words of a state's header.
    pub(crate) fn bind_words(
        &mut self,
        inputs: &[TensorRef<'_>],
        words: &[i64],
    ) -> Result<&[i64], CallError> {
        let desc = &self.model.desc;
        if inputs.len() != desc.inputs.len() {
            return Err(CallError::WrongInputCount { expected: desc.inputs.len(), got: inputs.len() });
        }

        let mut rest = &mut self.in_shapes[..];
        for (idx, (input, info)) in inputs.iter().zip(&desc.inputs).enumerate() {
            if input.dtype() != info.dtype() {
                let tensor = TensorName::input(desc, idx);
                return Err(CallError::WrongDType { tensor, expected: info.dtype(), got: input.dtype() });
            }
            if input.shape().len() != info.rank() {
                let tensor = TensorName::input(desc, idx);
                return Err(CallError::WrongRank { tensor, expected: info.rank(), got: input.shape().len() });
            }

            let (dims, tail) = rest.split_at_mut(info.rank());
            for (to, from) in dims.iter_mut().zip(input.shape()) {
                *to = i64::try_from(*from).unwrap_or(i64::MAX);
            }

            rest = tail;
        }

        desc.check(&self.in_shapes, words, &mut self.slots, &mut self.dims)
            .map_err(|error| CallError::reported(Violation::new(desc, error)))?;
        self.shape_outputs();

        Ok(&self.dims[..self.model.symbols().len()])
    }

    /// Computes the outputs' shapes from the bound dims.
    pub(crate) fn shape_outputs(&mut self) {
        for idx in 0..self.out_starts.len() - 1 {
            let range = self.out_starts[idx]..self.out_starts[idx + 1];
            self.model.desc.output_shape(idx, &self.dims, &mut self.out_shapes[range.clone()]);
            for axis in range {
                self.out_sizes[axis] = usize::try_from(self.out_shapes[axis]).unwrap_or(0);
            }
        }
    }

    /// The shape of output `idx` as of the last successful [`Context::bind`] or call.
    ///
    /// # Panics
    /// When the model has no such output.
    pub fn output_shape(&self, idx: usize) -> &[usize] {
        &self.out_sizes[self.out_starts[idx]..self.out_starts[idx + 1]]
    }

    /// Bytes of output `idx` at the bound dims.
    pub(crate) fn output_bytes(&self, idx: usize) -> usize {
        let dtype = self.model.outputs()[idx].dtype();
        tensor::size_bytes(dtype, self.output_shape(idx)).unwrap_or(usize::MAX)
    }

    /// Runs the model into the caller's buffers.
    ///
    /// # Errors
    /// When the tensors violate the contract; no memory is written then. Or when an index in the data is out of
    /// bounds; the outputs are undefined then.
    pub fn run(&mut self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), CallError> {
        self.bind_into(inputs, outputs)?;
        self.call(inputs)
    }

    /// Checks the contract and the buffers, and prepares a call into them.
    pub(crate) fn bind_into(
        &mut self,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
    ) -> Result<(), CallError> {
        self.bind(inputs)?;
        self.take_outputs(outputs)
    }

    /// Checks the buffers for the outputs at the bound dims, and prepares a call into them.
    pub(crate) fn take_outputs(&mut self, outputs: &mut [TensorMut<'_>]) -> Result<(), CallError> {
        let expected = self.model.outputs().len();
        if outputs.len() != expected {
            return Err(CallError::WrongOutputCount { expected, got: outputs.len() });
        }
        for (idx, output) in outputs.iter_mut().enumerate() {
            self.accept(idx, output)?;
            self.slots.set_output(idx, output.bytes().as_mut_ptr());
        }
        self.grow_memory(false)
    }

    /// Runs the model into the context's own memory, where the outputs stay until the next call.
    ///
    /// # Errors
    /// As [`Context::run`].
    pub fn run_views(&mut self, inputs: &[TensorRef<'_>]) -> Result<Outputs<'_>, CallError> {
        self.bind(inputs)?;
        self.run_bound(inputs)?;
        Ok(Outputs { context: self })
    }

    /// Runs into the context's memory; the caller has bound `inputs` last.
    pub(crate) fn run_bound(&mut self, inputs: &[TensorRef<'_>]) -> Result<(), CallError> {
        self.take_own_outputs()?;
        self.call(inputs)
    }

    /// Prepares a call into the context's own memory at the bound dims.
    pub(crate) fn take_own_outputs(&mut self) -> Result<(), CallError> {
        if self.layout.outputs_at.len() != self.model.outputs().len() {
            return Err(CallError::NoOutputMemory);
        }

        self.grow_memory(true)?;
        for idx in 0..self.layout.outputs_at.len() {
            let needed = self.output_bytes(idx);
            let got = self.layout.output_bytes(idx);
            if needed > got {
                let tensor = TensorName::output(&self.model.desc, idx);
                return Err(CallError::TooSmall { tensor, needed, got });
            }
            let at = self.memory.at(self.layout.outputs_at[idx]);
            self.slots.set_output(idx, at);
        }

        Ok(())
    }

    /// The outputs of the last call, which went to the context's memory.
    pub(crate) fn outputs(&self) -> Outputs<'_> {
        Outputs { context: self }
    }

    /// Refuses a buffer that can't hold output `idx` at the bound dims.
    fn accept(&self, idx: usize, output: &TensorMut<'_>) -> Result<(), CallError> {
        let name = || TensorName::output(&self.model.desc, idx);
        let expected = self.model.outputs()[idx].dtype();
        if output.dtype() != expected {
            return Err(CallError::WrongDType { tensor: name(), expected, got: output.dtype() });
        }

        if let Some(shape) = output.shape() {
            let wanted = self.output_shape(idx);
            if shape.len() != wanted.len() {
                return Err(CallError::WrongRank {
                    tensor: name(),
                    expected: wanted.len(),
                    got: shape.len(),
                });
            }

            if let Some(axis) = (0..shape.len()).find(|axis| shape[*axis] != wanted[*axis]) {
                let expected = wanted[axis];
                let got = shape[axis];
                return Err(CallError::WrongShape { tensor: name(), axis, expected, got });
            }
        }

        let needed = self.output_bytes(idx);
        let got = output.len_bytes();
        if got < needed {
            return Err(CallError::TooSmall { tensor: name(), needed, got });
        }

        Ok(())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("model", &self.model).field("dims", &self.dims).finish()
    }
}

/// The results of a call, in the context's memory.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    context: &'a Context,
}

impl<'a> Outputs<'a> {
    /// The number of outputs.
    pub fn len(&self) -> usize {
        self.context.model.outputs().len()
    }

    /// Whether the model has no outputs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Output `idx`.
    ///
    /// # Panics
    /// When the model has no such output.
    pub fn get(&self, idx: usize) -> TensorRef<'a> {
        let context = self.context;
        let bytes = context.memory.slice(context.layout.outputs_at[idx], context.output_bytes(idx));
        let dtype = context.model.outputs()[idx].dtype();
        TensorRef::from_bytes(dtype, context.output_shape(idx), bytes).expect("sized and aligned for it")
    }

    /// The output of this name.
    pub fn by_name(&self, name: &str) -> Option<TensorRef<'a>> {
        let idx = self.context.model.outputs().iter().position(|info| info.name() == name)?;
        Some(self.get(idx))
    }
}
