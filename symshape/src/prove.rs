//! Proofs of relations: yes with a certificate, no with a counterexample, or unknown.
//!
//! ```text
//! prove(a <= b):
//!   1. normalise both; b - a never below 0 by `bounds`?                     yes
//!   2. evaluate at the corners and some random points; one fails?           no
//!   3. a minimum in b - a: prove it with each operand as the smallest       yes
//!   4. few enough points: evaluate at all of them                           yes or no
//!   otherwise                                                               unknown
//! ```
//! Every other relation is a variation: `a == b` is two inequalities or equal normal forms, `d` divides `e` when the
//! remainder is 0.

use std::collections::BTreeMap;

use num_bigint::BigInt;

use crate::assume::{Comparison, Facts, Relation};
use crate::dim::{Dim, Symbol};
use crate::engine::atoms::Engine;
use crate::engine::proof::{Argument, CaseSplit, Proof, Steps};
use crate::int::Int;
use crate::sample::{Bytecode, Domain, compare};

/// Values of symbols, allowed by the facts, for which a relation does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample {
    /// The value of every symbol that matters.
    pub values: BTreeMap<Symbol, BigInt>,
}

/// The answer to whether a relation holds.
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

/// An answer without its proof. Facts keep it, and proofs hold facts.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// Normal forms and bounds show it.
    Derived,
    ByCases,
    Exhausted,
    No(Counterexample),
    Unknown,
}

impl Verdict {
    fn of(answer: &Answer) -> Verdict {
        match answer {
            Answer::Yes(proof) => match &*proof.0 {
                Argument::Derivation { .. } => Verdict::Derived,
                Argument::Cases { .. } => Verdict::ByCases,
                Argument::Exhaustive { .. } => Verdict::Exhausted,
            },
            Answer::No(counterexample) => Verdict::No(counterexample.clone()),
            Answer::Unknown => Verdict::Unknown,
        }
    }
}

/// Points to try before the more expensive strategies.
const TRIES: u64 = 48;

/// The maximum depth of nested case splits on the operands of a minimum.
const MAX_CASES: u32 = 3;

/// The maximum number of operands of a minimum that is split into cases.
const MAX_BRANCHES: usize = 4;

/// The maximum number of evaluated operations when all points are tried.
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

        let mut worked_out = None;
        let verdict = self.answer(
            |answers| &answers.verdicts,
            || relation.clone(),
            || {
                let answer = self.work_out(relation);
                let verdict = Verdict::of(&answer);
                worked_out = Some(answer);
                verdict
            },
        );
        worked_out.unwrap_or_else(|| self.again(relation, verdict))
    }

    fn work_out(&self, relation: &Relation) -> Answer {
        if let Some(proof) = self.derive(relation) {
            return Answer::Yes(proof);
        }

        let trial = Trial::new(self, relation);
        if let Some(counterexample) = trial.counterexample() {
            return Answer::No(counterexample);
        }

        match self.derive_by_cases(relation, MAX_CASES) {
            Some(proof) => Answer::Yes(proof),
            None => trial.exhaust(self, relation),
        }
    }

    /// The answer with this verdict, which was given before.
    fn again(&self, relation: &Relation, verdict: Verdict) -> Answer {
        let proof = match verdict {
            Verdict::Derived => Some(self.derivation(relation)),
            Verdict::ByCases => self.derive_by_cases(relation, MAX_CASES),
            Verdict::Exhausted => {
                let argument = Argument::Exhaustive { facts: self.clone(), relation: relation.clone() };
                Some(Proof::new(argument))
            }
            Verdict::No(counterexample) => return Answer::No(counterexample),
            Verdict::Unknown => None,
        };
        proof.map_or(Answer::Unknown, Answer::Yes)
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
        let derive_negation = || {
            let Relation { comparison, a, b } = relation;
            let negation = match comparison {
                Comparison::Eq => Relation::ne(a, b),
                Comparison::Ne => Relation::eq(a, b),
                Comparison::Lt => Relation::le(b, a),
                Comparison::Le => Relation::lt(b, a),
                Comparison::Divides => Relation::ne(b.modulo(a), 0),
            };
            self.derive(&negation).is_some()
        };
        self.answer(|answers| &answers.refuted, || relation.clone(), derive_negation)
    }

    /// Whether normal forms and bounds alone show `relation`, in microseconds.
    pub(crate) fn derives(&self, relation: &Relation) -> bool {
        self.derive(relation).is_some()
    }

    /// Proves `relation` by normal forms and bounds.
    fn derive(&self, relation: &Relation) -> Option<Proof> {
        Engine::new(self).goal(relation).ok()??;
        Some(self.derivation(relation))
    }

    /// The proof of a relation that normal forms and bounds show.
    fn derivation(&self, relation: &Relation) -> Proof {
        let facts = self.clone();
        let relation = relation.clone();
        Proof::new(Argument::Derivation { facts, relation, steps: Steps::default() })
    }

    /// Proves `relation` once for each sign of a divisor, or once for each operand of a minimum as the smallest.
    fn derive_by_cases(&self, relation: &Relation, depth: u32) -> Option<Proof> {
        let split = self.sign_split(relation).or_else(|| self.minimum_split(relation))?;
        let branch = |case: usize| {
            let scope = self.with_case(&split, case);
            let deeper = || scope.derive_by_cases(relation, depth - 1);
            scope.derive(relation).or_else(|| if depth > 1 { deeper() } else { None })
        };
        let branches = (0..split.cases()).map(branch).collect::<Option<Vec<Proof>>>()?;
        let facts = self.clone();
        let relation = relation.clone();
        Some(Proof::new(Argument::Cases { facts, relation, split, branches }))
    }

    fn minimum_split(&self, relation: &Relation) -> Option<CaseSplit> {
        let mut engine = Engine::new(self);
        let poly = engine.difference(relation).ok()?;
        let list = engine.first_minimum(&poly).filter(|list| list.len() <= MAX_BRANCHES)?;
        Some(CaseSplit::Smallest(list.iter().map(|operand| engine.render(operand)).collect()))
    }

    /// A symbol of `relation` that was assumed to differ from 0 and may be on both sides of it.
    fn sign_split(&self, relation: &Relation) -> Option<CaseSplit> {
        self.assumptions().iter().find_map(|assumption| {
            let symbol = assumption.relation.nonzero_symbol()?;
            let occurs = relation.a.contains(symbol) || relation.b.contains(symbol);
            let mut engine = Engine::new(self);
            let poly = engine.symbol(symbol).ok()?;
            let open = !engine.is_non_negative(&poly) && !engine.is_non_negative(&poly.neg());
            (occurs && open).then(|| CaseSplit::Sign(symbol.clone()))
        })
    }

    /// These facts and one case of a split.
    pub(crate) fn with_case(&self, split: &CaseSplit, case: usize) -> Facts {
        let mut scope = self.clone();
        match split {
            CaseSplit::Smallest(operands) => {
                for other in (0..operands.len()).filter(|&other| other != case) {
                    scope.add_case(Relation::le(&operands[case], &operands[other]));
                }
            }
            CaseSplit::Sign(symbol) if case == 0 => scope.add_case(Relation::le(1, symbol)),
            CaseSplit::Sign(symbol) => scope.add_case(Relation::le(symbol, -1)),
        }
        scope
    }
}

/// Both sides of a relation, ready to be evaluated at points.
struct Trial {
    domain: Domain,
    comparison: Comparison,
    a: Bytecode,
    b: Bytecode,
}

impl Trial {
    fn new(facts: &Facts, relation: &Relation) -> Self {
        let domain = Domain::new(facts, &[&relation.a, &relation.b]);
        let a = domain.compile(&relation.a);
        let b = domain.compile(&relation.b);
        Trial { domain, comparison: relation.comparison, a, b }
    }

    /// Whether the relation holds at `point`; `None` where a side has no value.
    fn holds(&self, point: &[Int], stack: &mut Vec<Int>) -> Option<bool> {
        let a = self.a.run(point, stack)?;
        let b = self.b.run(point, stack)?;
        compare(self.comparison, &a, &b)
    }

    fn counterexample(&self) -> Option<Counterexample> {
        let mut stack = Vec::new();
        let points = (0..TRIES).filter_map(|seed| self.domain.point(seed));
        let failure = points.into_iter().find(|point| self.holds(point, &mut stack) == Some(false));
        failure.map(|point| self.name(&point))
    }

    fn name(&self, point: &[Int]) -> Counterexample {
        Counterexample { values: self.domain.named(point).into_iter().collect() }
    }

    /// Evaluates at every point, if they are few.
    fn exhaust(&self, facts: &Facts, relation: &Relation) -> Answer {
        let mut stack = Vec::new();
        let mut failure = None;

        let limit = EXHAUSTIVE / (self.a.len() + self.b.len()).max(1);
        let complete = self.domain.for_each(limit, &mut |point| {
            let holds = self.holds(point, &mut stack);
            if holds == Some(false) {
                failure = Some(point.to_vec());
            }
            holds == Some(true)
        });

        match failure {
            Some(point) => Answer::No(self.name(&point)),
            None if complete => {
                let facts = facts.clone();
                let relation = relation.clone();
                Answer::Yes(Proof::new(Argument::Exhaustive { facts, relation }))
            }
            None => Answer::Unknown,
        }
    }
}
