//! Where models come from: ONNX files, imported under the contract of the command line, or compiled shared objects.

use super::{at_path, customs::Customs, npy, progress::Progress, usage};
use crate::{
    accuracy::{self, Settled},
    error::{At, Error, ErrorKind, Result},
    graph::Graph,
    import::{self, ImportOptions, InputConstant},
    kernel::MicrokernelSupport,
    offload::{Selection, Targets},
    options::CompileOptions,
    pipeline::Pipeline,
    scalar::Precision,
};
use clap::{ValueEnum, builder::PossibleValue};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use symshape_runtime::Model;

/// What the command line says about a model's sizes.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct Contract {
    /// Declare a symbol: NAME=LO..HI, NAME=LO..HI/STEP or NAME=V1,V2,V3
    #[arg(id = "declared_dims", long = "dim", value_name = "NAME=LO..HI")]
    pub dims: Vec<String>,
    /// Re-declare an input's shape with symbols or numbers
    #[arg(id = "declared_inputs", long = "input", value_name = "NAME=D0,D1,…")]
    pub inputs: Vec<String>,
    /// Make an input a compile-time constant: a number, several, or a file F.npy
    #[arg(id = "bound_inputs", long = "bind", value_name = "NAME=VALUE")]
    pub binds: Vec<String>,
    /// Ranges of symbols that no --dim declares; the default is a bounds.json beside the model
    #[arg(id = "bounds_file", long = "bounds", value_name = "FILE")]
    pub bounds: Option<PathBuf>,
    #[command(flatten)]
    pub customs: Customs,
}

/// The targets beside the machine that a model is compiled for when it is run at once.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct Beside {
    /// Targets of this program that take parts of the model, with commas between them
    #[arg(id = "targets_beside", long = "target", value_name = "NAMES")]
    pub target: Option<String>,
}

/// How contractions of a model multiply.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct Arithmetic {
    /// How contractions multiply on machines with tile registers: f32 as elsewhere, each f32 as two bf16 and three of
    /// their four products, or each as one bf16; others multiply f32
    #[arg(long, value_enum, default_value_t)]
    pub precision: Precision,
    /// How far a trial at bf16x3 may be off, as a part of an output's largest element, before the model stays f32; `inf`
    /// is for no trial
    #[arg(long, value_name = "PART", default_value_t = accuracy::WITHIN, value_parser = part)]
    pub within: f64,
}

/// A number from 0 on, or infinity.
fn part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part: &f64| *part >= 0.0);
    part.ok_or_else(|| "a number from 0 on, such as 1e-4, or inf".into())
}

impl Arithmetic {
    /// The precision that a model gets, see [`trial::settle`]; what is to be said of it is.
    pub(super) fn settle(
        self,
        (path, graph): (&Path, &Graph),
        beside: &Targets,
        options: &CompileOptions,
        progress: &Progress,
    ) -> Result<CompileOptions> {
        let Arithmetic { precision, within } = self;
        let options = options.precision(precision);
        if precision != Precision::Bf16x3 || within == f64::INFINITY {
            return Ok(options);
        }

        progress.say("trying bf16x3");
        let Settled { precision, note } = match beside.is_empty() {
            true => accuracy::settle(graph, &options, within).at(|| path.display().to_string())?,
            false => Settled { precision, note: Some("not tried: other targets take parts of it".into()) },
        };
        if let Some(note) = note {
            eprintln!("symc: {}: --precision bf16x3: {note}", path.display());
        }

        // In a model that stays `f32`, no contraction of `f32` needs tile registers.
        let require_tiles = options.require_tiles && precision != Precision::F32;
        Ok(options.precision(precision).require_tiles(require_tiles))
    }
}

/// What contractions of `f32` multiply when this model is called here.
pub(super) fn used(model: &Model) -> &'static str {
    use symshape_runtime::Precision as Recorded;
    let precision = match (model.uses_tiles(), model.precision()) {
        (true, Recorded::Bf16x3) => Precision::Bf16x3,
        (true, Recorded::Bf16) => Precision::Bf16,
        (true, Recorded::F32) | (false, _) => Precision::F32,
    };
    precision.name()
}

impl ValueEnum for Precision {
    fn value_variants<'a>() -> &'a [Precision] {
        &Precision::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

impl Contract {
    /// The importer's options for the model at `path`.
    pub(super) fn options(&self, path: &Path) -> Result<ImportOptions> {
        let beside = path.with_file_name("bounds.json");
        let file = self.bounds.clone().or_else(|| beside.exists().then_some(beside));
        let bounds = match file {
            Some(file) => {
                let text = at_path(fs::read_to_string(&file), &file)?;
                import::parse_bounds(&text).at(|| file.display().to_string())?
            }
            None => Vec::new(),
        };
        Ok(ImportOptions {
            dims: self
                .dims
                .iter()
                .map(|text| import::parse_dim(text).at(|| "--dim"))
                .collect::<Result<_>>()?,
            inputs: self
                .inputs
                .iter()
                .map(|text| import::parse_input(text).at(|| "--input"))
                .collect::<Result<_>>()?,
            binds: self.binds.iter().map(|text| bind(text).at(|| "--bind")).collect::<Result<_>>()?,
            bounds,
            customs: self.customs.list()?,
            ..ImportOptions::default()
        })
    }
}

/// `NAME=VALUE` or `NAME=F.npy`.
fn bind(text: &str) -> Result<(String, InputConstant)> {
    match text.split_once('=') {
        Some((name, file)) if file.ends_with(".npy") => {
            Ok((name.to_string(), InputConstant::Tensor(npy::read(Path::new(file))?)))
        }
        _ => import::parse_bind(text),
    }
}

/// The graph of the ONNX model at `path`.
pub(super) fn graph(path: &Path, options: &ImportOptions) -> Result<Graph> {
    let model = import::Model::open(path)?;
    let graph = import::import(&model, options).at(|| path.display().to_string())?;
    for doubt in import::doubts(&model, options, &graph) {
        eprintln!("symc: {}: {doubt}", path.display());
    }
    Ok(graph)
}

/// A model that can be called.
pub(super) struct Loaded {
    /// The model.
    pub model: Model,
    /// The graph that it was compiled from, and the precision; none of a shared object.
    pub source: Option<(Graph, Precision)>,
    /// How long import and compilation took; 0 for a shared object.
    pub compile_ms: f64,
}

/// Opens a shared object, or compiles an ONNX model into memory, with the precision that a trial gives it on machines
/// whose kernels `microkernels` describe.
pub(super) fn load(
    path: &Path,
    contract: &Contract,
    arithmetic: Arithmetic,
    targets: &Beside,
    microkernels: MicrokernelSupport,
) -> Result<Loaded> {
    if path.extension().is_none_or(|extension| extension != "onnx") {
        if arithmetic.precision != Precision::F32 {
            return Err(usage(format!("{}: --precision is for ONNX models", path.display())));
        }
        return open(path, contract);
    }
    let progress = Progress::new(format!("compiling {}", path.display()), 0);
    let start = Instant::now();
    let graph = graph(path, &contract.options(path)?)?;
    let Selection { targets: beside, machine } = super::targets(targets.target.as_deref())?;
    if let Some(machine) = machine {
        return Err(usage(format!("--target {machine}: models run on this machine; compile for others")));
    }
    let options = CompileOptions::default().support(microkernels);
    let precision = arithmetic.settle((path, &graph), &beside, &options, &progress)?.precision;
    let model = compile(&graph, precision, &beside, &progress).at(|| path.display().to_string())?;
    Ok(Loaded { model, source: Some((graph, precision)), compile_ms: milliseconds(start) })
}

/// The graph as callable code.
fn compile(graph: &Graph, precision: Precision, beside: &Targets, progress: &Progress) -> Result<Model> {
    let options = CompileOptions::default().precision(precision);
    let lowered = Pipeline::new(graph).targets(beside).options(options).lower()?;
    progress.say("generating code");
    lowered.jit()
}

fn open(path: &Path, contract: &Contract) -> Result<Loaded> {
    let plain = contract.dims.is_empty() && contract.inputs.is_empty() && contract.binds.is_empty();
    if !plain || !contract.customs.is_empty() {
        let message = format!("{}: --dim, --input, --bind and --custom are for ONNX models", path.display());
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

/// Milliseconds since `start`, to the microsecond.
pub(super) fn milliseconds(start: Instant) -> f64 {
    (start.elapsed().as_secs_f64() * 1e6).round() / 1e3
}
