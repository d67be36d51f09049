//! The state of one lowering, and the names of the kernels and buffers that it makes.

use super::{fuse::Fusion, storage::Storage, weights::Weights};
use crate::{
    Error, Result,
    error::At,
    external::Callee,
    graph::{Graph, Node, NodeId, Op, Value},
    kernel::{self, Kernel, Program, Stmt},
};
use std::collections::{HashMap, HashSet};
use symshape::{Dim, Facts, Symbol};

/// Appends the kernels of one root. Regions of branches and loops call it again for their own roots.
pub(super) type LowerRoot = fn(&mut Lowering<'_>, Value) -> Result<()>;

/// The state of one lowering.
pub(super) struct Lowering<'g> {
    pub(super) graph: &'g Graph,
    pub(super) fusion: &'g Fusion,
    pub(super) program: Program,
    /// The memory of inputs and roots.
    pub(super) storage: HashMap<Value, Storage>,
    /// The buffers of constants.
    pub(super) weights: Weights,
    /// Operands, by user and position, that their own kernel stored into the user's memory as well.
    pub(super) stored: HashSet<(Value, usize)>,
    /// The views whose elements are where their operands are stored.
    pub(super) in_place: HashSet<Value>,
}

impl<'g> Lowering<'g> {
    pub(super) fn new(graph: &'g Graph, fusion: &'g Fusion, program: Program) -> Lowering<'g> {
        let weights = Weights::new(graph, |value| node_name(graph, value));
        Lowering {
            graph,
            fusion,
            program,
            storage: HashMap::new(),
            weights,
            stored: HashSet::new(),
            in_place: HashSet::new(),
        }
    }

    /// Appends the kernels of all roots, in the order of the nodes.
    pub(super) fn lower_roots(&mut self, lower_root: LowerRoot) -> Result<()> {
        let graph = self.graph;
        for (_, node) in &graph.nodes {
            let Some(first) = node.results.first() else { continue };
            if self.fusion.is_root(*first) {
                lower_root(self, *first).at(|| node_name(graph, *first))?;
            }
        }
        Ok(())
    }

    /// Appends a kernel of the node of `value`.
    pub(super) fn push(&mut self, value: Value, kind: &str, mut kernel: Kernel, body: Vec<Stmt>) {
        let origin = &self.graph.nodes[self.graph.values[value].def].origin;
        kernel.name = if origin.is_empty() { kind.to_string() } else { format!("{kind} {origin}") };
        kernel.body = body;
        self.program.kernels.push(kernel);
    }

    /// Whether an operand of `parent` is in its memory already.
    pub(super) fn is_stored(&self, parent: Value, position: usize) -> bool {
        let operand = self.graph.operands(parent)[position];
        self.fusion.placed_in(operand) == Some((parent, position))
            || self.stored.contains(&(parent, position))
    }

    /// Starts a scope for one kernel's loop variables.
    pub(super) fn scope(&self) -> KernelScope {
        KernelScope {
            facts: self.program.facts.clone(),
            around: self.program.facts.clone(),
            taken: self.program.all_symbols().cloned().collect(),
            next: 0,
        }
    }

    /// The upper bound of a number of scratch elements, over the model's symbols.
    ///
    /// # Errors
    /// `Unsupported` if there is no bound.
    pub(super) fn upper_bound_elems(&self, elems: &Dim) -> Result<Dim> {
        let program = &self.program;
        let bound = kernel::upper_bound(&program.facts, &program.data_dependent, elems);
        bound.ok_or_else(|| {
            Error::unsupported(format!("{elems} elements of scratch memory have no upper bound"))
        })
    }
}

/// The upper bound of `dim` over the model's symbols, see [`kernel::upper_bound`]. Without a bound this is the value
/// at the bounds of all symbols, and the planner reports the missing bound.
pub(super) fn static_bound(program: &Program, dim: &Dim) -> Dim {
    let facts = &program.facts;
    let symbols = &program.data_dependent;
    let dim = facts.simplify(dim);
    kernel::upper_bound(facts, symbols, &dim).unwrap_or_else(|| kernel::at_upper_bounds(facts, symbols, &dim))
}

/// The name of a node in messages and kernel names.
pub(super) fn node_name(graph: &Graph, value: Value) -> String {
    let node = &graph.nodes[graph.values[value].def];
    if node.origin.is_empty() { node.op.name().to_string() } else { node.origin.clone() }
}

/// The name of the memory of a value: that of its node. Results of calls are named after the called function, since a
/// target may have turned one node into several calls.
pub(super) fn value_name(graph: &Graph, value: Value) -> String {
    let node = &graph.nodes[graph.values[value].def];
    let Op::Call { callee, .. } = &node.op else { return node_name(graph, value) };
    let name = call_name(graph, graph.values[value].def, callee);
    match node.results.iter().position(|result| *result == value) {
        None | Some(0) => name,
        Some(at) => format!("{name} ({})", at + 1),
    }
}

/// The name of a call in lists of kernels. Calls of one function that come from one node are numbered.
pub(super) fn call_name(graph: &Graph, id: NodeId, callee: &Callee) -> String {
    let origin = &graph.nodes[id].origin;
    let is_same = |node: &Node| {
        let calls = matches!(&node.op, Op::Call { callee: other, .. } if other.symbol == callee.symbol);
        calls && node.origin == *origin
    };
    let n_before =
        graph.nodes.iter().take_while(|(other, _)| *other != id).filter(|(_, node)| is_same(node)).count();
    let name = if origin.is_empty() { callee.symbol.clone() } else { format!("{} {origin}", callee.symbol) };
    if n_before == 0 { name } else { format!("{name}, call {}", n_before + 1) }
}

/// The loop variables of one kernel, and the facts about them.
#[derive(Clone)]
pub(super) struct KernelScope {
    pub(super) facts: Facts,
    /// The facts outside of the kernel's loops, whether or not a loop has an iteration.
    pub(super) around: Facts,
    taken: Vec<Symbol>,
    next: usize,
}

impl KernelScope {
    /// A name that neither the model nor this kernel uses.
    pub(super) fn fresh(&mut self, stem: &str) -> Symbol {
        loop {
            let symbol = Symbol::new(&format!("{stem}{}", self.next));
            self.next += 1;
            if !self.taken.contains(&symbol) {
                return symbol;
            }
        }
    }
}
