//! The stages in order: graph → better graph → kernels → partitions → plan → machine code → artefact.
//!
//! In debug builds every stage's result is verified by code that did not make it. The names of the stages are those of
//! `symc compile --emit`.

use crate::{
    codegen::{Options, Summary},
    emit,
    error::{At, Result},
    graph::Graph,
    kernel::{self, MicrokernelSupport, Policies, Program},
    lower,
    offload::{self, KernelPhase, Targets},
    opt, partition, plan,
    plan::Plan,
    scalar::Precision,
    schedule,
    target::Target,
};
use symshape_runtime::Model;

/// A model on its way: lowered to kernels, its arena planned.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The kernels.
    pub program: Program,
    /// Where their buffers lie.
    pub plan: Plan,
}

/// Copies of scratch memory where nobody says how many threads there will be; beyond that many threads, kernels that
/// need such memory use only so many of them.
pub const WORKERS: u32 = 4;

/// The graph as kernels with a plan, for up to [`WORKERS`] threads.
///
/// # Errors
/// When the graph asks for what the compiler can't do, or a size has no bound.
pub fn lower(graph: &Graph) -> Result<Lowered> {
    lower_with(graph, &Settings::default())
}

/// The name of the target that machine code is made for.
pub const CPU: &str = "cpu";

/// How a graph is lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Threads that calls can use in full.
    pub workers: u32,
    /// Partitions of the network; none: it stays in one piece and has no table.
    pub partitions: Option<partition::Count>,
    /// The orders in which partitions may run.
    pub policies: Policies,
    /// How contractions of `f32` multiply where the machine has tile registers.
    pub precision: Precision,
    /// What leaves will become.
    pub microkernels: MicrokernelSupport,
}

impl Settings {
    /// For machine code.
    pub fn of(target: &Target) -> Settings {
        let (multiplies_bytes, tiles) = (target.multiplies_bytes(), target.has_tiles());
        Settings::with(WORKERS, MicrokernelSupport::Code { multiplies_bytes, tiles })
    }

    /// For C source, which runs on one thread and has no leaves of our own.
    pub fn source() -> Settings {
        Settings::with(1, MicrokernelSupport::Loops)
    }

    fn with(workers: u32, microkernels: MicrokernelSupport) -> Settings {
        let (partitions, policies, precision) = (None, Policies::Serial, Precision::F32);
        Settings { workers, partitions, policies, precision, microkernels }
    }
}

impl Default for Settings {
    /// For the machine that this runs on; one that code can't be made for has no preferences.
    fn default() -> Settings {
        let nothing_known = |_| Settings::with(WORKERS, MicrokernelSupport::default());
        Target::host().map_or_else(nothing_known, |host| Settings::of(&host))
    }
}

/// The graph as kernels with a plan.
///
/// # Errors
/// As [`lower()`].
pub fn lower_with(graph: &Graph, settings: &Settings) -> Result<Lowered> {
    lower_on(graph, &[], settings)
}

/// As [`lower_with`], with targets beside the machine in the order in which they are asked, see [`offload`].
///
/// # Errors
/// As [`lower()`], and what a target refuses.
pub fn lower_on(graph: &Graph, targets: &Targets, settings: &Settings) -> Result<Lowered> {
    let mut graph = graph.clone();
    opt::optimize(&mut graph).at(|| "optimize")?;
    if !targets.is_empty() {
        offload::offload(&mut graph, targets)?;
        // What targets do with constants is computed here too.
        opt::optimize(&mut graph).at(|| "optimize")?;
    }
    if settings.microkernels.has_tiles() {
        opt::apply_precision(&mut graph, settings.precision)?;
    }
    let mut program = lower::lower(&graph).at(|| "lower")?;
    offload::passes(&mut program, KernelPhase::Lowered, targets)?;
    verify(&program).at(|| "lower")?;
    program.microkernels = settings.microkernels;
    program.precision = settings.precision;
    schedule::schedule(&mut program).at(|| "schedule")?;
    program.workers = settings.workers;
    offload::passes(&mut program, KernelPhase::Scheduled, targets)?;
    lower::eliminate_dead_stores(&mut program);
    verify(&program).at(|| "schedule")?;
    offload::emit(&mut program, targets)?;
    if let Some(count) = settings.partitions {
        partition::partition(&mut program, count, settings.policies, CPU).at(|| "partition")?;
        verify(&program).at(|| "partition")?;
    }
    let plan = plan::plan(&program, &plan::Options::default()).at(|| "plan")?;
    plan::verify::verify(&program, &plan).at(|| "plan")?;
    Ok(Lowered { program, plan })
}

/// Holds a program against the rules of its language, in debug builds; what can't be proven is no error.
fn verify(program: &Program) -> Result<()> {
    if cfg!(debug_assertions) { kernel::verify::verify(program).map(|_| ()) } else { Ok(()) }
}

/// The graph as a model that this process can call.
///
/// ```
/// use symshape_compiler::{graph::Graph, pipeline};
/// use symshape_runtime::{Context, DType, TensorRef};
/// use symshape::Declaration;
///
/// let mut g = Graph { name: "relu".into(), ..Graph::default() };
/// let n = g.symbol("N", Declaration::range(1, 64))?;
/// let x = g.input("x", DType::F32, vec![n, 3.into()])?;
/// let y = g.relu(x)?;
/// g.output("y", y)?;
///
/// let model = pipeline::jit(&g)?;
/// let mut context = Context::new(&model)?;
/// let outputs = context.run_views(&[TensorRef::new(&[1, 3], &[-1.0_f32, 0.0, 2.0])?])?;
/// assert_eq!(outputs.get(0).elems::<f32>()?, [0.0, 0.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`lower()`], and on machines that the code generator does not know.
pub fn jit(graph: &Graph) -> Result<Model> {
    jit_on(graph, &[])
}

/// As [`jit`], with targets beside the machine, see [`lower_on`].
///
/// # Errors
/// As [`jit`], and what a target refuses.
pub fn jit_on(graph: &Graph, targets: &Targets) -> Result<Model> {
    let Lowered { program, plan } = lower_on(graph, targets, &Settings::default())?;
    emit::jit::jit(&program, &plan, &Options::default()).map(|(model, _)| model)
}

/// What `-o OUT` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Artifact {
    /// `.o`
    Object,
    /// `.a`
    Archive,
    /// `.so`
    Shared,
}

/// The artefact's object file, its C header, and what is in it.
#[derive(Debug)]
pub struct Compiled {
    /// The object file; what a shared object is linked from, and an archive made of.
    pub object: emit::Object,
    /// The header.
    pub header: String,
    /// What was generated.
    pub summary: Summary,
}

/// Lowered kernels as an object file and its header.
///
/// # Errors
/// When the target lacks what the model needs.
pub fn compile(lowered: &Lowered, target: &Target, artifact: Artifact) -> Result<Compiled> {
    compile_with(lowered, target, artifact, &Choices::default())
}

/// What else an artefact may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Choices {
    /// Contexts take memory as calls need it.
    pub grows: bool,
    /// There is no code for machines without tile registers where contractions are for these: calls fail there.
    pub require_tiles: bool,
}

/// As [`compile`], with these choices.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(
    lowered: &Lowered,
    target: &Target,
    artifact: Artifact,
    choices: &Choices,
) -> Result<Compiled> {
    let shared = artifact == Artifact::Shared;
    let Choices { grows, require_tiles } = *choices;
    let levels = target.wider.clone();
    let options = Options { shared, levels, grows, require_tiles, ..Options::default() };
    let (object, summary) = emit::object::object(&lowered.program, &lowered.plan, target, &options)?;
    Ok(Compiled { object, header: emit::header::header(&lowered.program, &lowered.plan), summary })
}

/// Kernels, lowered for it ([`Settings::source`]), as C source, see [`emit::c`]; the file finds its header under the name `header`.
///
/// # Errors
/// A size that does not fit in 64 bits, or symbols that the shapes of the inputs don't tell.
pub fn source(lowered: &Lowered, header: &str) -> Result<emit::c::Source> {
    emit::c::source(&lowered.program, &lowered.plan, header)
}
