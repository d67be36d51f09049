//! The report of an accuracy check: its calls and their errors.

use std::fmt::{self, Display, Formatter};

/// A call of an accuracy check.
#[derive(Clone, PartialEq, Debug)]
pub struct TrialCall {
    /// Its sizes: `N=8,S=128`. Empty if the model has no symbols.
    pub at: String,
    /// Largest difference of an output, relative to its largest element. Infinite if shapes, integers, infinities or
    /// NaNs differ.
    pub error: f64,
}

/// The calls of an accuracy check, and how much of the model has the lower precision after it.
#[derive(Clone, PartialEq, Debug)]
pub struct TrialReport {
    /// The calls, at the smallest sizes first.
    pub calls: Vec<TrialCall>,
    /// Contractions that the check ran at the lower precision.
    pub contractions: usize,
    /// The share of the multiplications, between 0 and 1, that these contractions have at the largest sizes of the
    /// check.
    pub share: f64,
}

impl TrialReport {
    /// The largest error of a call.
    pub fn max_error(&self) -> f64 {
        self.calls.iter().map(|call| call.error).fold(0.0, f64::max)
    }

    /// The call with the largest error.
    pub(super) fn worst(&self) -> Option<&TrialCall> {
        self.calls.iter().max_by(|a, b| a.error.total_cmp(&b.error))
    }
}

impl Display for TrialReport {
    /// One line: the share of the model, and the error at each size.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let plural = if self.contractions == 1 { "" } else { "s" };
        let share = 100.0 * self.share;
        write!(f, "{} contraction{plural} with {share:.1}% of the multiplications ran", self.contractions)?;
        f.write_str(" on seeded inputs; the outputs are off by ")?;
        for (idx, call) in self.calls.iter().enumerate() {
            let comma = if idx == 0 { "" } else { ", " };
            let at = if call.at.is_empty() { String::new() } else { format!(" at {}", call.at) };
            write!(f, "{comma}{:.1e}{at}", call.error)?;
        }
        Ok(())
    }
}
