//! Rows a second through the batcher under load from 64 callers, as a fraction of direct calls of whole batches:
//! `cargo bench -p symshape-benches --bench batcher`.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use symshape_compiler::pipeline;
use symshape_runtime::{BatchOptions, Batcher, Context, Model, TensorMut, TensorRef};

const CALLERS: usize = 64;
const MAX_ROWS: usize = 16;
/// The other symbol of the model, and the width of its input.
const S: usize = 32;
const WIDTH: usize = 64;

fn input(rows: usize) -> Vec<f32> {
    (0..rows * S * WIDTH).map(|idx| (idx as f32 * 0.37).sin()).collect()
}

/// Rows a second of a loop of whole batches.
fn direct(model: &Model, time: Duration) -> f64 {
    let mut context = Context::new(model).expect("a small arena");
    let (x, mut rows) = (input(MAX_ROWS), 0);
    let inputs = [TensorRef::new(&[MAX_ROWS, S, WIDTH], &x).expect("sized")];
    let start = Instant::now();
    while start.elapsed() < time {
        context.run_views(&inputs).expect("in contract");
        rows += MAX_ROWS;
    }
    rows as f64 / start.elapsed().as_secs_f64()
}

/// Rows a second of all callers together. Each call has one row.
fn batched(model: &Model, time: Duration) -> f64 {
    let deadline = Duration::from_micros(500);
    let options = BatchOptions { max_rows: MAX_ROWS, deadline, ..BatchOptions::default() };
    let batcher = Batcher::new(model, "N", &[&[S, WIDTH]], options).expect("a model of rows");
    let (stop, rows, start) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                let (x, mut y) = (input(1), vec![0f32; S * WIDTH]);
                let inputs = [TensorRef::new(&[1, S, WIDTH], &x).expect("sized")];
                while !stop.load(Ordering::Relaxed) {
                    batcher.call(&inputs, &mut [TensorMut::new(&mut y)]).expect("in contract");
                    rows.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    rows.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    // As a test, the benchmark only runs once.
    let long = std::env::args().any(|arg| arg == "--bench");
    let (rounds, time) = if long { (7, Duration::from_millis(700)) } else { (1, Duration::from_millis(50)) };
    let model = pipeline::jit(&symshape_benches::block()).expect("supported");
    let mut parts = Vec::new();
    for _ in 0..rounds {
        let (direct, batched) = (direct(&model, time), batched(&model, time));
        parts.push(batched / direct);
        println!(
            "direct {direct:8.0} rows/s, {CALLERS} callers {batched:8.0} rows/s: {:.2}",
            batched / direct
        );
    }
    parts.sort_by(f64::total_cmp);
    println!("median {:.2}", parts[parts.len() / 2]);
}
