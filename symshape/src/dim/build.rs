//! Constructors and operators of [`Dim`]: they fold constants and units and flatten sums and products.

use std::sync::LazyLock;

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{One, Signed, Zero};

use super::{Dim, Node, Symbol};

impl Dim {
    /// `self // divisor`, rounded towards negative infinity. A divisor of 0 is kept as written.
    pub fn floor_div(&self, divisor: impl Into<Dim>) -> Dim {
        let divisor = divisor.into();
        if divisor.is_int(1) {
            return self.clone();
        }
        match (self.as_int(), divisor.as_int()) {
            (Some(a), Some(b)) if !b.is_zero() => a.div_floor(b).into(),
            _ => Node::FloorDiv(self.clone(), divisor).into(),
        }
    }

    /// `self % divisor`: the remainder of [`Dim::floor_div`], with the sign of the divisor.
    pub fn modulo(&self, divisor: impl Into<Dim>) -> Dim {
        let divisor = divisor.into();
        match (self.as_int(), divisor.as_int()) {
            (_, Some(b)) if b.is_one() => Dim::zero(),
            (Some(a), Some(b)) if !b.is_zero() => a.mod_floor(b).into(),
            _ => Node::Mod(self.clone(), divisor).into(),
        }
    }

    /// The quotient rounded towards positive infinity, built from a floor division.
    ///
    /// ```
    /// use symshape::Dim;
    /// assert_eq!(Dim::symbol("N").ceil_div(8).to_string(), "(N + 7)//8");
    /// assert_eq!(Dim::from(-7).ceil_div(2), Dim::from(-3));
    /// ```
    pub fn ceil_div(&self, divisor: impl Into<Dim>) -> Dim {
        let divisor = divisor.into();
        match divisor.as_int() {
            Some(value) if value.is_positive() => (self + (&divisor - 1)).floor_div(divisor),
            // For a divisor below zero `a + b - 1` would round the wrong way; this form holds for both signs.
            _ => -(-self).floor_div(divisor),
        }
    }

    /// The lesser of two.
    pub fn min(&self, other: impl Into<Dim>) -> Dim {
        extreme([self.clone(), other.into()], Node::Min, Node::operands_of_min, |a, b| a.min(b).clone())
    }

    /// The greater of two.
    pub fn max(&self, other: impl Into<Dim>) -> Dim {
        extreme([self.clone(), other.into()], Node::Max, Node::operands_of_max, |a, b| a.max(b).clone())
    }

    /// The sum of `terms`, 0 if there are none.
    pub fn sum(terms: impl IntoIterator<Item = Dim>) -> Dim {
        let mut list = Vec::with_capacity(2);
        let mut constant = None;
        let mut add = |term: Dim| match term.node() {
            Node::Int(_) => constant = Some(folded(constant.take(), term, |a, b| a + b)),
            _ => list.push(term),
        };

        for term in terms {
            match term.node() {
                Node::Add(inner) => inner.iter().cloned().for_each(&mut add),
                _ => add(term),
            }
        }

        match constant {
            Some(constant) if list.is_empty() || !constant.is_int(0) => list.push(constant),
            None if list.is_empty() => return Dim::zero(),
            _ => {}
        }

        single_or(list, Node::Add)
    }

    /// The product of `factors`, 1 if there are none.
    pub fn product(factors: impl IntoIterator<Item = Dim>) -> Dim {
        let mut list = Vec::with_capacity(2);
        let mut constant = None;
        let mut multiply = |factor: Dim| match factor.node() {
            Node::Int(_) => constant = Some(folded(constant.take(), factor, |a, b| a * b)),
            _ => list.push(factor),
        };

        for factor in factors {
            match factor.node() {
                Node::Mul(inner) => inner.iter().cloned().for_each(&mut multiply),
                _ => multiply(factor),
            }
        }

        match constant {
            Some(zero) if zero.is_int(0) => return zero,
            Some(constant) if list.is_empty() || !constant.is_int(1) => list.insert(0, constant),
            None if list.is_empty() => return Dim::one(),
            _ => {}
        }

        single_or(list, Node::Mul)
    }
}

/// The integers among some operands so far, and one more.
fn folded(constant: Option<Dim>, next: Dim, combine: fn(&BigInt, &BigInt) -> BigInt) -> Dim {
    match constant.as_ref().map(|constant| (constant.as_int(), next.as_int())) {
        Some((Some(a), Some(b))) => combine(a, b).into(),
        _ => next,
    }
}

fn single_or(mut list: Vec<Dim>, build: fn(Vec<Dim>) -> Node) -> Dim {
    match list.len() {
        1 => list.remove(0),
        _ => build(list).into(),
    }
}

impl Node {
    fn operands_of_min(&self) -> Option<&[Dim]> {
        if let Node::Min(list) = self { Some(list) } else { None }
    }

    fn operands_of_max(&self) -> Option<&[Dim]> {
        if let Node::Max(list) = self { Some(list) } else { None }
    }
}

fn extreme(
    pair: [Dim; 2],
    build: fn(Vec<Dim>) -> Node,
    inner: fn(&Node) -> Option<&[Dim]>,
    pick: fn(&BigInt, &BigInt) -> BigInt,
) -> Dim {
    let mut list = Vec::with_capacity(2);
    let mut constant = None;
    let mut add = |operand: Dim| match operand.node() {
        Node::Int(_) => constant = Some(folded(constant.take(), operand, pick)),
        _ if list.contains(&operand) => {}
        _ => list.push(operand),
    };

    for operand in pair {
        match inner(operand.node()) {
            Some(operands) => operands.iter().cloned().for_each(&mut add),
            None => add(operand),
        }
    }

    list.extend(constant);
    single_or(list, build)
}

/// The integers that terms are full of, made once.
fn small_integer(value: i64) -> Option<Dim> {
    static SMALL: LazyLock<Vec<Dim>> =
        LazyLock::new(|| (LEAST..=GREATEST).map(|value| Node::Int(value.into()).into()).collect());
    usize::try_from(value.checked_sub(LEAST)?).ok().and_then(|idx| SMALL.get(idx).cloned())
}

const LEAST: i64 = -1;
const GREATEST: i64 = 64;

macro_rules! from_integers {
    ($($int:ty),*) => {$(
        impl From<$int> for Dim {
            fn from(value: $int) -> Self {
                match i64::try_from(value).ok().and_then(small_integer) {
                    Some(dim) => dim,
                    None => BigInt::from(value).into(),
                }
            }
        }
    )*};
}

from_integers!(i32, i64, u32, u64, usize);

impl From<BigInt> for Dim {
    fn from(value: BigInt) -> Self {
        Node::Int(value).into()
    }
}

impl From<Symbol> for Dim {
    fn from(symbol: Symbol) -> Self {
        Node::Symbol(symbol).into()
    }
}

impl From<&Symbol> for Dim {
    fn from(symbol: &Symbol) -> Self {
        symbol.clone().into()
    }
}

impl From<&Dim> for Dim {
    fn from(dim: &Dim) -> Self {
        dim.clone()
    }
}

macro_rules! operators {
    ($($name:ident, $method:ident, $body:expr;)*) => {$(
        impl std::ops::$name<&Dim> for &Dim {
            type Output = Dim;
            fn $method(self, other: &Dim) -> Dim {
                let body: fn(&Dim, &Dim) -> Dim = $body;
                body(self, other)
            }
        }
        impl std::ops::$name<Dim> for &Dim {
            type Output = Dim;
            fn $method(self, other: Dim) -> Dim {
                std::ops::$name::$method(self, &other)
            }
        }
        impl std::ops::$name<&Dim> for Dim {
            type Output = Dim;
            fn $method(self, other: &Dim) -> Dim {
                std::ops::$name::$method(&self, other)
            }
        }
        impl std::ops::$name<Dim> for Dim {
            type Output = Dim;
            fn $method(self, other: Dim) -> Dim {
                std::ops::$name::$method(&self, &other)
            }
        }
        impl std::ops::$name<i64> for &Dim {
            type Output = Dim;
            fn $method(self, other: i64) -> Dim {
                std::ops::$name::$method(self, &Dim::from(other))
            }
        }
        impl std::ops::$name<i64> for Dim {
            type Output = Dim;
            fn $method(self, other: i64) -> Dim {
                std::ops::$name::$method(&self, &Dim::from(other))
            }
        }
    )*};
}

operators! {
    Add, add, |a, b| Dim::sum([a.clone(), b.clone()]);
    Sub, sub, |a, b| Dim::sum([a.clone(), -b]);
    Mul, mul, |a, b| Dim::product([a.clone(), b.clone()]);
}

impl std::ops::Neg for &Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        Dim::product([Dim::from(-1), self.clone()])
    }
}

impl std::ops::Neg for Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        -&self
    }
}
