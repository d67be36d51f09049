//! Calls of functions outside of the compiler: operands and results dense and row-major, in place where they lie so.

use super::{
    Lowering, control,
    fuse::{elems, substitute},
    layout::row_major,
    map,
    storage::{self, Storage, natural},
};
use crate::{
    Error, Result,
    graph::{Graph, Op, Value, axis},
    kernel::{Access, Argument, Buffer, BufferId, Control, ExternalCall, Kernel, MemorySpace},
};
use symshape::Dim;
use symshape_runtime::DType;

/// The kernels of a call: copies of the operands that lie otherwise, the call, copies of such results.
pub(super) fn call(lowering: &mut Lowering, value: Value) -> Result<()> {
    let graph = lowering.graph;
    let node = &graph.nodes[graph.values[value].def];
    let Op::Call { callee, scratch, .. } = &node.op else { return Err(Error::internal("not a call")) };
    let name = super::call_name(callee, &node.origin);
    let operands = node.operands.iter().map(|operand| argument(lowering, &name, *operand));
    let operands = operands.collect::<Result<Vec<_>>>()?;
    let mut moves = Vec::new();
    let mut results = Vec::new();
    for result in &node.results {
        let storage = lowering.storage[result].clone();
        let shape = graph.shape(*result);
        let index: Vec<Dim> = (0..shape.len()).map(|k| Dim::from(axis(k))).collect();
        results.push(match dense(graph, shape, &storage.at(&index)) {
            Some(place) => place,
            None => {
                let (place, from) = beside(lowering, &name, graph.dtype(*result), shape);
                moves.push((shape, from, storage));
                place
            }
        });
    }
    let scratch = match scratch.as_i64() {
        Some(0) => None,
        _ => Some(memory(lowering, format!("scratch of {name}"), DType::U8, scratch)),
    };
    let context = super::node_name(graph, value);
    let call = ExternalCall { callee: callee.clone(), operands, results, scratch, context };
    lowering.program.kernels.push(Kernel::control(name, Control::Call(Box::new(call))));
    for (shape, from, to) in moves {
        control::move_to(lowering, value, shape, &from, &to);
    }
    Ok(())
}

/// Where an operand lies as the call of this name wants it; it is copied there if it lies otherwise.
fn argument(lowering: &mut Lowering, name: &str, operand: Value) -> Result<Argument> {
    let graph = lowering.graph;
    let shape = graph.shape(operand);
    let mut index: Vec<Dim> = (0..shape.len()).map(|k| Dim::from(axis(k))).collect();
    let mut shown = operand;
    while !lowering.storage.contains_key(&shown)
        && let Op::View { index: map, .. } = graph.op(shown)
    {
        index = substitute(map, &index);
        shown = graph.operands(shown)[0];
    }
    let stored = lowering.storage.get(&shown).cloned();
    let stored = stored.or_else(|| storage::constant(lowering, shown));
    if let Some(place) = stored.and_then(|storage| dense(graph, shape, &storage.at(&index))) {
        return Ok(place);
    }
    let (place, to) = beside(lowering, name, graph.dtype(operand), shape);
    map::copy(lowering, operand, &to, "argument")?;
    Ok(place)
}

/// The tensor of this shape whose element `[$0, $1, …]` lies at `element`, if that is dense and row-major.
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

/// Memory for a tensor of a call, dense and row-major.
fn beside(lowering: &mut Lowering, name: &str, dtype: DType, shape: &[Dim]) -> (Argument, Storage) {
    let buffer = memory(lowering, format!("argument of {name}"), dtype, &elems(shape));
    let first = Access { buffer, index: Dim::zero() };
    (Argument { first, shape: shape.to_vec() }, Storage::dense(buffer, shape, &natural(shape.len())))
}

fn memory(lowering: &mut Lowering, name: String, dtype: DType, elems: &Dim) -> BufferId {
    let elems = control::most(&lowering.program, elems);
    lowering.program.buffers.push(Buffer { name, dtype, elems, space: MemorySpace::Arena })
}
