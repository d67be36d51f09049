//! [`Facts`]: the known properties of symbols, each with its origin.
//!
//! A set of facts is persistent: cloning shares everything, and adding to a clone leaves the original alone, so a
//! child scope (a branch, a loop) is a clone with more facts. Each fact keeps its origin, so that an error can say
//! which two facts contradict each other.

mod declaration;
mod relation;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};

use num_traits::{Signed, Zero};

use crate::answers::{Answers, Change, Kept, SetId};
use crate::dim::{Dim, Symbol};
use crate::engine::atoms::Engine;

pub use declaration::Declaration;
pub use relation::{Assumption, Comparison, FactError, Relation};

/// The known properties of symbols. A symbol that was never declared can be any integer.
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
    memory: Option<Memory>,
    informed: OnceLock<Arc<Informed>>,
}

/// An engine that has read the assumptions, and the symbols of all terms that it may have seen. It has no facts, which
/// would hold it in turn.
struct Informed {
    engine: Engine,
    symbols: BTreeSet<Symbol>,
}

/// The answers that these facts share with others, and the number of this set among them.
#[derive(Clone)]
struct Memory {
    set: SetId,
    answers: Arc<Answers>,
}

impl Inner {
    fn entry_mut(&mut self, symbol: &Symbol) -> &mut Entry {
        let next = self.entries.len();
        let idx = *self.index.entry(symbol.clone()).or_insert(next);
        if idx == next {
            let symbol = symbol.clone();
            self.entries.push(Entry { symbol, declaration: None, lower: Vec::new(), upper: Vec::new() });
        }
        &mut self.entries[idx]
    }
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

    /// These facts, with a memory: an answer is worked out once for all facts that are made from these.
    ///
    /// ```
    /// use symshape::{Dim, Facts, Symbol};
    /// let facts = Facts::new().remembering();
    /// let scope = || {
    ///     let mut scope = facts.clone();
    ///     scope.declare_index(&Symbol::new("i"), &Dim::symbol("N"));
    ///     scope
    /// };
    /// let flat: Dim = "(N*j + i)//N".parse().unwrap();
    /// let (first, again) = (scope().simplify(&flat), scope().simplify(&flat));
    /// assert_eq!((first.to_string(), again.to_string()), ("j".into(), "j".into()));
    /// ```
    #[must_use]
    pub fn remembering(mut self) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.memory.get_or_insert_with(|| Memory { set: SetId::FIRST, answers: Arc::default() });
        self
    }

    /// As [`Facts::remembering`], but with a new memory. Questions about these facts then have no effect on the answers
    /// about others, whose searches may end early after the work of all searches that share a memory.
    #[must_use]
    pub fn remembering_alone(mut self) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.memory = Some(Memory { set: SetId::FIRST, answers: Arc::default() });
        self
    }

    /// The answer to `question`, from memory if it was asked about the same facts before.
    pub(crate) fn answer<Q: Hash + Eq, A: Clone>(
        &self,
        kept: fn(&Answers) -> &Kept<Q, A>,
        question: impl FnOnce() -> Q,
        work_out: impl FnOnce() -> A,
    ) -> A {
        let Some(Memory { set, answers }) = &self.0.memory else { return work_out() };
        let kept = kept(answers);
        let key = (*set, question());
        if let Some(answer) = kept.get(&key) {
            return answer;
        }
        let answer = work_out();
        kept.insert(key, answer.clone());
        answer
    }

    /// The memory of answers, if there is one.
    pub(crate) fn answers(&self) -> Option<&Answers> {
        self.0.memory.as_ref().map(|memory| &*memory.answers)
    }

    /// The content, which the caller changes in this way.
    fn changed(&mut self, change: impl FnOnce() -> Change) -> &mut Inner {
        let change = change();
        let keeps_informed = match change.of_one_symbol() {
            Some(symbol) => self.informed().is_some_and(|informed| !informed.symbols.contains(symbol)),
            None => false,
        };

        let inner = Arc::make_mut(&mut self.0);
        if !keeps_informed {
            inner.informed = OnceLock::new();
        }
        if let Some(memory) = &mut inner.memory {
            memory.set = memory.answers.after(memory.set, change);
        }
        inner
    }

    /// An engine with these facts that has read the assumed inequalities, as [`Engine::informed`] does.
    pub(crate) fn informed_engine(&self) -> Engine {
        match self.informed() {
            Some(informed) => {
                let mut engine = informed.engine.clone();
                engine.facts = self.clone();
                engine
            }
            None => Engine::blank(self, false),
        }
    }

    /// The engine that has read the assumptions; `None` if no assumption is an inequality.
    fn informed(&self) -> Option<&Informed> {
        let is_inequality = |assumption: &Assumption| {
            matches!(assumption.relation.comparison, Comparison::Le | Comparison::Lt)
        };
        if !self.assumptions().iter().any(is_inequality) {
            return None;
        }
        let read = || {
            let mut engine = Engine::blank(self, false).informed();
            engine.facts = Facts::new();
            Arc::new(Informed { engine, symbols: self.symbols_of_assumptions() })
        };
        Some(self.0.informed.get_or_init(read))
    }

    /// The symbols of the assumptions, of the facts about these symbols, and so on.
    fn symbols_of_assumptions(&self) -> BTreeSet<Symbol> {
        let sides = |assumption: &Assumption| [assumption.relation.a.clone(), assumption.relation.b.clone()];
        let mut terms: Vec<Dim> = self.assumptions().iter().flat_map(sides).collect();
        let mut symbols = BTreeSet::new();
        while let Some(term) = terms.pop() {
            for symbol in term.symbols() {
                if !symbols.insert(symbol.clone()) {
                    continue;
                }
                let bounds =
                    self.entry(&symbol).into_iter().flat_map(|entry| entry.lower.iter().chain(&entry.upper));
                terms.extend(bounds.chain(self.definition(&symbol)).cloned());
            }
        }
        symbols
    }

    /// Adds a declaration; a symbol declared before keeps the values that both allow.
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

        let inner = self.changed(|| Change::Declaration(symbol.clone(), met.clone()));
        inner.entry_mut(symbol).declaration = Some(met);
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
        self.add_lower(symbol, lo);
        self.add_upper(symbol, hi);
    }

    fn add_lower(&mut self, symbol: &Symbol, lo: &Dim) {
        let inner = self.changed(|| Change::Lower(symbol.clone(), lo.clone()));
        inner.entry_mut(symbol).lower.push(lo.clone());
    }

    fn add_upper(&mut self, symbol: &Symbol, hi: &Dim) {
        let inner = self.changed(|| Change::Upper(symbol.clone(), hi.clone()));
        inner.entry_mut(symbol).upper.push(hi.clone());
    }

    /// The constant declaration of `symbol`, if it has one.
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
        let a = &self.0;
        let b = &other.0;
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
    /// The relation contradicts the known facts.
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

        if narrowed { Ok(()) } else { Err(self.contradiction(relation, origin)) }
    }

    /// Adds a relation without a check for contradictions.
    pub(crate) fn add_assumption(&mut self, relation: Relation, origin: &str) {
        let inner = self.changed(|| Change::Assumption(relation.clone(), origin.into()));
        inner.assumptions.push(Assumption { relation, origin: origin.into() });
    }

    /// Adds the relation of one case of a proof. It comes before all others, because reading them may need its order
    /// of the operands of a minimum.
    pub(crate) fn add_case(&mut self, relation: Relation) {
        let inner = self.changed(|| Change::Case(relation.clone()));
        inner.assumptions.insert(0, Assumption { relation, origin: "case".into() });
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

    /// Narrows symbols to the values that satisfy an equation; `false` if there are none.
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

            let inner = self.changed(|| Change::Definition(symbol.clone(), definition.clone()));
            inner.definitions.insert(symbol, definition);
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
                    self.add_upper(&symbol.clone(), b);
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

        if old.hi.as_ref() == Some(value) {
            self.declare(&symbol, Declaration::range(old.lo, value - 1)).is_ok()
        } else {
            true
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
