//! The rule about parallel loops: their iterations are independent.
//!
//! For each buffer that the loop writes, all accesses must be `c*p + base + r` with `p` the loop's variable, one `c`
//! for all of them, a few bases, and `0 <= r < c`. Then iterations access disjoint windows from each base. The windows
//! of two bases are disjoint if all windows of one end before the other base. Scratch is exempt, because each worker
//! has a copy.
//!
//! Windows that are not contiguous are compared by residues: an address `c*p + m*t + r` with `c*p + r < m` has the
//! residue `c*p + r` for the period `m`, whatever `t` is. So do heads that write their columns of each row, where the
//! period is `c * extent`, and blocks of rows in each plane, where it is the size of a plane.
//!
//! A loop of at most one iteration needs no such proof.

use crate::kernel::{Access, Axis, Inst, InstSeq, MemorySpace, Program, Rhs, Stmt};
use std::collections::BTreeSet;
use symshape::{Dim, Facts, Symbol};

/// The largest number of bases of the windows in one buffer.
const MAX_BASES: usize = 8;

/// An access inside the loop, with the facts at its place.
struct GuardedAccess {
    access: Access,
    is_store: bool,
    facts: Facts,
}

/// The buffers for which the independence of iterations of the loop over `axis` is not proven. `facts` include the
/// range of its variable.
pub(super) fn conflicts(program: &Program, axis: &Axis, body: &[Stmt], facts: &Facts) -> Vec<String> {
    if facts.prove_le(&axis.extent, &Dim::one()).is_yes() {
        return Vec::new();
    }
    let mut collector = AccessCollector { sites: Vec::new(), vars: BTreeSet::new() };
    collector.stmts(body, facts.clone());
    let written: BTreeSet<_> =
        collector.sites.iter().filter(|site| site.is_store).map(|site| site.access.buffer).collect();

    let mut conflicts = Vec::new();
    for buffer in written {
        if matches!(program.buffers[buffer].space, MemorySpace::Scratch) {
            continue;
        }
        let sites: Vec<&GuardedAccess> =
            collector.sites.iter().filter(|site| site.access.buffer == buffer).collect();
        let is_proven = has_disjoint_windows(axis, &sites, &collector.vars, facts)
            || has_own_residues(axis, &sites, &collector.vars);
        if !is_proven {
            conflicts.push(format!("{buffer:?}: iterations over {} are independent", axis.var));
        }
    }

    conflicts
}

/// Whether each iteration over `axis` accesses separate windows. `inner` are the symbols that the loop introduces.
fn has_disjoint_windows(
    axis: &Axis,
    sites: &[&GuardedAccess],
    inner: &BTreeSet<Symbol>,
    facts: &Facts,
) -> bool {
    let Some((_, coef)) = first_linear(axis, sites, inner) else { return false };
    let mut bases: Vec<Dim> = Vec::new();
    for site in sites {
        let Some((own, rest)) = linear(site, &axis.var) else { return false };
        let is_within = |base: &Dim| {
            let window = &rest - base;
            site.facts.prove_le(&Dim::zero(), &window).is_yes()
                && site.facts.prove_lt(&window, &coef).is_yes()
        };
        if !site.facts.prove_eq(&own, &coef).is_yes() {
            return false;
        }
        if bases.iter().any(is_within) {
            continue;
        }

        let base = rest.substitute(&|symbol| inner.contains(symbol).then(Dim::zero));
        if bases.len() == MAX_BASES || !is_within(&base) {
            return false;
        }
        bases.push(base);
    }

    let length = &coef * &axis.extent;
    let are_apart = |low: &Dim, high: &Dim| facts.prove_le(&(low + &length), high).is_yes();
    bases
        .iter()
        .enumerate()
        .all(|(idx, base)| bases[..idx].iter().all(|other| are_apart(base, other) || are_apart(other, base)))
}

/// Whether the residues of each iteration's addresses, by some period of all windows, are in its window. `inner` are
/// the symbols that the loop introduces; the period may be the distance between two values of one of them.
fn has_own_residues(axis: &Axis, sites: &[&GuardedAccess], inner: &BTreeSet<Symbol>) -> bool {
    let Some((first, coef)) = first_linear(axis, sites, inner) else { return false };
    let simplified = |period: Dim| first.facts.simplify(&period);
    let all_windows = simplified(&coef * &axis.extent);
    let are_own =
        |period: &Dim, fits: bool| sites.iter().all(|site| has_own_residue(axis, site, &coef, period, fits));
    // In the period of all windows, each window fits.
    if are_own(&all_windows, true) {
        return true;
    }
    let distances = inner.iter().filter_map(|symbol| Some(simplified(linear(first, symbol)?.0)));
    let periods: BTreeSet<Dim> = distances.collect();
    let is_same = |period: &&Dim| is_invariant(period, axis, inner);
    periods.iter().filter(is_same).any(|period| are_own(period, false))
}

/// Whether the residues of a site's addresses by `period` are in its iteration's window of `coef` elements. `fits` says
/// that the window is known to end before the period.
fn has_own_residue(axis: &Axis, site: &GuardedAccess, coef: &Dim, period: &Dim, fits: bool) -> bool {
    let Some((own, rest)) = linear(site, &axis.var) else { return false };
    let facts = &site.facts;
    if !facts.prove_eq(&own, coef).is_yes() || !facts.prove_le(&Dim::one(), period).is_yes() {
        return false;
    }
    let residue = facts.simplify(&rest.modulo(period.clone()));
    let address = coef * Dim::from(&axis.var) + &residue;
    facts.prove_le(&Dim::zero(), &residue).is_yes()
        && facts.prove_lt(&residue, coef).is_yes()
        && (fits || facts.prove_lt(&address, period).is_yes())
}

/// The first site whose address is linear in the variable of `axis`, and its coefficient. `None` if that varies.
fn first_linear<'s>(
    axis: &Axis,
    sites: &[&'s GuardedAccess],
    inner: &BTreeSet<Symbol>,
) -> Option<(&'s GuardedAccess, Dim)> {
    let (site, (coef, _)) = sites.iter().find_map(|site| Some((*site, linear(site, &axis.var)?)))?;
    is_invariant(&coef, axis, inner).then_some((site, coef))
}

/// Whether `dim` has one value in all iterations over `axis`. `inner` are the symbols that the loop introduces.
fn is_invariant(dim: &Dim, axis: &Axis, inner: &BTreeSet<Symbol>) -> bool {
    !dim.contains(&axis.var) && !inner.iter().any(|symbol| dim.contains(symbol))
}

fn linear(site: &GuardedAccess, var: &Symbol) -> Option<(Dim, Dim)> {
    site.facts.linear_in(&site.access.index, var)
}

/// Collects the accesses in some statements, and the symbols that these introduce.
struct AccessCollector {
    sites: Vec<GuardedAccess>,
    vars: BTreeSet<Symbol>,
}

impl AccessCollector {
    fn enter(&mut self, axis: &Axis, facts: &mut Facts) {
        facts.declare_index(&axis.var, &axis.extent);
        self.vars.insert(axis.var.clone());
    }

    fn stmts(&mut self, stmts: &[Stmt], facts: Facts) {
        for stmt in stmts {
            let mut inner = facts.clone();
            match stmt {
                Stmt::For { axis, body, .. } => {
                    self.enter(axis, &mut inner);
                    self.stmts(body, inner);
                }
                Stmt::Block(code) => self.code(code, &inner),
                Stmt::Strip { axis, code } => {
                    self.enter(axis, &mut inner);
                    self.code(code, &inner);
                }
                Stmt::Contraction(contraction) => {
                    let outer = contraction.m.iter().chain([&contraction.n]);
                    outer.for_each(|axis| self.enter(axis, &mut inner));
                    self.code(&contraction.epilogue, &inner);
                    contraction.k.iter().for_each(|axis| self.enter(axis, &mut inner));
                    self.site(&contraction.lhs, false, &inner);
                    if let Rhs::Indexed(access) = &contraction.rhs {
                        self.site(access, false, &inner);
                    }
                }
                Stmt::If { then, otherwise, .. } => {
                    self.stmts(then, inner.clone());
                    self.stmts(otherwise, inner);
                }
                Stmt::While { body, .. } => self.stmts(body, inner),
            }
        }
    }

    fn code(&mut self, code: &InstSeq, facts: &Facts) {
        for inst in &code.insts {
            match inst {
                Inst::Load(access) => self.site(access, false, facts),
                Inst::Store(access, _) => self.site(access, true, facts),
                Inst::Bind(symbol, _) => {
                    self.vars.insert(symbol.clone());
                }
                _ => {}
            }
        }
    }

    fn site(&mut self, access: &Access, is_store: bool, facts: &Facts) {
        self.sites.push(GuardedAccess { access: access.clone(), is_store, facts: facts.clone() });
    }
}
