//! Arguments that several commands take.

use super::{
    customs::Customs,
    errors::{at_path, usage},
    npy,
    progress::Progress,
};
use crate::{
    accuracy::{self, Settled},
    error::{At, Result},
    graph::Graph,
    import::{self, ImportOptions, InputConstant},
    offload::{self, Selection, Target, Targets},
    options::CompileOptions,
    scalar::Precision,
};
use clap::{ValueEnum, builder::PossibleValue};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// What the command line says about a model's sizes.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct DimArgs {
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
pub(super) struct OffloadArgs {
    /// Targets of this program that take parts of the model, with commas between them
    #[arg(id = "offload_targets", long = "target", value_name = "NAMES")]
    pub target: Option<String>,
}

/// How contractions of a model multiply.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct PrecisionArgs {
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

impl PrecisionArgs {
    /// The precision that a model gets, see [`trial::settle`]; what is to be said of it is.
    pub(super) fn settle(
        self,
        (path, graph): (&Path, &Graph),
        targets: &Targets,
        options: &CompileOptions,
        progress: &Progress,
    ) -> Result<CompileOptions> {
        let PrecisionArgs { precision, within } = self;
        let options = options.precision(precision);
        if precision != Precision::Bf16x3 || within == f64::INFINITY {
            return Ok(options);
        }

        progress.say("trying bf16x3");
        let Settled { precision, note } = match targets.is_empty() {
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

/// `NAME=VALUE` or `NAME=F.npy`.
fn bind(text: &str) -> Result<(String, InputConstant)> {
    match text.split_once('=') {
        Some((name, file)) if file.ends_with(".npy") => {
            Ok((name.to_string(), InputConstant::Tensor(npy::read(Path::new(file))?)))
        }
        _ => import::parse_bind(text),
    }
}
