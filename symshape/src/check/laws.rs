//! Rewritten quotients and minima: each must follow by a law from entries checked before.

use num_bigint::BigInt;
use num_traits::{One, Signed};

use super::sum::Sum;
use super::{Checked, Replay, ensure, flaw};
use crate::engine::atoms::AtomKind;
use crate::engine::bounds::Why;
use crate::engine::proof::{Cancelled, MinimumLaw, QuotientLaw};
use crate::poly::{AtomId, Poly};

impl Replay<'_> {
    pub(super) fn add_divisor(&mut self, den: &Poly, negative: bool, why: &Why) -> Checked {
        let den = Sum::from(den);
        let positive = if negative { den.neg() } else { den };
        if !self.divisors.contains(&positive) {
            self.non_negative(&positive.plus_int(-1), why)?;
            self.divisors.push(positive);
        }
        Ok(())
    }

    /// That `den` is at least 1, by an entry of the log.
    pub(super) fn check_divisor(&self, den: &Sum) -> Checked {
        ensure(self.divisors.contains(den), "a divisor is not known to be above 0")
    }

    pub(super) fn add_quotient(
        &mut self,
        law: &QuotientLaw,
        num: &Poly,
        den: &Poly,
        result: &Poly,
    ) -> Checked {
        let sums = [Sum::from(num), Sum::from(den), Sum::from(result)];
        let [num, den, result] = &sums;

        match law {
            QuotientLaw::Negate => self.check_divisor(&den.neg())?,
            _ => self.check_divisor(den)?,
        }

        let derived = match law {
            QuotientLaw::Atom => self.quotient_atom(num, den, result)?,
            QuotientLaw::Remainder(why) => {
                self.check_remainder(&num.plus(-1, &den.times(result)), den, why)?;
                result.clone()
            }
            QuotientLaw::Negate => self.quotient(&num.neg(), &den.neg())?,
            QuotientLaw::Flip => self.quotient(&den.plus(-1, num).plus_int(-1), den)?.neg(),
            QuotientLaw::Split { whole } => {
                let whole = Sum::from(whole);
                whole.plus(1, &self.quotient(&num.plus(-1, &den.times(&whole)), den)?)
            }
            QuotientLaw::Cancel(cancelled) => {
                let Cancelled { factor, kept, rest, remainder } = &**cancelled;
                let factor = Sum::from(factor);
                let kept = Sum::from(kept);
                let rest = Sum::from(rest);
                ensure(factor.times(&rest) == *den, "a factor does not divide the divisor")?;
                self.check_remainder(&num.plus(-1, &factor.times(&kept)), &factor, remainder)?;
                self.quotient(&kept, &rest)?
            }
            QuotientLaw::Merge { id } => self.merged(num, den, *id)?,
        };

        ensure(self.same(&derived, result), "a quotient has another value")?;
        self.quotients.push([self.reduce(num.clone()), self.reduce(den.clone()), result.clone()]);
        Ok(())
    }

    /// The atom `result`, if it is `num // den`.
    fn quotient_atom(&self, num: &Sum, den: &Sum, result: &Sum) -> Checked<Sum> {
        let id = result.0.keys().flatten().next().copied().filter(|&id| (id as usize) < self.ranges.len());
        let Some(id) = id else { return flaw("a quotient has no atom") };
        let kind = &self.atoms[id as usize].kind;
        let same = matches!(kind, AtomKind::Div(a, b) if Sum::from(a) == *num && Sum::from(b) == *den);
        ensure(same, "the atom is not this quotient")?;
        Ok(Sum::atom(id))
    }

    /// That `rest` is between 0 and `den - 1`.
    fn check_remainder(&self, rest: &Sum, den: &Sum, [non_negative, below_divisor]: &[Why; 2]) -> Checked {
        self.non_negative(rest, non_negative)?;
        self.non_negative(&den.plus(-1, rest).plus_int(-1), below_divisor)
    }

    /// `(a + m*others) // (m*den)`, where `num` is `a // m + others`. As `-(a // m)` is `(m - 1 - a) // m`, the
    /// quotient may be subtracted as well.
    fn merged(&self, num: &Sum, den: &Sum, id: AtomId) -> Checked<Sum> {
        let kind = self.atoms.get(id as usize).map(|atom| &atom.kind);
        let (Some(AtomKind::Div(a, m)), Some((factor, others))) = (kind, num.split(id)) else {
            return flaw("the numerator does not contain the quotient");
        };
        let a = Sum::from(a);
        let m = Sum::from(m);
        let one = Sum::from(BigInt::one());
        let inner = if factor == one { a } else { m.plus(-1, &a).plus_int(-1) };
        ensure(factor == one || factor == one.neg(), "the quotient occurs more than once")?;
        self.check_divisor(&m)?;
        self.quotient(&inner.plus(1, &m.times(&others)), &m.times(den))
    }

    pub(super) fn add_minimum(
        &mut self,
        law: &MinimumLaw,
        from: &[Poly],
        to: &[Poly],
        result: &Poly,
    ) -> Checked {
        let (from, to): (Vec<Sum>, Vec<Sum>) =
            (from.iter().map(Sum::from).collect(), to.iter().map(Sum::from).collect());
        let value = self.minimum(&to)?;

        let derived = match law {
            MinimumLaw::Affine { scale, shift } => {
                let scale = Sum::from(scale);
                let shift = Sum::from(shift);
                self.non_negative(&scale, &Why::Interval)?;
                let mapped: Vec<Sum> =
                    to.iter().map(|operand| operand.times(&scale).plus(1, &shift)).collect();
                ensure(self.same_set(&mapped, &from), "the operands are not in proportion")?;
                value.times(&scale).plus(1, &shift)
            }
            MinimumLaw::Flatten { idx, id } => {
                ensure(self.flattened(&from, *idx, *id) == Some(to), "the operands are others")?;
                value
            }
            MinimumLaw::Drop { idx, other, why } => {
                ensure(idx != other && from.len() == to.len() + 1, "nothing is dropped")?;
                let kept = from.iter().enumerate().filter(|(place, _)| place != idx).map(|(_, sum)| sum);
                ensure(kept.eq(&to), "another operand is dropped")?;
                self.non_negative(&from[*idx].plus(-1, &from[*other]), why)?;
                value
            }
            MinimumLaw::CommonDivisor { divisor, negated } => {
                let divisor = Sum::from(divisor);
                let sign = if *negated { -1 } else { 1 };
                ensure(from.len() == to.len(), "an operand is missing")?;
                for (quotient, num) in from.iter().zip(&to) {
                    self.check_numerator(quotient, num, &divisor, sign)?;
                }
                let signed = |sum: &Sum| Sum::default().plus(sign, sum);
                signed(&self.quotient(&signed(&value), &divisor)?)
            }
        };

        ensure(self.same(&derived, &result.into()), "a minimum has another value")?;
        self.minima.push((from, result.into()));
        Ok(())
    }

    /// That `sum` is `sign*(n // divisor) + k` with `num == sign*n + k*divisor`.
    fn check_numerator(&self, sum: &Sum, num: &Sum, divisor: &Sum, sign: i64) -> Checked {
        let constant = sum.constant();
        let quotient = Sum::default().plus(sign, &sum.plus_int(-constant.clone()));
        let inner = Sum::default().plus(sign, &num.plus(-1, &divisor.times(&Sum::from(constant))));
        let atom = quotient.0.keys().next().and_then(|ids| ids.first()).copied();
        let is_atom = atom.is_some_and(|id| quotient == Sum::atom(id));
        let kind = atom.map(|id| &self.atoms[id as usize].kind);
        let same =
            matches!(kind, Some(AtomKind::Div(a, b)) if Sum::from(a) == inner && Sum::from(b) == *divisor);
        ensure(is_atom && same, "an operand is not a quotient by this divisor")
    }

    fn flattened(&self, from: &[Sum], idx: usize, id: AtomId) -> Option<Vec<Sum>> {
        let AtomKind::Min(list) = &self.atoms[id as usize].kind else { return None };
        let (factor, rest) = from.get(idx)?.split(id)?;
        let positive = factor == Sum::from(factor.constant()) && factor.constant().is_positive();
        let inner = list.iter().map(|operand| rest.plus(1, &factor.times(&Sum::from(operand))));
        let mut flat = from.to_vec();
        flat.splice(idx..=idx, inner);
        positive.then_some(flat)
    }
}
