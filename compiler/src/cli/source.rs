//! Loads models: ONNX files, imported with the arguments of the command line, or compiled shared objects.

use super::{
    args::{self, DimArgs, OffloadArgs, PrecisionArgs},
    errors::usage,
    progress::Progress,
    ragged::RaggedArgs,
};
use crate::{
    error::{At, Error, ErrorKind, Result},
    graph::Graph,
    import::{self, ImportOptions},
    kernel::MicrokernelSupport,
    offload::Selection,
    options::CompileOptions,
    pipeline::{Lowered, Pipeline},
    quantise::Activations,
    scalar::Precision,
};
use std::{path::Path, time::Instant};
use symshape_runtime::Model;

/// The precision of `f32` contractions when this machine calls the model.
pub(super) fn effective_precision(model: &Model) -> &'static str {
    use symshape_runtime::Precision as Recorded;
    let precision = match (model.uses_tiles(), model.precision()) {
        (true, Recorded::Bf16x3) => Precision::Bf16x3,
        (true, Recorded::Bf16) => Precision::Bf16,
        (true, Recorded::F32) | (false, _) => Precision::F32,
    };
    precision.name()
}

/// The graph of the ONNX model at `path`.
pub(super) fn graph(path: &Path, options: &ImportOptions) -> Result<Graph> {
    let model = import::Model::open(path)?;
    let graph = import::import(&model, options).at(|| path.display().to_string())?;
    for note in import::notes(&model, options, &graph) {
        eprintln!("symc: {}: note: {note}", path.display());
    }
    for warning in import::warnings(&model, options, &graph) {
        eprintln!("symc: {}: {warning}", path.display());
    }
    Ok(graph)
}

/// A model that can be called.
pub(super) struct Loaded {
    pub model: Model,
    /// The graph that the model was compiled from, and its precision; `None` for a shared object.
    pub source: Option<(Graph, Precision)>,
    /// Time of import and compilation; 0 for a shared object.
    pub compile_ms: f64,
}

/// Opens a shared object, or compiles an ONNX model into memory. The accuracy check chooses the precision for machines
/// with the support `microkernels`.
pub(super) fn load(
    path: &Path,
    dims: &DimArgs,
    precision_args: &PrecisionArgs,
    offload: &OffloadArgs,
    ragged: &RaggedArgs,
    microkernels: MicrokernelSupport,
) -> Result<Loaded> {
    if path.extension().is_none_or(|extension| extension != "onnx") {
        if precision_args.precision != Precision::F32 {
            return Err(usage(format!("{}: --precision is for ONNX models", path.display())));
        }
        if let Some(node) = precision_args.keep_f32.first() {
            return Err(usage(format!("{}: --keep-f32 {node} is for ONNX models", path.display())));
        }
        if precision_args.activations != Activations::F32 {
            return Err(usage(format!("{}: --activations is for ONNX models", path.display())));
        }
        if ragged.is_given() {
            return Err(usage(format!("{}: --ragged is for ONNX models", path.display())));
        }
        return open(path, dims);
    }

    let progress = Progress::new(format!("compiling {}", path.display()), 0);
    let start = Instant::now();
    let mut graph = graph(path, &dims.options(path)?)?;
    if let Some(rounded) = precision_args.round_activations(path, &graph, &progress)? {
        eprintln!("symc: {}: {}", path.display(), rounded.summary.line());
        graph = rounded.graph;
    }
    let Selection { targets, machine } = args::select_targets(offload.target.as_deref())?;
    if let Some(machine) = machine {
        return Err(usage(format!("--target {machine}: models run on this machine; compile for others")));
    }

    let options = CompileOptions::default().support(microkernels);
    let precision = precision_args.choose(path, &mut graph, &targets, &options, &progress)?.options.precision;
    let options =
        CompileOptions::default().precision(precision).oversized_parts(offload.oversized.oversized_parts);
    let pipeline = Pipeline::new(&graph).targets(&targets).options(options).state(dims.state.request()?);
    let lowered = pipeline.ragged(ragged.request()).lower();
    let lowered = lowered.at(|| path.display().to_string())?;
    print_warnings(path, &lowered);
    progress.say("generating code");
    let model = lowered.jit().at(|| path.display().to_string())?;
    Ok(Loaded { model, source: Some((graph, precision)), compile_ms: milliseconds(start) })
}

/// Prints the warnings of a lowered model on standard error.
pub(super) fn print_warnings(path: &Path, lowered: &Lowered) {
    lowered.warnings.iter().for_each(|warning| eprintln!("symc: {}: warning: {warning}", path.display()));
}

fn open(path: &Path, dims: &DimArgs) -> Result<Loaded> {
    let plain = dims.dims.is_empty() && dims.inputs.is_empty() && dims.binds.is_empty();
    if !plain || !dims.customs.is_empty() || dims.state.is_given() {
        let message = format!(
            "{}: --dim, --input, --bind, --custom, --state, --stateful and --state-type are for ONNX models",
            path.display()
        );
        return Err(usage(message));
    }

    let model = Model::open(path).map_err(|error| {
        let text = error.to_string();
        let located = text.starts_with(&path.display().to_string());
        let error = Error::new(ErrorKind::Io, text);
        if located { error } else { error.at(path.display().to_string()) }
    })?;
    Ok(Loaded { model, source: None, compile_ms: 0.0 })
}

/// Milliseconds since `start`, rounded to microseconds.
pub(super) fn milliseconds(start: Instant) -> f64 {
    (start.elapsed().as_secs_f64() * 1e6).round() / 1e3
}
