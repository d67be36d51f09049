//! Calls on one thread that are divided as for several, with the time of each share.
//!
//! A call asks its host to run the shares of a kernel at once. The host of a rehearsal offers any number of threads,
//! and runs the shares one after another on the calling thread. So it shows how evenly that number of cores would be
//! used, on a machine that has fewer.

use crate::abi::{Exec, Task};
use core::ffi::c_void;
use std::{time::Instant, vec::Vec};

/// Work that a call divided among threads: the shares of one kernel, or of one part of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Round {
    /// When the first share began.
    pub start: Instant,
    /// The time of each share in nanoseconds. There are at most as many shares as threads.
    pub shares_ns: Vec<f64>,
}

/// The host of a rehearsal.
pub(crate) struct Rehearsal {
    threads: u32,
    rounds: Vec<Round>,
}

impl Rehearsal {
    pub(crate) fn new(threads: u32) -> Rehearsal {
        Rehearsal { threads, rounds: Vec::new() }
    }

    /// The rounds since the last time that they were taken.
    pub(crate) fn take_rounds(&mut self) -> Vec<Round> {
        core::mem::take(&mut self.rounds)
    }

    /// Runs a call whose rounds are recorded. It has the address of the list, so this must not move before it ends.
    pub(crate) fn exec(&mut self) -> Exec {
        Exec {
            host: (&raw mut self.rounds).cast(),
            threads: self.threads,
            policy: 0,
            parallel_for: Some(run_one_by_one),
            error: core::ptr::null_mut(),
        }
    }
}

/// The `parallel_for` of [`Exec`]; `host` is a list of rounds.
unsafe extern "C" fn run_one_by_one(host: *mut c_void, count: i64, task: Task, data: *mut c_void) {
    let mut round = Round { start: Instant::now(), shares_ns: Vec::new() };
    for share in 0..count {
        let start = Instant::now();
        // SAFETY: a task may run on each of the ranges, which are disjoint and cover the count. Compiled code divides
        // work into at most one share for each thread, so worker ids are below the number of threads.
        unsafe { task(data, share, share + 1, share as u32) };
        round.shares_ns.push(start.elapsed().as_nanos() as f64);
    }
    // SAFETY: `Rehearsal::exec` passes its list. The context is borrowed and doesn't move during the call, and tasks
    // don't know the list.
    unsafe { &mut *host.cast::<Vec<Round>>() }.push(round);
}
