//! Ragged batches on the command line.

use super::errors::usage;
use crate::{
    accuracy::inputs,
    error::{At, Result},
    ragged::RaggedRequest,
    tensor::Tensor,
};
use std::{ffi::OsString, fmt, str::FromStr};
use symshape_runtime::Model;

/// Calls that take sequences of different lengths without padding.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct RaggedArgs {
    /// Take a ragged batch: the rows of all sequences one after another, and the offset of each sequence. S is the
    /// symbol of the padded length
    #[arg(id = "ragged_length", long = "ragged", value_name = "S")]
    pub length: Option<String>,
    /// With --ragged: the input that is 1 for tokens and 0 for padding, or the lengths of the sequences; ragged calls
    /// don't take it
    #[arg(id = "ragged_mask", long = "mask", value_name = "INPUT", requires = "ragged_length")]
    pub mask: Option<String>,
    /// With --ragged: the symbol of the batch, if several are possible
    #[arg(long, value_name = "N", requires = "ragged_length")]
    pub ragged_batch: Option<String>,
    /// With --ragged: the largest number of rows of a call; default: N sequences of the largest length
    #[arg(long, value_name = "ROWS", requires = "ragged_length", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_rows: Option<u64>,
}

impl RaggedArgs {
    /// Whether a ragged batch is wanted.
    pub(super) fn is_given(&self) -> bool {
        self.length.is_some()
    }

    /// The command line of these arguments.
    pub(super) fn command_line(&self) -> Vec<OsString> {
        let RaggedArgs { length, mask, ragged_batch, max_rows } = self;
        let texts = [("--ragged", length), ("--mask", mask), ("--ragged-batch", ragged_batch)];
        let texts = texts.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
        let rows = max_rows.map(|rows| ("--max-rows", rows.to_string()));
        texts.chain(rows).flat_map(|(name, value)| [OsString::from(name), value.into()]).collect()
    }

    /// The request for the compiler.
    pub(super) fn request(&self) -> RaggedRequest {
        let RaggedArgs { length, mask, ragged_batch: batch, max_rows } = self.clone();
        RaggedRequest { length, batch, mask, max_rows }
    }
}

/// The lengths of the sequences of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Lengths(pub Vec<usize>);

impl Lengths {
    /// Those in a list of integers, the input `name`.
    pub(super) fn of_tensor(name: &str, tensor: &Tensor) -> Result<Lengths> {
        if tensor.shape().len() != 1 || !tensor.dtype().is_int() {
            return Err(usage(format!("input `{name}`: expected a list of integers")));
        }
        let length = |idx: usize| {
            let length = tensor.get(idx).as_i64();
            usize::try_from(length).map_err(|_| usage(format!("input `{name}`: element {idx} is {length}")))
        };
        (0..tensor.elems()).map(length).collect::<Result<_>>().map(Lengths)
    }

    /// The longest one, or 0.
    pub(super) fn max(&self) -> usize {
        self.0.iter().copied().max().unwrap_or(0)
    }

    /// The first row of each sequence, and at last the number of rows.
    pub(super) fn offsets(&self) -> Result<Tensor> {
        inputs::offsets(&self.0).at(|| format!("--lengths {self}"))
    }

    /// Of an argument `--at`: almost equal lengths. `None` for a model without a ragged batch.
    pub(super) fn at(model: &Model, dims: &[i64]) -> Option<Lengths> {
        model.ragged().map(|ragged| Lengths(inputs::even_lengths(ragged, dims)))
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Lengths, String> {
        let lengths =
            text.split(',').map(|length| length.trim().parse()).collect::<std::result::Result<_, _>>();
        lengths.map(Lengths).map_err(|_| "expected lengths, such as 12,300,45".into())
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lengths: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lengths.join(","))
    }
}
