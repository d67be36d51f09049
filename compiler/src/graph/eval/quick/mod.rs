//! Operators over `f32` in whole rows and on all cores, for [`Rounding::Quick`](super::Rounding::Quick).
//!
//! The reference evaluator visits one element at a time. Trial runs need whole models at usual sizes, so the frequent
//! operators have a second form here: contractions are matrix multiplications, and elementwise operators, views and
//! reductions work on slices. Everything else is evaluated from its definition. Several calls run together, see
//! [`lanes`]. Results are the same for any number of threads.

mod contraction;
mod functions;
mod lanes;
mod lazy;
mod map;
mod matrix;
mod multiply;
mod offsets;
mod parts;
mod reduce;
mod source;
mod steps;
mod threads;
mod wide;

pub(super) use lanes::{Call, outputs};
