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

mod cut;
mod memory;
mod parts;

use crate::{
    error::{At, Error, ErrorKind, Result},
    external::Callee,
    graph::{Graph, Node, Op, Value, verify},
    kernel::{Control, ExternalCall, Program},
};
use std::sync::Arc;
use symshape::Dim;

/// When a pass over a graph runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphPhase {
    /// Over the whole optimised graph, before any node is claimed.
    Optimized,
    /// Over each part that the target claimed.
    Claimed,
}

/// When a pass over kernels runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelPhase {
    /// Over the lowered program, with one kernel for each value in memory.
    Lowered,
    /// Over the scheduled program, before its memory is planned.
    Scheduled,
}

/// A part of a graph that a target claimed.
#[derive(Clone, Debug)]
pub struct Subgraph {
    /// The computation as a separate graph with the same symbols and facts. It contains its constants.
    pub graph: Graph,
    /// The values of its inputs, in the original graph.
    pub operands: Vec<Value>,
}

/// A library or device that runs parts of a model.
///
/// All hooks but the first three have a default that does nothing. They run in the order of this list, on the
/// compiler's own IRs. A target stores all its results there.
pub trait Target: Send + Sync {
    /// The name on the command line, in messages and in the target's calls: a single word.
    fn name(&self) -> &str;

    /// A pass over graphs, see [`GraphPhase`]. The graph must compute what it did before.
    ///
    /// # Errors
    /// The model can't be compiled for this target.
    fn graph_pass(&self, phase: GraphPhase, graph: &mut Graph) -> Result<()> {
        let _ = (phase, graph);
        Ok(())
    }

    /// Whether the target takes this node of the graph. Inputs, constants, control flow, calls, and nodes with
    /// data-dependent sizes are not offered.
    fn claim(&self, graph: &Graph, node: &Node) -> bool;

    /// Lowers a part into the graph: to calls of its functions ([`Op::Call`]) and any other core operators. Returns a
    /// value for each output of the part, of the same type.
    ///
    /// # Errors
    /// The part can't be lowered. Compiling ends with this error, and with the names of the target and of the nodes.
    fn lower(&self, part: &Subgraph, graph: &mut Graph) -> Result<Vec<Value>>;

    /// The size of the device memory in bytes, if there is one. Buffers that only the target's calls touch are planned
    /// in it: values that one call passes to another, and scratch memory. A model that needs more at once is rejected.
    ///
    /// The memory is a part of the arena, so that calls of the model on several threads don't share it. A function
    /// receives its start ([`symshape_runtime::abi::Call::memory`]); the addresses of a real device are offsets from
    /// there.
    fn memory_bytes(&self) -> Option<u64> {
        None
    }

    /// A pass over kernels, see [`KernelPhase`].
    ///
    /// # Errors
    /// The model can't be compiled for this target.
    fn kernel_pass(&self, phase: KernelPhase, program: &mut Program) -> Result<()> {
        let _ = (phase, program);
        Ok(())
    }

    /// Completes a call of this target when the final program and its buffers are known, for example by an attribute
    /// with code for a device.
    ///
    /// # Errors
    /// The call can't be completed.
    fn emit(&self, call: &mut ExternalCall, program: &Program) -> Result<()> {
        let _ = (call, program);
        Ok(())
    }
}

/// Targets in the order in which nodes are offered to them.
pub type Targets = [Arc<dyn Target>];

/// Offloads parts of an optimised graph to targets.
///
/// # Errors
/// Those of the hooks, with the target and the nodes concerned.
pub fn offload(graph: &mut Graph, targets: &Targets) -> Result<()> {
    for target in targets {
        hand_over(graph, &**target).at(|| format!("target {}", target.name()))?;
    }
    Ok(())
}

fn hand_over(graph: &mut Graph, target: &dyn Target) -> Result<()> {
    for node in graph.nodes.values_mut() {
        node.op.regions_mut().into_iter().try_for_each(|region| hand_over(region, target))?;
    }
    target.graph_pass(GraphPhase::Optimized, graph)?;
    verified(graph).at(|| "its pass over the graph")?;
    let parts = parts::of(graph, &|node| may_be_claimed(graph, node) && target.claim(graph, node));
    if parts.is_empty() {
        return Ok(());
    }
    cut::replace(graph, &parts, &mut |part, new| {
        let first = new.nodes.len();
        target.graph_pass(GraphPhase::Claimed, &mut part.graph)?;
        verified(&part.graph).at(|| "its pass over a part")?;
        let results = target.lower(part, new)?;
        own(new, first, target.name());
        fits(part, new, &results)?;
        Ok(results)
    })?;
    verified(graph)
}

/// Whether a node may be offered: a computation whose sizes are known when a call begins.
fn may_be_claimed(graph: &Graph, node: &Node) -> bool {
    let values = node.operands.iter().chain(&node.results);
    let is_data_dependent = |dim: &Dim| graph.is_data_dependent(dim);
    node.op.is_computation()
        && !values.into_iter().any(|value| graph.shape(*value).iter().any(is_data_dependent))
}

/// Checks that the calls among the nodes from index `first` on belong to the target.
fn own(graph: &mut Graph, first: usize, target: &str) {
    for node in graph.nodes.values_mut().skip(first) {
        if let Op::Call { callee, .. } = &mut node.op {
            callee.target = target.to_string();
        }
    }
}

/// Checks that the results have the types of the part's outputs.
fn fits(part: &Subgraph, graph: &Graph, results: &[Value]) -> Result<()> {
    if results.len() != part.graph.outputs.len() {
        let (has, wants) = (results.len(), part.graph.outputs.len());
        return Err(Error::new(
            ErrorKind::Usage,
            format!("it gives {has} values for {wants} outputs of a part"),
        ));
    }
    for ((name, output), result) in part.graph.outputs.iter().zip(results) {
        let (wanted, have) = (part.graph.ty(*output), graph.ty(*result));
        let same = |(a, b): (&Dim, &Dim)| a == b || graph.facts.prove_eq(a, b).is_yes();
        let fits = wanted.dtype == have.dtype
            && wanted.shape.len() == have.shape.len()
            && wanted.shape.iter().zip(&have.shape).all(same);
        if !fits {
            return Err(Error::new(ErrorKind::Usage, format!("it gives {have:?} for `{name}`, {wanted:?}")));
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

/// Lets targets complete their calls.
///
/// # Errors
/// Those of the targets, with the node concerned.
pub fn emit(program: &mut Program, targets: &Targets) -> Result<()> {
    for idx in 0..program.kernels.len() {
        let Some(Control::Call(call)) = &program.kernels[idx].control else { continue };
        let Some(target) = owner(&call.callee, targets) else { continue };
        let mut call = call.clone();
        let what = call.context.clone();
        target.emit(&mut call, program).at(|| what).at(|| format!("target {}", target.name()))?;
        program.kernels[idx].control = Some(Control::Call(call));
    }
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
                let what = format!("target {} is named twice", target.name());
                return Err(Error::new(ErrorKind::Usage, what));
            }
            Some(target) => selection.targets.push(target.clone()),
            None if idx + 1 == words.len() => selection.machine = Some(word),
            None => {
                let names: Vec<&str> = known.iter().map(|target| target.name()).collect();
                let what = match names.is_empty() {
                    true => "this program has none but the machine".to_string(),
                    false => format!("there are {}, and at the end the machine", names.join(", ")),
                };
                return Err(Error::new(ErrorKind::Usage, format!("no target is called `{word}`; {what}")));
            }
        }
    }
    Ok(selection)
}
