//! Errors of calls. Making one allocates nothing; its text is formatted when it is shown.

use crate::{
    DType, TensorError,
    violation::{TensorName, Violation},
};
use alloc::string::String;
use core::fmt;
use thiserror::Error;

/// Why a call was refused or ended early; in the first case no memory was written.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// There are too few or too many inputs.
    #[error("{got} inputs for a model that has {expected}")]
    WrongInputCount {
        /// Number of inputs of the model.
        expected: usize,
        /// Number of inputs given.
        got: usize,
    },
    /// There are too few or too many outputs.
    #[error("{got} outputs for a model that has {expected}")]
    WrongOutputCount {
        /// Number of outputs of the model.
        expected: usize,
        /// Number of outputs given.
        got: usize,
    },
    /// A tensor's elements are of another type.
    #[error("`{tensor}` holds {expected}; {got} was given")]
    WrongDType {
        /// Which tensor.
        tensor: TensorName,
        /// The model's type.
        expected: DType,
        /// The caller's type.
        got: DType,
    },
    /// A tensor has too few or too many axes.
    #[error("`{tensor}` has {expected} axes; {got} were given")]
    WrongRank {
        /// Which tensor.
        tensor: TensorName,
        /// The model's number.
        expected: usize,
        /// The caller's number.
        got: usize,
    },
    /// An output array has another shape.
    #[error("`{tensor}` axis {axis} is {expected} in this call; the array's is {got}")]
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
    /// What was given for a tensor can't be one at the sizes given with it.
    #[error("`{tensor}`: {error}")]
    NoTensor {
        /// Which tensor.
        tensor: &'static str,
        /// What is wrong with it.
        error: TensorError,
    },
    /// An output buffer is too small.
    #[error("`{tensor}` takes {needed} bytes in this call; its buffer has {got}")]
    TooSmall {
        /// Which tensor.
        tensor: TensorName,
        /// What the call needs.
        needed: usize,
        /// What there is.
        got: usize,
    },
    /// The context lives in lent memory, which has no room for outputs.
    #[error("this context has no memory for outputs: call `run` with buffers")]
    NoOutputMemory,
    /// The model has no such symbol to count rows by.
    #[error("the model has no symbol of that name to count rows by")]
    NoRows,
    /// A tensor does not consist of rows.
    #[error("`{tensor}` can't be cut into rows: the symbol must be its first axis, and in no other")]
    NotRows {
        /// Which tensor.
        tensor: TensorName,
    },
    /// A block has a size that is not allowed.
    #[error("blocks of {block} rows{}", NotAllowed(*last))]
    WrongBlock {
        /// Rows of the blocks.
        block: usize,
        /// Rows of the last one, where that is a smaller one.
        last: usize,
    },
    /// The system refuses the memory that this call needs; only of models that grow.
    #[error("this call needs {bytes} bytes of memory, which the system refuses")]
    NoMemory {
        /// How many.
        bytes: usize,
    },
    /// A symbol's value is outside its range.
    #[error("{0}")]
    OutOfRange(Violation),
    /// A symbol's value is in range but breaks its step or is none of its values.
    #[error("{0}")]
    NotAllowed(Violation),
    /// Two places give a symbol or a derived dim different values.
    #[error("{0}")]
    Mismatch(Violation),
    /// A fact declared about several symbols does not hold.
    #[error("{0}")]
    FactBroken(Violation),
    /// An index met while running lies outside what it addresses.
    #[error("{0}")]
    IndexOutOfBounds(Violation),
    /// Code was reached whose shapes contradict the inputs.
    #[error("{0}")]
    Contradiction(Violation),
    /// A function that the model calls failed.
    #[error("{0}")]
    CalleeFailed(Violation),
    /// Partitions were to run at once, and the artefact's memory is not planned for it.
    #[error("{0}")]
    NotPlanned(Violation),
    /// The artefact needs tile registers, which the machine lacks or the system refused.
    #[error("{0}")]
    NoTiles(Violation),
    /// The caller's policy ended before all partitions had run.
    #[error("partition `{partition}` was not run")]
    NotRun {
        /// Which one: the first that is missing.
        partition: String,
    },
    /// The artefact reports something that this version does not know.
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
            _ => CallError::Unknown(violation),
        }
    }
}

/// What is wrong with blocks whose last one has so many rows.
struct NotAllowed(usize);

impl fmt::Display for NotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, ": the symbol's declaration does not allow them"),
            last => write!(f, ", the last of {last}: the symbol's declaration does not allow both"),
        }
    }
}
