//! Several conversations at once: one call of the model decodes a token of each.

use crate::{Answer, Error, Limits, Sampler, Sequence, Sequences, Settings, Stop, Text};
use std::time::{Duration, Instant};

/// An answer that is being decoded.
struct Open<'t> {
    answer: Answer,
    sequence: Sequence,
    /// The logits of the next token.
    logits: Vec<f32>,
    stream: crate::text::TextStream<'t>,
    sampler: Sampler,
    is_open: bool,
}

/// Answers one message of each conversation, all at once. There is a sampler for each message. `done` is called with
/// the index of an answer when it ends; its conversation then leaves the calls. The time of each answer is that of all.
///
/// # Errors
/// When a message does not fit, or the model refuses a call.
pub fn answer(
    sequences: &mut Sequences,
    text: &Text,
    settings: &Settings,
    messages: &[String],
    samplers: &[Sampler],
    limits: Limits,
    mut done: impl FnMut(usize, &Answer),
) -> Result<Vec<Answer>, Error> {
    if samplers.len() != messages.len() {
        return Err(Error::Tokens(format!("{} samplers for {} messages", samplers.len(), messages.len())));
    }

    let start = Instant::now();
    let mut rows = Vec::new();
    for (message, sampler) in messages.iter().zip(samplers) {
        rows.push(open(sequences, text, &settings.first_turn(message), sampler, limits)?);
    }
    let read_time = start.elapsed();
    rows.iter_mut().for_each(|row| row.answer.read_time = read_time);

    let start = Instant::now();
    while rows.iter().any(|row| row.is_open) {
        for (idx, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.is_open) {
            let token = row.sampler.pick(&row.logits) as i64;
            let is_full = row.sequence.tokens().len() == sequences.max_tokens();
            row.push(token, text, limits, is_full)?;
            row.answer.decode_time = start.elapsed();
            if !row.is_open {
                done(idx, &row.answer);
            }
        }

        let mut open: Vec<&mut Open<'_>> = rows.iter_mut().filter(|row| row.is_open).collect();
        let mut step: Vec<(&mut Sequence, i64)> = Vec::new();
        for row in &mut open {
            let token = row.answer.tokens.last().copied().unwrap_or(0);
            step.push((&mut row.sequence, token));
        }
        sequences.step(&mut step)?;
        for (idx, row) in open.into_iter().enumerate() {
            row.logits.copy_from_slice(sequences.logits(idx));
        }
    }
    Ok(rows.into_iter().map(|row| row.answer).collect())
}

/// Reads the first turn of a conversation.
fn open<'t>(
    sequences: &mut Sequences,
    text: &'t Text,
    turn: &str,
    sampler: &Sampler,
    limits: Limits,
) -> Result<Open<'t>, Error> {
    let prompt = text.encode(turn)?;
    if prompt.is_empty() {
        return Err(Error::Tokens("a prompt has no tokens".into()));
    }
    let mut sequence = sequences.empty()?;
    let mut logits = Vec::new();
    for part in prompt.chunks(sequences.max_new()) {
        logits = sequences.read(&mut sequence, part)?.to_vec();
    }
    let answer = Answer {
        tokens: Vec::new(),
        text: String::new(),
        stop: Stop::Limit,
        tokens_read: prompt.len(),
        read_time: Duration::ZERO,
        decode_time: Duration::ZERO,
    };
    let (stream, sampler) = (text.stream(), sampler.clone());
    Ok(Open { answer, sequence, logits, stream, sampler, is_open: limits.tokens > 0 })
}

impl Open<'_> {
    /// Appends a token, or ends the answer.
    fn push(&mut self, token: i64, text: &Text, limits: Limits, is_full: bool) -> Result<(), Error> {
        if text.is_end(token) && !limits.ignore_end {
            self.answer.stop = Stop::End;
            self.is_open = false;
            return Ok(());
        }

        self.answer.tokens.push(token);
        self.answer.text += &self.stream.push(token)?;
        if is_full {
            self.answer.stop = Stop::Full;
        }
        self.is_open = !is_full && self.answer.tokens.len() < limits.tokens;
        Ok(())
    }
}
