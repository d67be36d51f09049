//! [`Poly`]: polynomials with exact coefficients over numbered atoms.
//!
//! Terms are sorted by a graded lexicographic order, largest first, so the constant comes last and equal
//! polynomials are equal vectors. Commutativity, associativity, distribution and cancellation are this
//! representation, not rules. Results beyond the caps are refused with [`TooLarge`].

use std::cmp::Ordering;

use smallvec::{SmallVec, smallvec};

use crate::int::Int;
pub(crate) use crate::mono::{AtomId, Mono, TooLarge};

const MAX_TERMS: usize = 192;
const MAX_COEFFICIENT_BITS: u64 = 4096;

/// One coefficient times one monomial.
pub(crate) type Term = (Mono, Int);

/// Most polynomials have at most three terms, which are stored inline without an allocation.
pub(crate) type Terms = SmallVec<[Term; 3]>;

/// A sum of terms with different monomials and no coefficient 0, in the order of [`Mono`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Poly {
    terms: Terms,
}

/// Every atom of `terms`, in rising order.
pub(crate) fn atoms_of(terms: &[Term]) -> SmallVec<[AtomId; 12]> {
    let mut ids: SmallVec<[AtomId; 12]> = SmallVec::new();
    for (mono, _) in terms {
        for id in mono.ids() {
            if let Err(place) = ids.binary_search(&id) {
                ids.insert(place, id);
            }
        }
    }
    ids
}

impl From<Int> for Poly {
    fn from(value: Int) -> Self {
        Poly::term(Mono::UNIT, value)
    }
}

impl From<i64> for Poly {
    fn from(value: i64) -> Self {
        Int::from(value).into()
    }
}

impl Poly {
    pub(crate) fn atom(id: AtomId) -> Self {
        Poly::term(Mono::atom(id), Int::ONE)
    }

    pub(crate) fn term(mono: Mono, coef: Int) -> Self {
        if coef.is_zero() { Poly::default() } else { Poly { terms: smallvec![(mono, coef)] } }
    }

    /// A polynomial of `terms`, which are in order and have no coefficient 0.
    pub(crate) fn from_ordered(terms: impl IntoIterator<Item = Term>) -> Self {
        let terms: Terms = terms.into_iter().collect();
        debug_assert!(terms.is_sorted_by(|a, b| a.0 < b.0) && terms.iter().all(|term| !term.1.is_zero()));
        Poly { terms }
    }

    /// A polynomial of `terms` in any order, with repetition.
    pub(crate) fn from_terms(mut terms: Vec<Term>) -> Self {
        terms.sort_by_key(|term| term.0);
        let mut merged = Terms::with_capacity(terms.len());
        for (mono, coef) in terms {
            match merged.last_mut() {
                Some(last) if last.0 == mono => last.1 = &last.1 + &coef,
                _ => merged.push((mono, coef)),
            }
        }
        merged.retain(|term| !term.1.is_zero());
        Poly { terms: merged }
    }

    pub(crate) fn terms(&self) -> &[Term] {
        &self.terms
    }

    pub(crate) fn into_terms(self) -> impl Iterator<Item = Term> {
        self.terms.into_iter()
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }

    /// The largest term in the order.
    pub(crate) fn leading(&self) -> Option<&Term> {
        self.terms.first()
    }

    pub(crate) fn as_const(&self) -> Option<Int> {
        match self.terms.as_slice() {
            [] => Some(Int::ZERO),
            [(mono, coef)] if mono.is_unit() => Some(coef.clone()),
            _ => None,
        }
    }

    /// The only term, if there is just one.
    pub(crate) fn as_term(&self) -> Option<&Term> {
        match self.terms.as_slice() {
            [term] => Some(term),
            _ => None,
        }
    }

    pub(crate) fn constant(&self) -> Int {
        match self.terms.last() {
            Some((mono, coef)) if mono.is_unit() => coef.clone(),
            _ => Int::ZERO,
        }
    }

    /// The terms that are not constant.
    pub(crate) fn varying(&self) -> &[Term] {
        match self.terms.last() {
            Some((mono, _)) if mono.is_unit() => &self.terms[..self.terms.len() - 1],
            _ => &self.terms,
        }
    }

    /// The greatest common divisor of the coefficients of `terms`, 0 if there are none.
    pub(crate) fn content_of(terms: &[Term]) -> Int {
        let mut gcd = Int::ZERO;
        for (_, coef) in terms {
            gcd = gcd.gcd(coef);
            if gcd.is_one() {
                break;
            }
        }
        gcd
    }

    /// Every atom that occurs, in rising order.
    pub(crate) fn atoms(&self) -> SmallVec<[AtomId; 12]> {
        atoms_of(&self.terms)
    }

    pub(crate) fn degree_in(&self, id: AtomId) -> usize {
        self.terms.iter().map(|term| term.0.degree_in(id)).max().unwrap_or(0)
    }

    pub(crate) fn neg(&self) -> Poly {
        Poly { terms: self.terms.iter().map(|(mono, coef)| (*mono, -coef)).collect() }
    }

    /// `self + factor * other`
    pub(crate) fn add_scaled(&self, factor: &Int, other: &Poly) -> Poly {
        if factor.is_zero() {
            return self.clone();
        }

        let mut terms = Terms::new();
        let mut a = self.terms.iter().peekable();
        let mut b = other.terms.iter().peekable();

        loop {
            let order = match (a.peek(), b.peek()) {
                (Some(x), Some(y)) => x.0.cmp(&y.0),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return Poly { terms },
            };
            match order {
                Ordering::Less => terms.extend(a.next().cloned()),
                Ordering::Greater => terms.extend(b.next().map(|(mono, coef)| (*mono, factor * coef))),
                Ordering::Equal => {
                    if let (Some((mono, x)), Some((_, y))) = (a.next(), b.next()) {
                        let sum = x + &(factor * y);
                        if !sum.is_zero() {
                            terms.push((*mono, sum));
                        }
                    }
                }
            }
        }
    }

    pub(crate) fn add(&self, other: &Poly) -> Poly {
        self.add_scaled(&Int::ONE, other)
    }

    pub(crate) fn sub(&self, other: &Poly) -> Poly {
        self.add_scaled(&Int::Small(-1), other)
    }

    pub(crate) fn add_const(&self, value: &Int) -> Poly {
        let mut terms = Terms::from_iter(self.varying().iter().cloned());
        let constant = &self.constant() + value;
        if !constant.is_zero() {
            terms.push((Mono::UNIT, constant));
        }
        Poly { terms }
    }

    pub(crate) fn scale(&self, factor: &Int) -> Poly {
        if factor.is_zero() {
            Poly::default()
        } else {
            Poly { terms: self.terms.iter().map(|(mono, coef)| (*mono, factor * coef)).collect() }
        }
    }

    pub(crate) fn mul_term(&self, (mono, coef): &Term) -> Result<Poly, TooLarge> {
        let mut terms = Terms::with_capacity(self.terms.len());
        for (other, factor) in &self.terms {
            terms.push((other.mul(mono)?, checked(factor * coef)?));
        }
        // Multiplying by one monomial keeps the order.
        Ok(Poly { terms })
    }

    pub(crate) fn mul(&self, other: &Poly) -> Result<Poly, TooLarge> {
        match (self.as_term(), other.as_term()) {
            (_, Some(term)) => return self.mul_term(term),
            (Some(term), _) => return other.mul_term(term),
            _ => {}
        }

        if self.terms.len() * other.terms.len() > MAX_TERMS {
            return Err(TooLarge);
        }

        let mut terms = Vec::with_capacity(self.terms.len() * other.terms.len());
        for (a, x) in &self.terms {
            for (b, y) in &other.terms {
                terms.push((a.mul(b)?, checked(x * y)?));
            }
        }

        Ok(Poly::from_terms(terms))
    }

    /// `self / term`, if every term is divisible.
    pub(crate) fn div_term(&self, (mono, coef): &Term) -> Option<Poly> {
        let divide = |(a, x): &Term| Some((a.div(mono)?, x.div_exact(coef)?));
        Some(Poly { terms: self.terms.iter().map(divide).collect::<Option<_>>()? })
    }

    /// `(coefficient, rest)` with `self == coefficient * atom + rest`; `None` if the degree in `atom` is above 1.
    pub(crate) fn split_linear(&self, id: AtomId) -> Option<(Poly, Poly)> {
        let mut coef = Terms::new();
        let mut rest = Terms::new();
        for (mono, factor) in &self.terms {
            match mono.degree_in(id) {
                0 => rest.push((*mono, factor.clone())),
                1 => coef.push((mono.without(id), factor.clone())),
                _ => return None,
            }
        }
        Some((Poly { terms: coef }, Poly { terms: rest }))
    }

    /// `self` with `value` in place of the atom.
    pub(crate) fn replace(&self, id: AtomId, value: &Poly) -> Result<Poly, TooLarge> {
        let mut sum =
            Poly { terms: self.terms.iter().filter(|term| term.0.degree_in(id) == 0).cloned().collect() };
        for (mono, coef) in self.terms.iter() {
            let mut product = Poly::term(mono.without(id), coef.clone());
            for _ in 0..mono.degree_in(id) {
                product = product.mul(value)?;
            }
            if mono.degree_in(id) > 0 {
                sum = sum.add(&product);
            }
            if sum.terms.len() > MAX_TERMS {
                return Err(TooLarge);
            }
        }

        Ok(sum)
    }

    /// The largest term that divides all terms, coefficient above 0; the unit for the polynomial 0.
    pub(crate) fn common_term(&self) -> Term {
        let mut monos = self.terms.iter().map(|term| term.0);
        let mono = monos.next().map_or(Mono::UNIT, |first| monos.fold(first, |gcd, next| gcd.gcd(&next)));
        let content = Poly::content_of(&self.terms);
        (mono, if content.is_zero() { Int::ONE } else { content })
    }

    pub(crate) fn within_caps(self) -> Result<Poly, TooLarge> {
        if self.terms.len() <= MAX_TERMS
            && self.terms.iter().all(|term| term.1.bits() <= MAX_COEFFICIENT_BITS)
        {
            Ok(self)
        } else {
            Err(TooLarge)
        }
    }
}

fn checked(value: Int) -> Result<Int, TooLarge> {
    if value.bits() <= MAX_COEFFICIENT_BITS { Ok(value) } else { Err(TooLarge) }
}
