//! Forms for terms that are computed together, inside loops: [`Facts::simplify_in_loops`].
//!
//! The cheapest form of a term depends on the other terms and on its place in the loops. Where `i//12` is computed
//! anyway, `i%12` costs a multiplication and a subtraction. An operation that is invariant in the innermost loop is
//! nearly free. An e-graph holds forms of all terms at once. Two of its classes are merged when their terms have the
//! same normal form; congruence does the rest, so no rewrite rules are needed. The extraction visits every term twice
//! and counts the operations of the other terms as free.
//!
//! Limits count nodes and rounds, and everything follows the order of the input, so results are deterministic.

use std::collections::HashSet;

use egg::{Analysis, CostFunction, DidMerge, EGraph, Extractor, Id, Language, RecExpr, define_language};
use num_bigint::BigInt;
use num_traits::Signed;

use crate::assume::Facts;
use crate::dim::{Dim, Node, Symbol};
use crate::engine::atoms::Engine;
use crate::memo::FastMap;
use crate::poly::Poly;
use crate::render::Renderer;

define_language! {
    enum Index {
        "+" = Add(Box<[Id]>),
        "*" = Mul(Box<[Id]>),
        "//" = FloorDiv([Id; 2]),
        "%" = Mod([Id; 2]),
        "min" = Min(Box<[Id]>),
        "max" = Max(Box<[Id]>),
        Leaf(u32),
    }
}

/// The maximum number of nodes in the e-graph.
const MAX_NODES: usize = 1_000;

/// The number of rounds in which siblings of terms are added.
const MAX_ROUNDS: usize = 2;

/// The number of extractions of each term; later ones know the forms of the others.
const PASSES: usize = 2;

/// The cost of one operation in a loop, relative to one in the loop around it.
const LEVEL_COST: u64 = 8;

/// Loops beyond this depth are as expensive as this one.
const MAX_LEVELS: u32 = 6;

/// An analysis: the depth of the innermost loop in which the value of a class changes; 0 is outside of all loops.
struct LoopLevel {
    leaves: Vec<u32>,
}

impl Analysis<Index> for LoopLevel {
    type Data = u32;

    fn make(egraph: &mut EGraph<Index, Self>, node: &Index, _: Id) -> u32 {
        match node {
            Index::Leaf(idx) => egraph.analysis.leaves[*idx as usize],
            _ => node.children().iter().map(|&id| egraph[id].data).max().unwrap_or(0),
        }
    }

    /// A value that some form has outside a loop does not change in it.
    fn merge(&mut self, a: &mut u32, b: u32) -> DidMerge {
        egg::merge_min(a, b)
    }
}

/// Machine operations, weighted by depth. A node that is already computed in the same form is free.
struct Price<'a> {
    egraph: &'a EGraph<Index, LoopLevel>,
    leaves: &'a [Dim],
    computed: &'a HashSet<Index>,
}

impl Price<'_> {
    fn constant(&self, id: Id) -> Option<&BigInt> {
        self.egraph[id].nodes.iter().find_map(|node| match node {
            Index::Leaf(idx) => self.leaves[*idx as usize].as_int(),
            _ => None,
        })
    }

    fn is_power_of_two(&self, id: Id) -> bool {
        self.constant(id).is_some_and(|value| value.abs().magnitude().count_ones() == 1)
    }

    /// One node in a loop of level 0, its operands aside.
    fn operation(&self, node: &Index) -> u64 {
        match node {
            Index::Leaf(_) => 0,
            Index::Add(list) => list.len() as u64 - 1,
            Index::Mul(list) => {
                let cheap = list.iter().filter(|&&id| self.is_power_of_two(id)).count() as u64;
                3 * (list.len() as u64 - 1) - 2 * cheap.min(list.len() as u64 - 1)
            }
            Index::FloorDiv([_, b]) | Index::Mod([_, b]) if self.is_power_of_two(*b) => 1,
            Index::FloorDiv([_, b]) | Index::Mod([_, b]) if self.constant(*b).is_some() => 10,
            Index::FloorDiv(_) | Index::Mod(_) => 25,
            Index::Min(list) | Index::Max(list) => 2 * (list.len() as u64 - 1),
        }
    }
}

impl CostFunction<Index> for Price<'_> {
    type Cost = u64;

    fn cost<C: FnMut(Id) -> u64>(&mut self, node: &Index, mut costs: C) -> u64 {
        if self.computed.contains(&node.clone().map_children(|id| self.egraph.find(id))) {
            return 0;
        }
        let level = node.children().iter().map(|&id| self.egraph[id].data).max().unwrap_or(0);
        let own = self.operation(node) * LEVEL_COST.pow(level.min(MAX_LEVELS));
        node.children().iter().fold(own, |sum, &id| sum.saturating_add(costs(id)))
    }
}

/// The e-graph, with the terms of its leaves and classes.
struct Forms<'l> {
    egraph: EGraph<Index, LoopLevel>,
    leaves: Vec<Dim>,
    known: FastMap<Dim, Id>,
    classes: FastMap<Poly, Id>,
    /// Every term added, in order.
    terms: Vec<Dim>,
    engine: Engine,
    renderer: Renderer,
    loops: &'l [Symbol],
}

impl<'l> Forms<'l> {
    fn new(facts: &Facts, loops: &'l [Symbol]) -> Self {
        Forms {
            egraph: EGraph::new(LoopLevel { leaves: Vec::new() }),
            leaves: Vec::new(),
            known: FastMap::default(),
            classes: FastMap::default(),
            terms: Vec::new(),
            engine: Engine::new(facts),
            renderer: Renderer::default(),
            loops,
        }
    }

    fn is_full(&self) -> bool {
        self.egraph.total_number_of_nodes() >= MAX_NODES
    }

    fn leaf(&mut self, dim: &Dim) -> Id {
        let level = dim.as_symbol().and_then(|symbol| self.loops.iter().position(|var| var == symbol));
        self.leaves.push(dim.clone());
        self.egraph.analysis.leaves.push(level.map_or(0, |depth| depth as u32 + 1));
        self.egraph.add(Index::Leaf(self.leaves.len() as u32 - 1))
    }

    /// Adds a term; `None` where it has no normal form or the limit is reached.
    fn add(&mut self, dim: &Dim) -> Option<Id> {
        if let Some(&id) = self.known.get(dim) {
            return Some(id);
        }
        if self.is_full() {
            return None;
        }

        let poly = self.engine.normalize(dim).ok()?;
        let ids = dim
            .node()
            .operands()
            .into_iter()
            .map(|operand| self.add(operand))
            .collect::<Option<Vec<Id>>>()?;

        let all = || ids.clone().into_boxed_slice();
        let id = match dim.node() {
            Node::Int(_) | Node::Symbol(_) => self.leaf(dim),
            Node::Add(_) => self.egraph.add(Index::Add(all())),
            Node::Mul(_) => self.egraph.add(Index::Mul(all())),
            Node::FloorDiv(..) => self.egraph.add(Index::FloorDiv([ids[0], ids[1]])),
            Node::Mod(..) => self.egraph.add(Index::Mod([ids[0], ids[1]])),
            Node::Min(_) => self.egraph.add(Index::Min(all())),
            Node::Max(_) => self.egraph.add(Index::Max(all())),
        };

        match self.classes.get(&poly) {
            Some(&same) => drop(self.egraph.union(id, same)),
            None => drop(self.classes.insert(poly, id)),
        }

        self.known.insert(dim.clone(), id);
        self.terms.push(dim.clone());
        Some(id)
    }

    /// Other ways to write `dim`; whether they are equal is left to their normal forms.
    fn siblings(&mut self, dim: &Dim) -> Vec<Dim> {
        let mut siblings = Vec::new();
        match dim.node() {
            Node::Int(_) | Node::Symbol(_) | Node::Min(_) | Node::Max(_) => {}
            Node::Mod(a, b) => siblings.push(a - a.floor_div(b) * b),
            Node::Mul(list) => siblings.extend(distributed(list)),
            Node::Add(_) | Node::FloorDiv(..) => {}
        }

        if let Ok(poly) = self.engine.normalize(dim) {
            siblings.push(self.renderer.render(&self.engine, &poly));
        }

        siblings.retain(|sibling| sibling != dim);
        siblings
    }

    /// Adds siblings of everything added so far.
    fn grow(&mut self) {
        let mut first = 0;
        for _ in 0..MAX_ROUNDS {
            let last = self.terms.len();
            for idx in first..last {
                if self.is_full() {
                    return;
                }
                let term = self.terms[idx].clone();
                for sibling in self.siblings(&term) {
                    self.add(&sibling);
                }
            }
            first = last;
        }
    }

    /// The operations in `expr`, over classes.
    fn nodes_of(&self, expr: &RecExpr<Index>) -> HashSet<Index> {
        let mut ids: Vec<Id> = Vec::with_capacity(expr.len());
        let mut nodes = HashSet::new();
        for node in expr {
            let node = node.clone().map_children(|id| ids[usize::from(id)]);
            ids.push(self.egraph.lookup(node.clone()).expect("an extracted node is in the graph"));
            nodes.insert(node);
        }
        nodes
    }

    /// The cheapest forms of the classes in `roots`.
    fn extract(&self, roots: &[Id]) -> Vec<Dim> {
        let mut chosen: Vec<Option<RecExpr<Index>>> = vec![None; roots.len()];
        let mut used: Vec<HashSet<Index>> = vec![HashSet::new(); roots.len()];
        for _ in 0..PASSES {
            for (idx, &root) in roots.iter().enumerate() {
                let others = used.iter().enumerate().filter(|(other, _)| *other != idx);
                let computed: HashSet<Index> = others.flat_map(|(_, nodes)| nodes.iter().cloned()).collect();
                let price = Price { egraph: &self.egraph, leaves: &self.leaves, computed: &computed };
                let (_, best) = Extractor::new(&self.egraph, price).find_best(root);
                used[idx] = self.nodes_of(&best);
                chosen[idx] = Some(best);
            }
        }

        chosen.iter().flatten().map(|expr| self.decode(expr)).collect()
    }

    fn decode(&self, expr: &RecExpr<Index>) -> Dim {
        let mut dims: Vec<Dim> = Vec::with_capacity(expr.len());
        for node in expr {
            let of = |id: &Id| dims[usize::from(*id)].clone();
            let dim = match node {
                Index::Leaf(idx) => self.leaves[*idx as usize].clone(),
                Index::Add(list) => Dim::sum(list.iter().map(of)),
                Index::Mul(list) => Dim::product(list.iter().map(of)),
                Index::FloorDiv([a, b]) => of(a).floor_div(of(b)),
                Index::Mod([a, b]) => of(a).modulo(of(b)),
                Index::Min(list) => fold(list.iter().map(of), Dim::min),
                Index::Max(list) => fold(list.iter().map(of), Dim::max),
            };
            dims.push(dim);
        }

        dims.pop().expect("an expression is not empty")
    }
}

fn fold(dims: impl Iterator<Item = Dim>, pick: fn(&Dim, Dim) -> Dim) -> Dim {
    dims.reduce(|acc, next| pick(&acc, next)).expect("a minimum has operands")
}

/// A product with its first sum multiplied out.
fn distributed(list: &[Dim]) -> Option<Dim> {
    let place = list.iter().position(|factor| matches!(factor.node(), Node::Add(_)))?;
    let Node::Add(terms) = list[place].node() else { return None };
    let others =
        || list.iter().enumerate().filter(|(idx, _)| *idx != place).map(|(_, factor)| factor.clone());
    Some(Dim::sum(terms.iter().map(|term| Dim::product(others().chain([term.clone()])))))
}

/// Whether `dim` has an expensive operation, or one that another form may share.
fn is_dear(dim: &Dim) -> bool {
    let expensive =
        |dim: &Dim| matches!(dim.node(), Node::FloorDiv(..) | Node::Mod(..) | Node::Min(_) | Node::Max(_));
    dim.is_tractable() && dim.post_order().into_iter().any(expensive)
}

impl Facts {
    /// Terms equal to `terms`, which are computed together in loops over `loops`, outermost first. Operations of one
    /// term are free for the others, and operations that are invariant in the inner loops are nearly free.
    ///
    /// ```
    /// use symshape::{Declaration, Dim, Facts, Symbol};
    /// let mut facts = Facts::new();
    /// facts.declare(&Symbol::new("i"), Declaration::range(0, 999))?;
    /// let terms: [Dim; 2] = ["i//12".parse().unwrap(), "i%12".parse().unwrap()];
    /// let forms = facts.simplify_in_loops(&terms, &[Symbol::new("i")]);
    /// // A remainder by 12 is dearer than a product where the quotient is there.
    /// assert_eq!((forms[0].to_string(), forms[1].to_string()), ("i//12".into(), "i - 12*(i//12)".into()));
    /// # Ok::<(), symshape::FactError>(())
    /// ```
    pub fn simplify_in_loops(&self, terms: &[Dim], loops: &[Symbol]) -> Vec<Dim> {
        let question = || (terms.to_vec(), loops.to_vec());
        self.answer(|answers| &answers.in_loops, question, || self.forms_in_loops(terms, loops))
    }

    fn forms_in_loops(&self, terms: &[Dim], loops: &[Symbol]) -> Vec<Dim> {
        let alone: Vec<Dim> = terms.iter().map(|term| self.simplify(term)).collect();
        let mut forms = Forms::new(self, loops);

        let mut places = Vec::new();
        let mut roots = Vec::new();
        for (idx, (term, simple)) in terms.iter().zip(&alone).enumerate() {
            if is_dear(simple)
                && let Some(root) = forms.add(simple)
            {
                forms.add(term);
                places.push(idx);
                roots.push(root);
            }
        }

        if roots.is_empty() {
            return alone;
        }

        forms.grow();
        forms.egraph.rebuild();

        let mut best = alone;
        for (idx, form) in places.into_iter().zip(forms.extract(&roots)) {
            debug_assert!(self.agree(&best[idx], &form), "{} became {form}", best[idx]);
            best[idx] = form;
        }

        best
    }
}
