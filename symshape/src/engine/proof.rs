//! [`Proof`]: why a relation holds, in a form that can be checked.
//!
//! There are three kinds of proof:
//!
//! - A *derivation* is the log of one engine (every atom, range, side and rewrite, in order) and the decisions that
//!   bound the difference of the two sides. It is recorded lazily, on first use.
//! - *Cases* are proofs of the same relation under additional facts: one for each operand of a minimum as the smallest,
//!   or one for each sign of a symbol that is not 0.
//! - *Exhaustive* means that the domain is small and that the relation holds at every point.
//!
//! [`Proof::check`] replays any of them with the module `check`, which shares no arithmetic, rules or search with the
//! engine.

use std::fmt;
use std::sync::{Arc, OnceLock};

use num_bigint::BigInt;

use crate::assume::{Comparison, Facts, Relation};
use crate::dim::{Dim, Symbol};
use crate::engine::atoms::Engine;
use crate::engine::bounds::{Interval, Why};
use crate::int::Int;
use crate::poly::{AtomId, Poly, Term};

/// Why a relation holds.
///
/// ```
/// use symshape::{Answer, Declaration, Dim, Facts, Symbol};
/// let mut facts = Facts::new();
/// facts.declare(&Symbol::new("N"), Declaration::at_least(1))?;
/// let n = Dim::symbol("N");
/// let Answer::Yes(proof) = facts.prove_le(&n, &(n.ceil_div(8) * 8)) else { panic!("this holds") };
/// proof.check().unwrap();
/// # Ok::<(), symshape::FactError>(())
/// ```
#[derive(Clone)]
pub struct Proof(pub(crate) Arc<Argument>);

/// The content of a proof.
pub(crate) enum Argument {
    Derivation { facts: Facts, relation: Relation, steps: Steps },
    Cases { facts: Facts, relation: Relation, split: CaseSplit, branches: Vec<Proof> },
    Exhaustive { facts: Facts, relation: Relation },
}

/// Cases of which at least one holds.
#[derive(Clone, Debug)]
pub(crate) enum CaseSplit {
    /// One of these is the smallest.
    Smallest(Vec<Dim>),
    /// A symbol that is not 0 is above or below.
    Sign(Symbol),
}

impl CaseSplit {
    pub(crate) fn cases(&self) -> usize {
        match self {
            CaseSplit::Smallest(operands) => operands.len(),
            CaseSplit::Sign(_) => 2,
        }
    }
}

/// The steps of a derivation, recorded on first use: the engine runs once more and keeps its log. It takes the same
/// steps each time, because its answers depend on the input alone.
#[derive(Default)]
pub(crate) struct Steps(OnceLock<Option<Derivation>>);

/// One run of an engine, with its log, and how its end shows the relation.
pub(crate) struct Derivation {
    pub(crate) engine: Box<Engine>,
    pub(crate) goal: Goal,
}

impl Steps {
    pub(crate) fn derive(&self, facts: &Facts, relation: &Relation) -> Option<&Derivation> {
        let run = || {
            let mut engine = Box::new(Engine::recording(facts));
            let goal = engine.goal(relation).ok()??;
            Some(Derivation { engine, goal })
        };
        self.0.get_or_init(run).as_ref()
    }
}

/// How the difference `right - left` (or the remainder) shows the relation.
#[derive(Clone, Debug)]
pub(crate) enum Goal {
    /// It is the polynomial 0.
    Zero,
    /// It is neither below nor above 0.
    Both(Why, Why),
    /// It is at least 0, or 1 for a strict relation.
    AtLeast(Why),
    /// It is at most -1.
    Below(Why),
    /// It is not a multiple of the content of its varying terms.
    Residue,
}

/// One entry of an engine's log.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// An atom was made; its range at that time.
    Atom { id: AtomId, range: Interval },
    /// One end of a range moved: `why` bounds the other terms of the given inequality.
    Narrow { id: AtomId, upper: bool, value: Int, given: Given, why: Why },
    /// A given inequality became a side of an atom.
    Side { id: AtomId, upper: bool, given: Given },
    /// A divisor is at least 1, or at most -1.
    Divisor { den: Poly, negative: bool, why: Why },
    /// `num // den == result`, by a law.
    Quotient { law: Box<QuotientLaw>, num: Poly, den: Poly, result: Poly },
    /// The minimum of `from` is `result`, by a law that uses the minimum of `to`.
    Minimum { law: MinimumLaw, from: Vec<Poly>, to: Vec<Poly>, result: Poly },
}

/// The law that gives `num // den`. The quotients that a law refers to come earlier in the log.
#[derive(Clone, Debug)]
pub(crate) enum QuotientLaw {
    /// It is a new atom.
    Atom,
    /// `num - den*result` is not below 0, nor above `den - 1`.
    Remainder([Why; 2]),
    /// It is `(-num) // (-den)`.
    Negate,
    /// It is `-((den - 1 - num) // den)`.
    Flip,
    /// It is `whole + (num - den*whole) // den`.
    Split { whole: Poly },
    /// It is that of a quotient with smaller operands.
    Cancel(Box<Cancelled>),
    /// `num` holds the quotient `id`, `a // m`, once: it is `(a + m*others) // (m*den)`.
    Merge { id: AtomId },
}

/// `num // den` is `kept // rest`: `den == factor*rest`, and `num - factor*kept` is not below 0, nor above
/// `factor - 1`.
#[derive(Clone, Debug)]
pub(crate) struct Cancelled {
    pub(crate) factor: Poly,
    pub(crate) kept: Poly,
    pub(crate) rest: Poly,
    pub(crate) remainder: [Why; 2],
}

/// How two minima relate.
#[derive(Clone, Debug)]
pub(crate) enum MinimumLaw {
    /// `from = scale*to + shift`, operand by operand in some order, with `scale >= 0`.
    Affine { scale: Term, shift: Poly },
    /// Operand `idx` of `from` is a positive multiple of the minimum `id` plus something; `to` has its operands.
    Flatten { idx: usize, id: AtomId },
    /// `to` lacks operand `idx` of `from`, which is never less than operand `other`.
    Drop { idx: usize, other: usize, why: Why },
    /// Operands `q + k` (all negated, if `negated`) with `q = n // divisor` give `n + k*divisor`.
    CommonDivisor { divisor: Poly, negated: bool },
}

/// Where an inequality between two terms comes from.
#[derive(Clone, Debug)]
pub(crate) enum Given {
    /// The relation assumed at this place.
    Assumption(usize),
    /// A symbol is not below this one of its lower bounds.
    Lower(Symbol, usize),
    /// A symbol is not above this one of its upper bounds.
    Upper(Symbol, usize),
    /// A lower bound of a symbol is not above an upper bound of it.
    Room(Symbol, usize, usize),
    /// The smallest value declared for a symbol.
    Min(Symbol),
    /// The largest value declared for a symbol.
    Max(Symbol),
}

impl Given {
    /// `(low, high, gap)` with `high - low >= gap`.
    pub(crate) fn inequality(&self, facts: &Facts) -> Option<(Dim, Dim, BigInt)> {
        let zero = BigInt::ZERO;
        Some(match self {
            Given::Assumption(idx) => {
                let Relation { comparison, a, b } = &facts.assumptions().get(*idx)?.relation;
                let gap = match comparison {
                    Comparison::Le => 0,
                    Comparison::Lt => 1,
                    _ => return None,
                };
                (a.clone(), b.clone(), gap.into())
            }
            Given::Lower(symbol, idx) => (facts.entry(symbol)?.lower.get(*idx)?.clone(), symbol.into(), zero),
            Given::Upper(symbol, idx) => (symbol.into(), facts.entry(symbol)?.upper.get(*idx)?.clone(), zero),
            Given::Room(symbol, lower, upper) => {
                let entry = facts.entry(symbol)?;
                (entry.lower.get(*lower)?.clone(), entry.upper.get(*upper)?.clone(), zero)
            }
            Given::Min(symbol) => (facts.declaration(symbol)?.lo.clone().into(), symbol.into(), zero),
            Given::Max(symbol) => (symbol.into(), facts.declaration(symbol)?.hi.clone()?.into(), zero),
        })
    }
}

impl Proof {
    pub(crate) fn new(argument: Argument) -> Self {
        Proof(Arc::new(argument))
    }

    /// The relation that is proven.
    pub fn relation(&self) -> &Relation {
        match &*self.0 {
            Argument::Derivation { relation, .. }
            | Argument::Cases { relation, .. }
            | Argument::Exhaustive { relation, .. } => relation,
        }
    }

    /// The facts that it is proven under.
    pub fn facts(&self) -> &Facts {
        match &*self.0 {
            Argument::Derivation { facts, .. }
            | Argument::Cases { facts, .. }
            | Argument::Exhaustive { facts, .. } => facts,
        }
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proof({self})")
    }
}

impl fmt::Display for Proof {
    /// The relation and the kind of argument: "`N <= (N + 7)//8*8` by a derivation of 3 steps".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = self.relation();
        match &*self.0 {
            Argument::Derivation { facts, steps, .. } => {
                let count = steps.derive(facts, relation).map_or(0, |steps| steps.engine.log.len() + 1);
                write!(f, "`{relation}` by a derivation of {count} steps")
            }
            Argument::Cases { branches, .. } => write!(f, "`{relation}` by {} cases", branches.len()),
            Argument::Exhaustive { .. } => write!(f, "`{relation}` by evaluation at every point"),
        }
    }
}
