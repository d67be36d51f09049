//! Jobs on all cores.

use crate::error::{Error, Result};
use std::{
    sync::Mutex,
    thread::{self, available_parallelism},
};

/// Work below this runs on one thread, in multiplications: to start others would take as long.
const MIN_WORK: usize = 1 << 22;

/// Runs all jobs, which take as long together as `work` multiplications, on the cores of this machine. Which thread
/// runs a job must not matter.
///
/// # Errors
/// That of a job.
pub(super) fn run_jobs<J: Send>(
    work: usize,
    jobs: Vec<J>,
    run: impl Fn(J) -> Result<()> + Sync,
) -> Result<()> {
    let n_cores = available_parallelism().map_or(1, |cores| cores.get());
    let n_threads = if work < MIN_WORK { 1 } else { n_cores.min(jobs.len()) };
    if n_threads <= 1 {
        return jobs.into_iter().try_for_each(run);
    }
    let jobs = Mutex::new(jobs);
    let next = || jobs.lock().ok().and_then(|mut jobs| jobs.pop());
    let work = || {
        while let Some(job) = next() {
            run(job)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let panicked = |_| Error::internal("a thread of the evaluator panicked");
        others.into_iter().map(|other| other.join().map_err(panicked)?).fold(own, Result::and)
    })
}
