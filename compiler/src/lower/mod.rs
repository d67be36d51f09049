//! Graph → kernels: decides what is computed together and where it is stored, and writes the loop nests.
//!
//! Three decisions come first, each over the whole graph: which values get memory of their own, the *roots*
//! ([`fuse`]); in which order the axes of a root lie in memory ([`layout`]); and which roots live inside a larger
//! buffer, as pieces of a concatenation or the interior of a padded tensor ([`storage`]). Then each root becomes one
//! kernel, or several: every value between roots is a definition that is inlined where it is used ([`inline`]), so
//! views cost nothing but an index expression, and elementwise chains are one pass. The loops over a root's axes are
//! split, ordered and merged until addresses are linear in them ([`nest`]). Branches and loops of the model become marks in
//! the list of kernels ([`control`]), functions outside of the compiler steps of their own ([`call`]).

mod call;
mod contraction;
mod control;
mod dead_stores;
mod fuse;
mod inline;
mod layout;
mod map;
mod nest;
mod order;
mod place;
mod reduce;
mod storage;

pub use dead_stores::eliminate_dead_stores;

use crate::{
    Error, Result,
    error::At,
    external::Callee,
    graph::{Graph, Op, Value},
    kernel::{BufferId, Kernel, Program, Stmt, upper_bound},
};
use fuse::Fusion;
use std::collections::HashMap;
use storage::Storage;
use symshape::{Dim, Facts, Symbol};

/// Lowers `graph`, which must be verified, to a program that computes its outputs from its inputs.
///
/// # Errors
/// `Unsupported` for scratch memory that nothing bounds.
pub fn lower(graph: &Graph) -> Result<Program> {
    let fusion = fuse::fuse(graph);
    let orders = layout::orders(graph, &fusion);
    let program = Program {
        name: graph.name.clone(),
        symbols: graph.symbols.clone(),
        facts: graph.facts.clone(),
        ..Program::default()
    };
    let mut lowering = Lowering::new(graph, &fusion, program);
    control::declare_all(&mut lowering);
    storage::ports(&mut lowering, &orders);
    storage::roots(&mut lowering, &orders)?;
    lowering.nodes()?;
    storage::copy_outputs(&mut lowering)?;
    Ok(lowering.program)
}

/// The room that `elems` elements need at most, as an expression over the model's symbols.
fn room(lowering: &Lowering, elems: &Dim) -> Result<Dim> {
    let program = &lowering.program;
    let bound = upper_bound(&program.facts, &program.data_dependent, elems);
    bound.ok_or_else(|| {
        Error::unsupported(format!("{elems} elements of scratch memory, which nothing bounds"))
    })
}

/// How a node is called in messages and kernel names.
fn node_name(graph: &Graph, value: Value) -> String {
    let node = &graph.nodes[graph.values[value].def];
    if node.origin.is_empty() { node.op.name().to_string() } else { node.origin.clone() }
}

/// How the memory of a value is called: after its node, and after the function where one computes it, of which a node may
/// have become several.
fn value_name(graph: &Graph, value: Value) -> String {
    let node = &graph.nodes[graph.values[value].def];
    let Op::Call { callee, .. } = &node.op else { return node_name(graph, value) };
    let name = call_name(callee, &node.origin);
    match node.results.iter().position(|result| *result == value) {
        None | Some(0) => name,
        Some(at) => format!("{name} ({})", at + 1),
    }
}

/// How a call is called where kernels are listed.
fn call_name(callee: &Callee, origin: &str) -> String {
    if origin.is_empty() { callee.symbol.clone() } else { format!("{} {origin}", callee.symbol) }
}

/// The state of one lowering.
struct Lowering<'g> {
    graph: &'g Graph,
    fusion: &'g Fusion,
    program: Program,
    /// Where inputs and roots are stored.
    storage: HashMap<Value, Storage>,
    /// Buffers of constants that kernels read unpacked.
    constants: HashMap<Value, BufferId>,
}

impl<'g> Lowering<'g> {
    fn new(graph: &'g Graph, fusion: &'g Fusion, program: Program) -> Lowering<'g> {
        Lowering { graph, fusion, program, storage: HashMap::new(), constants: HashMap::new() }
    }

    /// Writes the kernels of all roots.
    fn nodes(&mut self) -> Result<()> {
        let graph = self.graph;
        for (_, node) in &graph.nodes {
            let Some(first) = node.results.first() else { continue };
            if self.fusion.is_root(*first) {
                self.root(*first).at(|| node_name(graph, *first))?;
            }
        }
        Ok(())
    }

    /// Writes the kernels of one root.
    fn root(&mut self, value: Value) -> Result<()> {
        if let Some(sum) = self.fusion.absorbed_by(value) {
            return contraction::lower(self, value, sum);
        }
        match self.graph.op(value) {
            Op::Contraction { .. } => contraction::lower(self, value, value),
            Op::Map(_) | Op::View { .. } | Op::Index { .. } | Op::Gather { .. } => map::lower(self, value),
            Op::Input(_) | Op::Const(_) => Ok(()),
            Op::Pad { .. } => place::pad(self, value),
            Op::Concat { .. } => place::concat(self, value),
            Op::Reduce { .. } => reduce::lower(self, value),
            Op::ArgReduce { .. } => order::arg_reduce(self, value),
            Op::Scatter { .. } => order::scatter(self, value),
            Op::Sort { .. } => order::sort(self, value),
            Op::Scan { .. } => order::scan(self, value),
            Op::Bind { .. } => control::bind(self, value),
            Op::If { .. } => control::branch(self, value),
            Op::Loop { .. } => control::rounds(self, value),
            Op::Call { .. } => call::call(self, value),
            Op::Fail { .. } => control::fail(self, value),
        }
    }

    /// Appends a kernel.
    fn push(&mut self, value: Value, kind: &str, mut kernel: Kernel, body: Vec<Stmt>) {
        let origin = &self.graph.nodes[self.graph.values[value].def].origin;
        kernel.name = if origin.is_empty() { kind.to_string() } else { format!("{kind} {origin}") };
        kernel.body = body;
        self.program.kernels.push(kernel);
    }

    /// Starts a scope for one kernel's loop variables.
    fn scope(&self) -> Scope {
        Scope {
            facts: self.program.facts.clone(),
            around: self.program.facts.clone(),
            taken: self.program.all_symbols().cloned().collect(),
            next: 0,
        }
    }
}

/// The variables of one kernel and what is known of them.
#[derive(Clone)]
struct Scope {
    facts: Facts,
    /// What is known where no loop of the kernel is known to run.
    around: Facts,
    taken: Vec<Symbol>,
    next: usize,
}

impl Scope {
    /// A name that neither the model nor this kernel uses.
    fn fresh(&mut self, stem: &str) -> Symbol {
        loop {
            let symbol = Symbol::new(&format!("{stem}{}", self.next));
            self.next += 1;
            if !self.taken.contains(&symbol) {
                return symbol;
            }
        }
    }
}
