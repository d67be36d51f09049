//! Symbolic integers.
#![forbid(unsafe_code)]

mod assume;
mod bounds;
mod dim;
mod eval;
mod prove;
mod simplify;
mod text;

pub use assume::{Assumption, Comparison, Declaration, FactError, Facts, Relation};
pub use bounds::Bounds;
pub use dim::{Dim, Node, Symbol};
pub use eval::{EvalError, MAX_BITS};
pub use prove::{Answer, Counterexample, Proof};
pub use text::ParseError;
