//! What kernels touch, and whether some must wait for others.
//!
//! Kernels must wait for earlier ones that write what they touch, or touch what they write; for those that give a symbol
//! its value; and for those that check what later ones lean on. Different parts of one buffer, as the towers of an
//! inception block write, are no reason to wait where the addresses are proven to be apart: one is always below the other,
//! or they always leave different remainders. What is stored side by side, as the channels of a concatenation are, differs
//! modulo the distance from row to row.

use super::{Axis, BufferId, Control, Inst, Kernel, MemorySpace, Program, Stmt, walk};
use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};
use symshape::{Bounds, Dim, Facts, Symbol};

/// Pairs of addresses of one buffer for which a proof is looked for; with more, one waits for the other.
const MAX_PROOFS: usize = 64;

/// What some kernels touch.
pub struct Footprint {
    ranges: BTreeMap<BufferId, Vec<AccessRange>>,
    /// Symbols that it reads, and those that it gives values.
    reads: BTreeSet<Symbol>,
    binds: BTreeSet<Symbol>,
    /// What comes after it leans on what it checks.
    guards: bool,
}

impl Footprint {
    /// The uses of kernels that follow one another.
    pub fn of(program: &Program, kernels: Range<usize>) -> Footprint {
        let mut depth = 0_usize;
        let mut uses = Footprint {
            ranges: BTreeMap::new(),
            reads: BTreeSet::new(),
            binds: BTreeSet::new(),
            guards: false,
        };
        for kernel in &program.kernels[kernels] {
            match &kernel.control {
                Some(Control::If(_) | Control::While(_)) => depth += 1,
                Some(Control::End) => depth = depth.saturating_sub(1),
                _ => {}
            }
            uses.add(program, kernel, depth == 0);
        }
        uses
    }

    /// The buffers that are touched, but for constants and inputs.
    pub fn buffers(&self) -> impl Iterator<Item = BufferId> {
        self.ranges.keys().copied()
    }

    /// The symbols that are read, loop variables among them.
    pub fn reads(&self) -> &BTreeSet<Symbol> {
        &self.reads
    }

    /// Whether that buffer is among them.
    pub fn touches(&self, buffer: BufferId) -> bool {
        self.ranges.contains_key(&buffer)
    }

    fn add(&mut self, program: &Program, kernel: &Kernel, is_outermost: bool) {
        walk::accesses(&kernel.body, &mut |site| {
            let buffer = site.access.buffer;
            if !matches!(program.buffers[buffer].space, MemorySpace::Const(_) | MemorySpace::Input(_)) {
                let (at, axes) = (site.access.index.clone(), site.axes.to_vec());
                self.range(buffer, AccessRange::new(at, axes, site.is_store));
            }
            self.reads.extend(site.access.index.symbols());
            site.axes.iter().for_each(|axis| self.reads.extend(axis.extent.symbols()));
        });
        indices(&kernel.body, &mut |dim| self.reads.extend(dim.symbols()));
        let (read, written) = kernel.control.as_ref().map(Control::touched).unwrap_or_default();
        for (buffer, is_store) in
            read.into_iter().map(|id| (id, false)).chain(written.into_iter().map(|id| (id, true)))
        {
            self.access_all(program, buffer, is_store);
        }
        match &kernel.control {
            Some(Control::Bind { symbol, lo, end, .. }) => {
                self.binds.insert(symbol.clone());
                self.reads.extend(lo.symbols().into_iter().chain(end.symbols()));
            }
            Some(Control::Require(assumption)) => {
                let relation = &assumption.relation;
                self.reads.extend(relation.a.symbols().into_iter().chain(relation.b.symbols()));
                self.guards |= is_outermost;
            }
            Some(Control::Fail(_)) => self.guards |= is_outermost,
            Some(Control::Call(call)) => {
                let shapes = call.operands.iter().chain(&call.results).flat_map(|argument| &argument.shape);
                shapes.for_each(|dim| self.reads.extend(dim.symbols()));
            }
            Some(Control::If(_) | Control::While(_) | Control::Else | Control::End) | None => {}
        }
    }

    /// The whole of a buffer.
    fn access_all(&mut self, program: &Program, buffer: BufferId, is_store: bool) {
        if !matches!(program.buffers[buffer].space, MemorySpace::Const(_) | MemorySpace::Input(_)) {
            let var = Symbol::new("any");
            let axis = Axis { var: var.clone(), extent: program.buffers[buffer].elems.clone() };
            self.range(buffer, AccessRange::new(var.into(), vec![axis], is_store));
        }
    }

    fn range(&mut self, buffer: BufferId, range: AccessRange) {
        let list = self.ranges.entry(buffer).or_default();
        if !list.iter().any(|known| known.is_like(&range)) {
            list.push(range);
        }
    }

    /// Whether kernels that come later must wait for these.
    pub fn must_precede(&self, later: &Footprint, program: &Program) -> bool {
        let meets = |a: &BTreeSet<Symbol>, b: &BTreeSet<Symbol>| a.intersection(b).next().is_some();
        let bound = meets(&self.binds, &later.reads)
            || meets(&self.binds, &later.binds)
            || meets(&self.reads, &later.binds);
        // All that follows leans on a demand. Which kernels came before it can't be seen once partitions stand in another
        // order: so it waits for all of them.
        let demanded = self.guards || later.guards;
        bound || demanded || self.conflicts(later, program, |own, other| own.is_store || other.is_store)
    }

    /// Whether others may read what these write.
    pub fn flows_into(&self, other: &Footprint, program: &Program) -> bool {
        self.conflicts(other, program, |own, other| own.is_store && !other.is_store)
    }

    /// Whether both may touch one element, in ways that matter.
    fn conflicts(
        &self,
        other: &Footprint,
        program: &Program,
        matters: impl Fn(&AccessRange, &AccessRange) -> bool,
    ) -> bool {
        self.ranges.iter().any(|(buffer, own)| {
            let other = other.ranges.get(buffer).into_iter().flatten();
            let pairs = own.iter().flat_map(|a| other.clone().map(move |b| (a, b)));
            may_overlap(program, pairs.filter(|(a, b)| matters(a, b)))
        })
    }
}

/// Whether the addresses of a pair may be the same.
fn may_overlap<'r>(
    program: &Program,
    mut pairs: impl Iterator<Item = (&'r AccessRange, &'r AccessRange)>,
) -> bool {
    let mut proofs = 0;
    pairs.any(|(a, b)| {
        if disjoint_by_bounds(program, a, b) {
            return false;
        }
        proofs += 1;
        // What is proven must not depend on which of both is asked about the other.
        let disjoint = |a: &AccessRange, b: &AccessRange| disjoint(program, a, &b.renamed(program));
        proofs > MAX_PROOFS || !(disjoint(a, b) || disjoint(b, a))
    })
}

/// Calls `see` for each expression that is a value, a bound or an extent, addresses excepted.
fn indices(body: &[Stmt], see: &mut dyn FnMut(&Dim)) {
    for stmt in body {
        match stmt {
            Stmt::For { axis, body, .. } => {
                see(&axis.extent);
                indices(body, see);
            }
            Stmt::Block(code) => in_code(&code.insts, see),
            Stmt::Strip { axis, code } => {
                see(&axis.extent);
                in_code(&code.insts, see);
            }
            Stmt::Contraction(contraction) => {
                contraction
                    .m
                    .iter()
                    .chain([&contraction.n])
                    .chain(&contraction.k)
                    .for_each(|axis| see(&axis.extent));
                in_code(&contraction.epilogue.insts, see);
            }
            Stmt::If { then, otherwise, .. } => {
                indices(then, see);
                indices(otherwise, see);
            }
            Stmt::While { body, .. } => indices(body, see),
        }
    }
}

fn in_code(insts: &[Inst], see: &mut dyn FnMut(&Dim)) {
    for inst in insts {
        match inst {
            Inst::Index(_, dim) => see(dim),
            Inst::Check(check) => [&check.lo, &check.end].into_iter().for_each(&mut *see),
            _ => {}
        }
    }
}

/// Addresses within a buffer, and the loops around them.
#[derive(Clone, Debug)]
struct AccessRange {
    /// Flat index of an element.
    index: Dim,
    /// The loops, outermost first.
    axes: Vec<Axis>,
    /// Written rather than read.
    is_store: bool,
    /// Bounds of the remainders that were asked for, by divisor; of the address itself under 0.
    known: RefCell<BTreeMap<i64, Bounds>>,
    /// Distances by which the loops move the address, those that are numbers above 1.
    steps: OnceCell<Vec<i64>>,
}

impl AccessRange {
    fn new(index: Dim, axes: Vec<Axis>, is_store: bool) -> AccessRange {
        AccessRange { index, axes, is_store, known: RefCell::default(), steps: OnceCell::new() }
    }

    fn is_like(&self, other: &AccessRange) -> bool {
        self.index == other.index && self.axes == other.axes && self.is_store == other.is_store
    }

    /// What is known within the loops.
    fn facts(&self, program: &Program) -> Facts {
        let mut facts = program.facts.clone();
        self.axes.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
        facts
    }

    /// The bounds of the address, or of what it leaves when divided by `divisor`.
    fn bounds(&self, program: &Program, divisor: i64) -> Bounds {
        if let Some(bounds) = self.known.borrow().get(&divisor) {
            return bounds.clone();
        }
        let facts = self.facts(program);
        let term =
            if divisor == 0 { self.index.clone() } else { facts.simplify(&self.index.modulo(divisor)) };
        let bounds = facts.bounds(&term);
        self.known.borrow_mut().insert(divisor, bounds.clone());
        bounds
    }

    fn steps(&self, program: &Program) -> &[i64] {
        self.steps.get_or_init(|| {
            let strides = strides(&self.facts(program), std::slice::from_ref(&self));
            strides.iter().filter_map(|stride| stride.as_i64()).filter(|step| *step > 1).collect()
        })
    }

    /// The same addresses, with names that no other kernel uses.
    fn renamed(&self, program: &Program) -> AccessRange {
        let rename = |symbol: &Symbol| Symbol::new(&format!("{}'", symbol.name()));
        let own = |symbol: &Symbol| (!program.symbols.contains(symbol)).then(|| rename(symbol).into());
        let axis = |axis: &Axis| Axis { var: rename(&axis.var), extent: axis.extent.substitute(&own) };
        AccessRange::new(self.index.substitute(&own), self.axes.iter().map(axis).collect(), self.is_store)
    }
}

/// Whether bounds of the addresses, or of their remainders, show that no element is reached by both.
fn disjoint_by_bounds(program: &Program, a: &AccessRange, b: &AccessRange) -> bool {
    let below = |x: &Bounds, y: &Bounds| matches!((&x.hi, &y.lo), (Some(hi), Some(lo)) if hi < lo);
    let apart = |divisor: i64| {
        let (x, y) = (a.bounds(program, divisor), b.bounds(program, divisor));
        below(&x, &y) || below(&y, &x)
    };
    apart(0) || a.steps(program).iter().chain(b.steps(program)).any(|step| apart(*step))
}

/// Whether it is proven that no element is reached by both; `b` is [renamed](AccessRange::renamed).
fn disjoint(program: &Program, a: &AccessRange, b: &AccessRange) -> bool {
    let mut facts = program.facts.clone();
    for axis in a.axes.iter().chain(&b.axes) {
        facts.declare_index(&axis.var, &axis.extent);
    }
    let ordered = |x: &Dim, y: &Dim| facts.prove_lt(x, y).is_yes() || facts.prove_lt(y, x).is_yes();
    ordered(&a.index, &b.index)
        || strides(&facts, &[a, b]).into_iter().any(|stride| {
            let rest = |at: &Dim| facts.simplify(&at.modulo(stride.clone()));
            facts.prove_lt(&Dim::zero(), &stride).is_yes() && ordered(&rest(&a.index), &rest(&b.index))
        })
}

/// The distances by which the loops move the addresses, without those of 1.
fn strides(facts: &Facts, ranges: &[&AccessRange]) -> Vec<Dim> {
    let mut found: Vec<Dim> = Vec::new();
    for (range, axis) in ranges.iter().flat_map(|range| range.axes.iter().map(move |axis| (range, axis))) {
        if let Some((stride, _)) = facts.linear_in(&range.index, &axis.var)
            && !matches!(stride.as_i64(), Some(..=1))
            && !found.contains(&stride)
        {
            found.push(stride);
        }
    }
    found
}
