//! The rules about statements.

use super::{
    access,
    checker::{Checker, Scope, in_scope},
    code::Place,
};
use crate::{
    error::{At, Error, Result},
    kernel::{Access, Axis, BufferId, Contraction, FewBitsPanels, MemorySpace, Padding, Rhs, Stmt, few_bits},
};
use std::collections::BTreeSet;
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

impl Checker<'_> {
    /// Checks a list of statements. A symbol that one of them binds is in scope in the later ones.
    pub(super) fn stmts(&mut self, stmts: &[Stmt], mut scope: Scope) -> Result<()> {
        stmts.iter().try_for_each(|stmt| self.stmt(stmt, &mut scope))
    }

    fn stmt(&mut self, stmt: &Stmt, scope: &mut Scope) -> Result<()> {
        match stmt {
            Stmt::For { axis, parallel, body } => self.for_stmt(axis, *parallel, body, scope),
            Stmt::Block(code) => self.code(code, Place::Block, scope).at(|| "block"),
            Stmt::Strip { axis, code } => {
                let mut inner = scope.clone();
                self.axis(axis, &mut inner)
                    .and_then(|()| self.code(code, Place::Strip, &mut inner))
                    .at(|| format!("strip {}", axis.var))
            }
            Stmt::Contraction(contraction) => self
                .contraction(contraction, scope.clone())
                .at(|| format!("contraction {}", contraction.n.var)),
            Stmt::If { cond, then, otherwise } => {
                self.condition(*cond)?;
                let inner = Scope { guarded: true, ..scope.clone() };
                self.stmts(then, inner.clone())?;
                self.stmts(otherwise, inner)
            }
            Stmt::While { cond, body } => {
                self.condition(*cond)?;
                self.stmts(body, Scope { guarded: true, ..scope.clone() })
            }
        }
    }

    fn for_stmt(&mut self, axis: &Axis, parallel: bool, body: &[Stmt], scope: &Scope) -> Result<()> {
        let mut inner = scope.clone();
        self.axis(axis, &mut inner)?;
        if parallel {
            self.unproven.extend(access::conflicts(self.program, axis, body, &inner.facts));
        }
        self.stmts(body, inner).at(|| format!("for {}", axis.var))
    }

    fn contraction(&mut self, contraction: &Contraction, mut scope: Scope) -> Result<()> {
        if contraction.m.is_empty() {
            return Err(Error::invalid("the contraction has no row axis"));
        }
        let is_scratch = |id: BufferId| matches!(self.program.buffers[id].space, MemorySpace::Scratch);
        if contraction.pack_buffer.is_some_and(|id| !is_scratch(id)) {
            return Err(Error::invalid("the pack buffer is not scratch memory"));
        }

        let outer = scope.symbols.clone();
        contraction.m.iter().try_for_each(|axis| self.axis(axis, &mut scope))?;
        let with_rows = scope.symbols.clone();
        self.axis(&contraction.n, &mut scope)?;
        let mut epilogue = scope.clone();
        contraction.k.iter().try_for_each(|axis| self.axis(axis, &mut scope))?;

        let is_reduced = |symbol: &Symbol| contraction.k.iter().any(|axis| axis.var == *symbol);
        let operand_scope = |is_own: &dyn Fn(&Symbol) -> bool| -> BTreeSet<Symbol> {
            scope.symbols.iter().filter(|symbol| is_own(symbol) || is_reduced(symbol)).cloned().collect()
        };
        let lhs_scope = operand_scope(&|symbol| with_rows.contains(symbol));
        let rhs_scope = operand_scope(&|symbol| outer.contains(symbol) || *symbol == contraction.n.var);

        in_scope(&contraction.lhs.index, &lhs_scope).at(|| "lhs")?;
        if let Some(Padding { position, begin, end }) = &contraction.padding {
            in_scope(position, &lhs_scope)
                .and_then(|()| in_scope(begin, &outer))
                .and_then(|()| in_scope(end, &outer))
                .at(|| "padding")?;
        }
        self.access(&contraction.lhs, &scope).at(|| "lhs")?;
        match &contraction.rhs {
            Rhs::Indexed(access) => {
                in_scope(&access.index, &rhs_scope).at(|| "rhs")?;
                self.access(access, &scope).at(|| "rhs")?;
            }
            Rhs::Panels { buffer, base, width } => {
                in_scope(base, &outer).at(|| "rhs")?;
                self.panels(contraction, *buffer, base, *width, &scope).at(|| "rhs")?;
            }
            Rhs::FewBits(panels) => {
                in_scope(&panels.base, &outer).at(|| "rhs")?;
                self.few_bits(contraction, panels, &scope).at(|| "rhs")?;
            }
        }
        self.code(&contraction.epilogue, Place::Epilogue(contraction.dtype), &mut epilogue)
    }

    /// Checks that panels are a constant of bytes, and that all of them are within the buffer.
    fn few_bits(&mut self, contraction: &Contraction, panels: &FewBitsPanels, scope: &Scope) -> Result<()> {
        let buffer = &self.program.buffers[panels.buffer];
        if !matches!(buffer.space, MemorySpace::Const(_)) || buffer.dtype != DType::U8 {
            return Err(Error::invalid(format!(
                "the panels {:?} are not a constant of bytes",
                panels.buffer
            )));
        }
        let lhs = self.program.buffers[contraction.lhs.buffer].dtype;
        let has_axes = contraction.k.len() == 1 || panels.form.rounds_lhs;
        let has_axes = has_axes && contraction.dtype == DType::F32 && lhs == DType::F32;
        let panel_bytes = panels.panel_bytes(contraction).filter(|_| has_axes).ok_or_else(|| {
            Error::invalid("weights of few bits need `f32`, one reduction axis and blocks of whole words")
        })?;

        if let Some(id) = panels.unpack_buffer {
            let buffer = &self.program.buffers[id];
            let has_type = matches!(buffer.space, MemorySpace::Scratch) && buffer.dtype == DType::F32;
            let elems = FewBitsPanels::unpacked_elems(contraction);
            if !has_type || !scope.facts.prove_le(&elems, &buffer.elems).is_yes() {
                return Err(Error::invalid(format!(
                    "the unpack buffer {id:?} is not scratch memory of {elems} `f32`"
                )));
            }
        }

        let bytes = contraction.n.extent.ceil_div(few_bits::WIDTH) * panel_bytes;
        if scope.facts.simplify(&bytes).as_i64() == Some(0) {
            return Ok(());
        }
        let first = Access { buffer: panels.buffer, index: panels.base.clone() };
        let last = Access { buffer: panels.buffer, index: &panels.base + bytes - 1 };
        self.access(&first, scope)?;
        self.access(&last, scope)
    }

    /// Checks that panels are a constant or scratch memory, and that all of them are within the buffer.
    fn panels(
        &mut self,
        contraction: &Contraction,
        id: BufferId,
        base: &Dim,
        width: u32,
        scope: &Scope,
    ) -> Result<()> {
        if !matches!(self.program.buffers[id].space, MemorySpace::Const(_) | MemorySpace::Scratch) {
            return Err(Error::invalid(format!(
                "the panels {id:?} are neither a constant nor scratch memory"
            )));
        }
        if width == 0 {
            return Err(Error::invalid("the panels have a width of 0"));
        }

        let width = i64::from(width);
        let elems = contraction.n.extent.ceil_div(width) * contraction.depth() * width;
        if scope.facts.simplify(&elems).as_i64() == Some(0) {
            return Ok(());
        }
        let first = Access { buffer: id, index: base.clone() };
        let last = Access { buffer: id, index: base + elems - 1 };
        self.access(&first, scope)?;
        self.access(&last, scope)
    }
}
