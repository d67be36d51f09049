//! Simplification: the normal form first, then the choice of the cheapest term.
//!
//! [`Facts::simplify`] compares the rendered normal form of a term with the term rebuilt from simplified operands,
//! from the leaves up, so that what the normal form spreads out without gain stays as it was written. The result
//! never has more operations than the input.

use std::collections::HashSet;

use crate::assume::{Comparison, Facts, Relation};
use crate::atoms::{Engine, FastMap};
use crate::dim::{Dim, Node, Symbol};
use crate::egraph;
use crate::int::Int;
use crate::poly::{Mono, Poly};
use crate::render::{Renderer, operations};
use crate::sample::Domain;

impl Facts {
    /// A term of equal value with as few operations as can be found; never more than `e` has.
    ///
    /// ```
    /// use symshape::{Declaration, Dim, Facts, Symbol};
    /// let mut facts = Facts::new();
    /// facts.declare(&Symbol::new("s"), Declaration::range(0, 63))?;
    /// let e: Dim = "(64*n + s)//64*64 + (64*n + s)%64 - s".parse().unwrap();
    /// assert_eq!(facts.simplify(&e).to_string(), "64*n");
    /// # Ok::<(), symshape::FactError>(())
    /// ```
    pub fn simplify(&self, e: &Dim) -> Dim {
        let simple = Session::new(self).simplify(e);
        debug_assert!(self.agree(e, &simple), "{e} became {simple}");
        simple
    }

    /// Whether two terms have one value at some points of the domain, wherever the first has any.
    fn agree(&self, a: &Dim, b: &Dim) -> bool {
        let (domain, mut stack) = (Domain::new(self, &[a, b]), Vec::new());
        let (a, b) = (domain.compile(a), domain.compile(b));
        (0..24).filter_map(|seed| domain.point(seed)).all(|point| {
            let expected = a.run(&point, &mut stack);
            expected.is_none() || expected == b.run(&point, &mut stack)
        })
    }

    /// [`Facts::simplify`] of several terms that are computed together: what an earlier term computes is free for
    /// those after it.
    ///
    /// ```
    /// use symshape::{Dim, Facts};
    /// let terms: [Dim; 2] = ["i//8".parse().unwrap(), "i%8".parse().unwrap()];
    /// assert_eq!(Facts::new().simplify_all(&terms).len(), 2);
    /// ```
    pub fn simplify_all(&self, terms: &[Dim]) -> Vec<Dim> {
        let mut session = Session::new(self);
        let mut computed: HashSet<Dim> = HashSet::new();
        let mut simplified = Vec::with_capacity(terms.len());
        for term in terms {
            let alone = session.simplify(term);
            let forms = [alone, term.clone()];
            let best = forms.into_iter().min_by_key(|form| added_operations(form, &computed));
            let best = best.expect("there are two forms");
            computed.extend(best.post_order().into_iter().cloned());
            simplified.push(best);
        }
        simplified
    }

    /// A relation that holds for the same values: both sides simplified, or their difference split between them.
    pub fn simplify_relation(&self, relation: &Relation) -> Relation {
        let apart =
            Relation { a: self.simplify(&relation.a), b: self.simplify(&relation.b), ..relation.clone() };
        if relation.comparison == Comparison::Divides {
            return apart;
        }
        let mut session = Session::new(self);
        let (Ok(a), Ok(b)) = (session.engine.normalize(&relation.a), session.engine.normalize(&relation.b))
        else {
            return apart;
        };
        let (a, b) = balanced(&b.sub(&a), relation.comparison);
        let (a, b) =
            (session.renderer.render(&session.engine, &a), session.renderer.render(&session.engine, &b));
        let cost = |a: &Dim, b: &Dim| operations(a).saturating_add(operations(b));
        match cost(&a, &b) < cost(&apart.a, &apart.b) {
            true => Relation { a, b, ..relation.clone() },
            false => apart,
        }
    }

    /// `(coefficient, rest)` with `e == coefficient*s + rest` for all values, both free of `s`.
    ///
    /// ```
    /// use symshape::{Dim, Facts, Symbol};
    /// let e: Dim = "(n*S + s)*4 + 1".parse().unwrap();
    /// let (stride, rest) = Facts::new().linear_in(&e, &Symbol::new("n")).unwrap();
    /// assert_eq!((stride.to_string(), rest.to_string()), ("4*S".into(), "4*s + 1".into()));
    /// ```
    pub fn linear_in(&self, e: &Dim, s: &Symbol) -> Option<(Dim, Dim)> {
        let mut engine = Engine::new(self);
        let Ok(poly) = engine.normalize(e) else {
            return (!e.contains(s)).then(|| (Dim::zero(), e.clone()));
        };
        let (coef, rest) = engine.split_by_symbol(poly, s)?;
        let mut renderer = Renderer::default();
        Some((renderer.render(&engine, &coef), renderer.render(&engine, &rest)))
    }
}

/// `a` and `b` without terms below 0, so that `a` compares with `b` as 0 with `gap`; common factors are divided out.
fn balanced(gap: &Poly, comparison: Comparison) -> (Poly, Poly) {
    let content = Poly::content_of(gap.varying());
    let mut gap = gap.clone();
    let exact = !content.is_zero() && gap.constant().is_multiple_of(&content);
    if exact || (comparison == Comparison::Le && !content.is_zero()) {
        // 0 <= g*p + c holds just where 0 <= p + c // g does.
        let divide = |(mono, coef): &(Mono, Int)| (*mono, coef.div_floor(&content));
        let terms = gap.terms().iter().map(divide).filter(|term| !term.1.is_zero());
        gap = Poly::from_ordered(terms.collect());
    }
    let (positive, negative): (Vec<_>, Vec<_>) =
        gap.terms().iter().cloned().partition(|term| term.1.is_positive());
    (Poly::from_ordered(negative).neg(), Poly::from_ordered(positive))
}

/// The operations of `dim` that are not part of a term in `computed`.
fn added_operations(dim: &Dim, computed: &HashSet<Dim>) -> u32 {
    let inside: u32 = match computed.contains(dim) || !dim.is_tractable() {
        true => return 0,
        false => dim.node().operands().into_iter().map(operations).fold(0, u32::saturating_add),
    };
    let own = operations(dim).saturating_sub(inside);
    own + dim.node().operands().into_iter().map(|operand| added_operations(operand, computed)).sum::<u32>()
}

/// One engine and what was simplified with it.
struct Session {
    engine: Engine,
    renderer: Renderer,
    done: FastMap<Dim, Dim>,
}

/// A term of so few operations is not worth a second look.
const FEW: u32 = 1;

impl Session {
    fn new(facts: &Facts) -> Self {
        Session { engine: Engine::new(facts), renderer: Renderer::default(), done: FastMap::default() }
    }

    fn simplify(&mut self, dim: &Dim) -> Dim {
        match dim.is_tractable() {
            true => crate::order::ordered(&self.best(dim)),
            false => dim.clone(),
        }
    }

    fn best(&mut self, dim: &Dim) -> Dim {
        if let Node::Int(_) = dim.node() {
            return dim.clone();
        }
        if let Some(done) = self.done.get(dim) {
            return done.clone();
        }
        let normal = self.engine.normalize(dim).ok();
        let rendered = normal.map(|poly| self.renderer.render(&self.engine, &poly));
        let best = match rendered {
            Some(rendered) if operations(&rendered) <= FEW => rendered,
            rendered => self.compare(dim, rendered),
        };
        self.done.insert(dim.clone(), best.clone());
        best
    }

    fn compare(&mut self, dim: &Dim, rendered: Option<Dim>) -> Dim {
        let rebuilt = match dim.node() {
            Node::Int(_) | Node::Symbol(_) => dim.clone(),
            Node::Add(list) => Dim::sum(list.iter().map(|operand| self.best(operand)).collect::<Vec<_>>()),
            Node::Mul(list) => {
                Dim::product(list.iter().map(|operand| self.best(operand)).collect::<Vec<_>>())
            }
            Node::FloorDiv(a, b) => self.best(a).floor_div(self.best(b)),
            Node::Mod(a, b) => self.best(a).modulo(self.best(b)),
            Node::Min(list) => self.extreme(list, Dim::min),
            Node::Max(list) => self.extreme(list, Dim::max),
        };
        let lattice = [rendered.as_ref(), Some(&rebuilt)].into_iter().flatten().find_map(egraph::cheapest);
        let mut candidates = [rendered, Some(rebuilt), Some(dim.clone()), lattice].into_iter().flatten();
        let first = candidates.next().expect("the input is a candidate");
        candidates.fold(first, |best, next| if operations(&next) < operations(&best) { next } else { best })
    }

    fn extreme(&mut self, list: &[Dim], pick: fn(&Dim, Dim) -> Dim) -> Dim {
        let operands: Vec<Dim> = list.iter().map(|operand| self.best(operand)).collect();
        operands.into_iter().reduce(|acc, next| pick(&acc, next)).expect("a minimum has operands")
    }
}
