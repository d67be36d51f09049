//! Jobs on all cores.

use crate::{error::Result, parallel};

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
    let threads = if work < MIN_WORK { 1 } else { parallel::cores() };
    parallel::map(jobs, threads, run).into_iter().collect()
}
