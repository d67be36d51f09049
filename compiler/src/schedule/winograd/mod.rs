//! Convolutions with 3×3 windows at stride 1 by fewer multiplications: Winograd's minimal filtering.
//!
//! A tile of `m × m` outputs needs `(m + 2)²` multiplications for each pair of channels instead of `9 m²`, if tiles
//! and filters are written in another basis ([`form`]). Filters change their basis here, at compile time. Tiles are
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
//! Tiles at the end of an axis are smaller, and have separate loops. Inputs beyond the image count as zero, and
//! outputs beyond it are not stored. Every output is computed from its tile alone, in an order that depends only on
//! its position in the image.
//!
//! Convolutions of bytes are transformed too, and remain exact. In the other basis, inputs and filters are integers of
//! 16 bits, and sums wrap around in 32 bits without changing the result. On machines that multiply four bytes in one
//! step this does not pay. Microkernels that are emitted as loops keep the plain filters, which are a quarter or half
//! as large.
//!
//! The choice of a form depends on extents that the model fixes, never on the batch. Otherwise the bits of an image
//! would depend on the batch.

mod blocks;
mod filters;
mod form;
mod recognise;

use super::fresh_symbols::FreshSymbols;
use crate::{Result, kernel::Program};
use form::Form;
use recognise::Convolution;

/// Rewrites the convolutions for which it pays.
pub(super) fn transform(program: &mut Program) -> Result<()> {
    if !program.microkernels.is_native() {
        return Ok(());
    }
    let mut symbols = FreshSymbols::new(program);
    for at in 0..program.kernels.len() {
        let Some(convolution) = Convolution::of(program, &program.kernels[at]) else { continue };
        if convolution.is_whole && (program.microkernels.multiplies_bytes() || convolution.channels % 2 != 0)
        {
            continue;
        }

        let Some(form) = cheapest(&convolution) else { continue };
        let Some(filters) = convolution.filters(program, form) else { continue };
        program.kernels[at].body = blocks::write(program, &mut symbols, &convolution, form, filters);
    }
    Ok(())
}

/// The cost for each channel of the change of basis of a tile's inputs and outputs, in multiply-adds of one lane.
const fn change_cost(form: &Form, is_whole: bool) -> (i64, i64) {
    match (form.outputs(), is_whole) {
        (2, false) => (70, 60),
        (_, false) => (220, 200),
        // Multiply-adds of pairs, the unit here, are faster than those of floats.
        (2, true) => (120, 110),
        (_, true) => (380, 350),
    }
}

/// The number of rows whose multiply-adds take as long as reading their weight from beyond the second-level cache.
const ROWS_TO_HIDE_READING: i64 = 11;

/// The largest ratio of a form's estimated time to that of the plain convolution.
const MAX_RATIO: (i64, i64) = (9, 10);

/// The form with the smallest estimated time for one image, if it is faster than the plain convolution.
fn cheapest(convolution: &Convolution) -> Option<&'static Form> {
    let [height, width] = convolution.min_size();
    let c = convolution.channels;
    let n = convolution.columns;
    let lanes = |channels: i64| (channels as u64).next_multiple_of(8) as i64;
    let plain = (9 * c * n).checked_mul((height * width).max(ROWS_TO_HIDE_READING))?;

    let cost = |form: &Form| {
        let m = form.outputs() as i64;
        let tiles = ((height + m - 1) / m) * ((width + m - 1) / m);
        let points = (form.inputs() * form.inputs()) as i64;
        let (before, after) = change_cost(form, convolution.is_whole);
        let multiplications = points * c * n * tiles.max(ROWS_TO_HIDE_READING);
        multiplications + tiles * (before * lanes(c) + after * lanes(n))
    };

    let fits = |form: &&Form| convolution.allows(form);
    let best = convolution.forms().iter().filter(fits).min_by_key(|form| cost(form))?;
    (cost(best) * MAX_RATIO.1 < plain * MAX_RATIO.0).then_some(best)
}
