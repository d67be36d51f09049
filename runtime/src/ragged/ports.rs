//! How the tensors of a ragged call are divided among its sequences, and where their rows are in padded tensors.

use crate::{Model, RaggedInfo, TensorInfo};
#[cfg(test)]
use alloc::vec::Vec;
use core::ops::Range;

/// The part of a sequence in a tensor of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Rows along `axis`. The padded tensor has the sequences as its axis `sequences`; without it, all sequences have
    /// the same rows there, such as positions.
    Rows { axis: usize, sequences: Option<usize> },
    /// One item along `axis`.
    Item { axis: usize },
    /// All of it.
    Shared,
    /// It holds the first row of each sequence.
    Offsets,
}

impl Part {
    /// The part of a sequence in input `idx`.
    pub(crate) fn of_input(model: &Model, ragged: &RaggedInfo, idx: usize) -> Part {
        if idx == ragged.offsets() {
            return Part::Offsets;
        }
        Part::of(model, ragged, &model.inputs()[idx], ragged.input_batch_axes()[idx])
    }

    /// The part of a sequence in output `idx`.
    pub(crate) fn of_output(model: &Model, ragged: &RaggedInfo, idx: usize) -> Part {
        Part::of(model, ragged, &model.outputs()[idx], ragged.output_batch_axes()[idx])
    }

    fn of(model: &Model, ragged: &RaggedInfo, info: &TensorInfo, sequences: Option<usize>) -> Part {
        let axis_of = |symbol: usize| {
            let name = model.symbols()[symbol].name();
            info.dims().iter().position(|dim| dim == name)
        };
        match (axis_of(ragged.rows()), axis_of(ragged.sequences())) {
            (Some(axis), _) => Part::Rows { axis, sequences },
            (None, Some(axis)) => Part::Item { axis },
            (None, None) => Part::Shared,
        }
    }
}

/// The rows of a padded tensor, where each row is several runs of adjacent bytes.
///
/// Axes before those of sequences and positions have the size 1, because the rows of a ragged call are adjacent.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaddedRows {
    /// Distance of a sequence, a position and a run from the one before, in runs.
    sequence: usize,
    position: usize,
    run: usize,
    /// Number of runs of a row.
    runs: usize,
    run_bytes: usize,
}

impl PaddedRows {
    /// The rows of a tensor of this padded shape, which are the axis `axis` of a ragged call.
    pub(super) fn new(
        shape: &[usize],
        elem_bytes: usize,
        axis: usize,
        sequences: Option<usize>,
    ) -> PaddedRows {
        let bytes_after = |axis: usize| shape[axis + 1..].iter().product::<usize>() * elem_bytes;
        let Some(sequences) = sequences else {
            return PaddedRows { sequence: 0, position: 1, run: 1, runs: 1, run_bytes: bytes_after(axis) };
        };

        let positions = positions_axis(axis, Some(sequences));
        if sequences < positions {
            let run_bytes = bytes_after(positions);
            return PaddedRows { sequence: shape[positions], position: 1, run: 1, runs: 1, run_bytes };
        }
        let runs = shape[positions + 1..sequences].iter().product();
        let run = shape[sequences];
        PaddedRows { sequence: 1, position: runs * run, run, runs, run_bytes: bytes_after(sequences) }
    }

    /// Bytes of a row.
    pub(super) fn row_bytes(&self) -> usize {
        self.runs * self.run_bytes
    }

    /// The bytes of a run of a row.
    fn place(&self, sequence: usize, position: usize, run: usize) -> Range<usize> {
        let index = sequence * self.sequence + position * self.position + run * self.run;
        index * self.run_bytes..(index + 1) * self.run_bytes
    }

    /// Copies the rows `span` of a sequence of `padded` to `rows`.
    pub(super) fn gather(&self, padded: &[u8], sequence: usize, span: &Range<usize>, rows: &mut [u8]) {
        self.each(sequence, span, |place, run| rows[run].copy_from_slice(&padded[place]));
    }

    /// Copies `rows` to the rows `span` of a sequence of `padded`.
    pub(super) fn scatter(&self, rows: &[u8], sequence: usize, span: &Range<usize>, padded: &mut [u8]) {
        self.each(sequence, span, |place, run| padded[place].copy_from_slice(&rows[run]));
    }

    /// Calls `copy` for adjacent bytes: their place in the padded tensor, and in the rows of the sequence.
    fn each(&self, sequence: usize, span: &Range<usize>, mut copy: impl FnMut(Range<usize>, Range<usize>)) {
        if self.position == 1 && self.runs == 1 {
            // All rows of the sequence are adjacent.
            let first = self.place(sequence, span.start, 0).start;
            let bytes = span.len() * self.run_bytes;
            return copy(first..first + bytes, 0..bytes);
        }
        for (row, position) in span.clone().enumerate() {
            for run in 0..self.runs {
                let at = row * self.row_bytes() + run * self.run_bytes;
                copy(self.place(sequence, position, run), at..at + self.run_bytes);
            }
        }
    }
}

/// The axis of positions in a padded tensor, whose rows are the axis `axis` of a ragged call.
pub(super) fn positions_axis(axis: usize, sequences: Option<usize>) -> usize {
    if sequences.is_some_and(|sequences| sequences <= axis) { axis + 1 } else { axis }
}

/// The bytes of an item of `tensor` along `axis`. Axes before it have the size 1.
pub(super) fn item_bytes(shape: &[usize], elem_bytes: usize, axis: usize) -> usize {
    shape[axis + 1..].iter().product::<usize>() * elem_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of a padded tensor of this shape whose elements are their own indices.
    fn rows(
        shape: &[usize],
        axis: usize,
        sequences: Option<usize>,
        sequence: usize,
        span: Range<usize>,
    ) -> Vec<u8> {
        let padded: Vec<u8> = (0..shape.iter().product::<usize>()).map(|byte| byte as u8).collect();
        let places = PaddedRows::new(shape, 1, axis, sequences);
        let mut rows = alloc::vec![0; span.len() * places.row_bytes()];
        places.gather(&padded, sequence, &span, &mut rows);

        let mut back = alloc::vec![255; padded.len()];
        places.scatter(&rows, sequence, &span, &mut back);
        let kept = back.iter().zip(&padded).filter(|(back, _)| **back != 255);
        assert_eq!(kept.clone().count(), rows.len());
        kept.for_each(|(back, padded)| assert_eq!(back, padded));
        rows
    }

    #[test]
    fn rows_are_found_wherever_the_sequences_are() {
        // [2 sequences, 4 positions, 3]
        assert_eq!(rows(&[2, 4, 3], 0, Some(0), 1, 1..3), [15, 16, 17, 18, 19, 20]);
        // [4 positions, 2 sequences, 3]
        assert_eq!(rows(&[4, 2, 3], 0, Some(1), 1, 1..3), [9, 10, 11, 15, 16, 17]);
        // [4 positions, 3, 2 sequences]
        assert_eq!(rows(&[4, 3, 2], 0, Some(2), 1, 1..3), [7, 9, 11, 13, 15, 17]);
        // [2 sequences, 1, 4 positions]
        assert_eq!(rows(&[2, 1, 4], 1, Some(0), 1, 0..4), [4, 5, 6, 7]);
        // [1, 4 positions] of all sequences
        assert_eq!(rows(&[1, 4], 1, None, 1, 1..3), [1, 2]);
    }
}
