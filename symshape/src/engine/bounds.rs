//! Lower and upper bounds of a [`Dim`].
//!
//! A bound is the better of two methods. The first is interval arithmetic on the polynomial, from the constant range of
//! each atom. The second is elimination, which handles atoms that occur in several terms: take the atom `x` that comes
//! last in the order of elimination, write the polynomial as `A*x + B`, and replace `x` by one of its bounds.
//!
//! ```text
//! lower(p):
//!   divide out the content: p = g*p' + c, so that bounds are rounded to the residue class of p
//!   best = interval bound of p
//!   A*x + B = p, x the last atom
//!   A >= 0:  for each lower side s*x >= o:  best = max(best, ceil(lower(s*B + A*o) / s))
//!   A <= 0:  the same with upper sides
//!   neither: p is linear in x, so its minimum is at one of the ends: min of both
//!   x a minimum and not A <= 0: x is one of its operands: min over the operands
//! ```
//! A caller that only needs a certain bound passes it as the aim: the search ends once it is reached or out of reach.
//!
//! Sides mention only atoms that come earlier, so this ends; a fixed number of steps bounds the branching.
//! Each bound comes with its [`Why`]: the decisions taken, from which `check` computes the bound again.

use std::sync::Arc;

use num_bigint::BigInt;
use smallvec::SmallVec;

use crate::answers::{Answers, Effort};
use crate::assume::{Entry, Facts};
use crate::dim::Dim;
use crate::engine::atoms::{AtomKind, Engine, Side};
use crate::int::Int;
use crate::poly::{AtomId, Mono, Poly};
use crate::sample::Domain;

/// The range of a term, both ends included; `None` is unbounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The lower bound.
    pub lo: Option<BigInt>,
    /// The upper bound.
    pub hi: Option<BigInt>,
}

/// A range of integers, both ends included; `None` is unbounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) lo: Option<Int>,
    pub(crate) hi: Option<Int>,
}

impl Interval {
    pub(crate) fn point(value: Int) -> Self {
        Interval { lo: Some(value.clone()), hi: Some(value) }
    }

    pub(crate) fn is_positive(&self) -> bool {
        self.lo.as_ref().is_some_and(Int::is_positive)
    }

    pub(crate) fn is_non_negative(&self) -> bool {
        self.lo.as_ref().is_some_and(|lo| !lo.is_negative())
    }

    pub(crate) fn is_non_positive(&self) -> bool {
        self.hi.as_ref().is_some_and(|hi| !hi.is_positive())
    }

    pub(crate) fn into_ends(self) -> (Option<Int>, Option<Int>) {
        (self.lo, self.hi)
    }

    fn include(&mut self, value: Int) {
        if self.lo.as_ref().is_none_or(|lo| value < *lo) {
            self.lo = Some(value.clone());
        }
        if self.hi.as_ref().is_none_or(|hi| value > *hi) {
            self.hi = Some(value);
        }
    }

    fn neg(&self) -> Self {
        Interval { lo: self.hi.as_ref().map(|hi| -hi), hi: self.lo.as_ref().map(|lo| -lo) }
    }

    fn add(&self, other: &Self) -> Self {
        let sum = |a: &Option<Int>, b: &Option<Int>| Some(a.as_ref()? + b.as_ref()?);
        Interval { lo: sum(&self.lo, &other.lo), hi: sum(&self.hi, &other.hi) }
    }

    pub(crate) fn scale(&self, factor: &Int) -> Self {
        let times = |end: &Option<Int>| product(end.as_ref()?, factor);
        match factor.signum() {
            0 => Interval::point(Int::ZERO),
            1 => Interval { lo: times(&self.lo), hi: times(&self.hi) },
            _ => Interval { lo: times(&self.hi), hi: times(&self.lo) },
        }
    }

    /// Whether no integer is left: the facts contradict each other.
    fn is_empty(&self) -> bool {
        matches!((&self.lo, &self.hi), (Some(lo), Some(hi)) if lo > hi)
    }

    fn mul(&self, other: &Self) -> Self {
        if self.is_empty() || other.is_empty() {
            return Interval::default();
        }

        let zero = Interval::point(Int::ZERO);
        if *self == zero || *other == zero {
            return zero;
        }
        if self.is_non_negative() && other.is_non_negative() {
            let times = |a: &Option<Int>, b: &Option<Int>| product(a.as_ref()?, b.as_ref()?);
            return Interval { lo: times(&self.lo, &other.lo), hi: times(&self.hi, &other.hi) };
        }

        if self.is_non_positive() {
            return self.neg().mul(other).neg();
        }
        if other.is_non_positive() {
            return self.mul(&other.neg()).neg();
        }

        // One of them has both signs, so the extremes are products of ends.
        let (Some(a), Some(b), Some(c), Some(d)) = (&self.lo, &self.hi, &other.lo, &other.hi) else {
            return Interval::default();
        };
        let products = [product(a, c), product(a, d), product(b, c), product(b, d)];
        let [Some(p), Some(q), Some(r), Some(s)] = products else { return Interval::default() };
        let products = [p, q, r, s];

        Interval { lo: products.iter().min().cloned(), hi: products.iter().max().cloned() }
    }

    fn power(&self, exponent: usize) -> Self {
        let mut power = self.clone();
        (1..exponent).for_each(|_| power = power.mul(self));
        if exponent.is_multiple_of(2) && !power.is_non_negative() {
            power.lo = Some(Int::ZERO);
        }
        power
    }
}

/// The maximum width of an end, in bits: repeated squaring of bounds would take any amount of memory.
const MAX_BITS: u64 = 1 << 13;

fn product(a: &Int, b: &Int) -> Option<Int> {
    (a.bits() + b.bits() <= MAX_BITS).then(|| a * b)
}

/// The decisions that lead to a bound. Those for a lower bound of `p` also give an upper bound of `-p`.
#[derive(Clone, Debug)]
pub(crate) enum Why {
    /// The range of a symbol, given by the facts; or no bound at all.
    Given,
    /// Interval arithmetic.
    Interval,
    /// The coefficient of `atom` has the sign that `side` wants, because of `sign`; the rest because of `rest`.
    Side { atom: AtomId, side: SideRef, sign: Arc<Why>, rest: Arc<Why> },
    /// Linear in `atom`, so the minimum is at one of two sides.
    Ends { atom: AtomId, sides: [SideRef; 2], rest: Arc<[Why; 2]> },
    /// The minimum `atom` is one of its operands; one reason for each.
    Cases { atom: AtomId, rest: Vec<Why> },
    /// Stepping `atom`, which has no sides, by one never lowers the value (raises it, if `upper`), because of `step`;
    /// so the minimum is at that end of the range.
    Monotone { atom: AtomId, upper: bool, step: Arc<Why>, rest: Arc<Why> },
    /// One reason for each operand of a minimum.
    Each(Vec<Why>),
    /// The reason for one operand of a minimum.
    Operand(usize, Arc<Why>),
}

/// One bound of an atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SideRef {
    pub(crate) upper: bool,
    /// The place in the list of sides; `None` is the end of the constant range.
    pub(crate) idx: Option<usize>,
}

/// A bound that holds, and why.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) value: Int,
    pub(crate) why: Why,
}

/// The maximum number of eliminations for one bound. Three hundred are enough in practice and take less than a tenth
/// of a millisecond.
const SEARCH_BUDGET: u32 = 300;

/// [`SEARCH_BUDGET`] after the facts have used up their work.
const SHORT_SEARCH_BUDGET: u32 = 8;

/// Points to try for values at the ends of a range.
const TRIES: u64 = 40;

/// The maximum number of evaluated operations when all points are tried.
const EXHAUSTIVE: usize = 100_000;

/// The maximum number of eliminations of one engine, so that a hostile term takes a fraction of a second. One of a long
/// polynomial counts for several.
pub(crate) const TOTAL_BUDGET: u32 = 30_000;

/// [`TOTAL_BUDGET`] after the facts have used up their work.
const SHORT_TOTAL_BUDGET: u32 = 50;

/// An elimination counts once, and once more for each time that its polynomial has this number of terms.
const FEW_TERMS: usize = 16;

impl Engine {
    /// The best bounds of `poly` from below and above.
    pub(crate) fn ends(&mut self, poly: &Poly) -> [Option<Bound>; 2] {
        if self.interval_is_exact(poly) {
            let (lo, hi) = self.interval(poly).into_ends();
            return [lo, hi].map(|end| end.map(|value| Bound { value, why: Why::Interval }));
        }
        if let Some(ends) = self.ends.get(poly) {
            return ends.clone();
        }
        self.reset_budget();
        let ends = [self.lower(poly), self.upper(poly)];
        self.ends.insert(poly.clone(), ends.clone());
        ends
    }

    /// Resets the budget for a new search.
    pub(crate) fn reset_budget(&mut self) {
        let effort = self.facts.answers().map_or(Effort::Ample, Answers::effort);
        let (search, total) = match effort {
            Effort::Ample => (SEARCH_BUDGET, TOTAL_BUDGET),
            Effort::Short => (SHORT_SEARCH_BUDGET, SHORT_TOTAL_BUDGET),
            Effort::None => (0, 0),
        };
        self.total_budget = self.total_budget.min(total);
        self.search_budget = self.total_budget.min(search);
    }

    fn because(&self, why: impl FnOnce() -> Why) -> Why {
        if self.recording { why() } else { Why::Given }
    }

    fn interval_of(&self, mono: &Mono) -> Interval {
        let ids = mono.ids();
        let mut ids = &ids[..];
        let mut product = Interval::point(Int::ONE);
        while let Some(&id) = ids.first() {
            let exponent = ids.iter().take_while(|&&other| other == id).count();
            product = product.mul(&self.atom(id).range.power(exponent));
            ids = &ids[exponent..];
        }
        product
    }

    /// The range of `poly` by interval arithmetic alone.
    pub(crate) fn interval(&self, poly: &Poly) -> Interval {
        let mut sum = Interval::point(Int::ZERO);
        for (mono, coef) in poly.terms() {
            let part = match (mono.degree(), mono.only()) {
                (0, _) => Interval::point(coef.clone()),
                (_, Some(id)) => self.atom(id).range.scale(coef),
                _ => self.interval_of(mono).scale(coef),
            };
            sum = sum.add(&part);
            if sum.lo.is_none() && sum.hi.is_none() {
                break;
            }
        }

        sum
    }

    /// Whether interval arithmetic is already exact: independent symbols, each in one place.
    fn interval_is_exact(&self, poly: &Poly) -> bool {
        let mut seen: SmallVec<[AtomId; 16]> = SmallVec::new();
        poly.varying().iter().flat_map(|term| term.0.ids()).all(|id| {
            let atom = self.atom(id);
            let fresh = !seen.contains(&id);
            seen.push(id);
            fresh
                && matches!(atom.kind, AtomKind::Symbol { .. })
                && atom.lower.is_empty()
                && atom.upper.is_empty()
        })
    }

    /// A bound that `poly` is never below, as tight as can be found.
    pub(crate) fn lower(&mut self, poly: &Poly) -> Option<Bound> {
        self.lower_to(poly, None)
    }

    /// Why `poly` is never below `aim`, if that is found.
    pub(crate) fn why_at_least(&mut self, poly: &Poly, aim: &Int) -> Option<Why> {
        self.lower_to(poly, Some(aim)).filter(|bound| bound.value >= *aim).map(|bound| bound.why)
    }

    /// A bound that `poly` is never below. With an aim, the first bound that reaches it
    /// is returned; a bound that does not reach it may be arbitrarily weak.
    fn lower_to(&mut self, poly: &Poly, aim: Option<&Int>) -> Option<Bound> {
        let constant = poly.constant();
        let content = Poly::content_of(poly.varying());
        if content.is_zero() {
            return Some(Bound { value: constant, why: Why::Interval });
        }
        if content.is_one() && constant.is_zero() {
            return self.lower_primitive(poly, aim);
        }

        let divide = |(mono, coef): &(Mono, Int)| (*mono, coef.div_floor(&content));
        let reduced = Poly::from_ordered(poly.varying().iter().map(divide));
        let aim = aim.map(|aim| (aim - &constant).div_ceil(&content));
        let mut bound = self.lower_primitive(&reduced, aim.as_ref())?;
        bound.value = &(&bound.value * &content) + &constant;

        Some(bound)
    }

    /// A bound that `poly` is never above.
    pub(crate) fn upper(&mut self, poly: &Poly) -> Option<Bound> {
        let mut bound = self.lower(&poly.neg())?;
        bound.value = -&bound.value;
        Some(bound)
    }

    fn lower_primitive(&mut self, poly: &Poly, aim: Option<&Int>) -> Option<Bound> {
        let (lo, hi) = self.interval(poly).into_ends();
        let reached = aim.is_some_and(|aim| lo.as_ref().is_some_and(|lo| lo >= aim));
        let beyond = aim.is_some_and(|aim| hi.is_some_and(|hi| hi < *aim));
        let simple = lo.map(|value| Bound { value, why: Why::Interval });
        if reached || beyond || self.search_budget == 0 || self.interval_is_exact(poly) {
            return simple;
        }
        self.search_budget -= 1;
        let terms = poly.terms().len();
        self.total_budget = self.total_budget.saturating_sub(1 + (terms / FEW_TERMS) as u32);
        if let Some(answers) = self.facts.answers() {
            answers.count_work(terms);
        }
        let eliminated = self.eliminate(poly, aim);
        [simple, eliminated].into_iter().flatten().reduce(better)
    }

    fn eliminate(&mut self, poly: &Poly, aim: Option<&Int>) -> Option<Bound> {
        let id = self.top_atom(poly)?;
        let Some((coef, rest)) = poly.split_linear(id) else { return self.step_along(poly, id, aim) };
        let (sign, why) = self.sign(&coef);
        if sign >= 0 && matches!(self.atom(id).kind, AtomKind::Min(_)) {
            return self.lower_by_cases(poly, id, aim);
        }
        match sign {
            0 => self.lower_at_ends([&coef, &rest], poly, id, aim),
            _ => self.lower_by_sides([&coef, &rest], id, sign < 0, why, aim),
        }
    }

    /// The sign that `coef` has for all values, 0 if it is not known, and why it is not on the other side of 0.
    fn sign(&mut self, coef: &Poly) -> (i64, Why) {
        if let Some(value) = coef.as_const() {
            return (value.signum(), Why::Interval);
        }
        if let Some(why) = self.why_at_least(coef, &Int::ZERO) {
            return (1, why);
        }
        match self.why_at_least(&coef.neg(), &Int::ZERO) {
            Some(why) => (-1, why),
            None => (0, Why::Interval),
        }
    }

    /// Side number `idx` of an atom; the end of its constant range comes after all others.
    fn side(&self, id: AtomId, upper: bool, idx: usize) -> Option<(SideRef, Side)> {
        let atom = self.atom(id);
        let (list, end) = if upper { (&atom.upper, &atom.range.hi) } else { (&atom.lower, &atom.range.lo) };
        if let Some(side) = list.get(idx) {
            return Some((SideRef { upper, idx: Some(idx) }, side.clone()));
        }
        let end = end.as_ref().filter(|_| idx == list.len())?;
        let constant = Side { scale: (Mono::UNIT, Int::ONE), poly: end.clone().into() };
        Some((SideRef { upper, idx: None }, constant))
    }

    fn lower_by_sides(
        &mut self,
        parts: [&Poly; 2],
        id: AtomId,
        upper: bool,
        sign: Why,
        aim: Option<&Int>,
    ) -> Option<Bound> {
        let mut best: Option<Bound> = None;
        let sign = self.recording.then(|| Arc::new(sign));

        for idx in 0.. {
            let Some((side, bound)) = self.side(id, upper, idx) else { break };
            if let Some((value, why)) = self.lower_at(parts, &bound, aim) {
                let reached = aim.is_some_and(|aim| value >= *aim);
                let why = match &sign {
                    Some(sign) => Why::Side { atom: id, side, sign: sign.clone(), rest: Arc::new(why) },
                    None => Why::Given,
                };
                best = [best, Some(Bound { value, why })].into_iter().flatten().reduce(better);
                if reached {
                    break;
                }
            }
        }

        best
    }

    /// The lower bound of `coef*x + rest` with `side.poly / side.scale` in place of `x`.
    fn lower_at(&mut self, [coef, rest]: [&Poly; 2], side: &Side, aim: Option<&Int>) -> Option<(Int, Why)> {
        if let Some(quotient) = coef.div_term(&side.scale) {
            let replaced = rest.add(&quotient.mul(&side.poly).ok()?).within_caps().ok()?;
            let bound = self.lower_to(&replaced, aim)?;
            return Some((bound.value, bound.why));
        }

        let (mono, scale) = &side.scale;
        if !scale.is_positive() {
            return None;
        }

        // The monomial is above 0, as the scale and its coefficient are: the quotient has the sign of `coef`.
        let quotient = coef.div_term(&(*mono, Int::ONE))?;
        let scaled = rest.scale(scale).add(&quotient.mul(&side.poly).ok()?).within_caps().ok()?;

        // Rounded up, it reaches the aim once it is above `(aim - 1)*scale`.
        let aim = aim.map(|aim| &(&(aim - &Int::ONE) * scale) + &Int::ONE);
        let bound = self.lower_to(&scaled, aim.as_ref())?;
        Some((bound.value.div_ceil(scale), bound.why))
    }

    fn lower_at_ends(
        &mut self,
        parts: [&Poly; 2],
        poly: &Poly,
        id: AtomId,
        aim: Option<&Int>,
    ) -> Option<Bound> {
        if let AtomKind::Min(_) = self.atom(id).kind {
            return self.lower_by_cases(poly, id, aim);
        }

        let mut pick = |upper| -> Option<(SideRef, Int, Why)> {
            let mut best: Option<(SideRef, Int, Why)> = None;
            for idx in 0.. {
                let Some((side, bound)) = self.side(id, upper, idx) else { break };
                if let Some((value, why)) = self.lower_at(parts, &bound, aim)
                    && best.as_ref().is_none_or(|best| value >= best.1)
                {
                    best = Some((side, value, why));
                }
                if matches!((aim, &best), (Some(aim), Some(best)) if best.1 >= *aim) {
                    break;
                }
            }

            // Both ends have to reach the aim.
            best.filter(|best| aim.is_none_or(|aim| best.1 >= *aim))
        };

        let low = pick(false)?;
        let high = pick(true)?;
        let ends = [low.0, high.0];
        let why = self.because(|| Why::Ends { atom: id, sides: ends, rest: Arc::new([low.2, high.2]) });
        Some(Bound { value: low.1.min(high.1), why })
    }

    fn lower_by_cases(&mut self, poly: &Poly, id: AtomId, aim: Option<&Int>) -> Option<Bound> {
        let AtomKind::Min(list) = self.atom(id).kind.clone() else { return None };
        let mut smallest: Option<Int> = None;

        let mut rest = Vec::new();
        for operand in &list {
            let bound = self.lower_to(&poly.replace(id, operand).ok()?, aim)?;
            if aim.is_some_and(|aim| bound.value < *aim) {
                return None;
            }
            smallest = Some(smallest.map_or(bound.value.clone(), |old| old.min(bound.value)));
            if self.recording {
                rest.push(bound.why);
            }
        }

        Some(Bound { value: smallest?, why: self.because(|| Why::Cases { atom: id, rest }) })
    }

    /// Bounds a polynomial of degree above 1 in the atom. If a step of one never lowers the value, the minimum is at
    /// the low end.
    ///
    /// The sign of the step must hold at every value between that end and the atom's value. So it may depend on the
    /// constant range of the atom, but not on its sides.
    fn step_along(&mut self, poly: &Poly, id: AtomId, aim: Option<&Int>) -> Option<Bound> {
        let atom = self.atom(id);
        if !matches!(atom.kind, AtomKind::Symbol { .. }) || !atom.lower.is_empty() || !atom.upper.is_empty() {
            return None;
        }

        let next = Poly::atom(id).add_const(&Int::ONE);
        let difference = poly.replace(id, &next).ok()?.sub(poly);
        let (sign, step) = self.sign(&difference);
        if sign == 0 {
            return None;
        }

        let range = &self.atom(id).range;
        let end = if sign < 0 { range.hi.clone() } else { range.lo.clone() }?;
        let rest = self.lower_to(&poly.replace(id, &end.into()).ok()?, aim)?;
        let step = Arc::new(step);
        let upper = sign < 0;
        let why = self.because(|| Why::Monotone { atom: id, upper, step, rest: Arc::new(rest.why) });

        Some(Bound { value: rest.value, why })
    }
}

fn better(a: Bound, b: Bound) -> Bound {
    if b.value > a.value { b } else { a }
}

impl Facts {
    /// Bounds of `e` over all values that the facts allow, as tight as can be found.
    ///
    /// ```
    /// use symshape::{Declaration, Dim, Facts, Symbol};
    /// let mut facts = Facts::new();
    /// facts.declare(&Symbol::new("N"), Declaration::range(1, 100))?;
    /// let padding: Dim = "(N + 7)//8*8 - N".parse().unwrap();
    /// let bounds = facts.bounds(&padding);
    /// assert_eq!((bounds.lo, bounds.hi), (Some(0.into()), Some(7.into())));
    /// # Ok::<(), symshape::FactError>(())
    /// ```
    pub fn bounds(&self, e: &Dim) -> Bounds {
        self.answer(|answers| &answers.bounds, || e.clone(), || self.range_of(e))
    }

    fn range_of(&self, e: &Dim) -> Bounds {
        let mut engine = Engine::new(self);
        let Ok(poly) = engine.normalize(e) else { return Bounds::default() };
        engine.reset_budget();
        let lo = engine.lower(&poly).map(|bound| bound.value);
        engine.reset_budget();
        let hi = engine.upper(&poly).map(|bound| bound.value);
        // The interval of independent symbols is already exact.
        let exact = lo == hi || (self.is_independent() && engine.interval_is_exact(&poly));
        let range = if exact { Interval { lo, hi } } else { self.tightest(e, Interval { lo, hi }) };
        Bounds { lo: range.lo.map(|lo| lo.to_big()), hi: range.hi.map(|hi| hi.to_big()) }
    }

    /// Whether the facts consist of one constant declaration for each symbol.
    fn is_independent(&self) -> bool {
        let free = |entry: &Entry| entry.lower.is_empty() && entry.upper.is_empty();
        self.assumptions().is_empty() && self.entries().iter().all(free)
    }

    /// The exact range, where sample points reach both ends of `range` or all points can be tried; otherwise `range`.
    fn tightest(&self, e: &Dim, range: Interval) -> Interval {
        let domain = Domain::new(self, &[e]);
        let code = domain.compile(e);

        let mut stack = Vec::new();
        let mut seen = Interval::default();
        for point in (0..TRIES).filter_map(|seed| domain.point(seed)) {
            code.run(&point, &mut stack).into_iter().for_each(|value| seen.include(value));
            if seen == range {
                return range;
            }
        }

        let limit = EXHAUSTIVE / code.len().max(1);
        if domain.is_beyond(limit) {
            return range;
        }

        let mut all = Interval::default();
        let mut defined = true;
        let complete = domain.for_each(limit, &mut |point| {
            let value = code.run(point, &mut stack);
            defined = value.is_some();
            value.into_iter().for_each(|value| all.include(value));
            defined
        });

        if complete && defined && all.lo.is_some() { all } else { range }
    }

    /// The value of `e`, if it has only one.
    pub fn const_value(&self, e: &Dim) -> Option<BigInt> {
        let Bounds { lo, hi } = self.bounds(e);
        lo.filter(|lo| Some(lo) == hi.as_ref())
    }
}
