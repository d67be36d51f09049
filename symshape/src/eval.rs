//! The value of a [`Dim`] when its symbols have values.
//!
//! Exact at any size. Floor semantics: the remainder has the sign of the divisor. An error names the term in which
//! evaluation stopped.

use std::collections::HashMap;
use std::fmt;

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{ToPrimitive, Zero};

use crate::dim::{Dim, Node, Symbol};

/// Why a [`Dim`] has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvalError {
    /// The symbol was given no value.
    Unbound(Symbol),
    /// The divisor of this term is 0.
    DivisionByZero(Dim),
    /// The value of this term does not fit the type that was asked for.
    Overflow(Dim, BigInt),
    /// The value of this term would have more than [`MAX_BITS`] bits.
    TooLarge(Dim),
}

/// Products beyond this many bits are refused: a short expression could otherwise take any amount of memory.
pub const MAX_BITS: u64 = 1 << 16;

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EvalError::Unbound(symbol) => write!(f, "symbol {} has no value", Dim::from(symbol)),
            EvalError::DivisionByZero(term) => write!(f, "division by zero in {term}"),
            EvalError::Overflow(term, value) => write!(f, "{term} = {value} does not fit in 64 bits"),
            EvalError::TooLarge(term) => write!(f, "{term} has more than {MAX_BITS} bits"),
        }
    }
}

impl std::error::Error for EvalError {}

impl Dim {
    /// The value, given the values of the symbols.
    ///
    /// ```
    /// use symshape::Dim;
    /// let e = Dim::symbol("N").floor_div(2);
    /// assert_eq!(e.eval(&|_| Some((-3).into())), Ok((-2).into()));
    /// ```
    ///
    /// # Errors
    /// A symbol without a value, a division by zero, or a value beyond [`MAX_BITS`].
    pub fn eval(&self, value_of: &dyn Fn(&Symbol) -> Option<BigInt>) -> Result<BigInt, EvalError> {
        if self.is_tractable() {
            return eval_tree(self, value_of);
        }
        let mut done: HashMap<usize, BigInt> = HashMap::new();
        for dim in self.post_order() {
            let value = eval_node(dim, &|child| Ok(done[&child.address()].clone()), value_of)?;
            done.insert(dim.address(), value);
        }
        Ok(done.remove(&self.address()).expect("the root comes last in its own post-order"))
    }

    /// The value as `i64`; intermediate values are exact.
    ///
    /// ```
    /// use symshape::Dim;
    /// let e = (Dim::symbol("N") * i64::MAX).floor_div(i64::MAX);
    /// assert_eq!(e.eval_i64(&|_| Some(7)), Ok(7));
    /// ```
    ///
    /// # Errors
    /// As [`Dim::eval`], and a result that does not fit.
    pub fn eval_i64(&self, value_of: &dyn Fn(&Symbol) -> Option<i64>) -> Result<i64, EvalError> {
        let value = self.eval(&|symbol| value_of(symbol).map(BigInt::from))?;
        value.to_i64().ok_or_else(|| EvalError::Overflow(self.clone(), value))
    }
}

type Values<'a> = &'a dyn Fn(&Symbol) -> Option<BigInt>;

/// Evaluates by recursion, which is fastest where no subtree is shared.
fn eval_tree(dim: &Dim, value_of: Values<'_>) -> Result<BigInt, EvalError> {
    eval_node(dim, &|child| eval_tree(child, value_of), value_of)
}

fn eval_node(
    dim: &Dim,
    of: &dyn Fn(&Dim) -> Result<BigInt, EvalError>,
    value_of: Values<'_>,
) -> Result<BigInt, EvalError> {
    let divisor = |child: &Dim| match of(child)? {
        zero if zero.is_zero() => Err(EvalError::DivisionByZero(dim.clone())),
        value => Ok(value),
    };

    let all = |list: &[Dim]| list.iter().map(of).collect::<Result<Vec<BigInt>, EvalError>>();
    let value = match dim.node() {
        Node::Int(value) => value.clone(),
        Node::Symbol(symbol) => value_of(symbol).ok_or_else(|| EvalError::Unbound(symbol.clone()))?,
        Node::Add(list) => all(list)?.iter().sum(),
        Node::Mul(list) => product(dim, all(list)?.iter())?,
        Node::FloorDiv(a, b) => of(a)?.div_floor(&divisor(b)?),
        Node::Mod(a, b) => of(a)?.mod_floor(&divisor(b)?),
        Node::Min(list) => all(list)?.into_iter().min().expect("a minimum has operands"),
        Node::Max(list) => all(list)?.into_iter().max().expect("a maximum has operands"),
    };

    Ok(value)
}

fn product<'a>(dim: &Dim, factors: impl Iterator<Item = &'a BigInt>) -> Result<BigInt, EvalError> {
    let mut value = BigInt::from(1);
    for factor in factors {
        if value.bits() + factor.bits() > MAX_BITS {
            return Err(EvalError::TooLarge(dim.clone()));
        }
        value *= factor;
    }
    Ok(value)
}
