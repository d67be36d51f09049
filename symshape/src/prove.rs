//! Proofs of relations: yes with a certificate, no with a counterexample, or unknown.

use std::collections::BTreeMap;

use num_bigint::BigInt;

use crate::assume::{Facts, Relation};
use crate::dim::{Dim, Symbol};

/// Why a relation holds.
#[derive(Clone, Debug)]
pub struct Proof {}

/// Values of symbols, allowed by the facts, for which a relation does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    /// The value of every symbol that matters.
    pub values: BTreeMap<Symbol, BigInt>,
}

/// What is known of a relation.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It holds for all values that the facts allow.
    Yes(Proof),
    /// It does not hold for some values that the facts allow.
    No(Counterexample),
    /// Neither was shown.
    Unknown,
}

impl Answer {
    /// Whether the relation was proven.
    pub fn is_yes(&self) -> bool {
        matches!(self, Answer::Yes(_))
    }

    /// Whether a counterexample was found.
    pub fn is_no(&self) -> bool {
        matches!(self, Answer::No(_))
    }
}

impl Facts {
    /// Whether `relation` holds.
    pub fn prove(&self, relation: &Relation) -> Answer {
        match relation.a == relation.b && relation.comparison == crate::Comparison::Eq {
            true => Answer::Yes(Proof {}),
            false => Answer::Unknown,
        }
    }

    /// Whether `a == b`.
    pub fn prove_eq(&self, a: &Dim, b: &Dim) -> Answer {
        self.prove(&Relation::eq(a, b))
    }

    /// Whether `a != b`.
    pub fn prove_ne(&self, a: &Dim, b: &Dim) -> Answer {
        self.prove(&Relation::ne(a, b))
    }

    /// Whether `a <= b`.
    pub fn prove_le(&self, a: &Dim, b: &Dim) -> Answer {
        self.prove(&Relation::le(a, b))
    }

    /// Whether `a < b`.
    pub fn prove_lt(&self, a: &Dim, b: &Dim) -> Answer {
        self.prove(&Relation::lt(a, b))
    }

    /// Whether `d` divides `e` without remainder.
    pub fn divides(&self, d: &Dim, e: &Dim) -> Answer {
        self.prove(&Relation::divides(d, e))
    }

    /// Whether `relation` is known to fail for all values that the facts allow.
    pub(crate) fn refutes(&self, _relation: &Relation) -> bool {
        false
    }
}
