//! The checker of proofs: small, slow, and independent of the engine.
//!
//! It replays the log of a derivation in order. A range must follow from the declaration or from the decisions
//! logged with it; a side must be an inequality that the facts give; a divisor must be above 0; a quotient or
//! minimum must follow, by the law that was named, from entries before it. Then it expands both sides of the relation
//! with nothing but those entries and its own polynomials, and computes the bound that the goal needs. It never
//! searches: every step names the steps that it rests on.

mod bound;
mod expand;
mod laws;
mod points;
mod sum;
#[cfg(test)]
mod tests;

use std::fmt;

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{One, Signed, Zero};

use crate::assume::{Comparison, Facts, Relation};
use crate::dim::Symbol;
use crate::engine::atoms::{Atom, AtomKind, Engine};
use crate::engine::bounds::{Interval, Why};
use crate::engine::proof::{Argument, CaseSplit, Derivation, Event, Given, Goal, Proof};
use crate::int::Int;
use crate::poly::{AtomId, Poly};
use sum::Sum;

/// An error in a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw(String);

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Flaw {}

type Checked<T = ()> = Result<T, Flaw>;

fn flaw<T>(message: impl Into<String>) -> Checked<T> {
    Err(Flaw(message.into()))
}

fn ensure(holds: bool, message: &str) -> Checked {
    if holds { Ok(()) } else { flaw(message) }
}

impl Proof {
    /// Replays the proof.
    ///
    /// # Errors
    /// The first step that does not follow.
    pub fn check(&self) -> Result<(), Flaw> {
        match &*self.0 {
            Argument::Derivation { facts, relation, steps } => match steps.derive(facts, relation) {
                Some(Derivation { engine, goal }) => Replay::new(engine).run(engine, relation, goal),
                None => flaw("the derivation cannot be found again"),
            },
            Argument::Exhaustive { facts, relation } => points::check(facts, relation),
            Argument::Cases { facts, relation, split, branches } => {
                ensure(split.cases() == branches.len() && !branches.is_empty(), "a case is missing")?;
                if let CaseSplit::Sign(symbol) = split {
                    let mut known = facts.assumptions().iter().map(|known| known.relation.nonzero_symbol());
                    ensure(known.any(|known| known == Some(symbol)), "a symbol may be 0")?;
                }

                for (case, branch) in branches.iter().enumerate() {
                    let scope = facts.with_case(split, case);
                    ensure(branch.facts().same_as(&scope), "a case assumes something else")?;
                    ensure(branch.relation() == relation, "a case proves something else")?;
                    branch.check()?;
                }

                Ok(())
            }
        }
    }
}

/// The state of a replay: everything checked so far.
struct Replay<'e> {
    facts: &'e Facts,
    /// The atoms as the engine left them: only their kinds and reasons are read.
    atoms: &'e [Box<Atom>],
    ranges: Vec<Interval>,
    /// Lower and upper sides by atom: `(scale, bound)`.
    sides: Vec<[Vec<(Sum, Sum)>; 2]>,
    /// Terms that are at least 1.
    divisors: Vec<Sum>,
    /// Numerator, divisor (both reduced) and value.
    quotients: Vec<[Sum; 3]>,
    minima: Vec<(Vec<Sum>, Sum)>,
}

impl<'e> Replay<'e> {
    fn new(engine: &'e Engine) -> Self {
        let ranges = Vec::new();
        let sides = Vec::new();
        let divisors = Vec::new();
        let quotients = Vec::new();
        let minima = Vec::new();
        Replay { facts: &engine.facts, atoms: &engine.atoms, ranges, sides, divisors, quotients, minima }
    }

    fn run(mut self, engine: &Engine, relation: &Relation, goal: &Goal) -> Checked {
        for event in &engine.log {
            self.replay(event)?;
            if self.leaves_nothing(event) {
                return Ok(());
            }
        }
        self.check_goal(relation, goal)
    }

    /// Whether the atom of `event` has no value: then the facts contradict each other, as an impossible case does, and
    /// everything follows.
    fn leaves_nothing(&self, event: &Event) -> bool {
        let (Event::Atom { id, .. } | Event::Narrow { id, .. }) = event else { return false };
        let range = &self.ranges[usize::from(*id)];
        matches!((&range.lo, &range.hi), (Some(lo), Some(hi)) if hi < lo)
    }

    fn replay(&mut self, event: &Event) -> Checked {
        match event {
            Event::Atom { id, range } => self.add_atom(*id, range),
            Event::Narrow { id, upper, value, given, why } => self.narrow(*id, *upper, value, given, why),
            Event::Side { id, upper, given } => self.add_side(*id, *upper, given),
            Event::Divisor { den, negative, why } => self.add_divisor(den, *negative, why),
            Event::Quotient { law, num, den, result } => self.add_quotient(law, num, den, result),
            Event::Minimum { law, from, to, result } => self.add_minimum(law, from, to, result),
        }
    }

    fn check_goal(&mut self, relation: &Relation, goal: &Goal) -> Checked {
        let a = self.expand(&relation.a)?;
        let b = self.expand(&relation.b)?;
        let gap = match relation.comparison {
            Comparison::Divides => b.plus(-1, &self.quotient(&b, &a)?.times(&a)),
            _ => b.plus(-1, &a),
        };
        let gap = self.reduce(gap);
        // One side alone may show a half that the engine's difference does not have.
        self.check_gap(relation.comparison, goal, &gap)
            .or_else(|_| self.check_gap(relation.comparison, goal, &self.without_raised_halves(gap)))
    }

    /// Whether the second side of a relation less the first one equals the goal.
    fn check_gap(&self, comparison: Comparison, goal: &Goal, gap: &Sum) -> Checked {
        let strict = i32::from(matches!(comparison, Comparison::Lt | Comparison::Ne));
        match (comparison, goal) {
            (Comparison::Eq | Comparison::Divides, Goal::Zero) => {
                ensure(gap.0.is_empty(), "the sides differ")
            }
            (Comparison::Eq | Comparison::Divides, Goal::Both(above, below)) => {
                self.non_negative(gap, above)?;
                self.non_negative(&gap.neg(), below)
            }
            (Comparison::Le | Comparison::Lt | Comparison::Ne, Goal::AtLeast(why)) => {
                self.non_negative(&gap.plus_int(-strict), why)
            }
            (Comparison::Ne, Goal::Below(why)) => self.non_negative(&gap.neg().plus_int(-1), why),
            (Comparison::Ne, Goal::Residue) => {
                let (content, _) = gap.primitive();
                ensure(
                    !content.is_zero() && !gap.constant().is_multiple_of(&content),
                    "0 is in the residue class",
                )
            }
            _ => flaw("the goal is not of this relation"),
        }
    }

    fn add_atom(&mut self, id: AtomId, range: &Interval) -> Checked {
        ensure(id as usize == self.ranges.len(), "an atom is out of order")?;
        let atom = &self.atoms[id as usize];

        let mut sides = [Vec::new(), Vec::new()];
        match &atom.kind {
            AtomKind::Symbol { symbol, step, offset } => self.check_symbol(symbol, step, offset, range)?,
            AtomKind::Div(num, den) => {
                self.check_divisor(&den.into())?;
                self.check_quotient_range(num, den, range, &atom.reasons)?;
                if den.as_term().is_some() {
                    let num = Sum::from(num);
                    let den = Sum::from(den);
                    sides[0].push((den.clone(), num.plus(-1, &den).plus_int(1)));
                    sides[1].push((den, num));
                }
            }
            AtomKind::Min(list) => {
                self.check_minimum_range(list, range, &atom.reasons)?;
                sides[1] =
                    list.iter().map(|operand| (Sum::from(BigInt::one()), Sum::from(operand))).collect();
            }
        }

        self.ranges.push(range.clone());
        self.sides.push(sides);
        Ok(())
    }

    fn check_symbol(&self, symbol: &Symbol, step: &Int, offset: &Int, range: &Interval) -> Checked {
        let Some(declaration) = self.facts.declaration(symbol) else {
            let free = *range == Interval::default() && step.is_one() && offset.is_zero();
            return ensure(free, "an undeclared symbol has a range");
        };

        let same = step.to_big() == declaration.step && offset.to_big() == declaration.offset;
        ensure(same, "a symbol has another step")?;
        let value = |end: &Int| end.to_big() * &declaration.step + &declaration.offset;
        let low = range.lo.as_ref().is_none_or(|lo| value(lo) - &declaration.step < declaration.lo);

        let high = match (&range.hi, &declaration.hi) {
            (Some(end), Some(hi)) => value(end) + &declaration.step > *hi,
            (end, _) => end.is_none(),
        };

        ensure(low && high, "the range of a symbol is not as declared")
    }

    fn check_quotient_range(&self, num: &Poly, den: &Poly, range: &Interval, why: &[Why; 2]) -> Checked {
        let num = Sum::from(num);
        let den = self.interval(&Sum::from(den));
        let smallest = den.0.unwrap_or_else(BigInt::one).max(BigInt::one());

        let largest = den.1.map(|largest| largest.max(BigInt::one()));
        let divide = |end: &BigInt, by_largest: bool| match (by_largest, &largest) {
            (false, _) => end.div_floor(&smallest),
            (true, Some(largest)) => end.div_floor(largest),
            (true, None) => BigInt::from(if end.is_negative() { -1 } else { 0 }),
        };

        if let Some(lo) = &range.lo {
            let bound = self.lower(&num, &why[0])?;
            ensure(
                lo.to_big() <= divide(&bound, !bound.is_negative()),
                "the smallest quotient is too large",
            )?;
        }

        if let Some(hi) = &range.hi {
            let bound = -self.lower(&num.neg(), &why[1])?;
            ensure(hi.to_big() >= divide(&bound, bound.is_negative()), "the largest quotient is too small")?;
        }

        Ok(())
    }

    fn check_minimum_range(&self, list: &[Poly], range: &Interval, why: &[Why; 2]) -> Checked {
        if let Some(lo) = &range.lo {
            let Why::Each(reasons) = &why[0] else { return flaw("a minimum has no lower bound") };
            ensure(reasons.len() == list.len(), "an operand has no lower bound")?;
            for (operand, why) in list.iter().zip(reasons) {
                ensure(lo.to_big() <= self.lower(&operand.into(), why)?, "an operand may be less")?;
            }
        }

        if let Some(hi) = &range.hi {
            let Why::Operand(idx, why) = &why[1] else { return flaw("a minimum has no upper bound") };
            let operand = list.get(*idx).map(Sum::from).unwrap_or_default();
            ensure(hi.to_big() >= -self.lower(&operand.neg(), why)?, "the operand may be greater")?;
        }

        Ok(())
    }

    /// `high - low - gap` of a given inequality.
    fn given(&self, given: &Given) -> Checked<Sum> {
        let Some((low, high, gap)) = given.inequality(self.facts) else { return flaw("no such fact") };
        Ok(self.expand(&high)?.plus(-1, &self.expand(&low)?).plus_int(-gap))
    }

    fn narrow(&mut self, id: AtomId, upper: bool, value: &Int, given: &Given, why: &Why) -> Checked {
        let Some((factor, rest)) = self.given(given)?.split(id) else { return flaw("a fact is not linear") };
        let constant = factor.constant();
        let is_constant = factor == Sum::from(constant.clone());
        ensure(
            is_constant && constant.is_negative() == upper && !constant.is_zero(),
            "a fact bounds the other end",
        )?;
        let bound = -self.lower(&rest.neg(), why)?;

        let follows = if upper {
            value.to_big() >= bound.div_floor(&-constant)
        } else {
            value.to_big() <= -bound.div_floor(&constant)
        };

        ensure(follows, "a range is too narrow")?;
        let range = &mut self.ranges[id as usize];
        let end = if upper { &mut range.hi } else { &mut range.lo };
        *end = Some(value.clone());

        Ok(())
    }

    fn add_side(&mut self, id: AtomId, upper: bool, given: &Given) -> Checked {
        let atom = &self.atoms[id as usize];
        let (known, list) = if upper {
            (self.sides[id as usize][1].len(), &atom.upper)
        } else {
            (self.sides[id as usize][0].len(), &atom.lower)
        };

        let Some(side) = list.get(known) else { return flaw("a side is missing") };
        let scale = Sum::from(&side.scale);
        let bound = Sum::from(&side.poly);
        self.non_negative(&scale.plus_int(-1), &Why::Interval)?;

        let claim = scale.times(&Sum::atom(id)).plus(-1, &bound);
        let claim = if upper { claim.neg() } else { claim };
        ensure(self.same(&self.given(given)?, &claim), "a side is not the fact it names")?;
        self.sides[id as usize][usize::from(upper)].push((scale, bound));

        Ok(())
    }
}
