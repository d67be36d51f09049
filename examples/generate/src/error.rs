//! Errors of the program.

use std::path::Path;
use symshape_runtime::{CallError, OpenError, StateError, TensorError};
use thiserror::Error;

/// Why no text can be generated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file can't be read, written or understood.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The model does not compile.
    #[cfg(feature = "program")]
    #[error(transparent)]
    Compile(#[from] symshape_compiler::Error),
    /// The artefact can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The model is not a decoder with keys and values.
    #[error("the model is not a decoder that this program knows: {0}")]
    NotADecoder(String),
    /// The model refused a call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The keys and values of the conversations get no memory.
    #[error(transparent)]
    State(#[from] StateError),
    /// A tensor does not have the size of its shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The tokenizer can't encode or decode a text.
    #[error("the tokenizer: {0}")]
    Tokenizer(String),
    /// Tokens that the decoder can't take.
    #[error("{0}")]
    Tokens(String),
}

impl Error {
    /// An error about the file at `path`.
    pub fn file(path: &Path, reason: impl ToString) -> Error {
        Error::File { path: path.display().to_string(), reason: reason.to_string() }
    }
}
