//! Symbolic integers: expressions with `+ - * // % min max` over named integers whose values are not known yet, and
//! a decision procedure for them. Arithmetic is exact at any size; division rounds towards negative infinity.
//!
//! ```
//! use symshape::{Declaration, Dim, Facts, Symbol};
//!
//! let mut facts = Facts::new();
//! facts.declare(&Symbol::new("N"), Declaration::range(1, 4096).origin("input `x`, axis 0"))?;
//! facts.declare(&Symbol::new("S"), Declaration::range(8, 512).step(8, 0))?;
//! let (n, s) = (Dim::symbol("N"), Dim::symbol("S"));
//! facts.declare_index(&Symbol::new("i"), &s); // 0 <= i < S
//!
//! // Simplify: recover the row from the flattened index (n, i).
//! let row: Dim = "(n*S + i)//S".parse().unwrap();
//! assert_eq!(facts.simplify(&row).to_string(), "n");
//! // Bound: padding to a multiple of 64 wastes at most 63.
//! assert_eq!(facts.bounds(&(n.ceil_div(64) * 64 - &n)).hi, Some(63.into()));
//! // Prove, with a certificate that an independent checker replays; or refute, with values.
//! assert!(facts.divides(&4.into(), &(&n * &s)).is_yes());
//! assert!(facts.prove_le(&s, &n).is_no());
//! # Ok::<(), symshape::FactError>(())
//! ```
//!
//! # Guarantees
//! - **Every answer is sound.** A simplified term equals its input wherever the input has a value. A bound holds for
//!   every value that the facts allow. A proof can be [checked](Proof::check). `Unknown` is always a valid answer.
//! - A divisor must be proven to differ from 0 before any rule touches its quotient.
//! - Answers depend on the input alone: limits count steps, never time.
//! - No input causes a panic, endless recursion or unbounded memory use: terms that are too large stay unchanged.
//!
//! # Scope and limits
//! Polynomials are decided by their normal form. Quotients and remainders by integers or by products of symbols are
//! split, merged and cancelled by [`RULES`]; extents that are symbols bound indices. Inequalities are shown by
//! eliminating one atom after the other, which is complete for products of independent ranges and strong for
//! quasi-affine terms. Three classes are mostly out of reach unless the domain is small enough to try every point:
//! inductions, case splits other than on a minimum or a sign, and divisors that are sums.
//!
//! # Modules
//!
//! | stage | module | contents |
//! |---|---|---|
//! | terms | `dim`, `text`, `eval`, `order` | [`Dim`]: build, count operations, print, parse, evaluate, order |
//! | facts | `assume`, `answers` | [`Facts`]: ranges, steps, values, symbolic bounds, relations, each with its origin; answers kept |
//! | arithmetic | `poly`, `mono`, `int`, `memo` | polynomials over numbered atoms, exact integers |
//! | engine | `engine` | normal forms, rewrite rules, bounds, and the log of a derivation |
//! | proofs | `prove`, `sample`, `check` | bounds, counterexamples, cases, exhaustion; certificates and their checker |
//! | results | `render`, `simplify` | the form with the fewest operations |
//! | many terms | `loop_forms`, `normal_forms` | forms that share work, by place in loops; comparisons |
//! | relations | `relate` | the shortest relation that holds for the same values |
//! | text queries | [`query`] | one line in, one line out |
#![forbid(unsafe_code)]

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod answers;
mod assume;
mod check;
mod dim;
mod engine;
mod eval;
mod int;
mod loop_forms;
mod memo;
mod mono;
mod normal_forms;
mod order;
mod poly;
mod prove;
pub mod query;
mod relate;
mod render;
mod sample;
mod simplify;
mod text;

pub use assume::{Assumption, Comparison, Declaration, FactError, Facts, Relation};
pub use check::Flaw;
pub use dim::{Dim, Node, Symbol};
pub use engine::bounds::Bounds;
pub use engine::proof::Proof;
pub use engine::rules::{RULES, Rule};
pub use eval::{EvalError, MAX_BITS};
pub use normal_forms::{Displacement, NormalForms};
pub use prove::{Answer, Counterexample};
pub use text::ParseError;
