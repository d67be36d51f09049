//! Common subexpression elimination: of nodes with equal operators and operands, only the first stays.

use super::rebuild::rebuild;
use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value},
};
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn share(graph: &mut Graph) -> Result<()> {
    let mut seen: HashMap<u64, Vec<Vec<Value>>> = HashMap::new();
    rebuild(graph, |new, node| {
        let same = seen.entry(key(node)).or_default();
        let found = same.iter().find(|results| {
            let first = &new.nodes[new.values[results[0]].def];
            first.operands == node.operands && first.op.is_same(&node.op)
        });
        if let Some(results) = found {
            return Ok(Some(results.clone()));
        }
        let results = new.push_multi(node.op.clone(), &node.operands)?;
        same.push(results.clone());
        Ok(Some(results))
    })
}

/// A hash that is equal for equal nodes.
fn key(node: &Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    std::mem::discriminant(&node.op).hash(&mut hasher);
    node.operands.hash(&mut hasher);

    match &node.op {
        Op::Const(tensor) => {
            let bytes = tensor.stored();
            (tensor.dtype(), tensor.shape(), &bytes[..bytes.len().min(256)]).hash(&mut hasher);
        }
        Op::Map(body) => body.hash(&mut hasher),
        Op::View { shape, index } => (shape, index).hash(&mut hasher),
        Op::Index { shape, expr, .. } => (shape, expr).hash(&mut hasher),
        _ => {}
    }

    hasher.finish()
}
