//! Prefetch of the panels of the next tile of columns, by tiles on vector registers.

use super::key::{PANEL, Rhs, TileKey};
use crate::{
    codegen::vector::{
        Builder,
        vcode::{Int, IntOp, Mem},
    },
    scalar::CompareOp,
    target::LINE_BYTES,
};

/// Smaller tiles read a large part of rhs for their work, and a prefetch would delay them.
const MIN_ROWS: u8 = 4;

/// Bytes between the elements that a single tile of rows reads and those that it prefetches, in all of its panels: as
/// many as memory delivers during its latency.
const AHEAD_BYTES: i32 = 4096;

/// Number of panels of `width` columns that a tile reads.
pub(super) fn n_panels(key: &TileKey, width: u32, lanes: usize) -> usize {
    (key.vectors as usize * lanes).div_ceil(width as usize)
}

/// The prefetch of the panels of the next tile of columns, or of the tile itself.
///
/// Each tile of rows prefetches a share of them, which spreads the memory traffic over the time of all these tiles. A
/// single one prefetches its own panels instead, [`AHEAD_BYTES`] ahead: two large panels might not fit the cache, and
/// the prefetchers of the machine alone are up to twice as slow.
#[derive(Clone, Copy)]
pub(super) struct PanelPrefetch {
    /// The next address to prefetch, in the first panel.
    next: Int,
    /// Unrolled iterations of the innermost loop until then.
    rounds: Int,
    /// Number of panels of a tile.
    panels: usize,
}

impl PanelPrefetch {
    /// `None` where the tile prefetches no panels.
    pub(super) fn new(b: &mut Builder, key: &TileKey, rhs: Int) -> Option<PanelPrefetch> {
        let Rhs::Panels(width) = key.rhs else { return None };
        if !key.prefetch_panels || key.rows < MIN_ROWS || key.tail {
            return None;
        }
        let panels = n_panels(key, width, b.lanes());
        let skipped = b.arg(TileKey::PREFETCH_SKIP);
        let ahead = AHEAD_BYTES / panels as i32 / LINE_BYTES as i32 * LINE_BYTES as i32;
        let next = b.int_op(IntOp::Add, rhs, ahead);
        b.when(CompareOp::Ge, skipped, 0, |b| {
            let stride = b.arg(TileKey::RHS_COLUMN);
            let skip = b.int_op(IntOp::Mul, stride, panels as i32);
            b.set_copy(next, rhs);
            b.advance(next, skip);
            b.advance(next, skipped);
        });

        Some(PanelPrefetch { next, rounds: b.arg(TileKey::PREFETCH_ROUNDS), panels })
    }

    /// Counts an unrolled iteration that reads `bytes` bytes of each panel. Every [`TileKey::PREFETCH_ROUNDS`] of
    /// them, it prefetches as much of the next panels.
    pub(super) fn advance(&self, b: &mut Builder, bytes: i32, offsets: &[Int]) {
        b.advance(self.rounds, -1);
        b.when(CompareOp::Le, self.rounds, 0, |b| {
            for line in (0..bytes as usize).step_by(LINE_BYTES as usize) {
                for panel in 0..self.panels {
                    b.prefetch(panel_mem(self.next, offsets, panel).plus(line));
                }
            }
            b.advance(self.next, bytes);
            let rounds = b.arg(TileKey::PREFETCH_ROUNDS);
            b.set_copy(self.rounds, rounds);
        });
    }
}

/// The prefetch of the panels of few bits that follow those of a tile: the panels of the next tile of columns.
///
/// A group of indices is a line of each panel. For each group that a tile reads, it prefetches as many lines. Tiles
/// that don't count scales and zero points leave the ends of the panels to the machine.
#[derive(Clone, Copy)]
pub(super) struct FollowingPrefetch {
    /// The next address to prefetch.
    next: Int,
    /// Number of panels of a tile.
    panels: usize,
}

impl FollowingPrefetch {
    /// `None` where the tile is a part of a panel. `rhs` is the address of its first panel.
    pub(super) fn new(b: &mut Builder, key: &TileKey, rhs: Int) -> Option<FollowingPrefetch> {
        let panels = usize::from(key.vectors) * b.lanes() / PANEL;
        if panels == 0 {
            return None;
        }
        let stride = b.arg(TileKey::RHS_COLUMN);
        let skip = b.int_op(IntOp::Mul, stride, panels as i32);
        Some(FollowingPrefetch { next: b.int_op(IntOp::Add, rhs, skip), panels })
    }

    /// Counts a group of indices.
    pub(super) fn advance(&self, b: &mut Builder) {
        self.advance_by(b, LINE_BYTES as usize);
    }

    /// Counts `bytes` bytes of each panel.
    pub(super) fn advance_by(&self, b: &mut Builder, bytes: usize) {
        let bytes = bytes * self.panels;
        for line in (0..bytes).step_by(LINE_BYTES as usize) {
            b.prefetch(Mem::from(self.next).plus(line));
        }
        b.advance(self.next, bytes as i32);
    }
}

/// `base + panel * stride`, given the odd multiples of the stride.
pub(super) fn panel_mem(base: Int, offsets: &[Int], panel: usize) -> Mem {
    if panel == 0 {
        return base.into();
    }
    let shift = panel.trailing_zeros();
    Mem { base, index: Some((offsets[(panel >> shift) / 2], 1 << shift)), disp: 0 }
}
