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
    profile::{Baseline, Machine, Profile, Profiler, Profiles, size_json},
};
use serde_json::json;
use std::path::PathBuf;

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
    let graph = rounded.map_or(graph, |rounded| rounded.graph);

    progress.say("lowering");
    let is_measured = args.profile.is_some() || !args.lengths.is_empty();
    if args.baseline.is_some() && !is_measured {
        return Err(usage("--baseline: give --profile or --lengths as well"));
    }
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?;
    let options = CompileOptions::default().precision(args.precision.precision);
    let place = || args.model.display().to_string();
    let pipeline = Pipeline::new(&graph).options(options).state(args.dims.state.request()?);
    let lowered = pipeline.ragged(args.ragged.request()).lower().at(place)?;
    let measured = is_measured.then(|| measure(&lowered, args, &progress)).transpose().at(place)?;

    let page = match &measured {
        Some((machine, sizes)) => Profiles { machine, sizes, baseline: baseline.as_ref() }.report(&lowered),
        None => lowered.report(),
    };
    emit::write_atomically(&args.output, page.as_bytes())?;
    drop(progress);

    let sizes = measured.as_ref().map_or(&[][..], |(_, sizes)| sizes);
    if args.json {
        print_json(args, &lowered, page.len(), sizes)
    } else {
        print_text(args, &lowered, sizes)
    }
    Ok(Verdict::Yes)
}

/// The machine, and a profile for each of the requested sizes and lists of lengths.
fn measure(lowered: &Lowered, args: &Args, progress: &Progress) -> Result<(Machine, Vec<Profile>)> {
    progress.say("measuring");
    let profiler = Profiler::new(lowered)?;
    let model = profiler.model();
    let sizes = args.profile.iter().flatten();
    let mut bindings = sizes.map(|size| at::dims(model, "--profile", size)).collect::<Result<Vec<_>>>()?;
    if bindings.is_empty() && args.lengths.is_empty() {
        bindings = at::ends(model);
    }
    let mut profiles = bindings.iter().map(|dims| profiler.at(dims)).collect::<Result<Vec<_>>>()?;
    for lengths in &args.lengths {
        profiles.push(profiler.at_lengths(&lengths.0).at(|| format!("--lengths {lengths}"))?);
    }
    Ok((profiler.machine().clone(), profiles))
}

fn print_json(args: &Args, lowered: &Lowered, bytes: usize, sizes: &[Profile]) {
    let Lowered { program, plan, .. } = lowered;
    let profile: Vec<_> = sizes.iter().map(|size| size_json(program, size)).collect();
    let line = json!({
        "report": args.output.display().to_string(), "bytes": bytes, "kernels": program.kernels.len(),
        "arena_max": plan.arena_max, "copies": Copies::of(program).json(),
        "scalar_loops": emit::report::scalar_loops(program), "profile": profile,
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

/// The begin of a name that is too long for a line.
fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_CHARS {
        return name.to_string();
    }
    name.chars().take(NAME_CHARS).chain(['…']).collect()
}
