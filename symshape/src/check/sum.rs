//! [`Sum`]: the checker's own polynomials, plain and slow.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{One, Zero};

use crate::poly::{AtomId, Poly, Term};

/// Coefficients by product of atoms; none of them is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum(pub(super) BTreeMap<Vec<AtomId>, BigInt>);

impl From<&Poly> for Sum {
    fn from(poly: &Poly) -> Self {
        Sum(poly.terms().iter().map(|(mono, coef)| (mono.ids().to_vec(), coef.to_big())).collect())
    }
}

impl From<&Term> for Sum {
    fn from((mono, coef): &Term) -> Self {
        Sum(BTreeMap::from([(mono.ids().to_vec(), coef.to_big())]))
    }
}

impl From<BigInt> for Sum {
    fn from(value: BigInt) -> Self {
        let mut sum = Sum::default();
        sum.insert(Vec::new(), value);
        sum
    }
}

impl Sum {
    pub(super) fn atom(id: AtomId) -> Self {
        Sum(BTreeMap::from([(vec![id], BigInt::one())]))
    }

    pub(super) fn insert(&mut self, ids: Vec<AtomId>, coef: BigInt) {
        let entry = self.0.entry(ids.clone()).or_default();
        *entry += coef;
        if entry.is_zero() {
            self.0.remove(&ids);
        }
    }

    pub(super) fn plus(&self, factor: i64, other: &Sum) -> Sum {
        let mut sum = self.clone();
        other.0.iter().for_each(|(ids, coef)| sum.insert(ids.clone(), coef * factor));
        sum
    }

    pub(super) fn plus_int(&self, value: impl Into<BigInt>) -> Sum {
        self.plus(1, &Sum::from(value.into()))
    }

    pub(super) fn neg(&self) -> Sum {
        Sum::default().plus(-1, self)
    }

    pub(super) fn times(&self, other: &Sum) -> Sum {
        let mut sum = Sum::default();
        for (a, x) in &self.0 {
            for (b, y) in &other.0 {
                let mut ids = [a.as_slice(), b].concat();
                ids.sort_unstable();
                sum.insert(ids, x * y);
            }
        }
        sum
    }

    /// `(coefficient, rest)` of `atom`; `None` if its degree is above 1.
    pub(super) fn split(&self, atom: AtomId) -> Option<(Sum, Sum)> {
        let mut coefficient = Sum::default();
        let mut rest = Sum::default();
        for (ids, coef) in &self.0 {
            match ids.iter().filter(|&&id| id == atom).count() {
                0 => rest.insert(ids.clone(), coef.clone()),
                1 => coefficient.insert(ids.iter().copied().filter(|&id| id != atom).collect(), coef.clone()),
                _ => return None,
            }
        }
        Some((coefficient, rest))
    }

    pub(super) fn replace(&self, atom: AtomId, value: &Sum) -> Sum {
        let mut sum = Sum::default();
        for (ids, coef) in &self.0 {
            let others = ids.iter().copied().filter(|&id| id != atom).collect();
            let mut product = Sum(BTreeMap::from([(others, coef.clone())]));
            ids.iter().filter(|&&id| id == atom).for_each(|_| product = product.times(value));
            sum = sum.plus(1, &product);
        }
        sum
    }

    /// The quotient by a single term, if every term is a multiple of it.
    pub(super) fn over(&self, term: &Sum) -> Option<Sum> {
        let (divisor, factor) = term.0.iter().next()?;
        let mut quotient = Sum::default();
        for (ids, coef) in &self.0 {
            let mut left = ids.clone();
            for id in divisor {
                left.remove(left.iter().position(|other| other == id)?);
            }
            let (whole, rest) = coef.div_mod_floor(factor);
            if !rest.is_zero() {
                return None;
            }
            quotient.insert(left, whole);
        }

        Some(quotient)
    }

    pub(super) fn constant(&self) -> BigInt {
        self.0.get(&Vec::new()).cloned().unwrap_or_default()
    }

    /// `(content, primitive)` with `self == content*primitive + constant`; the content is 0 for a constant.
    pub(super) fn primitive(&self) -> (BigInt, Sum) {
        let varying = self.plus_int(-self.constant());
        let content = varying.0.values().fold(BigInt::ZERO, |gcd, coef| gcd.gcd(coef));
        let divide = |(ids, coef): (&Vec<AtomId>, &BigInt)| (ids.clone(), coef / &content);
        if content.is_zero() {
            (content, Sum::default())
        } else {
            (content.clone(), Sum(varying.0.iter().map(divide).collect()))
        }
    }
}
