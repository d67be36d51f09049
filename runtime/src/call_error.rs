//! Errors of calls. Making one allocates nothing; its text is formatted when it is shown.

use crate::{
    DType, Model, TensorError,
    violation::{TensorName, Violation},
};
use alloc::string::String;
use core::fmt;
use thiserror::Error;

/// The error of a call that was refused or ended early. A refused call has written no memory.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// There are too few or too many inputs.
    #[error("got {got} inputs; the model has {expected}")]
    WrongInputCount {
        /// Number of inputs of the model.
        expected: usize,
        /// Number of inputs given.
        got: usize,
    },
    /// There are too few or too many outputs.
    #[error("got {got} outputs; the model has {expected}")]
    WrongOutputCount {
        /// Number of outputs of the model.
        expected: usize,
        /// Number of outputs given.
        got: usize,
    },
    /// A tensor has another element type.
    #[error("`{tensor}` has elements of type {expected}; got {got}")]
    WrongDType {
        /// Which tensor.
        tensor: TensorName,
        /// The model's type.
        expected: DType,
        /// The caller's type.
        got: DType,
    },
    /// A tensor has too few or too many axes.
    #[error("`{tensor}` has {expected} axes; got {got}")]
    WrongRank {
        /// Which tensor.
        tensor: TensorName,
        /// Number of axes in the model.
        expected: usize,
        /// Number of axes given.
        got: usize,
    },
    /// An output array has another shape.
    #[error("axis {axis} of `{tensor}` is {expected} in this call; the array has {got}")]
    WrongShape {
        /// Which tensor.
        tensor: TensorName,
        /// Which axis.
        axis: usize,
        /// The model's dim.
        expected: usize,
        /// The caller's dim.
        got: usize,
    },
    /// The memory given for a tensor does not fit the sizes given with it.
    #[error("`{tensor}`: {error}")]
    NoTensor {
        /// Which tensor.
        tensor: &'static str,
        /// The reason.
        error: TensorError,
    },
    /// An output buffer is too small.
    #[error("`{tensor}` needs {needed} bytes in this call; its buffer has {got}")]
    TooSmall {
        /// Which tensor.
        tensor: TensorName,
        /// The bytes needed.
        needed: usize,
        /// The bytes available.
        got: usize,
    },
    /// The context uses lent memory, which has no space for outputs.
    #[error("this context uses lent memory, which has no space for outputs: call `run` with output buffers")]
    NoOutputMemory,
    /// The model has no symbol with the name of the row count.
    #[error("can't count rows: the model has no symbol of that name")]
    NoRowSymbol,
    /// A tensor does not consist of rows.
    #[error(
        "`{tensor}` can't be split into rows: the symbol must be its first axis and occur in no other axis"
    )]
    NotRows {
        /// Which tensor.
        tensor: TensorName,
    },
    /// A block has a size that is not allowed.
    #[error("can't run blocks of {block} rows{}", NotAllowed(*last))]
    WrongBlock {
        /// Rows of the blocks.
        block: usize,
        /// Rows of the last block if it is smaller, else 0.
        last: usize,
    },
    /// The system refuses the memory that this call needs. Occurs only for models with unbounded symbols.
    #[error("the system refuses the {bytes} bytes of memory that this call needs")]
    NoMemory {
        /// The bytes needed.
        bytes: usize,
    },
    /// The model has state, and the call gives none.
    #[error("the model has state: call `run_stateful` with a state")]
    StateMissing,
    /// The state belongs to another model.
    #[error("the state belongs to another model")]
    ForeignState,
    /// The call has no states, or more than the model takes.
    #[error("a call takes 1 to {max} states; got {got}{}", Cause(model))]
    WrongStateCount {
        /// The model.
        model: Model,
        /// Largest number of states of a call.
        max: usize,
        /// Number of states given.
        got: usize,
    },
    /// The rows after the call would exceed the capacity of the state.
    #[error("{0}")]
    StateFull(Violation),
    /// The state does not fit the call.
    #[error("{0}")]
    WrongState(Violation),
    /// The model has no weights, or they belong to another artefact.
    #[error("{0}")]
    WrongWeights(Violation),
    /// A symbol's value is outside its range.
    #[error("{0}")]
    OutOfRange(Violation),
    /// A symbol's value is in range but violates its step or is not in its value set.
    #[error("{0}")]
    NotAllowed(Violation),
    /// Two places give a symbol or a derived dim different values.
    #[error("{0}")]
    Mismatch(Violation),
    /// A fact declared about several symbols does not hold.
    #[error("{0}")]
    FactBroken(Violation),
    /// An index in the data is out of bounds.
    #[error("{0}")]
    IndexOutOfBounds(Violation),
    /// The call reached code whose shapes contradict the inputs.
    #[error("{0}")]
    Contradiction(Violation),
    /// An external function failed.
    #[error("{0}")]
    CalleeFailed(Violation),
    /// The call asked for partitions to run at once, but the artefact's memory is not planned for it.
    #[error("{0}")]
    NotPlanned(Violation),
    /// The artefact needs tile registers, which the machine lacks or the system refused.
    #[error("{0}")]
    NoTiles(Violation),
    /// The caller's policy ended before all partitions ran.
    #[error("partition `{partition}` was not run: the policy must run every partition once")]
    NotRun {
        /// The first partition that has not run.
        partition: String,
    },
    /// The artefact reports an error code that this version does not know.
    #[error("{0}")]
    Unknown(Violation),
}

impl CallError {
    /// The error that an artefact reported.
    pub(crate) fn reported(violation: Violation) -> CallError {
        match violation.code() {
            1 => CallError::OutOfRange(violation),
            2 => CallError::NotAllowed(violation),
            3 => CallError::Mismatch(violation),
            4 => CallError::FactBroken(violation),
            5 => CallError::IndexOutOfBounds(violation),
            6 => CallError::Contradiction(violation),
            7 => CallError::CalleeFailed(violation),
            8 => CallError::NotPlanned(violation),
            9 => CallError::NoTiles(violation),
            10 => CallError::WrongState(violation),
            11 => CallError::StateFull(violation),
            12 => CallError::WrongWeights(violation),
            _ => CallError::Unknown(violation),
        }
    }
}

/// The reason why a model takes one state only, if it does.
struct Cause<'m>(&'m Model);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.one_state().map_or(Ok(()), |cause| write!(f, ", because {cause}"))
    }
}

/// The reason why blocks are refused, given the rows of the last block.
struct NotAllowed(usize);

impl fmt::Display for NotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, ": the symbol's declaration does not allow this size"),
            last => write!(f, " and a last block of {last}: the symbol's declaration must allow both sizes"),
        }
    }
}
