//! The third stage: an e-graph over nested minima and maxima.
//!
//! The normal form has one atom per minimum, so it cannot choose between `min(max(x, y), max(x, z))` and
//! `max(x, min(y, z))`: both are right, and which is shorter depends on the terms around them. Here the two
//! operations form a small language, everything else is a leaf, and the laws of a distributive lattice (the rules of
//! kind `Lattice` in `rules`) build all forms at once; the cheapest is extracted.
//!
//! Sums and products are excluded: their associativity and commutativity would dominate the search. Limits count
//! nodes and rounds, never time, so the answer is the same on every machine.

use std::time::Duration;

use egg::{
    CostFunction, EGraph, Extractor, Id, Language, Pattern, RecExpr, Rewrite, Runner, SimpleScheduler,
};
use egg::{Searcher, define_language};

use crate::dim::operations;
use crate::dim::{Dim, Node};
use crate::engine::rules;

define_language! {
    enum Lattice {
        "min" = Min([Id; 2]),
        "max" = Max([Id; 2]),
        Leaf(u32),
    }
}

/// Enough for all useful forms of four leaves, in a fraction of a millisecond.
const MAX_NODES: usize = 120;

/// Distribution, absorption, then collection: a few rounds suffice.
const MAX_ROUNDS: usize = 4;

/// The maximum number of distinct leaves; larger terms stay unchanged.
const MAX_LEAVES: usize = 6;

type Build = fn([Id; 2]) -> Lattice;

/// The leaves of a term, by number.
#[derive(Default)]
struct Leaves(Vec<Dim>);

impl Leaves {
    fn encode(&mut self, dim: &Dim, expr: &mut RecExpr<Lattice>) -> Id {
        let (list, build): (&[Dim], Build) = match dim.node() {
            Node::Min(list) => (list, Lattice::Min),
            Node::Max(list) => (list, Lattice::Max),
            Node::Add(terms) if let Some(moved) = moved_in(terms) => return self.encode(&moved, expr),
            _ => {
                let known = self.0.iter().position(|leaf| leaf == dim);
                let idx = known.unwrap_or(self.0.len());
                if known.is_none() {
                    self.0.push(dim.clone());
                }
                return expr.add(Lattice::Leaf(idx as u32));
            }
        };

        let ids: Vec<Id> = list.iter().map(|operand| self.encode(operand, expr)).collect();
        ids.into_iter().reduce(|acc, next| expr.add(build([acc, next]))).expect("a minimum has operands")
    }

    fn decode(&self, expr: &RecExpr<Lattice>) -> Dim {
        let mut dims: Vec<Dim> = Vec::with_capacity(expr.len());
        for node in expr {
            dims.push(match node {
                Lattice::Min([a, b]) => Dim::min(&dims[usize::from(*a)], &dims[usize::from(*b)]),
                Lattice::Max([a, b]) => Dim::max(&dims[usize::from(*a)], &dims[usize::from(*b)]),
                Lattice::Leaf(idx) => self.0[*idx as usize].clone(),
            });
        }
        dims.pop().expect("an expression is not empty")
    }
}

/// `min(a, b) + k` as `min(a + k, b + k)`, for an integer `k`.
fn moved_in(terms: &[Dim]) -> Option<Dim> {
    let [extreme, shift] = terms else { return None };
    shift.as_int()?;
    let shifted = |list: &[Dim]| list.iter().map(|operand| operand + shift).collect::<Vec<_>>();
    match extreme.node() {
        Node::Min(list) => shifted(list).into_iter().reduce(|acc, next| Dim::min(&acc, next)),
        Node::Max(list) => shifted(list).into_iter().reduce(|acc, next| Dim::max(&acc, next)),
        _ => None,
    }
}

/// The cost of a form: one for each operation, plus the operations of its leaves.
struct Operations<'a>(&'a Leaves);

impl CostFunction<Lattice> for Operations<'_> {
    type Cost = u32;

    fn cost<C: FnMut(Id) -> u32>(&mut self, node: &Lattice, mut costs: C) -> u32 {
        match node {
            Lattice::Leaf(idx) => operations(&self.0.0[*idx as usize]),
            _ => node.fold(1u32, |sum, id| sum.saturating_add(costs(id))),
        }
    }
}

/// A side of a law as a pattern: its symbols match anything.
fn pattern(side: &Dim) -> Option<Pattern<Lattice>> {
    fn write(dim: &Dim, text: &mut String) -> Option<()> {
        let (name, list) = match dim.node() {
            Node::Symbol(symbol) => {
                text.push_str(&format!("?{symbol}"));
                return Some(());
            }
            Node::Min(list) => ("(min ", list),
            Node::Max(list) => ("(max ", list),
            _ => return None,
        };

        list[1..].iter().for_each(|_| text.push_str(name));
        write(&list[0], text)?;

        for operand in &list[1..] {
            text.push(' ');
            write(operand, text)?;
            text.push(')');
        }

        Some(())
    }

    let mut text = String::new();
    write(side, &mut text)?;
    text.parse().ok()
}

fn sides(law: &str) -> Option<(Pattern<Lattice>, Pattern<Lattice>)> {
    let (left, right) = law.split_once("==")?;
    Some((pattern(&left.parse().ok()?)?, pattern(&right.parse().ok()?)?))
}

fn rewrites() -> Vec<Rewrite<Lattice, ()>> {
    let laws = rules::lattice_laws().filter_map(|(name, law)| Some((name, sides(law)?)));
    laws.filter_map(|(name, (left, right))| Rewrite::new(name, left, right).ok()).collect()
}

/// Whether `dim` is a minimum or maximum with another kind of one inside, few enough to try all forms.
fn is_nested(dim: &Dim) -> bool {
    let mixed = |list: &[Dim], inner: fn(&Node) -> bool| {
        list.iter().any(|operand| match operand.node() {
            Node::Add(terms) => moved_in(terms).is_some_and(|moved| inner(moved.node())),
            node => inner(node),
        })
    };

    let nested = match dim.node() {
        Node::Min(list) => mixed(list, |node| matches!(node, Node::Max(_))),
        Node::Max(list) => mixed(list, |node| matches!(node, Node::Min(_))),
        _ => false,
    };

    let mut leaves = Leaves::default();
    nested && {
        leaves.encode(dim, &mut RecExpr::default());
        leaves.0.len() <= MAX_LEAVES
    }
}

/// The cheapest form of a nested minimum or maximum that the lattice laws give; `None` for other terms.
pub(crate) fn cheapest(dim: &Dim) -> Option<Dim> {
    thread_local! {
        static REWRITES: Vec<Rewrite<Lattice, ()>> = rewrites();
    }
    if !is_nested(dim) {
        return None;
    }

    let mut leaves = Leaves::default();
    let mut expr = RecExpr::default();
    leaves.encode(dim, &mut expr);

    let runner = REWRITES.with(|rewrites| {
        Runner::<Lattice, ()>::default()
            .with_expr(&expr)
            .with_iter_limit(MAX_ROUNDS)
            .with_node_limit(MAX_NODES)
            .with_time_limit(Duration::MAX)
            .with_scheduler(SimpleScheduler)
            .run(rewrites)
    });

    let (_, best) = Extractor::new(&runner.egraph, Operations(&leaves)).find_best(runner.roots[0]);
    Some(leaves.decode(&best))
}

/// The right side of `law` where its left side matches the whole of `dim`.
pub(crate) fn apply_law(law: &str, dim: &Dim) -> Option<Dim> {
    let (left, right) = sides(law)?;
    let mut leaves = Leaves::default();
    let mut expr = RecExpr::default();
    leaves.encode(dim, &mut expr);

    let mut egraph: EGraph<Lattice, ()> = EGraph::default();
    let root = egraph.add_expr(&expr);
    egraph.rebuild();
    let subst = left.search_eclass(&egraph, root)?.substs.into_iter().next()?;
    let id = egraph.add_instantiation(&right.ast, &subst);

    egraph.rebuild();
    let (_, best) = Extractor::new(&egraph, Operations(&leaves)).find_best(id);

    Some(leaves.decode(&best))
}
