//! Rewritten quotients and minima: each must follow by a law from what was checked before.

use num_bigint::BigInt;
use num_traits::{One, Signed};

use super::sum::Sum;
use super::{Checked, Replay, ensure};
use crate::atoms::Kind;
use crate::poly::{AtomId, Poly};
use crate::proof::MinimumLaw;

impl Replay<'_> {
    pub(super) fn add_quotient(&mut self, num: &Poly, den: &Poly, result: &Poly) -> Checked {
        let sums = [Sum::from(num), Sum::from(den), Sum::from(result)];
        if !self.is_quotient_atom(num, den, result) && self.check_remainder(&sums).is_err() {
            // A remainder by a sum, or one that another quotient by a symbol hides, cannot be bounded; these laws
            // lead to a quotient that was checked before.
            let by_law = self.is_negated(&sums) || self.is_flipped(&sums) || self.is_merged(&sums);
            ensure(by_law, "a remainder may be outside its divisor")?;
        }
        self.quotients.push(sums);
        Ok(())
    }

    /// That the divisor is below 0 and the result is `(-num) // (-den)`.
    fn is_negated(&mut self, [num, den, result]: &[Sum; 3]) -> bool {
        self.certify(&den.neg().plus_int(-1), "").is_ok()
            && self.quotient(&num.neg(), &den.neg()).is_ok_and(|value| self.same(value, result))
    }

    fn same(&self, a: Sum, b: &Sum) -> bool {
        self.reduce(a) == self.reduce(b.clone())
    }

    /// That `num - den*result` is between 0 and `den`, exclusive of `den`.
    fn check_remainder(&mut self, [num, den, result]: &[Sum; 3]) -> Checked {
        let rest = self.reduce(num.plus(-1, &den.times(result)));
        if self.certify(&den.plus_int(-1), "").is_ok() {
            self.certify(&rest, "a remainder may be below 0")?;
            let room = self.reduce(den.plus(-1, &rest)).plus_int(-1);
            return self.certify(&room, "a remainder may reach its divisor");
        }
        self.certify(&den.neg().plus_int(-1), "a divisor may be 0")?;
        self.certify(&rest.neg(), "a remainder may be above 0")?;
        let room = self.reduce(rest.plus(-1, den)).plus_int(-1);
        self.certify(&room, "a remainder may reach its divisor")
    }

    /// That the result is `-((den - 1 - num) // den)`.
    fn is_flipped(&mut self, [num, den, result]: &[Sum; 3]) -> bool {
        let flipped = den.plus(-1, num).plus_int(-1);
        self.certify(&den.plus_int(-1), "").is_ok()
            && self
                .quotient(&flipped, den)
                .is_ok_and(|value| self.reduce(value.neg()) == self.reduce(result.clone()))
    }

    /// That the numerator holds a quotient `a // m`, and the result is `(a + m*others) // (m*den)`.
    fn is_merged(&mut self, [num, den, result]: &[Sum; 3]) -> bool {
        let one = Sum::from(BigInt::one());
        let atoms: Vec<AtomId> = num.0.keys().flatten().copied().collect();
        atoms.into_iter().any(|id| {
            let Kind::Div(a, m) = &self.atoms[id as usize].kind else { return false };
            let (a, m) = (Sum::from(a), Sum::from(m));
            let Some((factor, others)) = num.split(id) else { return false };
            let inner = if factor == one { a } else { m.plus(-1, &a).plus_int(-1) };
            let merged = inner.plus(1, &m.times(&others));
            (factor == one || factor == one.neg())
                && self.certify(&den.plus_int(-1), "").is_ok()
                && self.quotient(&merged, &m.times(den)).is_ok_and(|value| self.same(value, result))
        })
    }

    fn is_quotient_atom(&self, num: &Poly, den: &Poly, result: &Poly) -> bool {
        let Some((mono, coef)) = result.as_term() else { return false };
        let (Some(id), true) = (mono.only(), coef.is_one()) else { return false };
        matches!(&self.atoms[id as usize].kind, Kind::Div(a, b) if a == num && b == den)
            && (id as usize) < self.ranges.len()
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
                let (scale, shift) = (Sum::from(scale), Sum::from(shift));
                self.certify(&scale, "a scale may be below 0")?;
                let mapped: Vec<Sum> =
                    to.iter().map(|operand| operand.times(&scale).plus(1, &shift)).collect();
                let same = mapped.iter().all(|sum| from.contains(sum))
                    && from.iter().all(|sum| mapped.contains(sum));
                ensure(same, "the operands are not in proportion")?;
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
                let (divisor, sign) = (Sum::from(divisor), if *negated { -1 } else { 1 });
                ensure(from.len() == to.len(), "an operand is missing")?;
                for (quotient, num) in from.iter().zip(&to) {
                    self.check_numerator(quotient, num, &divisor, sign)?;
                }
                let signed = |sum: &Sum| Sum::default().plus(sign, sum);
                signed(&self.quotient(&signed(&value), &divisor)?)
            }
        };
        ensure(self.reduce(derived) == self.reduce(result.into()), "a minimum has another value")?;
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
        let same = matches!(kind, Some(Kind::Div(a, b)) if Sum::from(a) == inner && Sum::from(b) == *divisor);
        ensure(is_atom && same, "an operand is no such quotient")
    }

    fn flattened(&self, from: &[Sum], idx: usize, id: AtomId) -> Option<Vec<Sum>> {
        let Kind::Min(list) = &self.atoms[id as usize].kind else { return None };
        let (factor, rest) = from.get(idx)?.split(id)?;
        let positive = factor == Sum::from(factor.constant()) && factor.constant().is_positive();
        let inner = list.iter().map(|operand| rest.plus(1, &factor.times(&Sum::from(operand))));
        let mut flat = from.to_vec();
        flat.splice(idx..=idx, inner);
        positive.then_some(flat)
    }
}
