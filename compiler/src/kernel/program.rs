//! Programs: kernels with the buffers, symbols and facts that they share.

use super::{
    BatchBlocks, Buffer, BufferId, CallLimit, Control, DataDependent, Device, Local, MemorySpace,
    MicrokernelSupport, Partition, Policies, Ragged, Sequences, StateBlock, Stmt, WeightForm,
};
use crate::{external::Callee, scalar::Precision};
use cranelift_entity::PrimaryMap;
use num_traits::ToPrimitive;
use std::{collections::BTreeMap, ops::Range};
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// Alignment of each copy of a scratch buffer, in bytes. Workers share no cache line.
pub const COPY_ALIGN_BYTES: i64 = 64;

/// An input or output of a program: a dense, row-major tensor.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name in the model.
    pub name: String,
    /// Shape, outermost dim first.
    pub shape: Vec<Dim>,
    /// Its memory, in the space `Input` or `Output`.
    pub buffer: BufferId,
}

/// One step of a program: a body of statements, or a control marker.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// The kind of work and the node that it comes from, for reports and errors.
    pub name: String,
    /// The control marker. A kernel that has one has no body.
    pub control: Option<Control>,
    /// Types of the scalar variables.
    pub(crate) locals: PrimaryMap<Local, DType>,
    /// The statements in the order in which they run.
    pub body: Vec<Stmt>,
}

impl Kernel {
    /// A kernel that is a control marker.
    pub fn control(name: impl Into<String>, control: Control) -> Kernel {
        Kernel { name: name.into(), control: Some(control), ..Kernel::default() }
    }
}

/// A whole model, lowered to kernels.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Name of the model, a C identifier.
    pub name: String,
    /// The model's symbols in the order of the ABI's `dims`.
    pub symbols: Vec<Symbol>,
    /// Symbols whose values are known only at run time. Buffer sizes don't depend on them.
    pub data_dependent: Vec<DataDependent>,
    /// Facts about all symbols.
    pub facts: Facts,
    /// Memories other than the host's.
    pub devices: Vec<Device>,
    /// Targets whose calls may not all run at once. Partitions wait for each other such that no order breaks a limit.
    pub call_limits: Vec<CallLimit>,
    /// All buffers.
    pub buffers: PrimaryMap<BufferId, Buffer>,
    /// The weights that constant buffers hold, for reports.
    pub weights: BTreeMap<BufferId, WeightForm>,
    /// Code that strips and contractions can become.
    pub microkernels: MicrokernelSupport,
    /// Precision of `f32` contractions on machines with tile registers. All other machines multiply `f32`.
    pub precision: Precision,
    /// Whether constant panels of f16 or bf16 are stored in 16 bits for any number of rows.
    pub half_weights: bool,
    /// Number of copies of each scratch buffer: the number of workers that can run a kernel at once. Zero means one.
    pub workers: u32,
    /// The inputs in the order of the ABI.
    pub inputs: Vec<Port>,
    /// The outputs in the order of the ABI.
    pub outputs: Vec<Port>,
    /// The state, if the model has one. It is neither an input nor an output.
    pub state: Option<StateBlock>,
    /// How the program runs on a ragged batch, if its calls take one.
    pub ragged: Option<Ragged>,
    /// How a call runs several sequences with a state each, or why it can't; `None` without state.
    pub sequences: Option<Result<Sequences, String>>,
    /// How a call divides a batch of constant size, if it does. The kernels then run for one block.
    pub batch_blocks: Option<BatchBlocks>,
    /// The kernels in the order in which they run.
    pub kernels: Vec<Kernel>,
    /// The entries of the artefact's table, which cover all kernels in order. Empty if there is no table.
    pub partitions: Vec<Partition>,
    /// The orders of partitions that memory is planned for.
    pub policies: Policies,
}

impl Program {
    /// The external functions that the program calls, each once, sorted by name.
    pub(crate) fn callees(&self) -> Vec<&Callee> {
        let calls = self.kernels.iter().filter_map(|kernel| match &kernel.control {
            Some(Control::Call(call)) => Some(&call.callee),
            _ => None,
        });
        let mut callees: Vec<&Callee> = calls.collect();
        callees.sort_by(|a, b| a.symbol.cmp(&b.symbol));
        callees.dedup_by(|a, b| a.symbol == b.symbol);
        callees
    }

    /// Whether any of these kernels calls a function of the target.
    pub fn calls(&self, kernels: Range<usize>, target: &str) -> bool {
        let is_own =
            |control: &Control| matches!(control, Control::Call(call) if call.callee.target == target);
        self.kernels[kernels].iter().any(|kernel| kernel.control.as_ref().is_some_and(is_own))
    }

    /// How many calls of a target may run at once; 0 for any number.
    pub(crate) fn at_once(&self, target: &str) -> u32 {
        let limit = self.call_limits.iter().find(|limit| limit.target == target);
        limit.map_or(0, |limit| limit.at_once.get())
    }

    /// The program with the length of a sequence as a symbol. Estimates of the work of kernels that run per sequence
    /// need it: without it, extents of the length would count as 1.
    pub(crate) fn of_one_sequence(&self, ragged: &Ragged) -> Program {
        let mut of_one_sequence = self.clone();
        of_one_sequence.symbols.push(ragged.length.clone());
        of_one_sequence
    }

    /// All symbols that kernels can use: the model's symbols, then the data-dependent ones, then the length of a
    /// sequence of a ragged batch.
    pub fn all_symbols(&self) -> impl Iterator<Item = &Symbol> {
        let data_dependent = self.data_dependent.iter().map(|entry| &entry.symbol);
        self.symbols.iter().chain(data_dependent).chain(self.ragged.iter().map(|ragged| &ragged.length))
    }

    /// The kernels that run as a whole for one sequence of a ragged batch, and then for the next one.
    pub(crate) fn sequence_groups(&self) -> &[Range<usize>] {
        self.ragged.as_ref().map_or(&[], |ragged| &ragged.groups)
    }

    /// The indices of each `While` and its `End`, inner loops first.
    pub(crate) fn while_loops(&self) -> Vec<(usize, usize)> {
        let mut open = Vec::new();
        let mut loops = Vec::new();
        for (idx, kernel) in self.kernels.iter().enumerate() {
            match &kernel.control {
                Some(Control::If(_)) => open.push(None),
                Some(Control::While(_)) => open.push(Some(idx)),
                Some(Control::End) => {
                    if let Some(Some(begin)) = open.pop() {
                        loops.push((begin, idx));
                    }
                }
                _ => {}
            }
        }

        loops
    }

    /// Bytes of a buffer, all copies included.
    pub fn bytes(&self, buffer: BufferId) -> Dim {
        match self.copies(buffer) {
            1 => self.buffers[buffer].bytes(),
            copies => self.copy_bytes(buffer) * copies,
        }
    }

    /// How often a buffer is in the arena: scratch memory, once for each worker.
    pub(crate) fn copies(&self, buffer: BufferId) -> i64 {
        match self.buffers[buffer].space {
            MemorySpace::Scratch => i64::from(self.workers.max(1)),
            _ => 1,
        }
    }

    /// Bytes of all constants that kernels use.
    pub fn const_bytes(&self) -> i64 {
        self.bytes_of_constants(|_| true)
    }

    /// Bytes of the constants that kernels use and that are floats of 16 bits.
    pub fn half_const_bytes(&self) -> i64 {
        self.bytes_of_constants(|dtype| matches!(dtype, DType::F16 | DType::BF16))
    }

    fn bytes_of_constants(&self, is_counted: impl Fn(DType) -> bool) -> i64 {
        let bytes = self.used_constants().into_iter().map(|buffer| match &self.buffers[buffer].space {
            MemorySpace::Const(tensor) if is_counted(tensor.dtype()) => tensor.size_bytes() as i64,
            _ => 0,
        });
        bytes.sum()
    }

    /// Distance in bytes between two copies of a scratch buffer.
    pub(crate) fn copy_bytes(&self, buffer: BufferId) -> Dim {
        let bytes = self.buffers[buffer].bytes().max(Dim::zero());
        self.facts.simplify(&(bytes.ceil_div(COPY_ALIGN_BYTES) * COPY_ALIGN_BYTES))
    }

    /// Byte offset of each tensor in the block of the state, then the bytes of the block. Empty if there is no state.
    pub(crate) fn state_offsets(&self) -> Vec<Dim> {
        let state = self.state.as_ref();
        state.map_or_else(Vec::new, |state| state.offsets(&self.buffers, &self.facts))
    }

    /// The largest number of states of a call; 1 if calls take one or none.
    pub(crate) fn max_states(&self) -> u64 {
        let Some(Ok(sequences)) = &self.sequences else { return 1 };
        let count = self.facts.bounds(&Dim::from(&sequences.count)).hi;
        count.and_then(|count| u64::try_from(count).ok()).unwrap_or(u64::MAX)
    }

    /// Whether a buffer is a tensor of the state that calls overwrite.
    pub(crate) fn is_overwritten(&self, buffer: BufferId) -> bool {
        let MemorySpace::State(tensor) = self.buffers[buffer].space else { return false };
        let tensor = self.state.as_ref().and_then(|state| state.tensors.get(tensor as usize));
        tensor.is_some_and(|tensor| tensor.axis.is_none())
    }

    /// Parts of the arena that are used at once, each with the placements of the plan.
    pub(crate) fn arena_slices(&self) -> u32 {
        self.batch_blocks.as_ref().map_or(1, |blocks| blocks.slices.max(1))
    }

    /// Whether each symbol has one value only.
    pub(crate) fn has_constant_sizes(&self) -> bool {
        let is_constant = |symbol: &Symbol| self.only_value(&Dim::from(symbol)).is_some();
        self.all_symbols().all(is_constant)
    }

    /// The value of a dim, if it has only one.
    pub(crate) fn only_value(&self, dim: &Dim) -> Option<i64> {
        let bounds = self.facts.bounds(dim);
        let (lo, hi) = (bounds.lo?.to_i64()?, bounds.hi?.to_i64()?);
        (lo == hi).then_some(lo)
    }

    /// Whether a buffer is a constant.
    pub(crate) fn is_const(&self, buffer: BufferId) -> bool {
        matches!(self.buffers[buffer].space, MemorySpace::Const(_))
    }
}
