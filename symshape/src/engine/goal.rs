//! The goal of a proof: how normal forms and bounds show a relation.
//!
//! Every relation is reduced to the difference of its two sides. `a <= b` holds if `b - a` is never below 0,
//! `a == b` if it is the polynomial 0, and `a` divides `b` if the remainder is 0.

use crate::assume::{Comparison, Relation};
use crate::engine::atoms::{AtomKind, Engine, Refusal};
use crate::engine::proof::Goal;
use crate::int::Int;
use crate::poly::{AtomId, Poly};

impl Engine {
    /// `b - a`, and the remainder where the relation is divisibility.
    pub(crate) fn difference(&mut self, relation: &Relation) -> Result<Poly, Refusal> {
        let a = self.normalize(&relation.a)?;
        let b = self.normalize(&relation.b)?;
        match relation.comparison {
            Comparison::Divides => {
                let quotient = self.divide(&b, &a)?;
                self.finish(b.sub(&quotient.mul(&a)?))
            }
            _ => self.finish(b.sub(&a)),
        }
    }

    /// How normal forms and bounds show the relation, if they do.
    pub(crate) fn goal(&mut self, relation: &Relation) -> Result<Option<Goal>, Refusal> {
        let gap = self.difference(relation)?;
        let below = |poly: &Poly| poly.neg().add_const(&Int::from(-1));
        Ok(match relation.comparison {
            Comparison::Eq | Comparison::Divides if gap.is_zero() => Some(Goal::Zero),
            Comparison::Eq | Comparison::Divides => match self.why_non_negative(&gap) {
                Some(why) => self.why_non_negative(&gap.neg()).map(|other| Goal::Both(why, other)),
                None => None,
            },
            Comparison::Le => self.why_non_negative(&gap).map(Goal::AtLeast),
            Comparison::Lt => self.why_non_negative(&gap.add_const(&Int::from(-1))).map(Goal::AtLeast),
            Comparison::Ne => {
                let content = Poly::content_of(gap.varying());
                if !content.is_zero() && !gap.constant().is_multiple_of(&content) {
                    return Ok(Some(Goal::Residue));
                }
                let above = self.why_non_negative(&gap.add_const(&Int::from(-1))).map(Goal::AtLeast);
                above.or_else(|| self.why_non_negative(&below(&gap)).map(Goal::Below))
            }
        })
    }

    /// The operands of a minimum on which `poly` depends, an innermost one first.
    pub(crate) fn first_minimum(&self, poly: &Poly) -> Option<Vec<Poly>> {
        let mut seen = vec![false; self.atoms.len()];
        let mut stack = poly.atoms();

        let mut found: Option<AtomId> = None;
        while let Some(id) = stack.pop() {
            if std::mem::replace(&mut seen[id as usize], true) {
                continue;
            }
            match &self.atom(id).kind {
                AtomKind::Symbol { .. } => {}
                AtomKind::Div(num, den) => stack.extend(num.atoms().into_iter().chain(den.atoms())),
                AtomKind::Min(list) => {
                    stack.extend(list.iter().flat_map(Poly::atoms));
                    found = Some(found.map_or(id, |old| old.min(id)));
                }
            }
        }

        match &self.atom(found?).kind {
            AtomKind::Min(list) => Some(list.clone()),
            _ => None,
        }
    }
}
