//! Errors of the batcher.

use crate::{CallError, OpenError, QueryError, TensorError};
use thiserror::Error;

/// Largest number of inputs, and of outputs, of a batched model.
pub(super) const MAX_TENSORS: usize = 32;

/// Why requests can't be batched, or one was refused.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Contexts or threads could not be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The model was asked for what it does not have.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Rows are too large to be tensors.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The call, or this request, breaks the contract.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A tensor does not consist of rows.
    #[error(
        "`{tensor}` has the shape [{dims}]; to be batched, its first axis must be {symbol}, and no other"
    )]
    NotRows {
        /// The tensor.
        tensor: String,
        /// Its declared dims.
        dims: String,
        /// The batch's symbol.
        symbol: String,
    },
    /// More inputs or outputs than a batch can have.
    #[error("a batcher takes at most {} inputs and outputs each", MAX_TENSORS)]
    TooManyTensors,
    /// A batch can't have so many rows.
    #[error("{rows} rows; a batch has 1 to {most}")]
    WrongRows {
        /// How many were asked for.
        rows: usize,
        /// How many there can be.
        most: usize,
    },
    /// Inputs that belong together have different numbers of rows.
    #[error("input {input} has {got} rows, input 0 has {expected}")]
    Uneven {
        /// Index of the input.
        input: usize,
        /// Rows of the first input.
        expected: usize,
        /// Rows of this one.
        got: usize,
    },
}
