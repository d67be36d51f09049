//! `symc report`: an HTML page about a model, see [`crate::emit::report`].

use super::{
    args, at,
    copies::Copies,
    errors::usage,
    output::{Verdict, print_line},
    progress::Progress,
    ragged, source,
};
use crate::{
    codegen, emit,
    error::{At, Result},
    kernel::Program,
    options::CompileOptions,
    pipeline::{Lowered, Pipeline},
    profile::{Baseline, Machine, Profile, Profiler, Profiles, Scaling, scaling_json, size_json},
};
use serde_json::json;
use std::path::PathBuf;

/// Most threads that are predicted.
const MAX_THREADS: i64 = 1024;

/// Kernels of a profile that are printed; the page has them all.
const SLOWEST: usize = 8;

/// Characters of the name of a kernel that are printed.
const NAME_CHARS: usize = 90;

/// Arguments of `symc report`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// ONNX file
    model: PathBuf,
    #[command(flatten)]
    dims: args::DimArgs,
    #[command(flatten)]
    precision: args::PrecisionArgs,
    #[command(flatten)]
    ragged: ragged::RaggedArgs,
    /// Measure each kernel in calls of these sizes; default: the smallest and the largest, unless --lengths is given
    #[arg(long, value_name = "N=8[,S=128]", num_args = 0..)]
    profile: Option<Vec<String>>,
    /// Measure each kernel of a ragged batch of sequences of these lengths, each list a call
    #[arg(long, value_name = "12,300,45", num_args = 1.., requires = "ragged_length")]
    lengths: Vec<ragged::Lengths>,
    /// Predict the speed-up on these numbers of threads, at the measured sizes: calls are divided as for the threads,
    /// and run on one
    #[arg(long, value_name = "8", num_args = 1.., value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    threads: Vec<u32>,
    /// An earlier page with profiles, whose times are shown next to the new ones
    #[arg(long, value_name = "R.html")]
    baseline: Option<PathBuf>,
    /// HTML page to write
    #[arg(short, long, value_name = "R.html")]
    output: PathBuf,
    /// Print one JSON object to standard output
    #[arg(long)]
    json: bool,
}

/// Lowers the model and writes the page.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let progress = Progress::new(format!("importing {}", args.model.display()), 0);
    let graph = source::graph(&args.model, &args.dims.options(&args.model)?)?;
    let rounded = args.precision.round_activations(&args.model, &graph, &progress)?;
    let mut graph = rounded.map_or(graph, |rounded| rounded.graph);
    args.precision.keep_named(&mut graph)?;

    progress.say("lowering");
    let is_measured = args.profile.is_some() || !args.lengths.is_empty() || !args.threads.is_empty();
    if args.baseline.is_some() && !is_measured {
        return Err(usage("--baseline: give --profile, --lengths or --threads as well"));
    }
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?;
    let options = CompileOptions::default().precision(args.precision.precision);
    // Each thread needs its own scratch memory.
    let threads = args.threads.iter().copied().chain([options.threads]).max().unwrap_or(options.threads);
    let options = options.threads(threads);
    let place = || args.model.display().to_string();
    let pipeline = Pipeline::new(&graph).options(options).state(args.dims.state.request()?);
    let lowered = pipeline.ragged(args.ragged.request()).lower().at(place)?;
    let measured = is_measured.then(|| measure(&lowered, args, &progress)).transpose().at(place)?;

    let page = match &measured {
        Some(Measured { machine, sizes, .. }) => {
            Profiles { machine, sizes, baseline: baseline.as_ref() }.report(&lowered)
        }
        None => lowered.report(),
    };
    emit::write_atomically(&args.output, page.as_bytes())?;
    drop(progress);

    let (sizes, scalings) =
        measured.as_ref().map_or((&[][..], &[][..]), |measured| (&measured.sizes, &measured.scalings));
    if args.json {
        print_json(args, &lowered, page.len(), sizes, scalings)
    } else {
        print_text(args, &lowered, sizes);
        scalings.iter().for_each(|scaling| print_scaling(&lowered.program, scaling));
    }
    Ok(Verdict::Yes)
}

/// The results of all measurements.
struct Measured {
    machine: Machine,
    /// A profile for each of the requested sizes and lists of lengths.
    sizes: Vec<Profile>,
    /// The same sizes on each of the requested numbers of threads.
    scalings: Vec<Scaling>,
}

fn measure(lowered: &Lowered, args: &Args, progress: &Progress) -> Result<Measured> {
    progress.say("measuring");
    let profiler = Profiler::new(lowered)?;
    let model = profiler.model();
    let sizes = args.profile.iter().flatten();
    let mut bindings = sizes.map(|size| at::dims(model, "--profile", size)).collect::<Result<Vec<_>>>()?;
    if bindings.is_empty() && args.lengths.is_empty() {
        bindings = at::ends(model);
    }

    let mut sizes = Vec::new();
    let mut scalings = Vec::new();
    for dims in &bindings {
        sizes.push(profiler.at(dims)?);
        for threads in &args.threads {
            scalings.push(profiler.scaling_at(dims, *threads)?);
        }
    }
    for lengths in &args.lengths {
        let place = || format!("--lengths {lengths}");
        sizes.push(profiler.at_lengths(&lengths.0).at(place)?);
        for threads in &args.threads {
            scalings.push(profiler.scaling_at_lengths(&lengths.0, *threads).at(place)?);
        }
    }
    Ok(Measured { machine: profiler.machine().clone(), sizes, scalings })
}

fn print_json(args: &Args, lowered: &Lowered, bytes: usize, sizes: &[Profile], scalings: &[Scaling]) {
    let Lowered { program, plan, .. } = lowered;
    let profile: Vec<_> = sizes.iter().map(|size| size_json(program, size)).collect();
    let scaling: Vec<_> = scalings.iter().map(|scaling| scaling_json(program, scaling)).collect();
    let line = json!({
        "report": args.output.display().to_string(), "bytes": bytes, "kernels": program.kernels.len(),
        "arena_max": plan.arena_max, "copies": Copies::of(program).json(),
        "scalar_loops": emit::report::scalar_loops(program), "profile": profile,
        "scaling": scaling,
    });
    print_line(&line.to_string());
}

fn print_text(args: &Args, lowered: &Lowered, sizes: &[Profile]) {
    let Lowered { program, plan, .. } = lowered;
    let (path, kernels, arena_max) = (args.output.display(), program.kernels.len(), plan.arena_max);
    let copies = Copies::of(program).phrase();
    print_line(&format!("{path}: {kernels} kernels, arena at most {arena_max} B, {copies}"));
    codegen::scalar_loops(program).iter().for_each(|found| print_line(&found.to_string()));
    sizes.iter().for_each(|profile| print_profile(program, profile));
}

/// The time of a call, and its slowest kernels.
fn print_profile(program: &Program, profile: &Profile) {
    let sum: f64 = profile.kernels.iter().map(|kernel| kernel.ns).sum();
    let at = if profile.at.is_empty() { "the only size" } else { &profile.at };
    let (call, sum_us) = (profile.call_ns / 1e3, sum / 1e3);
    print_line(&format!("{at}: a call takes {call:.1} us, its kernels one by one {sum_us:.1} us"));

    let mut slowest: Vec<_> = profile.kernels.iter().collect();
    slowest.sort_by(|a, b| b.ns.total_cmp(&a.ns));
    for kernel in slowest.into_iter().take(SLOWEST) {
        let name = shortened(&program.kernels[kernel.kernels.start].name);
        let part = 100.0 * kernel.ns / sum.max(1.0);
        let reached =
            kernel.share().map_or(String::new(), |share| format!(", {:.0} % of the bound", 100.0 * share));
        print_line(&format!("  {:.1} us, {part:.0} % of the time{reached}: {name}", kernel.ns / 1e3));
    }
}

/// The predicted speed-up, and the kernels that keep the threads waiting longest.
fn print_scaling(program: &Program, scaling: &Scaling) {
    let Scaling { threads, call, .. } = *scaling;
    let at = if scaling.at.is_empty() { "the only size" } else { &scaling.at };
    let (alone, predicted) = (scaling.alone_ns / 1e3, call.predicted_ns() / 1e3);
    let (speedup, barriers, imbalance) = (scaling.speedup(), call.barriers, call.imbalance(threads));
    let serial = 100.0 * call.serial_ns() / call.predicted_ns().max(1.0);
    print_line(&format!(
        "{at} on {threads} threads: predicted {predicted:.1} us, {speedup:.2} times as fast as the {alone:.1} us of one; \
         {barriers} barriers, the last threads take {imbalance:.2} times the mean, {serial:.0} % is not divided"
    ));

    let mut slowest: Vec<_> = scaling.kernels.iter().collect();
    slowest.sort_by(|a, b| b.lost_ns(threads).total_cmp(&a.lost_ns(threads)));
    for kernel in slowest.into_iter().take(SLOWEST) {
        let name = shortened(&program.kernels[kernel.kernels.start].name);
        let (lost, divided) = (kernel.lost_ns(threads) / 1e3, kernel.divided);
        let (work, shares, imbalance) = (divided.ns / 1e3, divided.shares, divided.imbalance(threads));
        print_line(&format!(
            "  {lost:.1} us lost of {work:.1} us of work, {shares} shares, the last thread {imbalance:.2} times the mean: {name}"
        ));
    }
}

/// The begin of a name that is too long for a line.
fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_CHARS {
        return name.to_string();
    }
    name.chars().take(NAME_CHARS).chain(['…']).collect()
}
