//! [`rebuild`] for rules that need use counts.

use super::{
    dead::dead,
    rebuild::{rebuild, uses},
};
use crate::{
    error::Result,
    graph::{Graph, Node, Value},
};
use cranelift_entity::SecondaryMap;

/// Like [`rebuild`], for rules that replace the only result of a node by one value and that need use counts. A value of
/// the new graph has as many uses as the old values that it replaced. Unused nodes are dropped at the end.
///
/// # Errors
/// Those of the rule.
pub(crate) fn rebuild_by_uses(
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

    dead(graph)
}
