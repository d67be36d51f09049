//! The shape and type rule of every core operator in one match, and the rule of symbolic contents in another.
//!
//! [`requirements`] lists the relations between dims that an operator relies on. [`types`] gives the types of its
//! results if they hold. `contents` computes the elements of small integer tensors as expressions over the symbols.
//! None of them changes the graph: [`super::build`] assumes the relations, and [`super::verify`] checks that they hold.

mod check;
mod contents;
mod control;
mod reach;
mod requirement;

pub use check::check_body;
pub(crate) use contents::{MAX_CONTENTS, contents};
pub(crate) use reach::{address_requirements, size_requirements};
pub(crate) use requirement::Requirement;

use super::{Graph, Label, Op, Type, Value};
use crate::error::{Error, Result};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

/// The relations between its operands' dims on which `op` relies.
///
/// # Errors
/// Operands that don't fit regardless of their dims: too few, or of another rank.
pub(crate) fn requirements(graph: &Graph, op: &Op, operands: &[Value]) -> Result<Vec<Requirement>> {
    check::operands(graph, op, operands)?;
    let mut requirements = Vec::new();
    match op {
        Op::Map(_) => require_same_shape(graph, operands, None, &mut requirements),
        Op::Concat { axis } => require_same_shape(graph, operands, Some(*axis), &mut requirements),
        Op::Contraction { lhs, rhs, .. } => require_same_labels(graph, operands, lhs, rhs, &mut requirements),
        Op::If { .. } | Op::Loop { .. } => {
            control::require_equal_dims(graph, op, operands, &mut requirements)
        }
        Op::Sort { axis, first: Some(first), .. } => {
            if let Some(size) = graph.shape(operands[0]).get(*axis).filter(|size| *size != first) {
                let context = format!("the first {first} elements of axis {axis}");
                requirements.push(Requirement { relation: Relation::le(first, size), context });
            }
        }
        _ => {}
    }

    Ok(requirements)
}

fn require_same_shape(
    graph: &Graph,
    operands: &[Value],
    except: Option<usize>,
    requirements: &mut Vec<Requirement>,
) {
    let first = graph.shape(operands[0]);
    for (i, operand) in operands.iter().enumerate().skip(1) {
        for (k, (a, b)) in first.iter().zip(graph.shape(*operand)).enumerate() {
            if Some(k) != except && a != b {
                let context = format!("axis {k} of operands 0 and {i}");
                requirements.push(Requirement { relation: Relation::eq(a, b), context });
            }
        }
    }
}

fn require_same_labels(
    graph: &Graph,
    operands: &[Value],
    lhs: &[Label],
    rhs: &[Label],
    requirements: &mut Vec<Requirement>,
) {
    for (a, label) in graph.shape(operands[0]).iter().zip(lhs) {
        let Some(k) = rhs.iter().position(|other| other == label) else { continue };
        let b = &graph.shape(operands[1])[k];
        if a != b {
            let context = format!("axes with label {}", *label as char);
            requirements.push(Requirement { relation: Relation::eq(a, b), context });
        }
    }
}

/// The types of the results of `op` if its [`requirements`] hold.
///
/// # Errors
/// As [`requirements`], and types or attributes that don't fit.
pub(crate) fn types(graph: &Graph, op: &Op, operands: &[Value]) -> Result<Vec<Type>> {
    check::operands(graph, op, operands)?;
    check::attributes(graph, op, operands)?;
    let shape_of = |i: usize| graph.shape(operands[i]).to_vec();
    let dtype_of = |i: usize| graph.dtype(operands[i]);

    let (dtype, shape) = match op {
        Op::Input(index) => return input_type(graph, *index),
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
        Op::Sort { axis, first, .. } => {
            let mut shape = shape_of(0);
            if let Some(first) = first {
                shape[*axis] = graph.facts.simplify(first);
            }
            let values = Type { dtype: dtype_of(0), shape: shape.clone() };
            let positions = Type { dtype: DType::I64, shape };
            return Ok(vec![values, positions]);
        }
    };

    let shape = shape.iter().map(|dim| graph.facts.simplify(dim)).collect();
    Ok(vec![Type { dtype, shape }])
}

fn input_type(graph: &Graph, index: u32) -> Result<Vec<Type>> {
    let input = graph.inputs.get(index as usize);
    let (_, value) = input.ok_or_else(|| Error::invalid(format!("there is no input {index}")))?;
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
        let constant =
            operands.iter().map(|value| &graph.shape(*value)[k]).find(|dim| dim.as_int().is_some());
        *dim = constant.unwrap_or(dim).clone();
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
            // A constant is more precise than a symbol.
            (Some(_), Some(b)) if b.as_int().is_some() => b,
            (a, b) => a.or(b).expect("check::attributes finds each output label in an operand"),
        }
    };
    out.iter().map(sizes).collect()
}
