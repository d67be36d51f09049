//! Values that are not stored: views of other values, and elementwise operators that one other operator reads.

use super::offsets::Offsets;
use crate::{scalar::Body, tensor::Tensor};
use std::sync::Arc;
use symshape_runtime::DType;

/// A value of a call.
#[derive(Clone)]
pub(super) enum Source<'g> {
    /// All elements.
    Tensor(Tensor),
    /// Elements of a tensor at other places.
    View(Arc<View>),
    /// An elementwise operator that is computed where its result is read.
    Map(Arc<LazyMap<'g>>),
}

/// A tensor of this shape, whose elements are at `offsets` in `tensor`.
pub(super) struct View {
    pub(super) tensor: Tensor,
    pub(super) shape: Vec<usize>,
    pub(super) offsets: Offsets,
}

/// An elementwise operator that has something of `f32`.
pub(super) struct LazyMap<'g> {
    pub(super) body: &'g Body,
    pub(super) operands: Vec<Source<'g>>,
    pub(super) shape: Vec<usize>,
    /// The elementwise operators, one inside the other.
    depth: usize,
}

/// Elementwise operators that are computed together, one inside the other.
const MAX_DEPTH: usize = 8;

impl<'g> LazyMap<'g> {
    /// The operator with this body, which has operands of one shape.
    pub(super) fn of(body: &'g Body, operands: Vec<Source<'g>>) -> LazyMap<'g> {
        let depth = operands.iter().map(|operand| match operand {
            Source::Map(map) => map.depth,
            _ => 0,
        });
        let depth = 1 + depth.max().unwrap_or(0);
        let shape = operands.first().map_or_else(Vec::new, |operand| operand.shape().to_vec());
        LazyMap { body, operands, shape, depth }
    }

    /// Whether no more operators may be computed together.
    pub(super) fn is_deep(&self) -> bool {
        self.depth >= MAX_DEPTH
    }
}

impl<'g> Source<'g> {
    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Source::Tensor(tensor) => tensor.shape(),
            Source::View(view) => &view.shape,
            Source::Map(map) => &map.shape,
        }
    }

    pub(super) fn dtype(&self) -> DType {
        match self {
            Source::Tensor(tensor) => tensor.dtype(),
            Source::View(view) => view.tensor.dtype(),
            Source::Map(map) => map.body.dtype(),
        }
    }

    /// Whether both are the same value in memory. Equal values may differ in this.
    pub(super) fn is(&self, other: &Source<'_>) -> bool {
        match (self, other) {
            (Source::Tensor(a), Source::Tensor(b)) => {
                a.shape() == b.shape() && a.dtype() == b.dtype() && std::ptr::eq(a.stored(), b.stored())
            }
            (Source::View(a), Source::View(b)) => Arc::ptr_eq(a, b),
            (Source::Map(a), Source::Map(b)) => {
                std::ptr::eq(Arc::as_ptr(a).cast::<u8>(), Arc::as_ptr(b).cast())
            }
            _ => false,
        }
    }
}
