//! Simplification: the normal form first, then the choice of the cheapest term.
//!
//! [`Facts::simplify`] compares the rendered normal form of a term with the term rebuilt from simplified operands,
//! from the leaves up. So a subterm that the normal form expands without gain stays as it was written. The result
//! never has more operations than the input.

use crate::assume::Facts;
use crate::dim::operations;
use crate::dim::{Dim, Node, Symbol};
use crate::engine::atoms::Engine;
use crate::engine::egraph;
use crate::memo::Memo;
use crate::render::Renderer;
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
        if let Node::Int(_) = e.node() {
            return e.clone();
        }
        let work_out = || {
            let simple = Session::new(self).simplify(e);
            debug_assert!(self.agree(e, &simple), "{e} became {simple}");
            simple
        };
        self.answer(|answers| &answers.simple, || e.clone(), work_out)
    }

    /// Whether two terms have one value at some points of the domain, wherever the first has any.
    pub(crate) fn agree(&self, a: &Dim, b: &Dim) -> bool {
        let domain = Domain::new(self, &[a, b]);
        let mut stack = Vec::new();
        let a = domain.compile(a);
        let b = domain.compile(b);
        (0..24).filter_map(|seed| domain.point(seed)).all(|point| {
            let expected = a.run(&point, &mut stack);
            expected.is_none() || expected == b.run(&point, &mut stack)
        })
    }

    /// [`Facts::simplify_in_loops`] outside of all loops.
    ///
    /// ```
    /// use symshape::{Dim, Facts};
    /// let terms: [Dim; 2] = ["i//8*8 + i%8".parse().unwrap(), "i%8".parse().unwrap()];
    /// assert_eq!(Facts::new().simplify_all(&terms)[0].to_string(), "i");
    /// ```
    pub fn simplify_all(&self, terms: &[Dim]) -> Vec<Dim> {
        self.simplify_in_loops(terms, &[])
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
        let question = || (e.clone(), s.clone());
        self.answer(|answers| &answers.linear, question, || self.split_by(e, s))
    }

    fn split_by(&self, e: &Dim, s: &Symbol) -> Option<(Dim, Dim)> {
        let mut engine = Engine::new(self);
        let Ok(poly) = engine.normalize(e) else {
            return (!e.contains(s)).then(|| (Dim::zero(), e.clone()));
        };
        let (coef, rest) = engine.split_by_symbol(poly, s)?;
        let mut renderer = Renderer::default();
        Some((renderer.render(&engine, &coef), renderer.render(&engine, &rest)))
    }

    /// `(coefficient, rest)` of [`Facts::linear_in`], if a value of `e` can be solved for `s`: the coefficient is not
    /// the integer 0, and both contain only symbols that are `known`.
    ///
    /// The facts may replace a known symbol by unknown ones that equal it; then `e` is solved without the facts.
    ///
    /// ```
    /// use symshape::{Dim, Facts, Relation, Symbol};
    /// let mut facts = Facts::new();
    /// facts.assume(Relation::eq(Dim::symbol("B"), Dim::symbol("A")), "an example")?;
    /// let (b, s) = (Symbol::new("B"), Symbol::new("s"));
    /// let (by, rest) = facts.solvable_for(&"2*s + B".parse().unwrap(), &s, &|symbol| *symbol == b).unwrap();
    /// assert_eq!((by.to_string(), rest.to_string()), ("2".into(), "B".into()));
    /// # Ok::<(), symshape::FactError>(())
    /// ```
    pub fn solvable_for(&self, e: &Dim, s: &Symbol, known: &dyn Fn(&Symbol) -> bool) -> Option<(Dim, Dim)> {
        let solves = |(coef, rest): &(Dim, Dim)| {
            coef.as_i64() != Some(0) && coef.symbols().union(&rest.symbols()).all(known)
        };
        let informed = self.linear_in(e, s).filter(solves);
        informed.or_else(|| Facts::new().linear_in(e, s).filter(solves))
    }
}

/// One engine with the terms that it has simplified.
struct Session {
    engine: Engine,
    renderer: Renderer,
    done: Memo<Dim, Dim>,
}

/// A term of at most this many operations is not simplified further.
const FEW: u32 = 1;

/// The maximum number of rounds; forms of equal cost could alternate forever.
const MAX_ROUNDS: usize = 4;

impl Session {
    fn new(facts: &Facts) -> Self {
        Session { engine: Engine::new(facts), renderer: Renderer::default(), done: Memo::default() }
    }

    fn simplify(&mut self, dim: &Dim) -> Dim {
        if dim.is_tractable() { crate::order::ordered(&self.settled(dim)) } else { dim.clone() }
    }

    /// The best form, which is its own best form: another way to a value may show one that the first did not.
    fn settled(&mut self, dim: &Dim) -> Dim {
        let mut best = self.best(dim);
        for _ in 0..MAX_ROUNDS {
            match self.best(&best) {
                next if next == best => break,
                next => best = next,
            }
        }
        best
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
