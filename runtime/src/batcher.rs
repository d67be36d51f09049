//! Many callers, few calls: requests of some rows each are gathered into one batch, run together, and handed back.
//!
//! Because a row's result has the same bits in any batch, nobody can tell from the results who else was in it.
//!
//! There are two lanes, each with memory for a whole batch and a context. While one runs, the other is filled: a
//! request copies its rows to where the call will read them. A lane is closed when it is full or when the deadline of
//! its first request is over, and free again once its last ticket is redeemed or dropped. Requests are admitted in the
//! order in which they come. All memory is reserved when the batcher is made: in steady state nothing is allocated.

mod lane;

use crate::{CallError, Model, OpenError, QueryError, TensorError, TensorMut, TensorRef};
use lane::{Lane, Layout};
use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use thiserror::Error;

/// Batches that are filled, run or redeemed at the same time.
const LANES: usize = 2;
/// Condition variables that waiting requests are spread over, so that admitting one does not wake all others.
const TURNS: u64 = 64;

/// How batches are made.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Most rows of a batch; at most the upper bound of the batch's symbol.
    pub max_rows: usize,
    /// How long the first request of a batch waits for others at most.
    pub deadline: Duration,
    /// Threads that a call runs on, see [`crate::Context::set_threads`].
    pub threads: u32,
}

/// Why requests can't be batched, or one was refused.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Contexts or threads could not be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The model was asked for what it does not have.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Rows are too large to be tensors.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The call, or this request, breaks the contract.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A tensor does not consist of rows.
    #[error(
        "`{tensor}` has the shape [{dims}]; to be batched, its first axis must be {symbol}, and no other"
    )]
    NotRows {
        /// The tensor.
        tensor: String,
        /// Its declared dims.
        dims: String,
        /// The batch's symbol.
        symbol: String,
    },
    /// More inputs or outputs than a batch can have.
    #[error("a batcher takes at most {} inputs and outputs each", lane::MAX_TENSORS)]
    TooManyTensors,
    /// A batch can't have so many rows.
    #[error("{rows} rows; a batch has 1 to {most}")]
    WrongRows {
        /// How many were asked for.
        rows: usize,
        /// How many there can be.
        most: usize,
    },
    /// Inputs that belong together have different numbers of rows.
    #[error("input {input} has {got} rows, input 0 has {expected}")]
    Uneven {
        /// Index of the input.
        input: usize,
        /// Rows of the first input.
        expected: usize,
        /// Rows of this one.
        got: usize,
    },
}

/// Gathers requests of several threads into calls. Dropping it runs what was submitted, and stops.
///
/// ```no_run
/// use symshape_runtime::{BatchOptions, Batcher, Model, TensorMut, TensorRef};
/// use std::time::Duration;
///
/// let model = Model::open("mlp.so")?;
/// let options = BatchOptions { max_rows: 32, deadline: Duration::from_micros(200), threads: 1 };
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
    worker: Option<JoinHandle<()>>,
}

/// A request that was taken. Dropping it gives its results up, at any time.
#[must_use = "the results are got with `wait`"]
pub struct Ticket {
    shared: Arc<Shared>,
    lane: usize,
    request: usize,
}

struct Shared {
    layout: Layout,
    deadline: Duration,
    queue: Mutex<Queue>,
    /// Where requests wait for their turn, by their number.
    turns: [Condvar; TURNS as usize],
    /// Where the worker waits.
    work: Condvar,
    /// Where tickets wait for their lane.
    done: [Condvar; LANES],
    lanes: [Mutex<Lane>; LANES],
}

#[derive(Debug)]
struct Queue {
    /// Requests that came, and those of them that have a place.
    arrived: u64,
    admitted: u64,
    lanes: [Progress; LANES],
    stopping: bool,
}

/// How far a lane is.
#[derive(Clone, Copy, Debug)]
struct Progress {
    phase: Phase,
    rows: usize,
    /// Requests that have a place and still copy their rows.
    filling: u32,
    /// Requests whose results were neither taken nor given up.
    tickets: u32,
    /// When it is closed at the latest.
    due: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    Closed,
    Running,
    Done,
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
        let lanes = [Lane::new(&layout, options.threads)?, Lane::new(&layout, options.threads)?];
        let idle = Progress { phase: Phase::Open, rows: 0, filling: 0, tickets: 0, due: Instant::now() };
        let shared = Arc::new(Shared {
            layout,
            deadline: options.deadline,
            queue: Mutex::new(Queue { arrived: 0, admitted: 0, lanes: [idle; LANES], stopping: false }),
            turns: std::array::from_fn(|_| Condvar::new()),
            work: Condvar::new(),
            done: std::array::from_fn(|_| Condvar::new()),
            lanes: lanes.map(Mutex::new),
        });
        let theirs = shared.clone();
        let worker = std::thread::Builder::new().name("symshape-batcher".into()).spawn(move || theirs.work());
        let worker = worker.map_err(|_| OpenError::Threads { threads: 1 })?;
        Ok(Batcher { shared, worker: Some(worker) })
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
        let (lane, first) = shared.admit(rows)?;
        let request = lock(&shared.lanes[lane]).put(&shared.layout, first, rows, inputs);
        let mut queue = lock(&shared.queue);
        queue.lanes[lane].filling -= 1;
        if queue.lanes[lane].filling == 0 && queue.lanes[lane].phase == Phase::Closed {
            shared.work.notify_one();
        }
        drop(queue);
        Ok(Ticket { shared: shared.clone(), lane, request })
    }
}

impl fmt::Debug for Batcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("layout", &self.shared.layout).finish()
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("lane", &self.lane).field("request", &self.request).finish()
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        lock(&self.shared.queue).stopping = true;
        self.shared.work.notify_one();
        if let Some(worker) = self.worker.take() {
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
        let mut queue = lock(&self.shared.queue);
        while queue.lanes[self.lane].phase != Phase::Done {
            queue = wait(&self.shared.done[self.lane], queue);
        }
        drop(queue);
        lock(&self.shared.lanes[self.lane]).take(&self.shared.layout, self.request, outputs)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        let progress = &mut queue.lanes[self.lane];
        progress.tickets -= 1;
        if progress.tickets == 0 && progress.phase == Phase::Done {
            self.shared.free(&mut queue, self.lane);
        }
    }
}

impl Shared {
    /// Waits for this request's turn and for room: a lane, and the first of its rows there.
    fn admit(&self, rows: usize) -> Result<(usize, usize), BatchError> {
        let mut queue = lock(&self.queue);
        let turn = queue.arrived;
        queue.arrived += 1;
        loop {
            if queue.admitted == turn
                && let Some(place) = self.place(&mut queue, rows)
            {
                queue.admitted += 1;
                self.next_turn(&queue);
                return Ok(place);
            }
            queue = wait(&self.turns[(turn % TURNS) as usize], queue);
        }
    }

    fn next_turn(&self, queue: &Queue) {
        if queue.admitted < queue.arrived {
            self.turns[(queue.admitted % TURNS) as usize].notify_all();
        }
    }

    /// Room for so many rows, if there is any now.
    fn place(&self, queue: &mut Queue, rows: usize) -> Option<(usize, usize)> {
        // The lane that is being filled comes before an empty one.
        let mut lanes: [usize; LANES] = std::array::from_fn(|lane| lane);
        lanes.sort_unstable_by_key(|lane| std::cmp::Reverse(queue.lanes[*lane].rows));
        for lane in lanes {
            let progress = &mut queue.lanes[lane];
            let first = progress.rows;
            if progress.phase != Phase::Open {
                continue;
            }
            if first + rows > self.layout.max_rows {
                progress.phase = Phase::Closed;
                self.work.notify_one();
                continue;
            }
            progress.rows += rows;
            progress.filling += 1;
            progress.tickets += 1;
            if first == 0 {
                progress.due = Instant::now() + self.deadline;
                self.work.notify_one();
            }
            if progress.rows == self.layout.max_rows {
                progress.phase = Phase::Closed;
            }
            return Some((lane, first));
        }
        None
    }

    /// Empties a lane and lets the next request in.
    fn free(&self, queue: &mut Queue, lane: usize) {
        // Nobody else wants this lock: the batch has run, and all tickets are gone.
        lock(&self.lanes[lane]).clear();
        queue.lanes[lane].phase = Phase::Open;
        queue.lanes[lane].rows = 0;
        self.next_turn(queue);
    }

    /// The worker: runs one batch after another.
    fn work(&self) {
        while let Some((lane, rows)) = self.next_batch() {
            lock(&self.lanes[lane]).run(&self.layout, rows);
            let mut queue = lock(&self.queue);
            queue.lanes[lane].phase = Phase::Done;
            if queue.lanes[lane].tickets == 0 {
                self.free(&mut queue, lane);
            }
            drop(queue);
            self.done[lane].notify_all();
        }
    }

    /// Waits for a batch that is to be run now; `None` when there will be none.
    fn next_batch(&self) -> Option<(usize, usize)> {
        let mut queue = lock(&self.queue);
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
                queue.lanes[lane].phase = Phase::Running;
                return Some((lane, queue.lanes[lane].rows));
            }
            let pending = queue.lanes.iter().any(|progress| progress.phase == Phase::Closed);
            if stopping && !pending {
                return None;
            }
            let open = queue.lanes.iter().filter(|lane| lane.phase == Phase::Open && lane.rows > 0);
            queue = match open.map(|lane| lane.due).min() {
                None => wait(&self.work, queue),
                Some(due) => {
                    let pause = due.saturating_duration_since(now);
                    let waited = self.work.wait_timeout(queue, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
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
