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
//! A lane's batch has rows of one shape. In a batcher of mixed shapes, the first request of a batch decides the shape,
//! and requests of other shapes go to other lanes. A request whose shape has no batch takes the first empty lane in its
//! turn. A request that finds a batch of its shape with space joins it at once: that delays no other request, because
//! a batch closes at the deadline of its first request. Shapes are never padded to those of other requests.
//!
//! In a batcher of ragged batches, all requests have one shape: sequences of any length. A batch closes when the next
//! request in turn exceeds its rows or its sequences.
//!
//! Workers run the batches, each with its own context. There are two workers if the machine has cores for both: callers
//! take time from any core, and with two workers no core is idle meanwhile. One worker at a time polls for the next
//! batch before it sleeps. When a batch is done, the worker wakes one caller, and each caller wakes others.

mod error;
mod lane;
mod layout;
mod queue;
mod ragged;
mod rows;

pub use error::BatchError;

use crate::{Context, Model, OpenError, TensorMut, TensorRef};
use lane::{Lane, Results};
use layout::{Accepted, BatchLayout, Limits};
use queue::{Phase, Progress, Queue, ReadyBatch};
use rows::{RowShapes, Run, Share};
use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU32, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

/// Number of batches that are filled or run at the same time, if all rows have one shape.
const LANES: usize = 4;
/// The same for mixed shapes.
const MIXED_LANES: usize = 8;
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
    /// Largest number of bytes of arena that a batch may take. `None` means [`Model::arena_max`].
    pub arena_bytes: Option<usize>,
}

impl Default for BatchOptions {
    /// Batches of up to 32 rows that wait for 200 µs, on one thread each, in the whole arena.
    fn default() -> BatchOptions {
        let deadline = Duration::from_micros(200);
        BatchOptions { max_rows: 32, deadline, threads: 1, calls: None, arena_bytes: None }
    }
}

/// Gathers requests of several threads into calls. Dropping it runs the submitted requests, and stops.
///
/// ```no_run
/// use symshape_runtime::{BatchOptions, Batcher, Model, TensorMut, TensorRef};
/// use std::time::Duration;
///
/// let model = Model::open("mlp.so")?;
/// let options = BatchOptions { max_rows: 32, deadline: Duration::from_micros(200), ..BatchOptions::default() };
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
    share: Share,
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
    done: Vec<AtomicU32>,
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
    /// When a tensor does not consist of rows of that symbol, when the model has state, when rows violate the contract,
    /// or when the system refuses memory or threads.
    pub fn new(
        model: &Model,
        symbol: &str,
        rows: &[&[usize]],
        options: BatchOptions,
    ) -> Result<Batcher, BatchError> {
        Batcher::start(model, symbol, Some(rows), options)
    }

    /// A batcher for requests of mixed shapes: any shape that the contract allows. Requests whose rows have equal
    /// shapes share calls. A batch has at most as many rows as its shape allows: within `max_rows`, within the bytes
    /// of [`BatchOptions::arena_bytes`], and within all relations of the contract.
    ///
    /// ```no_run
    /// use symshape_runtime::{BatchOptions, Batcher, Model, TensorMut, TensorRef};
    ///
    /// let model = Model::open("block.so")?;    // x: f32[N, S, 64]
    /// let options = BatchOptions { arena_bytes: Some(16 << 20), ..BatchOptions::default() };
    /// let batcher = Batcher::mixed(&model, "N", options)?;
    /// for length in [7, 128] {
    ///     let (x, mut y) = (vec![0.5_f32; length * 64], vec![0_f32; length * 64]);
    ///     batcher.call(&[TensorRef::new(&[1, length, 64], &x)?], &mut [TensorMut::new(&mut y)])?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Batcher::new`]; and when a symbol has no upper bound.
    pub fn mixed(model: &Model, symbol: &str, options: BatchOptions) -> Result<Batcher, BatchError> {
        Batcher::start(model, symbol, None, options)
    }

    /// A batcher for sequences of different lengths, on a model with a ragged batch ([`Model::ragged`]). A request has
    /// the inputs of a separate ragged call: the rows of one or more sequences, and their offsets. Requests share
    /// calls in the order of their arrival, and nothing is padded or sorted.
    ///
    /// A batch has at most [`BatchOptions::max_rows`] rows of all sequences, and at most as many as
    /// [`Model::max_dim`] gives for [`BatchOptions::arena_bytes`] and the largest number of sequences.
    ///
    /// ```no_run
    /// use symshape_runtime::{BatchOptions, Batcher, Model, TensorMut, TensorRef};
    ///
    /// let model = Model::open("encoder.so")?;    // ids: i64[T], offsets: i64[N + 1]; hidden: f32[T, 384]
    /// let options = BatchOptions { max_rows: 4096, ..BatchOptions::default() };
    /// let batcher = Batcher::ragged(&model, options)?;
    /// let (ids, mut hidden) = ([101_i64, 7592, 102], [0_f32; 3 * 384]);
    /// let offsets = TensorRef::new(&[2], &[0_i64, 3])?;
    /// batcher.call(&[TensorRef::new(&[3], &ids)?, offsets], &mut [TensorMut::new(&mut hidden)])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the model has no ragged batch; when a tensor has neither rows nor sequences as its first axis; when a call
    /// with one row needs more than [`BatchOptions::arena_bytes`]; or when the system refuses memory or threads.
    pub fn ragged(model: &Model, options: BatchOptions) -> Result<Batcher, BatchError> {
        let limits = Limits { rows: options.max_rows, arena_bytes: options.arena_bytes };
        Batcher::over(model, BatchLayout::ragged(model, limits)?, options)
    }

    fn start(
        model: &Model,
        symbol: &str,
        rows: Option<&[&[usize]]>,
        options: BatchOptions,
    ) -> Result<Batcher, BatchError> {
        let limits = Limits { rows: options.max_rows, arena_bytes: options.arena_bytes };
        Batcher::over(model, BatchLayout::new(model, symbol, rows, limits)?, options)
    }

    fn over(model: &Model, layout: BatchLayout, options: BatchOptions) -> Result<Batcher, BatchError> {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let calls = options.calls.unwrap_or((cores / options.threads.max(1) as usize).min(DEFAULT_CALLS));
        let n_lanes = if layout.has_one_shape() { LANES } else { MIXED_LANES };

        let inputs = (0..n_lanes).map(|_| Lane::new(&layout).map(Mutex::new));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let results_of_batch = || Results::new(&layout).map(RwLock::new);
        let results = (0..n_lanes)
            .map(|_| Ok([results_of_batch()?, results_of_batch()?]))
            .collect::<Result<_, BatchError>>()?;
        let queue = Queue::new(n_lanes, layout.max_requests(), &RowShapes::of(model.inputs()));
        let state = Arc::new(BatcherState {
            layout,
            deadline: options.deadline.min(MAX_DEADLINE),
            queue: Mutex::new(queue),
            turns: [(); TURNS as usize].map(|()| Condvar::new()),
            work: Condvar::new(),
            n_signals: AtomicU32::new(0),
            done: (0..n_lanes).map(|_| AtomicU32::new(0)).collect(),
            n_wakes: if cores > 2 { 2 } else { 1 },
            inputs,
            results,
        });

        let mut batcher = Batcher { state, workers: Vec::new() };
        for _ in 0..calls.clamp(1, n_lanes) {
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
    /// When the inputs have other types or shapes than the batcher expects, have no rows, or exceed a limit. Such a
    /// request never waits.
    pub fn submit(&self, inputs: &[TensorRef<'_>]) -> Result<Ticket, BatchError> {
        let state = &self.state;
        let request = state.layout.accept(inputs)?;
        let ticket = self.admit(inputs, request);
        lock(&state.inputs[ticket.lane]).put(&state.layout, ticket.share, inputs);

        let mut queue = lock(&state.queue);
        let progress = &mut queue.lanes[ticket.lane];
        progress.n_filling -= 1;
        if progress.n_filling == 0 && progress.phase == Phase::Closed {
            state.signal_worker(&queue);
        }
        drop(queue);
        Ok(ticket)
    }

    /// Number of batches that have run. The count of a lane, of which there are at most 8, wraps after 2^32 batches.
    pub fn n_batches(&self) -> u64 {
        self.state.done.iter().map(|done| u64::from(done.load(Ordering::Relaxed))).sum()
    }

    /// Waits for the request's turn and for space in a lane, unless a batch of its shape has space.
    fn admit(&self, inputs: &[TensorRef<'_>], request: Accepted) -> Ticket {
        let state = &self.state;
        let mut queue = lock(&state.queue);
        if state.layout.joins_early()
            && let Some(ticket) = state.join(&mut queue, inputs, request)
        {
            return ticket;
        }

        let turn = queue.arrived;
        queue.arrived += 1;
        loop {
            if queue.admitted == turn
                && let Some(ticket) = state.place(&mut queue, inputs, request)
            {
                queue.admitted += 1;
                let next = state.next_turn(&queue);
                drop(queue);
                next.into_iter().for_each(Condvar::notify_all);
                return ticket;
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
        results.take(&state.layout, self.share, outputs)
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

    /// Reserves rows in a batch of this shape, or in an empty lane, if there is space now.
    fn place(
        self: &Arc<Self>,
        queue: &mut Queue,
        inputs: &[TensorRef<'_>],
        request: Accepted,
    ) -> Option<Ticket> {
        if let Some(ticket) = self.join(queue, inputs, request) {
            return Some(ticket);
        }

        let lane = queue.empty_lane()?;
        queue.shapes[lane].set(inputs);
        queue.lanes[lane].max_rows = request.max_rows;
        queue.lanes[lane].max_sequences = request.max_sequences;
        queue.lanes[lane].deadline = Instant::now() + self.deadline;
        Some(self.take_share(queue, lane, request))
    }

    /// Reserves rows in a batch of this shape. Batches that lack the space are closed.
    fn join(
        self: &Arc<Self>,
        queue: &mut Queue,
        inputs: &[TensorRef<'_>],
        request: Accepted,
    ) -> Option<Ticket> {
        let (lane, n_closed) = queue.join(inputs, request);
        (0..n_closed).for_each(|_| self.signal_worker(queue));
        Some(self.take_share(queue, lane?, request))
    }

    /// Reserves rows in this lane, which has the space.
    fn take_share(self: &Arc<Self>, queue: &mut Queue, lane: usize, request: Accepted) -> Ticket {
        let progress = &mut queue.lanes[lane];
        let is_first = progress.is_empty();
        let rows = Run { first: progress.rows, count: request.rows };
        let sequences = Run { first: progress.sequences, count: request.sequences };
        progress.rows += request.rows;
        progress.sequences += request.sequences;
        progress.n_filling += 1;
        progress.n_tickets += 1;
        if progress.is_full() {
            progress.phase = Phase::Closed;
        }

        let batch = progress.batch;
        if is_first {
            self.signal_worker(queue);
        }
        Ticket { state: self.clone(), lane, batch, share: Share { rows, sequences } }
    }

    /// The main loop of a worker: runs one batch after another.
    fn work(&self, context: &mut Context) {
        while let Some(ReadyBatch { lane, number }) = self.next_batch() {
            let side = Progress::side(number);
            let mut results = self.results[lane][side].write().unwrap_or_else(PoisonError::into_inner);
            lock(&self.inputs[lane]).run(&self.layout, context, &mut results);
            drop(results);

            let mut queue = lock(&self.queue);
            let progress = &mut queue.lanes[lane];
            progress.untaken[side] = std::mem::take(&mut progress.n_tickets);
            progress.batch = number.wrapping_add(1);
            progress.phase = Phase::Open;
            progress.rows = 0;
            progress.sequences = 0;
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
                if queue.lanes.iter().any(|lane| !lane.is_empty() && lane.phase != Phase::Running) {
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
