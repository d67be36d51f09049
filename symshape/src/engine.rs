//! The engine: normal forms, bounds and the derivations that record them.
//!
//! | file | contents |
//! |---|---|
//! | `atoms` | [`Engine`](atoms::Engine), the state of one query, and the table of its atoms |
//! | `normal` | the normal form of a term: a polynomial over atoms |
//! | `rules` | the rewrite rules for quotients, minima and sums |
//! | `bounds` | lower and upper bounds of a polynomial |
//! | `goal` | how normal forms and bounds show a relation |
//! | `proof` | the log of a derivation, from which `check` verifies a proof |
//! | `egraph` | the cheapest form of nested minima and maxima, by the lattice rules |
//!
//! These files use each other, and no order of layers can remove that. A normal form needs bounds: most rules have
//! side conditions such as `0 <= r < m`, and a divisor must be shown to differ from 0. A bound needs normal forms:
//! the facts about a symbol are terms, which are normalised before they bound an atom. Both record events for a proof,
//! and a proof runs the engine again to get its log. The recursion ends because an atom is bounded only by atoms of
//! a lower rank, and because the search has a budget of steps.
//!
//! The rest of the crate uses the engine in one direction, with three exceptions. Bounds try points of `sample`.
//! [`Rule::rewrite`](rules::Rule::rewrite) renders its result with `render`. Facts keep an engine that has read the
//! assumptions, and answers.

pub(crate) mod atoms;
pub(crate) mod bounds;
pub(crate) mod egraph;
mod goal;
mod normal;
pub(crate) mod proof;
pub(crate) mod rules;
