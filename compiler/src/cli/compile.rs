//! `symc compile`: a model into an artefact, or a stage's text.

use super::{
    args::{self, Chosen},
    artefact::{self, Output, OutputKind, Summary},
    errors::{at_path, usage},
    grow,
    output::{Verdict, print_line},
    passes,
    progress::Progress,
    ragged,
    source::{self, milliseconds},
    stateful, web,
    weight_types::WeightTypeArgs,
};
use crate::{
    accuracy::{StateError, TrialReport},
    codegen::{self, ModuleKind},
    emit,
    error::{At, Error, Result},
    graph::Graph,
    import::ImportOptions,
    kernel::Policies,
    offload::{self, Selection},
    options::{CompileOptions, DEFAULT_THREADS},
    partition,
    pipeline::{Ir, Lowered, Pipeline},
    plan,
    quantise::{ActivationSummary, Activations, Quantised, RoundedActivations, WeightTable},
    scalar::Precision,
    target::Target,
};
use clap::{ValueEnum, builder::PossibleValue};
use std::{collections::BTreeSet, ffi::OsString, path::PathBuf, sync::Arc, time::Instant};

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

/// The command line after all checks that need no model.
struct Request<'a> {
    args: &'a Args,
    targets: Vec<Arc<dyn offload::Target>>,
    target: Target,
    /// `None` if only the text of a stage is printed.
    output: Option<Output<'a>>,
    /// The options for the precision of the command line.
    options: CompileOptions,
    /// The C compiler for WebAssembly, if that is the output.
    web_compiler: Option<web::Compiler>,
}

/// A lowered model, and a note about the sizes that `--dynamic-memory` allows.
struct ModelToCompile {
    lowered: Lowered,
    size_note: Option<String>,
    /// The types of the weights, if the command line names any.
    weight_table: Option<WeightTable>,
    /// The effect of rounded activations, if the command line has them.
    activations: Option<ActivationSummary>,
    /// The error of rows of another type, if the command line names one.
    state_error: Option<StateError>,
    /// The nodes whose contractions stay `f32`.
    kept: BTreeSet<String>,
    /// The accuracy check of the precision, if it ran.
    trial: Option<TrialReport>,
}

/// Compiles the model to an artefact, or prints the text of a stage.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let request = validate(args)?;
    compile(&request)
}

/// Checks the command line, and whether the files can be written.
fn validate(args: &Args) -> Result<Request<'_>> {
    if args.threads == 0 {
        return Err(usage("--threads 0: expected at least 1"));
    }

    if args.dynamic_memory && args.dims.state.is_given() {
        return Err(usage(
            "--dynamic-memory: the capacity of a state needs upper bounds; declare them with --dim",
        ));
    }
    if args.dynamic_memory && args.ragged.length.is_some() {
        return Err(usage("--dynamic-memory: a ragged batch needs upper bounds; declare them with --dim"));
    }
    if args.dynamic_memory {
        args.weight_types.require_bounds()?;
        if args.precision.activations != Activations::F32 {
            return Err(usage("--dynamic-memory: --activations needs upper bounds; declare them with --dim"));
        }
    }
    if let Some(file) = &args.weights_file
        && file.extension() != Some("weights".as_ref())
    {
        return Err(usage(format!("--weights-file {}: the name must end with .weights", file.display())));
    }
    args.weights_file.as_deref().map(artefact::weights_name).transpose()?;
    let Selection { targets, machine } = args::select_targets(args.target.as_deref())?;
    let output = args.output.as_deref().map(Output::named).transpose()?;
    let kind = output.as_ref().map(|output| output.kind);
    let is_web = kind == Some(OutputKind::Web);
    let (target, options) = if is_web {
        web_options(args, machine)?
    } else if kind == Some(OutputKind::Source) {
        source_options(args, machine)?
    } else {
        if args.no_libm {
            return Err(usage("--no-libm is for C source: name a file with .c; objects never call math.h"));
        }
        let target = Target::parse(machine, args.cpu.as_deref())?;
        output.as_ref().map_or(Ok(()), |output| output.require_platform(&target))?;
        let base = CompileOptions::for_target(&target).threads(args.threads);
        let options = compile_options(args, base.precision(args.precision.precision), &target)?;
        (target, options)
    };

    let output = output.filter(|_| args.emit.is_none());
    let web_compiler = match &output {
        Some(output) if is_web => Some(web::compiler(args.cpu.as_deref())?),
        _ => None,
    };
    if let Some(output) = &output {
        let files = [Some(output.path.to_path_buf()), args.weights_file.clone(), args.report.clone()];
        let files = files.into_iter().flatten().chain(output.companions());
        files.map(|file| emit::stage(&file, &[])).try_for_each(|staged| staged.map(drop))?;
        args.weights_file.as_deref().map_or(Ok(()), |file| output.require_folder_of(file))?;
    }
    Ok(Request { args, targets, target, output, options, web_compiler })
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

/// The arguments that compile the same artefact from another model, separated by zero bytes. Names, levels and the
/// precision are those that were chosen. Empty if the path of a file is not UTF-8.
fn command_line(args: &Args, target: &Target, model: &ModelToCompile) -> String {
    let ModelToCompile { lowered, weight_table, .. } = model;
    let mut words: Vec<OsString> = Vec::new();
    let mut flag = |name: &str, value: String| words.extend([name.into(), value.into()]);
    flag("--name", lowered.program.name.clone());
    flag("--cpu", target.level_names());
    flag("--threads", args.threads.to_string());
    flag("--precision", lowered.program.precision.name().to_string());
    flag("--max-error", "inf".into());
    model.kept.iter().for_each(|node| flag("--keep-f32", node.clone()));
    flag("--activations", args.precision.activations.to_string());
    if let Some(target) = &args.target {
        flag("--target", target.clone());
    }
    let named = |value: Option<PossibleValue>| value.map_or(String::new(), |value| value.get_name().into());
    match args.partitions {
        Some(partitions) => {
            flag("--partitions", partitions.to_string());
            flag("--policies", named(args.policies.to_possible_value()));
        }
        None => flag("--fallback", named(args.fallback.to_possible_value())),
    }
    flag("--oversized-parts", named(args.oversized.oversized_parts.to_possible_value()));
    if args.dims.bounds.is_none()
        && let Some(file) = args::default_bounds(&args.model)
    {
        words.extend(["--bounds".into(), args::absolute(&file).into()]);
    }
    if args.dynamic_memory {
        words.push("--dynamic-memory".into());
    }
    words.extend(args.dims.command_line());
    words.extend(args.ragged.command_line());
    words.extend(args.weight_types.command_line(weight_table.as_ref()));
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    words.unwrap_or_default().join("\0")
}

/// The importer's options of the command line.
fn import_options(args: &Args) -> Result<ImportOptions> {
    Ok(ImportOptions { name: args.name.clone(), ..args.dims.options(&args.model)? })
}

/// Imports and lowers the model.
fn lower(
    request: &Request<'_>,
    watch: &mut passes::Watch<'_>,
    progress: &Progress,
) -> Result<ModelToCompile> {
    let options = import_options(request.args)?;
    if request.args.dynamic_memory {
        lower_with_dynamic_memory(request, &options, progress)
    } else {
        lower_with_bounds(request, &options, watch, progress)
    }
}

/// Imports and lowers the model with the bounds of the command line.
fn lower_with_bounds(
    request: &Request<'_>,
    options: &ImportOptions,
    watch: &mut passes::Watch<'_>,
    progress: &Progress,
) -> Result<ModelToCompile> {
    let Request { args, targets, .. } = request;
    let graph = source::graph(&args.model, options)?;
    watch.lap("import");
    if args.weight_types.is_given() {
        progress.say("quantising weights");
    }
    let (graph, weight_table) = quantised(args, graph)?;
    let rounded = args.precision.round_activations(&args.model, &graph, progress)?;
    let (mut graph, activations) = match rounded {
        Some(RoundedActivations { graph, summary }) => (graph, Some(summary)),
        None => (graph, None),
    };
    watch.lap("quantise");
    let Chosen { options, kept, report } =
        args.precision.choose(&args.model, &mut graph, targets, &request.options, progress)?;
    let options = options.half_weights(weight_table.as_ref().is_some_and(WeightTable::has_halves));
    watch.lap("accuracy");
    let state = args.dims.state.request()?;
    // The text of a stage has no summary.
    let state_error =
        if args.emit.is_none() { stateful::row_error(&args.model, &graph, &state, progress)? } else { None };
    watch.lap("state error");

    progress.say("lowering");
    let observer = &mut |name, result: Ir<'_>| watch.step(name, result);
    let pipeline = Pipeline::new(&graph)
        .targets(targets)
        .options(options)
        .state(state)
        .ragged(args.ragged.request())
        .observe(observer);
    let lowered = pipeline.lower().at(|| args.model.display().to_string())?;
    let size_note = None;
    Ok(ModelToCompile { lowered, size_note, weight_table, activations, state_error, kept, trial: report })
}

/// The graph with the types of weights that the command line names, and their table.
fn quantised(args: &Args, graph: Graph) -> Result<(Graph, Option<WeightTable>)> {
    let quantised = args.weight_types.apply(&args.model, &graph)?;
    Ok(match quantised {
        Some(Quantised { graph, table }) => (graph, Some(table)),
        None => (graph, None),
    })
}

/// Imports and lowers the model with upper bounds for all symbols, see [`grow`].
fn lower_with_dynamic_memory(
    request: &Request<'_>,
    options: &ImportOptions,
    progress: &Progress,
) -> Result<ModelToCompile> {
    let Request { args, targets, .. } = request;
    progress.say("looking for bounds");
    let choose =
        |graph: &mut Graph| args.precision.choose(&args.model, graph, targets, &request.options, progress);
    let (lowered, chosen, note) = grow::lowered(&args.model, options, targets, &request.options, &choose)?;
    Ok(ModelToCompile {
        lowered,
        size_note: Some(note),
        weight_table: None,
        activations: None,
        state_error: None,
        kept: chosen.kept,
        trial: chosen.report,
    })
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

/// The options for C source. Its target only names the machine of the C compiler.
fn source_options(args: &Args, machine: Option<&str>) -> Result<(Target, CompileOptions)> {
    if args.cpu.is_some() {
        return Err(usage("C source is for any machine: omit --cpu, and pass it to the C compiler"));
    }
    if args.precision.precision != Precision::F32 {
        return Err(usage("C source multiplies f32: omit --precision"));
    }

    let is_bare = machine.map_or(Ok(false), Target::is_bare)?;
    let host = Target::host()?;
    let base = CompileOptions::for_c_source().libm(!args.no_libm && !is_bare);
    let options = compile_options(args, base, &host)?;
    Ok((host, options))
}

/// The options for WebAssembly, which is compiled from C source.
fn web_options(args: &Args, machine: Option<&str>) -> Result<(Target, CompileOptions)> {
    if let Some(machine) = machine {
        return Err(usage(format!("--target {machine}: a .wasm file is for all engines; omit --target")));
    }
    if args.no_libm {
        return Err(usage("--no-libm is for C source: a .wasm file never calls math.h"));
    }
    if args.dynamic_memory {
        return Err(usage(
            "--dynamic-memory: the memory of a .wasm file has a fixed size; declare upper bounds with --dim",
        ));
    }
    if args.partitions.is_some() {
        return Err(usage("--partitions: a .wasm file runs on one thread; omit --partitions"));
    }
    if args.precision.precision != Precision::F32 {
        return Err(usage("a .wasm file multiplies f32: omit --precision"));
    }

    let host = Target::host()?;
    let options = compile_options(args, CompileOptions::for_c_source().libm(false), &host)?;
    Ok((host, options))
}

/// The options of the command line on top of those for the machine or for C source.
fn compile_options(args: &Args, base: CompileOptions, target: &Target) -> Result<CompileOptions> {
    let precision = args.precision.precision;
    let require_tiles = args.fallback == Fallback::None && precision != Precision::F32;
    if require_tiles && !target.has_tiles() {
        let remedy = if target.grants_tiles() {
            "add --cpu x86-64-v4-amx"
        } else {
            "artefacts for this platform never use them; omit --fallback none"
        };
        return Err(usage(format!(
            "--precision {precision} --fallback none: no level has tile registers; {remedy}"
        )));
    }

    let policies = match args.policies {
        Orders::Serial => Policies::Serial,
        Orders::Any => Policies::Any,
    };
    Ok(base
        .partitions(args.partitions)
        .policies(policies)
        .oversized_parts(args.oversized.oversized_parts)
        .dynamic_memory(args.dynamic_memory)
        .require_tiles(require_tiles))
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
