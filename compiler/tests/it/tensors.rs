//! Tensors as the arguments of calls.

use symshape_compiler::tensor::Tensor;
use symshape_runtime::TensorRef;

/// The tensors as a call takes them.
pub(crate) fn refs(tensors: &[Tensor]) -> Vec<TensorRef<'_>> {
    tensors.iter().map(as_ref).collect()
}

/// A tensor as a call takes it.
pub(crate) fn as_ref(tensor: &Tensor) -> TensorRef<'_> {
    let view = TensorRef::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes());
    view.expect("memory of the heap is aligned, and a tensor has as many bytes as its shape")
}
