//! The vector form of straight-line code: which code has one, and the reason why other code has none.
//!
//! The code generator turns a form into microkernels. Passes over kernels ask for it, so that no loop stays scalar
//! because of an instruction that could be elsewhere.

mod bounds;
pub(crate) mod builder;
mod checked;
mod epilogue;
mod gather;
mod obstacle;
pub mod op;
pub(crate) mod repeated;
mod strip;

pub(crate) use epilogue::{EpilogueForm, accumulator_type, epilogue_form};
pub(crate) use strip::{has_lanes, strip_obstacle};
