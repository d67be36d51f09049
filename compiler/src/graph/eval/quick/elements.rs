//! The elements of `f32` tensors as a slice.

use crate::{error::Result, graph::eval::writer::tensor, tensor::Tensor};
use symshape_runtime::DType;

/// The elements of an `f32` tensor.
pub(super) fn floats(x: &Tensor) -> Vec<f32> {
    x.bytes()
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect()
}

/// An `f32` tensor of these elements.
pub(super) fn from_floats(shape: &[usize], elems: &[f32]) -> Result<Tensor> {
    let mut bytes = vec![0; 4 * elems.len()];
    for (bytes, x) in bytes.chunks_exact_mut(4).zip(elems) {
        bytes.copy_from_slice(&x.to_le_bytes());
    }
    tensor(DType::F32, shape, bytes)
}
