//! Reserves scratch memory for contractions whose left operand must be packed, or whose weights of few bits become
//! floats.
//!
//! Four kinds of operands are packed: integers of one byte, `f32` that tile registers multiply as bf16, `f32` that is
//! rounded to 8 bits, and `f32` whose rows are whole pages apart. Such rows would compete for the same few sets of a
//! first-level cache.
//!
//! Microkernels read groups of bytes along the reduction, widened on some machines, and padded at the end of a row. The
//! code generator packs one block of rows at a time, and chooses the format and the number of rows. This pass reserves
//! memory for a block of [`BLOCK_BYTES`], or for the smallest block that the code generator can use.
//!
//! Weights of few bits are unpacked if there are many rows: a tile of columns at a time, once for each block of rows.

use crate::{
    Result,
    kernel::{
        Buffer, BufferId, Contraction, FewBitsPanels, MemorySpace, Program, Rhs, SlidingWindows, Stmt,
        rounded_rows::RoundedRows,
    },
    scalar::Precision,
    target::LINE_BYTES,
};
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// The size of a block of rows, if it may have any number of rows.
const BLOCK_BYTES: i64 = 160 << 10;

/// As [`BLOCK_BYTES`], for tile registers. They multiply so fast that the right operand must be read less often, and
/// their machines have second-level caches of two megabytes.
const FAST_BLOCK_BYTES: i64 = 1 << 20;

/// As [`FAST_BLOCK_BYTES`], for vectors that multiply `f32`. Such blocks leave space for the result. A block of
/// [`FLOAT_ROWS`] rows may be larger.
const FLOAT_BLOCK_BYTES: i64 = 512 << 10;

/// The smallest number of rows for which the right operand is read once.
const FLOAT_ROWS: i64 = 84;

/// Rows of a block for which weights of few bits are unpacked once.
const UNPACKED_ROWS: i64 = 128;

/// Rows that microkernels multiply with weights of few bits at once, on most machines. They are not unpacked for fewer
/// rows.
const FEW_ROWS: i64 = 4;

/// The distance of rows of `f32` that are copied is a multiple of this.
const PAGE_BYTES: i64 = 4096;

/// The longest rows of `f32` that are copied. With longer ones, the panels that the tiles of a block share leave the
/// cache.
const MAX_FLOATS: i64 = 2048;

/// As [`MAX_FLOATS`], on machines with tile registers, which have larger second-level caches.
const FAST_MAX_FLOATS: i64 = 3072;

/// With this number of columns, copying a row is cheap compared to multiplying it.
const MIN_COLUMNS: i64 = 128;

/// The rows of the tallest tile of vector registers on any machine.
const TALLEST: i64 = 16;

/// The rows of the tallest tile of tile registers.
const FAST_TALLEST: i64 = 32;

/// The largest distance of packed rows of `depth` integers, in bytes: two bytes for each, rounded up to cache lines,
/// and one more line.
const fn row_bytes(depth: i64) -> i64 {
    lines(2 * depth) * LINE_BYTES + LINE_BYTES
}

/// The distance of copied rows of `bytes` bytes: an odd number of cache lines spreads them over all sets of a cache.
pub(super) const fn spread_row_bytes(bytes: i64) -> i64 {
    (lines(bytes) | 1) * LINE_BYTES
}

/// The number of cache lines that hold `bytes` bytes.
const fn lines(bytes: i64) -> i64 {
    (bytes + LINE_BYTES - 1) / LINE_BYTES
}

/// Reserves pack buffers for all contractions that microkernels multiply. Contractions that do not fit tile registers
/// multiply `f32`.
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
                // `Exact` is as fast as `F32` here, and more precise than `Bf16x3`.
                let is_wanted = matches!(contraction.precision, Precision::F32 | Precision::Bf16x3);

                if is_wanted && program.is_exact_in_bf16(contraction) {
                    contraction.precision = Precision::Exact;
                }

                // Contractions that no machine of the artefact multiplies as bf16 multiply `f32`.
                if !program.fits_bf16(contraction) {
                    contraction.precision = Precision::F32;
                }

                reserve_for_unpacking(program, facts, contraction);
                if let Some(elems) = required_bytes(program, facts, contraction) {
                    let lhs = contraction.lhs.buffer;
                    let pack_buffer = scratch(program, "rows", lhs, DType::U8, elems);
                    contraction.pack_buffer = Some(pack_buffer);
                }

                if contraction.pack_buffer.is_none() {
                    contraction.precision = Precision::F32;
                }
            }
            Stmt::Block(_) | Stmt::Strip { .. } => {}
        }
    }
}

/// Scratch memory for a part of a buffer.
fn scratch(program: &mut Program, part: &str, of: BufferId, dtype: DType, elems: Dim) -> BufferId {
    let name = format!("{part} of {}", program.buffers[of].name);
    program.buffers.push(Buffer { name, dtype, elems, space: MemorySpace::Scratch })
}

/// Reserves memory for weights of few bits as floats, if there may be many rows.
fn reserve_for_unpacking(program: &mut Program, facts: &Facts, contraction: &mut Contraction) {
    let is_rounded = matches!(&contraction.rhs, Rhs::FewBits(panels) if panels.form.rounds_lhs);
    let has_few_rows = is_rounded || facts.prove_le(&contraction.rows(), &FEW_ROWS.into()).is_yes();
    if has_few_rows || !program.microkernels.is_native() {
        return;
    }
    let elems = FewBitsPanels::unpacked_elems(contraction);
    if let Rhs::FewBits(panels) = &mut contraction.rhs
        && let Some(elems) = in_model(program, elems)
    {
        panels.unpack_buffer = Some(scratch(program, "columns", panels.buffer, DType::F32, elems));
    }
}

/// The largest distance of packed rows of `elems` bf16 elements, in bytes: whole rows of tile registers, and one more
/// cache line.
fn bf16_row_bytes(contraction: &Contraction, elems: &Dim) -> Dim {
    contraction.packed_bytes(elems) + LINE_BYTES
}

/// The bytes of a row that is multiplied as bf16.
fn bf16_row(program: &Program, contraction: &Contraction) -> Option<Dim> {
    let fits = contraction.precision != Precision::F32 && program.fits_bf16(contraction);
    let is_not_empty = program.facts.prove_le(&Dim::one(), &contraction.depth()).is_yes();
    (is_not_empty && fits).then(|| bf16_row_bytes(contraction, &contraction.depth()))
}

/// The bytes of a row of `f32` that is copied because its distance to the next is a multiple of [`PAGE_BYTES`].
fn paged_row(program: &Program, contraction: &Contraction, depth: i64) -> Option<i64> {
    let max_floats = if program.microkernels.has_tiles() { FAST_MAX_FLOATS } else { MAX_FLOATS };
    let (rhs, max_floats) = match &contraction.rhs {
        Rhs::Panels { buffer, .. } if program.buffers[*buffer].dtype == DType::F32 => (*buffer, max_floats),
        // Their panels are as short as the parts of a deep reduction.
        Rhs::FewBits(FewBitsPanels { buffer, unpack_buffer: Some(_), .. }) => (*buffer, i64::MAX),
        _ => return None,
    };
    let types = [contraction.dtype, program.buffers[contraction.lhs.buffer].dtype];
    let fits = types == [DType::F32; 2]
        && program.is_const(rhs)
        && contraction.precision == Precision::F32
        && depth <= max_floats
        && program.facts.prove_le(&MIN_COLUMNS.into(), &contraction.n.extent).is_yes();

    let last = contraction.m.last()?;
    let (step, _) = program.facts.linear_in(&contraction.lhs.index, &last.var).filter(|_| fits)?;
    let step_bytes = 4 * step.as_i64()?;
    if step_bytes == 0 || step_bytes % PAGE_BYTES != 0 {
        return None;
    }

    // A block consists of whole iterations of the last axis.
    let rows_bytes = &last.extent * (4 * depth);
    let is_short =
        contraction.m.len() == 1 || program.facts.prove_le(&rows_bytes, &BLOCK_BYTES.into()).is_yes();

    is_short.then_some(spread_row_bytes(4 * depth))
}

/// The bytes of a row of bf16 that machines without tile registers convert to `f32`.
fn widened_row(program: &Program, contraction: &Contraction) -> Option<Dim> {
    let is_half = program.buffers[contraction.lhs.buffer].dtype == DType::BF16;
    let depth = contraction.depth().as_i64().filter(|depth| *depth > 0)?;
    (is_half && program.accepts_bf16_lhs(contraction)).then(|| Dim::from(spread_row_bytes(4 * depth)))
}

/// The bytes of a row whose length is known at compile time, if the rows of this contraction are copied.
fn fixed_row(program: &Program, contraction: &Contraction) -> Option<Dim> {
    let depth = contraction.depth().as_i64().filter(|depth| *depth > 0)?;
    if let Rhs::FewBits(panels) = &contraction.rhs
        && panels.form.rounds_lhs
    {
        let words = RoundedRows::of(panels.form, depth)?.max_words();
        return Some(Dim::from(spread_row_bytes(4 * words)));
    }
    let row = paged_row(program, contraction, depth)
        .or_else(|| multiplies_bytes(program, contraction).then(|| row_bytes(depth)));
    row.map(Dim::from)
}

/// Whether the left operand consists of bytes, and the other one of constant integers.
fn multiplies_bytes(program: &Program, contraction: &Contraction) -> bool {
    let is_bytes = |dtype: DType| matches!(dtype, DType::U8 | DType::I8);
    let Rhs::Panels { buffer, .. } = &contraction.rhs else { return false };
    let rhs_dtype = program.buffers[*buffer].dtype;
    contraction.dtype == DType::I32
        && is_bytes(program.buffers[contraction.lhs.buffer].dtype)
        && program.is_const(*buffer)
        && (is_bytes(rhs_dtype) || rhs_dtype == DType::I16)
}

/// An upper bound of an extent over the model's symbols alone. If the extent contains variables of loops around, the
/// bound is its value in the first iteration, where that is the largest, or a constant.
fn in_symbols(program: &Program, facts: &Facts, extent: &Dim) -> Option<Dim> {
    let own = |symbol: &Symbol| program.symbols.contains(symbol);
    if extent.symbols().iter().all(own) {
        return Some(extent.clone());
    }
    let first = facts.simplify(&extent.substitute(&|symbol| (!own(symbol)).then(Dim::zero)));
    if facts.prove_le(extent, &first).is_yes() { Some(first) } else { facts.bounds(extent).hi.map(Dim::from) }
}

/// The bytes that a contraction needs for a block of rows, and for the right operand if it is packed too.
fn required_bytes(program: &Program, facts: &Facts, contraction: &Contraction) -> Option<Dim> {
    if !program.microkernels.is_native() {
        return None;
    }
    let bf16 = bf16_row(program, contraction);
    let extents: Vec<Dim> =
        contraction.m.iter().map(|axis| in_symbols(program, facts, &axis.extent)).collect::<Option<_>>()?;

    let has_pixels = bf16.is_some() && program.fits_tiles(contraction);
    let pixels = has_pixels.then(|| bytes_of_pixels(program, contraction, &extents)).flatten();
    let row = widened_row(program, contraction);
    let row = if pixels.is_some() { row } else { row.or(bf16).or_else(|| fixed_row(program, contraction)) };
    let rows = row.and_then(|row| bytes_of_rows(program, contraction, &extents, &row));
    let bytes = match (pixels, rows) {
        (Some(pixels), Some(rows)) => pixels.max(rows),
        (pixels, rows) => pixels.or(rows)?,
    };
    in_model(program, bytes)
}

/// The bytes of a block of rows of `row` bytes, and of the right operand if it is packed too.
fn bytes_of_rows(program: &Program, contraction: &Contraction, extents: &[Dim], row: &Dim) -> Option<Dim> {
    let (last, outer) = extents.split_last()?;
    let all = extents.iter().fold(Dim::one(), |all, extent| all * extent);
    let has_tiles = program.microkernels.has_tiles();
    let is_plain_f32 = contraction.dtype == DType::F32 && contraction.precision == Precision::F32;
    let tallest = if has_tiles { FAST_TALLEST } else { TALLEST };
    let block = if matches!(contraction.rhs, Rhs::FewBits(_)) {
        row * UNPACKED_ROWS
    } else if has_tiles && is_plain_f32 {
        (row * FLOAT_ROWS).max(FLOAT_BLOCK_BYTES.into())
    } else if has_tiles {
        FAST_BLOCK_BYTES.into()
    } else {
        BLOCK_BYTES.into()
    };

    // A block is whole iterations of the outer row axes, or any number of tiles.
    let min_block = if outer.is_empty() { Dim::from(tallest) * row } else { last * row };
    let rhs =
        if program.fits_bf16(contraction) { program.packed_rhs_bytes(contraction) } else { Dim::zero() };
    Some((all * row).min(block).max(min_block) + rhs + unrounded_bytes(contraction))
}

/// The bytes that precede rounded rows: a row of `f32`, in the order of the reduction.
fn unrounded_bytes(contraction: &Contraction) -> Dim {
    match &contraction.rhs {
        Rhs::FewBits(panels) if panels.form.rounds_lhs => {
            (contraction.depth() * 4).ceil_div(LINE_BYTES) * LINE_BYTES
        }
        _ => Dim::zero(),
    }
}

/// The bytes of the packed pixels of a block of rows, if the left operand consists of sliding windows.
fn bytes_of_pixels(program: &Program, contraction: &Contraction, extents: &[Dim]) -> Option<Dim> {
    let pixels = SlidingWindows::of(program, contraction)?;
    let (last, outer) = extents.split_last()?;
    let pixel = bf16_row_bytes(contraction, &pixels.run.into());
    let rows = if outer.is_empty() { last.clone().min(FAST_TALLEST.into()) } else { last.clone() };
    let all = pixels.span_of_all(outer, last) * &pixel;
    let min_block = pixels.span_of_rows(&rows) * &pixel;
    Some(all.min(FAST_BLOCK_BYTES.into()).max(min_block))
}

/// The simplified size, if it contains only the model's symbols. The size of a buffer must not contain others.
fn in_model(program: &Program, elems: Dim) -> Option<Dim> {
    let elems = program.facts.simplify(&elems);
    elems.symbols().iter().all(|symbol| program.symbols.contains(symbol)).then_some(elems)
}
