//! [`Answers`]: a memory of answers, which facts share with all facts that were made from them.
//!
//! A compiler asks the same questions again and again: the layers of a network have the same loops, and several passes
//! look at each of them. The key of an answer must hold everything that the answer depends on, and that is the whole
//! set of facts. So every set has a number. The number of a set follows from that of the set before and from the fact
//! that was added; sets of one number are the same facts, added in the same order.
//!
//! Answers depend on the input alone, so it does not matter which of them are kept.
//!
//! The memory also counts the work behind its answers. Hostile facts make every search long, and a model asks
//! thousands of questions. After [`AMPLE_WORK`] the searches are short, and more answers are unknown.
//! After [`MAX_WORK`] nothing is searched.

use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::assume::{Declaration, Relation};
use crate::dim::{Dim, Symbol};
use crate::engine::bounds::Bounds;
use crate::memo::FastMap;
use crate::prove::Verdict;

/// The number of a set of facts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SetId(u64);

impl SetId {
    /// The set that the memory began with.
    pub(crate) const FIRST: SetId = SetId(0);
}

/// One fact, as it is added to a set.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Change {
    /// The declaration of a symbol, in place of an earlier one.
    Declaration(Symbol, Declaration),
    /// A term that the symbol is never below.
    Lower(Symbol, Dim),
    /// A term that the symbol is never above.
    Upper(Symbol, Dim),
    /// A relation and its origin, after all others.
    Assumption(Relation, Box<str>),
    /// A relation before all others.
    Case(Relation),
    /// A term that the symbol equals.
    Definition(Symbol, Dim),
}

impl Change {
    /// The symbol, if the fact is a range of one symbol.
    pub(crate) fn of_one_symbol(&self) -> Option<&Symbol> {
        match self {
            Change::Declaration(symbol, _) | Change::Lower(symbol, _) | Change::Upper(symbol, _) => {
                Some(symbol)
            }
            Change::Assumption(..) | Change::Case(_) | Change::Definition(..) => None,
        }
    }
}

/// A map that is emptied at this number of entries, about 20 MB.
const MAX_ENTRIES: usize = 1 << 17;

/// The answers to one kind of question.
pub(crate) struct Kept<Q, A>(Mutex<FastMap<(SetId, Q), A>>);

impl<Q, A> Default for Kept<Q, A> {
    fn default() -> Self {
        Kept(Mutex::default())
    }
}

impl<Q: Hash + Eq, A: Clone> Kept<Q, A> {
    fn lock(&self) -> MutexGuard<'_, FastMap<(SetId, Q), A>> {
        // Every entry is complete, whatever ended the thread that wrote the last one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: &(SetId, Q)) -> Option<A> {
        self.lock().get(key).cloned()
    }

    pub(crate) fn insert(&self, key: (SetId, Q), answer: A) {
        let mut kept = self.lock();
        if kept.len() >= MAX_ENTRIES {
            kept.clear();
        }
        kept.insert(key, answer);
    }
}

#[derive(Default)]
struct Sets {
    last: u64,
    after: FastMap<(SetId, Change), SetId>,
}

/// The numbers of sets, and the answers about each.
#[derive(Default)]
pub(crate) struct Answers {
    sets: Mutex<Sets>,
    pub(crate) simple: Kept<Dim, Dim>,
    pub(crate) bounds: Kept<Dim, Bounds>,
    pub(crate) verdicts: Kept<Relation, Verdict>,
    pub(crate) refuted: Kept<Relation, bool>,
    pub(crate) linear: Kept<(Dim, Symbol), Option<(Dim, Dim)>>,
    pub(crate) in_loops: Kept<(Vec<Dim>, Vec<Symbol>), Vec<Dim>>,
    /// The terms of all polynomials that searches have bounded.
    work: AtomicU64,
}

/// The work of all searches after which searches are short. Large models take a tenth of it.
const AMPLE_WORK: u64 = 1_000_000;

/// The work of all searches after which there are none, a few seconds for huge integers.
const MAX_WORK: u64 = 1_500_000;

/// How long searches may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    Ample,
    Short,
    /// Interval arithmetic alone.
    None,
}

impl Answers {
    /// Counts a search that bounds a polynomial with this number of terms.
    pub(crate) fn count_work(&self, terms: usize) {
        self.work.fetch_add(terms as u64, Ordering::Relaxed);
    }

    /// How long a search for one of these answers may be now.
    pub(crate) fn effort(&self) -> Effort {
        let work = self.work.load(Ordering::Relaxed);
        if work <= AMPLE_WORK {
            Effort::Ample
        } else if work <= MAX_WORK {
            Effort::Short
        } else {
            Effort::None
        }
    }

    /// The number of the set that `change` makes of `set`.
    pub(crate) fn after(&self, set: SetId, change: Change) -> SetId {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        if sets.after.len() >= MAX_ENTRIES {
            // No number is used twice, so a forgotten set only gets another one.
            sets.after.clear();
        }
        let Sets { last, after } = &mut *sets;
        *after.entry((set, change)).or_insert_with(|| {
            *last += 1;
            SetId(*last)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Declaration, Facts};

    /// Whether `N*j + i` is proven to be below `N*M`, for `i` below `N` and `j` below `M`.
    fn is_proven(facts: &Facts, [n, m, i, j]: [&str; 4]) -> bool {
        let mut facts = facts.clone();
        for size in [n, m] {
            facts.declare(&Symbol::new(size), Declaration::range(1, 4096)).expect("a range");
        }
        facts.declare_index(&Symbol::new(i), &Dim::symbol(n));
        facts.declare_index(&Symbol::new(j), &Dim::symbol(m));
        let flat: Dim = format!("{n}*{j} + {i}").parse().expect("a term");
        facts.prove_lt(&flat, &format!("{n}*{m}").parse().expect("a term")).is_yes()
    }

    #[test]
    fn work_is_counted() {
        let facts = Facts::new().remembering();
        assert!(is_proven(&facts, ["N", "M", "i", "j"]));
        let answers = facts.answers().expect("a memory");
        let work = answers.work.load(Ordering::Relaxed);
        assert!((1..1000).contains(&work), "{work}");
    }

    #[test]
    fn searches_end_early_after_ample_work() {
        let facts = Facts::new().remembering();
        let answers = facts.answers().expect("a memory");
        answers.count_work(AMPLE_WORK as usize);
        assert_eq!(answers.effort(), Effort::Ample);
        answers.count_work(1);
        assert_eq!(answers.effort(), Effort::Short);

        let mut engine = crate::engine::atoms::Engine::new(&facts);
        let ample = engine.total_budget;
        engine.reset_budget();
        assert!(engine.total_budget * 10 < ample, "{}", engine.total_budget);

        // Short searches are long enough for common questions.
        assert!(is_proven(&facts, ["N", "M", "i", "j"]));

        answers.count_work(MAX_WORK as usize);
        assert_eq!(answers.effort(), Effort::None);
        assert!(!is_proven(&facts, ["A", "B", "k", "l"]));
    }
}
