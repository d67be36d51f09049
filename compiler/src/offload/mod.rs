//! Offload targets: a library or an accelerator takes parts of a graph, and the compiler generates code for the rest.
//!
//! A [`Target`] is offered each node of the optimised graph ([`Target::claim`]). The claimed nodes are cut out in
//! parts, each as large as possible. The target lowers a part to calls of external functions, and to any core
//! operators around them ([`Target::lower`]). The next target is offered the remaining nodes, and the compiler takes
//! the rest. Passes of the target run at named phases over the compiler's own graphs and kernels. At the end each of
//! its calls may be completed with facts about the finished program ([`Target::emit`]).
//!
//! All results of a target are part of the IRs: a call names its target, its function and its constants, including
//! code for an accelerator. docs/targets.md explains how to write a target.

mod cost;
mod cut;
mod fit;
mod memory;
mod parts;
mod target;

pub use cost::CallCost;
pub(crate) use fit::{Fit, Part};
pub use target::{Concurrency, GraphPhase, KernelPhase, Subgraph, Target, Targets};

use crate::{
    error::{At, Error, ErrorKind, Result},
    external::{Callee, PartNumber},
    graph::{Graph, Node, Op, Value, verify},
    kernel::{CallLimit, Control, ExternalCall, Program, cost as work},
};
use std::{num::NonZeroU32, sync::Arc};
use symshape::{Dim, Symbol};

/// Offloads parts of an optimised graph to targets, and returns the parts. `fit` holds the decisions of earlier
/// attempts.
///
/// # Errors
/// Those of the hooks, with the target and the nodes concerned.
pub(crate) fn offload(graph: &mut Graph, targets: &Targets, fit: &Fit) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for (number, target) in targets.iter().enumerate() {
        let mut offloading = Offloading { target: &**target, number, fit, graphs: 0, parts: &mut parts };
        offloading.graph(graph).at(|| format!("target {}", target.name()))?;
    }
    Ok(parts)
}

/// The offloading to one target.
struct Offloading<'o> {
    target: &'o dyn Target,
    /// Index of the target.
    number: usize,
    fit: &'o Fit,
    /// The number of graphs so far.
    graphs: u32,
    /// The parts of all targets so far.
    parts: &'o mut Vec<Part>,
}

impl Offloading<'_> {
    /// Offloads parts of a graph and of its regions.
    fn graph(&mut self, graph: &mut Graph) -> Result<()> {
        for node in graph.nodes.values_mut() {
            node.op.regions_mut().into_iter().try_for_each(|region| self.graph(region))?;
        }
        let Offloading { target, number, fit, .. } = *self;
        let graph_number = self.graphs;
        self.graphs += 1;
        target.graph_pass(GraphPhase::Optimized, graph)?;
        verified(graph).at(|| "its pass over the graph")?;

        let groups = parts::group(graph, &|id, node| {
            may_be_claimed(graph, node) && fit.offers(number, graph_number, id) && target.claim(graph, node)
        });
        if groups.is_empty() {
            return Ok(());
        }
        let groups = fit.cut(groups, number, graph_number);

        let mut next_part = self.parts.len() as u32;
        let claimed = groups.iter().filter(|group| group.claimed);
        self.parts.extend(claimed.map(|group| Part::new(graph, group, number, graph_number)));
        cut::replace(graph, &groups, &mut |part, new| {
            let first = new.nodes.len();
            target.graph_pass(GraphPhase::Claimed, &mut part.graph)?;
            verified(&part.graph).at(|| "its pass over a part")?;
            let results = target.lower(part, new)?;
            mark_calls(new, first, target.name(), next_part);
            next_part += 1;
            check_results(part, new, &results)?;
            Ok(results)
        })?;
        verified(graph)
    }
}

/// Whether a node may be offered: a computation whose sizes are known when a call begins.
fn may_be_claimed(graph: &Graph, node: &Node) -> bool {
    let values = node.operands.iter().chain(&node.results);
    let is_data_dependent = |dim: &Dim| graph.is_data_dependent(dim);
    node.op.is_computation()
        && !values.into_iter().any(|value| graph.shape(*value).iter().any(is_data_dependent))
}

/// Marks the calls among the nodes from index `first` on as calls of the target for this part.
fn mark_calls(graph: &mut Graph, first: usize, target: &str, part: u32) {
    for node in graph.nodes.values_mut().skip(first) {
        if let Op::Call { callee, .. } = &mut node.op {
            callee.target = target.to_string();
            callee.part = PartNumber(Some(part));
        }
    }
}

/// Checks that the results have the types of the part's outputs.
fn check_results(part: &Subgraph, graph: &Graph, results: &[Value]) -> Result<()> {
    if results.len() != part.graph.outputs.len() {
        let actual = results.len();
        let expected = part.graph.outputs.len();
        let message = format!("`lower` returned {actual} values for a part with {expected} outputs");
        return Err(Error::new(ErrorKind::Usage, message));
    }

    for ((name, output), result) in part.graph.outputs.iter().zip(results) {
        let expected = part.graph.ty(*output);
        let actual = graph.ty(*result);
        let same = |(a, b): (&Dim, &Dim)| a == b || graph.facts.prove_eq(a, b).is_yes();
        let fits = expected.dtype == actual.dtype
            && expected.shape.len() == actual.shape.len()
            && expected.shape.iter().zip(&actual.shape).all(same);
        if !fits {
            let message = format!("`lower` returned {actual:?} for output `{name}`, which has {expected:?}");
            return Err(Error::new(ErrorKind::Usage, message));
        }
    }
    Ok(())
}

fn verified(graph: &Graph) -> Result<()> {
    if cfg!(debug_assertions) { verify::verify(graph) } else { Ok(()) }
}

/// Runs the passes of targets over kernels. After the last one, the buffers in device memory are known.
///
/// # Errors
/// Those of the passes.
pub fn passes(program: &mut Program, phase: KernelPhase, targets: &Targets) -> Result<()> {
    let of = |target: &Arc<dyn Target>| format!("target {}", target.name());
    targets.iter().try_for_each(|target| target.kernel_pass(phase, program).at(|| of(target)))?;
    if phase == KernelPhase::Scheduled {
        memory::assign(program, targets);
    }
    Ok(())
}

/// Lets targets complete their calls, and state their costs. Sets the limits of calls at once.
///
/// # Errors
/// Those of the targets, with the node concerned.
pub(crate) fn emit(program: &mut Program, targets: &Targets, fit: &Fit) -> Result<()> {
    for idx in 0..program.kernels.len() {
        let Some(Control::Call(call)) = &program.kernels[idx].control else { continue };
        let Some(target) = owner(&call.callee, targets) else { continue };
        let mut call = call.clone();
        let context = call.context.clone();
        complete(&mut call, &**target, program).at(|| context).at(|| format!("target {}", target.name()))?;
        program.kernels[idx].control = Some(Control::Call(call));
    }

    let all = 0..program.kernels.len();
    let called = targets.iter().filter(|target| program.calls(all.clone(), target.name()));
    let limit = |target: &Arc<dyn Target>| {
        let declared = target.concurrency().limit();
        let at_once = if fit.takes_turns(target.name()) { NonZeroU32::MIN } else { declared? };
        Some(CallLimit { target: target.name().into(), at_once })
    };
    program.call_limits = called.filter_map(limit).collect();
    Ok(())
}

/// Lets a target complete its call, and state the cost.
fn complete(call: &mut ExternalCall, target: &dyn Target, program: &Program) -> Result<()> {
    target.emit(call, program)?;
    let Some(cost) = target.cost(call, program) else { return Ok(()) };
    let is_foreign = |symbol: &&Symbol| !program.symbols.contains(symbol);
    if let Some(symbol) = cost.formula().symbols().iter().find(is_foreign) {
        let message = format!(
            "the cost of {} contains {symbol}, which is not a symbol of the model; use the dims of the call's arguments",
            call.callee.symbol
        );
        return Err(Error::new(ErrorKind::Usage, message));
    }
    call.work = Some(program.facts.simplify(&work::of_nanoseconds(cost.formula())));
    Ok(())
}

fn owner<'t>(callee: &Callee, targets: &'t Targets) -> Option<&'t Arc<dyn Target>> {
    targets.iter().find(|target| !callee.target.is_empty() && target.name() == callee.target)
}

/// The targets that a list of names selects.
#[derive(Clone, Default)]
pub struct Selection<'n> {
    /// Targets in the order in which nodes are offered to them.
    pub targets: Vec<Arc<dyn Target>>,
    /// The last name, if it is not an offload target: the name of the machine, which takes the rest.
    pub machine: Option<&'n str>,
}

/// Selects from `known` the targets that a list of names such as `npu,x86_64` contains.
///
/// # Errors
/// More than one name that no target has, or one that is not the last.
pub fn select<'n>(names: &'n str, known: &Targets) -> Result<Selection<'n>> {
    let words: Vec<&str> = names.split(',').map(str::trim).collect();
    let mut selection = Selection::default();
    for (idx, word) in words.iter().enumerate() {
        match known.iter().find(|target| target.name() == *word) {
            Some(target) if selection.targets.iter().any(|other| other.name() == *word) => {
                let message = format!("duplicate target `{}`", target.name());
                return Err(Error::new(ErrorKind::Usage, message));
            }
            Some(target) => selection.targets.push(target.clone()),
            None if idx + 1 == words.len() => selection.machine = Some(word),
            None => {
                let names: Vec<&str> = known.iter().map(|target| target.name()).collect();
                let what = if names.is_empty() {
                    "this program has no offload targets".to_string()
                } else {
                    format!("the targets are {}; only the last name may be the machine", names.join(", "))
                };
                return Err(Error::new(ErrorKind::Usage, format!("unknown target `{word}`; {what}")));
            }
        }
    }

    Ok(selection)
}
