//! The stages in order: graph → optimised graph → kernels → partitions → plan → machine code → artefact.
//!
//! In debug builds the result of each stage is verified by code that does not share its assumptions. The names of the
//! stages are those of [`Pipeline::observe`].

use crate::{
    codegen::{ModuleKind, Summary},
    emit,
    error::{At, Error, Result},
    graph::Graph,
    kernel::{self, Program},
    lower,
    offload::{self, KernelPhase, Targets},
    opt,
    options::{CompileOptions, OversizedParts},
    partition, plan,
    plan::Plan,
    ragged::{self, RaggedRequest},
    schedule,
    state::{self, StateRequest},
    target::Target,
};
use symshape_runtime::Model;

/// Most rounds of the optimiser over the graph of one sequence of a ragged batch.
const RAGGED_ROUNDS: usize = 8;

/// Name of the partition target that machine code is generated for.
pub const CPU: &str = "cpu";

/// Compiles `graph` for this machine with the default options.
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
/// As [`Pipeline::jit`].
pub fn jit(graph: &Graph) -> Result<Model> {
    Pipeline::new(graph).jit()
}

/// The names of the passes and stages that an [`Observer`] sees.
pub fn steps() -> impl Iterator<Item = &'static str> {
    let passes = opt::PASSES.iter().map(|(name, _)| *name);
    let stages =
        ["optimize", "round_rows", "state", "ragged", "offload", "precision", "optimize_late", "lower"]
            .into_iter();
    let schedule_passes = schedule::PASSES.iter().map(|(name, _)| *name);
    passes.chain(stages).chain(schedule_passes).chain([
        "dead_stores",
        "batch_blocks",
        "schedule",
        "partition",
        "plan",
    ])
}

/// The compilation of one graph.
///
/// ```
/// use symshape_compiler::{CompileOptions, graph::Graph, pipeline::{Artifact, Pipeline}, target::Target};
///
/// # fn compile(graph: &Graph) -> symshape_compiler::Result<()> {
/// let target = Target::host()?;
/// let options = CompileOptions::for_target(&target).threads(2);
/// let compiled = Pipeline::new(graph).options(options).lower()?.compile(&target, Artifact::Object)?;
/// # Ok(())
/// # }
/// ```
pub struct Pipeline<'p> {
    graph: &'p Graph,
    offload_targets: &'p Targets,
    options: CompileOptions,
    state: StateRequest,
    ragged: RaggedRequest,
    observer: Option<&'p mut Observer<'p>>,
}

/// A function that sees the name and the result of each pass and each stage; [`steps`] lists the names.
pub type Observer<'o> = dyn FnMut(&'static str, Ir<'_>) + 'o;

/// The result of a stage.
#[derive(Clone, Copy, Debug)]
pub enum Ir<'p> {
    /// The graph, after a stage before lowering.
    Graph(&'p Graph),
    /// The kernels, after lowering or a later stage.
    Kernels(&'p Program),
    /// The kernels and the memory plan.
    Plan(&'p Program, &'p Plan),
}

impl<'p> Pipeline<'p> {
    /// Compiles `graph` without offload targets and with the default options.
    pub fn new(graph: &'p Graph) -> Pipeline<'p> {
        Pipeline {
            graph,
            offload_targets: &[],
            options: CompileOptions::default(),
            state: StateRequest::default(),
            ragged: RaggedRequest::default(),
            observer: None,
        }
    }

    /// Offers the graph to these offload targets, in order of preference; see [`offload`].
    pub fn targets(self, offload_targets: &'p Targets) -> Pipeline<'p> {
        Pipeline { offload_targets, ..self }
    }

    /// Sets the options.
    pub fn options(self, options: CompileOptions) -> Pipeline<'p> {
        Pipeline { options, ..self }
    }

    /// Sets the inputs and outputs that are state, see [`state`].
    pub fn state(self, state: StateRequest) -> Pipeline<'p> {
        Pipeline { state, ..self }
    }

    /// Sets the ragged batch that calls take, see [`ragged`].
    pub fn ragged(self, ragged: RaggedRequest) -> Pipeline<'p> {
        Pipeline { ragged, ..self }
    }

    /// Calls `observer` after each pass and each stage.
    pub fn observe(self, observer: &'p mut Observer<'p>) -> Pipeline<'p> {
        Pipeline { observer: Some(observer), ..self }
    }

    /// Runs all stages before code generation.
    ///
    /// # Errors
    /// When the graph needs something that the compiler does not support, a size has no upper bound, or an offload
    /// target returns an error.
    pub fn lower(self) -> Result<Lowered> {
        let Pipeline { graph, offload_targets: targets, options, state, ragged, observer } = self;
        let mut stages = Stages { observer };

        let mut graph = graph.clone();
        // Repeated layers and several passes ask the same questions.
        graph.facts = graph.facts.remembering();
        stages.optimize(&mut graph)?;
        if state.row_type.is_some() {
            stages.graph("round_rows", &mut graph, |graph| state::round_rows(graph, &state))?;
            stages.optimize(&mut graph)?;
        }
        stages.graph("state", &mut graph, |graph| state::declare(graph, &state))?;
        let batch = stages.ragged(&mut graph, &ragged, targets, &options)?;

        let mut fit = offload::Fit::default();
        loop {
            let (program, parts) = stages.attempt(graph.clone(), targets, &options, &fit, batch.as_ref())?;
            let overflow = match stages.plan(&program, &options)? {
                Ok(plan) => {
                    let warnings = fit.warnings(&parts, targets);
                    return Ok(Lowered { program, plan, options, warnings });
                }
                Err(overflow) => overflow,
            };

            let may_divide = options.oversized_parts == OversizedParts::Divide;
            if !may_divide || !fit.divide(&program, &parts, &overflow, targets) {
                return Err(overflow.error).at(|| "plan");
            }
        }
    }

    /// Compiles the graph into a model that this process can call.
    ///
    /// # Errors
    /// As [`Pipeline::lower`], and on machines without a code generator.
    pub fn jit(self) -> Result<Model> {
        self.lower()?.jit()
    }
}

/// Runs stages: each names its errors, is verified in debug builds, and is shown to the observer.
struct Stages<'p> {
    observer: Option<&'p mut Observer<'p>>,
}

impl Stages<'_> {
    fn graph(
        &mut self,
        name: &'static str,
        graph: &mut Graph,
        stage: impl FnOnce(&mut Graph) -> Result<()>,
    ) -> Result<()> {
        stage(graph).at(|| name)?;
        self.report(name, Ir::Graph(graph));
        Ok(())
    }

    fn optimize(&mut self, graph: &mut Graph) -> Result<()> {
        let name = "optimize";
        let observer = &mut |pass, graph: &Graph| self.report(pass, Ir::Graph(graph));
        opt::optimize_observed(graph, observer).at(|| name)?;
        self.report(name, Ir::Graph(graph));
        Ok(())
    }

    /// Replaces the graph by that of one sequence of a ragged batch, if one is requested.
    fn ragged(
        &mut self,
        graph: &mut Graph,
        request: &RaggedRequest,
        targets: &Targets,
        options: &CompileOptions,
    ) -> Result<Option<ragged::Batch>> {
        let Some(length) = &request.length else { return Ok(None) };
        refuse_with_ragged(graph, targets, options)?;
        let mut batch = None;
        self.graph("ragged", graph, |graph| {
            batch = Some(ragged::declare(graph, length, request)?);
            Ok(())
        })?;
        // The mask and the number of the sequence are constant now. A look-up of the mask at computed places disappears
        // in several rounds: the places become known, then it is a view, then a constant.
        for _ in 0..RAGGED_ROUNDS {
            let before = operators(graph);
            self.optimize(graph)?;
            if operators(graph) == before {
                break;
            }
        }
        Ok(batch)
    }

    fn kernels(
        &mut self,
        name: &'static str,
        program: &mut Program,
        stage: impl FnOnce(&mut Program, &mut Self) -> Result<()>,
    ) -> Result<()> {
        stage(program, self).at(|| name)?;
        // Addresses that can't be proven to be in bounds are not errors.
        if cfg!(debug_assertions) {
            kernel::verify::verify(program).at(|| name)?;
        }
        self.report(name, Ir::Kernels(program));
        Ok(())
    }

    /// Lowers an optimised graph to a program that is ready to be planned. Where parts don't fit into a device, another
    /// attempt follows.
    fn attempt(
        &mut self,
        mut graph: Graph,
        targets: &Targets,
        options: &CompileOptions,
        fit: &offload::Fit,
        batch: Option<&ragged::Batch>,
    ) -> Result<(Program, Vec<offload::Part>)> {
        let mut parts = Vec::new();
        if !targets.is_empty() {
            if graph.rounds_activations() {
                return Err(Error::unsupported("rounded activations can't be combined with offload targets"));
            }
            // A target's error names the target, which says more than the stage.
            parts = offload::offload(&mut graph, targets, fit)?;
            self.report("offload", Ir::Graph(&graph));
            // Layout conversions of constants, which targets add, are folded.
            self.optimize(&mut graph)?;
        }
        if options.support.multiplies(options.precision) {
            self.graph("precision", &mut graph, |graph| opt::apply_precision(graph, options.precision))?;
        }

        self.graph("optimize_late", &mut graph, opt::optimize_late)?;

        let mut program = lower::lower_for(&graph, options.support).at(|| "lower")?;
        offload::passes(&mut program, KernelPhase::Lowered, targets)?;
        self.kernels("lower", &mut program, |_, _| Ok(()))?;

        program.precision = options.precision;
        program.half_weights = options.half_weights;
        self.kernels("schedule", &mut program, |program, stages| {
            let observer = &mut |pass, program: &Program| stages.report(pass, Ir::Kernels(program));
            schedule::schedule_observed(program, observer)?;
            program.workers = options.threads;
            offload::passes(program, KernelPhase::Scheduled, targets)?;
            lower::eliminate_dead_stores(program);
            stages.report("dead_stores", Ir::Kernels(program));
            // Callers of partitions run them in any order, and C source has no blocks.
            if options.partitions.is_none()
                && options.support != kernel::MicrokernelSupport::Loops
                && batch.is_none()
            {
                schedule::divide_batch(program);
                stages.report("batch_blocks", Ir::Kernels(program));
            }
            Ok(())
        })?;

        offload::emit(&mut program, targets, fit)?;
        if let Some(batch) = batch {
            self.kernels("ragged", &mut program, |program, _| ragged::divide(program, batch))?;
        }
        if let Some(count) = options.partitions {
            self.kernels("partition", &mut program, |program, _| {
                partition::partition(program, count, options.policies, CPU)
            })?;
        }
        kernel::sequences::prepare(&mut program);
        Ok((program, parts))
    }

    /// Plans the memory, or returns the device that has too little.
    fn plan(
        &mut self,
        program: &Program,
        options: &CompileOptions,
    ) -> Result<std::result::Result<Plan, kernel::Overflow>> {
        let name = "plan";
        let planned = plan::plan_or_overflow(program, &options.budget).at(|| name)?;
        if let Ok(plan) = &planned {
            plan::verify::verify(program, plan).at(|| name)?;
            self.report(name, Ir::Plan(program, plan));
        }
        Ok(planned)
    }

    fn report(&mut self, name: &'static str, result: Ir<'_>) {
        if let Some(observer) = &mut self.observer {
            observer(name, result);
        }
    }
}

/// The operators of all nodes, and how many operands each has.
fn operators(graph: &Graph) -> Vec<(&'static str, usize)> {
    graph.nodes.values().map(|node| (node.op.name(), node.operands.len())).collect()
}

/// Refuses what ragged batches can't be combined with.
fn refuse_with_ragged(graph: &Graph, targets: &Targets, options: &CompileOptions) -> Result<()> {
    let refused = if graph.state.is_some() {
        "state"
    } else if !targets.is_empty() {
        "offload targets"
    } else if options.partitions.is_some() {
        "partitions"
    } else if options.dynamic_memory {
        "--dynamic-memory"
    } else if options.support == kernel::MicrokernelSupport::Loops {
        "C source"
    } else {
        return Ok(());
    };
    Err(Error::unsupported(format!("--ragged can't be combined with {refused}")))
}

/// A model that is ready for code generation.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The kernels.
    pub program: Program,
    /// The order of their buffers in the arena.
    pub plan: Plan,
    /// The options that it was lowered with.
    pub options: CompileOptions,
    /// Sentences about parts that did not fit into a device, see [`OversizedParts::Divide`].
    pub warnings: Vec<String>,
}

impl Lowered {
    /// Generates code in memory.
    ///
    /// # Errors
    /// On machines without a code generator.
    pub fn jit(&self) -> Result<Model> {
        emit::jit::jit(&self.program, &self.plan, &self.options).map(|(model, _)| model)
    }

    /// Generates an object file for `target` and its C header.
    ///
    /// # Errors
    /// When the target lacks an instruction that the model needs.
    pub fn compile(&self, target: &Target, artifact: Artifact) -> Result<Compiled> {
        let Lowered { program, plan, options, .. } = self;
        let kind = match artifact {
            Artifact::Shared => ModuleKind::SharedObject,
            Artifact::Object | Artifact::Archive => ModuleKind::Object,
        };
        let (object, summary) = emit::object::object(program, plan, target, kind, options)?;
        let header = emit::header::header(program, plan, object.weights_file());
        Ok(Compiled { object, header, summary })
    }

    /// An HTML page that shows the contract, the arena at any size, and the kernels. With the times of the kernels:
    /// `profile::Profiles::report`.
    pub fn report(&self) -> String {
        emit::report::report(&self.program, &self.plan, &serde_json::Value::Null)
    }

    /// Generates C source, see [`emit::c`]. The model must be lowered with [`CompileOptions::for_c_source`]. The source
    /// includes its header by the file name `header`. [`CompileOptions::libm`] says whether it calls `math.h`.
    ///
    /// # Errors
    /// When a size does not fit in 64 bits, or the shapes of the inputs don't determine a symbol.
    pub fn source(&self, header: &str) -> Result<emit::c::Source> {
        emit::c::source(&self.program, &self.plan, header, &self.options)
    }
}

impl Lowered {
    /// Compiles the C source to WebAssembly. The model must be lowered with [`CompileOptions::for_c_source`].
    ///
    /// # Errors
    /// A feature that modules lack, sizes beyond 4 GiB, and failures of the C compiler.
    pub fn web(&self, options: &emit::web::WebOptions<'_>) -> Result<emit::web::Web> {
        emit::web::web(&self.program, &self.plan, options)
    }
}

/// Format of an artefact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Artifact {
    /// `.o`
    Object,
    /// `.a`
    Archive,
    /// `.so`
    Shared,
}

/// An artefact in memory.
#[derive(Debug)]
pub struct Compiled {
    /// The object file, from which an archive or a shared object is made.
    pub object: emit::Object,
    /// Text of the C header.
    pub header: String,
    /// Functions and sizes of the generated code.
    pub summary: Summary,
}
