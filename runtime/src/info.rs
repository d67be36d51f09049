//! Descriptions of a model's symbols, tensors and partitions, copied from its descriptor.

use crate::{DType, range::SymbolRange};
use alloc::{string::String, vec::Vec};
use core::{fmt, num::NonZeroU32};

/// A symbol of a model's contract: a size that each call chooses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SymbolInfo {
    pub(crate) name: String,
    pub(crate) lo: i64,
    pub(crate) hi: i64,
    pub(crate) step: i64,
    pub(crate) offset: i64,
    pub(crate) values: Vec<i64>,
}

impl SymbolInfo {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Smallest value allowed.
    pub fn lo(&self) -> i64 {
        self.lo
    }

    /// Largest value allowed.
    pub fn hi(&self) -> i64 {
        self.hi
    }

    /// The allowed values in ascending order if they are listed; empty if range and step define them.
    pub fn values(&self) -> &[i64] {
        &self.values
    }

    /// Whether the value is allowed.
    pub fn allows(&self, value: i64) -> bool {
        self.range().allows(value)
    }

    /// Number of allowed values.
    pub fn count(&self) -> u64 {
        self.range().count()
    }

    /// The allowed value at index `idx` in ascending order.
    pub fn nth(&self, idx: u64) -> Option<i64> {
        self.range().nth(idx)
    }

    pub(crate) fn range(&self) -> SymbolRange<'_> {
        SymbolRange { lo: self.lo, hi: self.hi, step: self.step, offset: self.offset, values: &self.values }
    }
}

impl fmt::Display for SymbolInfo {
    /// The declaration, such as `1..=64`, `8..=64 in steps of 8` or `one of 1, 4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((last, rest)) = self.values.split_last() {
            f.write_str(if rest.is_empty() { "exactly " } else { "one of " })?;
            for value in rest {
                write!(f, "{value}, ")?;
            }
            return write!(f, "{last}");
        }

        let lo = self.range().first().unwrap_or(self.lo);
        let hi = self.hi;
        if lo == hi {
            return write!(f, "exactly {lo}");
        }
        write!(f, "{lo}..={hi}")?;
        if self.step > 1 { write!(f, " in steps of {}", self.step) } else { Ok(()) }
    }
}

/// An input or output of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<String>,
    pub(crate) max_bytes: usize,
}

impl TensorInfo {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The dims as text, such as `N`, `2*S + 1` or `3`.
    pub fn dims(&self) -> &[String] {
        &self.dims
    }

    /// Upper bound of the bytes over the whole contract.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }
}

/// How calls take sequences of different lengths: the rows of all sequences follow each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RaggedInfo {
    pub(crate) offsets: usize,
    pub(crate) sequences: usize,
    pub(crate) rows: usize,
    pub(crate) length: SymbolInfo,
    pub(crate) mask: Option<String>,
    /// Whether `mask` has the lengths of sequences.
    pub(crate) has_lengths: bool,
    pub(crate) input_batch_axes: Vec<Option<usize>>,
    pub(crate) output_batch_axes: Vec<Option<usize>>,
}

impl RaggedInfo {
    /// Index of the input that holds the first row of each sequence, and at last the number of rows.
    pub fn offsets(&self) -> usize {
        self.offsets
    }

    /// Index of the symbol that is the number of sequences.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Index of the symbol that is the number of rows of all sequences.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The length of each sequence, which is not one of the model's symbols.
    pub fn length(&self) -> &SymbolInfo {
        &self.length
    }

    /// The input of the padded model that is 1 for tokens and 0 for padding; `None` if it has none. Calls don't take
    /// it.
    pub fn mask(&self) -> Option<&str> {
        self.mask.as_deref().filter(|_| !self.has_lengths)
    }

    /// The input of the padded model that is the length of each sequence; `None` if it has none. Calls don't take it.
    pub fn lengths(&self) -> Option<&str> {
        self.mask.as_deref().filter(|_| self.has_lengths)
    }

    /// For each input, the axis of the sequences in the padded model; `None` for an input without rows.
    pub fn input_batch_axes(&self) -> &[Option<usize>] {
        &self.input_batch_axes
    }

    /// For each output, the axis of the sequences in the padded model; `None` for an output without rows.
    pub fn output_batch_axes(&self) -> &[Option<usize>] {
        &self.output_batch_axes
    }
}

/// A tensor of a model's state: an input that is an output of the call before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateInfo {
    pub(crate) tensor: TensorInfo,
    pub(crate) output: String,
    pub(crate) axis: Option<usize>,
}

impl StateInfo {
    /// Name of the input in the model.
    pub fn input(&self) -> &str {
        &self.tensor.name
    }

    /// Name of the output in the model.
    pub fn output(&self) -> &str {
        &self.output
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype
    }

    /// The dims in memory as text. The number of rows is the capacity of the state.
    pub fn dims(&self) -> &[String] {
        &self.tensor.dims
    }

    /// The axis of the rows that a call appends; `None` if a call writes the whole tensor.
    pub fn axis(&self) -> Option<usize> {
        self.axis
    }
}

/// A part of a model that runs as one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionInfo {
    pub(crate) name: String,
    pub(crate) target: String,
    pub(crate) cost: String,
    pub(crate) after: Vec<usize>,
    pub(crate) symbols: Vec<usize>,
    pub(crate) stage: usize,
    pub(crate) at_once: Option<NonZeroU32>,
}

impl PartitionInfo {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the target that it runs on.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Its estimated work as a formula of the dims, in vector multiply-adds.
    pub fn cost_formula(&self) -> &str {
        &self.cost
    }

    /// The partitions that must run before this one: earlier entries of the table.
    pub fn after(&self) -> &[usize] {
        &self.after
    }

    /// The symbols that it uses, as indices into [`crate::Model::symbols`].
    pub fn symbols(&self) -> &[usize] {
        &self.symbols
    }

    /// The stage. Partitions of one stage may run at once; earlier stages end before later ones begin.
    pub fn stage(&self) -> usize {
        self.stage
    }

    /// How many calls of its target may run at once; `None` for any number. Within a call of the model, the entries of
    /// [`PartitionInfo::after`] keep to it. Contexts that call one device must share it themselves.
    pub fn at_once(&self) -> Option<NonZeroU32> {
        self.at_once
    }
}
