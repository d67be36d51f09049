//! The rules for quotients and minima: each a law, its side conditions, and the code that applies it.
//!
//! [`RULES`] is the one list. The normal form tries the rules of a quotient or minimum in this order, takes the
//! first that applies, and starts again on its result. `tests/rules.rs` goes through the same list: it checks
//! every law on a box with negative values and with big integers wherever its conditions hold, and every `apply`
//! against evaluation. The test fails if a rule is never reached.
//!
//! Each rule removes an operation or makes an operand smaller in a fixed order, so a chain of rules ends:
//! splitting and reducing shrink coefficients, flipping makes the leading coefficient positive for good, merging
//! removes a quotient, cancelling shrinks the divisor.
//!
//! Some laws need no rule, because the representation implies them. Polynomials are associative, commutative and
//! distributive; `a % m` is `a - m*(a // m)`; `max` is a negated `min`; a step is a substitution for its symbol.

mod minimum;
mod quotient;

use crate::assume::Facts;
use crate::dim::Dim;
use crate::engine::atoms::{AtomKind, Engine, Refusal};
use crate::engine::egraph;
use crate::int::Int;
use crate::poly::Poly;

/// Which side of 0 a divisor is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Positive,
    Negative,
}

/// One rewrite of the normal form.
pub struct Rule {
    /// A short name.
    pub name: &'static str,
    /// The equation, in the grammar of [`Dim`], with `==` between the sides.
    pub law: &'static str,
    /// The side conditions, joined by ` and `, under which the equation holds for all integers.
    pub given: &'static str,
    apply: Apply,
}

type Rewrite = Result<Option<Poly>, Refusal>;

enum Apply {
    /// To `num // den` with `den < 0`.
    Negative(fn(&mut Engine, &Poly, &Poly) -> Rewrite),
    /// To `num // den` with `den >= 1`.
    Quotient(fn(&mut Engine, &Poly, &Poly) -> Rewrite),
    /// To the minimum of several operands.
    Minimum(fn(&mut Engine, &[Poly]) -> Rewrite),
    /// To a sum of products.
    Sum(fn(&mut Engine, &Poly) -> Rewrite),
    /// To nested minima and maxima: the e-graph matches the law as a pattern.
    Lattice,
}

use Apply::{Lattice, Minimum, Negative, Quotient, Sum};

/// The name and law of every rule for the e-graph.
pub(crate) fn lattice_laws() -> impl Iterator<Item = (&'static str, &'static str)> {
    RULES.iter().filter(|rule| matches!(rule.apply, Lattice)).map(|rule| (rule.name, rule.law))
}

/// Every rule, in the order of trial.
#[rustfmt::skip]
pub static RULES: &[Rule] = &[
    Rule { name: "negative divisor", law: "a // m == (-a) // (-m)", given: "m <= -1",
        apply: Negative(quotient::negate_divisor) },
    Rule { name: "small numerator", law: "(k*m + r) // m == k", given: "m >= 1 and 0 <= r and r <= m - 1",
        apply: Quotient(quotient::known_quotient) },
    Rule { name: "split", law: "(m*q + r) // m == q + r // m", given: "m >= 1",
        apply: Quotient(quotient::split) },
    Rule { name: "reduce", law: "(m*q*x + c*x + r) // m == q*x + (c*x + r) // m", given: "m >= 1",
        apply: Quotient(quotient::reduce) },
    Rule { name: "flip", law: "(-a) // m == -((a + m - 1) // m)", given: "m >= 1",
        apply: Quotient(quotient::flip) },
    Rule { name: "cancel", law: "(g*a + r) // (g*m) == a // m", given: "g >= 1 and m >= 1 and 0 <= r and r <= g - 1",
        apply: Quotient(quotient::cancel) },
    Rule { name: "proportional", law: "(g*a) // (g*m) == a // m", given: "g >= 1 and m >= 1",
        apply: Quotient(quotient::proportional) },
    Rule { name: "long division", law: "(q*m + r) // m == q", given: "m >= 1 and 0 <= r and r <= m - 1",
        apply: Quotient(quotient::long_division) },
    Rule { name: "two values",
        law: "(c*x + d) // m == (c*l + d)//m + (x - l)*((c*l + c + d)//m - (c*l + d)//m)",
        given: "m >= 1 and l <= x and x <= l + 1",
        apply: Quotient(quotient::two_values) },
    Rule { name: "nested", law: "(a//m + b) // n == (a + m*b) // (m*n)", given: "m >= 1 and n >= 1",
        apply: Quotient(quotient::nested) },
    Rule { name: "flatten", law: "min(min(a, b) + c, d) == min(a + c, b + c, d)", given: "",
        apply: Minimum(minimum::flatten) },
    Rule { name: "drop", law: "min(a, b) == a", given: "a <= b",
        apply: Minimum(minimum::drop_greater) },
    Rule { name: "common divisor", law: "min(a//m, b//m) == min(a, b)//m", given: "m >= 1",
        apply: Minimum(minimum::common_divisor) },
    Rule { name: "shift", law: "min(a + c, b + c) == min(a, b) + c", given: "",
        apply: Minimum(minimum::shift) },
    Rule { name: "scale", law: "min(g*a, g*b) == g*min(a, b)", given: "g >= 0",
        apply: Minimum(minimum::scale) },
    Rule { name: "square", law: "min(0, z)*min(0, z) == z*min(0, z)", given: "",
        apply: Sum(minimum::square) },
    Rule { name: "halves", law: "(a + 1)//2 == a - a//2", given: "",
        apply: Sum(quotient::halves) },
    Rule { name: "min commutes", law: "min(x, y) == min(y, x)", given: "", apply: Lattice },
    Rule { name: "max commutes", law: "max(x, y) == max(y, x)", given: "", apply: Lattice },
    Rule { name: "absorb max", law: "min(x, max(x, y)) == x", given: "", apply: Lattice },
    Rule { name: "absorb min", law: "max(x, min(x, y)) == x", given: "", apply: Lattice },
    Rule { name: "distribute min", law: "min(x, max(y, z)) == max(min(x, y), min(x, z))", given: "", apply: Lattice },
    Rule { name: "distribute max", law: "max(x, min(y, z)) == min(max(x, y), max(x, z))", given: "", apply: Lattice },
    Rule { name: "median min", law: "max(y, min(max(x, y), z)) == max(y, min(x, z))", given: "", apply: Lattice },
    Rule { name: "median max", law: "min(y, max(min(x, y), z)) == min(y, max(x, z))", given: "", apply: Lattice },
    Rule { name: "collect min", law: "max(min(x, y), min(x, z)) == min(x, max(y, z))", given: "", apply: Lattice },
    Rule { name: "collect max", law: "min(max(x, y), max(x, z)) == max(x, min(y, z))", given: "", apply: Lattice },
];

pub(crate) fn rewrite_quotient(engine: &mut Engine, num: &Poly, den: &Poly, sign: Sign) -> Rewrite {
    for rule in RULES {
        let rewritten = match (&rule.apply, sign) {
            (Negative(apply), Sign::Negative) | (Quotient(apply), Sign::Positive) => apply(engine, num, den)?,
            _ => None,
        };
        if rewritten.is_some() {
            return Ok(rewritten);
        }
    }
    Ok(None)
}

pub(crate) fn rewrite_minimum(engine: &mut Engine, list: &[Poly]) -> Rewrite {
    for rule in RULES {
        if let Minimum(apply) = &rule.apply
            && let Some(poly) = apply(engine, list)?
        {
            return Ok(Some(poly));
        }
    }
    Ok(None)
}

/// Whether some rule for sums is about atoms of this kind.
pub(crate) fn has_sum_rules(kind: &AtomKind) -> bool {
    match kind {
        AtomKind::Symbol { .. } => false,
        AtomKind::Div(_, den) => den.as_const().is_some_and(|den| den == Int::from(2)),
        AtomKind::Min(_) => true,
    }
}

/// `sum`, with the rules for sums applied as long as one does.
pub(crate) fn rewrite_sum(engine: &mut Engine, mut sum: Poly) -> Result<Poly, Refusal> {
    // Each rewrite removes one distinct atom, so there are at most as many rounds as atoms.
    for _ in 0..sum.terms().len() {
        let mut rewritten = None;
        for rule in RULES {
            if let (Sum(apply), None) = (&rule.apply, &rewritten) {
                rewritten = apply(engine, &sum)?;
            }
        }
        match rewritten {
            Some(poly) => sum = poly,
            None => break,
        }
    }
    Ok(sum)
}

impl Rule {
    /// Applies this rule alone to the outermost operation of `e`, whose operands are normalised first; `None` where
    /// it does not apply.
    ///
    /// ```
    /// use symshape::{Dim, Facts, RULES};
    /// let split = RULES.iter().find(|rule| rule.name == "split").unwrap();
    /// let e: Dim = "(8*i + j)//8".parse().unwrap();
    /// assert_eq!(split.rewrite(&Facts::new(), &e).unwrap().to_string(), "i + j//8");
    /// ```
    pub fn rewrite(&self, facts: &Facts, e: &Dim) -> Option<Dim> {
        use crate::dim::Node;
        if let Lattice = self.apply {
            return egraph::apply_law(self.law, e);
        }

        let mut engine = Engine::new(facts);
        let engine = &mut engine;

        let poly = match (e.node(), &self.apply) {
            (Node::FloorDiv(a, b), Negative(apply) | Quotient(apply)) => {
                let num = engine.normalize(a).ok()?;
                let den = engine.normalize(b).ok()?;
                engine.reset_budget();

                let sign = match engine.interval(&den) {
                    range if range.is_positive() => Sign::Positive,
                    range if range.hi.as_ref().is_some_and(|hi| hi.is_negative()) => Sign::Negative,
                    _ => return None,
                };

                match (&self.apply, sign) {
                    (Negative(_), Sign::Negative) | (Quotient(_), Sign::Positive) => {
                        apply(engine, &num, &den)
                    }
                    _ => return None,
                }
            }
            (Node::Min(list), Minimum(apply)) => {
                let list: Result<Vec<_>, _> = list.iter().map(|operand| engine.normalize(operand)).collect();
                apply(engine, &list.ok()?)
            }
            (_, Sum(apply)) => {
                // The normal form of the term itself would have these rules applied already.
                let poly = engine.normal_node(e.node()).ok()?;
                apply(engine, &poly)
            }
            _ => return None,
        };

        Some(engine.render(&poly.ok()??))
    }
}
