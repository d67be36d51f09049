//! `symc bench`: times calls at given sizes.
//!
//! The timed loop never allocates and never enters the kernel. Samples go to storage of a fixed size; when it is full,
//! every other sample is dropped. The clock is read through the vdso. Two runs of different lengths therefore make the
//! same number of heap calls, which an external counter can check.

use super::{
    args, at,
    errors::usage,
    feed,
    output::{Verdict, print_line},
    packed::{self, CallInputs},
    ragged::{self, Lengths},
    source, stateful,
};
use crate::{
    accuracy::inputs,
    error::{At, Error, ErrorKind, Result},
    options::CompileOptions,
    tensor::{self, Tensor},
};
use std::{
    fmt::Write,
    path::PathBuf,
    time::{Duration, Instant},
};
use symshape_runtime::{Context, Model, State, StateError, TensorRef};

/// Largest number of samples of one binding.
const MAX_SAMPLES: usize = 1 << 14;

/// Arguments of `symc bench`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// ONNX file, or shared object from `symc compile`
    model: PathBuf,
    #[command(flatten)]
    dims: args::DimArgs,
    #[command(flatten)]
    precision: args::PrecisionArgs,
    #[command(flatten)]
    offload: args::OffloadArgs,
    #[command(flatten)]
    ragged: ragged::RaggedArgs,
    /// Sizes to measure, in order; default: the smallest and the largest
    #[arg(long, value_name = "N=8[,S=128]", num_args = 1..)]
    at: Vec<String>,
    /// Inputs, read from a .npz file with keys NAME or in:NAME; their sizes are measured. A ragged batch takes the
    /// padded inputs with their mask as well
    #[arg(long, value_name = "F.npz")]
    inputs: Option<PathBuf>,
    /// Lengths of the sequences of a ragged batch, each list a call; at other sizes, lengths are almost equal
    #[arg(long, value_name = "12,300,45", num_args = 1.., conflicts_with_all = ["at", "inputs"])]
    lengths: Vec<Lengths>,
    /// Number of threads for each call
    #[arg(long, value_name = "T", default_value_t = 1)]
    threads: u32,
    /// How the partitions of the model run, if it has any
    #[arg(long, value_enum, default_value_t = super::args::Policy::Auto)]
    policy: super::args::Policy,
    /// Milliseconds to measure at each size
    #[arg(long, value_name = "MS", default_value_t = 60)]
    min_ms: u64,
    /// Print one JSON object per line to standard output
    #[arg(long)]
    json: bool,
}

/// The measurements of one binding.
struct Timing {
    median_ns: u64,
    min_ns: u64,
    first_ns: u64,
    /// Number of calls after the first.
    reps: u64,
    heap_calls: u64,
}

/// Times calls.
pub(super) fn main(args: &Args, allocations: fn() -> u64) -> Result<Verdict> {
    if args.threads == 0 {
        return Err(usage("--threads 0: expected at least 1"));
    }

    let support = CompileOptions::default().support;
    let loaded =
        source::load(&args.model, &args.dims, &args.precision, &args.offload, &args.ragged, support)?;
    let place = || args.model.display().to_string();
    let mut cases = cases(&loaded.model, args).at(place)?;

    let mut context =
        Context::new(&loaded.model).map_err(|error| Error::new(ErrorKind::Limit, error.to_string()))?;
    context.set_threads(args.threads).map_err(|error| Error::new(ErrorKind::Limit, error.to_string()))?;
    context.set_policy(args.policy.into());

    let mut samples = vec![0_u64; MAX_SAMPLES];
    let mut text = String::with_capacity(4096);
    for Case { at, inputs, state } in &mut cases {
        let refs = tensor::refs(inputs)?;
        let arena_bytes = {
            let dims = match state {
                Some(state) => context.bind_state(&refs, state),
                None => context.bind(&refs),
            };
            let dims = dims.map_err(|error| feed::refused(&error)).at(place)?;
            loaded.model.arena_bytes(dims).map_err(|error| usage(error.to_string()))?
        };

        let budget = Duration::from_millis(args.min_ms);
        let timing =
            time(&mut context, &refs, state.as_mut(), budget, &mut samples, allocations).at(place)?;
        text.clear();
        print(&mut text, args, at, &timing, arena_bytes, &loaded);
        print_line(&text);
    }
    Ok(Verdict::Yes)
}

/// A binding with its inputs, and the state that a call begins with.
struct Case {
    at: String,
    inputs: Vec<Tensor>,
    state: Option<State>,
}

/// The bindings in order, with the inputs of each.
fn cases(model: &Model, args: &Args) -> Result<Vec<Case>> {
    if let Some(path) = &args.inputs {
        if !model.state().is_empty() {
            return Err(usage("--inputs: the inputs don't say how long the state is; use --at"));
        }
        let inputs = CallInputs::read(model, &[], Some(path), None)?.into_tensors();
        let refs = tensor::refs(&inputs)?;
        let mut context =
            Context::new(model).map_err(|error| Error::new(ErrorKind::Limit, error.to_string()))?;
        let dims =
            context.bind(&refs).map_err(|error| feed::refused(&error)).at(|| path.display().to_string())?;
        for at in &args.at {
            if at::dims(model, "--at", at)? != dims {
                let given = inputs::binding(model, dims);
                return Err(usage(format!("--at {at}: the inputs of {} give {given}", path.display())));
            }
        }

        let at = inputs::binding(model, dims);
        return Ok(vec![Case { at, inputs, state: None }]);
    }

    if !args.lengths.is_empty() {
        return args.lengths.iter().map(|lengths| ragged_case(model, lengths)).collect();
    }
    let mut bindings = args.at.iter().map(|at| at::dims_of_step(model, at)).collect::<Result<Vec<_>>>()?;
    if bindings.is_empty() {
        bindings = at::ends(model);
    }
    bindings
        .into_iter()
        .map(|dims| {
            if let Some(lengths) = Lengths::at(model, &dims) {
                return ragged_case(model, &lengths);
            }
            let at = inputs::binding(model, &dims);
            if model.state().is_empty() {
                return Ok(Case { at, inputs: inputs::inputs(model, &dims)?, state: None });
            }
            Ok(Case { at, inputs: inputs::inputs_of_step(model, &dims)?, state: Some(state(model, &dims)?) })
        })
        .collect()
}

/// A call of random sequences of these lengths.
fn ragged_case(model: &Model, lengths: &Lengths) -> Result<Case> {
    let inputs = packed::random(model, lengths)?;
    let mut context = Context::new(model).map_err(|error| Error::new(ErrorKind::Limit, error.to_string()))?;
    let refs = tensor::refs(&inputs)?;
    let dims = context.bind(&refs).map_err(|error| feed::refused(&error))?;
    let at = inputs::binding(model, dims);
    Ok(Case { at, inputs, state: None })
}

/// A state with these sizes, filled with random numbers: pages that were never written would be read too fast.
fn state(model: &Model, dims: &[i64]) -> Result<State> {
    let wrong = |error: StateError| usage(error.to_string());
    let (capacity, length) = stateful::rows(model, dims);
    let mut state = State::with_dims(model, capacity, &stateful::sizes(model, dims)).map_err(wrong)?;
    let tensors: Vec<Tensor> = (0..model.state().len())
        .map(|idx| {
            let mut shape = state.shape(idx);
            if let Some(axis) = model.state()[idx].axis() {
                shape[axis] = length;
            }
            inputs::random(idx as u64, model.state()[idx].dtype(), shape)
        })
        .collect::<Result<_>>()?;
    state.set(&tensor::refs(&tensors)?).map_err(wrong)?;
    Ok(state)
}

/// Calls the model until `budget` is used up, at least three times. Each call finds as many rows in the state.
fn time(
    context: &mut Context,
    inputs: &[TensorRef<'_>],
    mut state: Option<&mut State>,
    budget: Duration,
    samples: &mut [u64],
    allocations: fn() -> u64,
) -> Result<Timing> {
    let mut call = || {
        let length = state.as_ref().map_or(0, |state| state.length());
        let start = Instant::now();
        let result = match &mut state {
            Some(state) => context.run_stateful_views(inputs, state).map(|_| ()),
            None => context.run_views(inputs).map(|_| ()),
        };
        let ns = start.elapsed().as_nanos() as u64;
        if let Some(state) = &mut state {
            state.rewind(length);
        }
        (ns, result)
    };

    let before = allocations();
    let (first_ns, result) = call();
    result.map_err(|error| feed::refused(&error))?;

    let mut reps = 0_u64;
    let mut kept = 0;
    let mut stride = 1_u64;
    let mut min_ns = u64::MAX;
    let start = Instant::now();
    while reps < 3 || start.elapsed() < budget {
        let (ns, _) = call();
        min_ns = min_ns.min(ns);

        if reps.is_multiple_of(stride) {
            samples[kept] = ns;
            kept += 1;
        }

        reps += 1;
        if kept == samples.len() {
            // Keep every other sample, and record half as many from now on.
            for idx in 0..kept / 2 {
                samples[idx] = samples[2 * idx];
            }
            kept /= 2;
            stride *= 2;
        }
    }

    let heap_calls = allocations() - before;
    let samples = &mut samples[..kept];
    samples.sort_unstable();
    Ok(Timing { median_ns: samples[kept / 2], min_ns, first_ns, reps, heap_calls })
}

/// Writes a result into `text`, whose capacity is large enough.
fn print(
    text: &mut String,
    args: &Args,
    at: &str,
    timing: &Timing,
    arena_bytes: usize,
    loaded: &source::Loaded,
) {
    let Timing { median_ns, min_ns, first_ns, reps, heap_calls } = *timing;
    let threads = args.threads;
    let arena_max = loaded.model.arena_max();
    let compile_ms = loaded.compile_ms;
    let precision = source::effective_precision(&loaded.model);
    // The count includes the first call.
    let allocs = heap_calls.div_ceil(reps + 1);

    let result = if args.json {
        let at = serde_json::Value::from(at);
        write!(
            text,
            "{{\"at\":{at},\"median_ns\":{median_ns},\"min_ns\":{min_ns},\"first_ns\":{first_ns},\"reps\":{reps},\
             \"allocs_per_call\":{allocs},\"arena_bytes\":{arena_bytes},\"arena_max\":{arena_max},\"threads\":{threads},\
             \"compile_ms\":{compile_ms},\"precision\":\"{precision}\"}}"
        )
    } else {
        write!(
            text,
            "{at}: median {median_ns} ns, min {min_ns} ns, first {first_ns} ns, {reps} calls, {allocs} heap calls per call, \
             arena {arena_bytes} of {arena_max} B, precision {precision}"
        )
    };
    result.expect("strings take everything");
}
