//! The key of a strip and the layout of its argument block.

use crate::codegen::microkernel::op::{Body, Op, StreamStep};

/// Most elements of a row whose loops are unrolled completely.
pub const MAX_SHORT_ROW: u32 = 64;

/// A stream: elements at a fixed distance from a pointer. Streams that move by the same steps share a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stream {
    /// Index of its pointer.
    pub pointer: u32,
    /// Bytes from the pointer.
    pub offset: i32,
}

/// One phase of a row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Code that runs once a row.
    Scalar(Body),
    /// A loop over the elements of the row.
    Loop {
        /// Index of the argument that is the number of elements.
        extent: u32,
        /// The code for one element.
        body: Body,
    },
}

impl Phase {
    /// Its code.
    pub(crate) fn body(&self) -> &Body {
        match self {
            Phase::Scalar(body) | Phase::Loop { body, .. } => body,
        }
    }
}

/// Everything that the code of a strip depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StripKey {
    /// Whether there is a row loop.
    pub rows: bool,
    /// The phases of a row, in order of execution.
    pub phases: Vec<Phase>,
    /// How each pointer moves from element to element.
    pub pointers: Vec<StreamStep>,
    /// How each pointer moves from row to row. A unit step is an element of 32 bits.
    pub row_steps: Vec<StreamStep>,
    /// The streams of all phases.
    pub streams: Vec<Stream>,
    /// Number of extent arguments.
    pub extents: u32,
    /// Number of scalar arguments.
    pub scalars: u32,
    /// Number of scalar variables.
    pub variables: u32,
    /// The variables that are stored to the argument block at the end. Strips with a row loop have none.
    pub results: Vec<u32>,
    /// Whether checks may fail.
    pub may_fail: bool,
    /// Whether each stream that is stored to is the only one of its buffer, so that the values that a row stores may
    /// stay in registers until it loads them.
    pub keeps_stored: bool,
    /// The number of elements of all loops, if it is a constant that is at most [`MAX_SHORT_ROW`].
    pub short_row: Option<u32>,
    /// The streams that each row loads and stores, whose elements are the same for all rows: the row that all rows are
    /// combined into. Nothing else of their buffers is accessed, and other buffers are not both read and written.
    pub accumulators: Vec<u32>,
    /// Whether code depends on the number of the iteration, see [`Op::Column`](super::super::op::Op::Column).
    pub counts: bool,
}

/// Slots of the argument block.
impl StripKey {
    /// Number of rows.
    pub const ROWS: usize = 0;

    /// An extent argument.
    pub fn extent(&self, extent: u32) -> usize {
        1 + extent as usize
    }

    /// The first of a pointer's three slots: its address, bytes from row to row, bytes from element to element.
    pub fn pointer(&self, pointer: u32) -> usize {
        1 + self.extents as usize + 3 * pointer as usize
    }

    /// A scalar argument, of which the low 32 bits count, or all 64 for a type of 64 bits.
    pub fn scalar(&self, scalar: u32) -> usize {
        self.pointer(self.pointers.len() as u32) + scalar as usize
    }

    /// A result, of which the strip writes the low 32 bits, or all 64 for a type of 64 bits.
    pub fn result(&self, result: usize) -> usize {
        self.scalar(self.scalars) + result
    }

    /// Whether a check failed: the strip writes zero if none did. Only if checks may fail.
    pub fn failed(&self) -> usize {
        self.result(self.results.len())
    }

    /// The number of the first iteration of each loop. Only if code depends on the number.
    pub fn first(&self) -> usize {
        self.failed() + usize::from(self.may_fail)
    }

    /// Length of the argument block.
    pub fn slots(&self) -> usize {
        self.first() + usize::from(self.counts)
    }

    /// The smallest offset of the streams of a pointer.
    pub(super) fn first_offset(&self, pointer: u32) -> i32 {
        let streams = self.streams.iter().filter(|stream| stream.pointer == pointer);
        streams.map(|stream| stream.offset).min().unwrap_or(0)
    }

    /// Whether a scalar variable has 64 bits.
    pub(super) fn is_wide(&self, var: u32) -> bool {
        let sets = |body: &Body, op: &Op| match op {
            Op::Set(other, x) | Op::Reduce(_, x, other) => *other == var && body.ty(*x).is_wide(),
            _ => false,
        };
        let mut bodies = self.phases.iter().map(Phase::body);
        bodies.any(|body| body.insts.iter().any(|(op, _)| sets(body, op)))
    }

    /// How a stream moves from row to row.
    pub(super) fn row_step(&self, stream: u32) -> StreamStep {
        self.row_steps[self.streams[stream as usize].pointer as usize]
    }

    /// How a stream moves from element to element.
    pub(super) fn step(&self, stream: u32) -> StreamStep {
        self.pointers[self.streams[stream as usize].pointer as usize]
    }
}
