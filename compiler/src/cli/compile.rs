//! `symc compile`: a model into an artefact, or a stage's text.

mod args;
mod model;
mod request;

pub(super) use self::args::Args;

use self::{
    args::Stage,
    model::{Generate, command_line, import_options, quantised},
    request::{Request, validate},
};
use super::{
    artefact::{self, Output, OutputKind, Summary},
    errors::{at_path, usage},
    output::{Verdict, print_line},
    passes,
    progress::Progress,
    source::{self, milliseconds},
    web,
};
use crate::{
    codegen::{self, ModuleKind},
    emit,
    error::{At, Error, Result},
    options::CompileOptions,
    pipeline::Lowered,
    plan,
    scalar::Precision,
    target::Target,
};
use std::{path::PathBuf, time::Instant};

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

    let place = || args.model.display().to_string();
    let artifact = match &request.output {
        Some(Output { kind: OutputKind::Artifact(artifact), .. }) => Some(*artifact),
        _ => None,
    };
    let generate: &Generate<'_> = &|lowered| {
        lowered.options.weights_file = weights_path(request, lowered).is_some();
        progress.say("generating code");
        artifact.map(|artifact| lowered.compile(target, artifact).at(place)).transpose()
    };
    let mut model = model::compile(request, generate, &mut watch, &progress)?;
    let compiled = model.compiled.take();
    let lowered = &model.lowered;
    let weights_path = weights_path(request, lowered);
    source::print_warnings(&args.model, lowered);
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
    let mut summary = match output.kind {
        OutputKind::Artifact(artifact) => {
            let mut compiled = compiled.ok_or_else(|| Error::internal("an artefact without code"))?;
            compiled.object.command_line = command_line(args, target, &model);
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
    let artifact = match request.output.as_ref().map(|output| output.kind) {
        Some(OutputKind::Artifact(artifact)) => artifact,
        _ => return Err(usage("C source and WebAssembly have no weights file that can be replaced")),
    };
    let generate: &Generate<'_> = &|lowered| {
        lowered.options.weights_file = true;
        progress.say("packing weights");
        let compiled = lowered.compile(&request.target, artifact);
        compiled.map(Some).at(|| args.model.display().to_string())
    };
    let model = model::compile(&request, generate, &mut watch, progress)?;
    let compiled = model.compiled.ok_or_else(|| Error::internal("an artefact without code"))?;
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
