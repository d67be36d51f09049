//! Ragged batches on the command line.

use crate::ragged::RaggedRequest;
use std::ffi::OsString;

/// Calls that take sequences of different lengths without padding.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct RaggedArgs {
    /// Take a ragged batch: the rows of all sequences one after another, and the offset of each sequence. S is the
    /// symbol of the padded length
    #[arg(id = "ragged_length", long = "ragged", value_name = "S")]
    pub length: Option<String>,
    /// With --ragged: the input that is 1 for tokens and 0 for padding; it is no input of a ragged call
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
