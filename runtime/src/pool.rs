//! How a call is spread over threads.
//!
//! A [`Pool`] belongs to one context. Its threads wait for rounds of work: they spin for a while, since the kernels of
//! a call follow one another within microseconds, and then park, so that an idle model costs nothing. Starting a round
//! neither allocates nor locks; it enters the kernel only to wake a thread that parked.
//!
//! A round is cut into one share for each thread, always at the same places. Thread `t` runs share `t`, so that it
//! finds in its cache what it wrote in the round before; whoever has nothing left to do runs shares that nobody has
//! begun, so that a round never waits for a thread to wake up.

use crate::abi::Exec;
#[cfg(feature = "std")]
use crate::abi::Task;
#[cfg(feature = "std")]
use core::{
    cell::UnsafeCell,
    ffi::c_void,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};
#[cfg(feature = "std")]
use std::{
    sync::Arc,
    thread::{self, JoinHandle},
};

/// Runs everything on the calling thread.
pub(crate) const SERIAL: Exec = Exec {
    host: core::ptr::null_mut(),
    threads: 1,
    policy: 0,
    parallel_for: None,
    error: core::ptr::null_mut(),
};

/// Rounds of spinning before a thread parks: some 100 microseconds, longer than a call spends between two kernels.
#[cfg(feature = "std")]
const SPINS: u32 = if cfg!(miri) { 10 } else { 20_000 };

/// Rounds of spinning for the last share before the caller lets other threads have its core.
#[cfg(feature = "std")]
const SPINS_AT_END: u32 = if cfg!(miri) { 10 } else { 100_000 };

/// Threads that run calls together with the one that calls.
#[cfg(feature = "std")]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What is run in a round: iterations `0..count` of `task`.
#[cfg(feature = "std")]
#[derive(Clone, Copy)]
struct Job {
    count: i64,
    task: Option<Task>,
    data: *mut c_void,
}

/// One thread's place, in cache lines of its own.
#[cfg(feature = "std")]
#[repr(align(128))]
struct Seat {
    /// The last round whose share of this seat somebody has begun; goes up by one each round.
    begun: AtomicU64,
    /// The last round whose share of this seat is done.
    done: AtomicU64,
    /// The thread is about to park, or has.
    sleeps: AtomicBool,
}

#[cfg(feature = "std")]
#[repr(align(128))]
struct Shared {
    /// Number of the round, written by the caller only.
    round: AtomicU64,
    /// Threads that have begun to wait.
    ready: AtomicU64,
    ends: AtomicBool,
    job: UnsafeCell<Job>,
    seats: Vec<Seat>,
    /// The handles of the threads of seats 1.., to wake them with.
    wake: UnsafeCell<Vec<thread::Thread>>,
}

// SAFETY: `job` is written by the caller between rounds only, when every share of the last one is done, and read by
// whoever has begun a share, which the next write waits for; `wake` is written before the first round and never again
// while threads run. What `Job::data` points to is the compiled code's frame, made to be shared by its tasks.
#[cfg(feature = "std")]
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it belongs to a thread.
#[cfg(feature = "std")]
unsafe impl Send for Shared {}

#[cfg(feature = "std")]
impl Shared {
    /// Begins and ends the share of `seat` in `round`, unless somebody else has begun it.
    fn try_share(&self, seat: usize, round: u64, worker: usize) {
        let mine =
            self.seats[seat].begun.compare_exchange(round - 1, round, Ordering::AcqRel, Ordering::Relaxed);
        if mine.is_err() {
            return;
        }
        // SAFETY: this share is begun and not done, so the caller does not write the job.
        let job = unsafe { *self.job.get() };
        let seats = self.seats.len() as i64;
        let (seat_no, count) = (seat as i64, job.count);
        let (begin, end) = (count * seat_no / seats, count * (seat_no + 1) / seats);
        if let (Some(task), true) = (job.task, begin < end) {
            // SAFETY: `parallel_for` was handed a task that may run on disjoint ranges at once; worker ids are below
            // the number of seats, and a worker runs one share at a time.
            unsafe { task(job.data, begin, end, worker as u32) };
        }
        self.seats[seat].done.store(round, Ordering::Release);
    }

    /// Runs the own share, then what nobody has begun.
    fn work(&self, worker: usize, round: u64) {
        for offset in 0..self.seats.len() {
            self.try_share((worker + offset) % self.seats.len(), round, worker);
        }
    }

    /// One of the pool's threads.
    fn serve(&self, worker: usize) {
        let mut last = 0;
        self.ready.fetch_add(1, Ordering::Release);
        while !self.ends.load(Ordering::Acquire) {
            let round = self.await_round(worker, last);
            if round != last {
                self.work(worker, round);
                last = round;
            }
        }
    }

    /// Waits for a round after `last`; also returns when the pool ends, or for no reason.
    fn await_round(&self, worker: usize, last: u64) -> u64 {
        for _ in 0..SPINS {
            let round = self.round.load(Ordering::Acquire);
            if round != last {
                return round;
            }
            core::hint::spin_loop();
        }
        // The caller raises the round and then looks for sleepers; this looks at the round after saying that it sleeps.
        // One of both sees the other.
        let seat = &self.seats[worker];
        seat.sleeps.store(true, Ordering::SeqCst);
        if self.round.load(Ordering::SeqCst) == last && !self.ends.load(Ordering::SeqCst) {
            thread::park();
        }
        seat.sleeps.store(false, Ordering::SeqCst);
        self.round.load(Ordering::Acquire)
    }

    fn wake(&self) {
        // SAFETY: written before any round.
        let threads = unsafe { &*self.wake.get() };
        for (seat, thread) in self.seats[1..].iter().zip(threads) {
            if seat.sleeps.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }

    /// Runs a round; there is one caller at a time.
    fn run(&self, job: Job) {
        // SAFETY: all shares of the last round are done, and those of the next not begun.
        unsafe { *self.job.get() = job };
        let round = self.round.load(Ordering::Relaxed) + 1;
        self.round.store(round, Ordering::SeqCst);
        self.wake();
        self.work(0, round);
        for seat in &self.seats {
            let mut spins = 0;
            while seat.done.load(Ordering::Acquire) != round {
                spins += 1;
                if spins < SPINS_AT_END { core::hint::spin_loop() } else { thread::yield_now() }
            }
        }
    }
}

/// The `parallel_for` of [`Exec`]; `host` is a pool's `Shared`.
#[cfg(feature = "std")]
unsafe extern "C" fn parallel_for(host: *mut c_void, count: i64, task: Task, data: *mut c_void) {
    // SAFETY: `Pool::exec` passes its shared part, which outlives the call.
    let shared = unsafe { &*host.cast::<Shared>() };
    shared.run(Job { count, task: Some(task), data });
}

#[cfg(feature = "std")]
impl Pool {
    /// A pool of so many threads, the caller among them.
    pub(crate) fn new(threads: u32) -> std::io::Result<Pool> {
        let seat =
            |_| Seat { begun: AtomicU64::new(0), done: AtomicU64::new(0), sleeps: AtomicBool::new(false) };
        let shared = Arc::new(Shared {
            round: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            job: UnsafeCell::new(Job { count: 0, task: None, data: core::ptr::null_mut() }),
            seats: (0..threads.max(1)).map(seat).collect(),
            wake: UnsafeCell::new(Vec::new()),
        });
        let mut pool = Pool { shared, threads: Vec::new() };
        for worker in 1..threads as usize {
            let shared = Arc::clone(&pool.shared);
            let name = std::format!("symshape-{worker}");
            pool.threads.push(thread::Builder::new().name(name).spawn(move || shared.serve(worker))?);
        }
        let wake = pool.threads.iter().map(|thread| thread.thread().clone()).collect();
        // SAFETY: only `wake()` reads it, which nobody calls before the first round or the pool's end.
        unsafe { *pool.shared.wake.get() = wake };
        // What starting a thread allocates is none of a call's.
        while pool.shared.ready.load(Ordering::Acquire) < pool.threads.len() as u64 {
            thread::yield_now();
        }
        Ok(pool)
    }

    /// Runs a call on these threads.
    pub(crate) fn exec(&mut self) -> Exec {
        Exec {
            host: Arc::as_ptr(&self.shared).cast_mut().cast(),
            threads: self.shared.seats.len() as u32,
            policy: 0,
            parallel_for: Some(parallel_for),
            error: core::ptr::null_mut(),
        }
    }
}

#[cfg(feature = "std")]
impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            _ = thread.join();
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    /// Adds each iteration's number to its place, and counts the places that a worker id was too large for.
    unsafe extern "C" fn add(data: *mut c_void, begin: i64, end: i64, worker: u32) {
        // SAFETY: the test passes as many counters as there are iterations, and one behind them.
        let counters = unsafe { core::slice::from_raw_parts(data.cast::<AtomicU64>(), 101) };
        for at in begin..end {
            counters[at as usize].fetch_add(at as u64, Ordering::Relaxed);
        }
        if worker >= 3 {
            counters[100].fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn every_iteration_runs_once_a_round() {
        let mut pool = Pool::new(3).expect("threads");
        let exec = pool.exec();
        let counters: Vec<AtomicU64> = (0..101).map(|_| AtomicU64::new(0)).collect();
        let rounds: u64 = if cfg!(miri) { 20 } else { 5000 };
        for round in 0..rounds {
            let count = if round % 2 == 0 { 100 } else { 2 };
            let data = counters.as_ptr().cast_mut().cast();
            // SAFETY: `add` may run on disjoint ranges at once, and the counters outlive the call.
            unsafe { exec.parallel_for.expect("a pool")(exec.host, count, add, data) };
            if round % 64 == 63 {
                thread::sleep(core::time::Duration::from_millis(1));
            }
        }
        for (at, counter) in counters[..100].iter().enumerate() {
            let times = if at < 2 { rounds } else { rounds / 2 };
            assert_eq!(counter.load(Ordering::Relaxed), at as u64 * times, "iteration {at}");
        }
        assert_eq!(counters[100].load(Ordering::Relaxed), 0, "worker ids");
    }
}
