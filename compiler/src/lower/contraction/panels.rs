//! Panels of a constant, which are copied from the constant when they are read.

use crate::{
    parallel,
    tensor::{Computation, Tensor},
};

/// The number of columns of a packed panel, a whole number of vectors on every target.
pub(super) const PANEL_WIDTH: u32 = 16;

/// The same for indices.
const LANES: usize = PANEL_WIDTH as usize;

/// The size of panels that several threads copy.
const MIN_SHARED_BYTES: usize = 1 << 20;

/// The panels of all blocks of columns. Missing columns of a last panel are zero.
pub(super) struct Panels {
    source: Tensor,
    /// Offsets of the columns in the source, in elements.
    columns: Vec<usize>,
    /// Offsets of the points of the reduction.
    k: Vec<usize>,
    /// Columns of each block.
    block_columns: usize,
}

impl Panels {
    /// The panels in blocks of `block_columns` columns, from the offsets of the columns and of the points of the
    /// reduction. `None` if the constant has no element at an offset.
    pub(super) fn new(source: Tensor, columns: &[i64], k: &[i64], block_columns: usize) -> Option<Panels> {
        let n_blocks = columns.len().checked_div(block_columns).unwrap_or(0);
        let index = |offset: &i64| usize::try_from(*offset).ok();
        let columns: Vec<usize> =
            columns[..n_blocks * block_columns].iter().map(index).collect::<Option<_>>()?;
        let k: Vec<usize> = k.iter().map(index).collect::<Option<_>>()?;
        let is_inside = match (columns.iter().max(), k.iter().max()) {
            (Some(column), Some(k)) => column + k < source.elems(),
            _ => true,
        };
        let has_size = matches!(source.dtype().size_bytes(), 1 | 2 | 4 | 8);
        (is_inside && has_size).then_some(Panels { source, columns, k, block_columns })
    }

    /// Elements of the panels of one block.
    pub(super) fn block_elems(&self) -> usize {
        self.block_panels() * self.panel_elems()
    }

    fn block_panels(&self) -> usize {
        self.block_columns.div_ceil(LANES)
    }

    fn panel_elems(&self) -> usize {
        self.k.len() * LANES
    }

    /// The offsets of the columns of a panel.
    fn lanes(&self, panel: usize) -> &[usize] {
        let block = panel / self.block_panels() * self.block_columns;
        let first = panel % self.block_panels() * LANES;
        let end = (first + LANES).min(self.block_columns);
        &self.columns[block + first..block + end]
    }

    /// Copies adjacent panels, the first one with the index `first`. All cores copy large panels.
    fn copy_all<const SIZE: usize>(&self, first: usize, out: &mut [u8]) {
        let bytes = self.source.bytes();
        let elems = bytes.as_chunks::<SIZE>().0;
        let threads = if out.len() < MIN_SHARED_BYTES { 1 } else { parallel::cores() };
        let panel_bytes = self.panel_elems() * SIZE;
        let share = (out.len() / panel_bytes).div_ceil(threads).max(1);
        let shares = out.chunks_mut(share * panel_bytes).enumerate().collect();
        parallel::map(shares, threads, |(idx, panels)| {
            self.copy(elems, first + idx * share, panels.as_chunks_mut::<SIZE>().0);
        });
    }

    /// Copies adjacent panels. A few rows of all panels are copied before the next rows, so that neighbours in the
    /// source are read together.
    fn copy<const SIZE: usize>(&self, elems: &[[u8; SIZE]], first: usize, out: &mut [[u8; SIZE]]) {
        const ROWS: usize = 64;
        for (chunk, ks) in self.k.chunks(ROWS).enumerate() {
            let panels = out.chunks_exact_mut(self.panel_elems());
            for (panel, idx) in panels.zip(first..) {
                copy_rows(elems, self.lanes(idx), ks, &mut panel[chunk * ROWS * LANES..]);
            }
        }
    }
}

impl Computation for Panels {
    fn len(&self) -> usize {
        let n_blocks = self.columns.len().checked_div(self.block_columns).unwrap_or(0);
        n_blocks * self.block_elems() * self.source.dtype().size_bytes()
    }

    fn unit_bytes(&self) -> usize {
        self.panel_elems() * self.source.dtype().size_bytes()
    }

    fn compute(&self, unit: usize, out: &mut [u8]) {
        match self.source.dtype().size_bytes() {
            1 => self.copy_all::<1>(unit, out),
            2 => self.copy_all::<2>(unit, out),
            4 => self.copy_all::<4>(unit, out),
            _ => self.copy_all::<8>(unit, out),
        }
    }

    fn head(&self) -> Vec<u8> {
        let size = self.source.dtype().size_bytes();
        let (Some(k), false) = (self.k.first(), self.columns.is_empty()) else { return Vec::new() };
        let bytes = self.source.bytes();
        let lanes = self.lanes(0).iter();
        lanes.flat_map(|lane| &bytes[(lane + k) * size..(lane + k + 1) * size]).copied().collect()
    }

    fn release(&self) {
        self.source.release();
    }
}

/// Copies a row of a panel for each of `ks`: the elements at the offsets `lanes`, all moved by `k`.
fn copy_rows<const SIZE: usize>(
    elems: &[[u8; SIZE]],
    lanes: &[usize],
    ks: &[usize],
    panel: &mut [[u8; SIZE]],
) {
    let first = lanes[0];
    let is_run = lanes.iter().zip(first..).all(|(lane, at)| *lane == at);
    for (row, k) in panel.chunks_exact_mut(LANES).zip(ks) {
        let (row, missing) = row.split_at_mut(lanes.len());
        missing.fill([0; SIZE]);
        if is_run {
            row.copy_from_slice(&elems[first + k..first + k + lanes.len()]);
            continue;
        }
        for (slot, lane) in row.iter_mut().zip(lanes) {
            *slot = elems[lane + k];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_panels_are_those_of_all_panels() {
        // Two blocks of 19 columns, with 70 points of the reduction. Columns are adjacent in the first case.
        for (column, k) in [(1, 38), (70, 1)] {
            let floats: Vec<f32> = (0..38 * 70).map(|at| at as f32).collect();
            let source = Tensor::from_f32(vec![38 * 70], &floats).expect("floats");
            let columns: Vec<usize> = (0..38).map(|at| at * column).collect();
            let ks: Vec<usize> = (0..70).map(|at| at * k).collect();
            let panels = Panels { source, columns: columns.clone(), k: ks.clone(), block_columns: 19 };

            let mut expected: Vec<u8> = Vec::new();
            for block in columns.chunks(19) {
                for lanes in block.chunks(LANES) {
                    for k in &ks {
                        let row = (0..LANES).map(|lane| lanes.get(lane).map_or(0.0, |lane| floats[lane + k]));
                        expected.extend(row.flat_map(f32::to_le_bytes));
                    }
                }
            }

            let unit = panels.unit_bytes();
            assert_eq!(panels.len(), expected.len());
            assert_eq!(expected.len(), 4 * unit);
            assert!(expected.starts_with(&panels.head()));
            for first in 0..4 {
                for end in first + 1..=4 {
                    let mut out = vec![0xff; (end - first) * unit];
                    panels.compute(first, &mut out);
                    assert_eq!(out, expected[first * unit..end * unit], "panels {first}..{end}");
                }
            }
        }
    }

    #[test]
    fn offsets_outside_of_the_constant_are_refused() {
        let tensor = Tensor::from_f32(vec![6], &[0.0; 6]).expect("floats");
        let panels = |first: i64, k: i64| Panels::new(tensor.clone(), &[first, first + 1], &[0, k], 2);
        assert!(panels(0, 4).is_some());
        assert!(panels(1, 4).is_none());
        assert!(panels(-1, 4).is_none());
        assert!(panels(1, -1).is_none());
    }
}
