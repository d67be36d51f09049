//! [`Relation`]: a statement about two terms; and why one is refused.

use std::fmt;
use std::sync::Arc;

use num_bigint::BigInt;

use super::Declaration;
use crate::dim::{Dim, Symbol};

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
        let a = &self.a;
        let b = &self.b;
        match self.comparison {
            Comparison::Eq => write!(f, "{a} == {b}"),
            Comparison::Ne => write!(f, "{a} != {b}"),
            Comparison::Lt => write!(f, "{a} < {b}"),
            Comparison::Le => write!(f, "{a} <= {b}"),
            Comparison::Divides => write!(f, "{} == 0", b.modulo(a)),
        }
    }
}

/// A relation that is assumed to hold, with its origin.
#[derive(Clone, Debug)]
pub struct Assumption {
    /// The assumed relation.
    pub relation: Relation,
    /// The origin, for error messages.
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
        /// The earlier declaration.
        old: Box<Declaration>,
        /// The refused declaration.
        new: Box<Declaration>,
    },
    /// A relation that cannot hold together with the facts before it.
    Contradiction {
        /// The refused relation.
        relation: Box<Relation>,
        /// The origin of the refused relation.
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
                if known.is_empty() { Ok(()) } else { write!(f, ", given {}", known.join("; ")) }
            }
        }
    }
}

impl std::error::Error for FactError {}
