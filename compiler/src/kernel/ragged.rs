//! Ragged batches: which kernels run once over the rows of all sequences, and which run once for each sequence.
//!
//! A ragged call has `sequences` sequences, and their rows follow each other in memory. A *row* is one position along
//! the length of a sequence, and `rows` is their number in the call. A kernel runs in one of two ways:
//!
//! - *per row*: once, where the length is the number of all rows. The row `r` of every buffer that it accesses depends
//!   on nothing but row `r`.
//! - *per sequence*: once for each sequence, with the sequence's length, and with addresses that are moved to the
//!   sequence's part of each buffer. It runs exactly as in a call with this sequence alone.

use super::{Axis, BufferId};
use std::{collections::BTreeMap, ops::Range};
use symshape::{Dim, Symbol};

/// How a program runs on a ragged batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ragged {
    /// The length of one sequence. Only kernels in `groups` use it.
    pub length: Symbol,
    /// The number of sequences, one of the program's symbols.
    pub sequences: Symbol,
    /// The number of rows of all sequences, one of the program's symbols.
    pub rows: Symbol,
    /// A loop over all rows.
    pub row_axis: Axis,
    /// Index of the input that holds the first row of each sequence, and the number of rows: `i64[sequences + 1]`.
    pub offsets: u32,
    /// Kernels that run per sequence: each range as a whole for one sequence, then for the next one.
    pub groups: Vec<Range<usize>>,
    /// For each kernel in `groups`, why it does not run once for all rows.
    pub reasons: BTreeMap<usize, String>,
    /// The parts of buffers that belong to one sequence. All other buffers have one part for all sequences.
    pub parts: BTreeMap<BufferId, SequencePart>,
    /// The padded model, for callers that have its tensors.
    pub padded: PaddedPorts,
}

/// How the ports of the padded model differ from those of a ragged call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PaddedPorts {
    /// The name of the mask, which is not an input of a ragged call.
    pub mask: Option<String>,
    /// The name of the input that is the length of each sequence, which is not an input of a ragged call either.
    pub lengths: Option<String>,
    /// For each input and then for each output of a ragged call: the axis of the batch in the padded model; `None` if
    /// the port has no rows.
    pub batch_axes: Vec<Option<usize>>,
}

/// The part of a buffer that belongs to one sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SequencePart {
    /// The sequence's rows, of so many elements each.
    Rows(Dim),
    /// So many elements for each sequence, whatever its length.
    Sequence(Dim),
}

impl Ragged {
    /// The group that a kernel belongs to, if it runs per sequence.
    pub fn group_of(&self, kernel: usize) -> Option<&Range<usize>> {
        self.groups.iter().find(|group| group.contains(&kernel))
    }

    /// Whether this kernel and the next one belong to one group.
    pub fn joins_next(&self, kernel: usize) -> bool {
        self.group_of(kernel).is_some_and(|group| kernel + 1 < group.end)
    }
}
