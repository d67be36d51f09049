//! Branches of convolutions that read the same image. Their results are checked with all models, and the number of
//! convolutions that are left here.

use crate::models;
use symshape_compiler::opt;

#[test]
fn branches_of_an_image_become_one_convolution() {
    let (_, model) = models::MODELS.iter().find(|(name, _)| *name == "branches").expect("a model");
    let mut graph = model().expect("a valid graph");
    let count =
        |graph: &symshape_compiler::graph::Graph| graph.to_string().matches("contraction f32").count();
    assert_eq!(count(&graph), 16, "in the model");
    opt::optimize(&mut graph).expect("a valid graph");
    // Four sums of two windows and one with the image, one of depthwise convolutions, one whose first branch is a
    // result, and two windows that are no part of each other.
    assert_eq!(count(&graph), 4 + 1 + 1 + 2 + 2, "{graph}");
}
