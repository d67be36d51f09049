//! Division of contractions among threads, and the height of tiles, on which it depends.
//!
//! The driver and the kernels must agree on these sizes, so they depend on nothing that only one of them knows.

use super::{
    isa::Isa,
    rhs::{RhsReads, few_bits_code},
};
use crate::{
    codegen::{
        body::body_builder::linear_parts,
        microkernel::contraction::{
            AMX_ROWS, BlockDot, FewBitsCode, PANEL, WIDE_ROWS, max_few_bits_rows, max_rows,
            max_rows_of_one_vector,
        },
    },
    kernel::{Contraction, FewBitsPanels, Program, Rhs},
    scalar::Precision,
    target::{LINE_BYTES, PAGE_BYTES},
};
use num_integer::Integer;
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Columns that are not divided among threads where there are many: those of a wide tile.
const WIDE_COLUMNS: i64 = 64;

/// Wide tiles from which on there are many columns.
const MANY_WIDE_TILES: i64 = 8;

/// Cache lines that have different places in a first-level cache.
const LINES_OF_PAGE: i64 = PAGE_BYTES / LINE_BYTES;

/// Ways of the first-level cache that are kept for the rhs and the result.
const RESERVED_WAYS: usize = 2;

/// Bytes that the weights of a wide tile of integers have at most: about a first-level cache.
const WIDE_TILE_BYTES: i64 = 32 << 10;

/// Columns that are not divided among threads: cache lines of the result, and wide tiles where there are many.
pub(crate) fn column_step(facts: &Facts, contraction: &Contraction) -> i64 {
    let many = MANY_WIDE_TILES * WIDE_COLUMNS;
    let has_many = facts.bounds(&contraction.n.extent).lo.is_some_and(|lo| lo >= many.into());
    if has_many { WIDE_COLUMNS } else { PANEL as i64 }
}

/// Whether the rhs is unpacked for more rows than one tile has.
pub(super) fn unpacks(contraction: &Contraction) -> bool {
    matches!(contraction.rhs, Rhs::FewBits(FewBitsPanels { unpack_buffer: Some(_), .. }))
}

/// Number of row units that are divided among threads: tiles where there is one row axis, else iterations of the outer
/// axes.
pub(crate) fn row_units(program: &Program, contraction: &Contraction, isa: &Isa) -> Dim {
    match contraction.m.split_last() {
        Some((last, [])) => {
            // Fewer rows than are unpacked for form one tile.
            let reads = if unpacks(contraction) { RhsReads::Unpacked } else { RhsReads::Stored };
            let isa = isa.of_contraction(contraction);
            last.extent.ceil_div(max_tile_rows(program, contraction, &isa, reads) as i64)
        }
        Some(_) => contraction.outer_rows(),
        None => Dim::one(),
    }
}

/// Whether tiles have a single vector of columns although a panel has several.
fn is_one_vector(contraction: &Contraction, isa: &Isa) -> bool {
    let lanes = isa.shape.lanes;
    let is_f32 = contraction.dtype == DType::F32 && contraction.precision == Precision::F32;
    is_f32 && lanes < PANEL && contraction.n.extent.as_i64().is_some_and(|columns| columns <= lanes as i64)
}

/// Whether tiles of integers have four vectors of columns and few rows.
///
/// They read 10 vectors for 24 multiplications, where tiles of two vectors read 16 for 28. The bytes of a row of
/// results fill a cache line. But they read the weights more often, so these must be near.
fn has_wide_tiles(contraction: &Contraction, isa: &Isa) -> bool {
    let is_long = isa.shape.lanes == PANEL && isa.shape.registers >= 32;
    let (Some(depth), Some(columns)) = (contraction.depth().as_i64(), contraction.n.extent.as_i64()) else {
        return false;
    };
    let is_near = depth <= WIDE_TILE_BYTES / WIDE_COLUMNS;
    is_long && contraction.dtype == DType::I32 && columns % WIDE_COLUMNS == 0 && is_near
}

/// Largest number of rows of a tile: as many as have registers for their accumulators, and as fit the first-level cache
/// together. Rows at a distance of a page, or of half a page, compete for the same lines of it.
pub(super) fn max_tile_rows(
    program: &Program,
    contraction: &Contraction,
    isa: &Isa,
    reads: RhsReads,
) -> usize {
    if isa.shape.tiles && program.on_tiles(contraction) {
        return AMX_ROWS;
    }
    let by_registers = match &contraction.rhs {
        Rhs::FewBits(panels) if reads == RhsReads::Stored => {
            let code = few_bits_code(panels.form);
            // The number of rows does not depend on the multiplication.
            let dot = panels.form.rounds_lhs.then_some(BlockDot::Pairs);
            code.map_or(1, |code| max_few_bits_rows(isa.shape, FewBitsCode { dot, ..code }))
        }
        _ if is_one_vector(contraction, isa) => max_rows_of_one_vector(isa.shape),
        _ if has_wide_tiles(contraction, isa) => WIDE_ROWS,
        _ => max_rows(isa.shape),
    };
    if isa.shape.bf16_matrix_dots && program.on_bf16_matrices(contraction) {
        return by_registers;
    }
    // Packed rows are dense. Operands of other types than f32 are packed, or read in place in small groups.
    let lhs_is_f32 = program.buffers[contraction.lhs.buffer].dtype == DType::F32;
    let is_copied = contraction.pack_buffer.is_some() && contraction.precision == Precision::F32;
    if contraction.dtype != DType::F32 || !lhs_is_f32 || is_copied {
        return by_registers;
    }

    let row = contraction
        .m
        .last()
        .and_then(|last| linear_parts(&Facts::default(), &contraction.lhs.index, Some(&last.var)));
    let Some(row_bytes) = row.and_then(|(step, _)| Some(4 * step.as_i64()?)) else { return by_registers };
    if row_bytes == 0 || row_bytes % LINE_BYTES != 0 {
        return by_registers;
    }
    let places = LINES_OF_PAGE / (row_bytes / LINE_BYTES).gcd(&LINES_OF_PAGE);
    by_registers.min((isa.caches.l1_ways - RESERVED_WAYS) * places as usize)
}
