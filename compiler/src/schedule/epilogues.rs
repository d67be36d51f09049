//! Moves epilogues without a vector form out of contractions, which then run in their microkernels.
//!
//! An epilogue has no vector form if it loads an address, as a gather does, or computes with 64-bit integers, for
//! example. Together with it, a contraction would be one scalar loop over all multiplications. Instead the contraction
//! stores its sums, and a loop over the rows runs the epilogue. Addresses that depend on the row alone are loaded
//! before its columns, so most gathers become strips of vectors:
//!
//! ```text
//! for m, n { sum = Σ; y[m, n] = sum + table[ids[m], n] }
//! ⇒  for m, n { sum = Σ; y[m, n] = sum }   for m { at = ids[m];  strip n { y[m, n] = y[m, n] + table[at, n] } }
//! ```
//!
//! The sums are at the place of the result if they have its type, else in a separate buffer.

use super::{
    fresh_symbols::FreshSymbols,
    leaves::{Place, rewrite_contractions},
};
use crate::{
    Result,
    kernel::{
        Access, Axis, Buffer, Contraction, Inst, InstSeq, Kernel, MemorySpace, Program, Stmt, hoist,
        lanes::{accumulator_type, epilogue_form},
        upper_bound,
        walk::{self, Rewrite},
    },
};
use symshape::{Dim, Facts, Symbol};

/// An axis with fewer elements does not become a strip if there is a longer one.
const MIN_STRIP_ELEMS: i64 = 8;

/// Makes kernels of the epilogues that load addresses. It runs before other kernels are fused with contractions, so
/// that operations on the same rows can be fused with the epilogue.
pub(super) fn separate(program: &mut Program) -> Result<()> {
    if !program.microkernels.is_native() {
        return Ok(());
    }

    for kernel in std::mem::take(&mut program.kernels) {
        let (first, second) = separated(program, kernel);
        program.kernels.push(first);
        program.kernels.extend(second);
    }

    Ok(())
}

/// A kernel, and the kernel of its epilogue if it is a contraction whose epilogue loads addresses.
fn separated(program: &mut Program, mut kernel: Kernel) -> (Kernel, Option<Kernel>) {
    let mut axes = Vec::new();
    let mut facts = program.facts.clone();
    let mut body = &kernel.body[..];
    while let [Stmt::For { axis, parallel: true, body: inner }] = body {
        facts.declare_index(&axis.var, &axis.extent);
        axes.push(axis.clone());
        body = inner;
    }

    let [Stmt::Contraction(contraction)] = body else { return (kernel, None) };
    let loads_address = contraction.epilogue.insts.iter().any(|inst| matches!(inst, Inst::Bind(..)));
    if !loads_address || !has_obstacle(program, &kernel, &facts, contraction) {
        return (kernel, None);
    }
    let Some(split) = Split::of(program, &kernel, &facts, contraction, MemorySpace::Arena) else {
        return (kernel, None);
    };

    let parallel_loops = |body: Vec<Stmt>| loops(&axes, true, body);
    let epilogue = parallel_loops(split.epilogue(program, true));
    kernel.body = parallel_loops(vec![Stmt::Contraction(Box::new(split.contraction))]);
    let name = kernel.name.replacen("contraction", "epilogue", 1);
    let locals = kernel.locals.clone();
    (kernel, Some(Kernel { name, control: None, locals, body: epilogue }))
}

/// Splits all contractions whose epilogue has no vector form.
pub(super) fn split(program: &mut Program) -> Result<()> {
    if !program.microkernels.is_native() {
        return Ok(());
    }

    let mut symbols = FreshSymbols::new(program);
    rewrite_contractions(program, &mut |program, kernel, place, contraction| {
        statements(program, &mut symbols, kernel, place, contraction)
    });

    Ok(())
}

/// The statements that a contraction becomes, or `None` if it stays.
fn statements(
    program: &mut Program,
    symbols: &mut FreshSymbols,
    kernel: &Kernel,
    place: &Place,
    contraction: &Contraction,
) -> Option<Vec<Stmt>> {
    let facts = &place.facts;
    if !has_obstacle(program, kernel, facts, contraction) {
        return None;
    }

    // Scratch memory belongs to one iteration of a parallel loop, so outside of all loops none exists.
    let space = if place.loops.is_empty() { MemorySpace::Arena } else { MemorySpace::Scratch };
    let split = Split::of(program, kernel, facts, contraction, space)?;
    let epilogue = split.epilogue(program, place.loops.is_empty());
    let epilogue = epilogue.iter().map(|stmt| renamed(symbols, stmt));
    let epilogue: Vec<Stmt> = epilogue.collect();
    Some([vec![Stmt::Contraction(Box::new(split.contraction))], epilogue].concat())
}

/// Whether the epilogue has no vector form, and the contraction has one otherwise.
fn has_obstacle(program: &Program, kernel: &Kernel, facts: &Facts, contraction: &Contraction) -> bool {
    let has_accumulators = accumulator_type(program, contraction).is_some();
    has_accumulators && epilogue_form(program, kernel, &contraction.facts_inside(facts), contraction).is_err()
}

/// A contraction without its epilogue.
pub(super) struct Split {
    /// The contraction, which stores its sums.
    pub(super) contraction: Contraction,
    /// The epilogue, which loads them.
    pub(super) code: InstSeq,
}

impl Split {
    /// Splits a contraction. `None` if no memory can hold its sums.
    fn of(
        program: &mut Program,
        kernel: &Kernel,
        facts: &Facts,
        contraction: &Contraction,
        space: MemorySpace,
    ) -> Option<Split> {
        let facts = contraction.facts_inside(facts);
        let has_form =
            |sums: &Access| epilogue_form(program, kernel, &facts, &storing(contraction, sums)).is_ok();
        let sums = match place_of_result(program, contraction).filter(has_form) {
            Some(sums) => sums,
            None => in_new_buffer(program, &facts, contraction, space)?,
        };
        Some(Split { contraction: storing(contraction, &sums), code: loading(&contraction.epilogue, &sums) })
    }

    /// The loops over the rows and columns that run the epilogue.
    pub(super) fn epilogue(&self, program: &Program, parallel: bool) -> Vec<Stmt> {
        let Contraction { m, n, .. } = &self.contraction;
        let mut axes = [&m[..], std::slice::from_ref(n)].concat();
        let has_bindings = self.code.insts.iter().any(|inst| matches!(inst, Inst::Bind(..)));
        let is_short = |axis: &Axis| axis.extent.as_i64().is_some_and(|extent| extent < MIN_STRIP_ELEMS);
        let last = axes.len() - 1;
        if !has_bindings && is_short(&axes[last]) && !is_short(&axes[last - 1]) {
            axes.swap(last - 1, last);
        }

        let axis = axes.remove(last);
        let runs = program.facts.prove_le(&Dim::one(), &axis.extent).is_yes();
        let code = self.code.clone();
        let (before, code) = if runs { hoist::hoist(code, &axis.var) } else { (None, code) };
        let strip = Stmt::Strip { axis, code };
        loops(&axes, parallel, before.map(Stmt::Block).into_iter().chain([strip]).collect())
    }
}

/// The contraction with stores of its sums as its epilogue.
pub(super) fn storing(contraction: &Contraction, sums: &Access) -> Contraction {
    let mut epilogue = InstSeq::default();
    let sum = epilogue.push(Inst::Sum);
    epilogue.push(Inst::Store(sums.clone(), sum));
    Contraction { epilogue, ..contraction.clone() }
}

/// The epilogue with loads of the sums.
pub(super) fn loading(epilogue: &InstSeq, sums: &Access) -> InstSeq {
    let insts = epilogue.insts.iter().map(|inst| match inst {
        Inst::Sum => Inst::Load(sums.clone()),
        other => other.clone(),
    });
    InstSeq { insts: insts.collect() }
}

/// The element of the result, if it can hold the sum: it has the sum's type, and the epilogue neither reads its buffer
/// nor loads its address.
fn place_of_result(program: &Program, contraction: &Contraction) -> Option<Access> {
    let mut stores = Vec::new();
    let mut bound: Vec<&Symbol> = Vec::new();
    for inst in &contraction.epilogue.insts {
        match inst {
            Inst::Store(access, _) => stores.push(access),
            Inst::Bind(symbol, _) => bound.push(symbol),
            _ => {}
        }
    }

    let [place] = stores[..] else { return None };
    let reads = |inst: &Inst| matches!(inst, Inst::Load(access) if access.buffer == place.buffer);
    let is_read = contraction.epilogue.insts.iter().any(reads);
    let is_loaded = bound.iter().any(|symbol| place.index.contains(symbol));
    let has_type = program.buffers[place.buffer].dtype == contraction.dtype;
    (has_type && !is_read && !is_loaded).then(|| place.clone())
}

/// A new buffer for the sums, in row-major order. `None` if its size has no upper bound. `facts` have the ranges of
/// all loops around.
fn in_new_buffer(
    program: &mut Program,
    facts: &Facts,
    contraction: &Contraction,
    space: MemorySpace,
) -> Option<Access> {
    let axes = contraction.m.iter().chain([&contraction.n]);
    let mut index = Dim::zero();
    let mut elems = Dim::one();
    for axis in axes {
        index = index * &axis.extent + Dim::from(&axis.var);
        elems = elems * in_model(program, facts, &axis.extent)?;
    }

    let elems = program.facts.simplify(&elems);
    let result = contraction.epilogue.insts.iter().rev().find_map(|inst| match inst {
        Inst::Store(access, _) => Some(&program.buffers[access.buffer].name),
        _ => None,
    });
    let name = format!("sums of {}", result.map_or("", |name| name));
    let buffer = program.buffers.push(Buffer { name, dtype: contraction.dtype, elems, space });
    Some(Access { buffer, index: facts.simplify(&index) })
}

/// An upper bound of an extent over the model's symbols alone, as sizes of memory require.
pub(super) fn in_model(program: &Program, facts: &Facts, extent: &Dim) -> Option<Dim> {
    let extent = facts.simplify(extent);
    if extent.symbols().iter().all(|symbol| program.all_symbols().any(|known| known == symbol)) {
        return upper_bound(&program.facts, &program.data_dependent, &extent);
    }
    facts.bounds(&extent).hi.map(Dim::from)
}

/// Code in which an expression takes the place of an axis, as in a loop over a part of it.
pub(super) fn at(facts: &Facts, code: &InstSeq, var: &Symbol, place: &Dim) -> InstSeq {
    let by = Rewrite {
        dim: &|dim| dim.substitute(&|symbol| (symbol == var).then(|| place.clone())),
        access: &|access| Access { index: facts.simplify(&access.index), ..access },
        symbol: &Symbol::clone,
        local: &|local| local,
    };
    by.code(code)
}

/// `body` inside loops over `axes`.
pub(super) fn loops(axes: &[Axis], parallel: bool, body: Vec<Stmt>) -> Vec<Stmt> {
    axes.iter().rev().fold(body, |body, axis| vec![Stmt::For { axis: axis.clone(), parallel, body }])
}

/// `stmt` with fresh names for all symbols that it introduces, because the contraction introduces them too.
pub(super) fn renamed(symbols: &mut FreshSymbols, stmt: &Stmt) -> Stmt {
    let mut names = Vec::new();
    walk::symbols(std::slice::from_ref(stmt), &mut |symbol| names.push((symbol.clone(), symbols.fresh())));
    let name = |symbol: &Symbol| names.iter().find(|(old, _)| old == symbol).map(|(_, new)| new.clone());
    let by = Rewrite {
        dim: &|dim| dim.substitute(&|symbol| name(symbol).map(Dim::from)),
        access: &|access| access,
        symbol: &|symbol| name(symbol).unwrap_or_else(|| symbol.clone()),
        local: &|local| local,
    };
    by.stmt(stmt)
}
