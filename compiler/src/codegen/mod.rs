//! Programs into machine code: one Cranelift function for each kernel, the contract's functions, the driver and the
//! tables of the artefact, into any [`Module`].
//!
//! The same code serves the JIT and object files. What comes out imports nothing: maths is emitted ([`math`]), and no
//! instruction is used that the target would turn into a call of a library. The plan's sizes and every index stay
//! within 64 bits for all allowed values of the symbols; what can't is refused here.

pub mod function;
mod index;
pub mod unit;

pub use function::FuncCtx;
pub use unit::{Options, Summary, Unit};
