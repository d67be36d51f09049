//! The memory of state, which inputs of the graph and outputs of the call before share.
//!
//! An appended output is a concatenation that begins with its input. Both are stored in one buffer whose rows are as
//! many as the capacity: the input is its first rows, the output has a few more. The kernels of the new rows store
//! into this buffer, as into any concatenation, and nothing else writes it. So the rows that were there are never
//! copied, and readers of the input may run before or after the store.
//!
//! An overwritten output is computed in the arena. Copies to the state are the last kernels of the program: all readers
//! of the input run before, and a call that fails leaves the state as it was.

use super::{
    buffers::new_tensor,
    index::{elems, natural},
    lowering::{Lowering, static_bound},
    map,
    storage::Storage,
};
use crate::{
    Error, Result,
    graph::{StatePair, appended_axis},
    kernel::{BlockRows, Buffer, MemorySpace, StateBlock, StateTensor},
};

/// Stores all pairs of the state.
///
/// # Errors
/// A pass has changed an appended pair such that it no longer is one.
pub(super) fn block(lowering: &mut Lowering) -> Result<()> {
    let graph = lowering.graph;
    let Some(state) = &graph.state else { return Ok(()) };
    let mut tensors = Vec::new();
    for (number, pair) in state.pairs.iter().enumerate() {
        let (before, after) = pair.values(graph);
        let shape = state.shape(graph, pair);
        let elems = static_bound(&lowering.program, &elems(&shape));
        let name = graph.inputs[pair.input].0.clone();
        let space = MemorySpace::State(number as u32);
        let buffer = Buffer { name: name.clone(), dtype: graph.dtype(before), elems, space };
        let buffer = lowering.program.buffers.push(buffer);

        let storage = Storage::dense(buffer, &shape, &natural(shape.len()));
        lowering.storage.insert(before, storage.clone());
        if let Some(axis) = pair.axis {
            if appended_axis(graph, before, after) != Some(axis) {
                return Err(Error::internal(format!("`{name}` is no longer the beginning of its output")));
            }
            lowering.storage.insert(after, storage);
            lowering.stored.insert((after, 0));
        }

        let output = graph.outputs[pair.output].0.clone();
        tensors.push(StateTensor { input: name, output, shape, axis: pair.axis, buffer });
    }

    let rows = state.rows.as_ref().map(|rows| BlockRows {
        length: rows.length.clone(),
        capacity: rows.capacity.clone(),
        growth: rows.growth.clone(),
    });
    lowering.program.state = Some(StateBlock { tensors, rows, id: state.id });
    Ok(())
}

/// Copies the overwritten outputs to the state. All of them are in the arena before the first is copied, because an
/// output may be a view of the memory of another pair.
pub(super) fn overwrite(lowering: &mut Lowering) -> Result<()> {
    let graph = lowering.graph;
    let Some(state) = &graph.state else { return Ok(()) };
    let is_written = |pair: &&StatePair| {
        let (before, after) = pair.values(graph);
        pair.axis.is_none() && before != after
    };
    let pairs: Vec<&StatePair> = state.pairs.iter().filter(is_written).collect();

    let mut sources = Vec::new();
    for pair in &pairs {
        let (_, after) = pair.values(graph);
        let in_arena = lowering.storage.get(&after).filter(|storage| {
            matches!(
                lowering.program.buffers[storage.buffer].space,
                MemorySpace::Arena | MemorySpace::Output(_)
            )
        });
        sources.push(match in_arena {
            Some(storage) => storage.clone(),
            None => {
                let name = graph.outputs[pair.output].0.clone();
                let tensor = new_tensor(lowering, &name, graph.dtype(after), graph.shape(after));
                map::copy(lowering, after, &tensor, "state")?;
                tensor
            }
        });
    }

    for (pair, from) in pairs.into_iter().zip(sources) {
        let (before, after) = pair.values(graph);
        let to = lowering.storage[&before].clone();
        map::move_to(lowering, after, graph.shape(after), &from, &to);
    }
    Ok(())
}
