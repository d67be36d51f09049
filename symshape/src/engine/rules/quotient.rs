//! The rules for `num // den`. The divisor is at least 1, except in [`negate_divisor`].

use smallvec::SmallVec;

use super::Rewrite;
use crate::engine::atoms::{AtomKind, Engine};
use crate::engine::bounds::Why;
use crate::engine::proof::{Cancelled, QuotientLaw};
use crate::int::Int;
use crate::poly::{AtomId, Mono, Poly, Term, Terms};

pub(super) fn negate_divisor(engine: &mut Engine, num: &Poly, den: &Poly) -> Rewrite {
    let result = engine.divide(&num.neg(), &den.neg())?;
    Ok(Some(engine.quotient_by([num, den], result, || QuotientLaw::Negate)))
}

/// The numerator stays within one period of the divisor.
pub(super) fn known_quotient(engine: &mut Engine, num: &Poly, den: &Poly) -> Rewrite {
    let Some((quotient, remainder)) = quotient_of_period(engine, num, den) else { return Ok(None) };
    Ok(Some(engine.quotient_by([num, den], quotient.into(), || QuotientLaw::Remainder(remainder))))
}

/// The constant `num // den`, and why `num - den*quotient` is a remainder.
fn quotient_of_period(engine: &mut Engine, num: &Poly, den: &Poly) -> Option<(Int, [Why; 2])> {
    if let Some(divisor) = den.as_const() {
        let [Some(lo), Some(hi)] = engine.ends(num) else { return None };
        let smallest = lo.value.div_floor(&divisor);
        let largest = hi.value.div_floor(&divisor);
        return (smallest == largest).then_some((smallest, [lo.why, hi.why]));
    }
    [Int::ZERO, Int::from(-1)].into_iter().find_map(|quotient| {
        let remainder = why_remainder(engine, &num.add_scaled(&-&quotient, den), den)?;
        Some((quotient, remainder))
    })
}

/// Why `rest` is not below 0, nor above `den - 1`.
fn why_remainder(engine: &mut Engine, rest: &Poly, den: &Poly) -> Option<[Why; 2]> {
    let above = engine.why_non_negative(rest)?;
    let below_divisor = engine.why_non_negative(&den.sub(rest).add_const(&Int::from(-1)))?;
    Some([above, below_divisor])
}

/// Takes out the terms that the divisor divides, and whole multiples of it out of the constant.
pub(super) fn split(engine: &mut Engine, num: &Poly, den: &Poly) -> Rewrite {
    let Some((mono, divisor)) = den.as_term() else { return Ok(None) };
    let mut quotient = Terms::new();
    let mut rest = Terms::new();
    for (term_mono, coef) in num.terms() {
        let whole = if term_mono.is_unit() && mono.is_unit() {
            coef.div_floor(divisor)
        } else {
            coef.div_exact(divisor).unwrap_or(Int::ZERO)
        };
        match term_mono.div(mono) {
            Some(factor) if !whole.is_zero() => {
                let left = coef - &(&whole * divisor);
                quotient.push((factor, whole));
                if !left.is_zero() {
                    rest.push((*term_mono, left));
                }
            }
            _ => rest.push((*term_mono, coef.clone())),
        }
    }

    finish_split(engine, [num, den], quotient, rest)
}

/// `quotient + rest // den`.
fn finish_split(engine: &mut Engine, [num, den]: [&Poly; 2], quotient: Terms, rest: Terms) -> Rewrite {
    if quotient.is_empty() {
        return Ok(None);
    }
    let whole = Poly::from_ordered(quotient);
    let result = whole.add(&engine.divide(&Poly::from_ordered(rest), den)?);
    Ok(Some(engine.quotient_by([num, den], result, || QuotientLaw::Split { whole })))
}

/// Makes the leading coefficient positive, so that a quotient and its negation share an atom. A constant divided by a
/// constant is left to `split`.
pub(super) fn flip(engine: &mut Engine, num: &Poly, den: &Poly) -> Rewrite {
    let is_constant = num.as_const().is_some() && den.as_const().is_some();
    if is_constant || !num.leading().is_some_and(|(_, coef)| coef.is_negative()) {
        return Ok(None);
    }
    let flipped = den.sub(num).add_const(&Int::from(-1));
    let result = engine.divide(&flipped, den)?.neg();
    Ok(Some(engine.quotient_by([num, den], result, || QuotientLaw::Flip)))
}

/// Brings coefficients at or beyond the divisor as near to 0 as whole multiples of it can.
///
/// A coefficient within the divisor stays as it is: `(5*x) // 7` rises with `x`, which `x - (2*x + 6) // 7` hides
/// from interval arithmetic.
pub(super) fn reduce(engine: &mut Engine, num: &Poly, den: &Poly) -> Rewrite {
    let Some((mono, divisor)) = den.as_term().filter(|term| term.1.is_positive()) else { return Ok(None) };
    let mut quotient = Terms::new();
    let mut rest = Terms::new();
    for (term_mono, coef) in num.terms() {
        let factor = term_mono.div(mono).filter(|_| !term_mono.is_unit() && coef.abs() >= *divisor);
        let Some(factor) = factor else {
            rest.push((*term_mono, coef.clone()));
            continue;
        };

        let mut left = coef.mod_floor(divisor);
        if &left + &left > *divisor {
            left = &left - divisor;
        }

        quotient.push((factor, (coef - &left).div_floor(divisor)));
        if !left.is_zero() {
            rest.push((*term_mono, left));
        }
    }

    finish_split(engine, [num, den], quotient, rest)
}

/// Divides both sides by a factor `g` of the divisor, dropping a part of the numerator that stays in `0..g`.
pub(super) fn cancel(engine: &mut Engine, num: &Poly, den: &Poly) -> Rewrite {
    let common = den.common_term();
    let mut factors = Terms::new();
    for (mono, coef) in num.varying() {
        let factor = (mono.gcd(&common.0), coef.gcd(&common.1));
        let is_unit = factor.0.is_unit() && factor.1.is_one();
        let positive = factor.0.ids().into_iter().all(|id| engine.atom(id).range.is_positive());
        if !is_unit && positive && !factors.contains(&factor) {
            factors.push(factor);
        }
    }

    // The greater the factor, the more is cancelled at once.
    factors.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.cmp(&a.1)));

    for factor in factors {
        if let Some((kept, remainder)) = drop_small(engine, num, &factor)
            && let Some(rest) = den.div_term(&factor)
        {
            let result = engine.divide(&kept, &rest)?;
            let factor = Poly::term(factor.0, factor.1);
            let law = || QuotientLaw::Cancel(Cancelled { factor, kept, rest, remainder }.into());
            return Ok(Some(engine.quotient_by([num, den], result, law)));
        }
    }

    Ok(None)
}

/// `num // factor`, where the terms that `factor` does not divide stay within one period of it, and why they do.
fn drop_small(engine: &mut Engine, num: &Poly, factor: &Term) -> Option<(Poly, [Why; 2])> {
    let divisible = |(mono, coef): &&Term| mono.div(&factor.0).is_some() && coef.is_multiple_of(&factor.1);
    let (kept, small): (SmallVec<[&Term; 6]>, SmallVec<[&Term; 6]>) =
        num.varying().iter().partition(divisible);
    let kept = Poly::from_ordered(kept.into_iter().cloned()).div_term(factor)?;
    let small = Poly::from_ordered(small.into_iter().cloned()).add_const(&num.constant());
    let factor = Poly::term(factor.0, factor.1.clone());
    let (quotient, remainder) = quotient_of_period(engine, &small, &factor)?;
    Some((kept.add_const(&quotient), remainder))
}

/// Numerator and divisor are multiples of one polynomial.
pub(super) fn proportional(engine: &mut Engine, num: &Poly, den: &Poly) -> Rewrite {
    if den.terms().len() < 2 || num.terms().len() != den.terms().len() {
        return Ok(None);
    }

    let a = num.common_term();
    let b = den.common_term();
    let (Some(p), Some(q)) = (num.div_term(&a), den.div_term(&b)) else { return Ok(None) };
    let kept = Poly::term(a.0, a.1);
    let rest = Poly::term(b.0, b.1);
    let kept = if p == q {
        kept
    } else if p.neg() == q {
        kept.neg()
    } else {
        return Ok(None);
    };

    let Some(remainder) = why_remainder(engine, &Poly::default(), &q) else { return Ok(None) };
    let result = engine.divide(&kept, &rest)?;
    let law = || QuotientLaw::Cancel(Cancelled { factor: q, kept, rest, remainder }.into());

    Ok(Some(engine.quotient_by([num, den], result, law)))
}

/// Divides by a divisor of several terms, if the rest is proven to be a remainder.
pub(super) fn long_division(engine: &mut Engine, num: &Poly, den: &Poly) -> Rewrite {
    let (Some(leading), true) = (den.leading().cloned(), den.terms().len() > 1) else { return Ok(None) };
    let mut quotient = Poly::default();
    let mut rest = num.clone();

    // Each step replaces a term by lesser ones; the caps on polynomials end a run that grows.
    while let Some(term) =
        rest.terms().iter().find_map(|term| Poly::term(term.0, term.1.clone()).div_term(&leading))
    {
        quotient = quotient.add(&term);
        rest = rest.sub(&den.mul(&term)?).within_caps()?;
    }

    for shift in [0, -1] {
        let left = rest.add_scaled(&Int::from(-shift), den);
        if !quotient.is_zero()
            && let Some(remainder) = why_remainder(engine, &left, den)
        {
            let result = quotient.add_const(&Int::from(shift));
            return Ok(Some(engine.quotient_by([num, den], result, || QuotientLaw::Remainder(remainder))));
        }
    }

    Ok(None)
}

/// A function of an atom with only two values is linear in it.
pub(super) fn two_values(engine: &mut Engine, num: &Poly, den: &Poly) -> Rewrite {
    let (Some(divisor), [(mono, coef)]) = (den.as_const(), num.varying()) else { return Ok(None) };
    let Some(id) = mono.only() else { return Ok(None) };
    let range = engine.atom(id).range.clone();
    let (Some(lo), Some(hi)) = range.into_ends() else { return Ok(None) };
    if &hi - &lo != Int::ONE {
        return Ok(None);
    }

    let at = |value: &Int| (&(coef * value) + &num.constant()).div_floor(&divisor);
    let first = at(&lo);
    let slope = &at(&hi) - &at(&lo);
    let result = Poly::term(Mono::atom(id), slope.clone()).add_const(&(&first - &(&slope * &lo)));

    // The rest is linear in one atom, so its interval is exact.
    let law = || QuotientLaw::Remainder([Why::Interval, Why::Interval]);
    Ok(Some(engine.quotient_by([num, den], result, law)))
}

/// A sum with one quotient in it, divided again: one division is left.
pub(super) fn nested(engine: &mut Engine, num: &Poly, den: &Poly) -> Rewrite {
    let is_quotient =
        |term: &&Term| term.0.ids().into_iter().any(|id| matches!(engine.atom(id).kind, AtomKind::Div(..)));
    let mut quotients = num.terms().iter().filter(is_quotient);
    let (Some((mono, coef)), None) = (quotients.next(), quotients.next()) else { return Ok(None) };
    let (Some(id), Int::Small(1 | -1)) = (mono.only(), coef) else { return Ok(None) };
    let AtomKind::Div(inner, divisor) = engine.atom(id).kind.clone() else { return Ok(None) };
    let rest = num.sub(&Poly::term(*mono, coef.clone()));

    // -(a // m) is (m - 1 - a) // m, so both signs are one law.
    let inner = if coef.is_positive() { inner } else { divisor.sub(&inner).add_const(&Int::from(-1)) };
    let merged = inner.add(&divisor.mul(&rest)?);
    let result = engine.divide(&merged, &divisor.mul(den)?)?;
    Ok(Some(engine.quotient_by([num, den], result, || QuotientLaw::Merge { id })))
}

/// Where `a // 2` and `(a + 1) // 2` meet in one sum, one of them is enough.
pub(super) fn halves(engine: &mut Engine, sum: &Poly) -> Rewrite {
    let two = Poly::from(2);
    let numerator = |id: &AtomId| match &engine.atom(*id).kind {
        AtomKind::Div(num, den) if *den == two => Some((*id, num.clone())),
        _ => None,
    };

    let halves: Vec<(AtomId, Poly)> = sum.atoms().iter().filter_map(numerator).collect();
    for (raised, num) in &halves {
        let floor = num.add_const(&Int::from(-1));
        if let Some((id, _)) = halves.iter().find(|(_, other)| *other == floor) {
            let rounded_up = floor.sub(&Poly::atom(*id));
            return Ok(Some(sum.replace(*raised, &rounded_up)?));
        }
    }

    Ok(None)
}
