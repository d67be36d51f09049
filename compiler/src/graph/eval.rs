//! The reference evaluator: runs a graph element by element, in the simplest way that works.
//!
//! Every operator is evaluated from its definition, with loops over all indices. Sums and products of floats are
//! computed in double precision and rounded at the end. Nothing is fused, shared or reordered. Each value is computed
//! once and dropped after its last use. Constant folding, `selfcheck` and all tests of optimisations rely on it.

mod contraction;
mod control;
mod index;
mod node;
mod reduce;

use super::{Graph, NodeId, Op, Type, Value};
use crate::{
    error::{At, Error, ErrorKind, Result},
    external::Callee,
    tensor::{Bytes, Tensor},
};
use num_bigint::BigInt;
use num_traits::ToPrimitive;
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Comparison, Dim, Relation, Symbol};
use symshape_runtime::DType;

/// Values of the symbols.
pub type Binding = BTreeMap<Symbol, i64>;

/// How floats are rounded to their type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest. Sums and products are computed in double precision and rounded once, at the end.
    Last,
    /// Sums and products round at each step, in single precision at least and in order of the terms. Every other `f32`
    /// of an elementwise operator rounds to the next float beyond the exact result. The difference from
    /// [`Rounding::Last`] shows the effect of rounding on this graph and these inputs. It bounds the error of other
    /// summation orders and of other approximations of the same functions.
    Each,
}

/// Larger tensors are rejected, because the evaluator is meant for small sizes.
const MAX_ELEMS: usize = 1 << 31;

/// The outputs of `graph` for these inputs. The shapes of the inputs bind the symbols.
///
/// ```
/// use symshape_compiler::{graph::{Graph, eval::eval}, tensor::Tensor};
/// use symshape_runtime::DType;
/// let mut g = Graph::default();
/// let x = g.input("x", DType::F32, vec!["N".parse().expect("a dim")])?;
/// let y = g.relu(x)?;
/// g.output("y", y)?;
/// let out = eval(&g, &[Tensor::from_f32(vec![2], &[-1.0, 2.0]).expect("two elements")])?;
/// assert_eq!((out[0].shape(), out[0].get(1).as_f64()), (&[2][..], 2.0));
/// # Ok::<(), symshape_compiler::Error>(())
/// ```
///
/// # Errors
/// Inputs that violate the contract, and errors that depend on values, such as an index out of bounds.
pub fn eval(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    eval_rounding(graph, inputs, Rounding::Last)
}

/// As [`eval`], with the given rounding.
///
/// # Errors
/// As [`eval`].
pub fn eval_rounding(graph: &Graph, inputs: &[Tensor], rounding: Rounding) -> Result<Vec<Tensor>> {
    let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
    let binding = bind(graph, &shapes)?;
    for ((name, value), tensor) in graph.inputs.iter().zip(inputs) {
        let (want, got) = (graph.dtype(*value), tensor.dtype());
        if want != got {
            return Err(Error::new(ErrorKind::Usage, format!("input `{name}` is {want}, not {got}")));
        }
    }
    outputs(graph, &binding, inputs, rounding)
}

/// The outputs of `graph`. Nodes that may end the call are run too.
fn outputs(graph: &Graph, binding: &Binding, inputs: &[Tensor], rounding: Rounding) -> Result<Vec<Tensor>> {
    let mut wanted: Vec<Value> = graph.outputs.iter().map(|(_, value)| *value).collect();
    wanted.extend(graph.nodes.values().filter(|node| node.op.acts()).map(|node| node.results[0]));
    let mut found = computed(graph, binding, inputs, &wanted, rounding)?;
    found.truncate(graph.outputs.len());
    Ok(found)
}

/// The values of the symbols for inputs of these shapes.
///
/// # Errors
/// The shapes violate the contract: a rank, a declared range, or an equality.
pub fn bind(graph: &Graph, shapes: &[&[usize]]) -> Result<Binding> {
    let usage = |message: String| Error::new(ErrorKind::Usage, message);
    if shapes.len() != graph.inputs.len() {
        return Err(usage(format!("{} inputs given, {} wanted", shapes.len(), graph.inputs.len())));
    }
    let mut pairs = Vec::new();
    for ((name, value), shape) in graph.inputs.iter().zip(shapes) {
        let dims = graph.shape(*value);
        if dims.len() != shape.len() {
            return Err(usage(format!("input `{name}` has {} axes, not {}", dims.len(), shape.len())));
        }
        let sizes = shape.iter().map(|size| *size as i64);
        pairs
            .extend(dims.iter().zip(sizes).enumerate().map(|(k, pair)| (format!("`{name}` axis {k}"), pair)));
    }
    let mut binding = Binding::new();
    // Plain symbols first, then dims such as `2*S + 1` with one symbol left.
    while let Some((symbol, value)) =
        pairs.iter().find_map(|(_, (dim, size))| solve(graph, &binding, dim, *size))
    {
        binding.insert(symbol, value);
    }
    for (what, (dim, size)) in &pairs {
        let value = number(dim, &binding).at(|| what.clone())?;
        if value != *size {
            return Err(usage(format!("{what} has size {size}; {dim} is {value}")));
        }
    }
    check_binding(graph, &binding)?;
    Ok(binding)
}

fn solve(graph: &Graph, binding: &Binding, dim: &Dim, size: i64) -> Option<(Symbol, i64)> {
    if let Some(symbol) = dim.as_symbol() {
        return (!binding.contains_key(symbol)).then(|| (symbol.clone(), size));
    }
    let mut open = dim.symbols().into_iter().filter(|symbol| !binding.contains_key(symbol));
    let symbol = open.next().filter(|_| open.next().is_none())?;
    let (factor, rest) = graph.facts.solvable_for(dim, &symbol, &|symbol| binding.contains_key(symbol))?;
    let (factor, rest) = (number(&factor, binding).ok()?, number(&rest, binding).ok()?);
    let value = size.checked_sub(rest)?.checked_div(factor)?;
    (value * factor + rest == size).then_some((symbol, value))
}

/// Checks that these values satisfy the declarations and constraints.
///
/// # Errors
/// One is out of its declared range, or a constraint doesn't hold.
pub fn check_binding(graph: &Graph, binding: &Binding) -> Result<()> {
    for (symbol, value) in binding {
        let Some(declaration) = graph.facts.declaration(symbol) else { continue };
        if !declaration.contains(&BigInt::from(*value)) {
            let message = format!("{symbol} = {value}; {symbol} is declared as {declaration}");
            return Err(Error::new(ErrorKind::Usage, message));
        }
    }
    // Constraints on data-dependent symbols are checked when the symbol is bound.
    check_constraints(graph, &|dim| !graph.is_data_dependent(dim), binding)
}

/// Checks the constraints on dims that are `known`.
fn check_constraints(graph: &Graph, known: &dyn Fn(&Dim) -> bool, binding: &Binding) -> Result<()> {
    for constraint in &graph.constraints {
        let relation = &constraint.relation;
        if known(&relation.a) && known(&relation.b) && !holds(relation, binding)? {
            let message = format!("{relation} does not hold ({})", constraint.origin);
            return Err(Error::new(ErrorKind::Usage, message));
        }
    }
    Ok(())
}

fn holds(relation: &Relation, binding: &Binding) -> Result<bool> {
    let (a, b) = (number(&relation.a, binding)?, number(&relation.b, binding)?);
    Ok(match relation.comparison {
        Comparison::Eq => a == b,
        Comparison::Ne => a != b,
        Comparison::Lt => a < b,
        Comparison::Le => a <= b,
        Comparison::Divides => a != 0 && b % a == 0,
    })
}

/// The value of `dim`.
///
/// # Errors
/// A symbol is not bound, a divisor is zero, or the value doesn't fit.
pub fn number(dim: &Dim, binding: &Binding) -> Result<i64> {
    if let Some(value) = dim.as_int().and_then(ToPrimitive::to_i64) {
        return Ok(value);
    }
    dim.eval_i64(&|symbol| binding.get(symbol).copied()).map_err(|error| Error::invalid(error.to_string()))
}

/// The shape `dims` as integers.
///
/// # Errors
/// As [`number`], and a dim that is negative, or a size above the evaluator's limit.
pub fn sizes(dims: &[Dim], binding: &Binding) -> Result<Vec<usize>> {
    let mut shape = Vec::new();
    for dim in dims {
        let value = number(dim, binding)?;
        let size = usize::try_from(value).map_err(|_| Error::invalid(format!("the dim {dim} is {value}")))?;
        shape.push(size);
    }
    checked(shape)
}

/// The shape, unless it is above the evaluator's limit.
fn checked(shape: Vec<usize>) -> Result<Vec<usize>> {
    match shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size)) {
        Some(elems) if elems <= MAX_ELEMS => Ok(shape),
        _ => Err(Error::new(ErrorKind::Limit, format!("a tensor of shape {shape:?} is beyond the oracle"))),
    }
}

/// The values `wanted` for these symbols and inputs. Only the nodes that they depend on are computed.
///
/// # Errors
/// As [`eval`].
pub fn values(graph: &Graph, binding: &Binding, inputs: &[Tensor], wanted: &[Value]) -> Result<Vec<Tensor>> {
    computed(graph, binding, inputs, wanted, Rounding::Last)
}

fn computed(
    graph: &Graph,
    binding: &Binding,
    inputs: &[Tensor],
    wanted: &[Value],
    rounding: Rounding,
) -> Result<Vec<Tensor>> {
    let binding = &mut binding.clone();
    let (nodes, uses) = needed(graph, wanted);
    let mut left = uses.clone();
    let mut done: BTreeMap<Value, Tensor> = BTreeMap::new();
    for node in nodes.iter().map(|id| &graph.nodes[*id]) {
        let located = || match node.origin.is_empty() {
            true => node.op.name().to_string(),
            false => node.origin.clone(),
        };
        let operands: Vec<Tensor> = node.operands.iter().map(|value| done[value].clone()).collect();
        for operand in &node.operands {
            let left = left.entry(*operand).or_default();
            *left -= 1;
            if *left == 0 {
                done.remove(operand);
            }
        }
        let results = match &node.op {
            Op::Input(number) => vec![inputs[*number as usize].clone()],
            Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Fail { .. } => {
                control::eval(graph, &node.op, &operands, binding, rounding).at(located)?
            }
            Op::Call { callee, results, scratch } => {
                external(callee, results, scratch, &operands, binding).at(located)?
            }
            op => node::eval(op, &operands, binding, rounding).at(located)?,
        };
        for (result, tensor) in node.results.iter().zip(results) {
            if uses.contains_key(result) {
                done.insert(*result, tensor);
            }
        }
    }
    Ok(wanted.iter().map(|value| done[value].clone()).collect())
}

/// The results of an external function.
fn external(
    callee: &Callee,
    results: &[Type],
    scratch: &Dim,
    operands: &[Tensor],
    binding: &Binding,
) -> Result<Vec<Tensor>> {
    let types = results.iter().map(|ty| Ok((ty.dtype, sizes(&ty.shape, binding)?)));
    let scratch = sizes(std::slice::from_ref(scratch), binding)?[0];
    callee.call(operands, &types.collect::<Result<Vec<_>>>()?, scratch)
}

/// The nodes that `wanted` depends on, in order, and the number of uses of each value among them.
fn needed(graph: &Graph, wanted: &[Value]) -> (BTreeSet<NodeId>, BTreeMap<Value, u32>) {
    let (mut nodes, mut uses) = (BTreeSet::new(), BTreeMap::new());
    let mut open = wanted.to_vec();
    while let Some(value) = open.pop() {
        *uses.entry(value).or_default() += 1;
        let def = graph.values[value].def;
        if nodes.insert(def) {
            open.extend(&graph.nodes[def].operands);
        }
    }
    (nodes, uses)
}

/// A tensor of these elements. The shape is known to be below the limit.
fn tensor(dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Result<Tensor> {
    Tensor::new(dtype, shape.to_vec(), Bytes::Owned(bytes.into()))
        .ok_or_else(|| Error::internal("a result has another size than its shape"))
}
