//! Visits the accesses and symbols of statements, and rewrites their names and expressions.

use super::{
    Access, Axis, BufferId, Check, Contraction, FewBitsPanels, Inst, InstSeq, Local, Padding, Rhs, Stmt,
};
use symshape::{Dim, Symbol};

/// An access and the loops around it.
pub struct Site<'a> {
    /// The element that is accessed.
    pub access: &'a Access,
    /// Whether the element is written rather than read.
    pub is_store: bool,
    /// The loops around it within the visited statements, outermost first. They include the axes of strips and
    /// contractions.
    pub axes: &'a [Axis],
}

/// Calls `see` for each access in `body`. Panels count as one read at their base, and scratch memory of a
/// contraction as one write of its first element.
pub fn accesses(body: &[Stmt], see: &mut dyn FnMut(Site<'_>)) {
    walk(body, &mut Vec::new(), see);
}

fn walk(body: &[Stmt], axes: &mut Vec<Axis>, see: &mut dyn FnMut(Site<'_>)) {
    for stmt in body {
        let depth = axes.len();
        match stmt {
            Stmt::For { axis, body, .. } => {
                axes.push(axis.clone());
                walk(body, axes, see);
            }
            Stmt::Block(code) => in_code(code, axes, see),
            Stmt::Strip { axis, code } => {
                axes.push(axis.clone());
                in_code(code, axes, see);
            }
            Stmt::Contraction(contraction) => in_contraction(contraction, axes, see),
            Stmt::If { then, otherwise, .. } => {
                walk(then, axes, see);
                walk(otherwise, axes, see);
            }
            Stmt::While { body, .. } => walk(body, axes, see),
        }

        axes.truncate(depth);
    }
}

fn in_code(code: &InstSeq, axes: &[Axis], see: &mut dyn FnMut(Site<'_>)) {
    for (access, is_store) in code.accesses() {
        see(Site { access, is_store, axes });
    }
}

fn in_contraction(contraction: &Contraction, axes: &mut Vec<Axis>, see: &mut dyn FnMut(Site<'_>)) {
    axes.extend(contraction.m.iter().cloned());
    axes.push(contraction.n.clone());
    in_code(&contraction.epilogue, axes, see);
    axes.extend(contraction.k.iter().cloned());
    see(Site { access: &contraction.lhs, is_store: false, axes });

    match &contraction.rhs {
        Rhs::Indexed(access) => see(Site { access, is_store: false, axes }),
        Rhs::Panels { buffer, base, .. } => {
            let access = Access { buffer: *buffer, index: base.clone() };
            see(Site { access: &access, is_store: false, axes });
        }
        Rhs::FewBits(panels) => {
            let access = Access { buffer: panels.buffer, index: panels.base.clone() };
            see(Site { access: &access, is_store: false, axes });
        }
    }

    for buffer in contraction.scratch() {
        see(Site { access: &Access { buffer, index: Dim::zero() }, is_store: true, axes });
    }
}

/// Calls `see` for each loop variable and bound symbol that `body` introduces.
pub fn symbols(body: &[Stmt], see: &mut dyn FnMut(&Symbol)) {
    for stmt in body {
        match stmt {
            Stmt::For { axis, body, .. } => {
                see(&axis.var);
                symbols(body, see);
            }
            Stmt::Block(code) => bound(code, see),
            Stmt::Strip { axis, code } => {
                see(&axis.var);
                bound(code, see);
            }
            Stmt::Contraction(contraction) => {
                contraction
                    .m
                    .iter()
                    .chain([&contraction.n])
                    .chain(&contraction.k)
                    .for_each(|axis| see(&axis.var));
                bound(&contraction.epilogue, see);
            }
            Stmt::If { then, otherwise, .. } => {
                symbols(then, see);
                symbols(otherwise, see);
            }
            Stmt::While { body, .. } => symbols(body, see),
        }
    }
}

fn bound(code: &InstSeq, see: &mut dyn FnMut(&Symbol)) {
    for inst in &code.insts {
        if let Inst::Bind(symbol, _) = inst {
            see(symbol);
        }
    }
}

/// Whether an extent, an address or an index that is used as a value meets the condition.
pub(crate) fn any_dim(body: &[Stmt], is_met: &dyn Fn(&Dim) -> bool) -> bool {
    let mut found = false;
    accesses(body, &mut |site| found |= is_met(&site.access.index));
    found || body.iter().any(|stmt| any_size(stmt, is_met))
}

/// Whether an extent, or an index that is used as a value, meets the condition.
fn any_size(stmt: &Stmt, is_met: &dyn Fn(&Dim) -> bool) -> bool {
    let any = |body: &[Stmt]| body.iter().any(|stmt| any_size(stmt, is_met));
    let in_code = |code: &InstSeq| {
        code.insts.iter().any(|inst| match inst {
            Inst::Index(_, dim) => is_met(dim),
            Inst::Check(check) => is_met(&check.lo) || is_met(&check.end),
            _ => false,
        })
    };
    match stmt {
        Stmt::For { axis, body, .. } => is_met(&axis.extent) || any(body),
        Stmt::Block(code) => in_code(code),
        Stmt::Strip { axis, code } => is_met(&axis.extent) || in_code(code),
        Stmt::Contraction(contraction) => {
            let mut axes = contraction.m.iter().chain([&contraction.n]).chain(&contraction.k);
            axes.any(|axis| is_met(&axis.extent)) || in_code(&contraction.epilogue)
        }
        Stmt::If { then, otherwise, .. } => any(then) || any(otherwise),
        Stmt::While { body, .. } => any(body),
    }
}

/// Calls `see` for each use of a buffer in `body`.
pub(crate) fn buffers_mut(body: &mut [Stmt], see: &mut dyn FnMut(&mut BufferId)) {
    for stmt in body {
        match stmt {
            Stmt::For { body, .. } | Stmt::While { body, .. } => buffers_mut(body, see),
            Stmt::Block(code) | Stmt::Strip { code, .. } => buffers_of_code_mut(code, see),
            Stmt::Contraction(contraction) => {
                see(&mut contraction.lhs.buffer);
                match &mut contraction.rhs {
                    Rhs::Indexed(access) => see(&mut access.buffer),
                    Rhs::Panels { buffer, .. } => see(buffer),
                    Rhs::FewBits(panels) => {
                        see(&mut panels.buffer);
                        panels.unpack_buffer.iter_mut().for_each(&mut *see);
                    }
                }
                contraction.pack_buffer.iter_mut().for_each(&mut *see);
                buffers_of_code_mut(&mut contraction.epilogue, see);
            }
            Stmt::If { then, otherwise, .. } => {
                buffers_mut(then, see);
                buffers_mut(otherwise, see);
            }
        }
    }
}

fn buffers_of_code_mut(code: &mut InstSeq, see: &mut dyn FnMut(&mut BufferId)) {
    for inst in &mut code.insts {
        if let Inst::Load(access) | Inst::Store(access, _) = inst {
            see(&mut access.buffer);
        }
    }
}

/// The replacements that [`rewrite`] makes.
pub(crate) struct Rewrite<'a> {
    /// New index expressions and extents.
    pub dim: &'a dyn Fn(&Dim) -> Dim,
    /// New accesses. Their index is already replaced by `dim`.
    pub access: &'a dyn Fn(Access) -> Access,
    /// New names of loop variables and bound symbols.
    pub symbol: &'a dyn Fn(&Symbol) -> Symbol,
    /// New scalar variables.
    pub local: &'a dyn Fn(Local) -> Local,
}

/// Copies statements and applies the replacements.
pub(crate) fn rewrite(body: &[Stmt], by: &Rewrite<'_>) -> Vec<Stmt> {
    body.iter().map(|stmt| by.stmt(stmt)).collect()
}

impl<'a> Rewrite<'a> {
    /// Replaces index expressions and extents, and keeps everything else.
    pub(crate) fn dims(dim: &'a dyn Fn(&Dim) -> Dim) -> Rewrite<'a> {
        Rewrite { dim, access: &|access| access, symbol: &Symbol::clone, local: &|local| local }
    }

    /// Copies one statement and applies the replacements.
    pub(crate) fn stmt(&self, stmt: &Stmt) -> Stmt {
        match stmt {
            Stmt::For { axis, parallel, body } => {
                Stmt::For { axis: self.axis(axis), parallel: *parallel, body: rewrite(body, self) }
            }
            Stmt::Block(code) => Stmt::Block(self.code(code)),
            Stmt::Strip { axis, code } => Stmt::Strip { axis: self.axis(axis), code: self.code(code) },
            Stmt::Contraction(contraction) => Stmt::Contraction(Box::new(self.contraction(contraction))),
            Stmt::If { cond, then, otherwise } => Stmt::If {
                cond: (self.local)(*cond),
                then: rewrite(then, self),
                otherwise: rewrite(otherwise, self),
            },
            Stmt::While { cond, body } => {
                Stmt::While { cond: (self.local)(*cond), body: rewrite(body, self) }
            }
        }
    }

    fn axis(&self, axis: &Axis) -> Axis {
        Axis { var: (self.symbol)(&axis.var), extent: (self.dim)(&axis.extent) }
    }

    fn access(&self, access: &Access) -> Access {
        (self.access)(Access { buffer: access.buffer, index: (self.dim)(&access.index) })
    }

    /// Copies a contraction and applies the replacements.
    pub(crate) fn contraction(&self, contraction: &Contraction) -> Contraction {
        Contraction {
            m: contraction.m.iter().map(|axis| self.axis(axis)).collect(),
            n: self.axis(&contraction.n),
            k: contraction.k.iter().map(|axis| self.axis(axis)).collect(),
            lhs: self.access(&contraction.lhs),
            rhs: match &contraction.rhs {
                Rhs::Indexed(access) => Rhs::Indexed(self.access(access)),
                Rhs::Panels { buffer, base, width } => {
                    Rhs::Panels { buffer: *buffer, base: (self.dim)(base), width: *width }
                }
                Rhs::FewBits(panels) => {
                    Rhs::FewBits(FewBitsPanels { base: (self.dim)(&panels.base), ..panels.clone() })
                }
            },
            dtype: contraction.dtype,
            precision: contraction.precision,
            padding: contraction.padding.as_ref().map(|padding| Padding {
                position: (self.dim)(&padding.position),
                begin: (self.dim)(&padding.begin),
                end: (self.dim)(&padding.end),
            }),
            pack_buffer: contraction.pack_buffer,
            epilogue: self.code(&contraction.epilogue),
        }
    }

    /// Copies straight-line code and applies the replacements.
    pub(crate) fn code(&self, code: &InstSeq) -> InstSeq {
        InstSeq { insts: code.insts.iter().map(|inst| self.inst(inst)).collect() }
    }

    fn inst(&self, inst: &Inst) -> Inst {
        match inst {
            Inst::Index(dtype, dim) => Inst::Index(*dtype, (self.dim)(dim)),
            Inst::Load(access) => Inst::Load(self.access(access)),
            Inst::Store(access, reg) => Inst::Store(self.access(access), *reg),
            Inst::Bind(symbol, reg) => Inst::Bind((self.symbol)(symbol), *reg),
            Inst::Get(local) => Inst::Get((self.local)(*local)),
            Inst::Set(local, reg) => Inst::Set((self.local)(*local), *reg),
            Inst::Reduce(op, reg, local) => Inst::Reduce(*op, *reg, (self.local)(*local)),
            Inst::Check(check) => {
                Inst::Check(Check { lo: (self.dim)(&check.lo), end: (self.dim)(&check.end), ..check.clone() })
            }
            Inst::Const(_)
            | Inst::Sum
            | Inst::Unary(..)
            | Inst::Binary(..)
            | Inst::Compare(..)
            | Inst::Select(..)
            | Inst::Cast(..)
            | Inst::Bits(..) => inst.clone(),
        }
    }
}
