//! How the evaluator rounds floats.

/// How floats are rounded to their type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest. Sums and products are computed in double precision and rounded once, at the end.
    Last,
    /// Sums and products round at each step, in single precision at least and in order of the terms. Every other `f32`
    /// of an elementwise operator rounds to the next float beyond the exact result. The difference from
    /// [`Rounding::Last`] shows the effect of rounding on this graph and these inputs. It bounds the error of other
    /// summation orders and of other approximations of the same functions.
    Each,
    /// As [`Rounding::Last`], but contractions of `f32` sum in `f32`, in blocks. Frequent operators work on slices, so
    /// that trial runs of whole models are fast.
    Quick,
}
