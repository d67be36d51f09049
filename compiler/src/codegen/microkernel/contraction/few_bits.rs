//! The reduction over panels of few bits: each element is multiplied where it is computed, see
//! `few_bits_panels.rs`.
//!
//! Elements are multiplied and added as those of panels of floats are. The sums thus have the same bits as with a
//! right-hand side of floats.

use super::{
    TileKey,
    few_bits_panels::{Indices, Panels, Reader, Sink},
    key::FewBitsCode,
    narrow_vectors,
    prefetch::FollowingPrefetch,
    rounded::{max_rounded_rows, wide_rounded_vectors},
    tile::Tile,
};
use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{Int, Vector},
};

/// Largest number of rows of a tile. Scales, zero points and words need registers too.
pub(crate) fn max_few_bits_rows(shape: VectorShape, code: FewBitsCode) -> usize {
    if code.dot.is_some() {
        return max_rounded_rows(shape);
    }
    let vectors = narrow_vectors(shape).max(2);
    let held = match code.bits {
        // Bytes need no registers for words and masks.
        8 if !code.has_zeros => 0,
        _ if shape.registers >= 32 => 3,
        _ => 2,
    };
    (shape.registers.saturating_sub(4 + held * vectors) / vectors).max(1)
}

/// Vectors of columns of the widest tile of `rows` rows.
pub(crate) fn wide_few_bits_vectors(shape: VectorShape, rows: usize, code: FewBitsCode) -> usize {
    if let Some(dot) = code.dot {
        return wide_rounded_vectors(shape, rows, dot);
    }
    let wide = match (shape.registers, rows) {
        (16, 1) if !code.has_zeros => 4,
        (32, 1..=4) => 4,
        _ => 2,
    };
    wide.max(narrow_vectors(shape))
}

impl Tile<'_> {
    /// The reduction from these addresses on, which are those of the first index and of the first panel.
    pub(super) fn few_bits(&self, b: &mut Builder, code: FewBitsCode, lhs: Int, rhs: Int) {
        let indices = Indices {
            count: b.arg(TileKey::level(0)),
            block: b.arg(TileKey::BLOCK),
            blocks: b.arg(TileKey::BLOCKS),
            before: None,
        };
        let step = (!self.key.dense).then(|| b.arg(TileKey::LHS_K));
        let offsets = self.panels(b);
        let panels = Panels { at: rhs, offsets: &offsets, vectors: usize::from(self.key.vectors) };
        let prefetch = FollowingPrefetch::new(b, self.key, rhs);
        let free = self.free_registers(b.shape(), code);
        let reader = Reader::new(b, code, panels.vectors, free);
        reader.read(b, &panels, &indices, &Products { tile: self, lhs, step, prefetch });
    }

    /// Registers that neither sums nor operands take.
    fn free_registers(&self, shape: VectorShape, code: FewBitsCode) -> usize {
        let rows = usize::from(self.key.rows);
        let vectors = usize::from(self.key.vectors);
        // One row needs no register for elements but that of the current vector.
        let elements = if rows == 1 { 1 } else { vectors };
        let used = vectors * (rows + code.block_registers()) + elements + 1;
        shape.registers.saturating_sub(used)
    }
}

/// Multiplies elements by those of lhs.
struct Products<'t> {
    tile: &'t Tile<'t>,
    /// Address of the elements of the first row.
    lhs: Int,
    /// From one reduction index to the next, unless these are consecutive.
    step: Option<Int>,
    prefetch: Option<FollowingPrefetch>,
}

impl Sink for Products<'_> {
    fn take(&self, b: &mut Builder, k: usize, element: &mut dyn FnMut(&mut Builder, usize) -> Vector) {
        let tile = self.tile;
        let offset = if self.step.is_none() { 4 * k } else { 0 };
        if let [accumulators] = &tile.accumulators[..] {
            let x = b.broadcast(tile.lhs_mem(self.lhs, 0).plus(offset));
            for (vector, accumulator) in accumulators.iter().enumerate() {
                let elements = element(b, vector);
                b.set_fma(*accumulator, x, elements);
            }
        } else {
            let elements: Vec<Vector> =
                (0..usize::from(tile.key.vectors)).map(|vector| element(b, vector)).collect();
            for (row, accumulators) in tile.accumulators.iter().enumerate() {
                let x = b.broadcast(tile.lhs_mem(self.lhs, row).plus(offset));
                for (accumulator, elements) in accumulators.iter().zip(&elements) {
                    b.set_fma(*accumulator, x, *elements);
                }
            }
        }
        if let Some(step) = self.step {
            b.advance(self.lhs, step);
        }
    }

    fn end_group(&self, b: &mut Builder, count: usize) {
        if self.step.is_none() {
            b.advance(self.lhs, 4 * count as i32);
        }
        // Single indices are parts of a line.
        if let Some(prefetch) = self.prefetch.filter(|_| count > 1) {
            prefetch.advance(b);
        }
    }
}
