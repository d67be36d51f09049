//! The contraction tile: `rows` rows by `vectors` vectors of columns, repeated down the rows.
//!
//! The accumulators of a tile start at zero and stay in registers during the reduction. The reduction is a nest of
//! loops, the innermost of which runs over consecutive `k`. One iteration loads a row of rhs, broadcasts one element
//! of lhs for each row of the tile, and multiplies and adds. Then the epilogue runs on the accumulators, vector by
//! vector, and the pointers move to the next tile.
//!
//! The sum of an element runs over `k` in the order of the nest, one fused multiply-add after another, from zero. So
//! its bits depend neither on the shape of the tile nor on the number of rows. A deep reduction may be cut into parts
//! that run one after another over many tiles, see [`ReductionPart`]. Partial sums are stored and loaded unrounded.
//!
//! Rhs is either rows in memory or packed in panels of [`PANEL`] columns, which list one `k` after another and are
//! padded with zeros. [`PANEL`] is a multiple of the lanes of every ISA, so all ISAs share one packed constant. Wide
//! tiles read several panels.

mod amx;
mod amx_prefetch;
mod deferred_epilogue;
mod epilogue;
mod few_bits;
mod few_bits_panels;
mod key;
mod matrix;
mod packed_bytes;
mod prefetch;
mod rounded;
mod tile;

pub(crate) use amx::{amx_columns, release};
pub(crate) use few_bits::{max_few_bits_rows, wide_few_bits_vectors};
pub(super) use few_bits_panels::{Before, Indices, Panels, Reader, Sink};
pub(crate) use key::MAX_PAIR;
pub use key::{AMX_ROWS, BlockDot, DotOp, FewBitsCode, PANEL, ReductionPart, Rhs, TileKey};

use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{IntOp, VCode},
};
use rounded::RoundedCode;
use tile::Tile;

/// Largest number of rows of a tile of four long vectors of columns.
pub(crate) const WIDE_ROWS: usize = 6;

/// Largest number of rows of a tile on vector registers.
pub fn max_rows(shape: VectorShape) -> usize {
    if shape.fma_lanes {
        // Each row needs a register for its elements too, and one holds a vector of rhs. Backends keep one.
        return (shape.registers - 2) / (narrow_vectors(shape) + 1);
    }
    // Vectors of rhs and of lhs need registers too.
    (shape.registers - 4) / narrow_vectors(shape).max(2)
}

/// Largest number of rows of a tile that has one vector of columns.
pub(crate) fn max_rows_of_one_vector(shape: VectorShape) -> usize {
    // Fewer accumulators would not hide the latency of a multiply-add.
    if shape.fma_lanes { max_rows(shape) } else { shape.registers.min(16) - 4 }
}

/// Vectors of columns of a tile that is one panel wide.
pub(crate) fn narrow_vectors(shape: VectorShape) -> usize {
    PANEL / shape.lanes
}

/// Vectors of columns of the widest tile of `rows` rows: enough independent accumulators to hide the latency of a
/// multiply-add, as far as registers allow.
pub fn wide_vectors(shape: VectorShape, rows: usize, dot: DotOp) -> usize {
    let wide = match (shape.registers, rows) {
        // Pairs of rows are multiplied, so an odd row takes as many registers as two.
        (_, 3) if dot.pairs_rows() => 4,
        (16, 1) => 8,
        // These add with another instruction, and the sum of two products needs a register until then.
        (16, 3) if matches!(dot, DotOp::I16Pairs | DotOp::BytePairs) => 2,
        (16, 2..=3) => 4,
        (32, 1) => 8,
        (32, 2..=3) if shape.fma_lanes => 8,
        (32, 2..=WIDE_ROWS) => 4,
        _ => 2,
    };
    wide.max(narrow_vectors(shape))
}

/// The code of a tile on an ISA of this shape.
pub(crate) fn emit(key: &TileKey, shape: VectorShape) -> VCode {
    if key.dot.is_amx() {
        return amx::emit(key, shape);
    }
    let mut b = Builder::new(shape);
    let tile = Tile::new(&mut b, key);
    let tiles = b.arg(TileKey::TILES);

    b.repeat(tiles, 1, |b| {
        tile.start(b);
        let lhs = b.copy(tile.lhs);

        let rhs = b.copy(tile.rhs);
        if let (true, Rhs::Panels(width)) = (key.dot.starts_from_panels(), key.rhs) {
            // `start` has read the first row of each panel.
            b.advance(rhs, 4 * width as i32);
        }

        match key.rhs {
            Rhs::FewBits(FewBitsCode { dot: Some(dot), bits, scale, has_zeros }) => {
                let code = RoundedCode { bits: usize::from(bits), scale, has_zeros, dot };
                tile.rounded(b, code, lhs, rhs);
            }
            Rhs::FewBits(code) => tile.few_bits(b, code, lhs, rhs),
            Rhs::Panels(_) | Rhs::Rows | Rhs::Scattered => {
                tile.pair_rows(b);
                tile.level(b, key.levels - 1, lhs, rhs);
                tile.unpair_rows(b);
            }
        }
        match key.part.stored() {
            Some(stream) => tile.store_partial_sums(b, stream),
            None => tile.epilogue(b),
        }

        let next = b.int_op(IntOp::Mul, tile.multiples[1], i32::from(key.rows));
        b.advance(tile.lhs, next);
    });
    b.finish()
}
