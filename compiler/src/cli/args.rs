//! Arguments that several commands take.

use super::{
    customs::Customs,
    errors::{at_path, usage},
    npy,
    progress::Progress,
    stateful::StateArgs,
};
use crate::{
    accuracy::{self, PrecisionChoice, TrialReport},
    error::{At, Result},
    graph::Graph,
    import::{self, ImportOptions, InputConstant},
    offload::{self, Selection, Target, Targets},
    options::{CompileOptions, OversizedParts},
    quantise::{self, Activations, RoundedActivations},
    scalar::Precision,
};
use clap::{ValueEnum, builder::PossibleValue};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// Sizes, constants and operators of a model.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct DimArgs {
    /// Range of a symbol, ends included: NAME=LO..HI, NAME=LO..HI/STEP or NAME=V1,V2,V3; or an expression over other
    /// symbols, such as T=P+S
    #[arg(id = "declared_dims", long = "dim", value_name = "NAME=LO..HI")]
    pub dims: Vec<String>,
    /// Shape of an input, in symbols or integers; replaces the model's declaration
    #[arg(id = "declared_inputs", long = "input", value_name = "NAME=D0,D1,…")]
    pub inputs: Vec<String>,
    /// Make an input a compile-time constant: a number, numbers separated by commas, or a file F.npy
    #[arg(id = "bound_inputs", long = "bind", value_name = "NAME=VALUE")]
    pub binds: Vec<String>,
    /// JSON file with the ranges of symbols without --dim, such as {"N": [1, 64], "H": "32..640/32", "T": "P + S"};
    /// default: bounds.json next to the model
    #[arg(id = "bounds_file", long = "bounds", value_name = "FILE")]
    pub bounds: Option<PathBuf>,
    #[command(flatten)]
    pub customs: Customs,
    #[command(flatten)]
    pub state: StateArgs,
}

/// Offload targets of a model that is compiled and run in one command.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct OffloadArgs {
    /// Offload targets that may take over parts of the model, separated by commas
    #[arg(id = "offload_targets", long = "target", value_name = "NAMES")]
    pub target: Option<String>,
    #[command(flatten)]
    pub oversized: OversizedArgs,
}

/// Parts of a model that don't fit into the device memory of their target.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(super) struct OversizedArgs {
    /// Parts that don't fit into the device memory of their offload target: cut them smaller and leave the rest to the
    /// CPU, or fail
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub oversized_parts: OversizedParts,
}

/// Precision of contractions.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct PrecisionArgs {
    /// Precision of f32 contractions on machines with tile registers (AMX): f32, bf16x3 (each f32 as two bf16, three
    /// multiplications) or bf16; the level aarch64-bf16 has bf16 too; other machines multiply f32
    #[arg(long, value_enum, default_value_t)]
    pub precision: Precision,
    /// Largest error, relative to an output's largest magnitude, that a bf16x3 test run may show; the contractions that
    /// cause a larger error multiply f32, or all of them; `inf` skips the test run
    #[arg(long, alias = "within", value_name = "ERROR", default_value_t = accuracy::MAX_ERROR, value_parser = error_limit)]
    pub max_error: f64,
    /// Name of an ONNX node whose contractions multiply f32 at any --precision; can be repeated
    #[arg(long, value_name = "NODE")]
    pub keep_f32: Vec<String>,
    /// Activations of products whose weights have few bits: f32, or int8 (rounded by row and block of the weights). The
    /// summary says how far that moves the outputs of a trial run
    #[arg(long, value_name = "TYPE", default_value_t)]
    pub activations: Activations,
}

/// Parses a non-negative number or infinity.
pub(super) fn error_limit(text: &str) -> Result<f64, String> {
    let limit = text.parse().ok().filter(|limit: &f64| *limit >= 0.0);
    limit.ok_or_else(|| "expected a number of 0 or more, such as 1e-4, or inf".into())
}

impl PrecisionArgs {
    /// The graph with the activations of the command line, and how they change it. `None` if they stay `f32`.
    pub(super) fn round_activations(
        &self,
        path: &Path,
        graph: &Graph,
        progress: &Progress,
    ) -> Result<Option<RoundedActivations>> {
        if self.activations == Activations::F32 {
            return Ok(None);
        }
        progress.say("rounding activations");
        quantise::round_activations(graph).at(|| path.display().to_string()).map(Some)
    }

    /// Marks the nodes that `--keep-f32` names, and returns the names.
    ///
    /// # Errors
    /// `Usage` when a node is missing.
    pub(super) fn keep_named(&self, graph: &mut Graph) -> Result<BTreeSet<String>> {
        let names: BTreeSet<String> = self.keep_f32.iter().cloned().collect();
        match graph.keep_f32(&names).first() {
            Some(missing) => Err(usage(format!("--keep-f32 {missing}: the model has no node of this name"))),
            None => Ok(names),
        }
    }

    /// Chooses the precision of a model, see [`accuracy::choose_precision`], and prints notes about it to standard
    /// error. Contractions of the graph that stay `f32` are marked.
    ///
    /// # Errors
    /// `Usage` when `--keep-f32` names a missing node; as [`accuracy::choose_precision`].
    pub(super) fn choose(
        &self,
        path: &Path,
        graph: &mut Graph,
        targets: &Targets,
        options: &CompileOptions,
        progress: &Progress,
    ) -> Result<Chosen> {
        let request = PrecisionRequest { path, targets, options, progress };
        Ok(self.choose_in_parallel(&request, graph, &mut |_, _| Ok(()))?.0)
    }

    /// As [`Self::choose`], with the result of `compile` for the graph and the options of the choice. It runs at the
    /// same time as the accuracy check, with the precision of the command line, and again if the choice is another.
    ///
    /// # Errors
    /// As [`Self::choose`] and `compile`.
    pub(super) fn choose_in_parallel<T>(
        &self,
        request: &PrecisionRequest<'_>,
        graph: &mut Graph,
        compile: &mut dyn FnMut(&Graph, CompileOptions) -> Result<T>,
    ) -> Result<(Chosen, T)> {
        let PrecisionRequest { path, targets, options, progress } = request;
        let mut kept = self.keep_named(graph)?;
        let precision = self.precision;
        let options = options.precision(precision);
        if precision != Precision::Bf16x3 || self.max_error == f64::INFINITY {
            let compiled = compile(graph, options)?;
            return Ok((Chosen { options, kept, report: None }, compiled));
        }

        progress.say("checking the accuracy of bf16x3");
        let (choice, compiled) = if targets.is_empty() {
            accuracy::choose_in_parallel(graph, &options, self.max_error, || compile(graph, options))
                .at(|| path.display().to_string())?
        } else {
            let note = "accuracy not checked: offload targets may take over parts of the model";
            (PrecisionChoice { note: Some(note.into()), ..PrecisionChoice::unchecked(precision) }, None)
        };
        if let Some(note) = &choice.note {
            eprintln!("symc: {}: --precision bf16x3: {note}", path.display());
        }
        graph.keep_f32(&choice.kept);
        kept.extend(choice.kept);

        // At `f32`, no contraction of `f32` needs tile registers.
        let require_tiles = options.require_tiles && choice.precision != Precision::F32;
        let options = options.precision(choice.precision).require_tiles(require_tiles);
        let compiled = compiled.unwrap_or_else(|| compile(graph, options))?;
        Ok((Chosen { options, kept, report: choice.report }, compiled))
    }
}

/// The inputs of the choice of a precision, next to the graph.
pub(super) struct PrecisionRequest<'r> {
    pub(super) path: &'r Path,
    pub(super) targets: &'r Targets,
    /// The options for any precision.
    pub(super) options: &'r CompileOptions,
    pub(super) progress: &'r Progress,
}

/// The precision of a model.
pub(super) struct Chosen {
    /// The options with the precision.
    pub(super) options: CompileOptions,
    /// The nodes whose contractions stay `f32`.
    pub(super) kept: BTreeSet<String>,
    /// The accuracy check, if it ran.
    pub(super) report: Option<TrialReport>,
}

/// How the partitions of a model run, if it has any.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Policy {
    /// The policy that is estimated to be faster
    Auto,
    /// One after another, each kernel on all threads
    Serial,
    /// Independent partitions at the same time, each on one thread
    Parallel,
}

impl From<Policy> for symshape_runtime::Policy {
    fn from(policy: Policy) -> symshape_runtime::Policy {
        match policy {
            Policy::Auto => symshape_runtime::Policy::Auto,
            Policy::Serial => symshape_runtime::Policy::Serial,
            Policy::Parallel => symshape_runtime::Policy::Parallel,
        }
    }
}

/// The offload targets of this program.
static TARGETS: OnceLock<Vec<Arc<dyn Target>>> = OnceLock::new();

/// Sets the offload targets that `--target` can name. Only the first call has an effect.
pub(super) fn register_targets(targets: Vec<Arc<dyn Target>>) {
    let _ = TARGETS.set(targets);
}

/// Resolves the value of `--target`: the offload targets, and the machine if the value names another than this one.
pub(super) fn select_targets(names: Option<&str>) -> Result<Selection<'_>> {
    if let Some(names) = names.filter(|names| names.split(',').any(|name| name.trim().is_empty())) {
        return Err(usage(format!("--target {names}: a name between commas is empty")));
    }

    let known = TARGETS.get().map_or(&[][..], Vec::as_slice);
    let Selection { targets, machine } =
        names.map_or(Ok(Selection::default()), |names| offload::select(names, known))?;
    let is_foreign = |name: &&str| !matches!(*name, "cpu" | "native") && *name != std::env::consts::ARCH;
    Ok(Selection { targets, machine: machine.filter(is_foreign) })
}

impl ValueEnum for OversizedParts {
    fn value_variants<'a>() -> &'a [OversizedParts] {
        &[OversizedParts::Divide, OversizedParts::Refuse]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            OversizedParts::Divide => PossibleValue::new("divide").help("Cut them smaller, with a warning"),
            OversizedParts::Refuse => {
                PossibleValue::new("refuse").help("Fail with an error that names the buffer")
            }
        })
    }
}

impl ValueEnum for Precision {
    fn value_variants<'a>() -> &'a [Precision] {
        &Precision::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()))
    }
}

impl DimArgs {
    /// The importer's options for the model at `path`.
    pub(super) fn options(&self, path: &Path) -> Result<ImportOptions> {
        let bounds = match self.bounds_file(path) {
            Some(file) => {
                let text = at_path(fs::read_to_string(&file), &file)?;
                import::parse_bounds(&text).at(|| file.display().to_string())?
            }
            None => import::Bounds::default(),
        };

        let import::Bounds { dims, relations } = import::parse_dims(&self.dims).at(|| "--dim")?;
        Ok(ImportOptions {
            dims,
            relations,
            inputs: self
                .inputs
                .iter()
                .map(|text| import::parse_input(text).at(|| "--input"))
                .collect::<Result<_>>()?,
            binds: self.binds.iter().map(|text| bind(text).at(|| "--bind")).collect::<Result<_>>()?,
            bounds,
            customs: self.customs.list()?,
            keeps_state: self.state.is_given(),
            ..ImportOptions::default()
        })
    }

    /// The command line of these arguments, for any folder.
    pub(super) fn command_line(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let mut flag = |name: &str, value: OsString| words.extend([name.into(), value]);
        self.dims.iter().for_each(|text| flag("--dim", text.into()));
        self.inputs.iter().for_each(|text| flag("--input", text.into()));
        for text in &self.binds {
            match bound_file(text) {
                Some((name, file)) => {
                    let mut value = OsString::from(name);
                    value.push("=");
                    value.push(absolute(file));
                    flag("--bind", value);
                }
                None => flag("--bind", text.into()),
            }
        }
        for text in &self.customs.declarations {
            let value = if Customs::is_file(text) { absolute(Path::new(text)).into() } else { text.into() };
            flag("--custom", value);
        }
        if let Some(file) = &self.bounds {
            flag("--bounds", absolute(file).into());
        }
        for file in &self.customs.libraries {
            flag("--link", absolute(file).into());
        }
        words.extend(self.state.command_line());
        words
    }

    /// The file of `--bounds`, or a bounds.json next to the model at `path`, which a note on standard error mentions.
    fn bounds_file(&self, path: &Path) -> Option<PathBuf> {
        if self.bounds.is_some() {
            return self.bounds.clone();
        }

        let default = default_bounds(path)?;
        eprintln!("symc: note: symbols without --dim get their ranges from {}", default.display());
        Some(default)
    }
}

/// The bounds.json next to the model at `path`, if there is one.
pub(super) fn default_bounds(path: &Path) -> Option<PathBuf> {
    let file = path.with_file_name("bounds.json");
    file.exists().then_some(file)
}

/// The path of a file that does not depend on the current folder. An empty path stays as it is.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// `NAME=VALUE` or `NAME=F.npy`.
fn bind(text: &str) -> Result<(String, InputConstant)> {
    match bound_file(text) {
        Some((name, file)) => Ok((name.to_string(), InputConstant::Tensor(npy::read(file)?))),
        None => import::parse_bind(text),
    }
}

/// The name and the file of `NAME=F.npy`.
fn bound_file(text: &str) -> Option<(&str, &Path)> {
    let (name, file) = text.split_once('=').filter(|(_, file)| file.ends_with(".npy"))?;
    Some((name, Path::new(file)))
}
