//! [`Dim`], the expression type, and [`Symbol`], its names.
//!
//! A `Dim` is an immutable tree that is shared by reference count: cloning costs nothing and equal subtrees may be
//! one allocation. Constructors fold constants and units (`x + 0`, `1 * x`, `x // 1`) and flatten nested sums and
//! products; everything that needs a proof is left to [`Facts::simplify`](crate::Facts::simplify).
//! Each node caches its hash, size and depth, so that hashing is constant time and hostile trees can be refused
//! before anything recurses into them.

mod build;
pub(crate) mod cost;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use num_bigint::BigInt;
use num_traits::ToPrimitive;

use crate::memo::FastHasher;

/// The name of an integer whose value is not known yet.
///
/// ```
/// use symshape::Symbol;
/// let n = Symbol::new("N");
/// assert_eq!(n.name(), "N");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(Arc<str>);

impl Symbol {
    /// A symbol called `name`. Two symbols of one name are the same symbol.
    pub fn new(name: &str) -> Self {
        Symbol(name.into())
    }

    /// The name, as given.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// A symbolic integer.
///
/// ```
/// use symshape::Dim;
/// let (n, s) = (Dim::symbol("N"), Dim::symbol("S"));
/// let flat = n * &s + 3;
/// assert_eq!(flat.floor_div(&s).to_string(), "(N*S + 3)//S");
/// ```
#[derive(Clone)]
pub struct Dim(Arc<Term>);

/// The outermost operation of a [`Dim`].
///
/// Sums and products have at least two operands, none of them a sum or a product itself. An integer, if there is
/// one, comes last in a sum and first in a product.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Node {
    /// An integer of any size.
    Int(BigInt),
    /// A name.
    Symbol(Symbol),
    /// The sum of all operands.
    Add(Vec<Dim>),
    /// The product of all operands.
    Mul(Vec<Dim>),
    /// The quotient, rounded towards negative infinity.
    FloorDiv(Dim, Dim),
    /// The remainder of [`Node::FloorDiv`]; it has the sign of the divisor.
    Mod(Dim, Dim),
    /// The smallest operand.
    Min(Vec<Dim>),
    /// The largest operand.
    Max(Vec<Dim>),
}

struct Term {
    node: Node,
    hash: u64,
    size: u32,
    depth: u32,
    operations: u32,
}

/// Deeper terms are neither evaluated, proven nor printed, so that recursion stays well within a 2 MB stack.
pub(crate) const MAX_DEPTH: u32 = 256;

/// Larger terms, counted as trees, stay unchanged.
pub(crate) const MAX_SIZE: u32 = 20_000;

impl Node {
    /// The operands, left to right.
    pub fn operands(&self) -> Vec<&Dim> {
        match self {
            Node::Int(_) | Node::Symbol(_) => Vec::new(),
            Node::FloorDiv(a, b) | Node::Mod(a, b) => vec![a, b],
            Node::Add(list) | Node::Mul(list) | Node::Min(list) | Node::Max(list) => list.iter().collect(),
        }
    }

    fn rank(&self) -> u64 {
        match self {
            Node::Int(_) => 1,
            Node::Symbol(_) => 2,
            Node::Add(_) => 3,
            Node::Mul(_) => 4,
            Node::FloorDiv(..) => 5,
            Node::Mod(..) => 6,
            Node::Min(_) => 7,
            Node::Max(_) => 8,
        }
    }

    fn take_operands(&mut self) -> Vec<Dim> {
        match std::mem::replace(self, Node::Int(BigInt::ZERO)) {
            Node::Int(_) | Node::Symbol(_) => Vec::new(),
            Node::FloorDiv(a, b) | Node::Mod(a, b) => vec![a, b],
            Node::Add(list) | Node::Mul(list) | Node::Min(list) | Node::Max(list) => list,
        }
    }
}

fn mix(seed: u64, word: u64) -> u64 {
    (seed.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
}

fn hash_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0x9e37_79b9, |seed, &byte| mix(seed, u64::from(byte)))
}

fn leaf_hash(node: &Node) -> u64 {
    match node {
        Node::Int(value) => match value.to_i64() {
            Some(small) => small as u64,
            None => hash_bytes(&value.to_signed_bytes_le()),
        },
        Node::Symbol(symbol) => hash_bytes(symbol.name().as_bytes()),
        _ => 0,
    }
}

impl From<Node> for Dim {
    /// The term as given: nothing is folded.
    fn from(node: Node) -> Self {
        let (mut hash, mut size, mut depth) = (mix(node.rank(), leaf_hash(&node)), 1u32, 0);
        let mut visit = |child: &Dim| {
            hash = mix(hash, child.0.hash);
            size = size.saturating_add(child.0.size);
            depth = depth.max(child.0.depth + 1);
        };
        match &node {
            Node::Int(_) | Node::Symbol(_) => {}
            Node::FloorDiv(a, b) | Node::Mod(a, b) => [a, b].into_iter().for_each(&mut visit),
            Node::Add(list) | Node::Mul(list) | Node::Min(list) | Node::Max(list) => {
                list.iter().for_each(&mut visit)
            }
        }
        let operations = cost::of_node(&node);
        Dim(Arc::new(Term { node, hash, size, depth, operations }))
    }
}

/// Frees deep terms without recursion: a chain of a million divisions must not take a million nested calls.
impl Drop for Term {
    fn drop(&mut self) {
        if self.depth < MAX_DEPTH {
            return;
        }
        let mut stack = self.node.take_operands();
        while let Some(dim) = stack.pop() {
            if let Some(mut term) = Arc::into_inner(dim.0) {
                stack.append(&mut term.node.take_operands());
                term.depth = 0;
            }
        }
    }
}

impl PartialEq for Dim {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.hash == other.0.hash && self.0.size == other.0.size && self.0.node == other.0.node)
    }
}

impl Eq for Dim {}

impl Hash for Dim {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl PartialOrd for Dim {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Dim {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            return std::cmp::Ordering::Equal;
        }
        self.0.node.cmp(&other.0.node)
    }

    /// The term for the lesser of two, as [`Dim::min`]: `a.min(b)` with an owned `a` finds this method first, and
    /// must not mean "whichever term sorts first".
    fn min(self, other: Self) -> Self {
        Dim::min(&self, other)
    }

    /// The term for the greater of two, as [`Dim::max`].
    fn max(self, other: Self) -> Self {
        Dim::max(&self, other)
    }
}

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
        let (mut order, mut stack) = (Vec::new(), vec![(self, false)]);
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

    /// Every symbol that occurs.
    pub fn symbols(&self) -> BTreeSet<Symbol> {
        self.post_order().into_iter().filter_map(|dim| dim.as_symbol().cloned()).collect()
    }

    /// Whether `symbol` occurs.
    pub fn contains(&self, symbol: &Symbol) -> bool {
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
        let mut done: HashMap<usize, Dim> = HashMap::new();
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
