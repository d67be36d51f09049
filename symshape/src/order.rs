//! The order of operands in the result of [`Facts::simplify`](crate::Facts::simplify).
//!
//! The normal form keeps atoms in the order in which it met them, so that `A*B` and `B*A` would come out as they went
//! in, and shapes that are equal would not look equal. Here operands get an order that depends on themselves alone:
//! by the names of their symbols, negations after that and integers where the constructors put them.

use std::cmp::Ordering;

use crate::dim::{Dim, Node};

/// `dim`, which is tractable, with the operands of sums, products, minima and maxima in a fixed order.
pub(crate) fn ordered(dim: &Dim) -> Dim {
    match dim.node() {
        Node::Int(_) | Node::Symbol(_) => dim.clone(),
        Node::Add(list) => with_sorted(dim, list, Node::Add),
        Node::Mul(list) => with_sorted(dim, list, |mut list| {
            // In a product the integer comes first.
            let ints = list.iter().filter(|factor| factor.as_int().is_some()).count();
            list.rotate_right(ints);
            Node::Mul(list)
        }),
        Node::Min(list) => with_sorted(dim, list, Node::Min),
        Node::Max(list) => with_sorted(dim, list, Node::Max),
        Node::FloorDiv(a, b) => Node::FloorDiv(ordered(a), ordered(b)).into(),
        Node::Mod(a, b) => Node::Mod(ordered(a), ordered(b)).into(),
    }
}

fn with_sorted(dim: &Dim, list: &[Dim], build: impl FnOnce(Vec<Dim>) -> Node) -> Dim {
    let mut sorted: Vec<Dim> = list.iter().map(ordered).collect();
    sorted.sort_by(compare);
    if sorted.iter().zip(list).all(|(a, b)| a.address() == b.address()) {
        dim.clone()
    } else {
        build(sorted).into()
    }
}

/// Integers last, negative terms before them, else by symbols, and by structure where these are the same.
fn compare(a: &Dim, b: &Dim) -> Ordering {
    let by_kind = kind(a).cmp(&kind(b));
    by_kind.then_with(|| match (a.as_symbol(), b.as_symbol()) {
        (Some(a), Some(b)) => a.name().cmp(b.name()),
        _ => names(a).cmp(&names(b)).then_with(|| a.cmp(b)),
    })
}

fn kind(dim: &Dim) -> u8 {
    match dim.node() {
        Node::Int(_) => 2,
        Node::Mul(list) => {
            u8::from(list[0].as_int().is_some_and(|factor| factor.sign() == num_bigint::Sign::Minus))
        }
        _ => 0,
    }
}

/// The names of the symbols of `dim`, in order.
fn names(dim: &Dim) -> Vec<&str> {
    fn collect<'d>(dim: &'d Dim, names: &mut Vec<&'d str>) {
        match dim.node() {
            Node::Int(_) => {}
            Node::Symbol(symbol) => names.push(symbol.name()),
            Node::FloorDiv(a, b) | Node::Mod(a, b) => [a, b].into_iter().for_each(|dim| collect(dim, names)),
            Node::Add(list) | Node::Mul(list) | Node::Min(list) | Node::Max(list) => {
                list.iter().for_each(|dim| collect(dim, names))
            }
        }
    }

    let mut names = Vec::new();
    collect(dim, &mut names);
    names.sort_unstable();
    names.dedup();

    names
}
