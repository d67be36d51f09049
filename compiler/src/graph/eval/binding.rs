//! Values of the symbols: solved from the shapes of the inputs, and checked against the call contract.

use crate::{
    error::{At, Error, ErrorKind, Result},
    graph::Graph,
};
use num_bigint::BigInt;
use num_traits::ToPrimitive;
use std::collections::BTreeMap;
use symshape::{Comparison, Dim, Relation, Symbol};

/// Values of the symbols.
pub type Binding = BTreeMap<Symbol, i64>;

/// Larger tensors are rejected, because the evaluator is meant for small sizes.
const MAX_ELEMS: usize = 1 << 31;

/// Solves the symbols from the shapes of the inputs.
///
/// # Errors
/// The shapes violate the contract: a rank, a declared range, or an equality.
pub fn bind(graph: &Graph, shapes: &[&[usize]]) -> Result<Binding> {
    let usage = |message: String| Error::new(ErrorKind::Usage, message);
    if shapes.len() != graph.inputs.len() {
        let message = format!("{} inputs given, the model has {}", shapes.len(), graph.inputs.len());
        return Err(usage(message));
    }

    let mut axes = Vec::new();
    for ((name, value), shape) in graph.inputs.iter().zip(shapes) {
        let dims = graph.shape(*value);
        if dims.len() != shape.len() {
            let message =
                format!("input `{name}` has {} axes; the model expects {}", shape.len(), dims.len());
            return Err(usage(message));
        }
        for (k, (dim, size)) in dims.iter().zip(*shape).enumerate() {
            axes.push(InputAxis { context: format!("`{name}` axis {k}"), dim, size: *size as i64 });
        }
    }

    // Plain symbols are solved first, followed by dims such as `2*S + 1` with one symbol left.
    let mut binding = Binding::new();
    while let Some((symbol, value)) = axes.iter().find_map(|axis| solve(graph, &binding, axis.dim, axis.size))
    {
        binding.insert(symbol, value);
    }

    for InputAxis { context, dim, size } in &axes {
        let value = dim_value(dim, &binding).at(|| context.clone())?;
        if value != *size {
            return Err(usage(format!("{context} has size {size}; {dim} is {value}")));
        }
    }
    check_binding(graph, &binding)?;
    Ok(binding)
}

/// An axis of an input, with its dim and the size that a call gives.
struct InputAxis<'g> {
    context: String,
    dim: &'g Dim,
    size: i64,
}

/// The only symbol of `dim` that has no value yet, and its value.
fn solve(graph: &Graph, binding: &Binding, dim: &Dim, size: i64) -> Option<(Symbol, i64)> {
    if let Some(symbol) = dim.as_symbol() {
        return (!binding.contains_key(symbol)).then(|| (symbol.clone(), size));
    }
    let mut open = dim.symbols().into_iter().filter(|symbol| !binding.contains_key(symbol));
    let symbol = open.next().filter(|_| open.next().is_none())?;
    let (factor, rest) = graph.facts.solvable_for(dim, &symbol, &|symbol| binding.contains_key(symbol))?;
    let factor = dim_value(&factor, binding).ok()?;
    let rest = dim_value(&rest, binding).ok()?;

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
pub(super) fn check_constraints(
    graph: &Graph,
    known: &dyn Fn(&Dim) -> bool,
    binding: &Binding,
) -> Result<()> {
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
    let a = dim_value(&relation.a, binding)?;
    let b = dim_value(&relation.b, binding)?;
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
pub fn dim_value(dim: &Dim, binding: &Binding) -> Result<i64> {
    if let Some(value) = dim.as_int().and_then(ToPrimitive::to_i64) {
        return Ok(value);
    }
    dim.eval_i64(&|symbol| binding.get(symbol).copied()).map_err(|error| Error::invalid(error.to_string()))
}

/// The shape `dims` as integers.
///
/// # Errors
/// As [`dim_value`], and a dim that is negative, or a size above the evaluator's limit.
pub fn sizes(dims: &[Dim], binding: &Binding) -> Result<Vec<usize>> {
    let mut shape = Vec::new();
    for dim in dims {
        let value = dim_value(dim, binding)?;
        let size = usize::try_from(value).map_err(|_| Error::invalid(format!("the dim {dim} is {value}")))?;
        shape.push(size);
    }
    checked(shape)
}

/// The shape, unless it is above the evaluator's limit.
pub(super) fn checked(shape: Vec<usize>) -> Result<Vec<usize>> {
    match shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size)) {
        Some(elems) if elems <= MAX_ELEMS => Ok(shape),
        _ => Err(Error::new(
            ErrorKind::Limit,
            format!("a tensor of shape {shape:?} exceeds the evaluator's limit"),
        )),
    }
}
