//! [`Facts`]: what is known about symbols, and where it is known from.
//!
//! A set of facts is persistent: cloning shares everything, and adding to a clone leaves the original alone, so a
//! child scope (a branch, a loop) is a clone with more facts. Each fact keeps its origin, so that an error can say
//! which two facts contradict each other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{One, Signed, Zero};

use crate::dim::{Dim, Symbol};

/// Which integers a symbol can be: a range, a residue class, or a list of values.
///
/// ```
/// use symshape::Declaration;
/// let d = Declaration::range(1, 4096).step(8, 0);
/// assert_eq!((d.lo, d.hi), (8.into(), Some(4096.into())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The least value.
    pub lo: BigInt,
    /// The greatest value, if there is one.
    pub hi: Option<BigInt>,
    /// Values are `offset` modulo `step`; at least 1.
    pub step: BigInt,
    /// The residue of every value modulo `step`.
    pub offset: BigInt,
    /// All values in rising order, where they were listed.
    pub values: Option<Vec<BigInt>>,
    /// Who declared it, for errors.
    pub origin: Option<Arc<str>>,
}

impl Declaration {
    /// `lo <= symbol <= hi`. An empty range is refused by [`Facts::declare`].
    pub fn range(lo: impl Into<BigInt>, hi: impl Into<BigInt>) -> Self {
        Declaration { hi: Some(hi.into()), ..Declaration::at_least(lo) }
    }

    /// `lo <= symbol`, without an upper bound.
    pub fn at_least(lo: impl Into<BigInt>) -> Self {
        let (step, offset) = (BigInt::one(), BigInt::ZERO);
        Declaration { lo: lo.into(), hi: None, step, offset, values: None, origin: None }
    }

    /// One of `values`. An empty list is refused by [`Facts::declare`].
    pub fn values<T: Into<BigInt>>(values: impl IntoIterator<Item = T>) -> Self {
        let mut values: Vec<BigInt> = values.into_iter().map(Into::into).collect();
        values.sort();
        values.dedup();
        let lo = values.first().cloned().unwrap_or_else(BigInt::one);
        let hi = values.last().cloned().unwrap_or(BigInt::ZERO);
        let gaps = values.iter().fold(BigInt::ZERO, |gcd, value| gcd.gcd(&(value - &lo)));
        let mut declaration = Declaration::range(lo.clone(), hi);
        if !gaps.is_zero() {
            declaration = declaration.step(gaps, lo);
        }
        declaration.values = Some(values);
        declaration
    }

    /// Only values that are `offset` modulo `step`; a step below 1 is refused by [`Facts::declare`].
    #[must_use]
    pub fn step(mut self, step: impl Into<BigInt>, offset: impl Into<BigInt>) -> Self {
        self.step = step.into();
        self.offset = offset.into();
        if self.step.is_positive() {
            self.offset = self.offset.mod_floor(&self.step);
            self.snap();
        }
        self
    }

    /// Who declared it: "input `x`, axis 0".
    #[must_use]
    pub fn origin(mut self, origin: &str) -> Self {
        self.origin = Some(origin.into());
        self
    }

    /// Whether `value` is allowed.
    pub fn contains(&self, value: &BigInt) -> bool {
        value >= &self.lo
            && self.hi.as_ref().is_none_or(|hi| value <= hi)
            && (value - &self.offset).mod_floor(&self.step).is_zero()
            && self.values.as_ref().is_none_or(|values| values.binary_search(value).is_ok())
    }

    /// Moves both ends inwards to the nearest value of the residue class.
    fn snap(&mut self) {
        self.lo = &self.lo + (&self.offset - &self.lo).mod_floor(&self.step);
        if let Some(hi) = &self.hi {
            self.hi = Some(hi - (hi - &self.offset).mod_floor(&self.step));
        }
        if let Some(values) = &mut self.values {
            values.retain(|value| (value - &self.offset).mod_floor(&self.step).is_zero());
        }
    }

    fn is_empty(&self) -> bool {
        self.hi.as_ref().is_some_and(|hi| hi < &self.lo) || self.values.as_ref().is_some_and(Vec::is_empty)
    }

    /// What satisfies both, `None` if nothing does.
    fn meet(&self, other: &Declaration) -> Option<Declaration> {
        let gcd = self.step.extended_gcd(&other.step);
        let (quotient, remainder) = (&other.offset - &self.offset).div_mod_floor(&gcd.gcd);
        if !remainder.is_zero() {
            return None;
        }
        let step = self.step.lcm(&other.step);
        let offset = &self.offset + &self.step * gcd.x * quotient;
        let mut both = Declaration::at_least((&self.lo).max(&other.lo).clone());
        both.hi = self.hi.iter().chain(&other.hi).min().cloned();
        both.origin = other.origin.clone().or_else(|| self.origin.clone());
        both.values = self.values.clone().or_else(|| other.values.clone());
        if let Some(values) = &mut both.values {
            values.retain(|value| self.contains(value) && other.contains(value));
            both.lo = values.first()?.clone();
            both.hi = values.last().cloned();
        }
        both = both.step(step, offset);
        (!both.is_empty()).then_some(both)
    }
}

impl fmt::Display for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.values, &self.hi) {
            (Some(values), _) => {
                let list: Vec<String> = values.iter().map(BigInt::to_string).collect();
                write!(f, "{{{}}}", list.join(", "))?;
            }
            (None, Some(hi)) => write!(f, "{}..={hi}", self.lo)?,
            (None, None) => write!(f, "{}..", self.lo)?,
        }
        if !self.step.is_one() && self.values.is_none() {
            write!(f, ", {} modulo {}", self.offset, self.step)?;
        }
        match &self.origin {
            Some(origin) => write!(f, " ({origin})"),
            None => Ok(()),
        }
    }
}

/// How the two sides of a [`Relation`] compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// Both are equal.
    Eq,
    /// They differ.
    Ne,
    /// The left is less than the right.
    Lt,
    /// The left is at most the right.
    Le,
    /// The left divides the right without remainder.
    Divides,
}

/// A statement about two terms.
///
/// ```
/// use symshape::{Dim, Relation};
/// let r = Relation::divides(8, Dim::symbol("S"));
/// assert_eq!(r.to_string(), "S%8 == 0");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Relation {
    /// How they compare.
    pub comparison: Comparison,
    /// The left side.
    pub a: Dim,
    /// The right side.
    pub b: Dim,
}

impl Relation {
    fn new(comparison: Comparison, a: Dim, b: Dim) -> Self {
        Relation { comparison, a, b }
    }

    /// `a == b`
    pub fn eq(a: impl Into<Dim>, b: impl Into<Dim>) -> Self {
        Relation::new(Comparison::Eq, a.into(), b.into())
    }

    /// `a != b`
    pub fn ne(a: impl Into<Dim>, b: impl Into<Dim>) -> Self {
        Relation::new(Comparison::Ne, a.into(), b.into())
    }

    /// `a < b`
    pub fn lt(a: impl Into<Dim>, b: impl Into<Dim>) -> Self {
        Relation::new(Comparison::Lt, a.into(), b.into())
    }

    /// `a <= b`
    pub fn le(a: impl Into<Dim>, b: impl Into<Dim>) -> Self {
        Relation::new(Comparison::Le, a.into(), b.into())
    }

    /// `a > b`, kept as `b < a`
    pub fn gt(a: impl Into<Dim>, b: impl Into<Dim>) -> Self {
        Relation::lt(b, a)
    }

    /// `a >= b`, kept as `b <= a`
    pub fn ge(a: impl Into<Dim>, b: impl Into<Dim>) -> Self {
        Relation::le(b, a)
    }

    /// The symbol, if this says that one is not 0.
    pub(crate) fn nonzero_symbol(&self) -> Option<&Symbol> {
        match (self.comparison, self.a.is_int(0), self.b.is_int(0)) {
            (Comparison::Ne, _, true) => self.a.as_symbol(),
            (Comparison::Ne, true, _) => self.b.as_symbol(),
            _ => None,
        }
    }

    /// `b % a == 0`
    pub fn divides(a: impl Into<Dim>, b: impl Into<Dim>) -> Self {
        Relation::new(Comparison::Divides, a.into(), b.into())
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b) = (&self.a, &self.b);
        match self.comparison {
            Comparison::Eq => write!(f, "{a} == {b}"),
            Comparison::Ne => write!(f, "{a} != {b}"),
            Comparison::Lt => write!(f, "{a} < {b}"),
            Comparison::Le => write!(f, "{a} <= {b}"),
            Comparison::Divides => write!(f, "{} == 0", b.modulo(a)),
        }
    }
}

/// A relation that holds, and who says so.
#[derive(Clone, Debug)]
pub struct Assumption {
    /// What holds.
    pub relation: Relation,
    /// Who says so.
    pub origin: Arc<str>,
}

/// Why a fact was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactError {
    /// No value satisfies the declaration.
    Empty {
        /// The symbol declared.
        symbol: Symbol,
        /// As it was declared.
        declaration: Box<Declaration>,
    },
    /// The step of a declaration is below 1.
    Step {
        /// The symbol declared.
        symbol: Symbol,
        /// The step.
        step: BigInt,
    },
    /// Two declarations of one symbol have no value in common.
    Redeclared {
        /// The symbol declared.
        symbol: Symbol,
        /// What was known.
        old: Box<Declaration>,
        /// What was to be added.
        new: Box<Declaration>,
    },
    /// A relation that cannot hold together with the facts before it.
    Contradiction {
        /// What was to be assumed.
        relation: Box<Relation>,
        /// Who assumed it.
        origin: String,
        /// The facts about its symbols, with their origins.
        known: Vec<String>,
    },
}

impl fmt::Display for FactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FactError::Empty { symbol, declaration } => write!(f, "{symbol} has no value: {declaration}"),
            FactError::Step { symbol, step } => write!(f, "{symbol} has step {step}; a step is at least 1"),
            FactError::Redeclared { symbol, old, new } => {
                write!(f, "{symbol} is declared as {old} and as {new}, which have no value in common")
            }
            FactError::Contradiction { relation, origin, known } => {
                write!(f, "`{relation}` ({origin}) cannot hold")?;
                match known.is_empty() {
                    true => Ok(()),
                    false => write!(f, ", given {}", known.join("; ")),
                }
            }
        }
    }
}

impl std::error::Error for FactError {}

/// What is known about symbols. A symbol that was never declared can be any integer.
///
/// ```
/// use symshape::{Declaration, Dim, Facts, Symbol};
/// let (n, j) = (Symbol::new("N"), Symbol::new("j"));
/// let mut facts = Facts::new();
/// facts.declare(&n, Declaration::range(1, 4096))?;
/// facts.declare_index(&j, &Dim::from(&n));
/// let flat: Dim = "(i*N + j)//N".parse().unwrap();
/// assert_eq!(facts.simplify(&flat).to_string(), "i");
/// # Ok::<(), symshape::FactError>(())
/// ```
#[derive(Clone, Default)]
pub struct Facts(Arc<Inner>);

#[derive(Clone, Default)]
struct Inner {
    entries: Vec<Entry>,
    index: BTreeMap<Symbol, usize>,
    assumptions: Vec<Assumption>,
    definitions: BTreeMap<Symbol, Dim>,
}

/// Everything declared about one symbol.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) symbol: Symbol,
    pub(crate) declaration: Option<Declaration>,
    /// Terms that the symbol is never below.
    pub(crate) lower: Vec<Dim>,
    /// Terms that the symbol is never above.
    pub(crate) upper: Vec<Dim>,
}

impl Facts {
    /// Nothing is known.
    pub fn new() -> Self {
        Facts::default()
    }

    fn entry_mut(&mut self, symbol: &Symbol) -> &mut Entry {
        let inner = Arc::make_mut(&mut self.0);
        let next = inner.entries.len();
        let idx = *inner.index.entry(symbol.clone()).or_insert(next);
        if idx == next {
            let symbol = symbol.clone();
            inner.entries.push(Entry { symbol, declaration: None, lower: Vec::new(), upper: Vec::new() });
        }
        &mut inner.entries[idx]
    }

    /// Adds a declaration; a symbol declared before keeps what both allow.
    ///
    /// ```
    /// use symshape::{Declaration, Facts, Symbol};
    /// let n = Symbol::new("N");
    /// let mut facts = Facts::new();
    /// facts.declare(&n, Declaration::range(1, 64).origin("input x, axis 0"))?;
    /// let error = facts.declare(&n, Declaration::at_least(65).origin("input y, axis 0")).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "N is declared as 1..=64 (input x, axis 0) and as 65.. (input y, axis 0), which have no value in common"
    /// );
    /// # Ok::<(), symshape::FactError>(())
    /// ```
    ///
    /// # Errors
    /// No value is left, or the step is below 1.
    pub fn declare(&mut self, symbol: &Symbol, declaration: Declaration) -> Result<(), FactError> {
        if !declaration.step.is_positive() {
            return Err(FactError::Step { symbol: symbol.clone(), step: declaration.step });
        }
        if declaration.is_empty() {
            return Err(FactError::Empty { symbol: symbol.clone(), declaration: declaration.into() });
        }
        let met = match self.declaration(symbol) {
            None => declaration,
            Some(old) => old.meet(&declaration).ok_or_else(|| FactError::Redeclared {
                symbol: symbol.clone(),
                old: old.clone().into(),
                new: declaration.into(),
            })?,
        };
        self.entry_mut(symbol).declaration = Some(met);
        Ok(())
    }

    /// Declares a loop index: `0 <= symbol < extent`, where the extent may hold symbols declared before.
    ///
    /// In a scope with an index the extent is at least 1: an empty loop has no body.
    pub fn declare_index(&mut self, symbol: &Symbol, extent: &Dim) {
        self.declare_between(symbol, &Dim::zero(), &(extent - 1));
    }

    /// Declares `lo <= symbol <= hi`, where both ends may hold symbols declared before.
    pub fn declare_between(&mut self, symbol: &Symbol, lo: &Dim, hi: &Dim) {
        let entry = self.entry_mut(symbol);
        entry.lower.push(lo.clone());
        entry.upper.push(hi.clone());
    }

    /// What was declared of `symbol` in numbers.
    pub fn declaration(&self, symbol: &Symbol) -> Option<&Declaration> {
        self.entry(symbol)?.declaration.as_ref()
    }

    pub(crate) fn entry(&self, symbol: &Symbol) -> Option<&Entry> {
        self.0.index.get(symbol).map(|&idx| &self.0.entries[idx])
    }

    /// Whether both hold the same facts, the origins of assumptions aside.
    pub(crate) fn same_as(&self, other: &Facts) -> bool {
        let relations =
            |facts: &Facts| facts.assumptions().iter().map(|a| a.relation.clone()).collect::<Vec<_>>();
        let (a, b) = (&self.0, &other.0);
        a.entries == b.entries && a.definitions == b.definitions && relations(self) == relations(other)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.0.entries
    }

    /// The declared symbols, in the order of their declaration.
    pub fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.0.entries.iter().map(|entry| &entry.symbol)
    }

    /// The relations assumed, in order.
    pub fn assumptions(&self) -> &[Assumption] {
        &self.0.assumptions
    }

    /// Adds a relation that holds; `origin` says why, for errors.
    ///
    /// ```
    /// use symshape::{Declaration, Dim, Facts, Relation, Symbol};
    /// let mut facts = Facts::new();
    /// facts.declare(&Symbol::new("S"), Declaration::range(1, 7).origin("input x, axis 1"))?;
    /// let error = facts.assume(Relation::divides(8, Dim::symbol("S")), "--dim S").unwrap_err();
    /// assert_eq!(error.to_string(), "`S%8 == 0` (--dim S) cannot hold, given S in 1..=7 (input x, axis 1)");
    /// # Ok::<(), symshape::FactError>(())
    /// ```
    ///
    /// # Errors
    /// The relation contradicts what is known.
    pub fn assume(&mut self, relation: Relation, origin: &str) -> Result<(), FactError> {
        if self.refutes(&relation) {
            return Err(self.contradiction(relation, origin));
        }
        self.add_assumption(relation.clone(), origin);
        let narrowed = match relation.comparison {
            Comparison::Eq => self.narrow_eq(&relation.a, &relation.b),
            Comparison::Le => self.narrow_le(&relation.a, &relation.b),
            Comparison::Lt => self.narrow_le(&relation.a, &(&relation.b - 1)),
            Comparison::Divides => self.narrow_step(&relation.a, &relation.b),
            Comparison::Ne => self.narrow_ne(&relation.a, &relation.b),
        };
        match narrowed {
            true => Ok(()),
            false => Err(self.contradiction(relation, origin)),
        }
    }

    /// Adds a relation without a look at what it contradicts.
    pub(crate) fn add_assumption(&mut self, relation: Relation, origin: &str) {
        let assumption = Assumption { relation, origin: origin.into() };
        Arc::make_mut(&mut self.0).assumptions.push(assumption);
    }

    fn contradiction(&self, relation: Relation, origin: &str) -> FactError {
        let mut known = Vec::new();
        let symbols: Vec<Symbol> = relation.a.symbols().union(&relation.b.symbols()).cloned().collect();
        for symbol in &symbols {
            known.extend(self.declaration(symbol).map(|declaration| format!("{symbol} in {declaration}")));
        }
        for assumption in self.assumptions() {
            let other = &assumption.relation;
            if other != &relation && symbols.iter().any(|s| other.a.contains(s) || other.b.contains(s)) {
                known.push(format!("{other} ({})", assumption.origin));
            }
        }
        FactError::Contradiction { relation: relation.into(), origin: origin.to_string(), known }
    }

    /// Narrows symbols to what an equation leaves of them; `false` if nothing is left.
    ///
    /// An equation that can be solved for a symbol defines it: the symbol declared last, so that a derived symbol
    /// is written in terms of the ones it derives from.
    fn narrow_eq(&mut self, a: &Dim, b: &Dim) -> bool {
        let difference = a - b;
        let mut symbols: Vec<Symbol> = difference.symbols().into_iter().collect();
        symbols.sort_by_key(|symbol| std::cmp::Reverse(self.0.index.get(symbol).copied()));
        for symbol in symbols {
            let Some((coef, rest)) = self.linear_in(&difference, &symbol) else { continue };
            let definition = match coef.as_i64() {
                Some(1) => self.simplify(&-rest),
                Some(-1) => rest,
                _ => continue,
            };
            let declared = self.declaration(&symbol).cloned();
            if let (Some(other), Some(declared)) = (definition.as_symbol().cloned(), declared.clone())
                && self.declare(&other, declared).is_err()
            {
                return false;
            }
            if let Some(value) = definition.as_int()
                && declared.is_some_and(|declared| !declared.contains(value))
            {
                return false;
            }
            Arc::make_mut(&mut self.0).definitions.insert(symbol, definition);
            return true;
        }
        true
    }

    /// The term that `symbol` was assumed to equal, over other symbols.
    pub(crate) fn definition(&self, symbol: &Symbol) -> Option<&Dim> {
        self.0.definitions.get(symbol)
    }

    fn narrow_le(&mut self, a: &Dim, b: &Dim) -> bool {
        match (a.as_symbol(), b.as_int(), a.as_int(), b.as_symbol()) {
            (Some(symbol), Some(hi), ..) => {
                let Some(old) = self.declaration(symbol).cloned() else {
                    self.entry_mut(&symbol.clone()).upper.push(b.clone());
                    return true;
                };
                let hi = hi.min(old.hi.as_ref().unwrap_or(hi)).clone();
                self.declare(&symbol.clone(), Declaration::range(old.lo, hi)).is_ok()
            }
            (_, _, Some(lo), Some(symbol)) => {
                self.declare(&symbol.clone(), Declaration::at_least(lo.clone())).is_ok()
            }
            _ => true,
        }
    }

    /// A symbol that is not one of its extreme values is beyond it.
    fn narrow_ne(&mut self, a: &Dim, b: &Dim) -> bool {
        let (symbol, value) = match (a.as_symbol(), b.as_int(), a.as_int(), b.as_symbol()) {
            (Some(symbol), Some(value), ..) | (_, _, Some(value), Some(symbol)) => (symbol.clone(), value),
            _ => return true,
        };
        let Some(old) = self.declaration(&symbol).cloned() else { return true };
        if old.lo == *value {
            return self.declare(&symbol, Declaration::at_least(value + 1)).is_ok();
        }
        match old.hi.as_ref() == Some(value) {
            true => self.declare(&symbol, Declaration::range(old.lo, value - 1)).is_ok(),
            false => true,
        }
    }

    fn narrow_step(&mut self, step: &Dim, symbol: &Dim) -> bool {
        let (Some(step), Some(symbol)) = (step.as_int(), symbol.as_symbol()) else { return true };
        let Some(old) = self.declaration(symbol).cloned() else { return true };
        let whole = Declaration { hi: old.hi, ..Declaration::at_least(old.lo) };
        step.is_zero() || self.declare(&symbol.clone(), whole.step(step.abs(), 0)).is_ok()
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for entry in &self.0.entries {
            let bounds = format!("{:?}..={:?}", entry.lower, entry.upper);
            match &entry.declaration {
                Some(declaration) => map.entry(&entry.symbol, &declaration.to_string()),
                None => map.entry(&entry.symbol, &bounds),
            };
        }
        for Assumption { relation, origin } in &self.0.assumptions {
            map.entry(&relation.to_string(), origin);
        }
        map.finish()
    }
}
