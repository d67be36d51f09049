//! The batcher: each request gets its own results, requests share batches, and nothing is allocated.

use crate::{counting::all_calls, fake};

use std::{
    ffi::c_void,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};
use symshape_runtime::{
    BatchError, BatchOptions, Batcher, CallError, TensorMut, TensorRef,
    abi::{Exec, ModelDesc},
};

fn options(max_rows: usize, deadline: Duration) -> BatchOptions {
    BatchOptions { max_rows, deadline, ..BatchOptions::default() }
}

fn batcher(max_rows: usize, deadline: Duration) -> Batcher {
    Batcher::new(&fake::rows(), "N", &[&[4], &[]], options(max_rows, deadline)).expect("a model of rows")
}

/// Sends a request of `rows` rows with the value `seed`. Returns whether the results are right.
fn request(batcher: &Batcher, rows: usize, seed: f32) -> Result<bool, BatchError> {
    let (x, y) = ([seed; 4 * 8], [0.5 * seed; 8]);
    let mut z = [f32::NAN; 4 * 8];
    let inputs = [
        TensorRef::new(&[rows, 4], &x[..4 * rows]).expect("the shape's elements"),
        TensorRef::new(&[rows], &y[..rows]).expect("the shape's elements"),
    ];
    batcher.call(&inputs, &mut [TensorMut::new(&mut z[..4 * rows])])?;
    Ok(z[..4 * rows].iter().all(|z| *z == 2.5 * seed) && z[4 * rows..].iter().all(|z| z.is_nan()))
}

/// Defines `$run`, the function of the model of rows, which adds its calls to `$calls`. Tests run at the same time, so
/// each needs a counter.
macro_rules! counted_model {
    ($run:ident, $calls:ident) => {
        static $calls: AtomicUsize = AtomicUsize::new(0);
        unsafe extern "C" fn $run(
            inputs: *const *const c_void,
            outputs: *const *mut c_void,
            dims: *mut i64,
            arena: *mut c_void,
            exec: *const Exec,
        ) -> i32 {
            $calls.fetch_add(1, Ordering::SeqCst);
            // SAFETY: as the caller promises.
            unsafe { fake::run_rows(inputs, outputs, dims, arena, exec) }
        }
    };
}

#[test]
fn many_threads_share_batches_and_get_their_own_results() {
    const THREADS: usize = 24;
    const ROUNDS: usize = 200;
    counted_model!(run, N_CALLS);
    let desc = ModelDesc { n_outputs: 1, run, ..fake::desc() };
    let model = fake::open(desc).expect("well-formed");
    let options = options(16, Duration::from_micros(100));
    let batcher = Batcher::new(&model, "N", &[&[4], &[]], options).expect("a model of rows");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let batcher = &batcher;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let rows = 1 + (thread + round) % 8;
                    let seed = (thread * 1000 + round) as f32;
                    assert!(
                        request(batcher, rows, seed).expect("in contract"),
                        "thread {thread}, round {round}"
                    );
                }
            });
        }
    });

    let n_calls = N_CALLS.load(Ordering::SeqCst);
    assert!(n_calls < THREADS * ROUNDS, "no two requests shared a batch: {n_calls} calls");
}

#[test]
fn requests_that_fill_a_batch_share_one_call() {
    counted_model!(run, N_CALLS);
    let model = fake::open(ModelDesc { n_outputs: 1, run, ..fake::desc() }).expect("well-formed");
    let options = options(4, Duration::from_secs(3600));
    let batcher = Batcher::new(&model, "N", &[&[4], &[]], options).expect("a model of rows");
    let x = [1f32; 4];
    let y = [1f32];
    let inputs = [TensorRef::new(&[1, 4], &x).expect("4"), TensorRef::new(&[1], &y).expect("1")];
    let tickets = [0; 4].map(|_| batcher.submit(&inputs).expect("in contract"));
    for ticket in tickets {
        let mut z = [0f32; 4];
        ticket.wait(&mut [TensorMut::new(&mut z)]).expect("in contract");
        assert_eq!(z, [3.0; 4]);
    }
    assert_eq!(N_CALLS.load(Ordering::SeqCst), 1);
}

/// Number of calls that are running.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// Largest number of calls that ran at once.
static MAX_RUNNING: AtomicUsize = AtomicUsize::new(0);
/// The longest time that a call waits for another one.
static PATIENCE_MS: AtomicU64 = AtomicU64::new(0);

/// Waits until another call runs at the same time.
unsafe extern "C" fn run_with_another(
    _: *const *const c_void,
    _: *const *mut c_void,
    _: *mut i64,
    _: *mut c_void,
    _: *const Exec,
) -> i32 {
    MAX_RUNNING.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    let start = Instant::now();
    let patience = Duration::from_millis(PATIENCE_MS.load(Ordering::SeqCst));
    while MAX_RUNNING.load(Ordering::SeqCst) < 2 && start.elapsed() < patience {
        thread::yield_now();
    }
    RUNNING.fetch_sub(1, Ordering::SeqCst);
    0
}

#[test]
fn batches_run_at_once_up_to_the_limit() {
    let desc = ModelDesc { n_outputs: 1, run: run_with_another, ..fake::desc() };
    let model = fake::open(desc).expect("well-formed");
    let (x, y) = ([0f32; 4], [0f32; 1]);
    let inputs = [TensorRef::new(&[1, 4], &x).expect("4"), TensorRef::new(&[1], &y).expect("1")];
    // The patience is long where a second call must come, and short where none may come.
    for (calls, patience_ms) in [(1, 50), (2, 20_000)] {
        MAX_RUNNING.store(0, Ordering::SeqCst);
        PATIENCE_MS.store(patience_ms, Ordering::SeqCst);
        let calls_at_once = BatchOptions { calls: Some(calls), ..options(1, Duration::ZERO) };
        let batcher = Batcher::new(&model, "N", &[&[4], &[]], calls_at_once).expect("a model of rows");
        let tickets = [0; 2].map(|_| batcher.submit(&inputs).expect("in contract"));
        for ticket in tickets {
            ticket.wait(&mut [TensorMut::new(&mut [0f32; 4])]).expect("run");
        }
        assert_eq!(MAX_RUNNING.load(Ordering::SeqCst), calls);
    }
}

#[test]
fn a_full_batch_does_not_wait_for_the_deadline() {
    for deadline in [Duration::from_secs(3600), Duration::MAX] {
        let batcher = batcher(4, deadline);
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let batcher = &batcher;
                scope.spawn(move || assert!(request(batcher, 2, seed as f32).expect("in contract")));
            }
        });
    }
}

#[test]
fn only_the_request_with_bad_data_fails() {
    let batcher = batcher(8, Duration::from_millis(20));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let batcher = &batcher;
            scope.spawn(move || {
                for round in 0..20 {
                    let is_bad = (thread + round) % 4 == 0;
                    let seed = if is_bad { f32::INFINITY } else { 3.0 };
                    match request(batcher, 2, seed) {
                        Ok(right) => assert!(!is_bad && right),
                        Err(BatchError::Call(CallError::IndexOutOfBounds(_))) => assert!(is_bad),
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
}

#[test]
fn dropped_tickets_do_not_affect_other_requests() {
    let batcher = batcher(4, Duration::from_micros(50));
    let (x, y) = ([1f32; 4], [1f32]);
    let inputs = [TensorRef::new(&[1, 4], &x).expect("4"), TensorRef::new(&[1], &y).expect("1")];
    for round in 0..100 {
        drop(batcher.submit(&inputs).expect("in contract"));
        if round % 3 == 0 {
            assert!(request(&batcher, 1 + round % 4, round as f32).expect("in contract"));
        }
    }
    let last = batcher.submit(&inputs).expect("in contract");
    drop(batcher);
    let mut z = [0f32; 4];
    last.wait(&mut [TensorMut::new(&mut z)]).expect("run before the batcher stopped");
    assert_eq!(z, [3.0; 4]);
}

#[test]
fn results_of_two_batches_wait_at_once() {
    let batcher = batcher(1, Duration::ZERO);
    for round in 0..50 {
        let seeds: Vec<f32> = (0..8).map(|k| (8 * round + k) as f32).collect();
        let tickets: Vec<_> = seeds
            .iter()
            .map(|seed| {
                let (x, y) = ([*seed; 4], [0.5 * seed]);
                let inputs = [TensorRef::new(&[1, 4], &x).expect("4"), TensorRef::new(&[1], &y).expect("1")];
                (*seed, batcher.submit(&inputs).expect("in contract"))
            })
            .collect();
        for (k, (seed, ticket)) in tickets.into_iter().rev().enumerate() {
            let mut z = [0f32; 4];
            if (k + round) % 3 > 0 {
                ticket.wait(&mut [TensorMut::new(&mut z)]).expect("run");
                assert_eq!(z, [2.5 * seed; 4]);
            }
        }
    }
}

#[test]
fn refusals_name_the_violation() {
    let options = options(4, Duration::ZERO);
    let refused = |model, symbol: &str, rows: &[&[usize]], options| {
        Batcher::new(model, symbol, rows, options).expect_err("no batch").to_string()
    };
    let (rows, model) = (fake::rows(), fake::model());
    assert_eq!(
        refused(&model, "N", &[&[4], &[]], options),
        "`rows` has the shape []; to be batched, its first axis must be N, and no other"
    );
    assert_eq!(refused(&rows, "K", &[&[4], &[]], options), "the model has no symbol `K`");
    assert_eq!(refused(&rows, "N", &[&[4]], options), "got 1 inputs; the model has 2");
    assert_eq!(
        refused(&rows, "N", &[&[3], &[]], options),
        "`x` axis 1 gives S = 3; S is declared one of 2, 4, 8"
    );
    let large = BatchOptions { max_rows: 65, ..options };
    assert_eq!(refused(&rows, "N", &[&[4], &[]], large), "got 65 rows; a batch has 1 to 64");
    let batcher = batcher(4, Duration::ZERO);
    assert_eq!(
        request(&batcher, 5, 0.0).expect_err("too many").to_string(),
        "got 5 rows; a batch has 1 to 4"
    );
    let (x, y) = ([1f32; 8], [1f32]);
    let uneven = [TensorRef::new(&[2, 4], &x).expect("8"), TensorRef::new(&[1], &y).expect("1")];
    assert_eq!(batcher.submit(&uneven).expect_err("uneven").to_string(), "input 1 has 1 rows, input 0 has 2");
}

#[test]
fn nothing_is_allocated_in_steady_state() {
    let batcher = batcher(8, Duration::ZERO);
    for round in 0..20 {
        assert!(request(&batcher, 1 + round % 8, 1.0).expect("in contract"));
    }
    // Other tests of this binary run at the same time; one attempt without their calls is enough.
    let is_quiet = (0..2000).any(|_| {
        let before = all_calls();
        for round in 0..20 {
            assert!(request(&batcher, 1 + round % 8, 1.0).expect("in contract"));
        }
        all_calls() == before
    });
    assert!(is_quiet, "requests allocate");
}
