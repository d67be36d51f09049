//! Lower and upper bounds of a [`Dim`].

use num_bigint::BigInt;

use crate::assume::Facts;
use crate::dim::Dim;

/// Between which integers a term lies, both ends included; `None` is unbounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The term is never less.
    pub lo: Option<BigInt>,
    /// The term is never more.
    pub hi: Option<BigInt>,
}

impl Facts {
    /// Bounds of `e` over all values that the facts allow.
    pub fn bounds(&self, e: &Dim) -> Bounds {
        let value = e.as_int().cloned();
        Bounds { lo: value.clone(), hi: value }
    }

    /// The value of `e`, if it has only one.
    pub fn const_value(&self, e: &Dim) -> Option<BigInt> {
        let Bounds { lo, hi } = self.bounds(e);
        lo.filter(|lo| Some(lo) == hi.as_ref())
    }
}
