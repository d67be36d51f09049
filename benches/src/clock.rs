//! The clock that a core runs at, which is lower where multiply-adds and loads together need more power: told by how long
//! a chain of instructions takes that each wait for the one before.

use std::{hint::black_box, time::Instant};

/// Steps of the chain: less than a microsecond, as the clock changes, and the core stands still for it, soon behind heavy
/// work.
const STEPS: u64 = 600;

/// Steps of the chain a second; what they are in cycles is the same for all readings on a machine.
pub fn speed() -> f64 {
    // The first time, clock and chain come from memory.
    chain(STEPS / 10);
    STEPS as f64 / chain(STEPS)
}

/// Seconds of so many steps.
fn chain(steps: u64) -> f64 {
    let factor = black_box(0x9e37_79b9_7f4a_7c15);
    let begin = Instant::now();
    black_box((0..steps).fold(black_box(1u64), |x, _| x.wrapping_mul(factor) ^ factor));
    begin.elapsed().as_secs_f64()
}
