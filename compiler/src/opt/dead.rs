//! Drops nodes that no output depends on. Inputs stay, because they are part of the call contract.

use super::rebuild::rebuild;
use crate::{
    error::Result,
    graph::{Graph, Value},
};
use cranelift_entity::SecondaryMap;

/// Runs the pass. Nodes that may end the call stay, and so do nodes that give a symbol its value.
///
/// # Errors
/// None.
pub(crate) fn dead(graph: &mut Graph) -> Result<()> {
    let mut alive: SecondaryMap<Value, bool> = SecondaryMap::new();
    for (_, value) in &graph.outputs {
        alive[*value] = true;
    }

    for node in graph.nodes.values().rev() {
        if node.op.acts() || node.results.iter().any(|value| alive[*value]) {
            node.operands.iter().for_each(|value| alive[*value] = true);
        }
    }

    rebuild(graph, |_, node| {
        let dead = !node.op.acts() && node.results.iter().all(|value| !alive[*value]);
        Ok(dead.then(Vec::new))
    })
}
