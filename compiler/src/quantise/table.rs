//! The types, sizes and errors of quantised weights, for the reader of a compilation.

use super::weight_type::WeightType;
use serde_json::{Value as Json, json};

/// What quantisation did to a model.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WeightTable {
    /// One for each weight, in the order of the graph.
    pub rows: Vec<WeightRow>,
    /// The error with all weights rounded, if trial runs measured it.
    pub output_error: Option<OutputError>,
    /// Why it was not measured.
    pub note: Option<String>,
}

/// One weight.
#[derive(Clone, PartialEq, Debug)]
pub struct WeightRow {
    /// The name of the ONNX initializer, or of the node that defines the constant.
    pub name: String,
    /// The size of each axis.
    pub shape: Vec<usize>,
    /// The type that it is stored in.
    pub weight_type: WeightType,
    /// The reason for the type.
    pub why: Why,
    /// Bytes of its elements and scales, stored once.
    pub bytes: u64,
    /// The root of the mean squared error of its elements, relative to that of the elements.
    pub error: f64,
    /// The error of the outputs if only this weight is rounded, as in [`OutputError`].
    pub output_error: Option<f64>,
}

/// The error of a model's outputs in a trial run with seeded inputs.
#[derive(Clone, PartialEq, Debug)]
pub struct OutputError {
    /// The root of the mean squared difference, relative to that of the output, for the output with the largest.
    pub error: f64,
    /// The sizes of the trial: `N=8,S=128`.
    pub at: String,
}

/// Why a weight has its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It is the requested type of all weights.
    Requested,
    /// It is the requested type of this weight.
    Named,
    /// The requested type causes too large an error.
    Sensitive,
    /// An element is infinite, NaN, or too large for the requested type.
    Extreme,
}

impl WeightRow {
    /// Bytes of the weight as `f32`.
    pub fn f32_bytes(&self) -> u64 {
        4 * self.shape.iter().product::<usize>() as u64
    }
}

impl WeightTable {
    /// Whether some weights are f16 or bf16.
    pub fn has_halves(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.weight_type, WeightType::F16 | WeightType::Bf16))
    }

    /// The lines of a table for a terminal.
    pub fn lines(&self) -> Vec<String> {
        if self.rows.is_empty() {
            return vec![
                "no weight was quantised: no matrix product or look-up reads a large f32 constant".into(),
            ];
        }
        let mut lines = vec![format!(
            "{:<9} {:>12} {:>12}  {:>9} {:>9}  weight",
            "type", "bytes", "f32 bytes", "error", "outputs"
        )];
        for row in &self.rows {
            let output_error = row.output_error.map_or(String::new(), |error| format!("{error:.1e}"));
            let shape: Vec<String> = row.shape.iter().map(|dim| dim.to_string()).collect();
            let why = match row.why {
                Why::Requested => "",
                Why::Named => " (as requested by name)",
                Why::Sensitive => " (sensitive)",
                Why::Extreme => " (has elements that are too large)",
            };
            lines.push(format!(
                "{:<9} {:>12} {:>12}  {:>9.1e} {output_error:>9}  {} [{}]{why}",
                row.weight_type,
                row.bytes,
                row.f32_bytes(),
                row.error,
                row.name,
                shape.join(", ")
            ));
        }
        lines.push(self.summary());
        lines.extend(self.note.clone());
        lines
    }

    /// The size of all weights and the error of the outputs.
    pub fn summary(&self) -> String {
        let bytes: u64 = self.rows.iter().map(|row| row.bytes).sum();
        let f32_bytes: u64 = self.rows.iter().map(WeightRow::f32_bytes).sum();
        let sizes = format!("{} weights: {bytes} B of {f32_bytes} B as f32", self.rows.len());
        match &self.output_error {
            Some(OutputError { error, at }) if at.is_empty() => {
                format!("{sizes}; the outputs are off by {error:.1e}")
            }
            Some(OutputError { error, at }) => format!("{sizes}; the outputs are off by {error:.1e} at {at}"),
            None => sizes,
        }
    }

    /// The table as JSON.
    pub fn json(&self) -> Json {
        let row = |row: &WeightRow| {
            json!({
                "name": row.name, "shape": row.shape, "type": row.weight_type.to_string(), "bytes": row.bytes,
                "f32_bytes": row.f32_bytes(), "error": row.error, "output_error": row.output_error,
                "sensitive": row.why == Why::Sensitive,
            })
        };
        json!({
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "output_error": self.output_error.as_ref().map(|output| output.error),
            "at": self.output_error.as_ref().map(|output| output.at.clone()),
            "note": self.note,
        })
    }
}
