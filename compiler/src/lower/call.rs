//! Calls of external functions. Operands and results are dense and row-major, in place where their memory is.

use super::{
    buffers,
    index::{identity, row_major, substitute},
    lowering::{Lowering, call_name, node_name, static_bound},
    map,
    storage::Storage,
};
use crate::{
    Error, Result,
    graph::{Graph, Op, Value, axis},
    kernel::{Access, Argument, Buffer, Control, ExternalCall, Kernel, MemorySpace},
};
use symshape::Dim;
use symshape_runtime::DType;

/// Appends the kernels of a call: copies of the operands that are stored otherwise, the call, copies of such results.
pub(super) fn call(lowering: &mut Lowering, value: Value) -> Result<()> {
    let graph = lowering.graph;
    let node = &graph.nodes[graph.values[value].def];
    let Op::Call { callee, scratch, .. } = &node.op else { return Err(Error::internal("not a call")) };
    let name = call_name(graph, graph.values[value].def, callee);
    let operands = node.operands.iter().map(|operand| argument(lowering, &name, *operand));
    let operands = operands.collect::<Result<Vec<_>>>()?;

    let mut moves = Vec::new();
    let mut results = Vec::new();
    for result in &node.results {
        let storage = lowering.storage[result].clone();
        let shape = graph.shape(*result);
        results.push(match dense(graph, shape, &storage.at(&identity(shape.len()))) {
            Some(place) => place,
            None => {
                let from = new_argument(lowering, &name, graph.dtype(*result), shape);
                let place = whole(&from, shape);
                moves.push((shape, from, storage));
                place
            }
        });
    }

    let scratch = match scratch.as_i64() {
        Some(0) => None,
        _ => {
            let elems = static_bound(&lowering.program, scratch);
            let name = format!("scratch of {name}");
            let buffer = Buffer { name, dtype: DType::U8, elems, space: MemorySpace::Arena };
            Some(lowering.program.buffers.push(buffer))
        }
    };
    let context = node_name(graph, value);
    let call = ExternalCall { callee: callee.clone(), operands, results, scratch, work: None, context };
    lowering.program.kernels.push(Kernel::control(name, Control::Call(Box::new(call))));

    for (shape, from, to) in moves {
        map::move_to(lowering, value, shape, &from, &to);
    }
    Ok(())
}

/// The operand as the call of this name takes it. It is copied if it is stored otherwise.
fn argument(lowering: &mut Lowering, name: &str, operand: Value) -> Result<Argument> {
    let graph = lowering.graph;
    let shape = graph.shape(operand);
    let mut index = identity(shape.len());
    let mut shown = operand;
    while !lowering.storage.contains_key(&shown)
        && let Op::View { index: map, .. } = graph.op(shown)
    {
        index = substitute(map, &index);
        shown = graph.operands(shown)[0];
    }

    let stored = lowering.storage.get(&shown).cloned();
    let stored = stored.or_else(|| buffers::constant(lowering, shown));
    if let Some(place) = stored.and_then(|storage| dense(graph, shape, &storage.at(&index))) {
        return Ok(place);
    }
    let to = new_argument(lowering, name, graph.dtype(operand), shape);
    map::copy(lowering, operand, &to, "argument")?;
    Ok(whole(&to, shape))
}

/// The tensor of this shape whose element `[$0, $1, …]` is at `element`, if that is dense and row-major.
fn dense(graph: &Graph, shape: &[Dim], element: &Access) -> Option<Argument> {
    let facts = graph.index_facts(shape);
    let mut rest = facts.simplify(&element.index);
    for (k, (dim, stride)) in shape.iter().zip(row_major(shape)).enumerate() {
        let (step, others) = facts.linear_in(&rest, &axis(k))?;
        let fits = dim.as_i64() == Some(1) || facts.prove_eq(&step, &stride).is_yes();
        rest = fits.then_some(others)?;
    }
    let first = Access { buffer: element.buffer, index: graph.facts.simplify(&rest) };
    Some(Argument { first, shape: shape.to_vec() })
}

/// The argument that fills the memory `storage`.
fn whole(storage: &Storage, shape: &[Dim]) -> Argument {
    let first = Access { buffer: storage.buffer, index: Dim::zero() };
    Argument { first, shape: shape.to_vec() }
}

/// New memory for an argument of the call of this name, dense and row-major.
fn new_argument(lowering: &mut Lowering, name: &str, dtype: DType, shape: &[Dim]) -> Storage {
    buffers::new_tensor(lowering, &format!("argument of {name}"), dtype, shape)
}
