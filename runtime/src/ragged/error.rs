//! Errors of gathering a ragged batch.

use crate::{CallError, TensorName};
use alloc::string::String;
use thiserror::Error;

/// Largest number of inputs of a model whose ragged batches are gathered.
pub(super) const MAX_INPUTS: usize = 32;

/// The error of tensors that can't be a part of a ragged batch. The batch is as it was before.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RaggedError {
    /// The model has no ragged batch.
    #[error("the model takes no ragged batch: compile it with --ragged")]
    NotRagged,
    /// The model has too many inputs.
    #[error("a ragged batch has at most {} inputs", MAX_INPUTS)]
    TooManyInputs,
    /// A tensor has a wrong type or rank, or there are too few or too many.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An axis of a tensor has another size than the other tensors have.
    #[error("axis {axis} of `{tensor}` is {got}; expected {expected}")]
    WrongSize {
        /// The tensor.
        tensor: TensorName,
        /// The axis.
        axis: usize,
        /// The size in the other tensors.
        expected: usize,
        /// The size in this one.
        got: usize,
    },
    /// A sequence has a length that the contract does not allow.
    #[error("sequence {sequence} has {length} rows; {symbol} is declared {declared}")]
    WrongLength {
        /// Index of the sequence in its batch.
        sequence: usize,
        /// Its length.
        length: usize,
        /// The symbol of the length.
        symbol: String,
        /// Its declaration.
        declared: String,
    },
    /// The batch would have more sequences or rows than the contract allows.
    #[error("the batch would have {symbol} = {value}; {symbol} is declared {declared}")]
    TooLarge {
        /// The symbol of the sequences or of the rows.
        symbol: String,
        /// Its value.
        value: usize,
        /// Its declaration.
        declared: String,
    },
    /// An input that all sequences share has other elements than before.
    #[error("all sequences of a call share `{tensor}`; it has other elements than for the sequences before")]
    NotShared {
        /// The input.
        tensor: TensorName,
    },
    /// An element of a mask is neither 0 nor 1.
    #[error("element [{sequence}, {position}] of the mask is neither 0 nor 1")]
    WrongMask {
        /// Index of the sequence.
        sequence: usize,
        /// The position.
        position: usize,
    },
    /// A mask has other axes than sequences and positions.
    #[error("a mask has the axes of sequences and of positions; got {rank} axes")]
    WrongMaskRank {
        /// Number of axes.
        rank: usize,
    },
    /// Padded tensors have no positions, so they have no tokens.
    #[error("the padded length is 0; a call has at least one token")]
    NoPositions,
    /// The tokens of a sequence are not adjacent.
    #[error(
        "sequence {sequence} has padding between tokens, at position {position}; its tokens must be adjacent"
    )]
    Gap {
        /// Index of the sequence.
        sequence: usize,
        /// The first position of the padding.
        position: usize,
    },
    /// A sequence is longer than the padded tensors.
    #[error("sequence {sequence} has {length} tokens; the padded length is {positions}")]
    TooLong {
        /// Index of the sequence.
        sequence: usize,
        /// Its length.
        length: usize,
        /// The padded length.
        positions: usize,
    },
}
