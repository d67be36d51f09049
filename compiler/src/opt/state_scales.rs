//! Moves factors of the state to the other operand of a contraction.
//!
//! Exporters of attention scale queries and keys by the fourth root of their size. A scaled copy of all keys would be
//! made for each call, and repeated for each query head. Scaled queries are few:
//!
//! ```text
//! contraction(q, view(present * c)) = contraction(q * c, view(present))
//! ```
//!
//! The law holds for real numbers. On floats the products round differently, by no more than the contraction itself
//! rounds. The result depends on the lengths no more than before.

use super::{dead::dead, rebuild::rebuild};
use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value, appended_axis},
    scalar::{BinaryOp, Body, Reg, Step},
};
use symshape::Dim;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn state_scales(graph: &mut Graph) -> Result<()> {
    if graph.state.as_ref().is_none_or(|state| state.rows.is_none()) {
        return Ok(());
    }
    rebuild(graph, |new, node| Ok(moved(new, node)?.map(|value| vec![value])))?;
    dead(graph)
}

/// The contraction that replaces `node`, if one of its operands is state times a constant.
fn moved(new: &mut Graph, node: &Node) -> Result<Option<Value>> {
    let Op::Contraction { dtype, .. } = &node.op else { return Ok(None) };
    if !dtype.is_float() || node.operands[0] == node.operands[1] {
        return Ok(None);
    }
    for side in [1, 0] {
        let Some(scaled) = Scaled::of(new, node.operands[side]) else { continue };
        let other = node.operands[1 - side];
        if new.dtype(other) != scaled.body.params[0] {
            continue;
        }
        let mut operands = node.operands.clone();
        operands[1 - side] = new.map(scaled.body.clone(), &[other])?;
        operands[side] = scaled.without(new)?;
        return new.push(node.op.clone(), &operands).map(Some);
    }
    Ok(None)
}

/// Views of state times a constant.
struct Scaled {
    state: Value,
    body: Body,
    /// The views, the last one first.
    views: Vec<(Vec<Dim>, Vec<Dim>)>,
}

impl Scaled {
    fn of(graph: &Graph, mut value: Value) -> Option<Scaled> {
        let mut views = Vec::new();
        let mut scale: Option<Body> = None;
        loop {
            match graph.op(value) {
                Op::View { shape, index } => views.push((shape.clone(), index.clone())),
                Op::Map(body) if scale.is_none() && is_scale(body) => scale = Some(body.clone()),
                Op::Concat { .. } if is_state(graph, value) => {
                    return Some(Scaled { state: value, body: scale?, views });
                }
                _ => return None,
            }
            value = *graph.operands(value).first()?;
        }
    }

    /// The same views of the state alone.
    fn without(self, graph: &mut Graph) -> Result<Value> {
        let mut views = self.views.into_iter().rev();
        views.try_fold(self.state, |value, (shape, index)| graph.view(value, shape, index))
    }
}

/// Whether a body multiplies its parameter by a constant.
fn is_scale(body: &Body) -> bool {
    let [Step::Const(_), Step::Binary(BinaryOp::Mul, a, b)] = body.steps[..] else { return false };
    let is_product = [a, b] == [Reg(0), Reg(1)] || [a, b] == [Reg(1), Reg(0)];
    body.params.len() == 1 && body.result == Reg(2) && is_product
}

/// Whether `value` is an input of the state with the rows of this call after it.
fn is_state(graph: &Graph, value: Value) -> bool {
    let Some(state) = &graph.state else { return false };
    let Some(first) = graph.operands(value).first() else { return false };
    let Op::Input(input) = graph.op(*first) else { return false };
    let axis = state.of_input(*input as usize).and_then(|pair| pair.axis);
    axis.is_some() && appended_axis(graph, *first, value) == axis
}
