//! Text from a language model that `symc` compiled: a decoder that keeps keys and values as state.
//!
//! [`Sequences`] calls the model, and a [`Sequence`] has the state of one text. [`Sampler`] chooses tokens, and [`Text`]
//! is the tokenizer. [`Conversation`] and [`batch::answer`] put them together: one conversation with many turns, and
//! several conversations at once.

#[cfg(feature = "program")]
pub mod artefact;
pub mod batch;
mod conversation;
mod error;
mod interface;
mod sampler;
mod sequences;
mod settings;
mod text;

pub use conversation::{Answer, Conversation, Limits, Stop};
pub use error::Error;
pub use sampler::Sampler;
pub use sequences::{Sequence, Sequences};
pub use settings::Settings;
pub use text::{Text, TextStream};
