//! The normal form of a [`Dim`]: a polynomial over the atoms of an [`Engine`].
//!
//! In the polynomial, sums are merged and products are multiplied out. Remainders become `a - m*(a // m)`, and maxima
//! become `-min(-a, -b)`. Every quotient and minimum is either rewritten by `rules` or an atom over normal operands.
//! Equal polynomials mean equal terms; the converse holds for everything that the rules cover.

use crate::dim::{Dim, Node};
use crate::engine::atoms::{Engine, Refusal};
use crate::engine::bounds::Why;
use crate::engine::proof::{Event, QuotientLaw};
use crate::engine::rules::{self, Sign};
use crate::int::Int;
use crate::poly::Poly;

/// The maximum size of a small term, in nodes.
const SMALL: u32 = 6;

/// The maximum nesting of rewrites inside each other; real terms stay far below.
const MAX_NESTING: u32 = 48;

impl Engine {
    /// The normal form of `dim`.
    ///
    /// # Errors
    /// A divisor that may be 0, or a form beyond the caps.
    pub(crate) fn normalize(&mut self, dim: &Dim) -> Result<Poly, Refusal> {
        if dim.is_tractable() { self.normal_form(dim) } else { Err(Refusal::TooLarge) }
    }

    fn normal_form(&mut self, dim: &Dim) -> Result<Poly, Refusal> {
        match dim.node() {
            Node::Int(value) => return Ok(Poly::from(Int::from(value)).within_caps()?),
            Node::Symbol(symbol) => return self.symbol(symbol),
            _ => {}
        }

        // Normalising a small sum again is faster than a look-up.
        let cheap = dim.size() <= SMALL && matches!(dim.node(), Node::Add(_) | Node::Mul(_));
        if !cheap && let Some(poly) = self.normal.get(dim) {
            return Ok(poly.clone());
        }

        let poly = self.normal_node(dim.node())?.within_caps()?;
        let poly = self.finish(poly)?;

        if !cheap {
            self.normal.insert(dim.clone(), poly.clone());
        }

        Ok(poly)
    }

    /// The normal form of a node before the rules for sums.
    pub(crate) fn normal_node(&mut self, node: &Node) -> Result<Poly, Refusal> {
        match node {
            Node::Int(value) => Ok(Int::from(value).into()),
            Node::Symbol(symbol) => self.symbol(symbol),
            Node::Add(list) => {
                if let [a, b] = list.as_slice() {
                    return Ok(self.normal_form(a)?.add(&self.normal_form(b)?));
                }
                let mut terms = Vec::with_capacity(list.len());
                for operand in list {
                    terms.extend(self.normal_form(operand)?.into_terms());
                }
                Ok(Poly::from_terms(terms))
            }
            Node::Mul(list) => {
                let mut product = self.normal_form(&list[0])?;
                for operand in &list[1..] {
                    product = product.mul(&self.normal_form(operand)?)?;
                }
                Ok(product)
            }
            Node::FloorDiv(a, b) => {
                let num = self.normal_form(a)?;
                let den = self.normal_form(b)?;
                self.divide(&num, &den)
            }
            Node::Mod(a, b) => {
                let num = self.normal_form(a)?;
                let den = self.normal_form(b)?;
                let quotient = self.divide(&num, &den)?;
                Ok(num.sub(&quotient.mul(&den)?))
            }
            Node::Min(list) => {
                let list = list.iter().map(|operand| self.normal_form(operand)).collect::<Result<_, _>>()?;
                self.minimum(list)
            }
            Node::Max(list) => {
                let negated = |operand: &Dim| Ok(self.normal_form(operand)?.neg());
                let list = list.iter().map(negated).collect::<Result<_, Refusal>>()?;
                Ok(self.minimum(list)?.neg())
            }
        }
    }

    /// The normal form of `num // den`.
    pub(crate) fn divide(&mut self, num: &Poly, den: &Poly) -> Result<Poly, Refusal> {
        if den.as_const().is_some_and(|value| value.is_one()) {
            return Ok(num.clone());
        }

        let key = (num.clone(), den.clone());
        if let Some(poly) = self.quotients.get(&key) {
            return Ok(poly.clone());
        }

        let (sign, why) = self.divisor_sign(den)?;
        self.record(|| Event::Divisor { den: den.clone(), negative: sign == Sign::Negative, why });
        let quotient = self.nested(|engine| engine.rewrite_or_atom(num, den, sign))?;
        self.quotients.insert(key, quotient.clone());

        Ok(quotient)
    }

    /// Runs a rewrite inside another, up to a depth of [`MAX_NESTING`].
    fn nested(&mut self, rewrite: impl FnOnce(&mut Self) -> Result<Poly, Refusal>) -> Result<Poly, Refusal> {
        if self.nesting == MAX_NESTING {
            return Err(Refusal::TooLarge);
        }
        self.nesting += 1;
        let result = rewrite(self);
        self.nesting -= 1;
        result
    }

    fn rewrite_or_atom(&mut self, num: &Poly, den: &Poly, sign: Sign) -> Result<Poly, Refusal> {
        if let Some(poly) = rules::rewrite_quotient(self, num, den, sign)? {
            return self.finish(poly.within_caps()?);
        }
        let atom = self.quotient_atom(num, den)?;
        Ok(self.quotient_by([num, den], atom, || QuotientLaw::Atom))
    }

    /// `poly` after the rules for sums.
    pub(crate) fn finish(&mut self, poly: Poly) -> Result<Poly, Refusal> {
        if self.has_foldable { rules::rewrite_sum(self, poly) } else { Ok(poly) }
    }

    /// The sign of a divisor, and why it has that sign; a divisor that may be 0 is refused.
    fn divisor_sign(&mut self, den: &Poly) -> Result<(Sign, Why), Refusal> {
        self.reset_budget();
        if let Some(why) = self.why_at_least(den, &Int::ONE) {
            return Ok((Sign::Positive, why));
        }
        let why = self.why_at_least(&den.neg(), &Int::ONE).ok_or(Refusal::Divisor)?;
        Ok((Sign::Negative, why))
    }

    /// `result`, logged as the value of a quotient.
    pub(crate) fn quotient_by(
        &mut self,
        [num, den]: [&Poly; 2],
        result: Poly,
        law: impl FnOnce() -> QuotientLaw,
    ) -> Poly {
        self.record(|| {
            let num = num.clone();
            let den = den.clone();
            let result = result.clone();
            Event::Quotient { law: law().into(), num, den, result }
        });
        result
    }

    /// The normal form of the minimum of `list`, which is not empty.
    pub(crate) fn minimum(&mut self, list: Vec<Poly>) -> Result<Poly, Refusal> {
        if let [_] = list.as_slice() {
            return Ok(list.into_iter().next().unwrap_or_default());
        }

        // One list has one value, even if more facts are known when it occurs again: proofs rely on that.
        if let Some(poly) = self.minima.get(&list) {
            return Ok(poly.clone());
        }

        let smallest = self.nested(|engine| match rules::rewrite_minimum(engine, &list)? {
            Some(poly) => Ok(poly.within_caps()?),
            None => engine.minimum_atom(list.clone()),
        })?;

        self.minima.insert(list, smallest.clone());
        Ok(smallest)
    }

    /// Whether `poly` is never below 0.
    pub(crate) fn is_non_negative(&mut self, poly: &Poly) -> bool {
        self.why_non_negative(poly).is_some()
    }

    /// Why `poly` is never below 0, if that is so.
    pub(crate) fn why_non_negative(&mut self, poly: &Poly) -> Option<Why> {
        self.reset_budget();
        self.why_at_least(poly, &Int::ZERO)
    }
}
