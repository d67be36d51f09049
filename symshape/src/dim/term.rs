//! The representation of a [`Dim`]: a shared tree whose nodes cache their hash, size, depth and operation count.
//!
//! An operation has two operands; `a - b` and `ceil(a / m)` count as one each. Every node caches its count when it is
//! built, so that comparing two forms is cheap.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use num_bigint::{BigInt, Sign};
use num_traits::{One, ToPrimitive};

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
pub struct Dim(pub(super) Arc<Term>);

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

/// A node and the figures that it caches.
pub(super) struct Term {
    pub(super) node: Node,
    hash: u64,
    pub(super) size: u32,
    pub(super) depth: u32,
    pub(super) operations: u32,
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
        let mut hash = mix(node.rank(), leaf_hash(&node));
        let mut size = 1u32;
        let mut depth = 0;
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

        let operations = operations_of_node(&node);
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

/// The number of operations in `dim`. Shared subtrees can make a small term a huge tree; such a term has the
/// maximum cost.
pub(crate) fn operations(dim: &Dim) -> u32 {
    if dim.is_tractable() { dim.operations() } else { u32::MAX }
}

/// The operations of a node with its operands.
fn operations_of_node(node: &Node) -> u32 {
    let two = |a: &Dim, b: &Dim| a.operations().saturating_add(b.operations()).saturating_add(1);
    match node {
        Node::Int(_) | Node::Symbol(_) => 0,
        Node::Mod(a, b) => two(a, b),
        Node::FloorDiv(a, b) => match rounded_up_terms(a, b) {
            Some(terms) => operations_of_sum(terms).saturating_add(b.operations()).saturating_add(1),
            None => two(a, b),
        },
        Node::Mul(list) | Node::Min(list) | Node::Max(list) => {
            list.iter().fold(list.len() as u32 - 1, |sum, operand| sum.saturating_add(operand.operations()))
        }
        Node::Add(list) => operations_of_sum(list.iter()),
    }
}

/// Negated terms of a sum are subtracted, which is free but for the first.
fn operations_of_sum<'d>(terms: impl Iterator<Item = &'d Dim>) -> u32 {
    let mut count = 0u32;
    let mut negations = 0;
    let mut inside = 0u32;
    for term in terms {
        count += 1;
        negations += u32::from(is_negation(term));
        inside = inside.saturating_add(term.operations());
    }
    let joints = count.saturating_sub(1);
    inside.saturating_add(joints - negations.min(joints))
}

pub(crate) fn is_negation(dim: &Dim) -> bool {
    matches!(dim.node(), Node::Mul(list) if list[0].is_int(-1))
}

fn is_one_less(a: &BigInt, b: &BigInt) -> bool {
    match (a.to_i64(), b.to_i64()) {
        (Some(a), Some(b)) => a.checked_add(1) == Some(b),
        _ => a + 1 == *b,
    }
}

/// The terms of `x`, if `a // b` is `(x + b - 1) // b`, with an integer `b` above 1 or a `b` that is not a sum.
fn rounded_up_terms<'d>(a: &'d Dim, b: &Dim) -> Option<impl Iterator<Item = &'d Dim>> {
    let Node::Add(list) = a.node() else { return None };
    let (extra, rest) = list.split_last()?;
    let extra = extra.as_int()?;
    let skipped = match b.as_int() {
        Some(divisor) => is_one_less(extra, divisor).then_some(rest.len())?,
        None if extra.sign() == Sign::Minus && extra.magnitude().is_one() => {
            rest.iter().position(|term| term == b)?
        }
        None => return None,
    };
    Some(rest.iter().enumerate().filter(move |(idx, _)| *idx != skipped).map(|(_, term)| term))
}

/// `x`, if `a // b` is `x` divided by `b` and rounded up.
pub(crate) fn rounded_up(a: &Dim, b: &Dim) -> Option<Dim> {
    Some(Dim::sum(rounded_up_terms(a, b)?.cloned()))
}
