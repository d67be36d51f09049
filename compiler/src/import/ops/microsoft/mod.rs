//! Operators of ONNX Runtime's domain (`com.microsoft`), which its optimiser and exporters write.

pub(crate) mod attention;
pub(crate) mod fused;
pub(crate) mod grouped;
pub(crate) mod quantised;
