//! Bounds, computed again: the bound of a [`Sum`] that follows from the decisions of a [`Why`].

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{One, Signed, Zero};

use super::sum::Sum;
use super::{Checked, Flaw, Replay, ensure, flaw};
use crate::engine::atoms::AtomKind;
use crate::engine::bounds::{SideRef, Why};
use crate::int::Int;
use crate::poly::AtomId;

impl Replay<'_> {
    pub(super) fn non_negative(&self, sum: &Sum, why: &Why) -> Checked {
        ensure(!self.lower(sum, why)?.is_negative(), "a value may be below 0")
    }

    /// The lower bound of `sum` that the decisions in `why` give.
    pub(super) fn lower(&self, sum: &Sum, why: &Why) -> Checked<BigInt> {
        let (content, primitive) = sum.primitive();
        if content.is_zero() {
            return Ok(sum.constant());
        }
        Ok(self.lower_primitive(&primitive, why)? * content + sum.constant())
    }

    fn lower_primitive(&self, sum: &Sum, why: &Why) -> Checked<BigInt> {
        match why {
            Why::Interval => self.interval(sum).0.map_or_else(|| flaw("a value is unbounded"), Ok),
            Why::Side { atom, side, sign, rest } => {
                let (factor, others) = split(sum, *atom)?;
                let signed = if side.upper { factor.neg() } else { factor.clone() };
                self.non_negative(&signed, sign)?;
                self.lower_at(&factor, &others, *atom, *side, rest)
            }
            Why::Ends { atom, sides, rest } => {
                let (factor, others) = split(sum, *atom)?;
                ensure(!sides[0].upper && sides[1].upper, "two bounds of one end")?;
                let low = self.lower_at(&factor, &others, *atom, sides[0], &rest[0])?;
                Ok(low.min(self.lower_at(&factor, &others, *atom, sides[1], &rest[1])?))
            }
            Why::Cases { atom, rest } => {
                let AtomKind::Min(list) = &self.atoms[*atom as usize].kind else { return flaw("no minimum") };
                ensure(list.len() == rest.len() && !list.is_empty(), "a case is missing")?;
                let bounds = list
                    .iter()
                    .zip(rest)
                    .map(|(operand, why)| self.lower(&sum.replace(*atom, &operand.into()), why));
                let bounds = bounds.collect::<Checked<Vec<BigInt>>>()?;
                Ok(bounds.into_iter().min().expect("a minimum has operands"))
            }
            Why::Monotone { atom, upper, step, rest } => {
                let free = self.sides[*atom as usize].iter().all(Vec::is_empty);
                ensure(free, "a step leaves the bounds of its atom")?;
                let next = sum.replace(*atom, &Sum::atom(*atom).plus_int(1)).plus(-1, sum);
                self.non_negative(&if *upper { next.neg() } else { next }, step)?;
                let range = &self.ranges[*atom as usize];
                let end = if *upper { &range.hi } else { &range.lo };
                let Some(end) = end else { return flaw("a range has no such end") };
                self.lower(&sum.replace(*atom, &Sum::from(end.to_big())), rest)
            }
            Why::Given | Why::Each(_) | Why::Operand(..) => flaw("no reason for a bound"),
        }
    }

    /// The lower bound of `factor*atom + others` with the side in place of the atom.
    fn lower_at(
        &self,
        factor: &Sum,
        others: &Sum,
        atom: AtomId,
        side: SideRef,
        why: &Why,
    ) -> Checked<BigInt> {
        let (scale, bound) = self.side(atom, side)?;
        if let Some(quotient) = factor.over(&scale) {
            return self.lower(&others.plus(1, &quotient.times(&bound)), why);
        }

        let Some((ids, divisor)) = scale.0.iter().next() else { return flaw("a scale is 0") };

        // Only then is the monomial above 0, and the quotient has the sign of the factor.
        ensure(divisor.is_positive(), "a scale has a negative coefficient")?;
        let mono = Sum([(ids.clone(), BigInt::one())].into());
        let Some(quotient) = factor.over(&mono) else { return flaw("a scale does not divide") };
        let multiple = others.times(&Sum::from(divisor.clone()));
        let scaled = self.lower(&multiple.plus(1, &quotient.times(&bound)), why)?;

        Ok(-(-scaled).div_floor(divisor))
    }

    fn side(&self, atom: AtomId, side: SideRef) -> Checked<(Sum, Sum)> {
        let missing = || Flaw("an atom has no such bound".to_string());
        match side.idx {
            Some(idx) => {
                let list = &self.sides.get(atom as usize).ok_or_else(missing)?[usize::from(side.upper)];
                list.get(idx).cloned().ok_or_else(missing)
            }
            None => {
                let range = self.ranges.get(atom as usize).ok_or_else(missing)?;
                let end = if side.upper { &range.hi } else { &range.lo };
                let end = end.as_ref().ok_or_else(missing)?;
                Ok((Sum::from(BigInt::one()), Sum::from(end.to_big())))
            }
        }
    }

    /// The range of `sum` by interval arithmetic.
    pub(super) fn interval(&self, sum: &Sum) -> Ends {
        sum.0.iter().fold((Some(BigInt::ZERO), Some(BigInt::ZERO)), |acc, (ids, coef)| {
            let point: Ends = (Some(coef.clone()), Some(coef.clone()));
            let mut ids = ids.as_slice();

            let mut product = point;
            while let Some(&id) = ids.first() {
                let exponent = ids.iter().take_while(|&&other| other == id).count();
                let range = &self.ranges[id as usize];
                let range = (range.lo.as_ref().map(Int::to_big), range.hi.as_ref().map(Int::to_big));
                product = times(&product, &power(&range, exponent));
                ids = &ids[exponent..];
            }

            let add = |a: Option<BigInt>, b: Option<BigInt>| Some(a? + b?);
            (add(acc.0, product.0), add(acc.1, product.1))
        })
    }
}

fn split(sum: &Sum, atom: AtomId) -> Checked<(Sum, Sum)> {
    sum.split(atom).ok_or_else(|| Flaw("a value is not linear in the atom".to_string()))
}

type Ends = (Option<BigInt>, Option<BigInt>);

fn power(range: &Ends, exponent: usize) -> Ends {
    let mut product = range.clone();
    (1..exponent).for_each(|_| product = times(&product, range));
    let below = product.0.as_ref().is_none_or(BigInt::is_negative);
    if exponent.is_multiple_of(2) && below {
        product.0 = Some(BigInt::ZERO);
    }
    product
}

/// The range of a product. An end is only finite if all products of ends that could make it are.
fn times(a: &Ends, b: &Ends) -> Ends {
    let zero = (Some(BigInt::ZERO), Some(BigInt::ZERO));
    if *a == zero || *b == zero {
        return zero;
    }

    let sign = |end: &Option<BigInt>, at_infinity: i32| {
        end.as_ref().map_or(at_infinity, |end| i32::from(end.is_positive()) - i32::from(end.is_negative()))
    };

    let mut finite = Vec::new();
    let mut unbounded = [false; 2];
    for (x, x_sign) in [(&a.0, sign(&a.0, -1)), (&a.1, sign(&a.1, 1))] {
        for (y, y_sign) in [(&b.0, sign(&b.0, -1)), (&b.1, sign(&b.1, 1))] {
            match (x, y) {
                (Some(x), Some(y)) => finite.push(x * y),
                _ if x_sign * y_sign > 0 => unbounded[1] = true,
                _ if x_sign * y_sign < 0 => unbounded[0] = true,
                _ => finite.push(BigInt::ZERO),
            }
        }
    }

    let end = |unbounded: bool, value: Option<&BigInt>| if unbounded { None } else { value.cloned() };
    (end(unbounded[0], finite.iter().min()), end(unbounded[1], finite.iter().max()))
}
