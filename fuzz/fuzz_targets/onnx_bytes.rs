//! Any bytes as an ONNX model: a graph or an error, never a panic, a hang, or memory without bound.
#![no_main]

use symshape_compiler::{
    graph::verify,
    import::{ImportOptions, Model, import},
};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let options = ImportOptions { unbounded: true, ..ImportOptions::default() };
    let Ok(model) = Model::from_bytes(bytes) else { return };
    if let Ok(graph) = import(&model, &options) {
        verify::verify(&graph).expect("imported graphs are well-formed");
    }
});
