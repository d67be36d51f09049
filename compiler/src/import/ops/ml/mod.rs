//! Classical machine learning (`ai.onnx.ml`) with numeric features.

pub(crate) mod features;
pub(crate) mod linear;
pub(crate) mod scores;
pub(crate) mod svm;
pub(crate) mod tree_ensemble;
pub(crate) mod trees;
