//! Elements of integer tensors as expressions over the axes of a result, such as the positions that a mask is read at.

use crate::{
    graph::{Graph, Op, Value, axis},
    scalar::{BinaryOp, Body, CompareOp, Reg, Scalar, Step},
};
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Definitions of more operators than this are not followed.
const MAX_DEPTH: usize = 32;

/// The element of `value` at the index `at`, whose expressions are over the axes of some result. `facts` are those
/// inside the result. `None` if it is not an expression over these axes.
pub(super) fn element(graph: &Graph, facts: &Facts, value: Value, at: &[Dim]) -> Option<Dim> {
    match follow(graph, facts, value, at, 0)? {
        Element::Integer(dim) => Some(facts.simplify(&dim)),
        Element::Truth(_) => None,
    }
}

/// The value of an element.
#[derive(Clone)]
enum Element {
    /// An integer, as an expression.
    Integer(Dim),
    /// A bool.
    Truth(bool),
}

impl Element {
    fn as_integer(&self) -> Option<&Dim> {
        match self {
            Element::Integer(dim) => Some(dim),
            Element::Truth(_) => None,
        }
    }
}

fn follow(graph: &Graph, facts: &Facts, value: Value, at: &[Dim], depth: usize) -> Option<Element> {
    if depth > MAX_DEPTH || graph.dtype(value).is_float() {
        return None;
    }
    let replaced = |dim: &Dim| {
        dim.substitute(&|symbol| (0..at.len()).find(|k| axis(*k) == *symbol).map(|k| at[k].clone()))
    };
    let operands = graph.operands(value);
    match graph.op(value) {
        Op::Index { expr, .. } => Some(Element::Integer(replaced(expr))),
        Op::Const(tensor) => {
            let index: Option<Vec<usize>> =
                at.iter().map(|dim| usize::try_from(facts.simplify(dim).as_i64()?).ok()).collect();
            let flat = index?.iter().zip(tensor.shape()).fold(0, |flat, (at, size)| flat * size + at);
            (flat < tensor.elems()).then(|| of_scalar(tensor.get(flat)))
        }
        Op::View { index, .. } => {
            let index: Vec<Dim> = index.iter().map(replaced).collect();
            follow(graph, facts, operands[0], &index, depth + 1)
        }
        Op::Concat { axis } => {
            let mut rest = facts.simplify(&at[*axis]).as_i64()?;
            for operand in operands {
                let size = graph.shape(*operand)[*axis].as_i64()?;
                if rest < size {
                    let mut at = at.to_vec();
                    at[*axis] = Dim::from(rest);
                    return follow(graph, facts, *operand, &at, depth + 1);
                }
                rest -= size;
            }
            None
        }
        Op::Map(body) => {
            let params =
                operands.iter().map(|operand| follow(graph, facts, *operand, at, depth + 1)).collect();
            of_body(facts, body, params)
        }
        _ => None,
    }
}

fn of_scalar(value: Scalar) -> Element {
    let number = value.as_i64();
    if value.dtype() == DType::Bool { Element::Truth(number != 0) } else { Element::Integer(number.into()) }
}

/// The result of integer arithmetic on expressions.
fn of_body(facts: &Facts, body: &Body, params: Vec<Option<Element>>) -> Option<Element> {
    let types = body.types();
    let mut elements = params;
    for step in &body.steps {
        let of = |reg: &Reg| elements[reg.0 as usize].clone();
        let integer = |reg: &Reg| elements[reg.0 as usize].as_ref().and_then(Element::as_integer);
        let element = match step {
            Step::Const(value) if !value.dtype().is_float() => Some(of_scalar(*value)),
            Step::Cast(to, x) if to.is_int() && types[x.0 as usize].is_int() => of(x),
            Step::Binary(op, x, y) => match (op, integer(x), integer(y)) {
                (BinaryOp::Add, Some(x), Some(y)) => Some(Element::Integer(x + y)),
                (BinaryOp::Sub, Some(x), Some(y)) => Some(Element::Integer(x - y)),
                (BinaryOp::Mul, Some(x), Some(y)) => Some(Element::Integer(x * y)),
                _ => None,
            },
            Step::Compare(op, x, y) => match (integer(x), integer(y)) {
                (Some(x), Some(y)) => compare(facts, *op, x, y).map(Element::Truth),
                _ => None,
            },
            Step::Select(condition, x, y) => match of(condition) {
                Some(Element::Truth(true)) => of(x),
                Some(Element::Truth(false)) => of(y),
                _ => None,
            },
            _ => None,
        };
        elements.push(element);
    }
    elements.swap_remove(body.result.0 as usize)
}

fn compare(facts: &Facts, op: CompareOp, x: &Dim, y: &Dim) -> Option<bool> {
    let (holds, fails) = match op {
        CompareOp::Lt => (facts.prove_lt(x, y), facts.prove_le(y, x)),
        CompareOp::Le => (facts.prove_le(x, y), facts.prove_lt(y, x)),
        CompareOp::Gt => (facts.prove_lt(y, x), facts.prove_le(x, y)),
        CompareOp::Ge => (facts.prove_le(y, x), facts.prove_lt(x, y)),
        CompareOp::Eq => (facts.prove_eq(x, y), facts.prove_ne(x, y)),
        CompareOp::Ne => (facts.prove_ne(x, y), facts.prove_eq(x, y)),
    };
    if holds.is_yes() {
        Some(true)
    } else if fails.is_yes() {
        Some(false)
    } else {
        None
    }
}
