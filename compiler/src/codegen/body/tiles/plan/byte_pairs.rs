//! Constant weights whose products with bytes are added in pairs of 16 bits.

use crate::{
    codegen::microkernel::contraction::{MAX_PAIR, PANEL},
    kernel::{BufferId, Contraction, MemorySpace, Program},
};

/// Whether no sum of two products can exceed 16 bits, for all values of the lhs: see [`MAX_PAIR`].
///
/// A group of four bytes may begin anywhere in a column, so all adjacent weights of a column are checked. A weight that
/// is paired with zero always fits.
pub(super) fn pairs_fit(program: &Program, contraction: &Contraction, weights: BufferId) -> bool {
    let MemorySpace::Const(tensor) = &program.buffers[weights].space else { return false };
    let Some(depth) = contraction.depth().as_i64().filter(|depth| *depth > 0) else { return false };
    let fits = |(first, second): (&u8, &u8)| {
        let sum = i16::from(*first as i8) + i16::from(*second as i8);
        sum.abs() <= MAX_PAIR
    };

    tensor.all_parts(depth as usize * PANEL, |panel| panel.iter().zip(&panel[PANEL..]).all(fits))
}
