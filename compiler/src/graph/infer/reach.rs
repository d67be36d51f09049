//! What addresses rely on: that the axes they run over are no longer than those they address.
//!
//! Builders of views slice within what is there, and prove it. Operators that take one tensor's places from another one's
//! shape can't, where both are symbols: then it is assumed, like equal dims, and the artefact checks it. Only plain forms
//! are looked at here: an axis, an axis and a number, a number; the kernels' verifier proves every address anyway.

use super::{Need, loads};
use crate::graph::{Coord, Graph, Op, Value, axis};
use symshape::{Dim, Node, Relation};

/// The relations between dims without which `op` would address elements that its operands don't have.
pub fn reach(graph: &Graph, op: &Op, operands: &[Value]) -> Vec<Need> {
    let mut needs = Vec::new();
    match op {
        Op::View { shape, index } => within(graph, shape, index, operands[0], &mut needs),
        Op::Gather { shape, coords } => coordinates(graph, shape, coords, operands, &mut needs),
        Op::Scatter { coords, .. } => {
            coordinates(graph, graph.shape(operands[1]), coords, operands, &mut needs);
        }
        Op::Input(_)
        | Op::Const(_)
        | Op::Index { .. }
        | Op::Map(_)
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Contract { .. }
        | Op::Sort { .. }
        | Op::Scan { .. }
        | Op::Bind { .. }
        | Op::If { .. }
        | Op::Loop { .. }
        | Op::Call { .. }
        | Op::Fail { .. } => {}
    }
    needs
}

fn coordinates(graph: &Graph, shape: &[Dim], coords: &[Coord], operands: &[Value], needs: &mut Vec<Need>) {
    for (coord, size) in coords.iter().zip(graph.shape(operands[0])) {
        if let Coord::At(at) = coord {
            fits(shape, at, size, needs);
        }
    }
    for (operand, at) in loads(coords) {
        within(graph, shape, at, operands[operand], needs);
    }
}

fn within(graph: &Graph, shape: &[Dim], index: &[Dim], x: Value, needs: &mut Vec<Need>) {
    for (at, size) in index.iter().zip(graph.shape(x)) {
        fits(shape, at, size, needs);
    }
}

/// `at` stays below `size` over all of `shape`, as far as its form is plain.
fn fits(shape: &[Dim], at: &Dim, size: &Dim, needs: &mut Vec<Need>) {
    // Nothing is addressed.
    if shape.iter().any(|extent| extent.as_i64() == Some(0)) {
        return;
    }
    let extent = |at: &Dim| {
        let symbol = at.as_symbol()?;
        (0..shape.len()).find(|k| axis(*k) == *symbol).map(|k| &shape[k])
    };
    let end = match at.node() {
        Node::Int(_) if at.as_i64().is_some_and(|at| at > 0) => at + 1,
        Node::Symbol(_) => match extent(at) {
            Some(extent) => extent.clone(),
            None => return,
        },
        Node::Add(parts) => match parts.as_slice() {
            [along, offset] if offset.as_i64().is_some_and(|offset| offset > 0) => match extent(along) {
                Some(extent) => extent + offset,
                None => return,
            },
            _ => return,
        },
        Node::Int(_) | Node::Mul(_) | Node::FloorDiv(..) | Node::Mod(..) | Node::Min(_) | Node::Max(_) => {
            return;
        }
    };
    if end != *size {
        let what = format!("element {at} of an axis of size {size}");
        needs.push(Need { relation: Relation::le(end, size), what });
    }
}
