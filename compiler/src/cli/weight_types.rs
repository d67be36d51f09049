//! Types of weights on the command line.

use super::errors::usage;
use crate::{
    error::{At, Result},
    graph::Graph,
    quantise::{self, Quantised, WeightRequest, WeightTable, WeightType},
};
use std::{ffi::OsString, path::Path};

/// The types that weights are stored in.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct WeightTypeArgs {
    /// Type of the weights of matrix products and look-ups: int8, int4, f16, bf16 or f32. Integers may name the
    /// elements of a block, such as int4:64; default: 32. The summary ends with a table of errors and sizes
    #[arg(id = "weight_type", long = "weights", value_name = "TYPE")]
    pub weight_type: Option<WeightType>,
    /// Type of one weight, by the name of the ONNX initializer
    #[arg(id = "named_weights", long = "weight", value_name = "NAME=TYPE")]
    pub named: Vec<String>,
    /// With --weights: a weight keeps more bits if it alone changes an output of a trial run by more than this, and by
    /// three times as much as the median weight; relative root mean square; `inf` skips these trial runs
    #[arg(id = "weight_error", long = "weight-error", value_name = "ERROR", default_value_t = quantise::MAX_ERROR,
          value_parser = super::args::error_limit, requires = "weight_type")]
    pub max_error: f64,
}

impl WeightTypeArgs {
    /// Whether the command line names a type.
    pub(super) fn is_given(&self) -> bool {
        self.weight_type.is_some() || !self.named.is_empty()
    }

    /// The graph with the requested types. `None` if the command line names none.
    pub(super) fn apply(&self, path: &Path, graph: &Graph) -> Result<Option<Quantised>> {
        let request =
            WeightRequest::given(self.weight_type, &self.named, self.max_error).at(|| "--weight")?;
        let quantised = request.map(|request| quantise::quantise(graph, &request)).transpose();
        quantised.at(|| path.display().to_string())
    }

    /// The command line that gives weights the types of `table`.
    pub(super) fn command_line(&self, table: Option<&WeightTable>) -> Vec<OsString> {
        let Some(table) = table else { return Vec::new() };
        let weight_type = self.weight_type.unwrap_or(WeightType::F32);
        let mut words: Vec<OsString> =
            vec!["--weights".into(), weight_type.to_string().into(), "--weight-error".into(), "inf".into()];
        for row in table.rows.iter().filter(|row| row.weight_type != weight_type) {
            words.extend(["--weight".into(), format!("{}={}", row.name, row.weight_type).into()]);
        }
        words
    }

    /// Refuses to be combined with `--dynamic-memory`.
    pub(super) fn require_bounds(&self) -> Result<()> {
        if self.is_given() {
            return Err(usage("--dynamic-memory: --weights needs upper bounds; declare them with --dim"));
        }
        Ok(())
    }
}
