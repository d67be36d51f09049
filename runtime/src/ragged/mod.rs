//! Ragged batches from tensors of sequences: gathers the inputs of one call, and divides its outputs.
//!
//! A call takes the rows of all sequences one after another. Callers often have one tensor for each sequence, or padded
//! tensors. [`RaggedBatch`] copies the rows of either to the inputs of a call, once. [`RaggedOutputs`] gives the
//! outputs of each sequence in place, or writes padded tensors.

mod batch;
mod error;
mod outputs;
mod ports;
mod tokens;

pub use batch::RaggedBatch;
pub use error::RaggedError;
pub use outputs::RaggedOutputs;
pub use tokens::Tokens;
