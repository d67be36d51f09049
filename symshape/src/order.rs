//! The order of operands in what [`Facts::simplify`](crate::Facts::simplify) returns.
//!
//! The normal form keeps atoms in the order in which it met them, so that `A*B` and `B*A` would come out as they went
//! in, and shapes that are equal would not look equal. Here operands get an order that depends on themselves alone:
//! by the names of their symbols, negations after that and integers where the constructors put them.

use std::collections::HashMap;

use crate::dim::{Dim, Node};

/// `dim` with the operands of sums, products, minima and maxima in a fixed order.
pub(crate) fn ordered(dim: &Dim) -> Dim {
    if matches!(dim.node(), Node::Int(_) | Node::Symbol(_)) {
        return dim.clone();
    }
    let mut done: HashMap<usize, Dim> = HashMap::new();
    for part in dim.post_order() {
        let of = |child: &Dim| done[&child.address()].clone();
        let sorted = |list: &[Dim]| {
            let mut list: Vec<Dim> = list.iter().map(of).collect();
            list.sort_by_cached_key(key);
            list
        };
        let new = match part.node() {
            Node::Int(_) | Node::Symbol(_) => part.clone(),
            Node::Add(list) => Node::Add(sorted(list)).into(),
            Node::Mul(list) => {
                let mut list = sorted(list);
                // In a product the integer comes first.
                let ints = list.iter().filter(|factor| factor.as_int().is_some()).count();
                list.rotate_right(ints);
                Node::Mul(list).into()
            }
            Node::Min(list) => Node::Min(sorted(list)).into(),
            Node::Max(list) => Node::Max(sorted(list)).into(),
            Node::FloorDiv(a, b) => Node::FloorDiv(of(a), of(b)).into(),
            Node::Mod(a, b) => Node::Mod(of(a), of(b)).into(),
        };
        done.insert(part.address(), new);
    }
    done[&dim.address()].clone()
}

/// Integers last, negative terms before them, else by symbols, and by structure where these are the same.
fn key(dim: &Dim) -> (bool, bool, Vec<String>, Dim) {
    let is_int = dim.as_int().is_some();
    let is_negative = matches!(dim.node(), Node::Mul(list) if list[0].as_int().is_some_and(|f| f.sign() == num_bigint::Sign::Minus));
    let names = dim.symbols().iter().map(|symbol| symbol.name().to_string()).collect();
    (is_int, is_negative, names, dim.clone())
}
