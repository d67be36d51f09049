//! Scratch memory for contractions of integers of one byte, whose left factor no leaf reads as it lies.
//!
//! Leaves want groups of such integers along the reduction, widened on some machines, and with none missing at the end
//! of a row. A block of rows at a time is laid out so. How, and how many rows a block has, is the code generator's
//! business; here is only room for a block of [`BLOCK_BYTES`], or of the rows that it can't do with less of.

use crate::{
    Result,
    kernel::{Buffer, Contract, Program, Rhs, Space, Stmt},
};
use symshape::Dim;
use symshape_runtime::DType;

/// Bytes of a block of rows, if it may have any number.
const BLOCK_BYTES: i64 = 160 << 10;

/// Rows of the tallest tile on any machine.
const TALLEST: i64 = 16;

/// Bytes from one laid out row of so many integers to the next, at most: two for each, whole cache lines, and one more.
const fn row_bytes(depth: i64) -> i64 {
    (2 * depth + 63) / 64 * 64 + 64
}

/// Reserves room for all such contractions.
pub(super) fn reserve(program: &mut Program) -> Result<()> {
    let mut kernels = std::mem::take(&mut program.kernels);
    for kernel in &mut kernels {
        stmts(program, &mut kernel.body);
    }
    program.kernels = kernels;
    Ok(())
}

fn stmts(program: &mut Program, body: &mut [Stmt]) {
    for stmt in body {
        match stmt {
            Stmt::For { body, .. } | Stmt::While { body, .. } => stmts(program, body),
            Stmt::If { then, otherwise, .. } => {
                stmts(program, then);
                stmts(program, otherwise);
            }
            Stmt::Contract(contract) => {
                if let Some(elems) = needed(program, contract) {
                    let name = format!("rows of {}", program.buffers[contract.lhs.buffer].name);
                    let room = Buffer { name, dtype: DType::U8, elems, space: Space::Scratch };
                    contract.room = Some(program.buffers.push(room));
                }
            }
            Stmt::Block(_) | Stmt::Strip { .. } => {}
        }
    }
}

/// Bytes for a block of rows, where a contraction is one that needs them.
fn needed(program: &Program, contract: &Contract) -> Option<Dim> {
    let bytes = |dtype: DType| matches!(dtype, DType::U8 | DType::I8);
    let Rhs::Panels { buffer, .. } = &contract.rhs else { return None };
    let right = &program.buffers[*buffer];
    let fits = contract.dtype == DType::I32
        && bytes(program.buffers[contract.lhs.buffer].dtype)
        && matches!(right.space, Space::Const(_))
        && (bytes(right.dtype) || right.dtype == DType::I16);
    let depth: i64 = contract.k.iter().map(|axis| axis.extent.as_i64()).product::<Option<_>>()?;
    if !fits || depth == 0 {
        return None;
    }
    let (last, outer) = contract.m.split_last()?;
    let all = contract.m.iter().fold(Dim::one(), |all, axis| all * &axis.extent);
    let row = Dim::from(row_bytes(depth));
    // A block is whole iterations of the outer row axes, or any number of tiles.
    let least = if outer.is_empty() { Dim::from(TALLEST) * &row } else { &last.extent * &row };
    let elems = program.facts.simplify(&(all * row).min(BLOCK_BYTES.into()).max(least));
    // A place in memory has a size that the model's symbols tell.
    let known = elems.symbols().iter().all(|symbol| program.symbols.contains(symbol));
    known.then_some(elems)
}
