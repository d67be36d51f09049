//! From the normal form back to a [`Dim`] with few operations.
//!
//! The normal form is expanded, and a good term is compact. So rendering reverses steps of `normal` where that saves
//! operations: `a - m*(a // m)` is a remainder again, `y + min(0, x - y)` is `min(x, y)`, a substituted step is its
//! symbol, `(a + m - 1) // m` counts as one rounded-up division, and common factors are taken out of sums.
//! Each of these replaces a part of the polynomial by a new atom that is *shown* as a finished term.

use crate::dim::Dim;
use crate::dim::{is_negation, operations};
use crate::engine::atoms::{AtomKind, Engine, MAX_ATOMS};
use crate::int::Int;
use crate::memo::Memo;
use crate::mono::MAX_ID;
use crate::poly::{AtomId, Mono, Poly, Term, atoms_of};

/// The rendered atoms of one engine.
#[derive(Default)]
pub(crate) struct Renderer {
    atoms: Memo<AtomId, Dim>,
    /// The rendered polynomials, by [`Renderer::depth`].
    known: Memo<(u32, Poly), Dim>,
    /// The quotients `symbol // divisor` that were shown, by the atom of the symbol.
    steps: Vec<(AtomId, Int, AtomId)>,
    /// Finished terms that replace parts of a polynomial. Their atom numbers count down from the largest.
    shown: Vec<Dim>,
    /// How many sums are being merged into quotients, one inside the other.
    depth: u32,
    /// How many polynomials were rendered.
    rendered: u32,
}

/// After this many polynomials the rest is rendered term by term, because nested alternatives multiply.
const MAX_RENDERED: u32 = 4_000;

/// The maximum depth at which a sum is merged into a quotient; each level doubles the work.
const MAX_MERGES: u32 = 2;

const FIRST_SHOWN: AtomId = MAX_ID;

/// Numbers below belong to the engine's atoms.
const LAST_SHOWN: AtomId = MAX_ATOMS as AtomId;

impl Engine {
    /// A term equal to `poly`, with few operations.
    pub(crate) fn render(&self, poly: &Poly) -> Dim {
        Renderer::default().render(self, poly)
    }
}

impl Renderer {
    pub(crate) fn render(&mut self, engine: &Engine, poly: &Poly) -> Dim {
        if self.rendered == MAX_RENDERED {
            let poly = self.restore_steps(engine, poly);
            return self.sum(engine, poly.terms());
        }

        let key = (self.depth, poly.clone());
        if let Some(dim) = self.known.get(&key) {
            return dim.clone();
        }
        self.rendered += 1;
        let dim = self.cheapest(engine, poly);
        self.known.insert(key, dim.clone());
        dim
    }

    /// The cheaper form: the terms one by one, or merged into a quotient.
    fn cheapest(&mut self, engine: &Engine, poly: &Poly) -> Dim {
        let direct = self.render_apart(engine, poly);
        if operations(&direct) <= 1 || self.depth == MAX_MERGES {
            return direct;
        }

        self.depth += 1;
        let merged = poly.atoms().into_iter().filter_map(|id| self.merge_into_quotient(engine, poly, id));
        let merged: Vec<Dim> = merged.collect();
        self.depth -= 1;

        merged.into_iter().fold(direct, |best, next| cheaper(Some(best), next))
    }

    /// `rest + c*(a // m)` as `c*((a + m*rest/c) // m)`.
    fn merge_into_quotient(&mut self, engine: &Engine, poly: &Poly, id: AtomId) -> Option<Dim> {
        let AtomKind::Div(num, den) = &engine.atoms.get(id as usize)?.kind else { return None };
        let (coef, rest) = poly.split_linear(id)?;
        let factor = coef.as_const().filter(|_| !rest.is_zero())?;
        let inner = rest.div_term(&(Mono::UNIT, factor.abs()))?.mul(den).ok()?;
        let quotient = match factor.is_positive() {
            true => self.quotient(engine, &num.add(&inner), den),
            // -(a // m) is (m - 1 - a) // m.
            false => self.quotient(engine, &inner.sub(num).add(den).add_const(&Int::from(-1)), den),
        };
        Some(Dim::from(factor.abs().to_big()) * quotient)
    }

    /// Renders the terms of `poly` one by one.
    fn render_apart(&mut self, engine: &Engine, poly: &Poly) -> Dim {
        let mut poly = poly.clone();
        for id in poly.atoms().into_iter().rev() {
            match engine.atoms.get(id as usize).map(|atom| &atom.kind) {
                Some(AtomKind::Min(list)) => poly = self.absorb_minimum(engine, &poly, id, list),
                Some(AtomKind::Div(num, den)) => {
                    poly = self.absorb_multiple(engine, &poly, id, num, den);
                    poly = self.absorb_quotient(engine, &poly, id, num, den);
                }
                _ => {}
            }
        }

        let poly = self.restore_steps(engine, &poly);
        self.sum(engine, poly.terms())
    }

    /// The number of a finished term; `None` when all numbers are taken.
    fn show(&mut self, dim: Dim) -> Option<AtomId> {
        let known = self.shown.iter().position(|other| *other == dim);
        let idx = known.unwrap_or_else(|| {
            self.shown.push(dim);
            self.shown.len() - 1
        });
        FIRST_SHOWN.checked_sub(idx as AtomId).filter(|&id| idx < MAX_ID as usize && id >= LAST_SHOWN)
    }

    fn atom(&mut self, engine: &Engine, id: AtomId) -> Dim {
        if id as usize >= engine.atoms.len() {
            return self.shown[(FIRST_SHOWN - id) as usize].clone();
        }
        if let Some(dim) = self.atoms.get(&id) {
            return dim.clone();
        }

        let dim = match &engine.atom(id).kind {
            AtomKind::Symbol { symbol, step, .. } => Dim::from(symbol).floor_div(Dim::from(step.to_big())),
            AtomKind::Div(num, den) => self.quotient(engine, num, den),
            AtomKind::Min(list) => self.extreme(engine, list, false),
        };

        self.atoms.insert(id, dim.clone());
        dim
    }

    /// The cheapest of `num // den`, the same rounded up, and both with the steps of symbols multiplied out.
    fn quotient(&mut self, engine: &Engine, num: &Poly, den: &Poly) -> Dim {
        let factor = self.step_factor(engine, num);
        let mut forms = vec![(num.clone(), den.clone())];
        if !factor.is_one() {
            forms.push((num.scale(&factor), den.scale(&factor)));
        }

        let mut best: Option<Dim> = None;
        for (num, den) in forms {
            let divisor = self.render(engine, &den);
            let plain = self.render(engine, &num).floor_div(&divisor);
            // The numerator of the unscaled form decides about rounding up: ceil(a / m) is ceil(k*a / (k*m)).
            best = Some(cheaper(best, plain));
        }

        let raised = num.sub(den).add_const(&Int::ONE);
        if den.as_const().is_some() {
            for factor in [Int::ONE, factor] {
                let num = raised.scale(&factor);
                let den = den.scale(&factor);
                let rounded = self.render(engine, &num).ceil_div(self.render(engine, &den));
                best = Some(cheaper(best, rounded));
            }
        }

        best.expect("there is at least one form")
    }

    /// The factor that makes every coefficient in `poly` a multiple of the steps in its monomial.
    fn step_factor(&self, engine: &Engine, poly: &Poly) -> Int {
        let mut factor = Int::ONE;
        for (mono, coef) in poly.varying() {
            for id in mono.ids() {
                if let Some(AtomKind::Symbol { step, .. }) =
                    engine.atoms.get(id as usize).map(|atom| &atom.kind)
                {
                    let missing = step.div_floor(&step.gcd(&(coef * &factor)));
                    factor = &factor * &missing;
                }
            }
        }

        factor
    }

    fn extreme(&mut self, engine: &Engine, list: &[Poly], largest: bool) -> Dim {
        let operands = list.iter().map(|poly| self.render(engine, poly)).collect::<Vec<_>>();
        let pick = if largest { Dim::max } else { Dim::min };
        operands.into_iter().reduce(|acc, next| pick(&acc, next)).expect("a minimum has operands")
    }

    /// Moves a part of `poly` into the minimum where that saves operations.
    fn absorb_minimum(&mut self, engine: &Engine, poly: &Poly, id: AtomId, list: &[Poly]) -> Poly {
        let Some((coef, rest)) = poly.split_linear(id) else { return poly.clone() };
        let Some((mono, factor)) = coef.as_term().cloned() else { return poly.clone() };

        let mut moved: Vec<Poly> = vec![Poly::default(), rest.clone()];
        for operand in list {
            if let Ok(scaled) = operand.mul(&coef) {
                let part = overlap(&scaled.neg(), &rest);
                if !moved.contains(&part) {
                    moved.push(part);
                }
            }
        }

        let mut best: Option<((u32, usize), Dim, Term, Poly)> = None;
        for part in moved {
            let Some(inner) = part.div_term(&(mono, factor.clone())) else { continue };
            let operands: Vec<Poly> = list.iter().map(|operand| operand.add(&inner)).collect();
            let left = rest.sub(&part);

            for (operands, largest, outside) in orientations(&operands, &factor) {
                let dim = self.extreme(engine, &operands, largest);
                let beside = term_cost(&(mono, outside.clone())) + sum_cost(&left);
                // Of two forms that cost the same, the one with fewer minus signs reads better.
                let minus =
                    operands.iter().map(negative_terms).sum::<usize>() + usize::from(outside.is_negative());
                let cost = (operations(&dim).saturating_add(beside), minus);
                if best.as_ref().is_none_or(|old| cost < old.0) {
                    best = Some((cost, dim, (mono, outside), left.clone()));
                }
            }
        }

        let Some((_, dim, outside, left)) = best else { return poly.clone() };
        match self.show(dim).map(|id| Poly::atom(id).mul_term(&outside)) {
            Some(Ok(product)) => left.add(&product),
            _ => poly.clone(),
        }
    }

    /// Turns `k*c*x + k*(x*min(a - c*m, 0) // m)` into `k*(x*min(a, c*m) // m)`, where that saves operations.
    fn absorb_multiple(&mut self, engine: &Engine, poly: &Poly, id: AtomId, num: &Poly, den: &Poly) -> Poly {
        let Some((coef, rest)) = poly.split_linear(id) else { return poly.clone() };
        let Some(factor) = coef.as_const().filter(|factor| !factor.is_zero()) else { return poly.clone() };
        let is_minimum =
            |id| matches!(engine.atoms.get(usize::from(id)).map(|a| &a.kind), Some(AtomKind::Min(_)));

        for (mono, times) in rest.varying() {
            let beside_minimum =
                |term: &Term| term.0.div(mono).and_then(|left| left.only()).is_some_and(is_minimum);
            let Some(whole) = times.div_exact(&factor) else { continue };
            if !num.varying().iter().any(beside_minimum) {
                continue;
            }

            let term = Poly::term(*mono, times.clone());
            let Ok(moved) = Poly::term(*mono, whole).mul(den) else { continue };
            let before = operations(&self.atom(engine, id)).saturating_add(sum_cost(&term));
            let dim = self.quotient(engine, &num.add(&moved), den);
            if operations(&dim) <= before
                && let Some(shown) = self.show(dim)
            {
                return rest.sub(&term).add(&Poly::atom(shown).scale(&factor));
            }
        }

        poly.clone()
    }

    /// Turns `k*a - k*m*(a // m)` into `k*(a % m)`, and `k*m*ceil(b / m) - k*b` into `k*(-b % m)`.
    fn absorb_quotient(&mut self, engine: &Engine, poly: &Poly, id: AtomId, num: &Poly, den: &Poly) -> Poly {
        let unchanged = || poly.clone();
        let Some((coef, rest)) = poly.split_linear(id) else { return unchanged() };
        let Some(divisor) = den.as_term() else { return unchanged() };
        let divisible =
            |(mono, factor): &&Term| mono.div(&divisor.0).is_some() && factor.is_multiple_of(&divisor.1);
        let part = Poly::from_ordered(coef.terms().iter().filter(divisible).cloned());
        let Some(times) = part.div_term(divisor).filter(|times| !times.is_zero()) else { return unchanged() };

        let left_over = coef.sub(&part);
        let keep = |rest: Poly| match left_over.mul(&Poly::atom(id)) {
            Ok(product) => Some(rest.add(&product)),
            Err(_) => None,
        };

        // Read as rounded up, the quotient divides `num - den + 1`.
        let raised = num.sub(den).add_const(&Int::ONE);

        let mut best = (unchanged(), weight(poly), None);
        for numerator in [num, &raised] {
            let Some(plain) = times.mul(numerator).ok().and_then(|taken| keep(rest.add(&taken))) else {
                continue;
            };
            // One more for the remainder itself, and its operand; a shared operand is not counted twice.
            let weight = weight(&plain) + 2;
            if weight < best.1 {
                best = (plain, weight, Some(numerator.clone()));
            }
        }

        let (plain, _, Some(numerator)) = best else { return unchanged() };
        let rounded_up = numerator != *num;
        let shown_num = if rounded_up { numerator.neg() } else { numerator };

        let mut dim = self.remainder(engine, &shown_num, den);
        if den.as_const() == Some(Int::from(2)) {
            dim = cheaper(Some(dim), self.remainder(engine, &shown_num.neg(), den));
        }

        let Some(shown) = self.show(dim).map(Poly::atom) else { return unchanged() };
        let sign = Int::from(if rounded_up { 1 } else { -1 });
        match times.scale(&sign).mul(&shown) {
            Ok(product) => plain.add(&product),
            Err(_) => unchanged(),
        }
    }

    fn remainder(&mut self, engine: &Engine, num: &Poly, den: &Poly) -> Dim {
        let divisor = self.render(engine, den);
        self.render(engine, num).modulo(divisor)
    }

    /// Writes atoms of symbols with a step in terms of the symbol.
    fn restore_steps(&mut self, engine: &Engine, poly: &Poly) -> Poly {
        let is_stepped = |id: AtomId| match engine.atoms.get(id as usize).map(|atom| &atom.kind) {
            Some(AtomKind::Symbol { step, offset, .. }) => !step.is_one() || !offset.is_zero(),
            _ => false,
        };

        let mut poly = poly.clone();
        let mut done = 0;
        while let Some((idx, id)) = poly.terms().iter().enumerate().skip(done).find_map(|(idx, (mono, _))| {
            mono.ids().into_iter().find(|&id| is_stepped(id)).map(|id| (idx, id))
        }) {
            // Shown terms have the largest numbers, so the replaced term moves back, and the terms before it stay.
            done = idx;
            let AtomKind::Symbol { step, offset, .. } = &engine.atom(id).kind else { return poly };
            let (mono, coef) = poly.terms()[idx].clone();
            let gcd = coef.gcd(step);
            let divisor = step.div_floor(&gcd);
            let Some(shown) = self.show_quotient(engine, id, &divisor) else { return poly };
            let value = Poly::atom(shown).add_const(&-&offset.div_floor(&divisor));
            let others = mono.div(&Mono::atom(id)).expect("the atom is in the monomial");
            let term = (others, coef.div_floor(&gcd));
            let Ok(replaced) = value.mul_term(&term) else { return poly };
            poly = poly.sub(&Poly::term(mono, coef)).add(&replaced);
        }

        poly
    }

    /// The number of the quotient of a symbol and `divisor`.
    fn show_quotient(&mut self, engine: &Engine, id: AtomId, divisor: &Int) -> Option<AtomId> {
        if let Some(known) = self.steps.iter().find(|known| known.0 == id && known.1 == *divisor) {
            return Some(known.2);
        }
        let AtomKind::Symbol { symbol, .. } = &engine.atom(id).kind else { return None };
        let shown = self.show(Dim::from(symbol).floor_div(Dim::from(divisor.to_big())))?;
        self.steps.push((id, divisor.clone(), shown));
        Some(shown)
    }

    /// A sum with common factors taken out as long as that saves operations.
    fn sum(&mut self, engine: &Engine, terms: &[Term]) -> Dim {
        match terms {
            [] => return Dim::zero(),
            [term] => return self.product(engine, term),
            _ => {}
        }

        let whole = Poly::from_ordered(terms.iter().cloned());
        let common = whole.common_term();
        if !common.0.is_unit() || !common.1.is_one() {
            let rest = whole.div_term(&common).expect("a common term divides");
            let rest = self.sum(engine, rest.terms());
            return self.product(engine, &common) * rest;
        }

        let Some((factor, group)) = best_factor(terms) else { return self.plain_sum(engine, terms) };
        let (inside, outside): (Vec<_>, Vec<_>) =
            terms.iter().cloned().partition(|term| group.contains(&term.0));
        let inside = Poly::from_ordered(inside).div_term(&factor).expect("the factor divides its group");
        let product = self.product(engine, &factor) * self.sum(engine, inside.terms());
        join(product, self.sum(engine, &outside))
    }

    fn plain_sum(&mut self, engine: &Engine, terms: &[Term]) -> Dim {
        // A term in front that is not negative saves a negation.
        let (positive, negative): (Vec<_>, Vec<_>) = terms.iter().partition(|term| term.1.is_positive());
        let ordered = positive.into_iter().chain(negative);
        Dim::sum(ordered.map(|term| self.product(engine, term)).collect::<Vec<_>>())
    }

    fn product(&mut self, engine: &Engine, (mono, coef): &Term) -> Dim {
        let factors: Vec<Dim> = mono.ids().into_iter().map(|id| self.atom(engine, id)).collect();
        Dim::product([Dim::from(coef.to_big())].into_iter().chain(factors))
    }
}

fn join(a: Dim, b: Dim) -> Dim {
    if is_negation(&a) || matches!(a.as_int(), Some(value) if value.sign() == num_bigint::Sign::Minus) {
        b + a
    } else {
        a + b
    }
}

fn cheaper(best: Option<Dim>, other: Dim) -> Dim {
    match best {
        Some(best) if operations(&best) <= operations(&other) => best,
        _ => other,
    }
}

/// The factor and the monomials of its group whose separation saves the most multiplications.
fn best_factor(terms: &[Term]) -> Option<(Term, Vec<Mono>)> {
    let mut best: Option<(usize, Term)> = None;
    let mut consider = |factor: &dyn Fn() -> Term, size: usize, alone: usize| {
        let saving = size.saturating_sub(1 + alone);
        if size < terms.len() && saving > 0 && best.as_ref().is_none_or(|old| saving > old.0) {
            best = Some((saving, factor()));
        }
    };

    for &id in &atoms_of(terms) {
        let size = terms.iter().filter(|term| term.0.degree_in(id) > 0).count();
        let alone =
            terms.iter().filter(|(mono, coef)| mono.only() == Some(id) && coef.abs().is_one()).count();
        consider(&|| (Mono::atom(id), Int::ONE), size, alone);
    }

    for (_, coef) in terms {
        let factor = coef.abs();
        if factor.is_one() {
            continue;
        }
        let group = terms.iter().filter(|term| term.1.abs() == factor);
        let alone = group.clone().filter(|term| term.0.is_unit()).count();
        consider(&|| (Mono::UNIT, factor.clone()), group.count(), alone);
    }

    let (_, factor) = best?;
    let is_member = |term: &&Term| match factor.0.only() {
        Some(id) => term.0.degree_in(id) > 0,
        None => term.1.abs() == factor.1,
    };
    let group = terms.iter().filter(is_member).map(|term| term.0).collect();
    Some((factor, group))
}

/// `factor * min(operands)` as minimum and as negated maximum, with the integer outside and inside.
fn orientations(operands: &[Poly], factor: &Int) -> Vec<(Vec<Poly>, bool, Int)> {
    let scaled = |by: &Int| operands.iter().map(|operand| operand.scale(by)).collect::<Vec<_>>();
    let minus_one = Int::from(-1);
    let mut forms = vec![(operands.to_vec(), false, factor.clone()), (scaled(&minus_one), true, -factor)];
    if !factor.abs().is_one() {
        forms.push((scaled(factor), factor.is_negative(), Int::ONE));
    }
    forms
}

/// The operations of a term, without those of its atoms.
fn term_cost((mono, coef): &Term) -> u32 {
    let product = mono.degree() as u32;
    product + u32::from(!coef.abs().is_one())
}

/// The operations that it takes to add these terms to something.
fn sum_cost(poly: &Poly) -> u32 {
    let of = |term: &Term| match term.0.degree() {
        0 => 1,
        _ => term_cost(term),
    };
    poly.terms().iter().map(of).sum()
}

fn negative_terms(poly: &Poly) -> usize {
    poly.terms().iter().filter(|term| term.1.is_negative()).count()
}

/// The terms that `a` and `b` share, each with the coefficient nearer to 0.
fn overlap(a: &Poly, b: &Poly) -> Poly {
    let mut shared = Vec::new();
    for (mono, x) in a.terms() {
        if let Some((_, y)) = b.terms().iter().find(|term| term.0 == *mono)
            && x.signum() == y.signum()
        {
            shared.push((*mono, if x.abs() <= y.abs() { x.clone() } else { y.clone() }));
        }
    }
    Poly::from_ordered(shared)
}

/// About how many operations a sum of these terms takes, atoms counted as one each.
fn weight(poly: &Poly) -> usize {
    let of = |(mono, coef): &Term| mono.degree() + usize::from(!mono.is_unit() && !coef.abs().is_one());
    let terms: usize = poly.terms().iter().map(of).sum();
    2 * (terms + poly.terms().len())
}
