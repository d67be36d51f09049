//! The compiler's only error type: a kind, a message, and the places that it concerns.

use std::fmt;

/// The kind of an error, for callers to match on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The model or text is malformed or contradicts itself.
    Invalid,
    /// The model needs a feature that symshape does not support. The message names the op, type, opset or feature.
    Unsupported,
    /// The contract is incomplete or contradictory: a symbol without an upper bound, an empty range.
    Contract,
    /// A size exceeds what the target can address, or a limit against hostile files.
    Limit,
    /// A file could not be read or written.
    Io,
    /// The command line or the API was used wrongly.
    Usage,
    /// A bug in symshape.
    Internal,
}

/// An error and its locations, outermost first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    at: Vec<String>,
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind. The message is a sentence fragment without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), at: Vec::new() }
    }

    /// An error about malformed input.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// An error about an unsupported feature.
    pub fn unsupported(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported, message)
    }

    /// An error about a bug in symshape.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Internal, message)
    }

    /// Adds the enclosing location `at`. A location is listed once, however often it is added.
    pub fn at(mut self, at: impl Into<String>) -> Error {
        let at = at.into();
        if self.at.first() != Some(&at) {
            self.at.insert(0, at);
        }
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message without the locations.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for at in &self.at {
            write!(f, "{at}: ")?;
        }
        match self.kind {
            ErrorKind::Unsupported => write!(f, "unsupported: {}", self.message),
            ErrorKind::Internal => write!(f, "internal error (please report it): {}", self.message),
            _ => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {}

/// Returns an [`ErrorKind::Invalid`] error with this message unless `holds`.
pub(crate) fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::invalid(message())) }
}

/// Adds a location to the error of a result.
pub trait At<T> {
    /// Adds the location that `at` returns to the error, if there is one.
    fn at<S: Into<String>>(self, at: impl FnOnce() -> S) -> Result<T>;
}

impl<T> At<T> for Result<T> {
    fn at<S: Into<String>>(self, at: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| error.at(at()))
    }
}
