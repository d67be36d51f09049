//! Lets contractions read the state as it is stored.
//!
//! Exporters of attention scale queries and keys by the fourth root of their size, and rows of 16 bits are cast before
//! they are read. A scaled or cast copy of all keys would be made for each call, and repeated for each query head.
//! Scaled queries are few, and contractions convert what they read:
//!
//! ```text
//! contraction(q, view(cast f32 present * c)) = contraction(q * c, view(present))
//! ```
//!
//! The law of the scale holds for real numbers. On floats the products round differently, by no more than the
//! contraction itself rounds. The result depends on the lengths no more than before.

use super::{dead::dead, rebuild::rebuild};
use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value, appended_axis},
    scalar::{BinaryOp, Body, Reg, Scalar, Step},
};
use symshape::Dim;
use symshape_runtime::DType;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn state_operands(graph: &mut Graph) -> Result<()> {
    if graph.state.as_ref().is_none_or(|state| state.rows.is_none()) {
        return Ok(());
    }
    rebuild(graph, |new, node| Ok(moved(new, node)?.map(|value| vec![value])))?;
    dead(graph)
}

/// The contraction that replaces `node`, if one of its operands is state that is scaled or cast.
fn moved(new: &mut Graph, node: &Node) -> Result<Option<Value>> {
    let Op::Contraction { lhs, rhs, out, dtype, .. } = &node.op else { return Ok(None) };
    let labels = [lhs, rhs];
    if !dtype.is_float() || node.operands[0] == node.operands[1] {
        return Ok(None);
    }
    for side in [1, 0] {
        let Some(read) = StateRead::of(new, node.operands[side]) else { continue };
        let other = node.operands[1 - side];
        if new.dtype(other) != new.dtype(node.operands[side]) {
            continue;
        }
        // Microkernels convert the right operand, which has the columns of the result, and not the left one.
        let has_columns =
            out.last().is_some_and(|label| labels[side].contains(label) && !labels[1 - side].contains(label));
        if read.steps.casts && !has_columns {
            continue;
        }
        let mut operands = node.operands.clone();
        if let Some(scale) = read.steps.scale {
            let scale = new.scalar(scale)?;
            operands[1 - side] = new.mul(other, scale)?;
        }
        operands[side] = read.without_steps(new)?;
        return new.push(node.op.clone(), &operands).map(Some);
    }
    Ok(None)
}

/// Views of state that is scaled or cast.
struct StateRead {
    state: Value,
    steps: Steps,
    /// The views, the last one first.
    views: Vec<(Vec<Dim>, Vec<Dim>)>,
}

impl StateRead {
    fn of(graph: &Graph, mut value: Value) -> Option<StateRead> {
        let mut views = Vec::new();
        let mut steps = Steps::default();
        loop {
            match graph.op(value) {
                Op::View { shape, index } => views.push((shape.clone(), index.clone())),
                Op::Map(body) => steps = steps.after(Steps::of(body)?)?,
                Op::Concat { .. } if is_state(graph, value) => {
                    let does_something = steps != Steps::default();
                    return does_something.then_some(StateRead { state: value, steps, views });
                }
                _ => return None,
            }
            value = *graph.operands(value).first()?;
        }
    }

    /// The same views of the state as it is stored.
    fn without_steps(self, graph: &mut Graph) -> Result<Value> {
        let mut views = self.views.into_iter().rev();
        views.try_fold(self.state, |value, (shape, index)| graph.view(value, shape, index))
    }
}

/// The steps of an element of the state before it is multiplied: first a cast, then a product with a constant.
#[derive(Clone, Copy, PartialEq, Default)]
struct Steps {
    /// Whether 16 bits become `f32`.
    casts: bool,
    scale: Option<Scalar>,
}

impl Steps {
    /// The steps of a body with one parameter; `None` if it has others.
    fn of(body: &Body) -> Option<Steps> {
        if body.params.len() != 1 || body.result.0 as usize != body.steps.len() {
            return None;
        }
        let is_narrow = matches!(body.params[0], DType::F16 | DType::BF16);
        let (casts, rest, x) = match &body.steps[..] {
            [Step::Cast(DType::F32, Reg(0)), rest @ ..] if is_narrow => (true, rest, Reg(1)),
            steps => (false, steps, Reg(0)),
        };
        let scale = match rest {
            [] => None,
            [Step::Const(scale), Step::Binary(BinaryOp::Mul, a, b)] => {
                let constant = Reg(x.0 + 1);
                ([*a, *b] == [x, constant] || [*a, *b] == [constant, x]).then_some(Some(*scale))?
            }
            _ => return None,
        };
        Some(Steps { casts, scale })
    }

    /// These steps after the `first` ones; `None` if they would be two of a kind.
    fn after(self, first: Steps) -> Option<Steps> {
        let is_in_order = !self.casts && (self.scale.is_none() || first.scale.is_none());
        is_in_order.then_some(Steps { casts: first.casts, scale: self.scale.or(first.scale) })
    }
}

/// Whether `value` is an input of the state with the rows of this call after it.
fn is_state(graph: &Graph, value: Value) -> bool {
    let Some(state) = &graph.state else { return false };
    let Some(first) = graph.operands(value).first() else { return false };
    let Op::Input(input) = graph.op(*first) else { return false };
    let axis = state.of_input(*input as usize).and_then(|pair| pair.axis);
    axis.is_some() && appended_axis(graph, *first, value) == axis
}
