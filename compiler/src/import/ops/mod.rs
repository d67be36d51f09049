//! The table of ONNX operators: each is a plain function that builds core operators, documented with an example.
//!
//! The file of a family starts with its part of the table. A new operator needs a row and a function. Shape inference,
//! evaluation and lowering follow from the core operators. Tests run the examples in the doc comments, and variants
//! of them that must be refused. docs/operators.md is generated from the same comments (see `examples`).

#[macro_use]
pub(crate) mod table;

mod activation;
mod attention;
mod control;
mod conv;
mod conv_padding;
mod conv_transpose;
mod convert;
mod create;
mod determinant;
mod elementwise;
mod index;
mod loss;
mod matmul;
mod microsoft;
mod ml;
mod norm;
mod optional;
mod pad;
mod pool;
mod quant;
mod random;
mod reduce;
mod resize;
mod rnn;
mod sampling;
mod scan;
mod selection;
mod sequence;
mod shape;
pub(crate) mod shared;
mod signal;
mod unfold;

#[cfg(test)]
mod examples;

use crate::import::model::domain::same_domain;
use crate::import::node::traits::Trait;
use std::{collections::HashMap, sync::LazyLock};
use table::Row;

macro_rules! families {
    ($($title:literal $module:ident $(:: $family:ident)?,)*) => {
        /// The tables of all families.
        const TABLES: &[&[Row]] = &[$($module $(::$family)? ::TABLE),*];

        /// The families' titles and sources; the sources hold the operators' documentation.
        #[cfg(test)]
        const SOURCES: &[(&str, &str)] =
            &[$(($title, include_str!(concat!(stringify!($module), $("/", stringify!($family),)? ".rs")))),*];
    };
}

families! {
    "Elementwise" elementwise,
    "Conversion" convert,
    "Activation" activation,
    "Reduction" reduce,
    "Shape" shape,
    "Padding" pad,
    "Creation" create,
    "Random numbers" random,
    "Indexing" index,
    "Matrix multiplication" matmul,
    "Determinant and inverse" determinant,
    "Convolution" conv,
    "Transposed convolution" conv_transpose,
    "Pooling" pool,
    "Normalisation" norm,
    "Quantisation" quant,
    "Resizing" resize,
    "Control flow" control,
    "Scan" scan,
    "Recurrent networks" rnn,
    "Selection" selection,
    "Attention" attention,
    "Sampling" sampling,
    "Unfolding" unfold,
    "Fourier transforms" signal::dft,
    "Short-time Fourier transform" signal::stft,
    "Mel scale" signal::mel,
    "Losses" loss,
    "ONNX Runtime: fused operators" microsoft::fused,
    "ONNX Runtime: images with channels last" microsoft::channels_last,
    "ONNX Runtime: diffusion models" microsoft::diffusion,
    "ONNX Runtime: position biases" microsoft::position_bias,
    "ONNX Runtime: mixtures of experts" microsoft::experts,
    "ONNX Runtime: linear attention and positions" microsoft::gated,
    "ONNX Runtime: weights of few bits" microsoft::few_bits,
    "ONNX Runtime: text generation and older forms" microsoft::generation,
    "ONNX Runtime: attention" microsoft::attention,
    "ONNX Runtime: grouped attention" microsoft::grouped,
    "ONNX Runtime: quantisation" microsoft::quantised,
    "Classical models: features" ml::features,
    "Classical models: linear" ml::linear,
    "Classical models: trees" ml::tree_ensemble,
    "Classical models: support vector machines" ml::svm,
    "Optional values" optional,
    "Sequences" sequence,
}

/// All rows by the names of their operators, in the order of the tables. Lookups happen several times per node.
static ROWS: LazyLock<HashMap<&'static str, Vec<&'static Row>>> = LazyLock::new(|| {
    let mut rows: HashMap<&str, Vec<&Row>> = HashMap::new();
    for row in TABLES.iter().copied().flatten() {
        rows.entry(row.name).or_default().push(row);
    }
    rows
});

/// The row of operator `name` in version `opset` of `domain`.
pub(crate) fn find(domain: &str, name: &str, opset: i64) -> Option<&'static Row> {
    named(domain, name).filter(|row| row.since <= opset).max_by_key(|row| row.since)
}

/// Whether operator `name` of `domain` has this trait, in any version.
pub(crate) fn has_trait(domain: &str, name: &str, wanted: Trait) -> bool {
    named(domain, name).any(|row| row.traits.contains(&wanted))
}

/// The rows of all versions of operator `name` of `domain`.
fn named(domain: &str, name: &str) -> impl Iterator<Item = &'static Row> {
    let rows = ROWS.get(name).into_iter().flatten().copied();
    rows.filter(move |row| same_domain(row.domain, domain))
}
