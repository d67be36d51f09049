//! The interface of the forms that rows are packed in, and the copy loop that they share.

use crate::{
    codegen::vector::{
        Builder,
        vcode::{Int, IntOp},
    },
    scalar::CompareOp,
};

/// Packs the elements of a row. `to` advances past the packed elements.
pub(super) trait RowPacker {
    /// Prepares the packed row that begins at `_to`.
    fn begin(&self, _b: &mut Builder, _to: Int) {}

    /// Packs `count` contiguous elements. All registers are clobbered.
    fn contiguous(&self, b: &mut Builder, count: Int, from: Int, to: Int);

    /// Packs `count` elements that are `step` bytes apart. All registers but `step` are clobbered.
    fn strided(&self, b: &mut Builder, count: Int, from: Int, to: Int, step: Int);
}

/// The elements that one copy packs.
#[derive(Clone, Copy)]
pub(super) struct CopySize {
    pub(super) elements: i32,
    /// Bytes of an element in memory.
    pub(super) from_bytes: i32,
    /// Bytes of a packed element.
    pub(super) to_bytes: i32,
}

/// Packs `count` contiguous elements, at least `size.elements`, by calls of `copy`. Both pointers advance past the
/// elements.
///
/// The last copy ends with the last element, so it may overlap the one before. This needs neither masks nor a loop over
/// single elements.
pub(super) fn copy_overlapping(
    b: &mut Builder,
    count: Int,
    size: CopySize,
    from: Int,
    to: Int,
    copy: &dyn Fn(&mut Builder),
) {
    let step = |b: &mut Builder| {
        copy(b);
        b.advance(from, size.from_bytes * size.elements);
        b.advance(to, size.to_bytes * size.elements);
    };
    b.repeat(count, size.elements, step);

    b.when(CompareOp::Gt, count, 0, |b| {
        // Negative: the elements left are fewer than a copy packs.
        let back = b.int_op(IntOp::Sub, count, size.elements);
        for (pointer, bytes) in [(from, size.from_bytes), (to, size.to_bytes)] {
            let back = b.int_op(IntOp::Mul, back, bytes);
            b.advance(pointer, back);
        }
        step(b);
    });
}
