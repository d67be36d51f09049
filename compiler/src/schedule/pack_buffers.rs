//! Scratch memory for contractions whose left factor no leaf reads as it lies: of integers of one byte, of `f32` that
//! tile registers multiply as bf16, and of `f32` whose rows are whole pages apart, which would compete for the same few
//! lines of a first-level cache.
//!
//! Leaves want groups of such integers along the reduction, widened on some machines, and with none missing at the end
//! of a row. A block of rows at a time is laid out so. How, and how many rows a block has, is the code generator's
//! business; here is only room for a block of [`BLOCK_BYTES`], or of the rows that it can't do with less of.

use crate::{
    Result,
    kernel::{Buffer, Contraction, MemorySpace, Program, Rhs, SlidingWindows, Stmt},
    scalar::Precision,
    target::LINE_BYTES,
};
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// Bytes of a block of rows, if it may have any number.
const BLOCK_BYTES: i64 = 160 << 10;

/// The same where tile registers multiply: they are so fast that the right factor is to be read less often, and machines
/// that have them have second-level caches of two megabytes.
const FAST_BLOCK_BYTES: i64 = 1 << 20;

/// The same there where vectors multiply `f32`: such blocks, or [`FLOAT_ROWS`] if those take more, leave room for the result.
const FLOAT_BLOCK_BYTES: i64 = 512 << 10;

/// Rows for which the right factor is read once, at least.
const FLOAT_ROWS: i64 = 84;

/// What rows of `f32` that are worth copying are apart.
const PAGE_BYTES: i64 = 4096;

/// Longest rows of `f32` that are copied: the tiles of a block share what they are multiplied by.
const MOST_FLOATS: i64 = 2048;

/// The same on machines with tile registers, whose second-level caches are large enough for longer ones.
const FAST_MOST_FLOATS: i64 = 3072;

/// Columns that make copying a row cheap beside multiplying it.
const MANY_COLUMNS: i64 = 128;

/// Rows of the tallest tile on any machine.
const TALLEST: i64 = 16;

/// The same on tile registers.
const FAST_TALLEST: i64 = 32;

/// Bytes from one laid out row of so many integers to the next, at most: two for each, whole cache lines, and one more.
const fn row_bytes(depth: i64) -> i64 {
    lines(2 * depth) * LINE_BYTES + LINE_BYTES
}

/// Cache lines that so many bytes take.
const fn lines(bytes: i64) -> i64 {
    (bytes + LINE_BYTES - 1) / LINE_BYTES
}

/// Reserves room for all such contractions that leaves of our own will multiply; those that tile registers can't multiply
/// become products of `f32`.
pub(super) fn reserve(program: &mut Program) -> Result<()> {
    let mut kernels = std::mem::take(&mut program.kernels);
    for kernel in &mut kernels {
        let facts = program.facts.clone();
        stmts(program, &facts, &mut kernel.body);
    }
    program.kernels = kernels;
    Ok(())
}

fn stmts(program: &mut Program, facts: &Facts, body: &mut [Stmt]) {
    for stmt in body {
        match stmt {
            Stmt::For { axis, body, .. } => {
                let mut facts = facts.clone();
                facts.declare_index(&axis.var, &axis.extent);
                stmts(program, &facts, body);
            }
            Stmt::While { body, .. } => stmts(program, facts, body),
            Stmt::If { then, otherwise, .. } => {
                stmts(program, facts, then);
                stmts(program, facts, otherwise);
            }
            Stmt::Contraction(contraction) => {
                // As fast as the one and more precise than the other.
                let is_wanted = matches!(contraction.precision, Precision::F32 | Precision::Bf16x3);
                if is_wanted && program.is_exact_in_bf16(contraction) {
                    contraction.precision = Precision::Exact;
                }
                // What no tile register takes is multiplied as `f32` on every machine.
                if !program.fits_tiles(contraction) {
                    contraction.precision = Precision::F32;
                }
                if let Some(elems) = needed(program, facts, contraction) {
                    let name = format!("rows of {}", program.buffers[contraction.lhs.buffer].name);
                    let room = Buffer { name, dtype: DType::U8, elems, space: MemorySpace::Scratch };
                    contraction.pack_buffer = Some(program.buffers.push(room));
                }
                if contraction.pack_buffer.is_none() {
                    contraction.precision = Precision::F32;
                }
            }
            Stmt::Block(_) | Stmt::Strip { .. } => {}
        }
    }
}

/// Bytes from one row of so many numbers as bf16 to the next, at most: whole rows of tile registers, and one more line.
fn bf16_row_bytes(contraction: &Contraction, numbers: &Dim) -> Dim {
    contraction.packed_bytes(numbers) + LINE_BYTES
}

/// Of a row, where a contraction is one that tile registers multiply as bf16.
fn bf16_row(program: &Program, contraction: &Contraction) -> Option<Dim> {
    let fits = contraction.precision != Precision::F32 && program.fits_tiles(contraction);
    let some = program.facts.prove_le(&Dim::one(), &contraction.depth()).is_yes();
    (some && fits).then(|| bf16_row_bytes(contraction, &contraction.depth()))
}

/// Of a row, where a contraction is one of `f32` whose rows are copied out of their pages.
fn paged_row(program: &Program, contraction: &Contraction, depth: i64) -> Option<i64> {
    let Rhs::Panels { buffer, .. } = &contraction.rhs else { return None };
    let right = &program.buffers[*buffer];
    let types = [contraction.dtype, program.buffers[contraction.lhs.buffer].dtype, right.dtype];
    let most_floats = if program.microkernels.has_tiles() { FAST_MOST_FLOATS } else { MOST_FLOATS };
    let fits = types == [DType::F32; 3]
        && matches!(right.space, MemorySpace::Const(_))
        && contraction.precision == Precision::F32
        && depth <= most_floats
        && program.facts.prove_le(&MANY_COLUMNS.into(), &contraction.n.extent).is_yes();
    let last = contraction.m.last()?;
    let (step, _) = program.facts.linear_in(&contraction.lhs.index, &last.var).filter(|_| fits)?;
    let step_bytes = 4 * step.as_i64()?;
    if step_bytes == 0 || step_bytes % PAGE_BYTES != 0 {
        return None;
    }
    // Copied rows of the last axis are a block, with those around it or alone.
    let rows_bytes = &last.extent * (4 * depth);
    let is_short =
        contraction.m.len() == 1 || program.facts.prove_le(&rows_bytes, &BLOCK_BYTES.into()).is_yes();
    // Copied rows are an odd number of cache lines apart.
    is_short.then_some((lines(4 * depth) | 1) * LINE_BYTES)
}

/// Of a row of bf16, which machines without tile registers copy out as `f32`.
fn widened_row(program: &Program, contraction: &Contraction) -> Option<Dim> {
    let is_half = program.buffers[contraction.lhs.buffer].dtype == DType::BF16;
    let depth = contraction.depth().as_i64().filter(|depth| *depth > 0)?;
    (is_half && program.accepts_bf16_lhs(contraction)).then(|| Dim::from((lines(4 * depth) | 1) * LINE_BYTES))
}

/// Of a row of so many numbers as are known when compiling, where a contraction is one whose rows are copied.
fn fixed_row(program: &Program, contraction: &Contraction) -> Option<Dim> {
    let bytes = |dtype: DType| matches!(dtype, DType::U8 | DType::I8);
    let Rhs::Panels { buffer, .. } = &contraction.rhs else { return None };
    let right = &program.buffers[*buffer];
    let fits = contraction.dtype == DType::I32
        && bytes(program.buffers[contraction.lhs.buffer].dtype)
        && matches!(right.space, MemorySpace::Const(_))
        && (bytes(right.dtype) || right.dtype == DType::I16);
    let depth = contraction.depth().as_i64().filter(|depth| *depth > 0)?;
    paged_row(program, contraction, depth).or_else(|| fits.then(|| row_bytes(depth))).map(Dim::from)
}

/// An upper bound of an extent over the model's symbols: where variables of loops around are part of it, it is largest in
/// the first iteration, or known otherwise.
fn in_symbols(program: &Program, facts: &Facts, extent: &Dim) -> Option<Dim> {
    let own = |symbol: &Symbol| program.symbols.contains(symbol);
    if extent.symbols().iter().all(own) {
        return Some(extent.clone());
    }
    let first = facts.simplify(&extent.substitute(&|symbol| (!own(symbol)).then(Dim::zero)));
    match facts.prove_le(extent, &first).is_yes() {
        true => Some(first),
        false => facts.bounds(extent).hi.map(Dim::from),
    }
}

/// Bytes for a block of rows, and for the right factor where it is laid out too, where a contraction is one that needs them.
fn needed(program: &Program, facts: &Facts, contraction: &Contraction) -> Option<Dim> {
    if !program.microkernels.is_native() {
        return None;
    }
    let bf16 = bf16_row(program, contraction);
    let extents: Vec<Dim> =
        contraction.m.iter().map(|axis| in_symbols(program, facts, &axis.extent)).collect::<Option<_>>()?;
    let pixels = bf16.as_ref().and_then(|_| of_pixels(program, contraction, &extents));
    let row = widened_row(program, contraction);
    let row = if pixels.is_some() { row } else { row.or(bf16).or_else(|| fixed_row(program, contraction)) };
    let rows = row.and_then(|row| of_rows(program, contraction, &extents, &row));
    let room = match (pixels, rows) {
        (Some(pixels), Some(rows)) => pixels.max(rows),
        (pixels, rows) => pixels.or(rows)?,
    };
    in_model(program, room)
}

/// Bytes for a block of rows of so many bytes, and for the right factor where it is laid out too.
fn of_rows(program: &Program, contraction: &Contraction, extents: &[Dim], row: &Dim) -> Option<Dim> {
    let (last, outer) = extents.split_last()?;
    let all = extents.iter().fold(Dim::one(), |all, extent| all * extent);
    let (block, tallest) = match program.microkernels.has_tiles() {
        true if contraction.dtype == DType::F32 && contraction.precision == Precision::F32 => {
            ((row * FLOAT_ROWS).max(FLOAT_BLOCK_BYTES.into()), FAST_TALLEST)
        }
        true => (FAST_BLOCK_BYTES.into(), FAST_TALLEST),
        false => (BLOCK_BYTES.into(), TALLEST),
    };
    // A block is whole iterations of the outer row axes, or any number of tiles.
    let least = if outer.is_empty() { Dim::from(tallest) * row } else { last * row };
    let right = match program.fits_tiles(contraction) {
        true => program.packed_rhs_bytes(contraction),
        false => Dim::zero(),
    };
    Some((all * row).min(block).max(least) + right)
}

/// Bytes for the pixels of a block of rows, where the left factor has such.
fn of_pixels(program: &Program, contraction: &Contraction, extents: &[Dim]) -> Option<Dim> {
    let pixels = SlidingWindows::of(program, contraction)?;
    let (last, outer) = extents.split_last()?;
    let pixel = bf16_row_bytes(contraction, &pixels.run.into());
    let rows = if outer.is_empty() { last.clone().min(FAST_TALLEST.into()) } else { last.clone() };
    let (all, least) = (pixels.span_of_all(outer, last) * &pixel, pixels.span_of_rows(&rows) * &pixel);
    Some(all.min(FAST_BLOCK_BYTES.into()).max(least))
}

/// A size, where the model's symbols tell it, as they must that of a place in memory.
fn in_model(program: &Program, elems: Dim) -> Option<Dim> {
    let elems = program.facts.simplify(&elems);
    elems.symbols().iter().all(|symbol| program.symbols.contains(symbol)).then_some(elems)
}
