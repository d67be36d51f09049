//! Several conversations at once: one call of the model decodes a token of each.

use crate::{Answer, Error, Limits, Sampler, Sequence, Sequences, Settings, Stop, Text, TextStream};
use std::time::{Duration, Instant};

/// An answer, and the sequence that it is decoded from.
struct Row<'t> {
    answer: Answer,
    sequence: Sequence,
    stream: TextStream<'t>,
    sampler: Sampler,
    /// The token that the next step reads; `None` after the end of the answer.
    next: Option<i64>,
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
        rows.push(begin(sequences, text, &settings.first_turn(message), sampler, limits)?);
    }
    let read_time = start.elapsed();
    for (idx, row) in rows.iter_mut().enumerate() {
        row.answer.read_time = read_time;
        if row.next.is_none() {
            done(idx, &row.answer);
        }
    }

    let start = Instant::now();
    let max_tokens = sequences.max_tokens();
    loop {
        let mut open: Vec<_> = rows.iter_mut().enumerate().filter(|(_, row)| row.next.is_some()).collect();
        if open.is_empty() {
            return Ok(rows.into_iter().map(|row| row.answer).collect());
        }

        let step = open.iter_mut().filter_map(|(_, row)| Some((&mut row.sequence, row.next?)));
        sequences.step(&mut step.collect::<Vec<_>>())?;
        for (at, (idx, row)) in open.into_iter().enumerate() {
            row.push(sequences.logits(at), text, limits, max_tokens)?;
            row.answer.decode_time = start.elapsed();
            if row.next.is_none() {
                done(idx, &row.answer);
            }
        }
    }
}

/// Reads the first turn of a conversation, and chooses the first token of its answer.
fn begin<'t>(
    sequences: &mut Sequences,
    text: &'t Text,
    turn: &str,
    sampler: &Sampler,
    limits: Limits,
) -> Result<Row<'t>, Error> {
    let prompt = text.encode(turn)?;
    let max_tokens = sequences.max_tokens();
    let mut sequence = sequences.empty()?;
    let logits = sequences.read_all(&mut sequence, &prompt)?;
    let answer = Answer::new(prompt.len(), Duration::ZERO);
    let mut row = Row { answer, sequence, stream: text.stream(), sampler: sampler.clone(), next: None };
    if limits.tokens > 0 {
        row.push(logits, text, limits, max_tokens)?;
    }
    Ok(row)
}

impl Row<'_> {
    /// Appends a token that these logits give, or ends the answer.
    fn push(&mut self, logits: &[f32], text: &Text, limits: Limits, max_tokens: usize) -> Result<(), Error> {
        self.next = None;
        let token = self.sampler.pick(logits) as i64;
        if text.is_end(token) && !limits.ignore_end {
            self.answer.stop = Stop::End;
            return Ok(());
        }

        self.answer.tokens.push(token);
        self.answer.text += &self.stream.push(token)?;
        if self.sequence.tokens().len() == max_tokens {
            self.answer.stop = Stop::Full;
        } else if self.answer.tokens.len() < limits.tokens {
            self.next = Some(token);
        }
        Ok(())
    }
}
