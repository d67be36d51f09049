//! The state of requests and lanes, protected by one lock.

use super::{layout::Accepted, rows::RowShapes};
use crate::TensorRef;
use std::{thread::Thread, time::Instant};

/// The state of all requests and lanes.
#[derive(Debug)]
pub(super) struct Queue {
    /// Number of requests that have arrived.
    pub(super) arrived: u64,
    /// Number of requests that have been admitted to a lane.
    pub(super) admitted: u64,
    pub(super) lanes: Vec<Progress>,
    /// The shape of the rows of each lane's batch.
    pub(super) shapes: Vec<RowShapes>,
    /// The threads that sleep until a batch of a lane is done, with the number of the batch.
    pub(super) sleepers: Vec<Vec<(u32, Thread)>>,
    pub(super) n_sleeping_workers: u32,
    /// Whether a worker polls for batches.
    pub(super) is_watched: bool,
    pub(super) is_stopping: bool,
}

impl Queue {
    /// An empty queue, with capacity for the largest number of sleepers for batches of `max_requests` requests.
    pub(super) fn new(n_lanes: usize, max_requests: usize, shapes: &RowShapes) -> Queue {
        let idle = Progress {
            phase: Phase::Open,
            batch: 0,
            rows: 0,
            max_rows: 0,
            sequences: 0,
            max_sequences: 0,
            n_filling: 0,
            n_tickets: 0,
            untaken: [0; 2],
            deadline: Instant::now(),
        };
        Queue {
            arrived: 0,
            admitted: 0,
            lanes: vec![idle; n_lanes],
            shapes: vec![shapes.clone(); n_lanes],
            sleepers: (0..n_lanes).map(|_| Vec::with_capacity(3 * max_requests)).collect(),
            n_sleeping_workers: 0,
            is_watched: false,
            is_stopping: false,
        }
    }

    /// Closes the lanes whose deadline is over, or all lanes with rows if the batcher stops.
    pub(super) fn close_lanes(&mut self, now: Instant) {
        for progress in &mut self.lanes {
            let is_due = self.is_stopping || progress.deadline <= now;
            if progress.phase == Phase::Open && !progress.is_empty() && is_due {
                progress.phase = Phase::Closed;
            }
        }
    }

    /// A lane whose batch has rows of this shape and space for more, the fullest first. A lane that lacks the space is
    /// closed, and counted in the second result.
    pub(super) fn join(&mut self, inputs: &[TensorRef<'_>], request: Accepted) -> (Option<usize>, usize) {
        let mut n_closed = 0;
        loop {
            let is_candidate = |lane: &usize| {
                let progress = &self.lanes[*lane];
                progress.phase == Phase::Open && !progress.is_empty() && self.shapes[*lane].matches(inputs)
            };
            let candidates = (0..self.lanes.len()).filter(is_candidate);
            let Some(lane) = candidates.max_by_key(|lane| self.lanes[*lane].rows) else {
                return (None, n_closed);
            };
            if self.lanes[lane].has_space_for(request) {
                return (Some(lane), n_closed);
            }
            self.lanes[lane].phase = Phase::Closed;
            n_closed += 1;
        }
    }

    /// An empty lane whose next results have memory.
    pub(super) fn empty_lane(&self) -> Option<usize> {
        self.lanes.iter().position(|progress| {
            let is_empty = progress.phase == Phase::Open && progress.is_empty();
            is_empty && progress.untaken[Progress::side(progress.batch)] == 0
        })
    }

    /// Takes the batch with the earliest deadline that is ready to run.
    pub(super) fn take_ready(&mut self) -> Option<ReadyBatch> {
        let is_ready = |lane: &usize| {
            let progress = &self.lanes[*lane];
            progress.phase == Phase::Closed && progress.n_filling == 0
        };
        let lane = (0..self.lanes.len()).filter(is_ready).min_by_key(|lane| self.lanes[*lane].deadline)?;

        let progress = &mut self.lanes[lane];
        progress.phase = Phase::Running;
        Some(ReadyBatch { lane, number: progress.batch })
    }

    /// The earliest deadline of an open lane with rows.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let open = self.lanes.iter().filter(|lane| lane.phase == Phase::Open && !lane.is_empty());
        open.map(|lane| lane.deadline).min()
    }
}

/// A batch that a worker must run.
pub(super) struct ReadyBatch {
    pub(super) lane: usize,
    /// The number of the batch in its lane.
    pub(super) number: u32,
}

/// The state of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// The number of the batch that is being filled or run.
    pub(super) batch: u32,
    pub(super) rows: usize,
    /// Largest number of rows of a batch whose rows have the shape of this batch.
    pub(super) max_rows: usize,
    /// The same for the sequences of a ragged batch. Their number is 0 in other batches.
    pub(super) sequences: usize,
    pub(super) max_sequences: usize,
    /// Number of admitted requests that are still copying their rows.
    pub(super) n_filling: u32,
    /// Number of tickets of this batch that exist.
    pub(super) n_tickets: u32,
    /// Number of tickets of the last even and the last odd batch that exist: their results are still needed.
    pub(super) untaken: [u32; 2],
    /// The latest time at which the lane closes.
    pub(super) deadline: Instant,
}

impl Progress {
    /// Whether the batch has no requests. A request of a ragged batch may have no rows, but has sequences.
    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0 && self.sequences == 0
    }

    /// Whether a request fits in the batch.
    fn has_space_for(&self, request: Accepted) -> bool {
        let rows = self.rows + request.rows;
        let sequences = self.sequences + request.sequences;
        rows <= self.max_rows && sequences <= self.max_sequences
    }

    /// Whether no other request fits in the batch.
    pub(super) fn is_full(&self) -> bool {
        self.rows == self.max_rows || (self.sequences > 0 && self.sequences == self.max_sequences)
    }

    /// The index of a batch's results: 0 for even batches, 1 for odd ones.
    pub(super) fn side(batch: u32) -> usize {
        (batch % 2) as usize
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Requests may join the batch.
    Open,
    /// The batch waits for a worker.
    Closed,
    Running,
}
