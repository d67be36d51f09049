//! How many operations a [`Dim`] takes.
//!
//! An operation has two operands; `a - b` and `ceil(a / m)` count as one each. Every node caches its count when it is
//! built, so that comparing two forms is cheap.

use num_bigint::{BigInt, Sign};
use num_traits::{One, ToPrimitive};

use crate::dim::{Dim, Node};

/// The number of operations in `dim`. Shared subtrees can make a small term a huge tree; such a term has the
/// maximum cost.
pub(crate) fn operations(dim: &Dim) -> u32 {
    if dim.is_tractable() { dim.operations() } else { u32::MAX }
}

/// The operations of a node with its operands.
pub(crate) fn of_node(node: &Node) -> u32 {
    let two = |a: &Dim, b: &Dim| a.operations().saturating_add(b.operations()).saturating_add(1);
    match node {
        Node::Int(_) | Node::Symbol(_) => 0,
        Node::Mod(a, b) => two(a, b),
        Node::FloorDiv(a, b) => match rounded_up_terms(a, b) {
            Some(terms) => of_sum(terms).saturating_add(b.operations()).saturating_add(1),
            None => two(a, b),
        },
        Node::Mul(list) | Node::Min(list) | Node::Max(list) => {
            list.iter().fold(list.len() as u32 - 1, |sum, operand| sum.saturating_add(operand.operations()))
        }
        Node::Add(list) => of_sum(list.iter()),
    }
}

/// Negated terms of a sum are subtracted, which is free but for the first.
fn of_sum<'d>(terms: impl Iterator<Item = &'d Dim>) -> u32 {
    let (mut count, mut negations, mut inside) = (0u32, 0, 0u32);
    for term in terms {
        count += 1;
        negations += u32::from(is_negation(term));
        inside = inside.saturating_add(term.operations());
    }
    let joints = count.saturating_sub(1);
    inside.saturating_add(joints - negations.min(joints))
}

pub(crate) fn is_negation(dim: &Dim) -> bool {
    matches!(dim.node(), Node::Mul(list) if list[0].is_int(-1))
}

fn is_one_less(a: &BigInt, b: &BigInt) -> bool {
    match (a.to_i64(), b.to_i64()) {
        (Some(a), Some(b)) => a.checked_add(1) == Some(b),
        _ => a + 1 == *b,
    }
}

/// The terms of `x`, if `a // b` is `(x + b - 1) // b`, with an integer `b` above 1 or a `b` that is not a sum.
fn rounded_up_terms<'d>(a: &'d Dim, b: &Dim) -> Option<impl Iterator<Item = &'d Dim>> {
    let Node::Add(list) = a.node() else { return None };
    let (extra, rest) = list.split_last()?;
    let extra = extra.as_int()?;
    let skipped = match b.as_int() {
        Some(divisor) => is_one_less(extra, divisor).then_some(rest.len())?,
        None if extra.sign() == Sign::Minus && extra.magnitude().is_one() => {
            rest.iter().position(|term| term == b)?
        }
        None => return None,
    };
    Some(rest.iter().enumerate().filter(move |(idx, _)| *idx != skipped).map(|(_, term)| term))
}

/// `x`, if `a // b` is `x` divided by `b` and rounded up.
pub(crate) fn rounded_up(a: &Dim, b: &Dim) -> Option<Dim> {
    Some(Dim::sum(rounded_up_terms(a, b)?.cloned()))
}
