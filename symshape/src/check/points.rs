//! Checks a relation at every point that the facts allow.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{One, Zero};

use super::{Checked, Flaw, ensure};
use crate::assume::{Comparison, Facts, Relation};
use crate::dim::{Dim, Symbol};

type Point = BTreeMap<Symbol, BigInt>;

/// More points than this are not tried: such a proof is refused.
const MAX_POINTS: usize = 1 << 20;

pub(super) fn check(facts: &Facts, relation: &Relation) -> Checked {
    let mut symbols: Vec<Symbol> = Vec::new();
    collect_all(facts, relation, &mut symbols);
    let mut assumed: Vec<&Relation> = Vec::new();

    // A value that leaves a bounded symbol without any is not allowed, so such symbols are walked through as well, and
    // so are all symbols of an assumed relation, once one of them is.
    loop {
        let before = (symbols.len(), assumed.len());
        for entry in facts.entries() {
            let mut bounds = entry.lower.iter().chain(&entry.upper);
            if bounds.any(|bound| symbols.iter().any(|symbol| bound.contains(symbol))) {
                collect(facts, &entry.symbol, &mut symbols);
            }
        }

        for known in facts.assumptions().iter().map(|assumption| &assumption.relation) {
            let touches = |symbol: &Symbol| known.a.contains(symbol) || known.b.contains(symbol);
            if !assumed.contains(&known) && symbols.iter().any(touches) {
                assumed.push(known);
                collect_all(facts, known, &mut symbols);
            }
        }

        if before == (symbols.len(), assumed.len()) {
            break;
        }
    }

    let mut search = PointSearch { facts, relation, assumed, symbols, left: MAX_POINTS };
    search.from(0, &mut Point::new())
}

fn collect_all(facts: &Facts, relation: &Relation, symbols: &mut Vec<Symbol>) {
    for symbol in relation.a.symbols().union(&relation.b.symbols()) {
        collect(facts, symbol, symbols);
    }
}

/// Appends `symbol` after the symbols that bound or define it.
fn collect(facts: &Facts, symbol: &Symbol, symbols: &mut Vec<Symbol>) {
    if symbols.contains(symbol) || symbols.len() > 64 {
        return;
    }

    let bounds = facts.entry(symbol).into_iter().flat_map(|entry| entry.lower.iter().chain(&entry.upper));
    for term in bounds.chain(facts.definition(symbol)) {
        term.symbols()
            .iter()
            .filter(|&inner| inner != symbol)
            .for_each(|inner| collect(facts, inner, symbols));
    }

    if !symbols.contains(symbol) {
        symbols.push(symbol.clone());
    }
}

struct PointSearch<'f> {
    facts: &'f Facts,
    relation: &'f Relation,
    /// Relations that hold at every point that counts.
    assumed: Vec<&'f Relation>,
    symbols: Vec<Symbol>,
    left: usize,
}

impl PointSearch<'_> {
    fn from(&mut self, idx: usize, point: &mut Point) -> Checked {
        let Some(symbol) = self.symbols.get(idx).cloned() else {
            let counts = self.assumed.iter().all(|known| holds(known, point) == Some(true));
            return if counts && holds(self.relation, point) != Some(true) {
                Err(Flaw(format!("it fails at {point:?}")))
            } else {
                Ok(())
            };
        };

        let (mut value, hi) = self.range(&symbol, point)?;
        let step = self.facts.declaration(&symbol).map_or(BigInt::one(), |declaration| {
            value += (&declaration.offset - &value).mod_floor(&declaration.step);
            declaration.step.clone()
        });

        while value <= hi {
            ensure(self.left > 0, "too many points")?;
            self.left -= 1;
            if self.facts.declaration(&symbol).is_none_or(|declaration| declaration.contains(&value)) {
                point.insert(symbol.clone(), value.clone());
                self.from(idx + 1, point)?;
                point.remove(&symbol);
            }
            value += &step;
        }

        Ok(())
    }

    fn range(&self, symbol: &Symbol, point: &Point) -> Checked<(BigInt, BigInt)> {
        let unbounded = || Flaw(format!("{symbol} has no range"));
        if let Some(definition) = self.facts.definition(symbol) {
            let value = value(definition, point).ok_or_else(unbounded)?;
            return Ok((value.clone(), value));
        }

        let entry = self.facts.entry(symbol).ok_or_else(unbounded)?;
        let declared = entry.declaration.as_ref();
        let lowest = declared.map(|declaration| declaration.lo.clone());
        let highest = declared.and_then(|declaration| declaration.hi.clone());
        let lo = entry.lower.iter().filter_map(|bound| value(bound, point)).chain(lowest).max();
        let hi = entry.upper.iter().filter_map(|bound| value(bound, point)).chain(highest).min();

        Ok((lo.ok_or_else(unbounded)?, hi.ok_or_else(unbounded)?))
    }
}

fn value(term: &Dim, point: &Point) -> Option<BigInt> {
    term.eval(&|symbol| point.get(symbol).cloned()).ok()
}

fn holds(relation: &Relation, point: &Point) -> Option<bool> {
    let a = value(&relation.a, point)?;
    let b = value(&relation.b, point)?;
    match relation.comparison {
        Comparison::Eq => Some(a == b),
        Comparison::Ne => Some(a != b),
        Comparison::Lt => Some(a < b),
        Comparison::Le => Some(a <= b),
        Comparison::Divides if a.is_zero() => None,
        Comparison::Divides => Some(b.is_multiple_of(&a)),
    }
}
