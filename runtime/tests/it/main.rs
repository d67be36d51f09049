//! The integration tests of the runtime, as one program; `fake` replaces generated code.

mod batcher;
mod call;
mod fake;
mod grow;
mod linked;
mod mixed;
mod query;
mod stream;
