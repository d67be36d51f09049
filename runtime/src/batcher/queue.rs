//! What is known about requests and lanes, behind one lock.

use std::{thread::Thread, time::Instant};

/// Batches that are filled or run at the same time.
pub(super) const LANES: usize = 4;

#[derive(Debug)]
pub(super) struct Queue {
    /// Requests that came, and those of them that have a place.
    pub(super) arrived: u64,
    pub(super) admitted: u64,
    pub(super) lanes: [Progress; LANES],
    /// Who sleeps until a batch of a lane is done.
    pub(super) sleepers: [Vec<(u32, Thread)>; LANES],
    pub(super) sleeping_workers: u32,
    /// A worker looks for batches.
    pub(super) is_watched: bool,
    pub(super) stopping: bool,
}

impl Queue {
    /// Nothing came yet; there is room to note as many sleepers as batches of so many rows can have.
    pub(super) fn new(max_rows: usize) -> Queue {
        let idle = Progress {
            phase: Phase::Open,
            batch: 0,
            rows: 0,
            filling: 0,
            tickets: 0,
            left: [0; 2],
            due: Instant::now(),
        };
        Queue {
            arrived: 0,
            admitted: 0,
            lanes: [idle; LANES],
            sleepers: [(); LANES].map(|()| Vec::with_capacity(3 * max_rows)),
            sleeping_workers: 0,
            is_watched: false,
            stopping: false,
        }
    }
}

/// How far a lane is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// The number of the batch that is filled or run.
    pub(super) batch: u32,
    pub(super) rows: usize,
    /// Requests that have a place and still copy their rows.
    pub(super) filling: u32,
    /// Requests of this batch that were not given up.
    pub(super) tickets: u32,
    /// Requests of the last even and the last odd batch whose results were neither taken nor given up.
    pub(super) left: [u32; 2],
    /// When it is closed at the latest.
    pub(super) due: Instant,
}

impl Progress {
    /// Where results of a batch lie, even or odd.
    pub(super) fn side(batch: u32) -> usize {
        (batch % 2) as usize
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Open,
    Closed,
    Running,
}
