//! Sequences that come and go: each has a state of its own, so each may have another number of tokens.

use crate::{Error, decoder, interface::Interface};
use symshape_runtime::{Context, Model, State};

/// Calls of a decoder for sequences that each have a state of their own.
pub struct Sequences {
    context: Context,
    interface: Interface,
    /// The logits of the last call, of as many tokens as it had.
    call_logits: Vec<f32>,
    /// The logits of the next token of each sequence of the last step.
    logits: Vec<f32>,
}

/// A sequence: the tokens that were read, and their keys and values.
pub struct Sequence {
    state: State,
    tokens: Vec<i64>,
}

impl Sequence {
    /// The tokens that were read.
    pub fn tokens(&self) -> &[i64] {
        &self.tokens
    }

    /// Forgets the tokens after the first `count` ones. A model that overwrites a part of its state forgets all.
    /// Returns how many tokens stay.
    pub fn keep(&mut self, count: usize) -> usize {
        let count = count.min(self.tokens.len());
        if count < self.tokens.len() && self.state.truncate(count).is_err() {
            self.state.reset();
            self.tokens.clear();
        }
        self.tokens.truncate(count);
        self.tokens.len()
    }
}

impl Sequences {
    /// Calls of `threads` threads.
    ///
    /// # Errors
    /// When the model is not a decoder with past keys and values, or the system refuses memory or threads.
    pub fn new(model: &Model, threads: u32) -> Result<Sequences, Error> {
        let interface = Interface::of(model)?;
        let mut context = Context::new(model)?;
        context.set_threads(threads)?;
        Ok(Sequences { context, interface, call_logits: Vec::new(), logits: Vec::new() })
    }

    /// Largest number of tokens of a sequence.
    pub fn max_tokens(&self) -> usize {
        self.interface.capacity.min(self.interface.max_past.saturating_add(1))
    }

    /// Largest number of tokens that one call reads.
    pub fn max_new(&self) -> usize {
        self.interface.max_new
    }

    /// Number of tokens that the model knows.
    pub fn vocabulary(&self) -> usize {
        self.interface.vocabulary
    }

    /// A sequence without tokens. The system takes most of its memory when it is first written.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn empty(&self) -> Result<Sequence, Error> {
        let state = decoder::empty_state(self.context.model(), &self.interface, 1)?;
        Ok(Sequence { state, tokens: Vec::new() })
    }

    /// Reads up to [`Sequences::max_new`] tokens of one sequence, and returns the logits of the token after them.
    ///
    /// # Errors
    /// When there are no tokens, too many, or more than the sequence has place for; or the model refuses the call.
    /// The sequence is unchanged then.
    pub fn read(&mut self, sequence: &mut Sequence, tokens: &[i64]) -> Result<&[f32], Error> {
        let place = self.max_tokens().saturating_sub(sequence.tokens.len());
        if tokens.is_empty() || tokens.len() > place.min(self.max_new()) {
            let max = self.max_new();
            return Err(Error::Tokens(format!(
                "{} tokens: a call reads 1 to {max}, and the sequence has place for {place}",
                tokens.len()
            )));
        }

        let Sequences { context, interface, call_logits, .. } = self;
        decoder::read(context, interface, &mut sequence.state, &[0], tokens, call_logits)?;
        sequence.tokens.extend_from_slice(tokens);
        let vocabulary = interface.vocabulary;
        Ok(&call_logits[(tokens.len() - 1) * vocabulary..tokens.len() * vocabulary])
    }

    /// Largest number of sequences that one call of the model reads. A step of more takes several calls.
    pub fn at_once(&self) -> usize {
        self.context.model().max_states().max(1)
    }

    /// Reads one token of each sequence, in one call of the model. [`Sequences::logits`] then has the logits of the
    /// tokens after them.
    ///
    /// # Errors
    /// As [`Sequences::read`]. The sequences of the calls before the one that fails have read their token then.
    pub fn step(&mut self, sequences: &mut [(&mut Sequence, i64)]) -> Result<(), Error> {
        let max = self.max_tokens();
        if sequences.iter().any(|(sequence, _)| sequence.tokens.len() >= max) {
            return Err(Error::Tokens(format!("a sequence has {max} tokens, and no place for more")));
        }

        let at_once = self.at_once();
        let Sequences { context, interface, logits, .. } = self;
        logits.resize(sequences.len() * interface.vocabulary, 0.0);
        let parts = logits.chunks_mut((at_once * interface.vocabulary).max(1));
        for (part, logits) in sequences.chunks_mut(at_once).zip(parts) {
            let tokens: Vec<i64> = part.iter().map(|(_, token)| *token).collect();
            let mut states: Vec<&mut State> =
                part.iter_mut().map(|(sequence, _)| &mut sequence.state).collect();
            decoder::step(context, interface, &mut states, &tokens, logits)?;
            part.iter_mut().for_each(|(sequence, token)| sequence.tokens.push(*token));
        }
        Ok(())
    }

    /// The logits of the next token of a sequence of the last step.
    ///
    /// # Panics
    /// When the last step had no such sequence.
    pub fn logits(&self, sequence: usize) -> &[f32] {
        let vocabulary = self.interface.vocabulary;
        &self.logits[sequence * vocabulary..(sequence + 1) * vocabulary]
    }
}
