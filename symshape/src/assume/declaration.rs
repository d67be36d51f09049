//! [`Declaration`]: the integers that a symbol can be, with constant ends.

use std::fmt;
use std::sync::Arc;

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{One, Signed, Zero};

/// Which integers a symbol can be: a range, a residue class, or a list of values.
///
/// ```
/// use symshape::Declaration;
/// let d = Declaration::range(1, 4096).step(8, 0);
/// assert_eq!((d.lo, d.hi), (8.into(), Some(4096.into())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Declaration {
    /// The smallest value.
    pub lo: BigInt,
    /// The largest value, if there is one.
    pub hi: Option<BigInt>,
    /// Values are `offset` modulo `step`; at least 1.
    pub step: BigInt,
    /// The residue of every value modulo `step`.
    pub offset: BigInt,
    /// All values in rising order, where they were listed.
    pub values: Option<Vec<BigInt>>,
    /// The origin of the declaration, for error messages.
    pub origin: Option<Arc<str>>,
}

impl Declaration {
    /// `lo <= symbol <= hi`. An empty range is refused by [`crate::Facts::declare`].
    pub fn range(lo: impl Into<BigInt>, hi: impl Into<BigInt>) -> Self {
        Declaration { hi: Some(hi.into()), ..Declaration::at_least(lo) }
    }

    /// `lo <= symbol`, without an upper bound.
    pub fn at_least(lo: impl Into<BigInt>) -> Self {
        let step = BigInt::one();
        let offset = BigInt::ZERO;
        Declaration { lo: lo.into(), hi: None, step, offset, values: None, origin: None }
    }

    /// One of `values`. An empty list is refused by [`crate::Facts::declare`].
    pub fn values<T: Into<BigInt>>(values: impl IntoIterator<Item = T>) -> Self {
        let mut values: Vec<BigInt> = values.into_iter().map(Into::into).collect();
        values.sort();
        values.dedup();
        let lo = values.first().cloned().unwrap_or_else(BigInt::one);
        let hi = values.last().cloned().unwrap_or(BigInt::ZERO);
        let gaps = values.iter().fold(BigInt::ZERO, |gcd, value| gcd.gcd(&(value - &lo)));

        let mut declaration = Declaration::range(lo.clone(), hi);
        if !gaps.is_zero() {
            declaration = declaration.step(gaps, lo);
        }

        declaration.values = Some(values);
        declaration
    }

    /// Only values that are `offset` modulo `step`; a step below 1 is refused by [`crate::Facts::declare`].
    #[must_use]
    pub fn step(mut self, step: impl Into<BigInt>, offset: impl Into<BigInt>) -> Self {
        self.step = step.into();
        self.offset = offset.into();
        if self.step.is_positive() {
            self.offset = self.offset.mod_floor(&self.step);
            self.round_to_step();
        }
        self
    }

    /// Sets the origin of the declaration, such as "input `x`, axis 0".
    #[must_use]
    pub fn origin(mut self, origin: &str) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// Whether `value` is allowed.
    pub fn contains(&self, value: &BigInt) -> bool {
        value >= &self.lo
            && self.hi.as_ref().is_none_or(|hi| value <= hi)
            && (value - &self.offset).mod_floor(&self.step).is_zero()
            && self.values.as_ref().is_none_or(|values| values.binary_search(value).is_ok())
    }

    /// Moves both ends inwards to the nearest value of the residue class.
    fn round_to_step(&mut self) {
        self.lo = &self.lo + (&self.offset - &self.lo).mod_floor(&self.step);
        if let Some(hi) = &self.hi {
            self.hi = Some(hi - (hi - &self.offset).mod_floor(&self.step));
        }
        if let Some(values) = &mut self.values {
            values.retain(|value| (value - &self.offset).mod_floor(&self.step).is_zero());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hi.as_ref().is_some_and(|hi| hi < &self.lo) || self.values.as_ref().is_some_and(Vec::is_empty)
    }

    /// The values that satisfy both; `None` if there are none.
    pub(super) fn meet(&self, other: &Declaration) -> Option<Declaration> {
        let gcd = self.step.extended_gcd(&other.step);
        let (quotient, remainder) = (&other.offset - &self.offset).div_mod_floor(&gcd.gcd);
        if !remainder.is_zero() {
            return None;
        }

        let step = self.step.lcm(&other.step);
        let offset = &self.offset + &self.step * gcd.x * quotient;
        let mut both = Declaration::at_least((&self.lo).max(&other.lo).clone());
        both.hi = self.hi.iter().chain(&other.hi).min().cloned();
        both.origin = other.origin.clone().or_else(|| self.origin.clone());
        both.values = self.values.clone().or_else(|| other.values.clone());

        if let Some(values) = &mut both.values {
            values.retain(|value| self.contains(value) && other.contains(value));
            both.lo = values.first()?.clone();
            both.hi = values.last().cloned();
        }

        both = both.step(step, offset);
        (!both.is_empty()).then_some(both)
    }
}

impl fmt::Display for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.values, &self.hi) {
            (Some(values), _) => {
                let list: Vec<String> = values.iter().map(BigInt::to_string).collect();
                write!(f, "{{{}}}", list.join(", "))?;
            }
            (None, Some(hi)) => write!(f, "{}..={hi}", self.lo)?,
            (None, None) => write!(f, "{}..", self.lo)?,
        }

        if !self.step.is_one() && self.values.is_none() {
            write!(f, ", {} modulo {}", self.offset, self.step)?;
        }

        match &self.origin {
            Some(origin) => write!(f, " ({origin})"),
            None => Ok(()),
        }
    }
}
