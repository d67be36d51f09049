//! The shape and type rule of every core operator in one match, and the rule of symbolic contents in another.
//!
//! [`needs`] lists the relations between dims that an operator relies on. [`types`] gives the types of its results if
//! they hold. [`contents`] computes the elements of small integer tensors as expressions over the symbols. None of them
//! changes the graph: [`super::build`] assumes the relations, and [`super::verify`] checks that they hold.

mod check;
mod contents;
mod control;
mod reach;

pub use check::check_body;
pub use contents::{MAX_CONTENTS, contents};
pub use reach::{extents, reach};

use super::{Coord, Graph, Label, Op, Type, Value};
use crate::error::{Error, Result};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

/// A relation that an operator relies on.
#[derive(Clone, Debug)]
pub struct Need {
    /// The relation that must hold.
    pub relation: Relation,
    /// A description of the dims concerned, for messages.
    pub what: String,
}

/// The relations between its operands' dims on which `op` relies.
///
/// # Errors
/// Operands that don't fit regardless of their dims: too few, or of another rank.
pub fn needs(graph: &Graph, op: &Op, operands: &[Value]) -> Result<Vec<Need>> {
    check::operands(graph, op, operands)?;
    let mut needs = Vec::new();
    match op {
        Op::Map(_) => same_shape(graph, operands, None, &mut needs),
        Op::Concat { axis } => same_shape(graph, operands, Some(*axis), &mut needs),
        Op::Contraction { lhs, rhs, .. } => same_labels(graph, operands, lhs, rhs, &mut needs),
        Op::If { .. } | Op::Loop { .. } => control::needs(graph, op, operands, &mut needs),
        Op::Input(_)
        | Op::Const(_)
        | Op::Bind { .. }
        | Op::Call { .. }
        | Op::Fail { .. }
        | Op::Index { .. }
        | Op::View { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::Scatter { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Sort { .. }
        | Op::Scan { .. } => {}
    }
    Ok(needs)
}

fn same_shape(graph: &Graph, operands: &[Value], except: Option<usize>, needs: &mut Vec<Need>) {
    let first = graph.shape(operands[0]);
    for (i, operand) in operands.iter().enumerate().skip(1) {
        for (k, (a, b)) in first.iter().zip(graph.shape(*operand)).enumerate() {
            if Some(k) != except && a != b {
                let what = format!("axis {k} of operands 0 and {i}");
                needs.push(Need { relation: Relation::eq(a, b), what });
            }
        }
    }
}

fn same_labels(graph: &Graph, operands: &[Value], lhs: &[Label], rhs: &[Label], needs: &mut Vec<Need>) {
    for (a, label) in graph.shape(operands[0]).iter().zip(lhs) {
        let Some(k) = rhs.iter().position(|other| other == label) else { continue };
        let b = &graph.shape(operands[1])[k];
        if a != b {
            let what = format!("axes with label {}", *label as char);
            needs.push(Need { relation: Relation::eq(a, b), what });
        }
    }
}

/// The types of the results of `op`, when its [`needs`] hold.
///
/// # Errors
/// As [`needs`], and types or attributes that don't fit.
pub fn types(graph: &Graph, op: &Op, operands: &[Value]) -> Result<Vec<Type>> {
    check::operands(graph, op, operands)?;
    check::attributes(graph, op, operands)?;
    let shape_of = |i: usize| graph.shape(operands[i]).to_vec();
    let dtype_of = |i: usize| graph.dtype(operands[i]);
    let (dtype, shape) = match op {
        Op::Input(number) => return input_type(graph, *number),
        Op::Const(tensor) => (tensor.dtype(), tensor.shape().iter().map(|dim| Dim::from(*dim)).collect()),
        Op::Index { dtype, shape, .. } => (*dtype, shape.clone()),
        Op::Map(body) => (body.dtype(), shape_of(0)),
        Op::View { shape, .. } | Op::Gather { shape, .. } => (dtype_of(0), shape.clone()),
        Op::Pad { lo, hi, .. } => (dtype_of(0), padded(&shape_of(0), lo, hi)),
        Op::Concat { axis } => (dtype_of(0), concatenated(graph, operands, *axis)),
        Op::Scatter { .. } | Op::Scan { .. } => (dtype_of(0), shape_of(0)),
        Op::Reduce { axes, .. } => (dtype_of(0), without(&shape_of(0), axes)),
        Op::ArgReduce { axis, .. } => (DType::I64, without(&shape_of(0), &[*axis])),
        Op::Contraction { lhs, rhs, out, dtype, .. } => (*dtype, contracted(graph, operands, lhs, rhs, out)),
        Op::If { .. } | Op::Loop { .. } => return Ok(control::types(op)),
        Op::Call { results, .. } => return Ok(results.clone()),
        Op::Bind { .. } | Op::Fail { .. } => (DType::I64, Vec::new()),
        Op::Sort { .. } => {
            let values = Type { dtype: dtype_of(0), shape: shape_of(0) };
            let positions = Type { dtype: DType::I64, shape: shape_of(0) };
            return Ok(vec![values, positions]);
        }
    };
    let shape = shape.iter().map(|dim| graph.facts.simplify(dim)).collect();
    Ok(vec![Type { dtype, shape }])
}

fn input_type(graph: &Graph, number: u32) -> Result<Vec<Type>> {
    let input = graph.inputs.get(number as usize);
    let (_, value) = input.ok_or_else(|| Error::invalid(format!("there is no input number {number}")))?;
    Ok(vec![graph.ty(*value).clone()])
}

fn padded(shape: &[Dim], lo: &[Dim], hi: &[Dim]) -> Vec<Dim> {
    shape.iter().zip(lo.iter().zip(hi)).map(|(dim, (lo, hi))| dim + lo + hi).collect()
}

fn concatenated(graph: &Graph, operands: &[Value], axis: usize) -> Vec<Dim> {
    let mut shape = graph.shape(operands[0]).to_vec();
    shape[axis] = Dim::sum(operands.iter().map(|value| graph.shape(*value)[axis].clone()));
    // A constant is more precise than a symbol that is required to be equal to it.
    for (k, dim) in shape.iter_mut().enumerate().filter(|(k, _)| *k != axis) {
        let number = operands.iter().map(|value| &graph.shape(*value)[k]).find(|dim| dim.as_int().is_some());
        *dim = number.unwrap_or(dim).clone();
    }
    shape
}

fn without(shape: &[Dim], axes: &[usize]) -> Vec<Dim> {
    let kept = shape.iter().enumerate().filter(|(k, _)| !axes.contains(k));
    kept.map(|(_, dim)| dim.clone()).collect()
}

fn contracted(graph: &Graph, operands: &[Value], lhs: &[Label], rhs: &[Label], out: &[Label]) -> Vec<Dim> {
    let sizes = |label: &Label| {
        let of = |labels: &[Label], value: Value| {
            labels.iter().position(|other| other == label).map(|k| graph.shape(value)[k].clone())
        };
        match (of(lhs, operands[0]), of(rhs, operands[1])) {
            (Some(a), Some(b)) => {
                if b.as_int().is_some() {
                    b
                } else {
                    a
                }
            }
            (a, b) => a.or(b).expect("an output label stands in an operand, see check::attributes"),
        }
    };
    out.iter().map(sizes).collect()
}

/// The coordinates that `op` loads from other operands: `(operand, at)`.
pub(super) fn loads(coords: &[Coord]) -> impl Iterator<Item = (usize, &[Dim])> {
    coords.iter().filter_map(|coord| match coord {
        Coord::At(_) => None,
        Coord::Load { operand, at } => Some((*operand, at.as_slice())),
    })
}
