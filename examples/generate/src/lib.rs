//! Text from a language model that `symc` compiled: a decoder that keeps keys and values as state.
//!
//! [`Decoder`] calls the model and owns its state. [`Sampler`] chooses tokens, and [`Text`] is the tokenizer.
//! [`Conversation`] and [`batch::answer`] put them together: one conversation with many turns, and several
//! conversations at once. [`Sequences`] are for services, where sequences of all lengths come and go.

#[cfg(feature = "program")]
pub mod artefact;
pub mod batch;
mod conversation;
mod decoder;
mod error;
mod interface;
mod sampler;
mod sequences;
mod settings;
mod text;

pub use conversation::{Answer, Conversation, Limits, Stop};
pub use decoder::Decoder;
pub use error::Error;
pub use sampler::Sampler;
pub use sequences::{Sequence, Sequences};
pub use settings::Settings;
pub use text::{Text, TextStream};
