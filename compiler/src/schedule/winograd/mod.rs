//! Convolutions at stride 1 or 2 by fewer multiplications: Winograd's minimal filtering.
//!
//! A tile of `m × m` outputs needs `(m + 2)²` multiplications for each pair of channels instead of `9 m²`, if tiles
//! and filters are written in another basis ([`basis`]). Filters change their basis here, at compile time. Tiles are
//! processed in blocks:
//!
//! ```text
//! for block of tiles {
//!   for tile { strip c { V[point][tile][c] = the tile's inputs in the other basis } }
//!   for point in 0..(m + 2)² { M[point] = V[point] · U[point] }
//!   for tile { strip n { outputs = M[..][tile][n] in the old basis; the epilogue of each } }
//! }
//! ```
//!
//! Windows of 3×3 taps have tiles on both axes. Other windows have tiles of `m` outputs along one axis, with `m + 2`
//! points. They are sums of slices of three taps, and the last slice may have fewer: a window of 5×7 taps has 15
//! slices, and one of 3×3×3 taps has three slices of 3×3. `V` then has the channels of all slices, so `M` is their sum.
//! Windows with a dilation have none after a division of their axis ([`split`]).
//!
//! At stride 2, a tile has `(2 m + 1)²` points instead of `9 m²` products ([`basis`]). They are four groups: by even or
//! odd rows and columns of inputs. The middle tap has one filter for `m` points, so `U` has `(m + 2)²` filters.
//!
//! Tiles at the end of an axis are smaller, and have separate loops. Inputs beyond the image count as zero, and
//! outputs beyond it are not stored. Every output is computed from its tile alone, in an order that depends only on
//! its position in the image.
//!
//! Convolutions of bytes are transformed too, and remain exact. In the other basis, inputs and filters are integers of
//! 16 bits, and sums wrap around in 32 bits without changing the result. This needs an instruction that multiplies
//! pairs of 16 bits. It doesn't pay on machines with tile registers for bytes. Microkernels that are emitted as loops
//! keep the plain filters, which are a quarter or half as large.
//!
//! The choice of a form depends on the size of an image, never on the batch ([`choice`]). Otherwise the bits of an
//! image would depend on the batch. If sizes vary, small images and large ones may have different forms.

mod basis;
mod blocks;
mod choice;
mod filters;
mod form;
mod recognise;
mod split;
mod tiles;

use super::fresh_symbols::FreshSymbols;
use crate::{
    Result,
    kernel::{Kernel, Program, Stmt, verify},
};
use choice::Variant;
use recognise::Convolution;
use symshape::Dim;

/// Rewrites the convolutions for which it pays.
pub(super) fn transform(program: &mut Program) -> Result<()> {
    if !program.microkernels.is_native() {
        return Ok(());
    }
    let weight_bytes = program.const_bytes();
    let mut symbols = FreshSymbols::new(program);
    for at in 0..program.kernels.len() {
        let Some(convolution) = Convolution::of(program, &program.kernels[at], &mut symbols) else {
            continue;
        };
        if convolution.is_whole && (!multiplies_pairs(program) || convolution.channels % 2 != 0) {
            continue;
        }

        let variants = choice::variants(&convolution, program.microkernels.multiplies_bytes(), weight_bytes);
        let before = (!convolution.is_fixed()).then(|| (program.buffers.clone(), program.weights.clone()));
        match (written(program, &mut symbols, &convolution, at, &variants), before) {
            (Some(body), None) => program.kernels[at].body = body,
            (Some(body), Some(_)) if is_proven(program, at, &body) => program.kernels[at].body = body,
            (_, Some(before)) => (program.buffers, program.weights) = before,
            (None, None) => {}
        }
    }
    Ok(())
}

/// The body of the kernel at `at`, with the statements of each variant. `None` if it stays plain.
fn written(
    program: &mut Program,
    symbols: &mut FreshSymbols,
    convolution: &Convolution,
    at: usize,
    variants: &[Variant],
) -> Option<Vec<Stmt>> {
    let has_plain = convolution.remainder.is_some() || variants.iter().any(|variant| variant.form.is_none());
    let mut body = Vec::new();
    for (idx, variant) in variants.iter().enumerate() {
        let Some(form) = variant.form else {
            body.extend(program.kernels[at].body.iter().map(|stmt| where_selected(stmt, &variant.selected)));
            continue;
        };
        let keep_panels = has_plain || idx + 1 < variants.len();
        let filters = convolution.filters(program, form, keep_panels)?;
        body.extend(blocks::write(program, symbols, convolution, form, filters, &variant.selected));
        body.extend(convolution.remainder.iter().map(|stmt| where_selected(stmt, &variant.selected)));
    }
    variants.iter().any(|variant| variant.form.is_some()).then_some(body)
}

/// Whether the memory rules are proven for the kernel at `at` with another body. Images of one size need no such
/// proof, because their addresses are linear.
fn is_proven(program: &Program, at: usize, body: &[Stmt]) -> bool {
    let kernel = Kernel { body: body.to_vec(), ..program.kernels[at].clone() };
    verify::is_proven(program, &kernel)
}

/// A contraction, with no rows unless it is selected.
fn where_selected(stmt: &Stmt, selected: &Dim) -> Stmt {
    let mut stmt = stmt.clone();
    if let Stmt::Contraction(contraction) = &mut stmt {
        contraction.m[0].extent = &contraction.m[0].extent * selected;
    }
    stmt
}

/// Whether integers of 16 bits are multiplied at half the speed of bytes or faster. Tile registers multiply bytes at
/// eight times the speed of vectors.
fn multiplies_pairs(program: &Program) -> bool {
    let support = program.microkernels;
    !support.has_tiles() && (support.sums_pairs() || !support.multiplies_bytes())
}
