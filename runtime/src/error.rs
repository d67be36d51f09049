//! Errors of opening models, of questions about sizes, and of single partitions. Errors are formatted only when shown.

use crate::{MAX_AXES, SymbolInfo};
use alloc::string::String;
use thiserror::Error;

/// Why a model or context could not be made.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is missing or is no shared object that can be loaded here.
    #[error("{path}: {reason}")]
    Load {
        /// The file.
        path: String,
        /// The loader's words.
        reason: String,
    },
    /// The descriptor is none, or damaged.
    #[error("not a symshape artefact: {0}")]
    Malformed(&'static str),
    /// The descriptor is of another version of symshape.
    #[error(
        "the artefact speaks version {found} of the interface, this program version {expected}: recompile it"
    )]
    Version {
        /// The artefact's.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// A tensor has more axes than one that is lent to a call can have.
    #[error("`{tensor}` has {axes} axes; tensors of calls have at most {MAX_AXES}")]
    TooManyAxes {
        /// An input or output.
        tensor: String,
        /// How many it has.
        axes: usize,
    },
    /// The operating system refuses so much address space.
    #[error("can't reserve {bytes} bytes; narrower ranges of the symbols need less")]
    Reserve {
        /// How much was asked for.
        bytes: usize,
    },
    /// Lent memory is smaller than the arena's bound.
    #[error("the memory lent holds {got} aligned bytes; the arena can need {needed}")]
    TooSmall {
        /// The bound.
        needed: usize,
        /// What there is.
        got: usize,
    },
    /// The operating system refuses to start so many threads.
    #[error("can't start {threads} threads")]
    Threads {
        /// How many were asked for.
        threads: u32,
    },
}

/// Why a question about sizes has no answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Dims are given one for each symbol.
    #[error("{got} dims for {expected} symbols")]
    WrongDimCount {
        /// Number of symbols.
        expected: usize,
        /// Number of dims.
        got: usize,
    },
    /// A dim is outside its symbol's declaration.
    #[error("{name} = {value}; {name} is declared {symbol}", name = .symbol.name())]
    NotAllowed {
        /// The symbol.
        symbol: SymbolInfo,
        /// The value given.
        value: i64,
    },
    /// The model has no such symbol.
    #[error("the model has no symbol {name}")]
    NoSymbol {
        /// What was asked for.
        name: String,
    },
    /// The model's table has no such entry.
    #[error("the model has no partition number {number}")]
    NoPartition {
        /// What was asked for.
        number: usize,
    },
    /// The model has no such output.
    #[error("the model has no output number {idx}")]
    NoOutput {
        /// What was asked for.
        idx: usize,
    },
}

/// Why a partition was not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The table has no such entry.
    #[error("the model has no partition number {number}")]
    NoPartition {
        /// What was asked for.
        number: usize,
    },
    /// Another one must have run before.
    #[error("partition {number} waits for partition {other}")]
    TooEarly {
        /// What was asked for.
        number: usize,
        /// What it waits for.
        other: usize,
    },
    /// It has run in this call, or is running.
    #[error("partition {number} has run already, or is running")]
    Twice {
        /// What was asked for.
        number: usize,
    },
    /// It met an error, which the call will return.
    #[error("partition {number} failed")]
    Failed {
        /// What was asked for.
        number: usize,
    },
}
