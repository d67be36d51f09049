//! The integration tests of the runtime, as one program; `fake` replaces generated code.

mod batcher;
mod call;
#[allow(dead_code, reason = "this program uses only a part of it")]
mod counting;
mod fake;
mod grow;
mod linked;
mod mixed;
mod query;
mod stream;
