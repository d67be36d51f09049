//! A conversation: turns of a message and an answer, of which nothing is read twice.

use crate::{Error, Sampler, Sequence, Sequences, Settings, Text};
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
    /// An answer without tokens, after `tokens_read` tokens were read in `read_time`.
    pub(crate) fn new(tokens_read: usize, read_time: Duration) -> Answer {
        Answer {
            tokens: Vec::new(),
            text: String::new(),
            stop: Stop::Limit,
            tokens_read,
            read_time,
            decode_time: Duration::ZERO,
        }
    }

    /// Answered tokens a second. The first one is part of the reading.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens.len().saturating_sub(1) as f64 / self.decode_time.as_secs_f64().max(1e-9)
    }
}

/// A conversation. Its sequence keeps the messages and the answers, so each turn reads only its own message.
pub struct Conversation<'a> {
    sequences: &'a mut Sequences,
    sequence: Sequence,
    text: &'a Text,
    settings: &'a Settings,
    /// The last token of the last answer, unless the sequence has read it.
    unread: Option<i64>,
}

impl<'a> Conversation<'a> {
    /// A conversation without turns.
    ///
    /// # Errors
    /// When the system refuses memory.
    pub fn new(
        sequences: &'a mut Sequences,
        text: &'a Text,
        settings: &'a Settings,
    ) -> Result<Conversation<'a>, Error> {
        let sequence = sequences.empty()?;
        Ok(Conversation { sequences, sequence, text, settings, unread: None })
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
        let tokens = self.turn(message)?;
        let mut logits = self.sequences.read_all(&mut self.sequence, &tokens)?;
        self.unread = None;
        let mut answer = Answer::new(tokens.len(), start.elapsed());

        let start = Instant::now();
        let mut stream = self.text.stream();
        while answer.tokens.len() < limits.tokens {
            let token = sampler.pick(logits) as i64;
            if self.text.is_end(token) && !limits.ignore_end {
                answer.stop = Stop::End;
                break;
            }

            answer.tokens.push(token);
            self.unread = Some(token);
            let piece = stream.push(token)?;
            show(&piece);
            answer.text += &piece;
            answer.decode_time = start.elapsed();

            if self.sequence.tokens().len() == self.sequences.max_tokens() {
                answer.stop = Stop::Full;
                break;
            }
            if answer.tokens.len() == limits.tokens {
                break;
            }
            logits = self.sequences.read_all(&mut self.sequence, &[token])?;
            self.unread = None;
        }
        Ok(answer)
    }

    /// The tokens of a turn: the last one of the answer before it, if it is unread, and those of the message.
    fn turn(&self, message: &str) -> Result<Vec<i64>, Error> {
        let is_first = self.sequence.tokens().is_empty();
        let text =
            if is_first { self.settings.first_turn(message) } else { self.settings.later_turn(message) };
        Ok(self.unread.into_iter().chain(self.text.encode(&text)?).collect())
    }
}
