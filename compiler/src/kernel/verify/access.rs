//! Whether the iterations of a parallel loop get into each other's way.
//!
//! For each buffer that the loop writes, all accesses must be `c*p + base + r` with `p` the loop's variable, one `c`
//! and one `base` for all of them, and `0 <= r < c`: then every iteration has a window of its own. Scratch is exempt,
//! because each worker has a copy.

use crate::kernel::{Access, Axis, Inst, InstSeq, MemorySpace, Program, Rhs, Stmt};
use std::collections::BTreeSet;
use symshape::{Dim, Facts, Symbol};

/// An access inside the loop, with what is known where it stands.
struct Site {
    access: Access,
    stores: bool,
    facts: Facts,
}

/// What could not be proven of the loop over `axis`, whose variable `facts` know.
pub(super) fn conflicts(program: &Program, axis: &Axis, body: &[Stmt], facts: &Facts) -> Vec<String> {
    let mut walk = Walk { sites: Vec::new(), vars: BTreeSet::new() };
    walk.stmts(body, facts.clone());
    let written: BTreeSet<_> =
        walk.sites.iter().filter(|site| site.stores).map(|site| site.access.buffer).collect();
    let mut conflicts = Vec::new();
    for buffer in written {
        if matches!(program.buffers[buffer].space, MemorySpace::Scratch) {
            continue;
        }
        let sites: Vec<&Site> = walk.sites.iter().filter(|site| site.access.buffer == buffer).collect();
        if !windows(&axis.var, &sites, &walk.vars) {
            conflicts.push(format!("{buffer:?}: iterations over {} are independent", axis.var));
        }
    }
    conflicts
}

fn windows(var: &Symbol, sites: &[&Site], inner: &BTreeSet<Symbol>) -> bool {
    let Some(first) = sites.iter().find_map(|site| linear(site, var)) else { return false };
    let (coef, rest) = first;
    let base = rest.substitute(&|symbol| inner.contains(symbol).then(Dim::zero));
    sites.iter().all(|site| {
        linear(site, var).is_some_and(|(own, rest)| {
            let window = rest - &base;
            site.facts.prove_eq(&own, &coef).is_yes()
                && site.facts.prove_le(&Dim::zero(), &window).is_yes()
                && site.facts.prove_lt(&window, &coef).is_yes()
        })
    })
}

fn linear(site: &Site, var: &Symbol) -> Option<(Dim, Dim)> {
    site.facts.linear_in(&site.access.index, var)
}

/// Gathers the accesses under some statements, and the variables of the loops there.
struct Walk {
    sites: Vec<Site>,
    vars: BTreeSet<Symbol>,
}

impl Walk {
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

    fn site(&mut self, access: &Access, stores: bool, facts: &Facts) {
        self.sites.push(Site { access: access.clone(), stores, facts: facts.clone() });
    }
}
