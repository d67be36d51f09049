//! Simplification of relations: [`Facts::simplify_relation`].
//!
//! A relation `a <= b` is one polynomial `gap = b - a` that is not below 0, and there are many ways to write it. Every
//! candidate here holds for the same values as the relation, and the one with the fewest operations wins. Candidates
//! are: the terms balanced between the sides, all terms on one side, `gap // c` in place of `gap` (which drops a rest
//! that never reaches a whole `c`), a numerator in place of its quotient, and a minimum or maximum without the
//! operands that cannot decide.

use crate::assume::{Comparison, Facts, Relation};
use crate::dim::operations;
use crate::dim::{Dim, Node};
use crate::engine::atoms::{AtomKind, Engine};
use crate::int::Int;
use crate::poly::{Mono, Poly};
use crate::render::Renderer;

impl Facts {
    /// A relation that holds for the same values, with as few operations as can be found.
    ///
    /// ```
    /// use symshape::{Declaration, Dim, Facts, Relation, Symbol};
    /// let mut facts = Facts::new();
    /// facts.declare(&Symbol::new("y"), Declaration::range(0, 7))?;
    /// let simple = |a: &str, b: &str| {
    ///     let (a, b): (Dim, Dim) = (a.parse().unwrap(), b.parse().unwrap());
    ///     facts.simplify_relation(&Relation::lt(a, b)).to_string()
    /// };
    /// assert_eq!(simple("8*x + y", "16"), "x <= 1");
    /// assert_eq!(simple("x//4", "3"), "x <= 11");
    /// # Ok::<(), symshape::FactError>(())
    /// ```
    pub fn simplify_relation(&self, relation: &Relation) -> Relation {
        let relation = self.without_idle_operands(relation);
        let apart =
            Relation { a: self.simplify(&relation.a), b: self.simplify(&relation.b), ..relation.clone() };
        if relation.comparison == Comparison::Divides {
            return apart;
        }

        let mut engine = Engine::new(self);
        let (Ok(a), Ok(b)) = (engine.normalize(&relation.a), engine.normalize(&relation.b)) else {
            return apart;
        };
        let strict = i64::from(relation.comparison == Comparison::Lt);
        let gap = b.sub(&a).add_const(&Int::from(-strict));

        let mut writer = Writer { engine, renderer: Renderer::default(), best: apart };
        match relation.comparison {
            Comparison::Lt | Comparison::Le => writer.consider_order(&gap),
            comparison => writer.consider_equation(&gap, comparison),
        }

        writer.best
    }

    /// Leaves out operands of a minimum or maximum on the outside of either side that cannot decide the relation.
    fn without_idle_operands(&self, relation: &Relation) -> Relation {
        let Relation { comparison: comparison @ (Comparison::Lt | Comparison::Le), a, b } = relation else {
            return relation.clone();
        };
        let holds = |a: &Dim, b: &Dim| {
            self.derives(&Relation { comparison: *comparison, a: a.clone(), b: b.clone() })
        };

        // A minimum is below `b` if one operand is; an operand that never is does not matter.
        let a = match a.node() {
            Node::Min(list) => kept(list, Dim::min, |operand| {
                self.refutes(&Relation { comparison: *comparison, a: operand.clone(), b: b.clone() })
            }),
            Node::Max(list) => kept(list, Dim::max, |operand| holds(operand, b)),
            _ => a.clone(),
        };

        let b = match b.node() {
            Node::Max(list) => kept(list, Dim::max, |operand| {
                self.refutes(&Relation { comparison: *comparison, a: a.clone(), b: operand.clone() })
            }),
            Node::Min(list) => kept(list, Dim::min, |operand| holds(&a, operand)),
            _ => b.clone(),
        };

        Relation { comparison: *comparison, a, b }
    }
}

/// The operands that are not idle, at least one of them.
fn kept(list: &[Dim], join: fn(&Dim, Dim) -> Dim, idle: impl Fn(&Dim) -> bool) -> Dim {
    let kept: Vec<Dim> = list.iter().filter(|operand| !idle(operand)).cloned().collect();
    let first = list[0].clone();
    kept.into_iter().reduce(|acc, next| join(&acc, next)).unwrap_or(first)
}

/// Writes relations and keeps the shortest.
struct Writer {
    engine: Engine,
    renderer: Renderer,
    best: Relation,
}

impl Writer {
    fn offer(&mut self, comparison: Comparison, a: &Poly, b: &Poly) {
        let a = self.renderer.render(&self.engine, a);
        let b = self.renderer.render(&self.engine, b);
        let cost = |a: &Dim, b: &Dim| operations(a).saturating_add(operations(b));
        if cost(&a, &b) < cost(&self.best.a, &self.best.b) {
            let a = crate::order::ordered(&a);
            let b = crate::order::ordered(&b);
            self.best = Relation { comparison, a, b };
        }
    }

    /// `gap >= 0`, as `<=` and as `<`, balanced and with all terms on one side.
    fn offer_order(&mut self, gap: &Poly) {
        for (comparison, shift) in [(Comparison::Le, 0), (Comparison::Lt, 1)] {
            let gap = gap.add_const(&Int::from(shift));
            let (low, high) = balanced(&gap);
            self.offer(comparison, &low, &high);
            let constant = gap.constant();
            let varying = gap.add_const(&-&constant);
            self.offer(comparison, &(-&constant).into(), &varying);
            self.offer(comparison, &varying.neg(), &constant.into());
        }
    }

    fn consider_order(&mut self, gap: &Poly) {
        self.offer_order(gap);
        let mut divisors: Vec<Int> = gap.varying().iter().map(|term| term.1.abs()).collect();
        divisors.sort();
        divisors.dedup();

        for divisor in divisors.into_iter().filter(|divisor| !divisor.is_one()).take(MAX_DIVISORS) {
            if let Ok(quotient) = self.engine.divide(gap, &divisor.into()) {
                self.offer_order(&quotient);
            }
        }

        if let Some(numerator) = self.numerator(gap) {
            self.offer_order(&numerator);
        }
    }

    /// Where `gap` is `q + k` or `k - q` with `q = n // m`: a polynomial over `n` with the same sign condition
    /// (not below 0).
    fn numerator(&self, gap: &Poly) -> Option<Poly> {
        let [(mono, sign)] = gap.varying() else { return None };
        let AtomKind::Div(num, den) = &self.engine.atom(mono.only()?).kind else { return None };
        let scaled = den.scale(&gap.constant());
        match sign {
            // n // m >= -k where n >= -k*m; n // m <= k where n <= k*m + m - 1.
            Int::Small(1) => Some(num.add(&scaled)),
            Int::Small(-1) => Some(scaled.add(den).sub(num).add_const(&Int::from(-1))),
            _ => None,
        }
    }

    /// `gap == 0` or `gap != 0`.
    fn consider_equation(&mut self, gap: &Poly, comparison: Comparison) {
        let content = Poly::content_of(gap.varying());
        let divided = if !content.is_zero() && gap.constant().is_multiple_of(&content) {
            gap.div_term(&(Mono::UNIT, content)).unwrap_or_else(|| gap.clone())
        } else {
            gap.clone()
        };

        let (low, high) = balanced(&divided);
        self.offer(comparison, &low, &high);
        let constant = divided.constant();
        let varying = divided.add_const(&-&constant);
        self.offer(comparison, &varying.neg(), &constant.clone().into());
        self.offer(comparison, &varying, &(-&constant).into());
    }
}

/// No more coefficients than this are divided by.
const MAX_DIVISORS: usize = 4;

/// `(low, high)` without terms below 0, with `high - low == gap`.
fn balanced(gap: &Poly) -> (Poly, Poly) {
    let (positive, negative): (Vec<_>, Vec<_>) =
        gap.terms().iter().cloned().partition(|term| term.1.is_positive());
    (Poly::from_ordered(negative).neg(), Poly::from_ordered(positive))
}
