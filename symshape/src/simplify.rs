//! Simplification.

use crate::assume::Facts;
use crate::dim::{Dim, Symbol};

impl Facts {
    /// A term of equal value with as few operations as can be found; never more than `e` has.
    pub fn simplify(&self, e: &Dim) -> Dim {
        e.clone()
    }

    /// [`Facts::simplify`] of several terms that are computed together: what they share counts once.
    pub fn simplify_all(&self, terms: &[Dim]) -> Vec<Dim> {
        terms.iter().map(|term| self.simplify(term)).collect()
    }

    /// `(coefficient, rest)` with `e == coefficient*s + rest` for all values, both free of `s`.
    pub fn linear_in(&self, e: &Dim, s: &Symbol) -> Option<(Dim, Dim)> {
        (!e.contains(s)).then(|| (Dim::zero(), e.clone()))
    }
}
