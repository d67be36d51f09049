//! Packs right operands that contractions would have to gather.
//!
//! If the columns of a right operand are not adjacent, as for the keys of attention, a tile would gather them lane by
//! lane, again for every few rows. Instead they are copied to scratch memory as packed panels, see [`Rhs::Panels`], in
//! the innermost loop that they depend on, or outside of it:
//!
//! ```text
//! for o { for block { C(o, block, B(o)) } }   ⇒   for o { P = panels of B(o);  for block { C(o, block, P) } }
//! ```
//!
//! The lanes after the last column are never written, and their results are never stored.

use super::fresh_symbols::FreshSymbols;
use crate::{
    Result,
    kernel::{Access, Axis, Buffer, BufferId, Contraction, Inst, InstSeq, MemorySpace, Program, Rhs, Stmt},
};
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Columns of a panel, as for constants that are packed at compile time.
const WIDTH: i64 = 16;

/// The largest operand to copy, in elements.
const MAX_ELEMS: i64 = 1 << 20;

/// With fewer rows, the copy takes longer than it saves.
const MIN_ROWS: i64 = 8;

/// Packs all operands for which the copy pays.
pub(super) fn pack(program: &mut Program) -> Result<()> {
    let mut symbols = FreshSymbols::new(program);
    let mut kernels = std::mem::take(&mut program.kernels);
    for kernel in &mut kernels {
        let facts = program.facts.clone();
        let body = std::mem::take(&mut kernel.body);
        kernel.body = stmts(program, &mut symbols, &facts, None, body).0;
    }
    program.kernels = kernels;
    Ok(())
}

/// Rewrites statements inside the loop `around`; also returns the statements to insert before that loop.
fn stmts(
    program: &mut Program,
    symbols: &mut FreshSymbols,
    facts: &Facts,
    around: Option<(&Axis, bool)>,
    body: Vec<Stmt>,
) -> (Vec<Stmt>, Vec<(Dim, Stmt)>) {
    let mut done = Vec::new();
    let mut before = Vec::new();
    for stmt in body {
        let mut copies = Vec::new();
        let stmt = match stmt {
            Stmt::For { axis, parallel, body } => {
                let mut facts = facts.clone();
                facts.declare_index(&axis.var, &axis.extent);
                let (body, outside) = stmts(program, symbols, &facts, Some((&axis, parallel)), body);
                copies = outside;
                Stmt::For { axis, parallel, body }
            }
            // Scratch memory belongs to one iteration of a parallel loop, so outside of all loops none exists.
            Stmt::Contraction(mut contraction) if around.is_some() => {
                if let Some((at, stmt)) = packed(program, symbols, facts, &mut contraction) {
                    copies.push((at, stmt));
                }
                Stmt::Contraction(contraction)
            }
            other => other,
        };

        for (at, copy) in copies {
            match around {
                Some((axis, false)) if !at.contains(&axis.var) => before.push((at, copy)),
                _ => done.push(copy),
            }
        }

        done.push(stmt);
    }

    (done, before)
}

/// Lets a contraction read panels, and returns the statement that packs them, with the address that it reads.
fn packed(
    program: &mut Program,
    symbols: &mut FreshSymbols,
    facts: &Facts,
    contraction: &mut Contraction,
) -> Option<(Dim, Stmt)> {
    let Rhs::Indexed(access) = &contraction.rhs else { return None };
    let mut facts = facts.clone();
    for axis in contraction.m.iter().chain([&contraction.n]).chain(&contraction.k) {
        facts.declare_index(&axis.var, &axis.extent);
    }
    let (column, _) = facts.linear_in(&access.index, &contraction.n.var)?;

    let floats = contraction.dtype == DType::F32 && program.buffers[access.buffer].dtype == DType::F32;
    let many = facts.bounds(&contraction.rows()).hi.is_none_or(|hi| hi >= MIN_ROWS.into());
    let depth = contraction.depth();
    let elems = facts.simplify(&(contraction.n.extent.ceil_div(WIDTH) * &depth * WIDTH));
    // The size of a buffer must depend on the model's symbols only.
    let known = elems.symbols().iter().all(|symbol| program.symbols.contains(symbol));
    let small = program.facts.bounds(&elems).hi.is_some_and(|hi| hi <= MAX_ELEMS.into());
    if column.as_i64() == Some(1) || !floats || !many || !known || !small {
        return None;
    }

    let name = format!("panels of {}", program.buffers[access.buffer].name);
    let buffer = program.buffers.push(Buffer { name, dtype: DType::F32, elems, space: MemorySpace::Scratch });
    let stmt = copy(symbols, &facts, contraction, access, buffer, &depth);
    let origin = access.index.substitute(&|symbol| {
        let own = contraction.k.iter().chain([&contraction.n]).any(|axis| axis.var == *symbol);
        own.then(Dim::zero)
    });
    contraction.rhs = Rhs::Panels { buffer, base: Dim::zero(), width: WIDTH as u32 };
    Some((origin, stmt))
}

/// `for panel { for k… { for last k { strip column of the panel { panel[k][column] = B } } } }`, or with the two inner
/// loops interchanged.
fn copy(
    symbols: &mut FreshSymbols,
    facts: &Facts,
    contraction: &Contraction,
    access: &Access,
    buffer: BufferId,
    depth: &Dim,
) -> Stmt {
    let n = &contraction.n;
    let panel = Axis { var: symbols.fresh(), extent: facts.simplify(&n.extent.ceil_div(WIDTH)) };
    let first = Dim::from(&panel.var) * WIDTH;
    let column =
        Axis { var: symbols.fresh(), extent: facts.simplify(&(&n.extent - &first).min(WIDTH.into())) };
    let k: Vec<Axis> =
        contraction.k.iter().map(|axis| Axis { var: symbols.fresh(), extent: axis.extent.clone() }).collect();
    let mut facts = facts.clone();
    [&panel, &column].into_iter().chain(&k).for_each(|axis| facts.declare_index(&axis.var, &axis.extent));

    let at = access.index.substitute(&|symbol| {
        let inner = contraction.k.iter().position(|axis| axis.var == *symbol);
        match inner {
            Some(idx) => Some(Dim::from(&k[idx].var)),
            None => (n.var == *symbol).then(|| &first + Dim::from(&column.var)),
        }
    });
    let flat = k.iter().fold(Dim::zero(), |flat, axis| flat * &axis.extent + Dim::from(&axis.var));
    let place = (Dim::from(&panel.var) * depth + flat) * WIDTH + Dim::from(&column.var);

    let mut code = InstSeq::default();
    let value = code.push(Inst::Load(Access { buffer: access.buffer, index: facts.simplify(&at) }));
    code.push(Inst::Store(Access { buffer, index: facts.simplify(&place) }, value));

    let mut k = k.into_iter();
    let last = k.next_back().unwrap_or_else(|| Axis { var: symbols.fresh(), extent: Dim::one() });
    // Where the last axis of k is adjacent in memory, strips along the columns transpose squares in registers: whole
    // vectors are loaded and stored. Strips along k would store element by element.
    let is_adjacent = facts.linear_in(&at, &last.var).is_some_and(|(step, _)| step.as_i64() == Some(1));
    let (outer, inner) = if is_adjacent { (last, column) } else { (column, last) };
    let strip = Stmt::For { axis: outer, parallel: false, body: vec![Stmt::Strip { axis: inner, code }] };
    k.rev().chain([panel]).fold(strip, |body, axis| Stmt::For { axis, parallel: false, body: vec![body] })
}
