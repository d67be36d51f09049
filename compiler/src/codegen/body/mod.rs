//! The body of one kernel: loops, strips and contractions as code of one function.
//!
//! [`split`] divides a kernel into parts, each of which becomes a function. [`loops`] emits the statements of a part.
//! Strips ([`strips`]) and contractions ([`tiles`]) become calls of microkernels, whose bodies [`body_builder`]
//! translates. Code that microkernels don't support becomes scalar loops ([`block`], [`scalar_contraction`]).

mod args;
mod block;
mod column_split;
pub(crate) mod loops;
mod scalar_contraction;
pub(crate) mod scalar_loops;
pub(crate) mod split;
mod strip_call;
mod strip_pointers;
mod strips;
pub(crate) mod tiles;

pub(crate) use crate::kernel::lanes::builder as body_builder;
