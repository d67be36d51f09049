//! Calls compiled symshape models: contract check, arena, contexts, loader.

pub mod abi;
mod dtype;

pub use dtype::DType;
