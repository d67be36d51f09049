//! Reshape as an index map. Axes are matched in groups of equal size, and an index is divided only inside a group.
//!
//! `[N, S, 8, 4] → [N*S, 32]` has the groups `N, S ↔ N*S` and `8, 4 ↔ 32`, so the index map is `[$0 // S, $0 % S, $1
//! // 4, $1 % 4]`, with small divisors and no expression that mixes `$0` with `$1`. Groups are matched from the left,
//! shortest first. If no equality can be proven, the remaining axes form one group, whose equal size becomes a
//! constraint.

use super::super::{Graph, Value, axis};
use super::movement::axes;
use crate::error::Result;
use std::ops::Range;
use symshape::{Dim, Relation};

/// Axes of the operand and of the result that hold the same elements.
struct Group {
    from: Range<usize>,
    to: Range<usize>,
}

impl Graph {
    /// Gives the elements of `x`, in row-major order, another shape.
    ///
    /// # Errors
    /// The shape has another number of elements.
    pub fn reshape(&mut self, x: Value, shape: Vec<Dim>) -> Result<Value> {
        let from = self.shape(x).to_vec();
        let shape: Vec<Dim> = shape.iter().map(|dim| self.facts.simplify(dim)).collect();
        if from == shape {
            return Ok(x);
        }

        let mut index = vec![Dim::zero(); from.len()];
        if !shape.iter().chain(&from).any(|dim| dim.as_i64() == Some(0)) {
            for group in self.groups(&from, &shape)? {
                self.unravel(&from, &shape, &group, &mut index);
            }
        } else {
            let [a, b] = [&from, &shape].map(|dims| Dim::product(dims.iter().cloned()));
            self.require(Relation::eq(a, b), "number of elements")?;
        }

        self.view(x, shape, index)
    }

    fn groups(&mut self, from: &[Dim], to: &[Dim]) -> Result<Vec<Group>> {
        let mut i = 0;
        let mut j = 0;

        let mut groups = Vec::new();
        while i < from.len() || j < to.len() {
            let (m, n) = match self.shortest_group(&from[i..], &to[j..]) {
                Some(found) => found,
                None => {
                    let [a, b] = [&from[i..], &to[j..]].map(|dims| Dim::product(dims.iter().cloned()));
                    self.require(Relation::eq(a, b), "number of elements")?;
                    (from.len() - i, to.len() - j)
                }
            };
            groups.push(Group { from: i..i + m, to: j..j + n });
            (i, j) = (i + m, j + n);
        }

        Ok(groups)
    }

    /// Whether each axis of either shape is a product of adjacent axes of the other, for all sizes.
    pub(crate) fn only_merges_and_splits(&self, from: &[Dim], to: &[Dim]) -> bool {
        let mut i = 0;
        let mut j = 0;
        while i < from.len() || j < to.len() {
            match self.shortest_group(&from[i..], &to[j..]) {
                Some((m, n)) if m <= 1 || n <= 1 => (i, j) = (i + m, j + n),
                _ => return false,
            }
        }
        true
    }

    /// The smallest number of leading axes of each side that provably have the same number of elements.
    fn shortest_group(&self, from: &[Dim], to: &[Dim]) -> Option<(usize, usize)> {
        // An axis of size 1 is a group by itself unless the other side starts with one too.
        let one = |dims: &[Dim]| dims.first().is_some_and(|dim| self.is_one(dim));
        match (one(from), one(to)) {
            (true, true) => return Some((1, 1)),
            (true, false) => return Some((1, 0)),
            (false, true) => return Some((0, 1)),
            (false, false) => {}
        }

        for total in 2..=from.len() + to.len() {
            for m in 1..total.min(from.len() + 1) {
                let n = total - m;
                if n <= to.len() && self.same_product(&from[..m], &to[..n]) {
                    return Some((m, n));
                }
            }
        }
        None
    }

    fn same_product(&self, a: &[Dim], b: &[Dim]) -> bool {
        let [a, b] = [a, b].map(|dims| Dim::product(dims.iter().cloned()));
        match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => a == b || self.facts.prove_eq(&a, &b).is_yes(),
        }
    }

    /// The operand's indices within `group`, from the flat index of the result's indices.
    fn unravel(&self, from: &[Dim], to: &[Dim], group: &Group, index: &mut [Dim]) {
        let to_axes = axes(to.len());
        let mut flat = Dim::zero();
        for k in group.to.clone() {
            flat = flat * &to[k] + &to_axes[k];
        }

        if group.from.len() == 1 {
            // A single axis contains all elements of the group, so the flat index needs no bounds.
            index[group.from.start] = if self.is_one(&from[group.from.start]) { Dim::zero() } else { flat };
            return;
        }

        let mut facts = self.facts.clone();
        for k in group.to.clone() {
            facts.declare_index(&axis(k), &to[k]);
        }

        let mut stride = Dim::one();
        for k in group.from.clone().rev() {
            let quotient = flat.floor_div(stride.clone());
            let inner = if k == group.from.start { quotient } else { quotient.modulo(from[k].clone()) };
            index[k] = facts.simplify(&inner);
            stride = facts.simplify(&(stride * &from[k]));
        }
    }
}
