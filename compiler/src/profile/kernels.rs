//! The times of the kernels of a call.

use super::{demand::Demand, machine::Bound};
use std::ops::Range;

/// The times of all kernels at some sizes.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    /// The sizes, as in `N=8,S=128`; with the range of given lengths, as in `N=2,T=60,S=12..48`.
    pub at: String,
    /// Median time of a usual call on one thread, in nanoseconds.
    pub call_ns: f64,
    /// The kernels in the order in which they run.
    pub kernels: Vec<KernelProfile>,
}

/// The time of one kernel, of a control-flow region of the model with all its kernels, or of kernels that run for one
/// sequence of a ragged batch after another.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelProfile {
    /// Indices of the kernels in the program.
    pub kernels: Range<usize>,
    /// Median time in nanoseconds.
    pub ns: f64,
    /// The arithmetic and the bytes of one call.
    pub demand: Demand,
    /// Lower bound of the time on this machine. `None` if the demand depends on data.
    pub bound: Option<Bound>,
}

impl KernelProfile {
    /// The part of the machine's speed that the kernel reaches: 1 if its time is the bound.
    pub fn share(&self) -> Option<f64> {
        self.bound.map(|bound| bound.ns / self.ns.max(1.0))
    }
}
