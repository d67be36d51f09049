//! The driver of all passes. It copies a graph node by node, and a rule may emit a replacement for a node.

use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value},
};
use cranelift_entity::SecondaryMap;

/// Copies `graph` and offers each node to `rule`, with its operands in the new graph and its results in the old one.
/// The rule emits into the new graph and returns the values that replace the results, or `None` to have the node
/// copied. Inputs are always copied.
///
/// # Errors
/// Those of the rule.
pub(crate) fn rebuild(
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
        state: old.state,
        f32_nodes: old.f32_nodes.clone(),
        ..Graph::default()
    };

    let mut new_values: SecondaryMap<Value, Option<Value>> = SecondaryMap::new();
    for node in old.nodes.values() {
        new.origin.clone_from(&node.origin);

        // A dropped node has only dead users, which the same rule drops.
        let operands: Option<Vec<Value>> = node.operands.iter().map(|value| new_values[*value]).collect();
        let Some(operands) = operands else { continue };

        let node = Node {
            op: node.op.clone(),
            operands,
            results: node.results.clone(),
            origin: node.origin.clone(),
        };
        let emitted = if matches!(node.op, Op::Input(_)) { None } else { rule(&mut new, &node)? };
        let results = match emitted {
            Some(results) => results,
            None => {
                let types = node.results.iter().map(|value| old.values[*value].ty.clone()).collect();
                let contents = old.values[node.results[0]].contents.clone();
                new.define(node.op.clone(), node.operands, types, contents)
            }
        };

        for (from, to) in node.results.iter().zip(results) {
            new_values[*from] = Some(to);
        }
    }

    new.origin.clear();
    let ports = |ports: Vec<(String, Value)>| {
        ports.into_iter().map(|(name, value)| (name, new_value(&new_values, value))).collect::<Vec<_>>()
    };
    new.inputs = ports(old.inputs);
    new.outputs = ports(old.outputs);
    *graph = new;
    Ok(())
}

fn new_value(new_values: &SecondaryMap<Value, Option<Value>>, value: Value) -> Value {
    new_values[value].expect("nodes are in order, and a dropped node has no uses")
}

/// How many times each value is used, as an operand or output.
pub(crate) fn uses(graph: &Graph) -> SecondaryMap<Value, u32> {
    let mut uses = SecondaryMap::new();
    let operands = graph.nodes.values().flat_map(|node| &node.operands);
    for value in operands.chain(graph.outputs.iter().map(|(_, value)| value)) {
        uses[*value] += 1;
    }
    uses
}
