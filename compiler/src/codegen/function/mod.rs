//! The emission of one function, and of the module that it belongs to.

mod cast;
mod context;
mod control_flow;
mod data;
mod data_pool;
pub(crate) mod frame;
mod index;
pub mod math;
pub mod module;
pub mod report_error;
mod scalar;
pub(crate) mod table;

pub use context::FuncCtx;
pub use module::ModuleBuilder;
