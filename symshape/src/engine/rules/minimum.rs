//! The rules for the minimum of several polynomials.

use super::Rewrite;
use crate::engine::atoms::{AtomKind, Engine};
use crate::engine::proof::{Event, MinimumLaw};
use crate::int::Int;
use crate::poly::{Mono, Poly, Term};

/// More operands than this are not compared pair by pair.
const MAX_OPERANDS: usize = 16;

impl Engine {
    /// Logs that the minimum of `from` is `result`, by a law that uses the minimum of `to`.
    fn minimum_by(&mut self, law: MinimumLaw, from: &[Poly], to: Vec<Poly>, result: Poly) -> Poly {
        self.record(|| Event::Minimum { law, from: from.to_vec(), to, result: result.clone() });
        result
    }
}

/// An operand that is a multiple of a minimum plus something gives that minimum's operands.
pub(super) fn flatten(engine: &mut Engine, list: &[Poly]) -> Rewrite {
    for (idx, operand) in list.iter().enumerate() {
        let inner =
            operand.varying().iter().find_map(|(mono, coef)| match (mono.only(), coef.is_positive()) {
                (Some(id), true) => match &engine.atom(id).kind {
                    AtomKind::Min(inner) => Some((id, coef.clone(), inner.clone())),
                    _ => None,
                },
                _ => None,
            });

        let Some((id, coef, inner)) = inner else { continue };
        let rest = operand.add_scaled(&-&coef, &Poly::atom(id));
        if rest.degree_in(id) > 0 || list.len() + inner.len() > MAX_OPERANDS {
            continue;
        }

        let mut flat = list.to_vec();
        flat.splice(idx..=idx, inner.iter().map(|part| rest.add_scaled(&coef, part)));
        let result = engine.minimum(flat.clone())?;
        return Ok(Some(engine.minimum_by(MinimumLaw::Flatten { idx, id }, list, flat, result)));
    }
    Ok(None)
}

/// Drops an operand that is never less than another.
pub(super) fn drop_greater(engine: &mut Engine, list: &[Poly]) -> Rewrite {
    if list.len() > MAX_OPERANDS {
        return Ok(None);
    }

    for (idx, operand) in list.iter().enumerate() {
        for (other_idx, other) in list.iter().enumerate() {
            if idx != other_idx
                && let Some(why) = engine.why_non_negative(&operand.sub(other))
            {
                let mut kept = list.to_vec();
                kept.remove(idx);
                let result = engine.minimum(kept.clone())?;
                let law = MinimumLaw::Drop { idx, other: other_idx, why };
                return Ok(Some(engine.minimum_by(law, list, kept, result)));
            }
        }
    }

    Ok(None)
}

/// Operands that are quotients by one divisor, or all negated ones: one division is enough.
pub(super) fn common_divisor(engine: &mut Engine, list: &[Poly]) -> Rewrite {
    let mut common: Option<(Poly, Int)> = None;
    let mut numerators = Vec::with_capacity(list.len());
    for operand in list {
        let [(mono, sign @ Int::Small(1 | -1))] = operand.varying() else { return Ok(None) };
        let Some(id) = mono.only() else { return Ok(None) };
        let AtomKind::Div(num, den) = engine.atom(id).kind.clone() else { return Ok(None) };
        let (divisor, first_sign) = common.get_or_insert_with(|| (den.clone(), sign.clone()));
        if *divisor != den || first_sign != sign {
            return Ok(None);
        }
        numerators.push(num.scale(sign).add_scaled(&operand.constant(), &den));
    }

    let Some((divisor, sign)) = common else { return Ok(None) };

    // min(-(a // m)) is -(max(a) // m), which is -(-min(-a) // m).
    let smallest = engine.minimum(numerators.clone())?.scale(&sign);
    let result = engine.divide(&smallest, &divisor)?.scale(&sign);
    let law = MinimumLaw::CommonDivisor { divisor, negated: sign.is_negative() };
    Ok(Some(engine.minimum_by(law, list, numerators, result)))
}

/// Subtracts one operand from all, so that the same differences give the same atom.
///
/// The pivot is the smallest operand in the order "the leading coefficient of the difference is positive", which a
/// shift of all operands does not change. The operands that are left are sorted the same way.
pub(super) fn shift(engine: &mut Engine, list: &[Poly]) -> Rewrite {
    let mut sorted = list.to_vec();
    sorted.sort_by(|a, b| b.sub(a).leading().map_or(0, |term| term.1.signum()).cmp(&0).reverse());
    let pivot = sorted[0].clone();
    if pivot.is_zero() && sorted == list {
        return Ok(None);
    }
    let shifted: Vec<Poly> = sorted.iter().map(|operand| operand.sub(&pivot)).collect();
    let result = engine.minimum(shifted.clone())?.add(&pivot);
    let law = MinimumLaw::Affine { scale: (Mono::UNIT, Int::ONE), shift: pivot };
    Ok(Some(engine.minimum_by(law, list, shifted, result)))
}

/// Takes out a common factor that is never negative.
pub(super) fn scale(engine: &mut Engine, list: &[Poly]) -> Rewrite {
    let mut factors = list.iter().filter(|operand| !operand.is_zero()).map(Poly::common_term);
    let Some(first) = factors.next() else { return Ok(None) };

    let (mut mono, coef) = factors.fold(first, |a: Term, b| (a.0.gcd(&b.0), a.1.gcd(&b.1)));
    for id in mono.ids() {
        if !engine.atom(id).range.is_non_negative() {
            mono = mono.without(id);
        }
    }

    if mono.is_unit() && coef.is_one() {
        return Ok(None);
    }

    let divided: Option<Vec<Poly>> =
        list.iter().map(|operand| operand.div_term(&(mono, coef.clone()))).collect();
    let Some(divided) = divided else { return Ok(None) };
    let result = engine.minimum(divided.clone())?.mul_term(&(mono, coef.clone()))?;
    let law = MinimumLaw::Affine { scale: (mono, coef), shift: Poly::default() };
    Ok(Some(engine.minimum_by(law, list, divided, result)))
}

/// `min(0, z)` squared is `z*min(0, z)`: one of the two factors is 0 or equal to `z`.
pub(super) fn square(engine: &mut Engine, product: &Poly) -> Rewrite {
    for id in product.atoms() {
        let AtomKind::Min(list) = &engine.atom(id).kind else { continue };
        let ([zero, z], true) = (list.as_slice(), product.degree_in(id) > 1) else { continue };
        if !zero.is_zero() {
            continue;
        }

        let z = z.clone();
        let square = Poly::atom(id).mul(&Poly::atom(id))?;
        let square = square.terms()[0].0;

        let mut sum = Poly::default();
        for term in product.terms() {
            let part = match term.0.div(&square) {
                Some(rest) => z.mul(&Poly::atom(id))?.mul_term(&(rest, term.1.clone()))?,
                None => Poly::term(term.0, term.1.clone()),
            };
            sum = sum.add(&part);
        }

        return Ok(Some(sum.within_caps()?));
    }
    Ok(None)
}
