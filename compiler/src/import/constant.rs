//! Values that are known while importing.

use crate::{
    error::Result,
    graph::{Graph, Value},
    scalar::Scalar,
    tensor::Tensor,
};

/// The tensor that `value` is at every call, if it depends on neither inputs nor symbols.
pub(super) fn value_of(g: &Graph, value: Value) -> Result<Option<Tensor>> {
    if let Some(tensor) = g.constant(value) {
        return Ok(Some(tensor.clone()));
    }
    let Some(dims) = g.contents(value) else { return Ok(None) };
    let elems: Option<Vec<Scalar>> =
        dims.iter().map(|dim| dim.as_i64().map(|elem| Scalar::from_i64(g.dtype(value), elem))).collect();
    let shape: Option<Vec<usize>> =
        g.shape(value).iter().map(|dim| dim.as_i64().and_then(|dim| usize::try_from(dim).ok())).collect();
    Ok(elems.zip(shape).and_then(|(elems, shape)| Tensor::from_scalars(g.dtype(value), shape, &elems)))
}
