//! Which buffer holds each input and root, and at which strides.

use super::{
    Lowering, control,
    layout::{Order, row_major, strides},
    map,
};
use crate::{
    Result,
    graph::{Op, Value},
    kernel::{Access, Buffer, BufferId, MemorySpace, Port},
};
use std::collections::HashMap;
use symshape::Dim;

/// Where a value lies: element `index` is at `offset + Σ index[k] * strides[k]` of `buffer`.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    pub(super) buffer: BufferId,
    pub(super) offset: Dim,
    pub(super) strides: Vec<Dim>,
}

impl Storage {
    /// A whole buffer in this order.
    pub(super) fn dense(buffer: BufferId, shape: &[Dim], order: &[usize]) -> Storage {
        Storage { buffer, offset: Dim::zero(), strides: strides(shape, order) }
    }

    /// The element at `index`.
    pub(super) fn at(&self, index: &[Dim]) -> Access {
        let terms = self.strides.iter().zip(index);
        let at = terms.fold(self.offset.clone(), |sum, (stride, at)| sum + stride * at);
        Access { buffer: self.buffer, index: at }
    }

    /// The part that begins at `start` along `axis`.
    pub(super) fn from(&self, axis: usize, start: &Dim) -> Storage {
        Storage { offset: &self.offset + start * &self.strides[axis], ..self.clone() }
    }
}

/// Stores the inputs and outputs of the model.
pub(super) fn ports(lowering: &mut Lowering, orders: &HashMap<Value, Order>) {
    let graph = lowering.graph;
    for (number, (name, value)) in graph.inputs.iter().enumerate() {
        let buffer = new_buffer(lowering, name, *value, MemorySpace::Input(number as u32));
        let storage = Storage::dense(buffer, graph.shape(*value), &natural(graph.rank(*value)));
        lowering.storage.insert(*value, storage);
        lowering.program.inputs.push(Port {
            name: name.clone(),
            shape: graph.shape(*value).to_vec(),
            buffer,
        });
    }
    for (number, (name, value)) in graph.outputs.iter().enumerate() {
        let buffer = new_buffer(lowering, name, *value, MemorySpace::Output(number as u32));
        lowering.program.outputs.push(Port {
            name: name.clone(),
            shape: graph.shape(*value).to_vec(),
            buffer,
        });
        let is_dense = orders.get(value).is_some_and(|order| is_row_major(graph.shape(*value), order));
        if is_dense && !lowering.storage.contains_key(value) {
            let storage = Storage::dense(buffer, graph.shape(*value), &natural(graph.rank(*value)));
            lowering.storage.insert(*value, storage);
        }
    }
}

/// Stores all roots that have no place yet.
pub(super) fn roots(lowering: &mut Lowering, orders: &HashMap<Value, Order>) -> Result<()> {
    let graph = lowering.graph;
    let roots: Vec<Value> = graph.values.keys().filter(|value| lowering.fusion.is_root(*value)).collect();
    // A tensor that others are computed into is stored before them; it always stands after them.
    for value in roots.into_iter().rev() {
        if lowering.storage.contains_key(&value) {
            continue;
        }
        let storage = match lowering.fusion.placed_in(value) {
            Some((parent, position)) => piece(lowering, parent, position),
            None => {
                let name = super::value_name(graph, value);
                let buffer = new_buffer(lowering, &name, value, MemorySpace::Arena);
                let order = orders.get(&value).cloned().unwrap_or_else(|| natural(graph.rank(value)));
                Storage::dense(buffer, graph.shape(value), &order)
            }
        };
        lowering.storage.insert(value, storage);
    }
    Ok(())
}

/// Where operand `position` of a `Pad` or `Concat` lies within its result.
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

pub(super) fn new_buffer(lowering: &mut Lowering, name: &str, value: Value, space: MemorySpace) -> BufferId {
    let elems = super::fuse::elems(lowering.graph.shape(value));
    let elems = control::most(&lowering.program, &elems);
    let dtype = lowering.graph.dtype(value);
    lowering.program.buffers.push(Buffer { name: name.to_string(), dtype, elems, space })
}

pub(super) fn natural(rank: usize) -> Order {
    (0..rank).collect()
}

/// True when this order is row-major but for axes of extent 1.
pub(super) fn is_row_major(shape: &[Dim], order: &[usize]) -> bool {
    order.iter().filter(|k| shape[**k].as_i64() != Some(1)).is_sorted()
}

/// The buffer of a constant that kernels read element by element.
pub(super) fn constant(lowering: &mut Lowering, value: Value) -> Option<Storage> {
    let tensor = lowering.graph.as_constant(value)?.clone();
    let strides = row_major(lowering.graph.shape(value));
    let buffer = match lowering.constants.get(&value) {
        Some(buffer) => *buffer,
        None => {
            let name = super::node_name(lowering.graph, value);
            let buffer = new_buffer(lowering, &name, value, MemorySpace::Const(tensor));
            lowering.constants.insert(value, buffer);
            buffer
        }
    };
    Some(Storage { buffer, offset: Dim::zero(), strides })
}

/// Copies the outputs that were not computed in place: inputs and constants passed through, values that are output
/// twice, and layouts other than the caller's.
pub(super) fn copy_outputs(lowering: &mut Lowering) -> Result<()> {
    let graph = lowering.graph;
    for (number, (_, value)) in graph.outputs.iter().enumerate() {
        let buffer = lowering.program.outputs[number].buffer;
        if lowering.storage.get(value).is_none_or(|storage| storage.buffer != buffer) {
            let storage = Storage::dense(buffer, graph.shape(*value), &natural(graph.rank(*value)));
            map::copy(lowering, *value, &storage, "output")?;
        }
    }
    Ok(())
}
