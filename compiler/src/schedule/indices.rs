//! Turns indices that are used as values into loads from a table of integers, so that strips can vectorise them.
//!
//! `index i64 e`, where `e` moves with a loop, has no vector form: lanes are 32 bits wide and hold elements of
//! streams. But a table `t` of consecutive integers from `lo` has `t[e - lo] = e`, which is a stream like any other.
//! 64-bit indices are narrowed first if only comparisons with other small integers, and conversions, use them. Examples
//! are the positions that a causal mask compares.

use super::index_arithmetic;
use crate::{
    Result,
    kernel::{Access, Axis, Buffer, BufferId, Inst, InstSeq, MemorySpace, Program, Stmt},
    scalar::Scalar,
    tensor::Tensor,
};
use num_traits::ToPrimitive;
use std::collections::BTreeMap;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// The largest length of a table.
const MAX_ENTRIES: i64 = 1 << 16;

/// The tables by their first integer, each with its length.
type Tables = BTreeMap<i64, (BufferId, i64)>;

/// Rewrites all strips and epilogues.
pub(super) fn tabulate(program: &mut Program) -> Result<()> {
    let mut kernels = std::mem::take(&mut program.kernels);
    let mut tables = Tables::new();
    for kernel in &mut kernels {
        let facts = program.facts.clone();
        stmts(program, &mut tables, &facts, &mut Vec::new(), &mut kernel.body);
    }

    program.kernels = kernels;
    for (lo, (buffer, len)) in tables {
        let integers: Vec<Scalar> = (lo..lo + len).map(|n| Scalar::from_i64(DType::I32, n)).collect();
        if let Some(tensor) = Tensor::from_scalars(DType::I32, vec![integers.len()], &integers) {
            program.buffers[buffer].elems = Dim::from(len);
            program.buffers[buffer].space = MemorySpace::Const(tensor);
        }
    }

    Ok(())
}

/// Goes through the statements; `vars` are the variables of the loops around.
fn stmts(
    program: &mut Program,
    tables: &mut Tables,
    facts: &Facts,
    vars: &mut Vec<Symbol>,
    body: &mut [Stmt],
) {
    let depth = vars.len();
    for stmt in body {
        let mut facts = facts.clone();
        let mut enter = |axis: &Axis, vars: &mut Vec<Symbol>| {
            facts.declare_index(&axis.var, &axis.extent);
            vars.push(axis.var.clone());
        };

        match stmt {
            Stmt::For { axis, body, .. } => {
                enter(axis, vars);
                stmts(program, tables, &facts, vars, body);
            }
            Stmt::Strip { axis, code } => {
                enter(axis, vars);
                rewrite(program, tables, &facts, vars, code);
            }
            Stmt::Contraction(contraction) => {
                contraction.m.iter().chain([&contraction.n]).for_each(|axis| enter(axis, vars));
                rewrite(program, tables, &facts, vars, &mut contraction.epilogue);
            }
            Stmt::If { then, otherwise, .. } => {
                stmts(program, tables, &facts, vars, then);
                stmts(program, tables, &facts, vars, otherwise);
            }
            Stmt::While { body, .. } => stmts(program, tables, &facts, vars, body),
            Stmt::Block(_) => {}
        }

        vars.truncate(depth);
    }
}

fn rewrite(program: &mut Program, tables: &mut Tables, facts: &Facts, vars: &[Symbol], code: &mut InstSeq) {
    let moves = |inst: &Inst| matches!(inst, Inst::Index(DType::I32 | DType::I64, dim) if vars.iter().any(|var| dim.contains(var)));

    // Positions bound to loaded values are not known to be small, and not linear in any variable.
    let binds = code.insts.iter().any(|inst| matches!(inst, Inst::Bind(..)));
    if binds || !code.insts.iter().any(moves) {
        return;
    }

    if let Some(column) = vars.last() {
        index_arithmetic::fold(facts, column, code);
    }
    let narrow = narrow(facts, code);
    for (inst, is_narrow) in code.insts.iter_mut().zip(narrow) {
        let new = match &*inst {
            Inst::Index(DType::I64, dim) if is_narrow => Inst::Index(DType::I32, dim.clone()),
            Inst::Const(value) if is_narrow => Inst::Const(Scalar::from_i64(DType::I32, value.as_i64())),
            other => other.clone(),
        };
        *inst = match &new {
            Inst::Index(DType::I32, dim) if moves(&new) => {
                table(program, tables, facts, dim).map_or(new.clone(), Inst::Load)
            }
            _ => new,
        };
    }
}

/// The 64-bit constants and indices that can have 32 bits.
fn narrow(facts: &Facts, code: &InstSeq) -> Vec<bool> {
    let is_small = |inst: &Inst| match inst {
        Inst::Const(value) => value.dtype() == DType::I64 && i32::try_from(value.as_i64()).is_ok(),
        Inst::Index(DType::I64, dim) => {
            range(facts, dim).is_some_and(|(lo, hi)| i32::try_from(lo).is_ok() && i32::try_from(hi).is_ok())
        }
        _ => false,
    };

    let mut narrow: Vec<bool> = code.insts.iter().map(is_small).collect();

    // Both sides of a comparison have one type: if one side can't be narrowed, neither can the other. Repeat until
    // stable.
    loop {
        let before = narrow.clone();
        for inst in &code.insts {
            match inst {
                Inst::Compare(_, a, b) => {
                    let both = narrow[a.0 as usize] && narrow[b.0 as usize];
                    (narrow[a.0 as usize], narrow[b.0 as usize]) = (both, both);
                }
                Inst::Cast(..) => {}
                other => other.operands().into_iter().for_each(|reg| narrow[reg.0 as usize] = false),
            }
        }

        if narrow == before {
            return narrow;
        }
    }
}

fn range(facts: &Facts, dim: &Dim) -> Option<(i64, i64)> {
    let bounds = facts.bounds(dim);
    Some((bounds.lo?.to_i64()?, bounds.hi?.to_i64()?))
}

/// The element of a table that holds the integer `dim`.
fn table(program: &mut Program, tables: &mut Tables, facts: &Facts, dim: &Dim) -> Option<Access> {
    let (lo, hi) = range(facts, dim)?;
    let len = hi.checked_sub(lo)?.checked_add(1).filter(|len| (1..=MAX_ENTRIES).contains(len))?;

    // Most indices begin at zero, so that one table serves all of them.
    let lo = if lo > 0 && hi < MAX_ENTRIES { 0 } else { lo };
    let len = if lo == 0 { hi + 1 } else { len };

    let (buffer, longest) = tables.entry(lo).or_insert_with(|| {
        let name = format!("integers from {lo}");
        let elems = Dim::zero();
        (program.buffers.push(Buffer { name, dtype: DType::I32, elems, space: MemorySpace::Arena }), 0)
    });

    *longest = len.max(*longest);
    Some(Access { buffer: *buffer, index: facts.simplify(&(dim - lo)) })
}
