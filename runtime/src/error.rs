//! Errors of opening models, of queries about sizes, and of single partitions. They are formatted only when shown.

use crate::{MAX_AXES, SymbolInfo};
use alloc::string::String;
use thiserror::Error;

/// The error of opening a model or creating a context.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is missing, or it is not a shared object that can be loaded here.
    #[error("{path}: {reason}")]
    Load {
        /// The file.
        path: String,
        /// The reason that the loader gives.
        reason: String,
    },
    /// The descriptor is missing or damaged.
    #[error("not a symshape artefact: {0}")]
    Malformed(&'static str),
    /// The descriptor is of another version of symshape.
    #[error(
        "the artefact has ABI version {found}, this program needs version {expected}: recompile the artefact"
    )]
    Version {
        /// The artefact's version.
        found: u32,
        /// The version of this program.
        expected: u32,
    },
    /// The weights file is missing, damaged, or of another artefact.
    #[cfg(feature = "std")]
    #[error(transparent)]
    Weights(#[from] crate::WeightsError),
    /// An input or output has too many axes.
    #[error("`{tensor}` has {axes} axes; inputs and outputs may have at most {MAX_AXES}")]
    TooManyAxes {
        /// An input or output.
        tensor: String,
        /// Its number of axes.
        axes: usize,
    },
    /// The operating system refuses the address space.
    #[error("can't reserve {bytes} bytes of address space: compile the model with narrower symbol ranges")]
    Reserve {
        /// The bytes requested.
        bytes: usize,
    },
    /// Lent memory is smaller than the arena's bound.
    #[error("the lent memory has {got} bytes after alignment to 64; the arena needs up to {needed}")]
    TooSmall {
        /// The bound.
        needed: usize,
        /// The bytes available.
        got: usize,
    },
    /// The operating system refuses to start the threads.
    #[error("can't start {threads} threads")]
    Threads {
        /// The number requested.
        threads: u32,
    },
}

/// The error of a query about sizes.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The number of dims differs from the number of symbols.
    #[error("got {got} dims; the model has {expected} symbols")]
    WrongDimCount {
        /// Number of symbols.
        expected: usize,
        /// Number of dims.
        got: usize,
    },
    /// A dim violates the declaration of its symbol.
    #[error("{name} = {value}; {name} is declared {symbol}", name = .symbol.name())]
    NotAllowed {
        /// The symbol.
        symbol: SymbolInfo,
        /// The value given.
        value: i64,
    },
    /// The model has no such symbol.
    #[error("the model has no symbol `{name}`")]
    NoSymbol {
        /// The argument of the query.
        name: String,
    },
    /// The model has no such partition.
    #[error("the model has no partition {number}")]
    NoPartition {
        /// The argument of the query.
        number: usize,
    },
    /// The model has no such output.
    #[error("the model has no output {idx}")]
    NoOutput {
        /// The argument of the query.
        idx: usize,
    },
}

/// The error of a partition that did not run or failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The table has no such entry.
    #[error("the model has no partition {number}")]
    NoPartition {
        /// The argument of the query.
        number: usize,
    },
    /// A partition that must run before it has not run.
    #[error("partition {number} can't run yet: run partition {other} first")]
    TooEarly {
        /// The argument of the query.
        number: usize,
        /// The partition that must run first.
        other: usize,
    },
    /// It has already run in this call, or is running.
    #[error("partition {number} has already run in this call, or is running")]
    Twice {
        /// The argument of the query.
        number: usize,
    },
    /// It failed; the call returns the error.
    #[error("partition {number} failed")]
    Failed {
        /// The argument of the query.
        number: usize,
    },
}
