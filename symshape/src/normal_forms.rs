//! [`NormalForms`]: comparisons of many terms under the same facts.
//!
//! A simplified term is chosen among several forms, which takes most of the time of [`Facts::simplify`]. To know
//! whether two terms are equal, or differ by a constant, the normal form is enough, and the terms share an engine.

use num_bigint::BigInt;

use crate::assume::Facts;
use crate::dim::Dim;
use crate::engine::atoms::Engine;
use crate::memo::FastMap;
use crate::poly::Poly;

/// The normal forms of terms under the same facts.
///
/// ```
/// use symshape::{Dim, Facts};
/// let facts = Facts::new();
/// let mut forms = facts.normal_forms();
/// let a: Dim = "4*(i + 1) + j".parse().unwrap();
/// let b: Dim = "j + 4 + 4*i".parse().unwrap();
/// assert_eq!(forms.id(&a), forms.id(&b));
/// assert_eq!(forms.difference(&a, &(b + 3)), Some((-3).into()));
/// ```
pub struct NormalForms {
    engine: Engine,
    /// The steps that each term may take.
    budget: u32,
    ids: FastMap<Result<Poly, Dim>, usize>,
}

impl Facts {
    /// The normal forms under these facts, none of them known yet.
    pub fn normal_forms(&self) -> NormalForms {
        let engine = Engine::new(self);
        NormalForms { budget: engine.total_budget, engine, ids: FastMap::default() }
    }
}

impl NormalForms {
    /// A number that terms of one normal form share. Terms of one number are equal wherever they have values; of terms
    /// without a normal form, only those that are written alike share a number.
    pub fn id(&mut self, e: &Dim) -> usize {
        let form = self.form(e).ok_or_else(|| e.clone());
        let next = self.ids.len();
        *self.ids.entry(form).or_insert(next)
    }

    /// `a - b`, if the normal forms show that it is constant.
    pub fn difference(&mut self, a: &Dim, b: &Dim) -> Option<BigInt> {
        let a = self.form(a)?;
        let b = self.form(b)?;
        self.engine.total_budget = self.budget;
        let difference = self.engine.finish(a.sub(&b)).ok()?;
        difference.as_const().map(|value| value.to_big())
    }

    fn form(&mut self, e: &Dim) -> Option<Poly> {
        self.engine.total_budget = self.budget;
        self.engine.normalize(e).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Declaration, Symbol};

    #[test]
    fn forms_compare_terms_under_the_facts() {
        let mut facts = Facts::new();
        facts.declare(&Symbol::new("W"), Declaration::range(64, 224).step(32, 0)).expect("a range");
        facts.declare_index(&Symbol::new("i"), &Dim::symbol("W"));
        let dim = |text: &str| text.parse::<Dim>().expect("a term");
        let mut forms = facts.normal_forms();

        assert_eq!(forms.id(&dim("(W + 5)//4")), forms.id(&dim("W//4 + 1")));
        assert_ne!(forms.id(&dim("(W + 5)//4")), forms.id(&dim("W//4 + 2")));
        assert_eq!(forms.id(&dim("(W*3 + i)//W")), forms.id(&dim("3")));
        assert_eq!(forms.difference(&dim("i//2 + W//2"), &dim("(i - 6)//2 + W//2")), Some(3.into()));
        assert_eq!(forms.difference(&dim("2*i"), &dim("i")), None);
    }

    #[test]
    fn terms_without_a_form_equal_themselves() {
        let mut forms = Facts::new().normal_forms();
        let term: Dim = "a//b".parse().expect("a term");
        let other: Dim = "a//b + a - a".parse().expect("a term");
        assert_eq!(forms.id(&term), forms.id(&term.clone()));
        assert_ne!(forms.id(&term), forms.id(&Dim::symbol("a").floor_div(Dim::symbol("c"))));
        assert_eq!(forms.difference(&term, &other), None);
    }
}
