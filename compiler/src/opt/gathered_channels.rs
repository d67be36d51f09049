//! Transposes inputs whose channels are gathered at positions that are loaded, as regions of an image are.
//!
//! The channels of an image are planes. A vector along the positions would load each element from another address, and
//! each element's address before. In a transposed copy, the channels of a position are adjacent:
//!
//! ```text
//! y[p, c] = x[c, at[p]]   ⇒   z[i, c] = x[c, i]    y[p, c] = z[at[p], c]
//! ```
//!
//! This pays if the gather has more elements than the input. Outputs are row-major, so they are gathered in place.
//! `lower` stores the copy (`lower/crossed_gathers.rs`).

use super::{rebuild::rebuild, share::share};
use crate::{
    error::Result,
    graph::{Coord, Graph, Node, Op, Value, axis},
};
use std::collections::HashSet;
use symshape::Dim;

/// With fewer channels, a vector along them is not full.
const MIN_CHANNELS: i64 = 8;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn gathered_channels(graph: &mut Graph) -> Result<()> {
    let outputs: HashSet<Value> = graph.outputs.iter().map(|(_, value)| *value).collect();
    let is_inside = |node: &Node| !outputs.contains(&node.results[0]);
    if !graph.nodes.values().any(|node| is_inside(node) && channels(graph, node).is_some()) {
        return Ok(());
    }

    rebuild(graph, |new, node| {
        let (Op::Gather { shape, coords }, Some(channels)) =
            (&node.op, channels(new, node).filter(|_| is_inside(node)))
        else {
            return Ok(None);
        };
        let image = node.operands[0];
        let order: Vec<usize> = (0..coords.len()).filter(|k| *k != channels).chain([channels]).collect();
        let copy = new.transpose(image, &order)?;
        let coords = order.iter().map(|k| coords[*k].clone()).collect();
        let operands = [&[copy], &node.operands[1..]].concat();
        Ok(Some(vec![new.push(Op::Gather { shape: shape.clone(), coords }, &operands)?]))
    })?;
    // Gathers of one input read one copy.
    share(graph)
}

/// The axis of the channels, if a gather reads an input this way.
fn channels(graph: &Graph, node: &Node) -> Option<usize> {
    let Op::Gather { shape, coords } = &node.op else { return None };
    let image = node.operands[0];
    let is_apart = matches!(graph.op(image), Op::Input(_)) && matches!(coords.last()?, Coord::Load { .. });
    let is_channels = |k: &usize| {
        let is_moved = |at: &Dim| (0..shape.len()).any(|result| *at == Dim::from(axis(result)));
        let is_long = graph.shape(image)[*k].as_i64().is_some_and(|extent| extent >= MIN_CHANNELS);
        is_long && matches!(&coords[*k], Coord::At(at) if is_moved(at))
    };
    let elems = |shape: &[Dim]| graph.facts.bounds(&Dim::product(shape.iter().cloned())).hi;
    let channels = (0..coords.len()).filter(|_| is_apart).find(is_channels)?;
    (elems(shape)? > elems(graph.shape(image))?).then_some(channels)
}
