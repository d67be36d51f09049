//! How a program runs several sequences in one call: the kernels that run for each sequence, and the parts of a
//! sequence in their buffers. [`super::sequences`] decides it.

use super::{Axis, BufferId};
use symshape::{Dim, Symbol};

/// How a program runs several sequences in one call.
#[derive(Clone, Debug)]
pub struct Sequences {
    /// The number of sequences, a symbol of the model.
    pub count: Symbol,
    /// The kernels that run for each sequence, in order.
    pub each: Vec<EachKernel>,
    /// Inputs with a size for each sequence.
    pub(crate) ragged: Vec<RaggedInput>,
}

/// A kernel that runs once for each sequence.
#[derive(Clone, Debug)]
pub struct EachKernel {
    /// Its index in the program.
    pub kernel: usize,
    /// The loop over the sequences.
    pub axis: Axis,
    /// The buffers that it uses, constants aside.
    pub buffers: Vec<(BufferId, Part)>,
}

/// The part of a buffer that belongs to one sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it: the sequences only read it.
    Shared,
    /// As many elements as this, after those of the sequences before. The sizes are those of the whole call, whose
    /// length is that of the longest sequence.
    Rows(Dim),
    /// A copy of the scratch memory, which belongs to a thread.
    Scratch,
    /// The tensor of this index in the sequence's state.
    State(u32),
}

/// An input that has as many rows as a sequence is long: a mask `[N, length + S]`, for instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RaggedInput {
    /// Index of the input.
    pub(crate) input: usize,
    /// The number of blocks of rows that a sequence has. If it is not 1, all sequences must be equally long.
    pub(crate) blocks: Dim,
}
