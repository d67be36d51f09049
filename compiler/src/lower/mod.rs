//! Graph → kernels: decides which values are computed together and where they are stored, and writes the loop nests.
//!
//! Three decisions come first, each over the whole graph:
//!
//! - the *roots*: the values that are stored in memory ([`fuse`]);
//! - the order of each root's axes in memory ([`layout`]);
//! - the roots that are stored inside a larger buffer, as pieces of a concatenation, the interior of a padded tensor
//!   ([`buffers`]), or the new rows of a state ([`state`]).
//!
//! Then each root becomes one kernel or several. Every value between roots is a definition that is inlined at its uses
//! ([`inline`]). So views cost only an index expression, and elementwise chains are one pass. The loops over a root's
//! axes are split, ordered and merged until addresses are linear in them ([`nest`]). Branches and loops of the model
//! become markers in the list of kernels ([`control`]); external functions become steps ([`call`]).

mod across;
mod arg_reduce;
mod buffers;
mod call;
mod contraction;
mod control;
mod crossed_gathers;
mod dead_stores;
mod fuse;
mod index;
mod inline;
mod layout;
mod lowering;
mod map;
mod nest;
mod order;
mod place;
mod reduce;
mod scattered_columns;
mod sort;
mod state;
mod storage;
mod weights;
mod windows;

pub use dead_stores::eliminate_dead_stores;

use crate::{
    Result,
    graph::{Graph, Op, Value},
    kernel::{MicrokernelSupport, Program},
};
use lowering::Lowering;

/// Lowers `graph`, which must be verified, to a program that computes its outputs from its inputs.
///
/// # Errors
/// `Unsupported` for scratch memory without an upper bound.
pub fn lower(graph: &Graph) -> Result<Program> {
    lower_for(graph, MicrokernelSupport::default())
}

/// As [`lower`], for code with this support.
pub(crate) fn lower_for(graph: &Graph, microkernels: MicrokernelSupport) -> Result<Program> {
    let fusion = fuse::fuse(graph);
    let orders = layout::orders(graph, &fusion);
    let program = Program {
        name: graph.name.clone(),
        symbols: graph.symbols.clone(),
        facts: graph.facts.clone(),
        microkernels,
        ..Program::default()
    };

    let mut lowering = Lowering::new(graph, &fusion, program);
    control::declare_all(&mut lowering);
    state::block(&mut lowering)?;
    buffers::ports(&mut lowering, &orders);
    buffers::roots(&mut lowering, &orders);
    lowering.lower_roots(lower_root)?;
    map::copy_outputs(&mut lowering)?;
    state::overwrite(&mut lowering)?;
    Ok(lowering.program)
}

/// Appends the kernels of one root.
fn lower_root(lowering: &mut Lowering, value: Value) -> Result<()> {
    if let Some(contraction) = lowering.fusion.absorbed_by(value) {
        return contraction::lower(lowering, value, contraction);
    }
    match lowering.graph.op(value) {
        Op::Contraction { .. } => contraction::lower(lowering, value, value),
        Op::Map(_) | Op::View { .. } | Op::Index { .. } | Op::Gather { .. } => map::lower(lowering, value),
        Op::Input(_) | Op::Const(_) => Ok(()),
        Op::Pad { .. } => place::pad(lowering, value),
        Op::Concat { .. } => place::concat(lowering, value),
        Op::Reduce { .. } => reduce::lower(lowering, value),
        Op::ArgReduce { .. } => arg_reduce::lower(lowering, value),
        Op::Scatter { .. } => order::scatter(lowering, value),
        Op::Sort { .. } => sort::lower(lowering, value),
        Op::Scan { .. } => order::scan(lowering, value),
        Op::Bind { .. } => control::lower_bind(lowering, value),
        Op::If { .. } => control::lower_if(lowering, value, lower_root),
        Op::Loop { .. } => control::lower_loop(lowering, value, lower_root),
        Op::Call { .. } => call::call(lowering, value),
        Op::Fail { .. } => control::lower_fail(lowering, value),
    }
}
