//! What a well-formed program is.
//!
//! Names: ports and buffers fit together; loop variables and bound symbols are distinct within a kernel and from the
//! model's symbols, and every expression uses only symbols in scope. Code: registers are defined before they are
//! used, types agree, inputs and constants are never written; a sum is read in epilogues only, a variable is reduced
//! into in strips only and set outside of strips and epilogues only. Memory: every access lies within its buffer, and
//! the iterations of a parallel loop touch nothing that another one writes. What a function outside of the compiler
//! writes overlaps with nothing else that it is handed.
//!
//! Regions: they nest, conditions are bool buffers, values of symbols are `i64` ones, and sizes of buffers depend on the
//! model's symbols only.
//!
//! Partitions: together they are all kernels in their order, none divides a region, and if they may run in any order, those
//! of which neither waits for the other don't touch what the other writes.
//!
//! Memory rules are proofs. One that is refuted by values of the symbols is an error, unless the access stands under a
//! condition; one that is neither proven nor refuted is listed, for tests that demand an empty list.

mod access;
mod code;
mod control;
mod devices;
mod partitions;

use super::{
    Access, Axis, Buffer, BufferId, Contraction, Control, Kernel, MemorySpace, Port, Program, Rhs, Stmt,
};
use crate::error::{At, Error, Result};
use code::Place;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};
use symshape::{Dim, Facts, Symbol};

/// A memory rule that was neither proven nor refuted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unproven {
    /// The kernel's name.
    pub kernel: String,
    /// The statement that could not be proven.
    pub what: String,
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}: {}", self.kernel, self.what)
    }
}

/// Checks the rules of this module; returns what could not be proven.
///
/// # Errors
/// The first rule that is broken, and where.
pub fn verify(program: &Program) -> Result<Vec<Unproven>> {
    let own: BTreeSet<Symbol> = program.symbols.iter().cloned().collect();
    let symbols: BTreeSet<Symbol> = program.all_symbols().cloned().collect();
    if symbols.len() != program.symbols.len() + program.data_dependent.len() {
        return Err(Error::invalid("a symbol is listed twice"));
    }
    for found in &program.data_dependent {
        in_scope(&found.upper_bound, &own).at(|| format!("bound of {}", found.symbol))?;
    }
    for (id, buffer) in &program.buffers {
        verify_buffer(program, buffer, &own).at(|| format!("buffer {id:?} {}", buffer.name))?;
    }
    verify_ports(program, &program.inputs, &own, MemorySpace::Input)?;
    verify_ports(program, &program.outputs, &symbols, MemorySpace::Output)?;
    control::verify(program, &symbols)?;
    devices::verify(program)?;
    partitions::verify(program)?;
    let mut unproven = Vec::new();
    let mut depth = 0;
    for kernel in &program.kernels {
        match kernel.control {
            Some(Control::If(_) | Control::While(_)) => depth += 1,
            Some(Control::End) => depth -= 1,
            _ => {}
        }
        // Whether a region is reached, and what was found before it is, the facts don't know.
        let guarded = depth > 0 || !program.data_dependent.is_empty();
        let list =
            verify_kernel(program, kernel, &symbols, guarded).at(|| format!("kernel {}", kernel.name))?;
        unproven.extend(list.into_iter().map(|what| Unproven { kernel: kernel.name.clone(), what }));
    }
    Ok(unproven)
}

fn in_scope(dim: &Dim, scope: &BTreeSet<Symbol>) -> Result<()> {
    match dim.symbols().into_iter().find(|symbol| !scope.contains(symbol)) {
        None => Ok(()),
        Some(symbol) => Err(Error::invalid(format!("symbol {symbol} is not in scope in `{dim}`"))),
    }
}

fn verify_buffer(program: &Program, buffer: &Buffer, symbols: &BTreeSet<Symbol>) -> Result<()> {
    in_scope(&buffer.elems, symbols)?;
    if program.facts.prove_le(&Dim::zero(), &buffer.elems).is_no() {
        return Err(Error::invalid(format!("its number of elements `{}` can be negative", buffer.elems)));
    }
    match &buffer.space {
        MemorySpace::Input(idx) => belongs(buffer, *idx, &program.inputs, program),
        MemorySpace::Output(idx) => belongs(buffer, *idx, &program.outputs, program),
        MemorySpace::Const(tensor) => {
            let fits = tensor.dtype() == buffer.dtype && buffer.elems == Dim::from(tensor.elems());
            match fits {
                true => Ok(()),
                false => Err(Error::invalid(format!("it holds {tensor:?}"))),
            }
        }
        MemorySpace::Arena | MemorySpace::Scratch => Ok(()),
        MemorySpace::Device(number) => match program.devices.get(*number as usize) {
            Some(_) => Ok(()),
            None => Err(Error::invalid(format!("there is no device {number}"))),
        },
    }
}

fn belongs(buffer: &Buffer, idx: u32, ports: &[Port], program: &Program) -> Result<()> {
    match ports.get(idx as usize).map(|port| &program.buffers[port.buffer]) {
        Some(owner) if std::ptr::eq(owner, buffer) => Ok(()),
        _ => Err(Error::invalid("it is not the memory of the port that it names")),
    }
}

fn verify_ports(
    program: &Program,
    ports: &[Port],
    symbols: &BTreeSet<Symbol>,
    space: impl Fn(u32) -> MemorySpace,
) -> Result<()> {
    for (idx, port) in ports.iter().enumerate() {
        let at = || format!("port {}", port.name);
        port.shape.iter().try_for_each(|dim| in_scope(dim, symbols)).at(at)?;
        let buffer = &program.buffers[port.buffer];
        let same = match (&buffer.space, space(idx as u32)) {
            (MemorySpace::Input(a), MemorySpace::Input(b))
            | (MemorySpace::Output(a), MemorySpace::Output(b)) => *a == b,
            _ => false,
        };
        if !same {
            return Err(Error::invalid(format!("{:?} is not in its space", port.buffer))).at(at);
        }
        let elems = Dim::product(port.shape.iter().cloned());
        // A buffer has room for the most that is found while running.
        let fits = match program.data_dependent.iter().any(|found| elems.contains(&found.symbol)) {
            true => program.facts.prove_le(&elems, &buffer.elems),
            false => program.facts.prove_eq(&elems, &buffer.elems),
        };
        if fits.is_no() {
            let message = format!("`{elems}` elements in a buffer of `{}`", buffer.elems);
            return Err(Error::invalid(message)).at(at);
        }
    }
    Ok(())
}

fn verify_kernel(
    program: &Program,
    kernel: &Kernel,
    symbols: &BTreeSet<Symbol>,
    guarded: bool,
) -> Result<Vec<String>> {
    let mut checker = Checker { program, kernel, seen: symbols.clone(), unproven: Vec::new() };
    let scope = Scope { facts: program.facts.clone(), symbols: symbols.clone(), guarded, idle: false };
    checker.stmts(&kernel.body, scope)?;
    if let Some(Control::Call(call)) = &kernel.control {
        checker.unproven.extend(control::arguments(program, call, guarded)?);
    }
    Ok(checker.unproven)
}

/// What is known at one place of a kernel.
#[derive(Clone)]
struct Scope {
    facts: Facts,
    symbols: BTreeSet<Symbol>,
    /// A condition that the facts don't know decides whether this place is reached.
    guarded: bool,
    /// A loop around it never runs: nothing is touched.
    idle: bool,
}

struct Checker<'a> {
    program: &'a Program,
    kernel: &'a Kernel,
    /// Every symbol that was introduced so far.
    seen: BTreeSet<Symbol>,
    unproven: Vec<String>,
}

impl Checker<'_> {
    fn introduce(&mut self, symbol: &Symbol, scope: &mut Scope) -> Result<()> {
        if !self.seen.insert(symbol.clone()) {
            return Err(Error::invalid(format!("{symbol} is introduced twice")));
        }
        scope.symbols.insert(symbol.clone());
        Ok(())
    }

    fn axis(&mut self, axis: &Axis, scope: &mut Scope) -> Result<()> {
        in_scope(&axis.extent, &scope.symbols)?;
        self.introduce(&axis.var, scope)?;
        scope.idle |= scope.facts.prove_le(&axis.extent, &Dim::zero()).is_yes();
        scope.facts.declare_index(&axis.var, &axis.extent);
        Ok(())
    }

    fn stmts(&mut self, stmts: &[Stmt], mut scope: Scope) -> Result<()> {
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
            let conflicts = access::conflicts(self.program, axis, body, &inner.facts);
            self.unproven.extend(conflicts);
        }
        self.stmts(body, inner).at(|| format!("for {}", axis.var))
    }

    fn contraction(&mut self, contraction: &Contraction, mut scope: Scope) -> Result<()> {
        let outer = scope.symbols.clone();
        if contraction.m.is_empty() {
            return Err(Error::invalid("a contraction has at least one row axis"));
        }
        contraction.m.iter().try_for_each(|axis| self.axis(axis, &mut scope))?;
        let rows = scope.symbols.clone();
        self.axis(&contraction.n, &mut scope)?;
        let mut epilogue = scope.clone();
        contraction.k.iter().try_for_each(|axis| self.axis(axis, &mut scope))?;
        let summed = |symbol: &Symbol| contraction.k.iter().any(|axis| axis.var == *symbol);
        let of = |vars: &dyn Fn(&Symbol) -> bool| -> BTreeSet<Symbol> {
            scope.symbols.iter().filter(|symbol| vars(symbol) || summed(symbol)).cloned().collect()
        };
        let lhs_scope = of(&|symbol| rows.contains(symbol));
        let rhs_scope = of(&|symbol| outer.contains(symbol) || *symbol == contraction.n.var);
        in_scope(&contraction.lhs.index, &lhs_scope).at(|| "lhs")?;
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
        }
        let is_scratch = |id: BufferId| matches!(self.program.buffers[id].space, MemorySpace::Scratch);
        if contraction.pack_buffer.is_some_and(|room| !is_scratch(room)) {
            return Err(Error::invalid("room is scratch memory"));
        }
        self.code(&contraction.epilogue, Place::Epilogue(contraction.dtype), &mut epilogue)
    }

    /// The packed columns are a constant, or scratch memory, that holds them all.
    fn panels(
        &mut self,
        contraction: &Contraction,
        id: BufferId,
        base: &Dim,
        width: u32,
        scope: &Scope,
    ) -> Result<()> {
        if !matches!(self.program.buffers[id].space, MemorySpace::Const(_) | MemorySpace::Scratch)
            || width == 0
        {
            return Err(Error::invalid("panels are a constant or scratch, of some columns each"));
        }
        let depth = contraction.depth();
        let width = i64::from(width);
        let elems = contraction.n.extent.ceil_div(width) * &depth * width;
        if scope.facts.simplify(&elems).as_i64() == Some(0) {
            return Ok(());
        }
        // The last element in use; where there is none, nothing is read.
        let last = Access { buffer: id, index: base + elems - 1 };
        let first = Access { buffer: id, index: base.clone() };
        self.access(&first, scope)?;
        self.access(&last, scope)
    }

    /// `0 <= at < elems`.
    fn access(&mut self, access: &Access, scope: &Scope) -> Result<()> {
        in_scope(&access.index, &scope.symbols)?;
        if scope.idle {
            return Ok(());
        }
        let elems = &self.program.buffers[access.buffer].elems;
        let at = scope.facts.simplify(&access.index);
        let relations = [symshape::Relation::le(Dim::zero(), &at), symshape::Relation::lt(&at, elems)];
        for relation in relations {
            match scope.facts.prove(&relation) {
                symshape::Answer::Yes(_) => {}
                symshape::Answer::No(example) if !scope.guarded => {
                    let values = show(&example.values);
                    return Err(Error::invalid(format!("{access}: not `{relation}` where {values}")));
                }
                symshape::Answer::No(_) | symshape::Answer::Unknown => {
                    self.unproven.push(format!("{access}: `{relation}`"));
                }
            }
        }
        Ok(())
    }
}

fn show(values: &BTreeMap<Symbol, num_bigint::BigInt>) -> String {
    let texts: Vec<String> = values.iter().map(|(symbol, value)| format!("{symbol} = {value}")).collect();
    texts.join(", ")
}
