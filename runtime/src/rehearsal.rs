//! Calls on one thread that are divided as for several, with the time of each range of iterations.
//!
//! A call asks its host to run a kernel on several threads. The host of a rehearsal offers any number of threads, and
//! runs the ranges that they would claim one after another on the calling thread. So it shows how evenly that number
//! of cores would be used, on a machine that has fewer.

use crate::{
    abi::{Exec, Task},
    claims::{Left, iterations, own_units, units},
};
use core::ffi::c_void;
use std::{time::Instant, vec, vec::Vec};

/// Work that a call divided among threads: one kernel, or one part of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Round {
    /// When the first range of iterations began.
    pub start: Instant,
    /// For each thread, the times in nanoseconds of the ranges that it claims of its own part, in their order.
    pub parts_ns: Vec<Vec<f64>>,
}

impl Round {
    /// The time until the last thread is done, if all begin at once. A thread that has finished its part takes ranges
    /// from the ends of other parts, as the threads of a context do.
    pub fn longest_ns(&self) -> f64 {
        let n_threads = self.parts_ns.len();
        let mut left: Vec<&[f64]> = self.parts_ns.iter().map(Vec::as_slice).collect();
        let mut busy_ns = vec![0.0; n_threads];
        loop {
            let earliest = (0..n_threads).min_by(|a, b| f64::total_cmp(&busy_ns[*a], &busy_ns[*b]));
            let Some(thread) = earliest else { return 0.0 };
            let owners = (0..n_threads).map(|offset| (thread + offset) % n_threads);
            let Some(owner) = owners.into_iter().find(|owner| !left[*owner].is_empty()) else {
                return busy_ns.into_iter().fold(0.0, f64::max);
            };
            let part = left[owner];
            let claimed = if owner == thread { part.split_first() } else { part.split_last() };
            if let Some((ns, rest)) = claimed {
                busy_ns[thread] += ns;
                left[owner] = rest;
            }
        }
    }
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
            host: (&raw mut *self).cast(),
            threads: self.threads,
            policy: 0,
            parallel_for: Some(run_one_by_one),
            error: core::ptr::null_mut(),
        }
    }
}

/// The `parallel_for` of [`Exec`]; `host` is a [`Rehearsal`].
unsafe extern "C" fn run_one_by_one(host: *mut c_void, count: i64, task: Task, data: *mut c_void) {
    // SAFETY: `Rehearsal::exec` passes itself. The context is borrowed and doesn't move during the call, and tasks
    // don't know the rehearsal.
    let rehearsal = unsafe { &mut *host.cast::<Rehearsal>() };
    let threads = rehearsal.threads as usize;
    let units = units(count, threads);
    let mut round = Round { start: Instant::now(), parts_ns: Vec::with_capacity(threads) };
    for thread in 0..threads {
        let own = own_units(units, thread, threads);
        let mut part_ns = Vec::new();
        let mut left = Left::ALL;
        while let Some((claimed, after)) = left.claim(&own, true) {
            left = after;
            let range = iterations(&claimed, units, count);
            let start = Instant::now();
            // SAFETY: a task may run on each of the ranges, which are disjoint and cover the count. Threads have the
            // ids below their number.
            unsafe { task(data, range.start, range.end, thread as u32) };
            part_ns.push(start.elapsed().as_nanos() as f64);
        }
        round.parts_ns.push(part_ns);
    }
    rehearsal.rounds.push(round);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_without_work_take_the_last_ranges_of_others() {
        let longest = |parts_ns: &[&[f64]]| {
            let parts_ns = parts_ns.iter().map(|part| part.to_vec()).collect();
            Round { start: Instant::now(), parts_ns }.longest_ns()
        };
        assert_eq!(longest(&[]), 0.0);
        assert_eq!(longest(&[&[], &[]]), 0.0);
        assert_eq!(longest(&[&[4.0, 2.0, 1.0], &[4.0, 2.0, 1.0]]), 7.0);
        // The second thread is done at 3, and takes the 1 and the 2 of the first one.
        assert_eq!(longest(&[&[4.0, 2.0, 1.0], &[3.0]]), 6.0);
        assert_eq!(longest(&[&[10.0], &[1.0], &[1.0]]), 10.0);
    }
}
