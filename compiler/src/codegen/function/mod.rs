//! One function while it is emitted, and the module that it goes to.

mod cast;
mod context;
mod control_flow;
pub(crate) mod frame;
mod index;
pub mod math;
pub mod module;
pub mod report_error;
mod scalar;
pub(crate) mod table;

pub use context::FuncCtx;
pub use module::ModuleBuilder;
