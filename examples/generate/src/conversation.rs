//! A conversation: turns of a message and an answer, of which nothing is read twice.

use crate::{Decoder, Error, Sampler, Settings, Text};
use std::time::{Duration, Instant};

/// When answers end.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest number of tokens of an answer.
    pub tokens: usize,
    /// Whether an end token does not end an answer, for comparisons and measurements.
    pub ignore_end: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The model chose an end token.
    End,
    /// The answer has as many tokens as allowed.
    Limit,
    /// The model has no place for more tokens.
    Full,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its tokens, without the end token.
    pub tokens: Vec<i64>,
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub stop: Stop,
    /// Number of tokens that were read before the first one of the answer.
    pub tokens_read: usize,
    /// Time for these.
    pub read_time: Duration,
    /// Time from the first token of the answer to its last one.
    pub decode_time: Duration,
}

impl Answer {
    /// Answered tokens a second. The first one is part of the reading.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens.len().saturating_sub(1) as f64 / self.decode_time.as_secs_f64().max(1e-9)
    }
}

/// A conversation. The decoder keeps what was said, so each turn reads only its own message.
pub struct Conversation<'a> {
    decoder: &'a mut Decoder,
    text: &'a Text,
    settings: &'a Settings,
    /// Tokens of the last answer that the decoder has not read yet; `None` before the first turn.
    unread: Option<Vec<i64>>,
}

impl<'a> Conversation<'a> {
    /// A conversation in which nothing was said yet. It replaces the conversations of the decoder.
    pub fn new(decoder: &'a mut Decoder, text: &'a Text, settings: &'a Settings) -> Conversation<'a> {
        Conversation { decoder, text, settings, unread: None }
    }

    /// Says `message`, and calls `show` with each piece of the answer as it comes.
    ///
    /// # Errors
    /// When the message does not fit, or the model refuses the call.
    pub fn say(
        &mut self,
        message: &str,
        sampler: &mut Sampler,
        limits: Limits,
        mut show: impl FnMut(&str),
    ) -> Result<Answer, Error> {
        let start = Instant::now();
        let read = self.read(message)?;
        let mut answer = Answer {
            tokens: Vec::new(),
            text: String::new(),
            stop: Stop::Limit,
            tokens_read: read,
            read_time: start.elapsed(),
            decode_time: Duration::ZERO,
        };

        let start = Instant::now();
        let mut stream = self.text.stream();
        let mut unread = Vec::new();
        while answer.tokens.len() < limits.tokens {
            let token = sampler.pick(self.decoder.logits(0)) as i64;
            if self.text.is_end(token) && !limits.ignore_end {
                answer.stop = Stop::End;
                break;
            }

            answer.tokens.push(token);
            let piece = stream.push(token)?;
            show(&piece);
            answer.text += &piece;
            answer.decode_time = start.elapsed();

            if self.decoder.remaining() == 0 {
                answer.stop = Stop::Full;
                unread.push(token);
                break;
            }
            if answer.tokens.len() == limits.tokens {
                unread.push(token);
                break;
            }
            self.decoder.feed(&[vec![token]])?;
        }
        self.unread = Some(unread);
        Ok(answer)
    }

    /// Reads a message, and the last token of the answer before it. Returns the number of tokens.
    fn read(&mut self, message: &str) -> Result<usize, Error> {
        let Some(unread) = &self.unread else {
            let tokens = self.text.encode(&self.settings.first_turn(message))?;
            self.decoder.start(std::slice::from_ref(&tokens))?;
            return Ok(tokens.len());
        };

        let tokens = [&unread[..], &self.text.encode(&self.settings.later_turn(message))?].concat();
        self.decoder.feed(std::slice::from_ref(&tokens))?;
        Ok(tokens.len())
    }
}
