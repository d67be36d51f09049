//! [`NormalForms`]: comparisons of many terms under the same facts.
//!
//! A simplified term is chosen among several forms, which takes most of the time of [`Facts::simplify`]. To know
//! whether two terms are equal, or differ by a constant, the normal form is enough, and the terms share an engine.

use num_bigint::BigInt;

use crate::assume::Facts;
use crate::dim::{Dim, Symbol};
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

/// A term as a varying part and a constant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Displacement {
    /// A number that terms share whose normal forms differ by a constant.
    pub varying: usize,
    /// The constant, relative to the varying part.
    pub constant: BigInt,
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
        self.number(form)
    }

    /// The varying part and the constant of a term. Terms with one varying part differ by the difference of their
    /// constants, wherever they have values.
    ///
    /// ```
    /// use symshape::{Dim, Facts};
    /// let mut forms = Facts::new().normal_forms();
    /// let a: Dim = "4*(i + 1) + j".parse().unwrap();
    /// let b: Dim = "j + 4*i - 3".parse().unwrap();
    /// let [a, b] = [a, b].map(|term| forms.displacement(&term));
    /// assert_eq!(a.varying, b.varying);
    /// assert_eq!(a.constant - b.constant, 7.into());
    /// ```
    pub fn displacement(&mut self, e: &Dim) -> Displacement {
        let (varying, constant) = match self.form(e) {
            Some(form) => {
                let constant = form.constant();
                (Ok(form.add_const(&-&constant)), constant.to_big())
            }
            None => (Err(e.clone()), BigInt::ZERO),
        };
        Displacement { varying: self.number(varying), constant }
    }

    /// The integer by which `e` grows with each step of `s`, if the normal form shows that it is linear in `s`.
    ///
    /// ```
    /// use symshape::{Dim, Facts, Symbol};
    /// let mut forms = Facts::new().normal_forms();
    /// let e: Dim = "4*(i + W*j) + 1".parse().unwrap();
    /// assert_eq!(forms.step(&e, &Symbol::new("i")), Some(4.into()));
    /// assert_eq!(forms.step(&e, &Symbol::new("j")), None);
    /// ```
    pub fn step(&mut self, e: &Dim, s: &Symbol) -> Option<BigInt> {
        let form = self.form(e)?;
        let (step, _) = self.engine.split_by_symbol(form, s)?;
        step.as_const().map(|value| value.to_big())
    }

    fn number(&mut self, form: Result<Poly, Dim>) -> usize {
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
    use crate::Declaration;

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
    fn terms_of_one_varying_part_differ_by_a_constant() {
        let mut facts = Facts::new();
        facts.declare(&Symbol::new("W"), Declaration::range(64, 224).step(32, 0)).expect("a range");
        let dim = |text: &str| text.parse::<Dim>().expect("a term");
        let mut forms = facts.normal_forms();
        let mut of = |text: &str| forms.displacement(&dim(text));

        let [near, far] = [of("i + (W + 5)//4"), of("i + W//4 + 9")];
        assert_eq!((near.varying, far.constant - near.constant), (far.varying, 8.into()));
        assert_ne!(of("i + W//4").varying, of("2*i + W//4").varying);
        assert_eq!(of("7").varying, of("-7").varying);
        // Terms without a normal form have no constant part.
        assert_ne!(of("a//b").varying, of("a//b + 1").varying);
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
