//! `symc run`: calls a model once.

use super::{
    args,
    errors::at_path,
    feed, npy,
    output::{Verdict, print_line},
    packed::{self, CallInputs},
    ragged, source, stateful,
};
use crate::{
    accuracy::inputs,
    error::{At, Error, ErrorKind, Result},
    options::CompileOptions,
    tensor::{self, Tensor},
};
use serde_json::{Map, json};
use std::{
    fs,
    path::{Path, PathBuf},
};
use symshape_runtime::{Context, Model, State};

/// Arguments of `symc run`.
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
    /// Input NAME, read from a .npy file
    #[arg(short, long = "in", value_name = "NAME=F.npy")]
    input_files: Vec<String>,
    /// Inputs, read from a .npz file with keys NAME or in:NAME
    #[arg(long = "inputs", value_name = "F.npz")]
    npz: Option<PathBuf>,
    /// Lengths of the sequences of a ragged batch; without inputs, random ones are made. With padded inputs, padding
    /// follows the tokens
    #[arg(long, value_name = "12,300,45")]
    lengths: Option<ragged::Lengths>,
    /// Directory for the outputs, each as NAME.npy
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// File of the state: read before the call if it exists, and written after it
    #[arg(long, value_name = "F")]
    state_file: Option<PathBuf>,
    /// Number of threads for the call
    #[arg(long, value_name = "T", default_value_t = 1)]
    threads: u32,
    /// How the partitions of the model run, if it has any
    #[arg(long, value_enum, default_value_t = super::args::Policy::Auto)]
    policy: super::args::Policy,
    /// Print one JSON object to standard output
    #[arg(long)]
    json: bool,
}

/// The state of the call, if the model has one: that of the file, or an empty one.
fn state(args: &Args, model: &Model, inputs: &[Tensor]) -> Result<Option<State>> {
    if model.state().is_empty() && args.state_file.is_none() {
        return Ok(None);
    }
    let sizes = stateful::sizes_of_inputs(model, inputs);
    let path = args.state_file.as_deref().unwrap_or(Path::new(""));
    stateful::open(model, path, &sizes).map(Some)
}

/// Calls the model, and writes or prints its outputs.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let support = CompileOptions::default().support;
    let model =
        source::load(&args.model, &args.dims, &args.precision, &args.offload, &args.ragged, support)?.model;

    let inputs = CallInputs::read(&model, &args.input_files, args.npz.as_deref(), args.lengths.as_ref())?;
    let mut context =
        Context::new(&model).map_err(|error| Error::new(ErrorKind::Limit, error.to_string()))?;
    context.set_threads(args.threads).map_err(|error| Error::new(ErrorKind::Limit, error.to_string()))?;
    context.set_policy(args.policy.into());

    let place = || args.model.display().to_string();
    let refs = inputs.refs()?;
    let mut state = state(args, &model, inputs.given())?;
    let bound = match &state {
        Some(state) => context.bind_state(&refs, state),
        None => context.bind(&refs),
    };
    let dims: Vec<i64> = bound.map_err(|error| feed::refused(&error)).at(place)?.to_vec();
    let outputs = match (&mut state, &inputs) {
        (Some(state), _) => {
            context.run_stateful_views(&refs, state).map(|outputs| Ok(tensor::copies(&outputs)))
        }
        (None, CallInputs::Packed(batch)) => {
            context.run_ragged(batch).map(|outputs| packed::padded(&outputs, None))
        }
        (None, CallInputs::Given(_)) => context.run_views(&refs).map(|outputs| Ok(tensor::copies(&outputs))),
    };
    let outputs = outputs.map_err(|error| feed::refused(&error)).at(place)??;

    if let Some(folder) = &args.output {
        at_path(fs::create_dir_all(folder), folder)?;
        for (info, output) in model.outputs().iter().zip(&outputs) {
            let path = folder.join(npy::file_name(info.name()));
            npy::write(&path, output.dtype(), output.shape(), output.bytes())?;
        }
    }

    if let (Some(state), Some(path)) = (&state, &args.state_file) {
        stateful::save(state, path)?;
    }

    let table = model.outputs().iter().zip(&outputs).map(|(info, output)| {
        json!({"name": info.name(), "dtype": info.dtype().numpy_name(), "shape": output.shape()})
    });
    let table: Vec<_> = table.collect();
    let bound: Map<String, serde_json::Value> =
        model.symbols().iter().zip(&dims).map(|(symbol, dim)| (symbol.name().into(), json!(dim))).collect();
    if args.json {
        let precision = source::effective_precision(&model);
        print_line(&json!({"outputs": table, "dims": bound, "precision": precision}).to_string());
        return Ok(Verdict::Yes);
    }

    print_line(&format!("dims: {}", inputs::binding(&model, &dims)));
    if model.precision() != symshape_runtime::Precision::F32 {
        print_line(&format!("precision: {}", source::effective_precision(&model)));
    }
    for (info, output) in model.outputs().iter().zip(&outputs) {
        print_line(&format!("{}: {}{:?}", info.name(), info.dtype(), output.shape()));
    }
    Ok(Verdict::Yes)
}
