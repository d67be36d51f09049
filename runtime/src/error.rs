//! What can go wrong, as types; making an error allocates nothing, its text is composed when it is shown.

use crate::{DType, MAX_AXES, SymbolInfo, TensorError, descriptor::Broken, descriptor::Desc};
use alloc::{string::String, sync::Arc};
use core::fmt;
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

/// Why a call was refused or ended early; in the first case no memory was written.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// There are too few or too many inputs.
    #[error("{got} inputs for a model that has {expected}")]
    WrongInputCount {
        /// Number of inputs of the model.
        expected: usize,
        /// Number of inputs given.
        got: usize,
    },
    /// There are too few or too many outputs.
    #[error("{got} outputs for a model that has {expected}")]
    WrongOutputCount {
        /// Number of outputs of the model.
        expected: usize,
        /// Number of outputs given.
        got: usize,
    },
    /// A tensor's elements are of another type.
    #[error("`{tensor}` holds {expected}; {got} was given")]
    WrongDType {
        /// Which tensor.
        tensor: TensorName,
        /// The model's type.
        expected: DType,
        /// The caller's type.
        got: DType,
    },
    /// A tensor has too few or too many axes.
    #[error("`{tensor}` has {expected} axes; {got} were given")]
    WrongRank {
        /// Which tensor.
        tensor: TensorName,
        /// The model's number.
        expected: usize,
        /// The caller's number.
        got: usize,
    },
    /// An output array has another shape.
    #[error("`{tensor}` axis {axis} is {expected} in this call; the array's is {got}")]
    WrongShape {
        /// Which tensor.
        tensor: TensorName,
        /// Which axis.
        axis: usize,
        /// The model's dim.
        expected: usize,
        /// The caller's dim.
        got: usize,
    },
    /// What was given for a tensor can't be one at the sizes given with it.
    #[error("`{tensor}`: {error}")]
    NoTensor {
        /// Which tensor.
        tensor: &'static str,
        /// What is wrong with it.
        error: TensorError,
    },
    /// An output buffer is too small.
    #[error("`{tensor}` takes {needed} bytes in this call; its buffer has {got}")]
    TooSmall {
        /// Which tensor.
        tensor: TensorName,
        /// What the call needs.
        needed: usize,
        /// What there is.
        got: usize,
    },
    /// The context lives in lent memory, which has no room for outputs.
    #[error("this context has no memory for outputs: call `run` with buffers")]
    NoOutputMemory,
    /// The model has no such symbol to count rows by.
    #[error("the model has no symbol of that name to count rows by")]
    NoRows,
    /// A tensor does not consist of rows.
    #[error("`{tensor}` can't be cut into rows: the symbol must be its first axis, and in no other")]
    NotRows {
        /// Which tensor.
        tensor: TensorName,
    },
    /// A block has a size that is not allowed.
    #[error("blocks of {block} rows{}", NotAllowed(*last))]
    WrongBlock {
        /// Rows of the blocks.
        block: usize,
        /// Rows of the last one, where that is a smaller one.
        last: usize,
    },
    /// The system refuses the memory that this call needs; only of models that grow.
    #[error("this call needs {bytes} bytes of memory, which the system refuses")]
    NoMemory {
        /// How many.
        bytes: usize,
    },
    /// A symbol's value is outside its range.
    #[error("{0}")]
    OutOfRange(Broken),
    /// A symbol's value is in range but breaks its step or is none of its values.
    #[error("{0}")]
    NotAllowed(Broken),
    /// Two places give a symbol or a derived dim different values.
    #[error("{0}")]
    Mismatch(Broken),
    /// A fact declared about several symbols does not hold.
    #[error("{0}")]
    FactBroken(Broken),
    /// An index met while running lies outside what it addresses.
    #[error("{0}")]
    IndexOutOfBounds(Broken),
    /// Code was reached whose shapes contradict the inputs.
    #[error("{0}")]
    Contradiction(Broken),
    /// A function that the model calls failed.
    #[error("{0}")]
    CalleeFailed(Broken),
    /// Partitions were to run at once, and the artefact's memory is not planned for it.
    #[error("{0}")]
    NotPlanned(Broken),
    /// The artefact needs tile registers, which the machine lacks or the system refused.
    #[error("{0}")]
    NoTiles(Broken),
    /// The caller's policy ended before all partitions had run.
    #[error("partition `{partition}` was not run")]
    NotRun {
        /// Which one: the first that is missing.
        partition: String,
    },
    /// The artefact reports something that this version does not know.
    #[error("{0}")]
    Unknown(Broken),
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

impl CallError {
    /// The error that an artefact reported.
    pub(crate) fn reported(broken: Broken) -> CallError {
        match broken.code() {
            1 => CallError::OutOfRange(broken),
            2 => CallError::NotAllowed(broken),
            3 => CallError::Mismatch(broken),
            4 => CallError::FactBroken(broken),
            5 => CallError::IndexOutOfBounds(broken),
            6 => CallError::Contradiction(broken),
            7 => CallError::CalleeFailed(broken),
            8 => CallError::NotPlanned(broken),
            9 => CallError::NoTiles(broken),
            _ => CallError::Unknown(broken),
        }
    }
}

/// What is wrong with blocks whose last one has so many rows.
struct NotAllowed(usize);

impl fmt::Display for NotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, ": the symbol's declaration does not allow them"),
            last => write!(f, ", the last of {last}: the symbol's declaration does not allow both"),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tensor) = self.tensor() {
            write!(f, "`{tensor}` ")?;
            if let Some(axis) = self.axis() {
                write!(f, "axis {axis} ")?;
            }
        }
        let (symbol, value, why) = (self.symbol().unwrap_or("the dim"), self.value(), self.why());
        match (self.code(), why) {
            (1 | 2, Some(why)) => return write!(f, "gives {symbol} = {value}; {why}"),
            (1 | 2, None) => write!(f, "gives {symbol} = {value}; {symbol} is ")?,
            (3, _) => write!(f, "is {value}; {} is expected", self.lo())?,
            (4, _) => write!(f, "the sizes break {symbol}")?,
            (5, _) => write!(f, "meets the index {value}, outside {}..={}", self.lo(), self.hi())?,
            (6, _) => f.write_str("can't be computed at these sizes")?,
            (7, _) => write!(f, "calls {symbol}, which fails with code {value}")?,
            (8, _) => f.write_str("partitions can't run at once")?,
            (9, _) => f.write_str("no tile registers")?,
            (code, _) => write!(f, "failed with code {code}")?,
        }
        match (self.code(), self.declared(), why) {
            (1 | 2, Some(declared), _) => write!(f, "declared {declared}"),
            (1 | 2, None, _) => write!(f, "to be {}..={}", self.lo(), self.hi()),
            (_, _, Some(why)) => write!(f, " ({why})"),
            (_, _, None) => Ok(()),
        }
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broken({self})")
    }
}

/// The name of an input or output of a model, which it keeps loaded.
#[derive(Clone)]
pub struct TensorName {
    model: Arc<Desc>,
    output: bool,
    idx: usize,
}

impl TensorName {
    /// The name of input `idx`.
    pub(crate) fn input(model: &Arc<Desc>, idx: usize) -> TensorName {
        TensorName { model: model.clone(), output: false, idx }
    }

    /// The name of output `idx`.
    pub(crate) fn output(model: &Arc<Desc>, idx: usize) -> TensorName {
        TensorName { model: model.clone(), output: true, idx }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let table = if self.output { &self.model.outputs } else { &self.model.inputs };
        table[self.idx].name()
    }
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
