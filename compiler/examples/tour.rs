//! A tour of symshape with the transformer block of this repository. It shows one compile for every batch and sequence
//! length, an arena whose size is a formula with a proven bound, and calls that allocate nothing.
//!
//! `cargo run --example tour`

use std::{
    alloc::{GlobalAlloc, Layout, System},
    error::Error,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};
use symshape_compiler::{
    graph::{Graph, eval::eval},
    import::{self, ImportOptions},
    pipeline,
    tensor::Tensor,
};
use symshape_runtime::{Context, Model, TensorRef};

/// Where the sizes are tried.
const SIZES: [[usize; 2]; 6] = [[1, 1], [1, 7], [3, 32], [8, 33], [16, 127], [16, 128]];

/// Width of the model.
const WIDTH: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/block.onnx");
    let options = ImportOptions {
        dims: vec![import::parse_dim("N=1..16")?, import::parse_dim("S=1..128")?],
        ..ImportOptions::default()
    };
    let start = Instant::now();
    let graph = import::import(&import::Model::open(&path)?, &options)?;
    let model = pipeline::jit(&graph)?;
    println!("compiled {} once, in {:.0} ms\n", path.display(), start.elapsed().as_secs_f64() * 1e3);

    contract(&model);
    memory(&model)?;
    let mut context = Context::new(&model)?;
    refusals(&mut context)?;
    calls(&graph, &mut context)?;
    invariance(&mut context)
}

/// Prints the call contract, which the artefact checks before it stores anything.
fn contract(model: &Model) {
    println!("the contract");
    for symbol in model.symbols() {
        println!("  {} is {symbol}", symbol.name());
    }
    for (what, tensors) in [("takes", model.inputs()), ("gives", model.outputs())] {
        for tensor in tensors {
            println!("  {what} {}: {}[{}]", tensor.name(), tensor.dtype(), tensor.dims().join(", "));
        }
    }
}

/// The arena: a closed form, its bound, and its inverse.
fn memory(model: &Model) -> Result<(), Box<dyn Error>> {
    println!("\nthe arena");
    println!("  arena_bytes = {}", model.arena_formula());
    println!("  at most {} bytes, reserved once, committed when touched", model.arena_max());
    for [n, s] in SIZES {
        println!("  N={n:<2} S={s:<3} needs {:>8} bytes", model.arena_bytes(&[n as i64, s as i64])?);
    }
    let budget = 1 << 20;
    if let Some(n) = model.max_dim("N", budget, &[0, 128])? {
        println!("  in {budget} bytes, rows of 128 go up to N={n}");
    }
    Ok(())
}

/// Prints the errors of calls that violate the contract.
fn refusals(context: &mut Context) -> Result<(), Box<dyn Error>> {
    println!("\nout of contract");
    for (n, s) in [(17, 8), (1, 129), (0, 8)] {
        let x = data(n, s);
        match context.run_views(&[TensorRef::new(&[n, s, WIDTH], &x)?]) {
            Ok(_) => println!("  N={n} S={s} was accepted"),
            Err(error) => println!("  {error}"),
        }
    }
    Ok(())
}

/// Results against the reference evaluator, time, and heap calls, at sizes that were never compiled for.
fn calls(graph: &Graph, context: &mut Context) -> Result<(), Box<dyn Error>> {
    println!("\ncalls                largest difference   median      first       heap calls");
    for [n, s] in SIZES {
        let x = data(n, s);
        let inputs = [TensorRef::new(&[n, s, WIDTH], &x)?];
        let mut samples = [0_u64; 101];
        let before = HEAP_CALLS.load(Ordering::Relaxed);
        for sample in &mut samples {
            let start = Instant::now();
            context.run_views(&inputs)?;
            *sample = start.elapsed().as_nanos() as u64;
        }
        let heap_calls = HEAP_CALLS.load(Ordering::Relaxed) - before;
        let first = samples[0];
        samples.sort_unstable();

        let reference =
            Tensor::from_f32(vec![n, s, WIDTH], &x).ok_or("as many elements as the shape says")?;
        let want = &eval(graph, &[reference])?[0];
        let got = context.run_views(&inputs)?.get(0);
        let got = got.elems::<f32>()?;
        let differences = (0..got.len()).map(|idx| (want.get(idx).as_f64() - f64::from(got[idx])).abs());
        let difference = differences.fold(0.0, f64::max);
        let micros = |ns: u64| ns as f64 / 1e3;
        println!(
            "  N={n:<2} S={s:<3}         {difference:>12.1e}   {:>8.1} µs {:>8.1} µs {heap_calls:>8}",
            micros(samples[50]),
            micros(first)
        );
    }
    Ok(())
}

/// A row's bits are the same in every batch.
fn invariance(context: &mut Context) -> Result<(), Box<dyn Error>> {
    let s = 32;
    let x = data(16, s);
    let row = s * WIDTH;
    let whole = context.run_views(&[TensorRef::new(&[16, s, WIDTH], &x)?])?.get(0).bytes().to_vec();
    let mut same = true;
    for n in 1..=16 {
        let part = context.run_views(&[TensorRef::new(&[n, s, WIDTH], &x[..n * row])?])?;
        same &= part.get(0).bytes() == &whole[..4 * n * row];
    }
    println!("\nrows have the same bits in batches of 1 to 16: {}", if same { "yes" } else { "NO" });
    if same { Ok(()) } else { Err("a row depends on its batch".into()) }
}

/// Input for a size.
fn data(n: usize, s: usize) -> Vec<f32> {
    (0..n * s * WIDTH).map(|idx| (idx as f32 * 0.37).sin()).collect()
}

/// The system's allocator, counted.
struct Counting;

static HEAP_CALLS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP_CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HEAP_CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
