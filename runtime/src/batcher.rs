//! Gathers requests of many callers into few calls: each request has some rows, and a batch of rows runs in one call.
//!
//! The result of a row has the same bits in any batch, so it does not depend on the other requests of its batch.
//!
//! There are several lanes, each with memory for the inputs of one batch and the outputs of two. While one lane runs,
//! others are filled: a request copies its rows to the memory that the call reads. A lane closes when it is full, or
//! when the deadline of its first request is over. It opens again after it has run. A caller that takes its results
//! can submit its next request at once, unless results of the lane's previous batch are still waiting. Requests are
//! admitted in the order of their arrival. All memory is reserved when the batcher is created: in steady state nothing
//! is allocated.
//!
//! Workers run the batches, each with its own context. There are two workers if the machine has cores for both: callers
//! take time from any core, and with two workers no core is idle meanwhile. One worker at a time polls for the next
//! batch before it sleeps. When a batch is done, the worker wakes one caller, and each caller wakes others.

mod error;
mod lane;
mod queue;

pub use error::BatchError;

use crate::{Context, Model, OpenError, TensorMut, TensorRef};
use lane::{BatchLayout, Lane, Results};
use queue::{LANES, Phase, Progress, Queue, ReadyBatch};
use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU32, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

/// Default number of batches that run at the same time, if there are cores for them.
const DEFAULT_CALLS: usize = 2;
/// Upper bound of deadlines, so that adding one to an instant can't overflow.
const MAX_DEADLINE: Duration = Duration::from_secs(1 << 30);
/// Number of times that a worker polls for a batch, and yields its core, before it sleeps.
const MAX_POLLS: u32 = 200;
/// Condition variables for waiting requests. There are many, so that admitting one request wakes no others.
const TURNS: u64 = 1024;

/// The options of a [`Batcher`].
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Largest number of rows of a batch; at most the upper bound of the batch's symbol.
    pub max_rows: usize,
    /// The longest time that the first request of a batch waits for others.
    pub deadline: Duration,
    /// Number of threads of a call, see [`crate::Context::set_threads`].
    pub threads: u32,
    /// Number of batches that run at the same time, from 1 to 4; each has its own threads, context and arena. `None`
    /// means two if the machine has cores for the threads of both, or else one.
    pub calls: Option<usize>,
}

/// Gathers requests of several threads into calls. Dropping it runs the submitted requests, and stops.
///
/// ```no_run
/// use symshape_runtime::{BatchOptions, Batcher, Model, TensorMut, TensorRef};
/// use std::time::Duration;
///
/// let model = Model::open("mlp.so")?;
/// let options = BatchOptions { max_rows: 32, deadline: Duration::from_micros(200), threads: 1, calls: None };
/// let batcher = Batcher::new(&model, "N", &[&[784]], options)?;
/// std::thread::scope(|scope| {
///     for _ in 0..64 {
///         scope.spawn(|| {
///             let (x, mut y) = ([0.5_f32; 784], [0f32; 10]);
///             let input = TensorRef::new(&[1, 784], &x).expect("784 elements");
///             batcher.call(&[input], &mut [TensorMut::new(&mut y)]).expect("in contract");
///         });
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batcher {
    state: Arc<BatcherState>,
    workers: Vec<JoinHandle<()>>,
}

/// A submitted request. Dropping it discards its results; it may be dropped at any time.
#[must_use = "`wait` returns the results"]
pub struct Ticket {
    state: Arc<BatcherState>,
    lane: usize,
    /// The number of its batch in the lane.
    batch: u32,
    /// The first row of the request in the batch.
    first: usize,
    rows: usize,
}

/// The state that callers and workers share.
struct BatcherState {
    layout: BatchLayout,
    deadline: Duration,
    queue: Mutex<Queue>,
    /// Requests wait here for their turn, by their number.
    turns: [Condvar; TURNS as usize],
    /// Workers wait here.
    work: Condvar,
    /// Counts the signals to workers; it goes up whenever there may be work.
    n_signals: AtomicU32,
    /// Number of batches that have run in each lane; wraps.
    done: [AtomicU32; LANES],
    /// Number of sleeping callers that a caller wakes when it wakes: one if there are at most two cores, since callers
    /// then run one after another next to a worker.
    n_wakes: usize,
    inputs: Vec<Mutex<Lane>>,
    /// The results of the even and of the odd batches of each lane.
    results: Vec<[RwLock<Results>; 2]>,
}

impl Batcher {
    /// A batcher for the symbol that is the first axis of all inputs and outputs. `rows` has the shape of one row of
    /// each input.
    ///
    /// # Errors
    /// When a tensor does not consist of rows of that symbol, when rows violate the contract, or when the system
    /// refuses memory or threads.
    pub fn new(
        model: &Model,
        symbol: &str,
        rows: &[&[usize]],
        options: BatchOptions,
    ) -> Result<Batcher, BatchError> {
        let layout = BatchLayout::new(model, symbol, rows, options.max_rows)?;
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let calls = options.calls.unwrap_or((cores / options.threads.max(1) as usize).min(DEFAULT_CALLS));

        let inputs = (0..LANES).map(|_| Lane::new(&layout).map(Mutex::new));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let results_of_batch = || Results::new(&layout).map(RwLock::new);
        let results = (0..LANES)
            .map(|_| Ok([results_of_batch()?, results_of_batch()?]))
            .collect::<Result<_, BatchError>>()?;
        let state = Arc::new(BatcherState {
            layout,
            deadline: options.deadline.min(MAX_DEADLINE),
            queue: Mutex::new(Queue::new(options.max_rows)),
            turns: [(); TURNS as usize].map(|()| Condvar::new()),
            work: Condvar::new(),
            n_signals: AtomicU32::new(0),
            done: [(); LANES].map(|()| AtomicU32::new(0)),
            n_wakes: if cores > 2 { 2 } else { 1 },
            inputs,
            results,
        });

        let mut batcher = Batcher { state, workers: Vec::new() };
        for _ in 0..calls.clamp(1, LANES) {
            let mut context = Context::new(model)?;
            context.set_threads(options.threads)?;
            let state = batcher.state.clone();
            let worker = thread::Builder::new().name("symshape-batcher".into());
            let worker = worker.spawn(move || state.work(&mut context));
            batcher.workers.push(worker.map_err(|_| OpenError::Threads { threads: 1 })?);
        }
        Ok(batcher)
    }

    /// Submits a request of one or more rows, and waits until its results are in `outputs`.
    ///
    /// # Errors
    /// As [`Batcher::submit`] and [`Ticket::wait`].
    pub fn call(&self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), BatchError> {
        self.submit(inputs)?.wait(outputs)
    }

    /// Copies a request of one or more rows into the next batch with space for it. Waits if there is none.
    ///
    /// A ticket keeps the memory of its batch. So don't wait for other requests to be admitted while you hold finished
    /// tickets.
    ///
    /// # Errors
    /// When the inputs have other types or shapes than the batcher expects.
    pub fn submit(&self, inputs: &[TensorRef<'_>]) -> Result<Ticket, BatchError> {
        let state = &self.state;
        let rows = state.layout.accept(inputs)?;
        let ticket = self.admit(rows);
        lock(&state.inputs[ticket.lane]).put(&state.layout, ticket.first, rows, inputs);

        let mut queue = lock(&state.queue);
        let progress = &mut queue.lanes[ticket.lane];
        progress.n_filling -= 1;
        if progress.n_filling == 0 && progress.phase == Phase::Closed {
            state.signal_worker(&queue);
        }
        drop(queue);
        Ok(ticket)
    }

    /// Waits for the request's turn and for space in a lane.
    fn admit(&self, rows: usize) -> Ticket {
        let state = &self.state;
        let mut queue = lock(&state.queue);
        let turn = queue.arrived;
        queue.arrived += 1;

        loop {
            if queue.admitted == turn
                && let Some((lane, first)) = state.place(&mut queue, rows)
            {
                queue.admitted += 1;
                let next = state.next_turn(&queue);
                let batch = queue.lanes[lane].batch;
                drop(queue);
                next.into_iter().for_each(Condvar::notify_all);
                return Ticket { state: state.clone(), lane, batch, first, rows };
            }
            queue = wait(&state.turns[(turn % TURNS) as usize], queue);
        }
    }
}

impl fmt::Debug for Batcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("layout", &self.state.layout).finish()
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("lane", &self.lane).field("batch", &self.batch).finish()
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        let mut queue = lock(&self.state.queue);
        queue.is_stopping = true;
        self.state.n_signals.fetch_add(1, Ordering::Relaxed);
        self.state.work.notify_all();
        drop(queue);
        for worker in self.workers.drain(..) {
            // A panic of a worker has been printed already.
            let _ = worker.join();
        }
    }
}

impl Ticket {
    /// Waits until the batch has run, and copies the rows of this request into `outputs`.
    ///
    /// # Errors
    /// When the number, type or size of the outputs is wrong, or when the call fails for the data of this request;
    /// other requests of the batch are not affected.
    pub fn wait(self, outputs: &mut [TensorMut<'_>]) -> Result<(), BatchError> {
        let state = &self.state;
        state.sleep_until_done(self.lane, self.batch);

        let results = &state.results[self.lane][Progress::side(self.batch)];
        let results = results.read().unwrap_or_else(PoisonError::into_inner);
        results.take(&state.layout, self.first, self.rows, outputs)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = lock(&self.state.queue);
        let progress = &mut queue.lanes[self.lane];
        if progress.batch == self.batch {
            progress.n_tickets -= 1;
            return;
        }

        let untaken = &mut progress.untaken[Progress::side(self.batch)];
        *untaken -= 1;
        if *untaken == 0 {
            let next = self.state.next_turn(&queue);
            drop(queue);
            next.into_iter().for_each(Condvar::notify_all);
        }
    }
}

impl BatcherState {
    /// The condition variable of the request whose turn it is, if there is one. Notify it after the queue is unlocked,
    /// or the request would block on the lock again.
    fn next_turn(&self, queue: &Queue) -> Option<&Condvar> {
        (queue.admitted < queue.arrived).then(|| &self.turns[(queue.admitted % TURNS) as usize])
    }

    /// Signals that there may be work, and wakes a worker if all of them sleep.
    fn signal_worker(&self, queue: &Queue) {
        self.n_signals.fetch_add(1, Ordering::Relaxed);
        if queue.n_sleeping_workers > 0 && !queue.is_watched {
            self.work.notify_one();
        }
    }

    /// Whether a batch of a lane has run.
    fn is_done(&self, lane: usize, batch: u32) -> bool {
        // The numbers wrap, so their difference is taken as a signed number.
        (self.done[lane].load(Ordering::Acquire).wrapping_sub(batch) as i32) > 0
    }

    /// Sleeps until a batch is done, and then wakes other callers whose batches are done.
    fn sleep_until_done(&self, lane: usize, batch: u32) {
        let mut queue = lock(&self.queue);
        if self.is_done(lane, batch) {
            return;
        }

        let own = thread::current();
        queue.sleepers[lane].push((batch, own.clone()));
        drop(queue);
        while !self.is_done(lane, batch) {
            thread::park();
        }

        let mut queue = lock(&self.queue);
        // After a spurious wake-up, the thread is still in the list.
        let sleepers = &mut queue.sleepers[lane];
        if let Some(at) = sleepers.iter().position(|(_, thread)| thread.id() == own.id()) {
            sleepers.swap_remove(at);
        }
        let next =
            [0, 1].map(|idx| if idx < self.n_wakes { self.pop_sleeper(&mut queue, lane) } else { None });
        drop(queue);
        next.iter().flatten().for_each(Thread::unpark);
    }

    /// Removes and returns a caller that still sleeps although its batch is done.
    fn pop_sleeper(&self, queue: &mut Queue, lane: usize) -> Option<Thread> {
        let sleepers = &mut queue.sleepers[lane];
        let at = sleepers.iter().position(|(batch, _)| self.is_done(lane, *batch))?;
        Some(sleepers.swap_remove(at).1)
    }

    /// Reserves `rows` rows in a lane, if there is space now. Returns the lane and the first row.
    fn place(&self, queue: &mut Queue, rows: usize) -> Option<(usize, usize)> {
        // A lane with rows comes before an empty one.
        let mut lanes: [usize; LANES] = std::array::from_fn(|lane| lane);
        lanes.sort_unstable_by_key(|lane| std::cmp::Reverse(queue.lanes[*lane].rows));

        for lane in lanes {
            let progress = &mut queue.lanes[lane];
            let first = progress.rows;

            if progress.phase != Phase::Open || progress.untaken[Progress::side(progress.batch)] > 0 {
                continue;
            }
            if first + rows > self.layout.max_rows {
                progress.phase = Phase::Closed;
                self.signal_worker(queue);
                continue;
            }

            progress.rows += rows;
            progress.n_filling += 1;
            progress.n_tickets += 1;

            if first == 0 {
                progress.deadline = Instant::now() + self.deadline;
            }

            if progress.rows == self.layout.max_rows {
                progress.phase = Phase::Closed;
            }

            if first == 0 {
                self.signal_worker(queue);
            }

            return Some((lane, first));
        }

        None
    }

    /// The main loop of a worker: runs one batch after another.
    fn work(&self, context: &mut Context) {
        while let Some(ReadyBatch { lane, rows, number }) = self.next_batch() {
            let side = Progress::side(number);
            let mut results = self.results[lane][side].write().unwrap_or_else(PoisonError::into_inner);
            lock(&self.inputs[lane]).run(&self.layout, context, rows, &mut results);
            drop(results);

            let mut queue = lock(&self.queue);
            let progress = &mut queue.lanes[lane];
            progress.untaken[side] = std::mem::take(&mut progress.n_tickets);
            progress.batch = number.wrapping_add(1);
            progress.phase = Phase::Open;
            progress.rows = 0;
            self.done[lane].store(progress.batch, Ordering::Release);
            let first = self.pop_sleeper(&mut queue, lane);
            let next = self.next_turn(&queue);
            drop(queue);
            next.into_iter().for_each(Condvar::notify_all);
            first.iter().for_each(Thread::unpark);
        }
    }

    /// Waits for a batch that is ready to run; `None` when the batcher stops and all batches have run.
    fn next_batch(&self) -> Option<ReadyBatch> {
        let mut queue = lock(&self.queue);
        let mut polls_left = MAX_POLLS;
        loop {
            let now = Instant::now();
            queue.close_lanes(now);
            if let Some(batch) = queue.take_ready() {
                // Another worker must watch the requests that have arrived meanwhile.
                if queue.lanes.iter().any(|lane| lane.rows > 0 && lane.phase != Phase::Running) {
                    self.signal_worker(&queue);
                }
                return Some(batch);
            }
            let is_pending = queue.lanes.iter().any(|progress| progress.phase == Phase::Closed);
            if queue.is_stopping && !is_pending {
                return None;
            }

            let deadline = queue.next_deadline();
            if polls_left > 0 && !queue.is_watched {
                let before = self.n_signals.load(Ordering::Relaxed);
                queue.is_watched = true;
                drop(queue);

                // With few cores, yielding may take as long as a call of another thread.
                let is_in_time = || deadline.is_none_or(|deadline| Instant::now() < deadline);

                while polls_left > 0 && self.n_signals.load(Ordering::Relaxed) == before && is_in_time() {
                    thread::yield_now();
                    polls_left -= 1;
                }

                queue = lock(&self.queue);
                queue.is_watched = false;
                continue;
            }

            queue.n_sleeping_workers += 1;
            queue = match deadline {
                None => wait(&self.work, queue),
                Some(deadline) => {
                    let pause = deadline.saturating_duration_since(now);
                    let waited = self.work.wait_timeout(queue, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            queue.n_sleeping_workers -= 1;
        }
    }
}

/// Locks a mutex. A poisoned mutex is fine: code that may panic while it holds a lock has finished its changes before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'q, T>(condition: &Condvar, guard: MutexGuard<'q, T>) -> MutexGuard<'q, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
