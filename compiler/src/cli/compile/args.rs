//! The command line of `symc compile`.

use super::super::{args, passes, ragged, weight_types::WeightTypeArgs};
use crate::{options::DEFAULT_THREADS, partition};
use clap::ValueEnum;
use std::path::PathBuf;

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
pub(crate) struct Args {
    /// ONNX file
    pub(super) model: PathBuf,
    #[command(flatten)]
    pub(super) dims: args::DimArgs,
    #[command(flatten)]
    pub(super) ragged: ragged::RaggedArgs,
    /// Artefact to write, by the end of its name: an object (.o, .obj), a static library (.a, .lib), a shared library
    /// (.so, .dll, .dylib) or C source (.c), with the C header next to it (.h); or WebAssembly (.wasm), with an ES
    /// module and its types next to it (.mjs, .d.mts)
    #[arg(short, long, value_name = "OUT", required_unless_present = "emit")]
    pub(super) output: Option<PathBuf>,
    /// Prefix of the C names; default: the name of the model file
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Target triple of the machine; offload targets may precede it, separated by commas, such as
    /// npu,x86_64-unknown-linux-gnu; default: this machine
    #[arg(long, value_name = "TRIPLE")]
    pub(super) target: Option<String>,
    #[command(flatten)]
    pub(super) oversized: args::OversizedArgs,
    /// ISA level or levels, separated by commas; the best level that the machine supports is chosen at load time;
    /// default: the level of this machine. WebAssembly has the levels simd128, its default, and relaxed-simd
    #[arg(long, value_name = "LEVEL")]
    pub(super) cpu: Option<String>,
    /// Number of threads to reserve scratch memory for; calls with more threads still work, but share it
    #[arg(long, value_name = "T", default_value_t = DEFAULT_THREADS)]
    pub(super) threads: u32,
    /// Split the network into K partitions that callers may schedule themselves; `auto` splits at branches that can
    /// run at the same time
    #[arg(long, value_name = "K")]
    pub(super) partitions: Option<partition::Count>,
    /// Orders in which partitions may run; memory is planned for them
    #[arg(long, value_enum, default_value_t = Orders::Any, requires = "partitions")]
    pub(super) policies: Orders,
    /// Accept symbols without an upper bound; a context then takes more memory when a call needs it
    #[arg(long, alias = "grow", conflicts_with = "emit")]
    pub(super) dynamic_memory: bool,
    #[command(flatten)]
    pub(super) precision: args::PrecisionArgs,
    #[command(flatten)]
    pub(super) weight_types: WeightTypeArgs,
    /// With --precision, on machines without tile registers (AMX): run f32 code, or fail
    #[arg(long, value_enum, default_value_t = Fallback::F32, conflicts_with = "partitions")]
    pub(super) fallback: Fallback,
    /// C source with its own mathematical functions instead of those of math.h; implied by a --target without an
    /// operating system
    #[arg(long, conflicts_with = "emit")]
    pub(super) no_libm: bool,
    /// Write the weights to this file instead of the artefact; its name must end with .weights. A shared library and
    /// its weights file must be in one folder. A model with more than 1 GB of weights gets such a file by itself
    #[arg(long, value_name = "M.weights", conflicts_with_all = ["emit", "in_artefact"])]
    pub(super) weights_file: Option<PathBuf>,
    /// Keep the weights in the artefact, however large they are
    #[arg(long = "weights-in-artefact", conflicts_with = "emit")]
    pub(super) in_artefact: bool,
    /// Print the text of a stage instead of writing an artefact
    #[arg(long, value_enum)]
    pub(super) emit: Option<Stage>,
    /// Also write an HTML page that shows the call contract, the arena at any size, and the kernels
    #[arg(long, value_name = "R.html", conflicts_with = "emit")]
    pub(super) report: Option<PathBuf>,
    #[command(flatten)]
    pub(super) passes: passes::PassFlags,
    /// Print one JSON object to standard output
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Fallback {
    /// Run f32 code, which the artefact contains too
    F32,
    /// Fail with an error that names the missing registers
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Orders {
    /// One after another, in the order of the table
    Serial,
    /// In any order that respects the dependencies, also at the same time
    Any,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Stage {
    Graph,
    Kernel,
    Plan,
    Clif,
    Asm,
}
