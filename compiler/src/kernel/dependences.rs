//! Dependences between kernels. A later kernel depends on an earlier one if
//! - both access an element and at least one of them writes it,
//! - one binds a symbol that the other reads or binds,
//! - or one of them guards the call, by a requirement or a failure.
//!
//! Two kernels can write different parts of one buffer, as the branches of an inception block do. They are independent
//! if the addresses are proven to be disjoint: one is always below the other, or they always have different
//! remainders. The channels of a concatenation, for example, differ modulo the distance between two rows.

mod access_range;
mod constant_strides;
mod joined;
mod runs;

use super::{
    Axis, BufferId, Control, Inst, Kernel, MemorySpace, Program, Stmt,
    common_element::{self, Example},
    walk,
};
use access_range::{AccessRange, disjoint, disjoint_by_bounds, unused};
use joined::JoinedAccesses;
use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};
use symshape::{Dim, Symbol};

/// Maximum number of address pairs of one buffer that need a proof. With more, the kernels count as dependent.
const MAX_PROOFS: usize = 64;

/// The elements and symbols that some kernels access.
pub(crate) struct Footprint {
    ranges: BTreeMap<BufferId, Vec<AccessRange>>,
    /// Symbols that occur in expressions, loop variables included.
    reads: BTreeSet<Symbol>,
    /// Symbols that are bound between kernels.
    binds: BTreeSet<Symbol>,
    /// Whether a requirement or failure outside of all regions guards the kernels after it.
    guards: bool,
}

impl Footprint {
    /// The footprint of consecutive kernels.
    pub(crate) fn of(program: &Program, kernels: Range<usize>) -> Footprint {
        let mut depth = 0_usize;
        let mut footprint = Footprint {
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
            footprint.add(program, kernel, depth == 0);
        }

        footprint
    }

    /// The buffers that the kernels access, except constants and inputs.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = BufferId> {
        self.ranges.keys().copied()
    }

    /// The symbols that occur in expressions, loop variables included.
    pub(crate) fn reads(&self) -> &BTreeSet<Symbol> {
        &self.reads
    }

    /// Whether [`Footprint::buffers`] contains this buffer.
    pub(crate) fn touches(&self, buffer: BufferId) -> bool {
        self.ranges.contains_key(&buffer)
    }

    fn add(&mut self, program: &Program, kernel: &Kernel, is_outermost: bool) {
        let mut accesses = JoinedAccesses::new(program);
        walk::accesses(&kernel.body, &mut |site| {
            let buffer = site.access.buffer;
            if !matches!(program.buffers[buffer].space, MemorySpace::Const(_) | MemorySpace::Input(_)) {
                accesses.add(buffer, &site.access.index, site.axes, site.is_store);
            }
            self.reads.extend(site.access.index.symbols());
            site.axes.iter().for_each(|axis| self.reads.extend(axis.extent.symbols()));
        });
        accesses.ranges().into_iter().for_each(|(buffer, range)| self.range(buffer, range));
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

    /// Adds an access of the whole buffer.
    fn access_all(&mut self, program: &Program, buffer: BufferId, is_store: bool) {
        if !matches!(program.buffers[buffer].space, MemorySpace::Const(_) | MemorySpace::Input(_)) {
            let var = unused(program, "any");
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

    /// Whether these kernels must finish before the `later` ones begin.
    pub(crate) fn must_precede(&self, later: &Footprint, program: &Program) -> bool {
        let intersects = |a: &BTreeSet<Symbol>, b: &BTreeSet<Symbol>| a.intersection(b).next().is_some();
        let bound = intersects(&self.binds, &later.reads)
            || intersects(&self.binds, &later.binds)
            || intersects(&self.reads, &later.binds);
        // All later kernels depend on a guard. It depends on all earlier ones too, because their order is lost once
        // partitions are reordered.
        let guarded = self.guards || later.guards;
        bound || guarded || self.conflicts(later, program, |own, other| own.is_store || other.is_store)
    }

    /// Whether the other kernels may read an element that these write.
    pub(crate) fn flows_into(&self, other: &Footprint, program: &Program) -> bool {
        self.conflicts(other, program, |own, other| own.is_store && !other.is_store)
    }

    /// Whether both may access one element, in a pair of accesses that matters.
    fn conflicts(
        &self,
        other: &Footprint,
        program: &Program,
        matters: impl Fn(&AccessRange, &AccessRange) -> bool,
    ) -> bool {
        let examples = OnceCell::new();
        self.ranges.iter().any(|(buffer, own)| {
            let other = other.ranges.get(buffer).into_iter().flatten();
            let pairs = own.iter().flat_map(|a| other.clone().map(move |b| (a, b)));
            let pairs: Vec<_> = pairs.filter(|(a, b)| matters(a, b)).collect();
            if pairs.is_empty() {
                return false;
            }
            // Where an example shows that two accesses overlap, no proof can succeed, and it need not be tried.
            let examples = examples.get_or_init(|| common_element::examples(&program.facts));
            let overlaps = |idx: usize| pairs.iter().any(|(a, b)| a.meets(b, examples, idx));
            (0..examples.len()).any(overlaps) || may_overlap(program, &pairs, examples)
        })
    }
}

/// Whether the addresses of a pair may be the same. Pairs with the same first access are adjacent.
fn may_overlap(program: &Program, pairs: &[(&AccessRange, &AccessRange)], examples: &[Example]) -> bool {
    let mut proofs = 0;
    pairs.chunk_by(|(a, _), (b, _)| std::ptr::eq(*a, *b)).any(|pairs| {
        let a = pairs[0].0;
        // The bounds of an access are known from earlier pairs, so this costs little.
        let others = pairs.iter().map(|(_, b)| *b).filter(|b| !disjoint_by_bounds(program, a, b)).collect();
        runs::remaining(program, a, others, examples).into_iter().any(|b| {
            proofs += 1;
            // The prover may succeed for one order of the pair only, so it tries both.
            let disjoint = |a: &AccessRange, b: &AccessRange| disjoint(program, a, &b.renamed(program));
            proofs > MAX_PROOFS || !(disjoint(a, b) || disjoint(b, a))
        })
    })
}

/// Calls `see` for each value, bound and extent; not for addresses.
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
