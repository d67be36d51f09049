//! Proofs of relations: yes with a certificate, no with a counterexample, or unknown.
//!
//! ```text
//! prove(a <= b):
//!   1. normalise both; b - a never below 0 by bounds.rs?                    yes
//!   2. evaluate at the corners and some random points; one fails?           no
//!   3. a minimum in b - a: prove it once for each operand being the least   yes
//!   4. few enough points: evaluate at all of them                           yes or no
//!   otherwise                                                               unknown
//! ```
//! Every other relation is a variation: `a == b` is two inequalities or equal normal forms, `d` divides `e` when the
//! remainder is 0.

use std::collections::BTreeMap;

use num_bigint::BigInt;

use crate::assume::{Comparison, Facts, Relation};
use crate::atoms::{Engine, Kind};
use crate::dim::{Dim, Symbol};
use crate::int::Int;
use crate::poly::{AtomId, Poly};
use crate::sample::{Domain, compare};

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

/// Points to try before the harder ways to a proof.
const TRIES: u64 = 48;

/// How often a proof may branch on the operands of a minimum, one branch inside the other.
const MAX_CASES: u32 = 3;

/// The most evaluated operations when all points are tried.
const EXHAUSTIVE: usize = 60_000;

impl Facts {
    /// Whether `relation` holds.
    ///
    /// ```
    /// use symshape::{Declaration, Dim, Facts, Relation, Symbol};
    /// let mut facts = Facts::new();
    /// facts.declare(&Symbol::new("N"), Declaration::at_least(1))?;
    /// let n = Dim::symbol("N");
    /// assert!(facts.prove(&Relation::le(&n, n.ceil_div(8) * 8)).is_yes());
    /// assert!(facts.prove(&Relation::eq(&n, n.floor_div(8) * 8)).is_no());
    /// # Ok::<(), symshape::FactError>(())
    /// ```
    pub fn prove(&self, relation: &Relation) -> Answer {
        if !relation.a.is_tractable() || !relation.b.is_tractable() {
            return Answer::Unknown;
        }
        if self.holds_by_normal_form(relation) {
            return Answer::Yes(Proof {});
        }
        let domain = Domain::new(self, &[&relation.a, &relation.b]);
        let (a, b) = (domain.compile(&relation.a), domain.compile(&relation.b));
        let mut stack = Vec::new();
        let mut fails = |point: &[Int]| {
            let values = (a.run(point, &mut stack), b.run(point, &mut stack));
            matches!(values, (Some(a), Some(b)) if compare(relation.comparison, &a, &b) == Some(false))
        };
        let no =
            |point: &[Int]| Answer::No(Counterexample { values: domain.named(point).into_iter().collect() });
        if let Some(point) = (0..TRIES).filter_map(|seed| domain.point(seed)).find(|point| fails(point)) {
            return no(&point);
        }
        if self.holds_by_cases(relation, MAX_CASES) {
            return Answer::Yes(Proof {});
        }
        let mut failure = None;
        let mut defined = true;
        let limit = EXHAUSTIVE / (a.len() + b.len()).max(1);
        let complete = domain.for_each(limit, &mut |point| {
            let values = (a.run(point, &mut stack), b.run(point, &mut stack));
            let holds = match values {
                (Some(a), Some(b)) => compare(relation.comparison, &a, &b),
                _ => None,
            };
            defined &= holds.is_some();
            if holds == Some(false) {
                failure = Some(point.to_vec());
            }
            holds == Some(true)
        });
        match failure {
            Some(point) => no(&point),
            None if complete && defined => Answer::Yes(Proof {}),
            None => Answer::Unknown,
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
    pub(crate) fn refutes(&self, relation: &Relation) -> bool {
        let Relation { comparison, a, b } = relation;
        let negation = match comparison {
            Comparison::Eq => Relation::ne(a, b),
            Comparison::Ne => Relation::eq(a, b),
            Comparison::Lt => Relation::le(b, a),
            Comparison::Le => Relation::lt(b, a),
            Comparison::Divides => Relation::ne(b.modulo(a), 0),
        };
        self.holds_by_normal_form(&negation)
    }

    fn holds_by_normal_form(&self, relation: &Relation) -> bool {
        let mut engine = Engine::new(self);
        engine.holds(relation).unwrap_or(false)
    }

    /// Proves `relation` once for each operand of a minimum being the least.
    fn holds_by_cases(&self, relation: &Relation, depth: u32) -> bool {
        let mut engine = Engine::new(self);
        let Ok(poly) = engine.difference(relation) else { return false };
        let Some(list) = engine.first_minimum(&poly) else { return false };
        let operands: Vec<Dim> = list.iter().map(|operand| engine.render(operand)).collect();
        (0..operands.len()).all(|least| {
            let mut scope = self.clone();
            for other in (0..operands.len()).filter(|&other| other != least) {
                scope.add_assumption(Relation::le(&operands[least], &operands[other]), "case");
            }
            scope.holds_by_normal_form(relation) || (depth > 1 && scope.holds_by_cases(relation, depth - 1))
        })
    }
}

impl Engine {
    /// `b - a`, and the remainder where the relation is divisibility.
    fn difference(&mut self, relation: &Relation) -> Result<Poly, crate::atoms::Refusal> {
        let (a, b) = (self.normalize(&relation.a)?, self.normalize(&relation.b)?);
        match relation.comparison {
            Comparison::Divides => {
                let quotient = self.divide(&b, &a)?;
                self.finish(b.sub(&quotient.mul(&a)?))
            }
            _ => self.finish(b.sub(&a)),
        }
    }

    /// Whether normal forms and bounds show the relation.
    fn holds(&mut self, relation: &Relation) -> Result<bool, crate::atoms::Refusal> {
        let gap = self.difference(relation)?;
        let minus_one = Int::from(-1);
        Ok(match relation.comparison {
            Comparison::Eq | Comparison::Divides => {
                gap.is_zero() || (self.is_non_negative(&gap) && self.is_non_negative(&gap.neg()))
            }
            Comparison::Le => self.is_non_negative(&gap),
            Comparison::Lt => self.is_non_negative(&gap.add_const(&minus_one)),
            Comparison::Ne => {
                let content = Poly::content_of(gap.varying());
                (!content.is_zero() && !gap.constant().is_multiple_of(&content))
                    || self.is_non_negative(&gap.add_const(&minus_one))
                    || self.is_non_negative(&gap.neg().add_const(&minus_one))
            }
        })
    }

    /// The operands of a minimum on which `poly` depends, an innermost one first.
    fn first_minimum(&self, poly: &Poly) -> Option<Vec<Poly>> {
        let (mut seen, mut stack) = (vec![false; self.atoms.len()], poly.atoms());
        let mut found: Option<AtomId> = None;
        while let Some(id) = stack.pop() {
            if std::mem::replace(&mut seen[id as usize], true) {
                continue;
            }
            match &self.atom(id).kind {
                Kind::Symbol { .. } => {}
                Kind::Div(num, den) => stack.extend(num.atoms().into_iter().chain(den.atoms())),
                Kind::Min(list) => {
                    stack.extend(list.iter().flat_map(Poly::atoms));
                    found = Some(found.map_or(id, |old| old.min(id)));
                }
            }
        }
        match &self.atom(found?).kind {
            Kind::Min(list) => Some(list.clone()),
            _ => None,
        }
    }
}
