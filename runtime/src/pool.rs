//! The threads of a call.
//!
//! A [`Pool`] belongs to one context. Its threads wait for rounds of work. They spin first, since the kernels of a call
//! follow one another within microseconds, and then park, so that an idle model costs nothing. Starting a round neither
//! allocates nor locks; it enters the kernel only to wake a thread that parked. It reads the clock, for which common
//! systems map a page into the process.
//!
//! A round is divided as [`claims`](crate::claims) describes. A thread begins with its own part, so that its cache has
//! the results of that part of the previous round. A thread that is done takes work from the parts of others, so that a
//! round never waits for a thread to wake up, and for an interrupted one only until its claimed units are done. A
//! thread that costs more time in this way than it saves rests for a while, see [`benefit`](crate::benefit).

use crate::abi::Exec;
#[cfg(feature = "std")]
use crate::{
    abi::Task,
    benefit::Benefit,
    claims::{Left, iterations, own_units, units},
};
#[cfg(feature = "std")]
use core::{
    cell::UnsafeCell,
    cmp::Ordering::{Equal, Greater, Less},
    ffi::c_void,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};
#[cfg(feature = "std")]
use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::Instant,
};

/// Runs a call on the calling thread.
pub(crate) const SERIAL: Exec = Exec {
    host: core::ptr::null_mut(),
    threads: 1,
    policy: 0,
    parallel_for: None,
    error: core::ptr::null_mut(),
};

/// Spins before a thread parks: about 100 microseconds, longer than a call spends between two kernels.
#[cfg(feature = "std")]
const SPINS: u32 = if cfg!(miri) { 10 } else { 20_000 };

/// Spins for the last units before the threads that have some count as interrupted: about 20 microseconds.
#[cfg(feature = "std")]
const SPINS_OF_LAST_UNITS: u32 = if cfg!(miri) { 2 } else { 4_000 };

/// Spins for the last units before the caller yields its core to other threads.
#[cfg(feature = "std")]
const SPINS_AT_END: u32 = if cfg!(miri) { 10 } else { 100_000 };

/// Threads that run calls together with the calling thread.
#[cfg(feature = "std")]
pub(crate) struct Pool {
    shared: Arc<PoolState>,
    threads: Vec<JoinHandle<()>>,
}

/// The work of a round: iterations `0..count` of `task`.
#[cfg(feature = "std")]
#[derive(Clone, Copy)]
struct Job {
    count: i64,
    task: Option<Task>,
    data: *mut c_void,
}

/// The state of one thread and its part of the work, in separate cache lines.
#[cfg(feature = "std")]
struct Seat {
    /// The units of the part that are left: a [`Stamped`] number of claims. All threads write it.
    claimed: Line<AtomicU64>,
    /// The units that the thread has done: a [`Stamped`] number. Only the thread writes it.
    done: Line<AtomicU64>,
    /// The thread is parked or about to park.
    is_parked: Line<AtomicBool>,
    /// The thread claims no units. Only the caller writes it, before a round.
    is_resting: Line<AtomicBool>,
    /// Only the caller uses it.
    benefit: Line<UnsafeCell<Benefit>>,
}

#[cfg(feature = "std")]
impl Seat {
    /// The units of a round that the thread has done.
    fn done_in(&self, round: Stamped) -> u64 {
        let done = Stamped::of(self.done.0.load(Ordering::Acquire));
        if done.round == round.round { done.number } else { 0 }
    }
}

/// A value that shares no cache line with others.
#[cfg(feature = "std")]
#[repr(align(128))]
struct Line<T>(T);

/// A 16-bit number that belongs to a round, in one word. Rounds have 48 bits: enough for years of rounds of a
/// microsecond.
#[cfg(feature = "std")]
#[derive(Clone, Copy, PartialEq)]
struct Stamped {
    /// Number of the round.
    round: u64,
    number: u64,
}

#[cfg(feature = "std")]
impl Stamped {
    fn of(word: u64) -> Stamped {
        Stamped { round: word >> 16, number: word & 0xffff }
    }

    fn word(self) -> u64 {
        self.round << 16 | self.number
    }
}

/// The claims of the units of a part in the round of a word.
#[cfg(feature = "std")]
fn left(word: Stamped) -> Left {
    Left { front: word.number >> 8, back: word.number & 0xff }
}

#[cfg(feature = "std")]
#[repr(align(128))]
struct PoolState {
    /// The round and its number of units, see [`Stamped`]. Only the caller writes it.
    round: AtomicU64,
    /// Number of threads that have started.
    ready: AtomicU64,
    is_stopping: AtomicBool,
    job: UnsafeCell<Job>,
    seats: Vec<Seat>,
    /// Handles that wake the threads of the seats from 1 on.
    wake: UnsafeCell<Vec<thread::Thread>>,
}

// SAFETY: the caller writes `job` only between rounds, when every unit of the last round is done. A thread reads it
// only after it has claimed units, and the next write waits for those units. `wake` is written before the first round
// and never again while threads run. Only the caller uses `Seat::benefit`. `Job::data` points to the frame of compiled
// code, which its tasks may share.
#[cfg(feature = "std")]
unsafe impl Sync for PoolState {}
// SAFETY: as above; no field is bound to a thread.
#[cfg(feature = "std")]
unsafe impl Send for PoolState {}

#[cfg(feature = "std")]
impl PoolState {
    /// Claims units of the part of `seat` for a worker.
    ///
    /// A round ends only after each of its units was claimed. A worker that is late, with a round that has ended,
    /// therefore finds claims of that round or of a later one, and claims nothing.
    fn claim(&self, seat: usize, worker: usize, round: Stamped) -> Option<Range<u64>> {
        let own = own_units(round.number, seat, self.seats.len());
        let claimed = &self.seats[seat].claimed.0;
        let mut word = claimed.load(Ordering::Acquire);
        loop {
            let last = Stamped::of(word);
            let left = match last.round.cmp(&round.round) {
                Less => Left::ALL,
                Equal => left(last),
                Greater => return None,
            };
            let (units, left) = left.claim(&own, seat == worker)?;
            let next = Stamped { round: round.round, number: left.front << 8 | left.back };
            match claimed.compare_exchange_weak(word, next.word(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(units),
                Err(current) => word = current,
            }
        }
    }

    /// Runs units that the worker claimed in `round`.
    fn run_units(&self, claimed: &Range<u64>, worker: usize, round: Stamped) {
        // SAFETY: these units are claimed and not done, so the caller does not write the job.
        let job = unsafe { *self.job.get() };
        let range = iterations(claimed, round.number, job.count);
        if let Some(task) = job.task {
            // SAFETY: the task of a `parallel_for` may run on disjoint ranges at once. Worker ids are less than the
            // number of seats, and a worker runs one range at a time.
            unsafe { task(job.data, range.start, range.end, worker as u32) };
        }
        let number = self.seats[worker].done_in(round) + claimed.end - claimed.start;
        self.seats[worker].done.0.store(Stamped { number, ..round }.word(), Ordering::Release);
    }

    /// Runs the worker's own part, then the rest of the other parts.
    fn work(&self, worker: usize, round: Stamped) {
        for offset in 0..self.seats.len() {
            let seat = (worker + offset) % self.seats.len();
            while let Some(units) = self.claim(seat, worker, round) {
                self.run_units(&units, worker, round);
            }
        }
    }

    /// Whether all units of a round are done.
    fn is_done(&self, round: Stamped) -> bool {
        let units: u64 = self.seats.iter().map(|seat| seat.done_in(round)).sum();
        units == round.number
    }

    /// The main loop of a thread of the pool.
    fn serve(&self, worker: usize) {
        let mut last = 0;
        self.ready.fetch_add(1, Ordering::Release);
        while !self.is_stopping.load(Ordering::Acquire) {
            let round = self.await_round(worker, last);
            if round != last && !self.seats[worker].is_resting.0.load(Ordering::Relaxed) {
                self.work(worker, Stamped::of(round));
            }
            last = round;
        }
    }

    /// Waits for a round after `last`. May also return `last`, when the pool stops or on a spurious wake-up.
    fn await_round(&self, worker: usize, last: u64) -> u64 {
        let seat = &self.seats[worker];
        for _ in 0..SPINS {
            let round = self.round.load(Ordering::Acquire);
            if round != last {
                return round;
            }
            if seat.is_resting.0.load(Ordering::Relaxed) {
                break;
            }
            core::hint::spin_loop();
        }

        // The caller stores the round and then reads `is_parked`; this thread stores `is_parked` and then reads the
        // round. At least one of them sees the other's store.
        seat.is_parked.0.store(true, Ordering::SeqCst);
        if self.round.load(Ordering::SeqCst) == last && !self.is_stopping.load(Ordering::SeqCst) {
            thread::park();
        }
        seat.is_parked.0.store(false, Ordering::SeqCst);
        self.round.load(Ordering::Acquire)
    }

    fn wake(&self) {
        // SAFETY: it is written before the first round.
        let threads = unsafe { &*self.wake.get() };
        for (seat, thread) in self.seats[1..].iter().zip(threads) {
            if !seat.is_resting.0.load(Ordering::Relaxed) && seat.is_parked.0.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }

    /// Runs a round. Only one thread at a time may call it.
    fn run(&self, job: Job) {
        // SAFETY: all units of the last round are done, and no unit of the next one is claimed.
        unsafe { *self.job.get() = job };
        let last = Stamped::of(self.round.load(Ordering::Relaxed));
        let round = Stamped { round: last.round + 1, number: units(job.count, self.seats.len()) };

        let begin = Instant::now();
        for seat in &self.seats[1..] {
            // SAFETY: only the caller uses it.
            let is_resting = unsafe { &*seat.benefit.0.get() }.is_resting(begin);
            // The thread reads this while it waits, so it is written only to change it.
            if is_resting != seat.is_resting.0.load(Ordering::Relaxed) {
                seat.is_resting.0.store(is_resting, Ordering::Relaxed);
            }
        }
        self.round.store(round.word(), Ordering::SeqCst);
        self.wake();

        self.work(0, round);
        let worked = Instant::now();
        self.await_units(round);
        self.add_benefits(round, [begin, worked, Instant::now()]);
    }

    /// Waits until all units of a round are done, and notes which threads were interrupted.
    fn await_units(&self, round: Stamped) {
        let mut spins = 0;
        while !self.is_done(round) {
            spins += 1;
            if spins == SPINS_OF_LAST_UNITS {
                for seat in &self.seats[1..] {
                    // SAFETY: only the caller uses it.
                    unsafe { &mut *seat.benefit.0.get() }.note(seat.done_in(round));
                }
            }
            if spins < SPINS_AT_END { core::hint::spin_loop() } else { thread::yield_now() }
        }
    }

    /// Adds up the time that the threads saved and cost in a round. The times are its begin, the end of the caller's
    /// work, and the end of all units.
    fn add_benefits(&self, round: Stamped, [begin, worked, end]: [Instant; 3]) {
        let own_units = self.seats[0].done_in(round);
        let [own, waited] = [worked - begin, end - worked];
        for seat in self.seats[1..].iter().filter(|seat| !seat.is_resting.0.load(Ordering::Relaxed)) {
            let units = seat.done_in(round);
            let saved = if own_units == 0 { waited } else { own.mul_f64(units as f64 / own_units as f64) };
            // SAFETY: only the caller uses it.
            unsafe { &mut *seat.benefit.0.get() }.add(units, saved, waited, end);
        }
    }
}

/// The `parallel_for` of [`Exec`]; `host` is a [`PoolState`].
#[cfg(feature = "std")]
unsafe extern "C" fn parallel_for(host: *mut c_void, count: i64, task: Task, data: *mut c_void) {
    // SAFETY: `Pool::exec` passes its state, which outlives the call.
    let shared = unsafe { &*host.cast::<PoolState>() };
    shared.run(Job { count, task: Some(task), data });
}

#[cfg(feature = "std")]
impl Pool {
    /// A pool of `threads` threads, including the caller.
    pub(crate) fn new(threads: u32) -> std::io::Result<Pool> {
        let seat = |_| Seat {
            claimed: Line(AtomicU64::new(0)),
            done: Line(AtomicU64::new(0)),
            is_parked: Line(AtomicBool::new(false)),
            is_resting: Line(AtomicBool::new(false)),
            benefit: Line(UnsafeCell::new(Benefit::new(Instant::now()))),
        };
        let shared = Arc::new(PoolState {
            round: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
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
        // SAFETY: only `wake()` reads it, which is not called before the first round.
        unsafe { *pool.shared.wake.get() = wake };

        // Threads allocate when they start; wait for them, so that no call does.
        while pool.shared.ready.load(Ordering::Acquire) < pool.threads.len() as u64 {
            thread::yield_now();
        }
        Ok(pool)
    }

    /// Runs a call on the threads of the pool.
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
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            _ = thread.join();
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Adds the index of each iteration to its counter; the last counter counts worker ids that are too large.
    unsafe extern "C" fn add(data: *mut c_void, begin: i64, end: i64, worker: u32) {
        // SAFETY: the test passes one counter for each iteration, and one more.
        let counters = unsafe { core::slice::from_raw_parts(data.cast::<AtomicU64>(), 101) };
        for at in begin..end {
            counters[at as usize].fetch_add(at as u64, Ordering::Relaxed);
        }
        if worker >= 3 {
            counters[100].fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn every_iteration_runs_once_per_round() {
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

    /// The first iteration waits until all are done that no thread claims together with it.
    unsafe extern "C" fn wait_for_others(data: *mut c_void, begin: i64, end: i64, _: u32) {
        // SAFETY: the test passes one counter.
        let done = unsafe { &*data.cast::<AtomicU64>() };
        for at in begin..end {
            while at == 0 && done.load(Ordering::Relaxed) < 12 {
                thread::yield_now();
            }
            done.fetch_add(u64::from(at >= 4), Ordering::Relaxed);
        }
    }

    #[test]
    fn a_thread_that_waits_loses_the_rest_of_its_part() {
        let mut pool = Pool::new(2).expect("threads");
        let exec = pool.exec();
        for _ in 0..if cfg!(miri) { 3 } else { 300 } {
            // The thread must not rest, even if it was interrupted: the first iteration waits for it.
            // SAFETY: no round runs.
            unsafe { *pool.shared.seats[1].benefit.0.get() = Benefit::new(Instant::now()) };
            let done = AtomicU64::new(0);
            let data = (&raw const done).cast_mut().cast();
            // SAFETY: the task may run on disjoint ranges at once, and the counter outlives the call.
            unsafe { exec.parallel_for.expect("a pool")(exec.host, 16, wait_for_others, data) };
            assert_eq!(done.load(Ordering::Relaxed), 12);
        }
    }

    /// Counts the ranges of all workers but the caller.
    unsafe extern "C" fn count_others(data: *mut c_void, _: i64, _: i64, worker: u32) {
        // SAFETY: the test passes one counter.
        let others = unsafe { &*data.cast::<AtomicU64>() };
        others.fetch_add(u64::from(worker > 0), Ordering::Relaxed);
    }

    #[test]
    fn a_resting_thread_claims_no_units() {
        let mut pool = Pool::new(2).expect("threads");
        let exec = pool.exec();
        let others = AtomicU64::new(0);
        let data = (&raw const others).cast_mut().cast();
        for round in 0..100 {
            // SAFETY: no round runs.
            let benefit = unsafe { &mut *pool.shared.seats[1].benefit.0.get() };
            // Rests double, up to a second.
            for _ in 0..if round == 0 { 8 } else { 1 } {
                benefit.note(0);
                benefit.add(1, Duration::ZERO, Duration::from_secs(1), Instant::now());
            }
            // SAFETY: the task may run on disjoint ranges at once, and the counter outlives the call.
            unsafe { exec.parallel_for.expect("a pool")(exec.host, 16, count_others, data) };
        }
        assert_eq!(others.load(Ordering::Relaxed), 0);
    }
}
