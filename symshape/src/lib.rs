//! Symbolic integers.
#![forbid(unsafe_code)]

mod assume;
mod atoms;
mod bounds;
mod check;
mod dim;
mod egraph;
mod eval;
mod int;
mod normal;
mod order;
mod poly;
mod proof;
mod prove;
pub mod query;
mod render;
mod rules;
mod sample;
mod simplify;
mod text;

pub use assume::{Assumption, Comparison, Declaration, FactError, Facts, Relation};
pub use bounds::Bounds;
pub use check::Flaw;
pub use dim::{Dim, Node, Symbol};
pub use eval::{EvalError, MAX_BITS};
pub use proof::Proof;
pub use prove::{Answer, Counterexample};
pub use rules::{RULES, Rule};
pub use text::ParseError;
