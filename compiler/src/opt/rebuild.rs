//! The frame of all passes: a graph is copied node by node, and a rule may emit something else in a node's place.

use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value},
};
use cranelift_entity::SecondaryMap;

/// Copies `graph`, offering each node to `rule`: with operands in the new graph, and followed by its results in the
/// old one. The rule emits into the new graph and returns the values that take the results' place, or `None` to have
/// the node copied. Inputs are always copied.
///
/// # Errors
/// Those of the rule.
pub fn rebuild(
    graph: &mut Graph,
    mut rule: impl FnMut(&mut Graph, &Node) -> Result<Option<Vec<Value>>>,
) -> Result<()> {
    let old = std::mem::take(graph);
    let mut new = Graph {
        name: old.name,
        symbols: old.symbols,
        data_dependent: old.data_dependent,
        facts: old.facts,
        constraints: old.constraints,
        ..Graph::default()
    };
    let mut moved: SecondaryMap<Value, Option<Value>> = SecondaryMap::new();
    for node in old.nodes.values() {
        new.origin.clone_from(&node.origin);
        // A node that was dropped has dead users only, which the same rule drops.
        let operands: Option<Vec<Value>> = node.operands.iter().map(|value| moved[*value]).collect();
        let Some(operands) = operands else { continue };
        let node = Node {
            op: node.op.clone(),
            operands,
            results: node.results.clone(),
            origin: node.origin.clone(),
        };
        let emitted = match &node.op {
            Op::Input(_) => None,
            _ => rule(&mut new, &node)?,
        };
        let results = match emitted {
            Some(results) => results,
            None => {
                let types = node.results.iter().map(|value| old.values[*value].ty.clone()).collect();
                let contents = old.values[node.results[0]].contents.clone();
                new.define(node.op.clone(), node.operands, types, contents)
            }
        };
        for (from, to) in node.results.iter().zip(results) {
            moved[*from] = Some(to);
        }
    }
    new.origin.clear();
    let ports = |ports: Vec<(String, Value)>| {
        ports.into_iter().map(|(name, value)| (name, at(&moved, value))).collect::<Vec<_>>()
    };
    new.inputs = ports(old.inputs);
    new.outputs = ports(old.outputs);
    *graph = new;
    Ok(())
}

/// As [`rebuild`] for rules that put one value in the place of a node's only result, and that ask how often a value of
/// the new graph is used: as often as the old values were whose place it took. What nothing uses then is dropped.
///
/// # Errors
/// Those of the rule.
pub fn rebuild_by_uses(
    graph: &mut Graph,
    mut rule: impl FnMut(&mut Graph, &Node, &SecondaryMap<Value, u32>) -> Result<Option<Value>>,
) -> Result<()> {
    let uses = uses(graph);
    let mut used: SecondaryMap<Value, u32> = SecondaryMap::new();
    rebuild(graph, |new, node| {
        let results = match rule(new, node, &used)? {
            Some(value) => vec![value],
            None => new.push_multi(node.op.clone(), &node.operands)?,
        };
        for (old, result) in node.results.iter().zip(&results) {
            used[*result] += uses[*old];
        }
        Ok(Some(results))
    })?;
    super::dead::dead(graph)
}

fn at(moved: &SecondaryMap<Value, Option<Value>>, value: Value) -> Value {
    moved[value].expect("nodes stand in order, and a dropped node has no uses")
}

/// How many times each value is used, as an operand or output.
pub fn uses(graph: &Graph) -> SecondaryMap<Value, u32> {
    let mut uses = SecondaryMap::new();
    let operands = graph.nodes.values().flat_map(|node| &node.operands);
    for value in operands.chain(graph.outputs.iter().map(|(_, value)| value)) {
        uses[*value] += 1;
    }
    uses
}
