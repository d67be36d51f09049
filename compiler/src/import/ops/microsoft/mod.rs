//! Operators of ONNX Runtime's domain (`com.microsoft`), which its optimiser and exporters write.

pub(crate) mod attention;
pub(crate) mod channels_last;
pub(crate) mod diffusion;
pub(crate) mod experts;
pub(crate) mod few_bits;
pub(crate) mod fused;
pub(crate) mod gated;
pub(crate) mod generation;
pub(crate) mod grouped;
pub(crate) mod position_bias;
pub(crate) mod quantised;
