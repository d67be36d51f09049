//! Shapes of rows: of the requests of one batch, and of their results.

use crate::{
    DType, TensorInfo, TensorRef,
    tensor::{self, MAX_AXES},
};

/// The shapes of the rows of tensors.
#[derive(Clone, Debug)]
pub(super) struct RowShapes(pub(super) Vec<RowShape>);

/// The shape of the rows of a tensor.
#[derive(Clone, Debug)]
pub(super) struct RowShape {
    pub(super) dtype: DType,
    pub(super) rank: usize,
    /// The first entry is replaced by the number of rows.
    dims: [usize; MAX_AXES],
    /// Bytes of one row.
    pub(super) bytes: usize,
}

impl RowShapes {
    /// Shapes of these types and ranks, without elements.
    pub(super) fn of(tensors: &[TensorInfo]) -> RowShapes {
        let empty = |info: &TensorInfo| RowShape {
            dtype: info.dtype(),
            rank: info.rank(),
            dims: [0; MAX_AXES],
            bytes: 0,
        };
        RowShapes(tensors.iter().map(empty).collect())
    }

    /// Whether the rows of these tensors have these shapes. Their ranks do.
    pub(super) fn matches(&self, inputs: &[TensorRef<'_>]) -> bool {
        self.0.iter().zip(inputs).all(|(row, input)| row.dims[1..row.rank] == input.shape()[1..])
    }

    /// Takes the shapes of rows of these tensors, whose ranks are right.
    pub(super) fn set(&mut self, inputs: &[TensorRef<'_>]) {
        self.0.iter_mut().zip(inputs).for_each(|(row, input)| row.set(input.shape()));
    }
}

impl RowShape {
    /// Takes the shape of rows.
    pub(super) fn set(&mut self, shape: &[usize]) {
        self.dims[1..self.rank].copy_from_slice(&shape[1..]);
        self.bytes = tensor::size_bytes(self.dtype, &shape[1..]).unwrap_or(0);
    }

    /// The shape of `rows` rows.
    pub(super) fn shape(&self, rows: usize) -> [usize; MAX_AXES] {
        let mut shape = self.dims;
        shape[0] = rows;
        shape
    }
}
