//! Independent work on several threads, with results in order.

use std::{
    cmp::Reverse,
    num::NonZero,
    panic::resume_unwind,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, available_parallelism},
};

/// The stack of the thread of [`join`], as large as that of the first thread: terms and nested graphs may be deep.
const STACK_BYTES: usize = 8 << 20;

/// The stack of other threads of [`map`], as large as the standard library's.
const MAP_STACK_BYTES: usize = 2 << 20;

/// Pairs of functions that run at once, see [`join`].
static PAIRS: AtomicUsize = AtomicUsize::new(0);

/// The number of threads that a caller should run at once on this machine.
pub(crate) fn cores() -> usize {
    all_cores().saturating_sub(PAIRS.load(Ordering::Relaxed)).max(1)
}

/// The cores of this machine. The operating system reads several files to count them, so they are counted once.
fn all_cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| available_parallelism().map_or(1, NonZero::get))
}

/// The results of two functions that run at once, `second` on another thread. [`cores`] leaves a core to the other
/// function until one of them ends. On a machine with one core, or if the system has no more threads, `second` runs
/// before `first`.
pub(crate) fn join<A, B: Send>(first: impl FnOnce() -> A, second: impl FnOnce() -> B + Send) -> (A, B) {
    if all_cores() == 1 {
        let second = second();
        return (first(), second);
    }
    join_with(STACK_BYTES, first, second)
}

/// As [`join`], with a stack of this size for `second`.
fn join_with<A, B: Send>(
    stack_bytes: usize,
    first: impl FnOnce() -> A,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    // A thread that does not start drops its function, so `second` is not a part of that function.
    let second = Mutex::new(Some(second));
    let take = || second.lock().unwrap_or_else(PoisonError::into_inner).take();
    let is_paired = AtomicBool::new(true);
    PAIRS.fetch_add(1, Ordering::Relaxed);
    thread::scope(|scope| {
        let other = thread::Builder::new().stack_size(stack_bytes).spawn_scoped(scope, || {
            let _end = PairEnd(&is_paired);
            take().map(|second| second())
        });
        let Ok(other) = other else {
            drop(PairEnd(&is_paired));
            let second = take().map(|second| second());
            return (first(), second.expect("no thread took the function"));
        };
        let first = {
            let _end = PairEnd(&is_paired);
            first()
        };
        let second = other.join().unwrap_or_else(|panic| resume_unwind(panic));
        (first, second.expect("only the thread takes the function"))
    })
}

/// Ends a pair when the first of its functions ends, by a panic too.
struct PairEnd<'p>(&'p AtomicBool);

impl Drop for PairEnd<'_> {
    fn drop(&mut self) {
        if self.0.swap(false, Ordering::Relaxed) {
            PAIRS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// As [`map`], but large jobs start first, because a large one that starts last keeps one thread busy alone.
pub(crate) fn map_largest_first<J: Send, R: Send>(
    jobs: Vec<J>,
    threads: usize,
    size: impl Fn(&J) -> usize,
    work: impl Fn(J) -> R + Sync,
) -> Vec<R> {
    let mut jobs: Vec<(usize, J)> = jobs.into_iter().enumerate().collect();
    jobs.sort_by_key(|(_, job)| Reverse(size(job)));
    let mut results = map(jobs, threads, |(idx, job)| (idx, work(job)));
    results.sort_unstable_by_key(|(idx, _)| *idx);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The results of `work` for all jobs, in their order, on at most `threads` threads. Each takes the next job that no
/// other has, so the order of the work differs from run to run. There are fewer threads if the system has no more.
pub(crate) fn map<J: Send, R: Send>(jobs: Vec<J>, threads: usize, work: impl Fn(J) -> R + Sync) -> Vec<R> {
    map_with(MAP_STACK_BYTES, jobs, threads, work)
}

/// As [`map`], with a stack of this size for each other thread.
fn map_with<J: Send, R: Send>(
    stack_bytes: usize,
    jobs: Vec<J>,
    threads: usize,
    work: impl Fn(J) -> R + Sync,
) -> Vec<R> {
    let n_jobs = jobs.len();
    let others = threads.min(n_jobs).saturating_sub(1);
    if others == 0 {
        return jobs.into_iter().map(work).collect();
    }

    let jobs = Mutex::new(jobs.into_iter().enumerate());
    // A panic of another thread is resumed below, so the state of the iterator does not matter.
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        let mut results = Vec::new();
        while let Some((idx, job)) = next() {
            results.push((idx, work(job)));
        }
        results
    };
    let mut results = thread::scope(|scope| {
        let start = |_| thread::Builder::new().stack_size(stack_bytes).spawn_scoped(scope, run).ok();
        let others: Vec<_> = (0..others).map_while(start).collect();
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
    fn large_jobs_start_first() {
        let started = Mutex::new(Vec::new());
        let work = |job: usize| {
            started.lock().expect("no panic").push(job);
            10 * job
        };
        assert_eq!(map_largest_first(vec![2, 5, 1, 4], 1, |job| *job, work), [20, 50, 10, 40]);
        assert_eq!(started.into_inner().expect("no panic"), [5, 4, 2, 1]);
    }

    #[test]
    fn both_functions_end_before_the_results_are_returned() {
        let results = join(|| map(vec![1, 2, 3], cores(), |job| job + 1), || "second");
        assert_eq!(results, (vec![2, 3, 4], "second"));
    }

    /// A stack that no system has.
    const NO_STACK: usize = usize::MAX / 4;

    #[test]
    fn the_calling_thread_runs_both_functions_if_no_thread_starts() {
        let caller = thread::current().id();
        let id = || thread::current().id();
        assert_eq!(join_with(NO_STACK, || (1, id()), || (2, id())), ((1, caller), (2, caller)));
    }

    #[test]
    fn the_calling_thread_runs_all_jobs_if_no_thread_starts() {
        let caller = thread::current().id();
        let results = map_with(NO_STACK, vec![1, 2, 3], 4, |job| (job + 1, thread::current().id()));
        assert_eq!(results, [(2, caller), (3, caller), (4, caller)]);
    }

    #[test]
    #[should_panic(expected = "the second of two")]
    fn a_panic_of_the_second_function_reaches_the_caller() {
        join(|| (), || panic!("the second of two"));
    }

    #[test]
    #[should_panic(expected = "job 7")]
    fn a_panic_reaches_the_caller() {
        map((0..20).collect(), 3, |job| assert_ne!(job, 7, "job 7"));
    }
}
