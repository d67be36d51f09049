//! The estimated time of a call, as a target states it.

use std::ops::Add;
use symshape::Dim;

/// The estimated time of a call: a formula of the call's dims. Negative times count as 0.
///
/// ```
/// use symshape::Dim;
/// use symshape_compiler::offload::CallCost;
///
/// # fn cost(rows: Dim) -> CallCost {
/// // 5 µs for the start, then 2 · rows · 256 · 64 operations at 100 GFLOP/s.
/// CallCost::nanoseconds(5_000) + CallCost::at_rate(rows * (2 * 256 * 64), 100_000_000_000)
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallCost {
    nanoseconds: Dim,
}

impl CallCost {
    /// A time in nanoseconds.
    pub fn nanoseconds(time: impl Into<Dim>) -> CallCost {
        CallCost { nanoseconds: time.into() }
    }

    /// The time of some work at a rate: `work` operations or bytes, `per_second` of them in a second, at least 1.
    pub fn at_rate(work: impl Into<Dim>, per_second: u64) -> CallCost {
        let nanoseconds =
            (work.into() * 1_000_000_000_i64).ceil_div(per_second.clamp(1, i64::MAX as u64) as i64);
        CallCost { nanoseconds }
    }

    /// The formula, in nanoseconds.
    pub fn formula(&self) -> &Dim {
        &self.nanoseconds
    }
}

impl Add for CallCost {
    type Output = CallCost;

    /// One after the other.
    fn add(self, other: CallCost) -> CallCost {
        CallCost { nanoseconds: self.nanoseconds + other.nanoseconds }
    }
}
