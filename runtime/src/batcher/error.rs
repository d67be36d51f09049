//! Errors of the batcher.

use crate::{CallError, OpenError, QueryError, RaggedError, TensorError};
use thiserror::Error;

/// Largest number of inputs, and of outputs, of a batched model.
pub(super) const MAX_TENSORS: usize = 32;

/// The error of a batcher or of a request.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The system refuses memory or threads.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The model has no such symbol.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Rows are too large for tensors.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The call or the request violates the contract.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The model has no ragged batch.
    #[error(transparent)]
    Ragged(#[from] RaggedError),
    /// A request of a ragged batch has no sequences.
    #[error("the offsets of a request have an entry for each sequence and one more; got no sequence")]
    NoSequences,
    /// A request of a ragged batch has an offset that is not allowed.
    #[error("offset {index} of the request is {got}: {why}")]
    WrongOffset {
        /// Index of the offset.
        index: usize,
        /// The offset.
        got: i64,
        /// The rule that it violates.
        why: String,
    },
    /// A request of a ragged batch has more sequences than a batch.
    #[error("got {sequences} sequences; a batch has 1 to {max}")]
    WrongSequences {
        /// Number of sequences requested.
        sequences: usize,
        /// Largest number of sequences.
        max: usize,
    },
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
    /// The number of rows is not allowed.
    #[error("got {rows} rows; a batch has 1 to {max}")]
    WrongRows {
        /// Number of rows requested.
        rows: usize,
        /// Largest number of rows.
        max: usize,
    },
    /// A request needs more arena than a batch may take.
    #[error("{rows} rows of this shape need {needed} bytes of arena; the batcher's limit is {limit}")]
    TooMuchArena {
        /// Number of rows requested.
        rows: usize,
        /// Bytes that a call with them needs.
        needed: usize,
        /// [`crate::BatchOptions::arena_bytes`].
        limit: usize,
    },
    /// A model whose symbols have no upper bound, so that there is no bound for the memory of requests.
    #[error(
        "a batcher of mixed shapes needs an upper bound for every symbol; compile without --dynamic-memory"
    )]
    Unbounded,
    /// The inputs of a request have different numbers of rows.
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
