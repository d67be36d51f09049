//! Artefacts for the lowest level of x86-64.

use crate::{
    foreign::{Program, object, output_types},
    models,
};
use symshape_compiler::{
    pipeline::{Artifact, Pipeline},
    target::{Level, Target},
};

/// Without AVX, most operands in memory must be aligned, and rows of floats with odd lengths are not.
#[test]
fn rows_at_any_alignment_have_the_results_of_this_machine() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let host = Target::host().expect("this machine").level;
    for name in ["channels_of_bytes", "selections"] {
        let (_, model) = models::MODELS.iter().find(|(known, _)| *known == name).expect("a model");
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        let lowered = Pipeline::new(&graph).lower().unwrap_or_else(|error| panic!("{name}: {error}"));
        let [lowest, here] = [Level::X86V2, host].map(|level| {
            let (folder, file) = object(&lowered, None, level.name(), Artifact::Object);
            Program::compile(folder, "cc", &[], name, &file)
        });
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let outputs = output_types(&graph, &dims);
            let expected = here.outputs(&inputs, &outputs);
            lowest.assert_gives_bits(&format!("{name} at {dims:?}"), &inputs, &expected);
        }
    }
}
