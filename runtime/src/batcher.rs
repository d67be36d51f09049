//! Many callers, few calls: requests of some rows each are gathered into one batch, run together, and handed back.
//!
//! Because a row's result has the same bits in any batch, nobody can tell from the results who else was in it.
//!
//! There are some lanes, each with memory for the inputs of a batch, and twice for its outputs. While one runs, others are
//! filled: a request copies its rows to where the call will read them. A lane is closed when it is full or when the
//! deadline of its first request is over, and open again once it has run: who takes the results finds room for the next
//! request at once, unless results of the batch before that one still wait. Requests are admitted in the order in which
//! they come. All memory is reserved when the batcher is made: in steady state nothing is allocated.
//!
//! Batches are run by workers, each with a context of its own, two of them where a machine has cores for both: callers take
//! time from whichever core the system puts them on, and no core that could compute is idle meanwhile. A worker, if no
//! other does, looks for the next batch a while before it sleeps, and wakes one caller when a batch is done; each caller
//! that wakes, wakes others.

mod error;
mod lane;
mod queue;

pub use error::BatchError;

use crate::{Context, Model, OpenError, TensorMut, TensorRef};
use lane::{Lane, Layout, Results};
use queue::{LANES, Phase, Progress, Queue};
use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU32, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

/// Batches that are run at the same time where nothing else is asked for and there are cores for them.
const CALLS: usize = 2;
/// Longer deadlines are cut to this one: there is an instant so far ahead.
const LONGEST: Duration = Duration::from_secs(1 << 30);
/// How often a worker looks for a batch, and lets others have its core, before it sleeps.
const LOOKS: u32 = 200;
/// Condition variables that waiting requests are spread over, so that admitting one wakes no others.
const TURNS: u64 = 1024;

/// How batches are made.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Most rows of a batch; at most the upper bound of the batch's symbol.
    pub max_rows: usize,
    /// How long the first request of a batch waits for others at most.
    pub deadline: Duration,
    /// Threads that a call runs on, see [`crate::Context::set_threads`].
    pub threads: u32,
    /// Batches that run at the same time, from 1 to 4, each on threads and a context, so an arena, of its own. `None` is two
    /// where the machine has cores for the threads of both, and else one.
    pub calls: Option<usize>,
}

/// Gathers requests of several threads into calls. Dropping it runs what was submitted, and stops.
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
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// A request that was taken. Dropping it gives its results up, at any time.
#[must_use = "the results are got with `wait`"]
pub struct Ticket {
    shared: Arc<Shared>,
    lane: usize,
    /// The number of its batch in the lane.
    batch: u32,
    first: usize,
    rows: usize,
}

struct Shared {
    layout: Layout,
    deadline: Duration,
    queue: Mutex<Queue>,
    /// Where requests wait for their turn, by their number.
    turns: [Condvar; TURNS as usize],
    /// Where workers wait, and a count that goes up when there may be something to do for one.
    work: Condvar,
    calls: AtomicU32,
    /// Batches that have run in each lane.
    done: [AtomicU32; LANES],
    /// Sleepers that a caller wakes when it wakes: one where callers run one after another anyway, beside a worker.
    wakes: usize,
    inputs: Vec<Mutex<Lane>>,
    /// Those of even and of odd batches of each lane.
    results: Vec<[RwLock<Results>; 2]>,
}

impl Batcher {
    /// A batcher over the symbol that is the first axis of all inputs and outputs; `rows` has, for each input, the
    /// shape of one row.
    ///
    /// # Errors
    /// Tensors that are no rows of that symbol, rows that break the contract, or no memory.
    pub fn new(
        model: &Model,
        symbol: &str,
        rows: &[&[usize]],
        options: BatchOptions,
    ) -> Result<Batcher, BatchError> {
        let layout = Layout::new(model, symbol, rows, options.max_rows)?;
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let calls = options.calls.unwrap_or((cores / options.threads.max(1) as usize).min(CALLS));
        let inputs = (0..LANES).map(|_| Lane::new(&layout).map(Mutex::new));
        let inputs = inputs.collect::<Result<_, _>>()?;
        let side = || Results::new(&layout).map(RwLock::new);
        let results = (0..LANES).map(|_| Ok([side()?, side()?])).collect::<Result<_, BatchError>>()?;
        let shared = Arc::new(Shared {
            layout,
            deadline: options.deadline.min(LONGEST),
            queue: Mutex::new(Queue::new(options.max_rows)),
            turns: [(); TURNS as usize].map(|()| Condvar::new()),
            work: Condvar::new(),
            calls: AtomicU32::new(0),
            done: [(); LANES].map(|()| AtomicU32::new(0)),
            wakes: if cores > 2 { 2 } else { 1 },
            inputs,
            results,
        });
        let mut batcher = Batcher { shared, workers: Vec::new() };
        for _ in 0..calls.clamp(1, LANES) {
            let mut context = Context::new(model)?;
            context.set_threads(options.threads)?;
            let shared = batcher.shared.clone();
            let worker = thread::Builder::new().name("symshape-batcher".into());
            let worker = worker.spawn(move || shared.work(&mut context));
            batcher.workers.push(worker.map_err(|_| OpenError::Threads { threads: 1 })?);
        }
        Ok(batcher)
    }

    /// Submits a request of one or more rows and waits for its results, which go to `outputs`.
    ///
    /// # Errors
    /// As [`Batcher::submit`] and [`Ticket::wait`].
    pub fn call(&self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), BatchError> {
        self.submit(inputs)?.wait(outputs)
    }

    /// Copies a request of one or more rows into the next batch that has room, waiting for one if there is none.
    ///
    /// A ticket keeps its batch's memory: hold none back while waiting for others.
    ///
    /// # Errors
    /// Inputs that are not as the batcher was told.
    pub fn submit(&self, inputs: &[TensorRef<'_>]) -> Result<Ticket, BatchError> {
        let shared = &self.shared;
        let rows = shared.layout.accept(inputs)?;
        let ticket = self.admit(rows);
        lock(&shared.inputs[ticket.lane]).put(&shared.layout, ticket.first, rows, inputs);
        let mut queue = lock(&shared.queue);
        let progress = &mut queue.lanes[ticket.lane];
        progress.filling -= 1;
        if progress.filling == 0 && progress.phase == Phase::Closed {
            shared.call_worker(&queue);
        }
        drop(queue);
        Ok(ticket)
    }

    /// Waits for this request's turn and for room.
    fn admit(&self, rows: usize) -> Ticket {
        let shared = &self.shared;
        let mut queue = lock(&shared.queue);
        let turn = queue.arrived;
        queue.arrived += 1;
        loop {
            if queue.admitted == turn
                && let Some((lane, first)) = shared.place(&mut queue, rows)
            {
                queue.admitted += 1;
                let next = shared.next_turn(&queue);
                let batch = queue.lanes[lane].batch;
                drop(queue);
                next.into_iter().for_each(Condvar::notify_all);
                return Ticket { shared: shared.clone(), lane, batch, first, rows };
            }
            queue = wait(&shared.turns[(turn % TURNS) as usize], queue);
        }
    }
}

impl fmt::Debug for Batcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("layout", &self.shared.layout).finish()
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("lane", &self.lane).field("batch", &self.batch).finish()
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.stopping = true;
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        self.shared.work.notify_all();
        drop(queue);
        for worker in self.workers.drain(..) {
            // A worker that panicked has nothing more to say.
            let _ = worker.join();
        }
    }
}

impl Ticket {
    /// Waits until the batch has run, and copies this request's rows into `outputs`.
    ///
    /// # Errors
    /// Outputs of the wrong number, type or size, or what the model met in this request's data; other requests of the
    /// batch are not concerned.
    pub fn wait(self, outputs: &mut [TensorMut<'_>]) -> Result<(), BatchError> {
        let shared = &self.shared;
        shared.sleep_until_done(self.lane, self.batch);
        let results = &shared.results[self.lane][Progress::side(self.batch)];
        let results = results.read().unwrap_or_else(PoisonError::into_inner);
        results.take(&shared.layout, self.first, self.rows, outputs)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        let progress = &mut queue.lanes[self.lane];
        if progress.batch == self.batch {
            progress.tickets -= 1;
            return;
        }
        let left = &mut progress.left[Progress::side(self.batch)];
        *left -= 1;
        if *left == 0 {
            let next = self.shared.next_turn(&queue);
            drop(queue);
            next.into_iter().for_each(Condvar::notify_all);
        }
    }
}

impl Shared {
    /// Where the request waits whose turn it is, if there is one; woken while the queue is locked, it would sleep again.
    fn next_turn(&self, queue: &Queue) -> Option<&Condvar> {
        (queue.admitted < queue.arrived).then(|| &self.turns[(queue.admitted % TURNS) as usize])
    }

    /// Lets a worker look at the queue.
    fn call_worker(&self, queue: &Queue) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if queue.sleeping_workers > 0 && !queue.is_watched {
            self.work.notify_one();
        }
    }

    fn is_done(&self, lane: usize, batch: u32) -> bool {
        // More than half of all numbers ahead is behind.
        (self.done[lane].load(Ordering::Acquire).wrapping_sub(batch) as i32) > 0
    }

    /// Sleeps until a batch is done, and wakes others that wait for one.
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
        // Who wakes for another reason than being woken is still in the list.
        let sleepers = &mut queue.sleepers[lane];
        if let Some(at) = sleepers.iter().position(|(_, thread)| thread.id() == own.id()) {
            sleepers.swap_remove(at);
        }
        let next =
            [0, 1].map(|number| if number < self.wakes { self.pop_sleeper(&mut queue, lane) } else { None });
        drop(queue);
        next.iter().flatten().for_each(Thread::unpark);
    }

    /// Somebody who sleeps although the batch is done.
    fn pop_sleeper(&self, queue: &mut Queue, lane: usize) -> Option<Thread> {
        let sleepers = &mut queue.sleepers[lane];
        let at = sleepers.iter().position(|(batch, _)| self.is_done(lane, *batch))?;
        Some(sleepers.swap_remove(at).1)
    }

    /// Room for so many rows, if there is any now.
    fn place(&self, queue: &mut Queue, rows: usize) -> Option<(usize, usize)> {
        // The lane that is being filled comes before an empty one.
        let mut lanes: [usize; LANES] = std::array::from_fn(|lane| lane);
        lanes.sort_unstable_by_key(|lane| std::cmp::Reverse(queue.lanes[*lane].rows));
        for lane in lanes {
            let progress = &mut queue.lanes[lane];
            let first = progress.rows;
            if progress.phase != Phase::Open || progress.left[Progress::side(progress.batch)] > 0 {
                continue;
            }
            if first + rows > self.layout.max_rows {
                progress.phase = Phase::Closed;
                self.call_worker(queue);
                continue;
            }
            progress.rows += rows;
            progress.filling += 1;
            progress.tickets += 1;
            if first == 0 {
                progress.due = Instant::now() + self.deadline;
            }
            if progress.rows == self.layout.max_rows {
                progress.phase = Phase::Closed;
            }
            if first == 0 {
                self.call_worker(queue);
            }
            return Some((lane, first));
        }
        None
    }

    /// A worker: runs one batch after another.
    fn work(&self, context: &mut Context) {
        while let Some((lane, rows, batch)) = self.next_batch() {
            let side = Progress::side(batch);
            let mut results = self.results[lane][side].write().unwrap_or_else(PoisonError::into_inner);
            lock(&self.inputs[lane]).run(&self.layout, context, rows, &mut results);
            drop(results);
            let mut queue = lock(&self.queue);
            let progress = &mut queue.lanes[lane];
            progress.left[side] = std::mem::take(&mut progress.tickets);
            progress.batch = batch.wrapping_add(1);
            (progress.phase, progress.rows) = (Phase::Open, 0);
            self.done[lane].store(progress.batch, Ordering::Release);
            let first = self.pop_sleeper(&mut queue, lane);
            let next = self.next_turn(&queue);
            drop(queue);
            next.into_iter().for_each(Condvar::notify_all);
            first.iter().for_each(Thread::unpark);
        }
    }

    /// Waits for a batch that is to be run now; `None` when there will be none.
    fn next_batch(&self) -> Option<(usize, usize, u32)> {
        let mut queue = lock(&self.queue);
        let mut looks = LOOKS;
        loop {
            let (now, stopping) = (Instant::now(), queue.stopping);
            for progress in &mut queue.lanes {
                if progress.phase == Phase::Open && progress.rows > 0 && (stopping || progress.due <= now) {
                    progress.phase = Phase::Closed;
                }
            }
            let ready = |lane: &usize| {
                let progress = &queue.lanes[*lane];
                progress.phase == Phase::Closed && progress.filling == 0
            };
            if let Some(lane) = (0..LANES).filter(ready).min_by_key(|lane| queue.lanes[*lane].due) {
                let progress = &mut queue.lanes[lane];
                progress.phase = Phase::Running;
                let (rows, batch) = (progress.rows, progress.batch);
                // Requests that came meanwhile are another worker's to watch.
                if queue.lanes.iter().any(|lane| lane.rows > 0 && lane.phase != Phase::Running) {
                    self.call_worker(&queue);
                }
                return Some((lane, rows, batch));
            }
            let pending = queue.lanes.iter().any(|progress| progress.phase == Phase::Closed);
            if stopping && !pending {
                return None;
            }
            let open = queue.lanes.iter().filter(|lane| lane.phase == Phase::Open && lane.rows > 0);
            let due = open.map(|lane| lane.due).min();
            if looks > 0 && !queue.is_watched {
                let before = self.calls.load(Ordering::Relaxed);
                queue.is_watched = true;
                drop(queue);
                // Where cores are few, a look may take as long as somebody else computes.
                let in_time = || due.is_none_or(|due| Instant::now() < due);
                while looks > 0 && self.calls.load(Ordering::Relaxed) == before && in_time() {
                    thread::yield_now();
                    looks -= 1;
                }
                queue = lock(&self.queue);
                queue.is_watched = false;
                continue;
            }
            queue.sleeping_workers += 1;
            queue = match due {
                None => wait(&self.work, queue),
                Some(due) => {
                    let pause = due.saturating_duration_since(now);
                    let waited = self.work.wait_timeout(queue, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            queue.sleeping_workers -= 1;
        }
    }
}

/// What is behind a lock: nothing panics while it holds one of ours but after all its changes.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'q, T>(condition: &Condvar, guard: MutexGuard<'q, T>) -> MutexGuard<'q, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
