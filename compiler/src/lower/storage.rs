//! The memory of a value: a buffer, an offset and strides.

use super::index::{address, strides};
use crate::kernel::{Access, BufferId};
use symshape::Dim;

/// The memory of a value: element `index` is at `offset + Σ index[k] * strides[k]` of `buffer`.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    pub(super) buffer: BufferId,
    pub(super) offset: Dim,
    pub(super) strides: Vec<Dim>,
}

impl Storage {
    /// A whole buffer, its axes in this order.
    pub(super) fn dense(buffer: BufferId, shape: &[Dim], order: &[usize]) -> Storage {
        Storage { buffer, offset: Dim::zero(), strides: strides(shape, order) }
    }

    /// The element at `index`.
    pub(super) fn at(&self, index: &[Dim]) -> Access {
        Access { buffer: self.buffer, index: address(self.offset.clone(), &self.strides, index) }
    }

    /// The slice that begins at `start` along `axis`.
    pub(super) fn from(&self, axis: usize, start: &Dim) -> Storage {
        Storage { offset: &self.offset + start * &self.strides[axis], ..self.clone() }
    }
}
