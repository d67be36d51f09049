//! Convolutions with 3×3 windows at stride 1 by fewer products: Winograd's minimal filtering.
//!
//! A tile of `m × m` outputs needs `(m + 2)²` products for each pair of channels instead of `9 m²`, once tiles and
//! filters are written in another basis ([`form`]): the filters here, at compile time, a block of tiles at a time as
//!
//! ```text
//! for block of tiles {
//!   for tile { strip c { V[point][tile][c] = the tile's inputs in the other basis } }
//!   for point in 0..(m + 2)² { M[point] = V[point] · U[point] }
//!   for tile { strip n { outputs = M[..][tile][n] in the old basis; the epilogue of each } }
//! }
//! ```
//!
//! Tiles on the far border are smaller: what they would read beyond the input counts as zero, what they would write
//! beyond the output is left out, each in loops of their own. Every output is computed from its tile alone, in an
//! order that nothing but its place in the image decides.
//!
//! Bytes are multiplied so too, exactly: in the other basis inputs and filters are integers of 16 bits, sums wrap around
//! in 32 and come out right. Machines that multiply four bytes in one step gain nothing by it. Leaves that are emitted as
//! loops keep the plain filters, which are a quarter or half as large.
//!
//! Whether and how is decided by extents that the model fixes, never by the batch: the bits of an image would depend on
//! it otherwise.

mod blocks;
mod form;
mod recognise;

use super::fresh_symbols::FreshSymbols;
use crate::{Result, kernel::Program};
use form::Form;
use recognise::Convolution;

/// Rewrites the convolutions that gain by it.
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

/// Steps that the change of basis of a tile takes for each channel, as multiply-adds of one lane: inputs and outputs.
const fn change_cost(form: &Form, is_whole: bool) -> (i64, i64) {
    match (form.outputs(), is_whole) {
        (2, false) => (70, 60),
        (_, false) => (220, 200),
        // Products of pairs are faster than those of floats, by which the rest is measured.
        (2, true) => (120, 110),
        (_, true) => (380, 350),
    }
}

/// Reading a weight from beyond the second-level cache takes as long as so many multiply-adds with it.
const ROWS_TO_HIDE_READING: i64 = 11;

/// A form must be estimated to take less than this part of the plain convolution's time.
const WORTH_IT: (i64, i64) = (9, 10);

/// The form that is estimated to take the least time for the smallest batch, if one is faster than none.
fn cheapest(convolution: &Convolution) -> Option<&'static Form> {
    let [height, width] = convolution.least_size();
    let (c, n) = (convolution.channels, convolution.columns);
    let lanes = |channels: i64| (channels as u64).next_multiple_of(8) as i64;
    let plain = (9 * c * n).checked_mul((height * width).max(ROWS_TO_HIDE_READING))?;
    let cost = |form: &Form| {
        let m = form.outputs() as i64;
        let tiles = ((height + m - 1) / m) * ((width + m - 1) / m);
        let points = (form.inputs() * form.inputs()) as i64;
        let (before, after) = change_cost(form, convolution.is_whole);
        let products = points * c * n * tiles.max(ROWS_TO_HIDE_READING);
        products + tiles * (before * lanes(c) + after * lanes(n))
    };
    let fits = |form: &&Form| convolution.allows(form);
    let best = convolution.forms().iter().filter(fits).min_by_key(|form| cost(form))?;
    (cost(best) * WORTH_IT.1 < plain * WORTH_IT.0).then_some(best)
}
