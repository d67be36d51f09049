//! `Reshape` with computed dims that may be 0 in a call: each 0 is then the dim of the input at that axis.

use crate::{error::Result, graph::Graph};
use symshape::{Dim, Node, Relation};

/// Replaces the dims of `to` that may be 0 where the input has another dim. Axis `rest` of `to` has the remaining
/// elements.
pub(crate) fn replace(g: &mut Graph, from: &[Dim], to: &mut [Dim], rest: Option<usize>) -> Result<()> {
    let axes = axes(g, from, to, rest);
    for k in &axes {
        g.require(Relation::le(Dim::zero(), &to[*k]), &format!("dim {k} of the new shape"))?;
        to[*k] = chosen(g, &to[*k], &from[*k]);
    }

    match rest {
        Some(k) if !axes.is_empty() => {
            to[k] = Dim::one();
            to[k] = remaining(g, from, to);
        }
        _ => {}
    }
    Ok(())
}

/// The axes of `to` where a call decides whether the dim is 0 and means another dim of the input.
///
/// There are none if the dims as they are fit all sizes: if a dim is 0, the input is empty too. With an axis `rest`,
/// other dims fit as well, so the shape must only merge and split axes.
/// A model that flattens `[B, T, 8]` to `[B*T, -1]` wants 8 columns for `T = 0` too.
fn axes(g: &Graph, from: &[Dim], to: &[Dim], rest: Option<usize>) -> Vec<usize> {
    let differs = |k: &usize| {
        let Some(old) = from.get(*k) else { return false };
        Some(*k) != rest
            && to[*k].as_i64().is_none()
            && may_be_zero(g, &to[*k])
            && !vanishes_with(g, old, &to[*k])
    };
    let axes: Vec<usize> = (0..to.len()).filter(differs).collect();
    if axes.is_empty() {
        return axes;
    }

    let fits = match rest {
        Some(_) => g.only_merges_and_splits(from, to),
        None => {
            let [old, new] = [from, to].map(|dims| Dim::product(dims.iter().cloned()));
            g.facts.prove_eq(&old, &new).is_yes()
        }
    };
    if fits { Vec::new() } else { axes }
}

fn may_be_zero(g: &Graph, dim: &Dim) -> bool {
    !g.facts.prove_ne(dim, &Dim::zero()).is_yes()
}

/// Whether `dim` is 0 wherever `other` is 0, as `2*N` with `N`.
fn vanishes_with(g: &Graph, dim: &Dim, other: &Dim) -> bool {
    factors(other).into_iter().filter(|factor| may_be_zero(g, factor)).all(|factor| {
        let mut facts = g.facts.clone();
        let is_possible = facts.assume(Relation::eq(&factor, Dim::zero()), "a dim of 0").is_ok();
        !is_possible || facts.prove_eq(dim, &Dim::zero()).is_yes() || factors(dim).contains(&factor)
    })
}

/// The factors of a product, or the dim.
fn factors(dim: &Dim) -> Vec<Dim> {
    match dim.node() {
        Node::Mul(_) => dim.node().operands().into_iter().cloned().collect(),
        _ => vec![dim.clone()],
    }
}

/// `old` where `dim` is 0, `dim` elsewhere. Both are at least 0.
fn chosen(g: &Graph, dim: &Dim, old: &Dim) -> Dim {
    let is_zero = Dim::one() - dim.min(Dim::one());
    g.facts.simplify(&dim.max(old * is_zero))
}

/// The dim that gives a shape with these other dims the elements of `from`.
fn remaining(g: &Graph, from: &[Dim], others: &[Dim]) -> Dim {
    let [total, product] = [from, others].map(|dims| Dim::product(dims.iter().cloned()));
    // Where another dim is 0, there must be no elements.
    g.facts.simplify(&total.floor_div(product.max(Dim::one())))
}
