//! The tokenizer: text to tokens, and tokens to text as they come.

use crate::Error;
use std::path::Path;
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer,
};

/// The tokenizer of a model, and the tokens that end an answer.
pub struct Text {
    tokenizer: Tokenizer,
    end: Vec<i64>,
}

impl Text {
    /// Reads `tokenizer.json` at `path`; `end` are the tokens that end an answer.
    ///
    /// # Errors
    /// When the file can't be read or is not a tokenizer, or does not know a token of `end`.
    pub fn open(path: &Path, end: &[String]) -> Result<Text, Error> {
        let bytes = std::fs::read(path).map_err(|error| Error::file(path, error))?;
        let tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| Error::file(path, error))?;
        Text::new(tokenizer, end).map_err(|error| Error::file(path, error))
    }

    /// As [`Text::open`], with a tokenizer that is in memory.
    ///
    /// # Errors
    /// When the tokenizer does not know a token of `end`.
    pub fn new(tokenizer: Tokenizer, end: &[String]) -> Result<Text, Error> {
        let id = |token: &String| {
            let unknown =
                || Error::Tokenizer(format!("there is no token `{token}`, which should end answers"));
            tokenizer.token_to_id(token).map(i64::from).ok_or_else(unknown)
        };
        let end = end.iter().map(id).collect::<Result<_, _>>()?;
        Ok(Text { tokenizer, end })
    }

    /// Whether a token ends an answer.
    pub fn is_end(&self, token: i64) -> bool {
        self.end.contains(&token)
    }

    /// The tokens of a text, in which the names of special tokens are these tokens. None are added.
    ///
    /// # Errors
    /// When the tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>, Error> {
        let encoding =
            self.tokenizer.encode_fast(text, false).map_err(|error| Error::Tokenizer(error.to_string()))?;
        Ok(encoding.get_ids().iter().map(|id| i64::from(*id)).collect())
    }

    /// A stream of text.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { stream: self.tokenizer.decode_stream(true) }
    }
}

type DecodeStream<'a> = tokenizers::DecodeStream<
    'a,
    ModelWrapper,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// The text of tokens as they come. A character whose bytes are in several tokens comes with the last of them.
pub struct TextStream<'a> {
    stream: DecodeStream<'a>,
}

impl TextStream<'_> {
    /// The text that this token completes; empty if it completes none.
    ///
    /// # Errors
    /// When the tokenizer does not know the token.
    pub fn push(&mut self, token: i64) -> Result<String, Error> {
        let id = u32::try_from(token).map_err(|_| Error::Tokenizer(format!("{token} is not a token")))?;
        let text = self.stream.step(id).map_err(|error| Error::Tokenizer(error.to_string()))?;
        Ok(text.unwrap_or_default())
    }
}
