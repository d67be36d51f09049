//! [`Engine`]: the table of atoms for the polynomials of one query.
//!
//! An atom is a variable of a polynomial: a symbol, or a quotient or minimum of polynomials that no rule
//! rewrites. Equal atoms have one number. Each carries a constant range and *sides*: inequalities between a
//! positive multiple of the atom and a polynomial over atoms that come before it in the order of elimination
//! `(rank, number)`. The facts about a symbol, `m*q <= a <= m*q + m - 1` for a quotient and `min <= each operand`
//! all have this one form, so that `bounds` needs no special cases.
//!
//! A symbol with a step is replaced when it is read: `S` with `S % 8 == 3` becomes `8*t + 3` over an atom `t`.

use std::sync::Arc;

use crate::assume::{Comparison, Entry, Facts};
use crate::dim::{Dim, Symbol};
use crate::engine::bounds::{Bound, Interval, TOTAL_BUDGET, Why};
use crate::engine::proof::{Event, Given};
use crate::engine::rules;
use crate::int::Int;
use crate::memo::{FastMap, Memo};
use crate::poly::{AtomId, Mono, Poly, Term, TooLarge};

/// The meaning of an atom.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum AtomKind {
    /// `(symbol - offset) / step`, an integer.
    Symbol { symbol: Symbol, step: Int, offset: Int },
    /// The floor of the quotient of two polynomials, the divisor above 0.
    Div(Poly, Poly),
    /// The minimum of several polynomials.
    Min(Vec<Poly>),
}

/// `scale * atom >= poly` in a list of lower sides, `scale * atom <= poly` in a list of upper ones.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// A term above 0 for all values.
    pub(crate) scale: Term,
    pub(crate) poly: Poly,
}

#[derive(Clone, Debug)]
pub(crate) struct Atom {
    pub(crate) kind: AtomKind,
    pub(crate) rank: u32,
    pub(crate) range: Interval,
    /// Why the ends of `range` hold, for a quotient or minimum.
    pub(crate) reasons: [Why; 2],
    pub(crate) lower: Vec<Side>,
    pub(crate) upper: Vec<Side>,
}

/// Why a term has no normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A divisor is not known to differ from 0, so no rule may touch the quotient.
    Divisor,
    /// The normal form is beyond the caps of `poly` or of the table.
    TooLarge,
}

impl From<TooLarge> for Refusal {
    fn from(_: TooLarge) -> Self {
        Refusal::TooLarge
    }
}

/// The maximum number of atoms of a query.
pub(crate) const MAX_ATOMS: usize = 400;

/// With this many atoms or more, a hash table replaces the linear search.
const FEW_ATOMS: usize = 16;

/// The rank of a symbol while its bounds are read: no atom may be bounded by it yet.
const IN_PROGRESS: u32 = u32::MAX;

/// The state of one query: the facts, and every atom met so far.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) facts: Facts,
    #[expect(clippy::vec_box, reason = "atoms are large, and a list that grows would move them all")]
    pub(crate) atoms: Vec<Box<Atom>>,
    /// The derivation so far, in order; `check` replays it.
    pub(crate) log: Vec<Event>,
    /// Whether `log` and the reasons of bounds are kept, which only proofs need.
    pub(crate) recording: bool,
    /// The numbers of atoms, where there are many.
    table: FastMap<AtomKind, AtomId>,
    symbols: Memo<Symbol, Poly>,
    pub(crate) quotients: Memo<(Poly, Poly), Poly>,
    pub(crate) minima: Memo<Vec<Poly>, Poly>,
    /// The best bounds of polynomials, until a fact is added.
    pub(crate) ends: Memo<Poly, [Option<Bound>; 2]>,
    pub(crate) normal: Memo<Dim, Poly>,
    /// Whether there is an atom to which rules for sums apply.
    pub(crate) has_foldable: bool,
    /// Steps left for the current search in `bounds`.
    pub(crate) search_budget: u32,
    /// Steps left for all searches together.
    pub(crate) total_budget: u32,
    /// The current nesting of rewrites.
    pub(crate) nesting: u32,
}

impl Engine {
    /// An engine that has read the assumed inequalities.
    pub(crate) fn new(facts: &Facts) -> Self {
        facts.informed_engine()
    }

    /// [`Engine::new`], keeping a log of the derivation.
    pub(crate) fn recording(facts: &Facts) -> Self {
        Engine::blank(facts, true).informed()
    }

    /// Reads the assumed inequalities of the facts.
    pub(crate) fn informed(mut self) -> Self {
        let engine = &mut self;
        let facts = engine.facts.clone();
        for idx in 0..facts.assumptions().len() {
            let relation = facts.assumptions()[idx].relation.clone();
            let (low, high, gap) = match relation.comparison {
                Comparison::Le => (relation.a, relation.b, 0),
                Comparison::Lt => (relation.a, relation.b, 1),
                _ => continue,
            };
            if let (Ok(low), Ok(high)) = (engine.normalize(&low), engine.normalize(&high)) {
                engine.attach(&high.sub(&low).add_const(&Int::from(-gap)), Given::Assumption(idx));
            }
        }

        self
    }

    /// An engine without atoms.
    pub(crate) fn blank(facts: &Facts, recording: bool) -> Self {
        Engine {
            facts: facts.clone(),
            atoms: Vec::with_capacity(8),
            log: Vec::new(),
            recording,
            table: FastMap::default(),
            symbols: Memo::default(),
            quotients: Memo::default(),
            minima: Memo::default(),
            ends: Memo::default(),
            normal: Memo::default(),
            has_foldable: false,
            search_budget: 0,
            total_budget: TOTAL_BUDGET,
            nesting: 0,
        }
    }

    pub(crate) fn record(&mut self, event: impl FnOnce() -> Event) {
        if self.recording {
            self.log.push(event());
        }
    }

    pub(crate) fn atom(&self, id: AtomId) -> &Atom {
        &self.atoms[id as usize]
    }

    /// The place of an atom in the order of elimination.
    pub(crate) fn order(&self, id: AtomId) -> (u32, AtomId) {
        (self.atom(id).rank, id)
    }

    /// The atom of `poly` that is eliminated first.
    pub(crate) fn top_atom(&self, poly: &Poly) -> Option<AtomId> {
        let ids = poly.terms().iter().flat_map(|term| term.0.ids());
        ids.max_by_key(|&id| self.order(id))
    }

    pub(crate) fn find(&self, kind: &AtomKind) -> Option<AtomId> {
        if self.atoms.len() < FEW_ATOMS {
            self.atoms.iter().position(|atom| atom.kind == *kind).map(|idx| idx as AtomId)
        } else {
            self.table.get(kind).copied()
        }
    }

    pub(crate) fn insert(&mut self, atom: Atom) -> Result<AtomId, Refusal> {
        if self.atoms.len() >= MAX_ATOMS {
            return Err(Refusal::TooLarge);
        }

        let id = self.atoms.len() as AtomId;
        self.has_foldable |= rules::has_sum_rules(&atom.kind);
        self.record(|| Event::Atom { id, range: atom.range.clone() });
        self.atoms.push(atom.into());

        if self.atoms.len() >= FEW_ATOMS {
            let first = if self.atoms.len() == FEW_ATOMS { 0 } else { id as usize };
            let added = self.atoms[first..].iter().enumerate();
            self.table.extend(added.map(|(idx, atom)| (atom.kind.clone(), (first + idx) as AtomId)));
        }

        Ok(id)
    }

    /// One more than the rank of every atom in `polys`.
    pub(crate) fn rank_above<'p>(&self, polys: impl IntoIterator<Item = &'p Poly>) -> u32 {
        let atoms = polys.into_iter().flat_map(|poly| poly.terms()).flat_map(|term| term.0.ids());
        atoms.map(|id| self.atom(id).rank).max().map_or(0, |rank| rank.saturating_add(1))
    }

    /// The polynomial of `symbol`.
    pub(crate) fn symbol(&mut self, symbol: &Symbol) -> Result<Poly, Refusal> {
        if let Some(poly) = self.symbols.get(symbol) {
            return Ok(poly.clone());
        }

        let facts = self.facts.clone();
        if let Some(definition) = facts.definition(symbol) {
            let poly = self.normalize(definition)?;
            self.symbols.insert(symbol.clone(), poly.clone());
            self.attach_declaration(&poly, symbol);
            return Ok(poly);
        }

        match facts.entry(symbol) {
            None => self.declare(symbol, Interval::default(), Int::ONE, Int::ZERO),
            Some(entry) => self.declare_entry(entry),
        }
    }

    fn declare(&mut self, symbol: &Symbol, range: Interval, step: Int, offset: Int) -> Result<Poly, Refusal> {
        let kind = AtomKind::Symbol { symbol: symbol.clone(), step: step.clone(), offset: offset.clone() };
        let reasons = [const { Why::Given }; 2];
        let lower = Vec::new();
        let upper = Vec::new();
        let id = self.insert(Atom { kind, rank: 0, range, reasons, lower, upper })?;
        let constant = (!offset.is_zero()).then_some((Mono::UNIT, offset));
        let poly = Poly::from_ordered([(Mono::atom(id), step)].into_iter().chain(constant));
        self.symbols.insert(symbol.clone(), poly.clone());
        Ok(poly)
    }

    fn declare_entry(&mut self, entry: &Entry) -> Result<Poly, Refusal> {
        let mut range = Interval::default();
        let mut step = Int::ONE;

        let mut offset = Int::ZERO;
        if let Some(declaration) = &entry.declaration {
            step = Int::from(&declaration.step);
            offset = Int::from(&declaration.offset);
            let count = |value: Int| (&value - &offset).div_floor(&step);
            range.lo = Some(count(Int::from(&declaration.lo)));
            range.hi = declaration.hi.as_ref().map(|hi| count(Int::from(hi)));
            if declaration.hi.as_ref() == Some(&declaration.lo) {
                let poly = Poly::from(Int::from(&declaration.lo));
                self.symbols.insert(entry.symbol.clone(), poly.clone());
                return Ok(poly);
            }
        }

        let poly = self.declare(&entry.symbol, range, step, offset)?;
        if entry.lower.is_empty() && entry.upper.is_empty() {
            return Ok(poly);
        }

        let id = self.top_atom(&poly).expect("a symbol is not constant");
        self.atoms[id as usize].rank = IN_PROGRESS;

        let mut read = |list: &[Dim]| -> Vec<(usize, Poly)> {
            let polys: Vec<(usize, Poly)> = list
                .iter()
                .enumerate()
                .filter_map(|(idx, dim)| Some((idx, self.normalize(dim).ok()?)))
                .collect();
            polys.into_iter().filter(|(_, bound)| self.rank_above([bound]) < IN_PROGRESS).collect()
        };

        let lower = read(&entry.lower);
        let upper = read(&entry.upper);
        self.atoms[id as usize].rank = self.rank_above(lower.iter().chain(&upper).map(|(_, bound)| bound));

        for (idx, bound) in &lower {
            self.attach(&poly.sub(bound), Given::Lower(entry.symbol.clone(), *idx));
            // Where the symbol has a value, no lower bound is above an upper bound.
            for (upper_idx, end) in &upper {
                self.attach(&end.sub(bound), Given::Room(entry.symbol.clone(), *idx, *upper_idx));
            }
        }

        for (idx, bound) in &upper {
            self.attach(&bound.sub(&poly), Given::Upper(entry.symbol.clone(), *idx));
        }

        Ok(poly)
    }

    /// Attaches the declaration of a symbol to the term that defines it.
    fn attach_declaration(&mut self, poly: &Poly, symbol: &Symbol) {
        let facts = self.facts.clone();
        let Some(entry) = facts.entry(symbol) else { return };
        if let Some(declaration) = &entry.declaration {
            self.attach(&poly.add_const(&-&Int::from(&declaration.lo)), Given::Min(symbol.clone()));
            if let Some(hi) = &declaration.hi {
                self.attach(&poly.neg().add_const(&Int::from(hi)), Given::Max(symbol.clone()));
            }
        }

        for (idx, bound) in entry.lower.iter().enumerate() {
            if let Ok(bound) = self.normalize(bound) {
                self.attach(&poly.sub(&bound), Given::Lower(symbol.clone(), idx));
            }
        }

        for (idx, bound) in entry.upper.iter().enumerate() {
            if let Ok(bound) = self.normalize(bound) {
                self.attach(&bound.sub(poly), Given::Upper(symbol.clone(), idx));
            }
        }
    }

    /// Notes that `poly >= 0` as a side of the atom that is eliminated first.
    fn attach(&mut self, poly: &Poly, given: Given) {
        let Some(id) = self.top_atom(poly) else { return };
        let Some((coef, rest)) = poly.split_linear(id) else { return };
        let Some((mono, factor)) = coef.as_term().cloned() else { return };
        self.ends = Memo::default();

        if mono.is_unit() {
            self.tighten(id, &factor, &rest, &given);
        }

        let positive = mono.ids().into_iter().all(|id| self.atom(id).range.is_positive());
        if !positive || rest.as_const().is_some() {
            return;
        }

        let upper = factor.is_negative();
        let poly = if upper { rest } else { rest.neg() };
        self.record(|| Event::Side { id, upper, given });
        self.add_side(id, upper, Side { scale: (mono, factor.abs()), poly });
    }

    pub(crate) fn add_side(&mut self, id: AtomId, upper: bool, side: Side) {
        let atom = &mut self.atoms[id as usize];
        if upper { atom.upper.push(side) } else { atom.lower.push(side) }
    }

    /// Narrows the constant range of an atom with `factor * atom + rest >= 0`.
    fn tighten(&mut self, id: AtomId, factor: &Int, rest: &Poly, given: &Given) {
        self.reset_budget();
        let Some(Bound { value, why }) = self.upper(rest) else { return };
        let upper = factor.is_negative();
        let range = &mut self.atoms[id as usize].range;
        let value = if upper { value.div_floor(&-factor) } else { (-&value).div_ceil(factor) };
        let end = if upper { &mut range.hi } else { &mut range.lo };
        let narrower = end.as_ref().is_none_or(|old| if upper { value < *old } else { value > *old });
        if narrower {
            *end = Some(value.clone());
            self.record(|| Event::Narrow { id, upper, value, given: given.clone(), why });
        }
    }

    /// The atom for `num // den`, where `den` is at least 1 for all values.
    pub(crate) fn quotient_atom(&mut self, num: &Poly, den: &Poly) -> Result<Poly, Refusal> {
        let kind = AtomKind::Div(num.clone(), den.clone());
        if let Some(id) = self.find(&kind) {
            return Ok(Poly::atom(id));
        }

        let (range, reasons) = self.quotient_range(num, den);
        let mut lower = Vec::new();
        let mut upper = Vec::new();
        if let Some([smallest, largest]) = quotient_sides(num, den) {
            lower.push(smallest);
            upper.push(largest);
        }

        let rank = self.rank_above([num, den]);
        Ok(Poly::atom(self.insert(Atom { kind, rank, range, reasons, lower, upper })?))
    }

    fn quotient_range(&mut self, num: &Poly, den: &Poly) -> (Interval, [Why; 2]) {
        let [lo, hi] = self.ends(num);
        let (smallest, largest) = self.interval(den).into_ends();

        // The divisor is known to be at least 1, which its interval alone need not show; where the facts
        // contradict each other, its interval may even end below.
        let smallest = smallest.unwrap_or(Int::ONE).max(Int::ONE);

        let largest = largest.map(|largest| largest.max(Int::ONE));
        let divide = |end: &Int, shrink: bool| match (shrink, &largest) {
            (false, _) => Some(end.div_floor(&smallest)),
            (true, Some(largest)) => Some(end.div_floor(largest)),
            // Towards an infinite divisor the quotient tends to 0 from above and to -1 from below.
            (true, None) => Some(Int::from(if end.is_negative() { -1 } else { 0 })),
        };

        let range = Interval {
            lo: lo.as_ref().and_then(|end| divide(&end.value, !end.value.is_negative())),
            hi: hi.as_ref().and_then(|end| divide(&end.value, end.value.is_negative())),
        };

        let reason = |end: Option<Bound>| end.map_or(Why::Given, |end| end.why);
        (range, [reason(lo), reason(hi)])
    }

    /// The atom for the minimum of `list`, which has at least two entries.
    pub(crate) fn minimum_atom(&mut self, list: Vec<Poly>) -> Result<Poly, Refusal> {
        let kind = AtomKind::Min(list.clone());
        if let Some(id) = self.find(&kind) {
            return Ok(Poly::atom(id));
        }

        self.reset_budget();
        let lows: Option<Vec<_>> = list.iter().map(|poly| self.lower(poly)).collect();
        let highs = list.iter().enumerate().filter_map(|(idx, poly)| Some((idx, self.upper(poly)?)));
        let high = highs.min_by(|a, b| a.1.value.cmp(&b.1.value));
        let lo = lows.as_ref().and_then(|lows| lows.iter().map(|bound| bound.value.clone()).min());
        let hi = high.as_ref().map(|(_, bound)| bound.value.clone());

        let low_reason = match lows {
            Some(lows) if self.recording => Why::Each(lows.into_iter().map(|low| low.why).collect()),
            _ => Why::Given,
        };

        let high_reason = match high {
            Some((idx, bound)) if self.recording => Why::Operand(idx, Arc::new(bound.why)),
            _ => Why::Given,
        };

        let upper = minimum_sides(&list);
        let rank = self.rank_above(&list);
        let range = Interval { lo, hi };
        let reasons = [low_reason, high_reason];
        Ok(Poly::atom(self.insert(Atom { kind, rank, range, reasons, lower: Vec::new(), upper })?))
    }
}

impl Engine {
    /// `(coefficient, rest)` with `poly == coefficient*symbol + rest`, both free of the symbol.
    pub(crate) fn split_by_symbol(&mut self, poly: Poly, symbol: &Symbol) -> Option<(Poly, Poly)> {
        // Reading the symbol only now gives it an atom that nothing depends on, if it does not occur.
        let whole = self.symbol(symbol).ok()?;
        let uses = |poly: &Poly, id: AtomId| poly.atoms().iter().any(|&other| self.depends_on(other, id));
        if !whole.atoms().iter().any(|&id| uses(&poly, id)) {
            return Some((Poly::default(), poly));
        }

        let id = self.top_atom(&whole)?;
        let AtomKind::Symbol { symbol: owner, step, offset } = &self.atom(id).kind else { return None };
        if owner != symbol {
            return None;
        }

        let (coef, rest) = poly.split_linear(id)?;
        let coef = coef.div_term(&(Mono::UNIT, step.clone()))?;
        let rest = rest.add_scaled(&-offset, &coef);
        (!uses(&coef, id) && !uses(&rest, id)).then_some((coef, rest))
    }

    /// Whether the value of atom `id` changes with the atom `on`.
    fn depends_on(&self, id: AtomId, on: AtomId) -> bool {
        let mut seen = vec![false; self.atoms.len()];
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            if id == on {
                return true;
            }
            if std::mem::replace(&mut seen[id as usize], true) {
                continue;
            }
            match &self.atom(id).kind {
                AtomKind::Symbol { .. } => {}
                AtomKind::Div(num, den) => stack.extend(num.atoms().into_iter().chain(den.atoms())),
                AtomKind::Min(list) => stack.extend(list.iter().flat_map(Poly::atoms)),
            }
        }

        false
    }
}

/// `den*q >= num - den + 1` and `den*q <= num`, where the divisor is a single term.
pub(crate) fn quotient_sides(num: &Poly, den: &Poly) -> Option<[Side; 2]> {
    let scale = den.as_term()?;
    let smallest = num.sub(den).add_const(&Int::ONE);
    Some([Side { scale: scale.clone(), poly: smallest }, Side { scale: scale.clone(), poly: num.clone() }])
}

/// A minimum is at most each operand.
pub(crate) fn minimum_sides(list: &[Poly]) -> Vec<Side> {
    list.iter().map(|poly| Side { scale: (Mono::UNIT, Int::ONE), poly: poly.clone() }).collect()
}
