//! Several conversations at once: one call of the model decodes a token of each.

use crate::{Answer, Decoder, Error, Limits, Sampler, Settings, Stop, Text};
use std::time::{Duration, Instant};

/// An answer that is being decoded.
struct Open<'t> {
    answer: Answer,
    stream: crate::text::TextStream<'t>,
    sampler: Sampler,
    is_open: bool,
}

/// Answers one message of each conversation, all at once. There is a sampler for each message. `done` is called with
/// the index of an answer when it ends. The time of each answer is that of all.
///
/// # Errors
/// When there are more messages than the model has rows, one does not fit, or the model refuses a call.
pub fn answer(
    decoder: &mut Decoder,
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
    let encode = |message: &String| text.encode(&settings.first_turn(message));
    let prompts = messages.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    decoder.start(&prompts)?;
    let read_time = start.elapsed();

    let open = |(prompt, sampler): (&Vec<i64>, &Sampler)| Open {
        answer: Answer {
            tokens: Vec::new(),
            text: String::new(),
            stop: Stop::Limit,
            tokens_read: prompt.len(),
            read_time,
            decode_time: Duration::ZERO,
        },
        stream: text.stream(),
        sampler: sampler.clone(),
        is_open: limits.tokens > 0,
    };
    let mut rows: Vec<Open<'_>> = prompts.iter().zip(samplers).map(open).collect();

    let start = Instant::now();
    // A row that has ended decodes on, because all rows have the same number of positions; its tokens are dropped.
    let mut next = vec![vec![0]; rows.len()];
    while rows.iter().any(|row| row.is_open) {
        let is_full = decoder.remaining() == 0;
        for (idx, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.is_open) {
            let token = row.sampler.pick(decoder.logits(idx)) as i64;
            next[idx][0] = token;
            row.push(token, text, limits, is_full)?;
            row.answer.decode_time = start.elapsed();
            if !row.is_open {
                done(idx, &row.answer);
            }
        }
        if rows.iter().any(|row| row.is_open) {
            decoder.feed(&next)?;
        }
    }
    Ok(rows.into_iter().map(|row| row.answer).collect())
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
