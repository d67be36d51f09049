//! `symc compile`: a model into an artefact, or a stage's text.

mod model;
mod request;

use self::{
    model::{command_line, import_options, lower, quantised},
    request::{Request, validate},
};
use super::{
    args,
    artefact::{self, OutputKind, Summary},
    errors::{at_path, usage},
    output::{Verdict, print_line},
    passes,
    progress::Progress,
    ragged,
    source::{self, milliseconds},
    web,
    weight_types::WeightTypeArgs,
};
use crate::{
    codegen::{self, ModuleKind},
    emit,
    error::{At, Error, Result},
    options::{CompileOptions, DEFAULT_THREADS},
    partition,
    pipeline::Lowered,
    plan,
    scalar::Precision,
    target::Target,
};
use clap::ValueEnum;
use std::{path::PathBuf, time::Instant};

/// Examples at the end of `symc help compile`.
const EXAMPLES: &str = "\
Examples:
  # A shared object for this machine, for batches of 1 to 64:
  symc compile model.onnx --dim N=1..64 -o model.so

  # An object file for two x86-64 levels, one of which is chosen at load time, and a page about its memory:
  symc compile model.onnx --dim N=1..64 --cpu x86-64-v3,x86-64-v4 --report model.html -o model.o

  # A module for browsers and Node, with its types:
  symc compile model.onnx --dim N=1..4 -o model.wasm
";

/// Arguments of `symc compile`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// ONNX file
    model: PathBuf,
    #[command(flatten)]
    dims: args::DimArgs,
    #[command(flatten)]
    ragged: ragged::RaggedArgs,
    /// Artefact to write, by the end of its name: an object (.o, .obj), a static library (.a, .lib), a shared library
    /// (.so, .dll, .dylib) or C source (.c), with the C header next to it (.h); or WebAssembly (.wasm), with an ES
    /// module and its types next to it (.mjs, .d.mts)
    #[arg(short, long, value_name = "OUT", required_unless_present = "emit")]
    output: Option<PathBuf>,
    /// Prefix of the C names; default: the name of the model file
    #[arg(long)]
    name: Option<String>,
    /// Target triple of the machine; offload targets may precede it, separated by commas, such as
    /// npu,x86_64-unknown-linux-gnu; default: this machine
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    #[command(flatten)]
    oversized: args::OversizedArgs,
    /// ISA level or levels, separated by commas; the best level that the machine supports is chosen at load time;
    /// default: the level of this machine. WebAssembly has the levels simd128, its default, and relaxed-simd
    #[arg(long, value_name = "LEVEL")]
    cpu: Option<String>,
    /// Number of threads to reserve scratch memory for; calls with more threads still work, but share it
    #[arg(long, value_name = "T", default_value_t = DEFAULT_THREADS)]
    threads: u32,
    /// Split the network into K partitions that callers may schedule themselves; `auto` splits at branches that can
    /// run at the same time
    #[arg(long, value_name = "K")]
    partitions: Option<partition::Count>,
    /// Orders in which partitions may run; memory is planned for them
    #[arg(long, value_enum, default_value_t = Orders::Any, requires = "partitions")]
    policies: Orders,
    /// Accept symbols without an upper bound; a context then takes more memory when a call needs it
    #[arg(long, alias = "grow", conflicts_with = "emit")]
    dynamic_memory: bool,
    #[command(flatten)]
    precision: args::PrecisionArgs,
    #[command(flatten)]
    weight_types: WeightTypeArgs,
    /// With --precision, on machines without tile registers (AMX): run f32 code, or fail
    #[arg(long, value_enum, default_value_t = Fallback::F32, conflicts_with = "partitions")]
    fallback: Fallback,
    /// C source with its own mathematical functions instead of those of math.h; implied by a --target without an
    /// operating system
    #[arg(long, conflicts_with = "emit")]
    no_libm: bool,
    /// Write the weights to this file instead of the artefact; its name must end with .weights. A shared library and
    /// its weights file must be in one folder. A model with more than 1 GB of weights gets such a file by itself
    #[arg(long, value_name = "M.weights", conflicts_with_all = ["emit", "in_artefact"])]
    weights_file: Option<PathBuf>,
    /// Keep the weights in the artefact, however large they are
    #[arg(long = "weights-in-artefact", conflicts_with = "emit")]
    in_artefact: bool,
    /// Print the text of a stage instead of writing an artefact
    #[arg(long, value_enum)]
    emit: Option<Stage>,
    /// Also write an HTML page that shows the call contract, the arena at any size, and the kernels
    #[arg(long, value_name = "R.html", conflicts_with = "emit")]
    report: Option<PathBuf>,
    #[command(flatten)]
    passes: passes::PassFlags,
    /// Print one JSON object to standard output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fallback {
    /// Run f32 code, which the artefact contains too
    F32,
    /// Fail with an error that names the missing registers
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Orders {
    /// One after another, in the order of the table
    Serial,
    /// In any order that respects the dependencies, also at the same time
    Any,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    Graph,
    Kernel,
    Plan,
    Clif,
    Asm,
}

/// Compiles the model to an artefact, or prints the text of a stage.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let request = validate(args)?;
    compile(&request)
}

fn compile(request: &Request<'_>) -> Result<Verdict> {
    let Request { args, target, .. } = request;
    let mut watch = passes::Watch::new(&args.passes)?;
    let progress = Progress::new(format!("importing {}", args.model.display()), 0);
    let start = Instant::now();
    if args.emit == Some(Stage::Graph) {
        let graph = source::graph(&args.model, &import_options(args)?)?;
        let graph = quantised(args, graph)?.0;
        print_line(&graph.to_string());
        return Ok(Verdict::Yes);
    }

    let mut model = lower(request, &mut watch, &progress)?;
    let weights_path = weights_path(request, &model.lowered);
    model.lowered.options.weights_file = weights_path.is_some();
    let lowered = &model.lowered;
    source::print_warnings(&args.model, lowered);
    let place = || args.model.display().to_string();
    if let Some(stage) = args.emit {
        print(stage, lowered, target).at(place)?;
        watch.lap("print");
        watch.finish();
        return Ok(Verdict::Yes);
    }

    let Some(output) = &request.output else {
        return Err(usage("-o OUT is missing: name the artefact to write"));
    };
    // The artefact is written last and gets its name first. So if any file can't be written, no file appears.
    let stage_report = |path: &PathBuf| emit::stage(path, lowered.report().as_bytes());
    let report = args.report.as_ref().map(stage_report).transpose()?;
    watch.lap("report");
    progress.say("generating code");
    let mut summary = match output.kind {
        OutputKind::Artifact(artifact) => {
            let mut compiled = lowered.compile(target, artifact).at(place)?;
            compiled.object.command_line = command_line(args, target, &model);
            watch.lap("code");
            progress.say("writing");
            let libraries = &args.dims.customs.libraries;
            let files = artefact::Files { path: output.path, weights: weights_path.as_deref(), libraries };
            artefact::write(&files, artifact, lowered, compiled, target, &progress)?
        }
        OutputKind::Source => {
            progress.say("writing");
            artefact::write_source(output.path, weights_path.as_deref(), lowered, &progress)?
        }
        OutputKind::Web => {
            let compiler = request.web_compiler.as_ref();
            let compiler = compiler.ok_or_else(|| Error::internal("WebAssembly without a C compiler"))?;
            progress.say("compiling C to WebAssembly");
            web::write(output.path, weights_path.as_deref(), lowered, compiler, &progress).at(place)?
        }
    };
    report.map_or(Ok(()), emit::Staged::commit)?;
    let bytes = at_path(std::fs::metadata(output.path), output.path)?.len();
    watch.lap("write");
    drop(progress);

    if let Some(note) = &model.size_note {
        eprintln!("symc: --dynamic-memory: {note}");
    }
    warn_without_bf16(lowered, &summary, target);
    // A lint for those who work on the compiler; `symc report` prints the list in all builds.
    if cfg!(debug_assertions) && matches!(output.kind, OutputKind::Artifact(_)) {
        codegen::scalar_loops(&lowered.program).iter().for_each(|found| eprintln!("symc: note: {found}"));
    }
    watch.finish();
    let compile_ms = milliseconds(start);
    summary.weight_table = model.weight_table.clone();
    summary.activations = model.activations.clone();
    summary.trial = model.trial.clone();
    summary.set_row_error(model.state_error.clone());
    summary.print(output.path, bytes, lowered.plan.arena_max, compile_ms, args.json);
    // The process ends soon. Freeing a million small terms would take a twelfth of the time.
    std::mem::forget(model);
    Ok(Verdict::Yes)
}

/// Weights of more bytes than this are written to a separate file by default.
const MAX_WEIGHTS_IN_ARTEFACT: usize = 1 << 30;

/// The weights file to write, if there is one.
fn weights_path(request: &Request<'_>, lowered: &Lowered) -> Option<PathBuf> {
    let output = request.output.as_ref()?;
    if let Some(path) = &request.args.weights_file {
        return Some(path.clone());
    }
    let is_large = lowered.program.const_bytes() as usize > MAX_WEIGHTS_IN_ARTEFACT;
    (is_large && !request.args.in_artefact).then(|| output.path.with_extension("weights"))
}

/// The object of a model whose weights are in a file, for the machine of the command line.
pub(super) fn object(args: &Args, progress: &Progress) -> Result<emit::Object> {
    let request = validate(args)?;
    let mut watch = passes::Watch::new(&args.passes)?;
    let mut model = lower(&request, &mut watch, progress)?;
    model.lowered.options.weights_file = true;
    let artifact = match request.output.as_ref().map(|output| output.kind) {
        Some(OutputKind::Artifact(artifact)) => artifact,
        _ => return Err(usage("C source and WebAssembly have no weights file that can be replaced")),
    };
    progress.say("packing weights");
    let compiled =
        model.lowered.compile(&request.target, artifact).at(|| args.model.display().to_string())?;
    Ok(compiled.object)
}

/// Notes on standard error that no code of the artefact has the precision of the command line.
fn warn_without_bf16(lowered: &Lowered, summary: &Summary, target: &Target) {
    let precision = lowered.program.precision;
    let has_matrices = lowered.program.on_bf16_matrices_count() > 0;
    if precision == Precision::F32 || summary.tile_kernels > 0 || has_matrices {
        return;
    }

    let why = if target.has_tiles() {
        "the model has no contraction that fits tile registers"
    } else if !target.has_bf16_matrices() {
        "no level of --cpu multiplies bf16"
    } else if precision == Precision::Bf16 {
        "the model has no contraction that fits matrices of bf16"
    } else {
        "the levels of --cpu multiply bf16 only at --precision bf16"
    };
    eprintln!("symc: --precision {precision}: {why}, so contractions multiply f32");
}

/// Prints the text of a stage after lowering.
fn print(stage: Stage, lowered: &Lowered, target: &Target) -> Result<()> {
    let Lowered { program, plan, .. } = lowered;
    match stage {
        Stage::Graph | Stage::Kernel => print_line(&program.to_string()),
        Stage::Plan => print_line(&plan::text::text(&lowered.program, &lowered.plan)),
        Stage::Clif => {
            let target = Target { wider: Vec::new(), ..target.clone() };
            let options = CompileOptions::default().listing(true);
            print_line(&emit::object::object(program, plan, &target, ModuleKind::Object, &options)?.1.clif);
        }
        Stage::Asm => {
            let options = CompileOptions::default();
            let (object, _) = emit::object::object(program, plan, target, ModuleKind::Object, &options)?;
            print_line(&super::asm::listing(&object.into_bytes()?)?);
        }
    }

    Ok(())
}
