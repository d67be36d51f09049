//! Independent work on several threads, with results in order.

use std::{
    num::NonZero,
    panic::resume_unwind,
    sync::Mutex,
    thread::{self, available_parallelism},
};

/// The number of threads that run at once on this machine.
pub(crate) fn cores() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// The results of `work` for all jobs, in their order, on at most `threads` threads. Each takes the next job that no
/// other has, so the order of the work differs from run to run.
pub(crate) fn map<J: Send, R: Send>(jobs: Vec<J>, threads: usize, work: impl Fn(J) -> R + Sync) -> Vec<R> {
    let n_jobs = jobs.len();
    let others = threads.min(n_jobs).saturating_sub(1);
    if others == 0 {
        return jobs.into_iter().map(work).collect();
    }

    let jobs = Mutex::new(jobs.into_iter().enumerate());
    // A panic of another thread is resumed below, so the state of the iterator does not matter.
    let next = || jobs.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
    let run = || {
        let mut results = Vec::new();
        while let Some((idx, job)) = next() {
            results.push((idx, work(job)));
        }
        results
    };
    let mut results = thread::scope(|scope| {
        let others: Vec<_> = (0..others).map(|_| scope.spawn(run)).collect();
        let mut results = run();
        for other in others {
            results.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        results
    });
    results.sort_unstable_by_key(|(idx, _)| *idx);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_jobs() {
        for threads in [0, 1, 2, 3, 9] {
            let jobs: Vec<u64> = (0..100).collect();
            // The first jobs take longest, so later ones finish before them.
            let squares = map(jobs, threads, |job| {
                thread::sleep(std::time::Duration::from_micros(100 - job));
                job * job
            });
            let expected: Vec<u64> = (0..100).map(|job| job * job).collect();
            assert_eq!(squares, expected, "{threads} threads");
        }
        assert!(map(Vec::<u8>::new(), 4, |job| job).is_empty());
    }

    #[test]
    #[should_panic(expected = "job 7")]
    fn a_panic_reaches_the_caller() {
        map((0..20).collect(), 3, |job| assert_ne!(job, 7, "job 7"));
    }
}
