//! Models that the benchmarks share.

pub mod clock;
pub mod line;
pub mod microkernel;

use std::path::Path;
use symshape_compiler::{
    graph::Graph,
    import::{self, ImportOptions},
};

/// The transformer block of the tour, `x[N, S, 64]`, with N in 1..=16 and S in 1..=128.
///
/// # Panics
/// If the example model is missing or damaged.
pub fn block() -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compiler/examples/block.onnx");
    let dim = |text| import::parse_dim(text).expect("a valid declaration");
    let options = ImportOptions { dims: vec![dim("N=1..16"), dim("S=1..128")], ..ImportOptions::default() };
    let model = import::Model::open(&path).expect("the example model");
    import::import(&model, &options).expect("the example model is supported")
}
