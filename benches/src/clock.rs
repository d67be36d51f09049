//! The clock frequency of a core, measured by the time of a chain of dependent instructions. It is lower while
//! multiply-adds and loads need more power.

use std::{hint::black_box, time::Instant};

/// Steps of the chain. They take less than a microsecond, because the clock changes soon after heavy work, and the
/// core stops during the change.
const STEPS: u64 = 600;

/// Steps of the chain a second. A step takes the same number of cycles at all readings on a machine.
pub fn speed() -> f64 {
    // The first run loads the code into the caches.
    chain(STEPS / 10);
    STEPS as f64 / chain(STEPS)
}

/// The time of `steps` steps in seconds.
fn chain(steps: u64) -> f64 {
    let factor = black_box(0x9e37_79b9_7f4a_7c15);
    let begin = Instant::now();
    black_box((0..steps).fold(black_box(1u64), |x, _| x.wrapping_mul(factor) ^ factor));
    begin.elapsed().as_secs_f64()
}
