//! The emission of one function, and of the module that it belongs to.

mod cast;
mod context;
mod control_flow;
mod data;
mod data_pool;
mod definitions;
pub(crate) mod frame;
mod index;
pub(crate) mod math;
pub(crate) mod module;
pub(crate) mod pending;
pub(crate) mod report_error;
mod scalar;
pub(crate) mod table;
pub(crate) mod weights;

pub(crate) use context::FuncCtx;
pub(crate) use module::ModuleBuilder;
