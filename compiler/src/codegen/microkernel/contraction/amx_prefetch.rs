//! Prefetch of the panels of the next tile of columns, by tiles on tile registers.

use super::key::TileKey;
use crate::{
    codegen::vector::{
        Builder,
        vcode::{Int, IntOp, Mem, TILE_BYTES},
    },
    scalar::CompareOp,
    target::LINE_BYTES,
};

/// Cache lines to prefetch in one step of the reduction. If a step needs more, the hardware prefetcher fetches the
/// lines that follow. More prefetches would take the fill buffers that tile loads wait for.
const LINES_PER_STEP: i32 = 8;

/// The prefetch of the panels of the next tile of columns, spread over the multiplications of all tiles of rows.
pub(super) struct AmxPanelPrefetch {
    next: Int,
    end: Int,
    /// Bytes between prefetches, unless they are of consecutive cache lines.
    distance: Option<Int>,
}

impl AmxPanelPrefetch {
    /// The prefetch of tiles that are `width` panels wide, of which the call has `tiles`. `None` if the key wants none.
    ///
    /// A call with a single tile prefetches nothing: it waits for its own panels all the time.
    pub(super) fn new(b: &mut Builder, key: &TileKey, width: usize, tiles: Int) -> Option<AmxPanelPrefetch> {
        if !key.prefetch_panels || key.tail {
            return None;
        }
        let first = b.arg(TileKey::RHS);
        let step = b.arg(TileKey::RHS_COLUMN);
        let own_bytes = b.int_op(IntOp::Mul, step, width as i32);
        let next = b.int_op(IntOp::Add, first, own_bytes);

        // Three multiplications for the two parts of rhs take so long that half of the panels needs no prefetch.
        let parts = i32::from(key.dot.parts().rhs);
        let panels = (width as i32 / parts).max(1);
        let prefetched_bytes = b.int_op(IntOp::Mul, step, panels);
        let end = b.int_op(IntOp::Add, next, prefetched_bytes);
        b.when(CompareOp::Lt, tiles, 2, |b| b.set_copy(end, next));

        // The bytes of a panel that a step reads, divided by two or four tiles and by the prefetches of a step.
        let bytes = TILE_BYTES as i32 * parts / LINES_PER_STEP / 2;
        let distance = (bytes > LINE_BYTES as i32).then(|| {
            let distance = b.imm(i64::from(bytes));
            b.when(CompareOp::Ge, tiles, 4, |b| b.set_int_op(IntOp::Shr, distance, 1));
            distance
        });
        Some(AmxPanelPrefetch { next, end, distance })
    }

    /// Prefetches the share of one step.
    pub(super) fn advance(&self, b: &mut Builder) {
        b.when(CompareOp::Lt, self.next, self.end, |b| {
            let Some(distance) = self.distance else {
                for line in 0..LINES_PER_STEP as usize {
                    b.prefetch(Mem::from(self.next).plus(line * LINE_BYTES as usize));
                }
                return b.advance(self.next, LINES_PER_STEP * LINE_BYTES as i32);
            };
            for _ in 0..LINES_PER_STEP {
                b.prefetch(self.next);
                b.advance(self.next, distance);
            }
        });
    }
}
