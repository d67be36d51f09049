//! The compiler's one error type: what is wrong, and where.

use std::fmt;

/// What kind of thing went wrong; callers match on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The model or text is malformed or contradicts itself.
    Invalid,
    /// The model asks for something that symshape does not do; the message names op, type, opset or feature.
    Unsupported,
    /// The contract is incomplete or contradictory: a symbol without an upper bound, an empty range.
    Contract,
    /// A size exceeds what the target can address, or a limit against hostile files.
    Limit,
    /// A file could not be read or written.
    Io,
    /// The command line or the API was used wrongly.
    Usage,
    /// A bug of symshape's.
    Internal,
}

/// An error with the places that it concerns, outermost first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    at: Vec<String>,
}

/// Result of anything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of this kind; the message is a sentence fragment without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), at: Vec::new() }
    }

    /// Malformed input.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// Something that symshape does not do.
    pub fn unsupported(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported, message)
    }

    /// A bug of symshape's.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Internal, message)
    }

    /// The same error, seen from the place `at` around it; a place is named once, however often it is passed.
    pub fn at(mut self, at: impl Into<String>) -> Error {
        let at = at.into();
        if self.at.first() != Some(&at) {
            self.at.insert(0, at);
        }
        self
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What is wrong, without the places.
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

/// Adds a place to the error of a result.
pub trait At<T> {
    /// The same result, its error seen from the place that `at` names.
    fn at<S: Into<String>>(self, at: impl FnOnce() -> S) -> Result<T>;
}

impl<T> At<T> for Result<T> {
    fn at<S: Into<String>>(self, at: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| error.at(at()))
    }
}
