//! Errors of the command line.

use crate::error::{Error, ErrorKind, Result};
use std::{io, path::Path};

/// The error of a wrong command line.
pub(super) fn usage(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, message)
}

/// Adds `path` to an error of the file system.
pub(super) fn at_path<T>(result: io::Result<T>, path: &Path) -> Result<T> {
    result.map_err(|error| Error::new(ErrorKind::Io, error.to_string()).at(path.display().to_string()))
}
