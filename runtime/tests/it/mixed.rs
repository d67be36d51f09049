//! The batcher of mixed shapes: requests of one shape share calls, within the limits, and none is lost.

use crate::fake;

use std::{
    ffi::c_void,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};
use symshape_runtime::{
    BatchError, BatchOptions, Batcher, TensorMut, TensorRef, Ticket,
    abi::{Exec, ModelDesc},
};

/// The row lengths that the model allows.
const LENGTHS: [usize; 3] = [2, 4, 8];

fn options(max_rows: usize, deadline: Duration) -> BatchOptions {
    BatchOptions { max_rows, deadline, ..BatchOptions::default() }
}

/// A request of rows of one length, with values that differ from those of other requests.
struct Request {
    rows: usize,
    length: usize,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Request {
    fn new(rows: usize, length: usize, seed: usize) -> Request {
        let value = |idx: usize| ((seed * 31 + idx * 7) % 1000) as f32;
        Request {
            rows,
            length,
            x: (0..rows * length).map(value).collect(),
            y: (0..rows).map(|idx| 0.5 * value(idx + 3)).collect(),
        }
    }

    fn submit(&self, batcher: &Batcher) -> Result<Ticket, BatchError> {
        batcher.submit(&[
            TensorRef::new(&[self.rows, self.length], &self.x).expect("sized"),
            TensorRef::new(&[self.rows], &self.y).expect("sized"),
        ])
    }

    /// Waits for the results, and compares them.
    fn check(&self, ticket: Ticket) {
        let mut z = vec![f32::NAN; self.x.len() + 1];
        ticket.wait(&mut [TensorMut::new(&mut z[..self.x.len()])]).expect("in contract");
        for (idx, x) in self.x.iter().enumerate() {
            assert_eq!(z[idx], 2.0 * x + self.y[idx / self.length], "element {idx}");
        }
        assert!(z[self.x.len()].is_nan(), "a write beyond the request's results");
    }

    fn call(&self, batcher: &Batcher) {
        self.check(self.submit(batcher).expect("in contract"));
    }
}

static N_CALLS: AtomicUsize = AtomicUsize::new(0);
static MAX_ARENA: AtomicUsize = AtomicUsize::new(0);

/// The model of rows, which counts its calls and records the largest arena.
unsafe extern "C" fn run_counted(
    inputs: *const *const c_void,
    outputs: *const *mut c_void,
    dims: *mut i64,
    arena: *mut c_void,
    exec: *const Exec,
) -> i32 {
    N_CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: as the caller promises; there are two symbols.
    unsafe {
        MAX_ARENA.fetch_max((4 * *dims * *dims.add(1)) as usize, Ordering::SeqCst);
        fake::run_rows(inputs, outputs, dims, arena, exec)
    }
}

#[test]
fn requests_of_mixed_shapes_share_calls_within_the_arena_limit() {
    const THREADS: usize = 16;
    const ROUNDS: usize = 120;
    const ARENA_BYTES: usize = 160;
    let desc = ModelDesc { n_outputs: 1, run: run_counted, ..fake::desc() };
    let model = fake::open(desc).expect("well-formed");
    let limits = options(16, Duration::from_micros(300));
    let options = BatchOptions { arena_bytes: Some(ARENA_BYTES), ..limits };
    let batcher = Batcher::mixed(&model, "N", options).expect("a model of rows");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let batcher = &batcher;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let length = LENGTHS[(thread * 5 + round * 3 + round / 7) % 3];
                    let request = Request::new(1 + (thread + round) % 4, length, thread * 1000 + round);
                    request.call(batcher);
                }
            });
        }
    });

    let n_calls = N_CALLS.load(Ordering::SeqCst);
    assert!(n_calls < THREADS * ROUNDS, "no two requests shared a batch: {n_calls} calls");
    assert_eq!(batcher.n_batches(), n_calls as u64);
    let max_arena = MAX_ARENA.load(Ordering::SeqCst);
    assert!(max_arena <= ARENA_BYTES, "a batch took {max_arena} bytes");
    assert!(max_arena > ARENA_BYTES / 2, "batches took at most {max_arena} bytes");
}

#[test]
fn a_rare_shape_is_served_while_another_one_floods_the_batcher() {
    let batcher = Batcher::mixed(&fake::rows(), "N", options(8, Duration::from_micros(100)));
    let batcher = batcher.expect("a model of rows");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (batcher, is_over) = (&batcher, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    Request::new(1 + thread % 3, 8, thread).call(batcher);
                }
            });
        }
        // A starved request would hang the test.
        (0..50).for_each(|round| Request::new(1, 2, round).call(&batcher));
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn no_request_is_lost_when_the_batcher_stops() {
    for round in 0..40 {
        let batcher = Batcher::mixed(&fake::rows(), "N", options(4, Duration::from_secs(3600)));
        let batcher = std::sync::Arc::new(batcher.expect("a model of rows"));
        let submit = |thread: usize| {
            let batcher = batcher.clone();
            std::thread::spawn(move || {
                let request =
                    Request::new(1 + thread % 2, LENGTHS[(thread + round) % 3], thread + 10 * round);
                let ticket = request.submit(&batcher).expect("in contract");
                // The last thread that drops the batcher stops it, whichever it is.
                drop(batcher);
                request.check(ticket);
            })
        };
        let threads: Vec<_> = (0..5).map(submit).collect();
        drop(batcher);
        threads.into_iter().for_each(|thread| thread.join().expect("its results"));
    }
}

#[test]
fn bad_requests_are_refused_before_they_wait() {
    let limits = options(16, Duration::from_secs(3600));
    let options = BatchOptions { arena_bytes: Some(100), ..limits };
    let batcher = Batcher::mixed(&fake::rows(), "N", options).expect("a model of rows");
    let refused = |x: &[usize], y: &[usize]| {
        let (data, other) = (vec![0f32; x.iter().product()], vec![0f32; y.iter().product()]);
        let inputs = [TensorRef::new(x, &data).expect("sized"), TensorRef::new(y, &other).expect("sized")];
        batcher.submit(&inputs).expect_err("refused").to_string()
    };
    assert_eq!(refused(&[0, 4], &[0]), "got 0 rows; a batch has 1 to 16");
    assert_eq!(refused(&[17, 2], &[17]), "got 17 rows; a batch has 1 to 16");
    assert_eq!(refused(&[1, 3], &[1]), "`x` axis 1 gives S = 3; S is declared one of 2, 4, 8");
    assert_eq!(refused(&[2, 4], &[1]), "input 1 has 1 rows, input 0 has 2");
    assert_eq!(refused(&[2, 4, 1], &[2]), "`x` has 2 axes; got 3");
    assert_eq!(
        refused(&[5, 8], &[5]),
        "5 rows of this shape need 160 bytes of arena; the batcher's limit is 100"
    );
    assert_eq!(batcher.submit(&[]).expect_err("refused").to_string(), "got 0 inputs; the model has 2");

    let growing = Batcher::mixed(&fake::growing(), "N", limits).expect_err("no bound").to_string();
    assert!(growing.contains("needs an upper bound for every symbol"), "{growing}");
}

#[test]
fn the_arena_limits_batches_of_one_shape_too() {
    let options = BatchOptions { arena_bytes: Some(100), ..options(16, Duration::ZERO) };
    let batcher = Batcher::new(&fake::rows(), "N", &[&[8], &[]], options).expect("three rows fit");
    Request::new(3, 8, 1).call(&batcher);
    let error = Request::new(4, 8, 1).submit(&batcher).expect_err("too many").to_string();
    assert_eq!(error, "got 4 rows; a batch has 1 to 3");
    let none = BatchOptions { arena_bytes: Some(31), ..options };
    let error = Batcher::new(&fake::rows(), "N", &[&[8], &[]], none).expect_err("not one row fits");
    assert_eq!(error.to_string(), "1 rows of this shape need 32 bytes of arena; the batcher's limit is 31");
}
