//! Random cases for the engine, and the properties of each: shared by tests/oracle.rs and the fuzz target
//! `dim_algebra`.
//!
//! A [`Case`] is read from bytes: a few symbols with small domains (negative values, steps, bounds that are symbols,
//! relations), two expressions over all operations, and a relation between them. [`Case::check`] evaluates
//! everything that the engine says at every point of the domain, with `Dim::eval` and nothing else.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use symshape::{Answer, Comparison, Declaration, Dim, Facts, RULES, Relation, Symbol};

/// Choices read from bytes; after the last byte every choice is the first.
pub(crate) struct Source<'a> {
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Source { bytes }
    }

    fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn below(&mut self, count: u8) -> u8 {
        self.byte() % count
    }

    fn between(&mut self, lo: i64, hi: i64) -> i64 {
        lo + i64::from(self.byte()) % (hi - lo + 1)
    }
}

/// A symbol of a case: `lo <= symbol <= hi`, `symbol % step == offset % step`.
#[derive(Debug)]
struct Axis {
    symbol: Symbol,
    lo: Dim,
    hi: Dim,
    step: i64,
    offset: i64,
}

/// Facts, expressions and a relation to query.
#[derive(Debug)]
pub(crate) struct Case {
    facts: Facts,
    axes: Vec<Axis>,
    relations: Vec<Relation>,
    a: Dim,
    b: Dim,
    comparison: Comparison,
}

type Point = BTreeMap<Symbol, BigInt>;

const NAMES: [&str; 3] = ["x", "y", "z"];

impl Case {
    /// Reads a case; `None` where the facts contradict each other.
    pub(crate) fn read(source: &mut Source<'_>) -> Option<Case> {
        Case::read_from(Facts::new(), source)
    }

    /// As [`Case::read`]; `facts` are empty.
    pub(crate) fn read_from(mut facts: Facts, source: &mut Source<'_>) -> Option<Case> {
        let mut axes = Vec::new();
        for idx in 0..1 + source.below(3) as usize {
            axes.push(read_axis(source, &mut facts, idx)?);
        }
        let mut relations = Vec::new();
        if source.below(5) == 0 {
            let relation =
                Relation { comparison: comparison(source), a: term(source, 1), b: term(source, 1) };
            let positive =
                relation.comparison != Comparison::Divides || relation.a.as_i64().is_some_and(|a| a != 0);
            if positive
                && relation.a.symbols().union(&relation.b.symbols()).all(|s| facts.declaration(s).is_some())
            {
                facts.assume(relation.clone(), "the generator").ok()?;
                relations.push(relation);
            }
        }
        let depth = 1 + source.below(4);
        let (a, b) = (term(source, depth), term(source, depth.min(2)));
        let b = if source.below(3) == 0 { &a + &term(source, 1) } else { b };
        Some(Case { facts, axes, relations, a, b, comparison: comparison(source) })
    }

    /// Every assignment that the facts allow, but no more than a few hundred.
    fn points(&self) -> Vec<Point> {
        let mut points = vec![Point::new()];
        for axis in &self.axes {
            let mut longer = Vec::new();
            for point in points.into_iter().take(600) {
                let (lo, hi) = (value(&axis.lo, &point).unwrap(), value(&axis.hi, &point).unwrap());
                let mut next = lo;
                while next <= hi {
                    if (&next - axis.offset) % axis.step == BigInt::ZERO {
                        let mut point = point.clone();
                        point.insert(axis.symbol.clone(), next.clone());
                        longer.push(point);
                    }
                    next += 1;
                }
            }
            points = longer;
        }
        points.retain(|point| self.relations.iter().all(|relation| holds(relation, point) == Some(true)));
        points
    }

    #[allow(dead_code, reason = "each test that shares this module uses a part of it")]
    /// Panics where the engine says anything that evaluation contradicts.
    pub(crate) fn check(&self) {
        let points = self.points();
        if points.is_empty() {
            // From facts that contradict each other anything follows.
            return;
        }
        self.check_simplify(&points);
        self.check_bounds(&points);
        self.check_linear(&points);
        self.check_text();
        let relation = Relation { comparison: self.comparison, a: self.a.clone(), b: self.b.clone() };
        self.check_answer(&relation, &points);
        self.check_answer(&Relation::eq(&self.a, self.facts.simplify(&self.a)), &points);
    }

    /// Panics where a rule, applied alone, changes the value of a term.
    #[allow(dead_code, reason = "each test that shares this module uses a part of it")]
    pub(crate) fn check_rules(&self) {
        let points = self.points();
        let quotient = self.a.floor_div(if self.b.as_int().is_some() { self.b.clone() } else { 6.into() });
        for (term, rule) in
            [&self.a, &self.b, &quotient].into_iter().flat_map(|e| RULES.iter().map(move |r| (e, r)))
        {
            let Some(after) = rule.rewrite(&self.facts, term) else { continue };
            for point in &points {
                if let Some(before) = value(term, point) {
                    assert_eq!(value(&after, point), Some(before), "`{}`: {term} became {after}", rule.name);
                }
            }
        }
    }

    /// Everything that the engine says about this case, as text.
    #[allow(dead_code, reason = "each test that shares this module uses a part of it")]
    pub(crate) fn answers(&self) -> String {
        let relation = Relation { comparison: self.comparison, a: self.a.clone(), b: self.b.clone() };
        let (facts, terms) = (&self.facts, [self.a.clone(), self.b.clone()]);
        format!(
            "{:?} {:?} {:?} {:?} {:?}",
            facts.simplify(&self.a),
            facts.simplify_in_loops(&terms, &[Symbol::new("x")]),
            facts.bounds(&self.a),
            facts.linear_in(&self.a, &Symbol::new("x")),
            facts.prove(&relation),
        )
    }

    fn check_simplify(&self, points: &[Point]) {
        let both = self.facts.simplify_all(&[self.a.clone(), self.b.clone()]);
        for (before, after) in
            [(&self.a, &both[0]), (&self.b, &both[1]), (&self.a, &self.facts.simplify(&self.a))]
        {
            for point in points {
                if let Some(expected) = value(before, point) {
                    let actual = value(after, point);
                    assert_eq!(actual, Some(expected), "{before} became {after} at {point:?}\n{self:#?}");
                }
            }
        }
    }

    fn check_bounds(&self, points: &[Point]) {
        let bounds = self.facts.bounds(&self.a);
        for value in points.iter().filter_map(|point| value(&self.a, point)) {
            let inside = bounds.lo.as_ref().is_none_or(|lo| *lo <= value)
                && bounds.hi.as_ref().is_none_or(|hi| value <= *hi);
            assert!(inside, "{value} is outside {bounds:?}\n{self:#?}");
        }
    }

    fn check_linear(&self, points: &[Point]) {
        let symbol = Symbol::new("x");
        let Some((coef, rest)) = self.facts.linear_in(&self.a, &symbol) else { return };
        assert!(!coef.contains(&symbol) && !rest.contains(&symbol), "{coef}, {rest}");
        let linear = coef * Dim::from(&symbol) + rest;
        for point in points {
            if let Some(expected) = value(&self.a, point) {
                assert_eq!(value(&linear, point), Some(expected), "{linear} at {point:?}\n{self:#?}");
            }
        }
    }

    fn check_text(&self) {
        let again: Dim = self.a.to_string().parse().unwrap();
        assert_eq!(again.to_string(), self.a.to_string());
    }

    fn check_answer(&self, relation: &Relation, points: &[Point]) {
        match self.facts.prove(relation) {
            Answer::Yes(proof) => {
                for point in points {
                    assert_ne!(
                        holds(relation, point),
                        Some(false),
                        "proved {relation} at {point:?}\n{self:#?}"
                    );
                }
                assert_eq!(proof.check(), Ok(()), "{proof}\n{self:#?}");
            }
            Answer::No(counterexample) => {
                let point: Point = counterexample.values;
                let known = points.iter().any(|p| point.iter().all(|(s, v)| p.get(s).is_none_or(|w| w == v)));
                assert!(known, "no such point: {point:?}\n{self:#?}");
                assert_eq!(holds(relation, &point), Some(false), "{relation} at {point:?}\n{self:#?}");
            }
            Answer::Unknown => {}
        }
    }
}

fn value(dim: &Dim, point: &Point) -> Option<BigInt> {
    dim.eval(&|symbol| point.get(symbol).cloned()).ok()
}

fn holds(relation: &Relation, point: &Point) -> Option<bool> {
    let (a, b) = (value(&relation.a, point)?, value(&relation.b, point)?);
    match relation.comparison {
        Comparison::Eq => Some(a == b),
        Comparison::Ne => Some(a != b),
        Comparison::Lt => Some(a < b),
        Comparison::Le => Some(a <= b),
        Comparison::Divides if a == BigInt::ZERO => None,
        Comparison::Divides => Some(b % a == BigInt::ZERO),
    }
}

fn comparison(source: &mut Source<'_>) -> Comparison {
    use Comparison::{Divides, Eq, Le, Lt, Ne};
    [Le, Eq, Lt, Ne, Divides][source.below(5) as usize]
}

fn read_axis(source: &mut Source<'_>, facts: &mut Facts, idx: usize) -> Option<Axis> {
    let symbol = Symbol::new(NAMES[idx]);
    let (step, offset) = match source.below(4) {
        0 => (source.between(2, 8), source.between(0, 7)),
        _ => (1, 0),
    };
    let lo = source.between(-6, 6);
    let hi = lo + source.between(0, 9);
    if idx > 0 && source.below(3) == 0 {
        // An index below a symbol declared before it, which may leave no value at all.
        let extent = Dim::symbol(NAMES[source.below(idx as u8) as usize]) * source.between(1, 3);
        facts.declare_index(&symbol, &extent);
        return Some(Axis { symbol, lo: Dim::zero(), hi: extent - 1, step: 1, offset: 0 });
    }
    facts.declare(&symbol, Declaration::range(lo, hi).step(step, offset)).ok()?;
    Some(Axis { symbol, lo: lo.into(), hi: hi.into(), step, offset })
}

fn constant(source: &mut Source<'_>) -> Dim {
    match source.below(16) {
        0 => Dim::from(i64::MAX) * source.between(-3, 3) + 1,
        1 => Dim::from([64, 96, 7, 128, 1000, 48][source.below(6) as usize]),
        _ => source.between(-12, 12).into(),
    }
}

fn divisor(source: &mut Source<'_>, depth: u8) -> Dim {
    match source.below(8) {
        0 => term(source, depth.min(1)),
        1 => constant(source),
        2 => Dim::symbol(NAMES[source.below(3) as usize]),
        _ => source.between(1, 12).into(),
    }
}

fn term(source: &mut Source<'_>, depth: u8) -> Dim {
    if depth == 0 {
        return match source.below(3) {
            0 => constant(source),
            _ => Dim::symbol(NAMES[source.below(3) as usize]),
        };
    }
    let operand = term(source, depth - 1);
    match source.below(11) {
        0 | 1 => operand + term(source, depth - 1),
        2 => operand - term(source, depth - 1),
        3 => operand * constant(source),
        4 => operand * term(source, depth - 1),
        5 | 6 => operand.floor_div(divisor(source, depth - 1)),
        7 => operand.modulo(divisor(source, depth - 1)),
        8 => operand.ceil_div(divisor(source, depth - 1)),
        9 => Dim::min(&operand, term(source, depth - 1)),
        _ => Dim::max(&operand, term(source, depth - 1)),
    }
}
