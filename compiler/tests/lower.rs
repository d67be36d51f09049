//! Lowered programs against the graphs that they come from, at sizes from the smallest to the largest.

mod models;

#[test]
fn every_model_lowers() {
    for (name, model) in models::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        let program =
            symshape_compiler::lower::lower(&graph).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!program.kernels.is_empty(), "{name} has no kernels");
        println!("{program}");
    }
}
