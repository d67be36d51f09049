//! [`Int`]: an exact integer that costs no allocation while it fits in 64 bits.

use std::cmp::Ordering;

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{Signed, ToPrimitive};

/// An integer of any size. `Big` is only used for values outside `i64`, so equality is structural.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Int {
    Small(i64),
    Big(Box<BigInt>),
}

use Int::{Big, Small};

impl Int {
    pub(crate) const ZERO: Int = Small(0);
    pub(crate) const ONE: Int = Small(1);

    pub(crate) fn to_big(&self) -> BigInt {
        match self {
            Small(value) => BigInt::from(*value),
            Big(value) => (**value).clone(),
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        matches!(self, Small(0))
    }

    pub(crate) fn is_one(&self) -> bool {
        matches!(self, Small(1))
    }

    pub(crate) fn signum(&self) -> i64 {
        match self {
            Small(value) => value.signum(),
            Big(value) => value.signum().to_i64().unwrap_or(0),
        }
    }

    pub(crate) fn is_negative(&self) -> bool {
        self.signum() < 0
    }

    pub(crate) fn is_positive(&self) -> bool {
        self.signum() > 0
    }

    pub(crate) fn abs(&self) -> Int {
        if self.is_negative() { -self } else { self.clone() }
    }

    /// The size in bits, rounded up to 63 for everything small.
    pub(crate) fn bits(&self) -> u64 {
        match self {
            Small(_) => 63,
            Big(value) => value.bits(),
        }
    }

    /// The quotient rounded towards negative infinity; the divisor is not 0.
    pub(crate) fn div_floor(&self, other: &Int) -> Int {
        match (self, other) {
            // Only `i64::MIN / -1` leaves the range.
            (Small(a), Small(b)) if *b != -1 => Small(Integer::div_floor(a, b)),
            _ => self.to_big().div_floor(&other.to_big()).into(),
        }
    }

    /// The quotient rounded towards positive infinity; the divisor is not 0.
    pub(crate) fn div_ceil(&self, other: &Int) -> Int {
        -&(-self).div_floor(other)
    }

    /// The remainder of [`Int::div_floor`].
    pub(crate) fn mod_floor(&self, other: &Int) -> Int {
        match (self, other) {
            (Small(_), Small(-1)) => Int::ZERO,
            (Small(a), Small(b)) => Small(Integer::mod_floor(a, b)),
            _ => self.to_big().mod_floor(&other.to_big()).into(),
        }
    }

    /// The quotient, if nothing is left over; the divisor is not 0.
    pub(crate) fn div_exact(&self, other: &Int) -> Option<Int> {
        self.is_multiple_of(other).then(|| self.div_floor(other))
    }

    /// Whether `other`, which is not 0, divides this.
    pub(crate) fn is_multiple_of(&self, other: &Int) -> bool {
        self.mod_floor(other).is_zero()
    }

    /// The greatest common divisor, at least 0.
    pub(crate) fn gcd(&self, other: &Int) -> Int {
        match (self, other) {
            (Small(a), Small(b)) if *a != i64::MIN && *b != i64::MIN => Small(a.gcd(b)),
            _ => self.to_big().gcd(&other.to_big()).into(),
        }
    }
}

impl From<i64> for Int {
    fn from(value: i64) -> Self {
        Small(value)
    }
}

impl From<BigInt> for Int {
    fn from(value: BigInt) -> Self {
        match value.to_i64() {
            Some(small) => Small(small),
            None => Big(Box::new(value)),
        }
    }
}

impl From<&BigInt> for Int {
    fn from(value: &BigInt) -> Self {
        match value.to_i64() {
            Some(small) => Small(small),
            None => Big(Box::new(value.clone())),
        }
    }
}

impl Ord for Int {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Small(a), Small(b)) => a.cmp(b),
            (Big(a), Big(b)) => a.cmp(b),
            (Small(_), Big(b)) if b.is_positive() => Ordering::Less,
            (Small(_), Big(_)) => Ordering::Greater,
            (Big(_), Small(_)) => other.cmp(self).reverse(),
        }
    }
}

impl PartialOrd for Int {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

macro_rules! arithmetic {
    ($($name:ident, $method:ident, $checked:ident;)*) => {$(
        impl std::ops::$name<&Int> for &Int {
            type Output = Int;
            fn $method(self, other: &Int) -> Int {
                if let (Small(a), Small(b)) = (self, other)
                    && let Some(value) = a.$checked(*b)
                {
                    return Small(value);
                }
                std::ops::$name::$method(self.to_big(), other.to_big()).into()
            }
        }
    )*};
}

arithmetic! {
    Add, add, checked_add;
    Sub, sub, checked_sub;
    Mul, mul, checked_mul;
}

impl std::ops::Neg for &Int {
    type Output = Int;
    fn neg(self) -> Int {
        match self {
            Small(value) if *value != i64::MIN => Small(-value),
            _ => (-self.to_big()).into(),
        }
    }
}
