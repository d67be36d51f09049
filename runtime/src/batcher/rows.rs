//! Shapes of rows: of the requests of one batch, and of their results.

use crate::{
    DType, TensorInfo, TensorRef,
    tensor::{self, MAX_AXES},
};

/// The unit that the requests of a batch divide a tensor by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    /// Rows: of the batch, or of all sequences of a ragged batch.
    Rows,
    /// Sequences of a ragged batch.
    Sequences,
    /// The offsets of a ragged batch: one for each sequence, and one more.
    Offsets,
}

/// Adjacent items of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Run {
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Run {
    pub(super) fn end(self) -> usize {
        self.first + self.count
    }
}

/// The share of a request in a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Share {
    pub(super) rows: Run,
    /// Its sequences in a ragged batch.
    pub(super) sequences: Run,
}

impl Share {
    /// The items of a tensor with this unit. The offset after the last sequence is the first one of the next request.
    pub(super) fn along(self, unit: Unit) -> Run {
        match unit {
            Unit::Rows => self.rows,
            Unit::Sequences => self.sequences,
            Unit::Offsets => Run { count: self.sequences.count + 1, ..self.sequences },
        }
    }

    /// The share that begins with the first item and ends with these.
    pub(super) fn whole(self) -> Share {
        let to_end = |run: Run| Run { first: 0, count: run.end() };
        Share { rows: to_end(self.rows), sequences: to_end(self.sequences) }
    }

    /// As many items, from the first one on.
    pub(super) fn alone(self) -> Share {
        let at_start = |run: Run| Run { first: 0, ..run };
        Share { rows: at_start(self.rows), sequences: at_start(self.sequences) }
    }
}

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

    /// The shape of `count` rows.
    pub(super) fn shape(&self, count: usize) -> [usize; MAX_AXES] {
        let mut shape = self.dims;
        shape[0] = count;
        shape
    }
}
