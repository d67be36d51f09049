//! `symc compile`: a model into an artefact, or a stage's text.

use super::{
    args,
    errors::{at_path, usage},
    output::{Verdict, print_line},
    passes,
    progress::Progress,
    source,
    source::milliseconds,
};
use crate::{
    codegen::ModuleKind,
    emit,
    error::{At, Result},
    graph::Graph,
    kernel::Policies,
    offload::Selection,
    options::{CompileOptions, DEFAULT_THREADS},
    partition,
    pipeline::{self, Artifact, Ir, Lowered, Pipeline},
    plan,
    scalar::Precision,
    target::Target,
};
use clap::ValueEnum;
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

/// Examples at the end of `symc help compile`.
const EXAMPLES: &str = "\
Examples:
  # A shared object for this machine, for batches of 1 to 64:
  symc compile model.onnx --dim N=1..64 -o model.so

  # An object file for two x86-64 levels, one of which is chosen at load time, and a page about its memory:
  symc compile model.onnx --dim N=1..64 --cpu x86-64-v3,x86-64-v4 --report model.html -o model.o
";

/// Arguments of `symc compile`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// ONNX file
    model: PathBuf,
    #[command(flatten)]
    dims: args::DimArgs,
    /// Artefact to write: a file name that ends with .o, .a, .so or .c; the C header is written next to it, with .h
    #[arg(short, long, value_name = "OUT", required_unless_present = "emit")]
    output: Option<PathBuf>,
    /// Prefix of the C names; default: the name of the model file
    #[arg(long)]
    name: Option<String>,
    /// Target triple of the machine; offload targets may precede it, separated by commas, such as
    /// npu,x86_64-unknown-linux-gnu; default: this machine
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// ISA level or levels, separated by commas; the best level that the machine supports is chosen at load time;
    /// default: the level of this machine
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
    /// With --precision, on machines without tile registers (AMX): run f32 code, or fail
    #[arg(long, value_enum, default_value_t = Fallback::F32, conflicts_with = "partitions")]
    fallback: Fallback,
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

/// Compiles.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    if args.threads == 0 {
        return Err(usage("--threads 0: expected at least 1"));
    }
    let Selection { targets, machine } = args::select_targets(args.target.as_deref())?;
    let target = Target::parse(machine, args.cpu.as_deref())?;
    let output = args.output.as_deref().map(|path| Ok((path, kind(path)?))).transpose()?;
    let is_source = output.is_some_and(|(_, kind)| kind == Kind::Source);
    if is_source && (machine.is_some() || args.cpu.is_some()) {
        return Err(usage(
            "C source is for any machine: omit --target and --cpu, and pass them to the C compiler",
        ));
    }
    let settings = compile_options(args, is_source, &target)?;
    if let Some((path, _)) = output.filter(|_| args.emit.is_none()) {
        // What can't be written is said before the work is done.
        let files = [Some(path.to_path_buf()), Some(path.with_extension("h")), args.report.clone()];
        files.iter().flatten().try_for_each(|file| emit::stage(file, &[]).map(drop))?;
    }
    let mut watch = passes::Watch::new(&args.passes)?;
    let progress = Progress::new(format!("importing {}", args.model.display()), 0);
    let start = Instant::now();
    let place = || args.model.display().to_string();
    let options = crate::import::ImportOptions { name: args.name.clone(), ..args.dims.options(&args.model)? };
    if is_source && args.precision.precision != Precision::F32 {
        return Err(usage("C source multiplies f32: omit --precision"));
    }
    let (lowered, reach) = if args.dynamic_memory {
        progress.say("looking for bounds");
        let choose_options =
            |graph: &Graph| args.precision.choose((&args.model, graph), &targets, &settings, &progress);
        let (lowered, reach) =
            super::grow::lowered(&args.model, &options, &targets, &settings, &choose_options)?;
        (lowered, Some(reach))
    } else {
        let graph = source::graph(&args.model, &options)?;
        if args.emit == Some(Stage::Graph) {
            print_line(&graph.to_string());
            return Ok(Verdict::Yes);
        }
        let settings = args.precision.choose((&args.model, &graph), &targets, &settings, &progress)?;
        progress.say("lowering");
        watch.restart();
        let observer = &mut |name, result: Ir<'_>| watch.step(name, result);
        let pipeline = Pipeline::new(&graph).targets(&targets).options(settings).observe(observer);
        (pipeline.lower().at(place)?, None)
    };
    if let Some(stage) = args.emit {
        print(stage, &lowered, &target).at(place)?;
        watch.finish();
        return Ok(Verdict::Yes);
    }
    let precision = lowered.program.precision;
    let Some((path, kind)) = output else {
        return Err(usage("-o OUT is missing: name the artefact to write"));
    };
    // The artefact is the last to be written, and the first to get its name: where a file can't be written, none is there.
    let stage_report =
        |path: &PathBuf| emit::stage(path, emit::report::report(&lowered.program, &lowered.plan).as_bytes());
    let report = args.report.as_ref().map(stage_report).transpose()?;
    progress.say("generating code");
    let sizes = match kind {
        Kind::Artifact(artifact) => {
            let compiled = lowered.compile(&target, artifact).at(place)?;
            progress.say("writing");
            let summary = &compiled.summary;
            let sizes = Sizes {
                code: summary.code_bytes,
                driver: Some(summary.driver_bytes()),
                weights: summary.const_bytes,
                kernels: summary.kernels,
                partitions: lowered.program.partitions.len(),
                on_tiles: lowered.program.on_tiles_count(),
                calls: calls(&lowered),
            };
            let libraries = &args.dims.customs.libraries;
            write((path, artifact), &lowered, compiled, &target, libraries)?;
            sizes
        }
        Kind::Source => write_source(path, &lowered)?,
    };
    report.map_or(Ok(()), emit::Staged::commit)?;
    let bytes = at_path(std::fs::metadata(path), path)?.len();
    drop(progress);
    if let Some(reach) = reach {
        eprintln!("symc: --dynamic-memory: {reach}");
    }
    if precision != Precision::F32 && sizes.on_tiles == 0 {
        let why = if target.has_tiles() {
            "the model has no contraction that fits tile registers"
        } else {
            "no level of --cpu has tile registers"
        };
        eprintln!("symc: --precision {precision}: {why}, so contractions multiply f32");
    }
    watch.finish();
    sizes.print(path, bytes, lowered.plan.arena_max, milliseconds(start), args.json);
    Ok(Verdict::Yes)
}

/// The options for the machine, or for C source.
fn compile_options(args: &Args, is_source: bool, target: &Target) -> Result<CompileOptions> {
    let precision = args.precision.precision;
    let require_tiles = args.fallback == Fallback::None && precision != Precision::F32;
    if require_tiles && !target.has_tiles() {
        let message = format!(
            "--precision {precision} --fallback none: no level has tile registers; add --cpu x86-64-v4-amx"
        );
        return Err(usage(message));
    }

    let policies = match args.policies {
        Orders::Serial => Policies::Serial,
        Orders::Any => Policies::Any,
    };
    let base = if is_source {
        CompileOptions::for_c_source()
    } else {
        CompileOptions::for_target(target).threads(args.threads).precision(precision)
    };
    Ok(base
        .partitions(args.partitions)
        .policies(policies)
        .dynamic_memory(args.dynamic_memory)
        .require_tiles(require_tiles))
}

/// What is said about an artefact, in bytes.
struct Sizes {
    code: u64,
    /// Of the code, what is neither kernel nor microkernel; not known of source.
    driver: Option<u64>,
    weights: u64,
    kernels: usize,
    /// Entries of the table.
    partitions: usize,
    /// Kernels that use tile registers where there are some.
    on_tiles: usize,
    /// Functions that somebody else must define.
    calls: Vec<String>,
}

impl Sizes {
    fn print(&self, path: &Path, bytes: u64, arena_max: u64, compile_ms: f64, json: bool) {
        let Sizes { code, driver, weights, kernels, partitions, on_tiles, calls } = self;
        print_line(&match json {
            true => json!({
                "artifact": path.display().to_string(), "bytes": bytes, "code_bytes": code, "driver_bytes": driver,
                "weight_bytes": weights,
                "arena_max": arena_max, "compile_ms": compile_ms, "kernels": kernels, "partitions": partitions,
                "tile_kernels": on_tiles, "calls": calls,
            })
            .to_string(),
            false => format!(
                "{}: {bytes} B (code {code} B{}, weights {weights} B), {kernels} kernels{}, arena at most {arena_max} B, \
                 compiled in {compile_ms} ms{}{}",
                path.display(),
                driver.map_or_else(String::new, |driver| format!(", of which {driver} B driver and checks")),
                match partitions {
                    0 => String::new(),
                    _ => format!(" in {partitions} partitions"),
                },
                match on_tiles {
                    0 => String::new(),
                    _ => format!("; {on_tiles} kernels use tile registers (AMX) if the machine has them"),
                },
                match calls.is_empty() {
                    true => String::new(),
                    false => format!("; link it with definitions of {}", calls.join(", ")),
                },
            ),
        });
    }
}

/// What is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Artifact(Artifact),
    Source,
}

/// What a file name asks for.
fn kind(path: &Path) -> Result<Kind> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("o") => Ok(Kind::Artifact(Artifact::Object)),
        Some("a") => Ok(Kind::Artifact(Artifact::Archive)),
        Some("so") => Ok(Kind::Artifact(Artifact::Shared)),
        Some("c") => Ok(Kind::Source),
        _ => Err(usage(format!("-o {}: the name must end with .o, .a, .so or .c", path.display()))),
    }
}

/// Names of the functions outside of the model that it calls.
fn calls(lowered: &Lowered) -> Vec<String> {
    lowered.program.callees().into_iter().map(|callee| callee.symbol.clone()).collect()
}

/// Writes the artefact and its header.
fn write(
    (path, artifact): (&Path, Artifact),
    lowered: &Lowered,
    compiled: pipeline::Compiled,
    target: &Target,
    libraries: &[PathBuf],
) -> Result<()> {
    let callees = calls(lowered);
    let header = emit::stage(&path.with_extension("h"), compiled.header.as_bytes())?;
    match artifact {
        Artifact::Object => emit::write_atomically(path, &compiled.object.into_bytes()?)?,
        Artifact::Archive => {
            let object = compiled.object.into_bytes()?;
            emit::write_atomically(path, &emit::archive(&lowered.program.name, &object)?)?;
        }
        Artifact::Shared if !callees.is_empty() && libraries.is_empty() => {
            return Err(usage(format!(
                "a shared object needs the functions that the model calls ({}): name the library that has them with \
                 --link, or emit an object (-o model.o)",
                callees.join(", ")
            )));
        }
        Artifact::Shared
            if target.triple != target_lexicon::Triple::host() && std::env::var_os("CC").is_none() =>
        {
            return Err(usage(format!(
                "a shared object for {} needs a C compiler for it: name it in the environment variable CC",
                target.triple
            )));
        }
        Artifact::Shared => emit::shared::shared(compiled.object, libraries, path)?,
    }
    header.commit()
}

/// Writes the C file and its header.
fn write_source(path: &Path, lowered: &Lowered) -> Result<Sizes> {
    let header = path.with_extension("h");
    let name = header.file_name().unwrap_or_default().to_string_lossy();
    let source = lowered.source(&name)?;
    let header = emit::stage(&header, source.header.as_bytes())?;
    emit::write_atomically(path, source.code.as_bytes())?;
    header.commit()?;
    let program = &lowered.program;
    let weights = program.const_bytes() as u64;
    let kernels = program.kernels.iter().filter(|kernel| kernel.control.is_none()).count();
    let code = source.code.len() as u64;
    let partitions = program.partitions.len();
    Ok(Sizes { code, driver: None, weights, kernels, partitions, on_tiles: 0, calls: calls(lowered) })
}

/// Prints a stage behind lowering.
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
