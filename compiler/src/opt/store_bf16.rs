//! Stores values as bf16 where tile registers multiply them as bf16.
//!
//! A contraction of [`Precision::Bf16`] rounds its operands to bf16 anyway. An operand that is multiplied by a
//! constant can therefore be rounded where it is computed: `cast f32 (cast bf16 (high x))`. This halves its bytes in
//! memory, and tile registers read them without a conversion. Such a model is defined by the graph with the casts in
//! it.
//!
//! A value that other elementwise definitions read too (a residual sum reads the input of a convolution) is rounded
//! once for all readers. A value keeps its type if it is read by an output, a sum along axes (of a norm, say) or a
//! contraction without a constant. Movement and maxima of bf16 values are bf16.

use super::{dead::dead, rebuild::rebuild};
use crate::{
    error::Result,
    graph::{Graph, Label, Node, Op, Value},
    scalar::{Precision, ReduceOp, Scalar, Step, UnaryOp, precision::is_bf16},
};
use cranelift_entity::SecondaryMap;
use symshape_runtime::DType;

/// Runs the pass, for machines with tile registers.
///
/// # Errors
/// None.
pub fn store_bf16(graph: &mut Graph) -> Result<()> {
    let kept = kept(graph);
    rebuild(graph, |new, node| {
        let result = match &node.op {
            Op::Contraction { .. } => contraction(new, node)?,
            op if is_movement(op) => moved(new, node)?,
            _ => None,
        };

        if !kept[node.results[0]] {
            return Ok(result.map(|value| vec![value]));
        }

        let value = match result {
            Some(value) => value,
            None => new.push(node.op.clone(), &node.operands)?,
        };

        let high = new.unary(UnaryOp::RoundBf16, value)?;
        let half = new.cast(DType::BF16, high)?;
        Ok(Some(vec![new.cast(DType::F32, half)?]))
    })?;

    dead(graph)
}

/// The contraction of the bf16 value itself, if its varying operand was cast.
fn contraction(new: &mut Graph, node: &Node) -> Result<Option<Value>> {
    let mut operands = node.operands.clone();
    let Some(half) = factor(new, node).and_then(|side| Some((side, half(new, operands[side])?))) else {
        return Ok(None);
    };
    operands[half.0] = half.1;
    new.push(node.op.clone(), &operands).map(Some)
}

/// Moves the value before the cast, and casts the result.
fn moved(new: &mut Graph, node: &Node) -> Result<Option<Value>> {
    let halves: Option<Vec<Value>> = node.operands.iter().map(|operand| half(new, *operand)).collect();
    let Some(halves) = halves else { return Ok(None) };
    let op = match &node.op {
        Op::Pad { lo, hi, value } => {
            let value = Scalar::from_f64(DType::BF16, value.as_f64());
            Op::Pad { lo: lo.clone(), hi: hi.clone(), value }
        }
        op => op.clone(),
    };
    let moved = new.push(op, &halves)?;
    new.cast(DType::F32, moved).map(Some)
}

/// The bf16 value that a value is the cast of.
fn half(graph: &Graph, value: Value) -> Option<Value> {
    let Op::Map(body) = graph.op(value) else { return None };
    let operand = *graph.operands(value).first()?;
    let is_cast = matches!(body.steps[..], [Step::Cast(DType::F32, _)]) && body.result.0 == 1;
    (is_cast && graph.dtype(operand) == DType::BF16).then_some(operand)
}

/// Whether the result consists of operand elements only, and their selection does not depend on rounding.
fn is_movement(op: &Op) -> bool {
    match op {
        Op::View { .. } | Op::Concat { .. } | Op::Reduce { op: ReduceOp::Max | ReduceOp::Min, .. } => true,
        Op::Pad { value, .. } => {
            value.dtype() == DType::F32 && {
                let value = value.as_f64() as f32;
                value.is_infinite() || is_bf16(value)
            }
        }
        _ => false,
    }
}

/// The operand that a contraction multiplies by a constant and rounds to bf16. `None` if there are no columns.
fn factor(graph: &Graph, node: &Node) -> Option<usize> {
    let Op::Contraction { lhs, rhs, out, dtype: DType::F32, precision: Precision::Bf16 } = &node.op else {
        return None;
    };
    let labels = [lhs, rhs];

    let is_fixed = |side: usize| graph.viewed_constant(node.operands[side]).is_some();
    let side = (0..2).find(|side| is_fixed(1 - side) && !is_fixed(*side))?;
    let shape = graph.shape(node.operands[1 - side]);
    let is_column = |(k, label): (usize, &Label)| {
        out.contains(label) && !labels[side].contains(label) && shape[k].as_i64() != Some(1)
    };
    let has_columns = labels[1 - side].iter().enumerate().any(is_column);

    has_columns.then_some(side)
}

/// The requirement of a value's readers.
#[derive(Clone, Copy, Default)]
struct Readers {
    /// A contraction rounds the value anyway.
    round: bool,
    /// Another reader needs the value unrounded.
    need_all: bool,
}

/// The values that become bf16.
fn kept(graph: &Graph) -> SecondaryMap<Value, bool> {
    let mut kept = SecondaryMap::new();
    for value in graph.values.keys() {
        let is_computed = matches!(graph.op(value), Op::Map(_) | Op::Contraction { .. });
        kept[value] = is_computed && graph.dtype(value) == DType::F32;
    }

    // A part of a concatenation is bf16 only if all its parts are, so the set shrinks until it is stable.
    loop {
        let readers = readers(graph, &all_halves(graph, &kept));
        let mut stays = true;
        for value in graph.values.keys() {
            let is_kept = kept[value] && readers[value].round && !readers[value].need_all;
            stays &= is_kept == kept[value];
            kept[value] = is_kept;
        }
        if stays {
            return kept;
        }
    }
}

/// Extends these bf16 values by the values that are moved copies of them.
fn all_halves(graph: &Graph, kept: &SecondaryMap<Value, bool>) -> SecondaryMap<Value, bool> {
    let mut halves = kept.clone();
    for node in graph.nodes.values().filter(|node| is_movement(&node.op)) {
        halves[node.results[0]] = node.operands.iter().all(|operand| halves[*operand]);
    }
    halves
}

/// The requirement of the readers of each value, where these values are bf16.
fn readers(graph: &Graph, halves: &SecondaryMap<Value, bool>) -> SecondaryMap<Value, Readers> {
    let mut readers: SecondaryMap<Value, Readers> = SecondaryMap::new();
    for (_, output) in &graph.outputs {
        readers[*output].need_all = true;
    }

    for node in graph.nodes.values().rev() {
        let moved = readers[node.results[0]];
        for (side, operand) in node.operands.iter().enumerate() {
            let says = match &node.op {
                _ if factor(graph, node) == Some(side) => Readers { round: true, need_all: false },
                op if is_movement(op) && halves[node.results[0]] => moved,
                Op::Map(_) | Op::View { .. } | Op::Pad { .. } | Op::Concat { .. } => Readers::default(),
                _ => Readers { round: false, need_all: true },
            };
            readers[*operand].round |= says.round;
            readers[*operand].need_all |= says.need_all;
        }
    }

    readers
}
