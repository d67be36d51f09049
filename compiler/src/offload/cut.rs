//! Cuts parts out of a graph and replaces them by the operators that their target lowers them to.

use super::{parts::NodeGroup, target::Subgraph};
use crate::{
    error::{At, Error, Result},
    graph::{Graph, Node, NodeId, Op, Value, build::Captured},
};
use cranelift_entity::SecondaryMap;
use std::collections::BTreeMap;

/// The lowering of a part by its target: returns the values of its outputs in the new graph.
type Lower<'a> = &'a mut dyn FnMut(&mut Subgraph, &mut Graph) -> Result<Vec<Value>>;

/// The nodes that read each value.
type Readers = SecondaryMap<Value, Vec<NodeId>>;

/// The counterparts of the old graph's values in the new one.
type NewValues = SecondaryMap<Value, Option<Value>>;

/// Rebuilds `graph` group by group; `lower` emits the claimed ones into the new graph.
///
/// # Errors
/// Those of `lower`, with the name of the part's last node.
pub(super) fn replace(graph: &mut Graph, groups: &[NodeGroup], lower: Lower<'_>) -> Result<()> {
    let old = std::mem::take(graph);
    let mut new = Graph {
        name: old.name.clone(),
        symbols: old.symbols.clone(),
        data_dependent: old.data_dependent.clone(),
        facts: old.facts.clone(),
        constraints: old.constraints.clone(),
        state: old.state.clone(),
        f32_nodes: old.f32_nodes.clone(),
        ..Graph::default()
    };

    let readers = readers(&old);
    let mut new_values = NewValues::new();
    for group in groups {
        if group.claimed {
            lower_part(&old, &mut new, group, &readers, &mut new_values, lower)?;
        } else {
            group.nodes.iter().try_for_each(|id| copy(&old, &mut new, *id, &mut new_values))?;
        }
    }

    let new_value =
        |value: Value| new_values[value].ok_or_else(|| Error::internal("a value without its node"));
    for (name, value) in &old.inputs {
        new.inputs.push((name.clone(), new_value(*value)?));
    }
    for (name, value) in &old.outputs {
        new.outputs.push((name.clone(), new_value(*value)?));
    }

    new.origin.clear();
    *graph = new;
    Ok(())
}

fn readers(graph: &Graph) -> Readers {
    let mut readers = Readers::new();
    for (id, node) in &graph.nodes {
        node.operands.iter().for_each(|operand| readers[*operand].push(id));
    }
    readers
}

fn copy(old: &Graph, new: &mut Graph, id: NodeId, new_values: &mut NewValues) -> Result<()> {
    let node = &old.nodes[id];
    let operands: Option<Vec<Value>> = node.operands.iter().map(|value| new_values[*value]).collect();
    let operands = operands.ok_or_else(|| Error::internal("an operand is computed later"))?;
    new.origin.clone_from(&node.origin);
    let types = node.results.iter().map(|value| old.ty(*value).clone()).collect();
    let contents = old.contents(node.results[0]).map(<[_]>::to_vec);
    let results = new.define(node.op.clone(), operands, types, contents);
    for (from, to) in node.results.iter().zip(results) {
        new_values[*from] = Some(to);
    }
    Ok(())
}

/// Lets the target lower a part.
fn lower_part(
    old: &Graph,
    new: &mut Graph,
    group: &NodeGroup,
    readers: &Readers,
    new_values: &mut NewValues,
    lower: Lower<'_>,
) -> Result<()> {
    let title = part_title(old, group);
    let mut inner = old.region(if old.name.is_empty() { "part" } else { &old.name });
    let mut captured = Captured::default();
    let mut inner_values: BTreeMap<Value, Value> = BTreeMap::new();
    for id in &group.nodes {
        let Node { op, operands, results, origin } = &old.nodes[*id];
        inner.origin.clone_from(origin);
        let operands = operands.iter().map(|operand| match inner_values.get(operand) {
            Some(value) => Ok(*value),
            None => captured.take(old, &mut inner, *operand),
        });
        let operands = operands.collect::<Result<Vec<_>>>().at(|| title.clone())?;
        let inner_results = inner.push_multi(op.clone(), &operands).at(|| title.clone())?;
        inner_values.extend(results.iter().copied().zip(inner_results));
    }

    let leaves_part = |value: &Value| {
        readers[*value].iter().any(|id| !group.nodes.contains(id))
            || old.outputs.iter().any(|(_, output)| output == value)
    };
    let outputs: Vec<Value> = inner_values.keys().copied().filter(leaves_part).collect();
    for (k, value) in outputs.iter().enumerate() {
        inner.output(&format!("out{k}"), inner_values[value])?;
    }

    let operands: Option<Vec<Value>> = captured.operands.iter().map(|value| new_values[*value]).collect();
    let operands = operands.ok_or_else(|| Error::internal("an operand of a part is computed later"))?;

    let mut part = Subgraph { graph: inner, operands };
    new.origin.clone_from(&title);
    let results = lower(&mut part, new).at(|| title)?;
    for (from, to) in outputs.into_iter().zip(results) {
        new_values[from] = Some(to);
    }
    Ok(())
}

/// The name of a part in messages: the origins of its first and last node.
pub(super) fn part_title(graph: &Graph, group: &NodeGroup) -> String {
    let mut names: Vec<&str> = Vec::new();
    for id in &group.nodes {
        let node = &graph.nodes[*id];
        let name = if node.origin.is_empty() { node.op.name() } else { &node.origin };
        if !matches!(node.op, Op::View { .. }) && !names.contains(&name) {
            names.push(name);
        }
    }

    match names.as_slice() {
        [] => "views".into(),
        [name] => name.to_string(),
        [first, .., last] => format!("{first} … {last}"),
    }
}
