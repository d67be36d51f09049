//! Builds the tensors that the evaluator returns.

use crate::{
    error::{Error, Result},
    scalar::Scalar,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::DType;

/// Collects elements in row-major order.
pub(super) struct TensorBuilder {
    dtype: DType,
    bytes: Vec<u8>,
}

impl TensorBuilder {
    pub(super) fn new(dtype: DType, shape: &[usize]) -> TensorBuilder {
        let elems: usize = shape.iter().product();
        TensorBuilder { dtype, bytes: Vec::with_capacity(elems * dtype.size_bytes()) }
    }

    pub(super) fn push(&mut self, value: Scalar) {
        self.bytes.extend_from_slice(&value.bits().to_le_bytes()[..self.dtype.size_bytes()]);
    }

    pub(super) fn finish(self, shape: &[usize]) -> Result<Tensor> {
        tensor(self.dtype, shape, self.bytes)
    }
}

/// A tensor of these elements. The shape is known to be below the limit.
pub(super) fn tensor(dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Result<Tensor> {
    Tensor::new(dtype, shape.to_vec(), Bytes::Owned(bytes.into()))
        .ok_or_else(|| Error::internal("a result has another size than its shape"))
}

/// An `f32` tensor of these elements.
pub(super) fn from_floats(shape: &[usize], elems: Vec<f32>) -> Result<Tensor> {
    let tensor = Tensor::from_f32s(shape.to_vec(), elems);
    tensor.ok_or_else(|| Error::internal("a tensor has as many elements as its shape"))
}
