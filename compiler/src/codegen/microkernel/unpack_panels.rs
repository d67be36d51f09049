//! The microkernel that unpacks panels of few bits: the panels of floats have the same columns.
//!
//! It unpacks reduction indices that follow each other. They may begin inside a block, with a whole word.

use super::contraction::{Before, FewBitsCode, Indices, PANEL, Panels, Reader, Sink, narrow_vectors};
use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{Int, Mem, VCode, Vector},
};

/// Everything that the code depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct UnpackPanelsKey {
    /// The form of the panels.
    pub code: FewBitsCode,
}

/// Slots of the argument block. Distances are in bytes.
impl UnpackPanelsKey {
    /// Address of the first block, in the first panel.
    pub const FROM: usize = 0;
    /// From panel to panel.
    pub const FROM_PANEL: usize = 1;
    /// Address of the first panel of floats.
    pub const TO: usize = 2;
    /// From panel to panel of floats.
    pub const TO_PANEL: usize = 3;
    /// Number of panels.
    pub const PANELS: usize = 4;
    /// Number of reduction indices.
    pub const DEPTH: usize = 5;
    /// Reduction indices of a block.
    pub const BLOCK: usize = 6;
    /// Number of blocks that the reduction indices lie in.
    pub const BLOCKS: usize = 7;
    /// Reduction indices of the first block that come before them: whole words.
    pub const BEFORE: usize = 8;
    /// Bytes of the codes of these, in one panel.
    pub const BEFORE_BYTES: usize = 9;
    /// Length of the argument block.
    pub(crate) const SLOTS: usize = 10;
}

/// Stores the elements of a panel.
struct Stores {
    /// Address of the next row.
    to: Int,
    vectors: usize,
}

impl Sink for Stores {
    fn take(&self, b: &mut Builder, k: usize, element: &mut dyn FnMut(&mut Builder, usize) -> Vector) {
        for vector in 0..self.vectors {
            let elements = element(b, vector);
            b.store(Mem::from(self.to).plus(4 * (PANEL * k + vector * b.lanes())), elements);
        }
    }

    fn end_group(&self, b: &mut Builder, count: usize) {
        b.advance(self.to, (4 * PANEL * count) as i32);
    }
}

/// The code on an ISA of this shape.
pub(crate) fn emit(key: &UnpackPanelsKey, shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    let vectors = narrow_vectors(shape);
    // Each vector has an element.
    let used = vectors * (key.code.block_registers() + 1);
    let reader = Reader::new(&mut b, key.code, vectors, shape.registers.saturating_sub(used));

    let from = b.arg(UnpackPanelsKey::FROM);
    let to = b.arg(UnpackPanelsKey::TO);
    let panels = b.arg(UnpackPanelsKey::PANELS);
    b.repeat(panels, 1, |b| {
        let at = b.copy(from);
        let stores = Stores { to: b.copy(to), vectors };
        let before =
            Before { count: b.arg(UnpackPanelsKey::BEFORE), bytes: b.arg(UnpackPanelsKey::BEFORE_BYTES) };
        let indices = Indices {
            count: b.arg(UnpackPanelsKey::DEPTH),
            block: b.arg(UnpackPanelsKey::BLOCK),
            blocks: b.arg(UnpackPanelsKey::BLOCKS),
            before: Some(before),
        };
        reader.read(b, &Panels { at, offsets: &[], vectors }, &indices, &stores);

        let next = b.arg(UnpackPanelsKey::FROM_PANEL);
        b.advance(from, next);
        let next = b.arg(UnpackPanelsKey::TO_PANEL);
        b.advance(to, next);
    });
    b.finish()
}
