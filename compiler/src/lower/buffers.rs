//! Chooses the memory of inputs, outputs, roots and constants.

use super::{
    index::{AxisOrder, address, elems, identity, is_row_major, natural, row_major},
    lowering::{Lowering, node_name, static_bound, value_name},
    storage::Storage,
};
use crate::{
    Error, Result,
    graph::{Op, Value},
    kernel::{Buffer, BufferId, MemorySpace, Port},
};
use std::collections::HashMap;
use symshape::Dim;
use symshape_runtime::DType;

/// Stores the inputs and outputs of the model.
pub(super) fn ports(lowering: &mut Lowering, orders: &HashMap<Value, AxisOrder>) {
    let graph = lowering.graph;
    for (idx, (name, value)) in graph.inputs.iter().enumerate() {
        if graph.is_state_input(idx) {
            continue;
        }
        let number = lowering.program.inputs.len() as u32;
        let buffer = new_buffer(lowering, name, *value, MemorySpace::Input(number));
        let storage = Storage::dense(buffer, graph.shape(*value), &natural(graph.rank(*value)));
        lowering.storage.insert(*value, storage);

        let port = Port { name: name.clone(), shape: graph.shape(*value).to_vec(), buffer };
        lowering.program.inputs.push(port);
    }

    for (idx, (name, value)) in graph.outputs.iter().enumerate() {
        if graph.is_state_output(idx) {
            continue;
        }
        let number = lowering.program.outputs.len() as u32;
        let buffer = new_buffer(lowering, name, *value, MemorySpace::Output(number));
        let port = Port { name: name.clone(), shape: graph.shape(*value).to_vec(), buffer };
        lowering.program.outputs.push(port);

        // A root that wants the caller's layout is computed in place.
        let is_dense = orders.get(value).is_some_and(|order| is_row_major(graph.shape(*value), order));
        if is_dense && !lowering.storage.contains_key(value) {
            let storage = Storage::dense(buffer, graph.shape(*value), &natural(graph.rank(*value)));
            lowering.storage.insert(*value, storage);
            reshaped(lowering, orders, *value);
        }
    }
}

/// Stores the operand of a reshape in its memory, where the elements already lie in order.
fn reshaped(lowering: &mut Lowering, orders: &HashMap<Value, AxisOrder>, value: Value) {
    let graph = lowering.graph;
    let Op::View { index: map, .. } = graph.op(value) else { return };
    let operand = graph.operands(value)[0];
    let shape = graph.shape(operand);
    let is_dense = orders.get(&operand).is_some_and(|order| is_row_major(shape, order));
    let is_free = !lowering.storage.contains_key(&operand) && lowering.fusion.placed_in(operand).is_none();
    let is_computed = !matches!(graph.op(operand), Op::Input(_) | Op::Const(_));
    if !is_dense || !is_free || !is_computed {
        return;
    }

    let facts = graph.index_facts(graph.shape(value));
    let own = address(Dim::zero(), &row_major(graph.shape(value)), &identity(graph.rank(value)));
    let read = address(Dim::zero(), &row_major(shape), map);
    // The facts about indices would assume that the view has elements.
    let all = graph.facts.prove_eq(&elems(shape), &elems(graph.shape(value)));
    if all.is_yes() && facts.prove_eq(&own, &read).is_yes() {
        let buffer = lowering.storage[&value].buffer;
        lowering.storage.insert(operand, Storage::dense(buffer, shape, &natural(shape.len())));
        lowering.in_place.insert(value);
    }
}

/// Stores all roots that have no memory yet.
pub(super) fn roots(lowering: &mut Lowering, orders: &HashMap<Value, AxisOrder>) {
    let graph = lowering.graph;
    let roots: Vec<Value> = graph.values.keys().filter(|value| lowering.fusion.is_root(*value)).collect();

    // A padded or concatenated tensor is defined after its pieces, and must be stored before them.
    for value in roots.into_iter().rev() {
        if lowering.storage.contains_key(&value) {
            continue;
        }

        let storage = match lowering.fusion.placed_in(value) {
            Some((parent, position)) => piece(lowering, parent, position),
            None => {
                let name = value_name(graph, value);
                let buffer = new_buffer(lowering, &name, value, MemorySpace::Arena);
                let order = orders.get(&value).cloned().unwrap_or_else(|| natural(graph.rank(value)));
                Storage::dense(buffer, graph.shape(value), &order)
            }
        };

        lowering.storage.insert(value, storage);
    }
}

/// The memory of operand `position` of a `Pad` or `Concat` within its result.
pub(super) fn piece(lowering: &Lowering, parent: Value, position: usize) -> Storage {
    let graph = lowering.graph;
    let whole = &lowering.storage[&parent];
    match graph.op(parent) {
        Op::Pad { lo, .. } => lo.iter().enumerate().fold(whole.clone(), |part, (k, lo)| part.from(k, lo)),
        Op::Concat { axis } => {
            let before =
                graph.operands(parent)[..position].iter().map(|operand| &graph.shape(*operand)[*axis]);
            whole.from(*axis, &before.fold(Dim::zero(), |sum, dim| sum + dim))
        }
        _ => whole.clone(),
    }
}

/// The further places that the kernel of `value` stores to: parts of `Pad`s and `Concat`s, which then need no copy.
pub(super) fn take_further_places(lowering: &mut Lowering, value: Value) -> Vec<Storage> {
    let fusion = lowering.fusion;
    let mut places = Vec::new();
    for (parent, position) in fusion.further_places(value) {
        let place = piece(lowering, *parent, *position);
        if is_as_fast(lowering, value, *parent, &place) {
            lowering.stored.insert((*parent, *position));
            places.push(place);
        }
    }
    places
}

/// Whether the kernel of `value` can store to `place` as it stores to its own memory: along the same axis, and in loops
/// that are merged as far. Lines of a padded tensor are not merged.
fn is_as_fast(lowering: &Lowering, value: Value, parent: Value, place: &Storage) -> bool {
    let own = &lowering.storage[&value];
    let contiguous = |storage: &Storage| storage.strides.iter().position(|stride| stride.as_i64() == Some(1));
    let is_in_lines = |mut parent: Value| loop {
        if let Op::Pad { .. } = lowering.graph.op(parent) {
            return true;
        }
        match lowering.fusion.placed_in(parent) {
            Some((outer, _)) => parent = outer,
            None => return false,
        }
    };
    let is_own_in_lines = lowering.fusion.placed_in(value).is_some_and(|(parent, _)| is_in_lines(parent));
    contiguous(own) == contiguous(place) && (is_own_in_lines || !is_in_lines(parent))
}

/// A new buffer as large as `value` can be.
pub(super) fn new_buffer(lowering: &mut Lowering, name: &str, value: Value, space: MemorySpace) -> BufferId {
    let elems = elems(lowering.graph.shape(value));
    let elems = static_bound(&lowering.program, &elems);
    let dtype = lowering.graph.dtype(value);
    lowering.program.buffers.push(Buffer { name: name.to_string(), dtype, elems, space })
}

/// A new dense row-major tensor in the arena, as large as this shape can be.
pub(super) fn new_tensor(lowering: &mut Lowering, name: &str, dtype: DType, shape: &[Dim]) -> Storage {
    let elems = static_bound(&lowering.program, &elems(shape));
    let buffer = Buffer { name: name.to_string(), dtype, elems, space: MemorySpace::Arena };
    Storage::dense(lowering.program.buffers.push(buffer), shape, &natural(shape.len()))
}

/// The memory of `value`, a root, an input or a constant.
///
/// # Errors
/// `Internal` for any other value: only fused values have no memory.
pub(super) fn stored(lowering: &mut Lowering, value: Value) -> Result<Storage> {
    match lowering.storage.get(&value) {
        Some(storage) => Ok(storage.clone()),
        None => constant(lowering, value).ok_or_else(|| Error::internal("an operand has no memory")),
    }
}

/// The buffer of a constant that kernels read element by element.
pub(super) fn constant(lowering: &mut Lowering, value: Value) -> Option<Storage> {
    let tensor = lowering.graph.as_constant(value)?.clone();
    let strides = row_major(lowering.graph.shape(value));

    let buffer = match lowering.weights.row_major.get(&value) {
        Some(buffer) => *buffer,
        None => {
            let name = node_name(lowering.graph, value);
            let buffer = new_buffer(lowering, &name, value, MemorySpace::Const(tensor.clone()));
            lowering.weights.record(&mut lowering.program, buffer, &tensor, "row-major");
            lowering.weights.row_major.insert(value, buffer);
            buffer
        }
    };

    Some(Storage { buffer, offset: Dim::zero(), strides })
}
