//! [`Answers`]: a memory of answers, which facts share with all facts that were made from them.
//!
//! A compiler asks the same questions again and again: the layers of a network have the same loops, and several passes
//! look at each of them. The key of an answer must hold everything that the answer depends on, and that is the whole
//! set of facts. So every set has a number. The number of a set follows from that of the set before and from the fact
//! that was added; sets of one number are the same facts, added in the same order.
//!
//! Answers depend on the input alone, so it does not matter which of them are kept.

use std::hash::Hash;
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
    pub(crate) linear: Kept<(Dim, Symbol), Option<(Dim, Dim)>>,
    pub(crate) in_loops: Kept<(Vec<Dim>, Vec<Symbol>), Vec<Dim>>,
}

impl Answers {
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
