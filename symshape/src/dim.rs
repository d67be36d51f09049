//! [`Dim`], the expression type, and [`Symbol`], its names.
//!
//! A `Dim` is an immutable tree that is shared by reference count: cloning costs nothing and equal subtrees may be
//! one allocation. Constructors fold constants and units (`x + 0`, `1 * x`, `x // 1`) and flatten nested sums and
//! products; everything that needs a proof is left to [`Facts::simplify`](crate::Facts::simplify).
//! Each node caches its hash, size and depth, so that hashing is constant time and hostile trees can be refused
//! before anything recurses into them.

mod build;
mod term;

pub use term::{Dim, Node, Symbol};
pub(crate) use term::{MAX_DEPTH, MAX_SIZE, is_negation, operations, rounded_up};

use std::collections::{BTreeSet, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use num_bigint::BigInt;
use num_traits::ToPrimitive;

use crate::memo::{FastHasher, FastMap};

/// Terms of at most this many nodes, counted as trees, are walked by recursion, which allocates nothing.
const SMALL: u32 = 64;

impl Dim {
    /// The symbol called `name`.
    pub fn symbol(name: &str) -> Self {
        Symbol::new(name).into()
    }

    /// The integer 0.
    pub fn zero() -> Self {
        0.into()
    }

    /// The integer 1.
    pub fn one() -> Self {
        1.into()
    }

    /// The outermost operation.
    pub fn node(&self) -> &Node {
        &self.0.node
    }

    /// The value, if this is an integer.
    pub fn as_int(&self) -> Option<&BigInt> {
        match self.node() {
            Node::Int(value) => Some(value),
            _ => None,
        }
    }

    /// The value, if this is an integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.as_int()?.to_i64()
    }

    /// The symbol, if this is nothing else.
    pub fn as_symbol(&self) -> Option<&Symbol> {
        match self.node() {
            Node::Symbol(symbol) => Some(symbol),
            _ => None,
        }
    }

    pub(crate) fn is_int(&self, value: i64) -> bool {
        self.as_i64() == Some(value)
    }

    /// Whether this term is small enough for everything that recurses.
    pub(crate) fn is_tractable(&self) -> bool {
        self.0.depth <= MAX_DEPTH && self.0.size <= MAX_SIZE
    }

    /// The number of nodes, counted as a tree.
    pub(crate) fn size(&self) -> u32 {
        self.0.size
    }

    pub(crate) fn depth(&self) -> u32 {
        self.0.depth
    }

    /// The number of operations, as counted by `cost`.
    pub(crate) fn operations(&self) -> u32 {
        self.0.operations
    }

    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Every node once, operands first, without recursion and without walking a shared subtree twice.
    pub(crate) fn post_order(&self) -> Vec<&Dim> {
        let mut seen: HashSet<usize, BuildHasherDefault<FastHasher>> = HashSet::default();
        let mut order = Vec::new();

        let mut stack = vec![(self, false)];
        while let Some((dim, expanded)) = stack.pop() {
            if expanded {
                order.push(dim);
            } else if seen.insert(dim.address()) {
                stack.push((dim, true));
                stack.extend(dim.node().operands().into_iter().rev().map(|child| (child, false)));
            }
        }

        order
    }

    /// Whether `is` returns true for a symbol of this term, which is small.
    fn any_symbol(&self, is: &mut dyn FnMut(&Symbol) -> bool) -> bool {
        match self.node() {
            Node::Int(_) => false,
            Node::Symbol(symbol) => is(symbol),
            Node::FloorDiv(a, b) | Node::Mod(a, b) => a.any_symbol(is) || b.any_symbol(is),
            Node::Add(list) | Node::Mul(list) | Node::Min(list) | Node::Max(list) => {
                list.iter().any(|operand| operand.any_symbol(is))
            }
        }
    }

    /// Every symbol that occurs.
    pub fn symbols(&self) -> BTreeSet<Symbol> {
        if self.size() <= SMALL {
            let mut symbols = BTreeSet::new();
            self.any_symbol(&mut |symbol| {
                symbols.insert(symbol.clone());
                false
            });
            return symbols;
        }
        self.post_order().into_iter().filter_map(|dim| dim.as_symbol().cloned()).collect()
    }

    /// Whether `symbol` occurs.
    pub fn contains(&self, symbol: &Symbol) -> bool {
        if self.size() <= SMALL {
            return self.any_symbol(&mut |other| other == symbol);
        }
        self.post_order().into_iter().any(|dim| dim.as_symbol() == Some(symbol))
    }

    /// This term with symbols replaced where `value_of` returns a term.
    ///
    /// ```
    /// use symshape::Dim;
    /// let e = Dim::symbol("N") * 2 + 1;
    /// assert_eq!(e.substitute(&|s| (s.name() == "N").then(|| Dim::from(4))), Dim::from(9));
    /// ```
    pub fn substitute(&self, value_of: &dyn Fn(&Symbol) -> Option<Dim>) -> Dim {
        if self.size() <= SMALL {
            return self.substitute_in_tree(value_of);
        }
        let mut done: FastMap<usize, Dim> = FastMap::default();
        for dim in self.post_order() {
            let new = match dim.node() {
                Node::Int(_) => dim.clone(),
                Node::Symbol(symbol) => value_of(symbol).unwrap_or_else(|| dim.clone()),
                node => rebuild(dim, node, |child| done[&child.address()].clone()),
            };
            done.insert(dim.address(), new);
        }
        done[&self.address()].clone()
    }

    /// [`Dim::substitute`] in a small term.
    fn substitute_in_tree(&self, value_of: &dyn Fn(&Symbol) -> Option<Dim>) -> Dim {
        let operands = match self.node() {
            Node::Int(_) => return self.clone(),
            Node::Symbol(symbol) => return value_of(symbol).unwrap_or_else(|| self.clone()),
            node => node.operands(),
        };
        let new: Vec<Dim> = operands.iter().map(|operand| operand.substitute_in_tree(value_of)).collect();
        if new.iter().zip(operands).all(|(new, old)| new.address() == old.address()) {
            return self.clone();
        }
        let mut new = new.into_iter();
        rebuild(self, self.node(), |_| new.next().expect("as many operands as before"))
    }
}

fn rebuild(dim: &Dim, node: &Node, mut new: impl FnMut(&Dim) -> Dim) -> Dim {
    match node {
        Node::Int(_) | Node::Symbol(_) => dim.clone(),
        Node::Add(list) => Dim::sum(list.iter().map(new)),
        Node::Mul(list) => Dim::product(list.iter().map(new)),
        Node::FloorDiv(a, b) => new(a).floor_div(new(b)),
        Node::Mod(a, b) => new(a).modulo(new(b)),
        Node::Min(list) => fold_extreme(list.iter().map(new), Dim::min),
        Node::Max(list) => fold_extreme(list.iter().map(new), Dim::max),
    }
}

fn fold_extreme(list: impl Iterator<Item = Dim>, pick: fn(&Dim, Dim) -> Dim) -> Dim {
    list.reduce(|acc, next| pick(&acc, next)).expect("a minimum or maximum has operands")
}
