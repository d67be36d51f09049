//! Errors as exceptions: the classes of `symshape/errors.py`, with the words of the compiler and the runtime.

use pyo3::{prelude::*, types::PyType};
use std::fmt::Display;
use symshape_compiler::{Error, ErrorKind};

/// The exception for an error of the compiler.
pub(crate) fn compile_error(error: &Error) -> PyErr {
    let class = match error.kind() {
        ErrorKind::Invalid => "ModelError",
        ErrorKind::Unsupported => "UnsupportedError",
        ErrorKind::Contract => "ContractError",
        ErrorKind::Limit => "LimitError",
        ErrorKind::Io => "FileError",
        ErrorKind::Usage => "UsageError",
        ErrorKind::Internal => "InternalError",
    };
    exception(class, error)
}

/// The exception of this class with the text of the error.
pub(crate) fn exception(class: &str, error: &dyn Display) -> PyErr {
    let text = error.to_string();
    Python::attach(|py| {
        let class = py.import("symshape.errors").and_then(|errors| errors.getattr(class));
        match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
            Ok(class) => PyErr::from_type(class, text),
            Err(error) => error,
        }
    })
}
