//! Calls of the model for sequences that come and go, each with a separate state: new tokens in, logits out.

use crate::{
    Error,
    interface::{Interface, Role},
};
use std::borrow::Cow;
use symshape_runtime::{Context, Model, State, TensorMut, TensorRef};

/// Calls of a decoder for sequences of any lengths.
pub struct Sequences {
    context: Context,
    interface: Interface,
    /// The logits of the last call or step, for each of its tokens.
    logits: Vec<f32>,
    /// The place in `logits` of the next token of the first sequence; those of other sequences follow.
    first: usize,
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
        Ok(Sequences { context, interface, logits: Vec::new(), first: 0 })
    }

    /// Largest number of tokens of a sequence.
    pub fn max_tokens(&self) -> usize {
        self.interface.capacity.min(self.interface.max_past.saturating_add(1))
    }

    /// Largest number of tokens of a sequence that one call reads.
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
        let state = State::new(self.context.model(), self.interface.capacity)?;
        Ok(Sequence { state, tokens: Vec::new() })
    }

    /// Reads tokens of one sequence, in calls of up to [`Sequences::max_new`], and returns the logits of the token after
    /// them.
    ///
    /// # Errors
    /// When there are no tokens, or more than the sequence has place for; or the model refuses a call. The sequence
    /// then has the tokens that it had, or none if the model overwrites a part of its state.
    pub fn read_all(&mut self, sequence: &mut Sequence, tokens: &[i64]) -> Result<&[f32], Error> {
        let before = sequence.tokens.len();
        let place = self.max_tokens().saturating_sub(before);
        if tokens.is_empty() {
            return Err(Error::Tokens("a prompt has no tokens".into()));
        }
        if tokens.len() > place {
            return Err(Error::Tokens(format!(
                "{} more tokens: the sequence has place for {place} after its {before}",
                tokens.len()
            )));
        }

        for part in tokens.chunks(self.interface.max_new) {
            let read = self.call(&mut [&mut sequence.state], part, 0);
            if let Err(error) = read {
                sequence.keep(before);
                return Err(error);
            }
            sequence.tokens.extend_from_slice(part);
            self.first = part.len() - 1;
        }
        Ok(self.logits(0))
    }

    /// Largest number of sequences that one call of the model reads. A step of more takes several calls.
    pub fn at_once(&self) -> usize {
        self.context.model().max_states().max(1)
    }

    /// Reads one token of each sequence, in one call of the model. [`Sequences::logits`] then has the logits of the
    /// tokens after them.
    ///
    /// # Errors
    /// When a sequence has no place for a token, or the model refuses a call. The sequences of the calls before the one
    /// that fails have read their token then.
    pub fn step(&mut self, sequences: &mut [(&mut Sequence, i64)]) -> Result<(), Error> {
        let max = self.max_tokens();
        if sequences.iter().any(|(sequence, _)| sequence.tokens.len() >= max) {
            return Err(Error::Tokens(format!("a sequence has {max} tokens, and no place for more")));
        }

        self.first = 0;
        let at_once = self.at_once();
        for (idx, part) in sequences.chunks_mut(at_once).enumerate() {
            let tokens: Vec<i64> = part.iter().map(|(_, token)| *token).collect();
            let mut states: Vec<&mut State> =
                part.iter_mut().map(|(sequence, _)| &mut sequence.state).collect();
            self.call(&mut states, &tokens, idx * at_once)?;
            part.iter_mut().for_each(|(sequence, token)| sequence.tokens.push(*token));
        }
        Ok(())
    }

    /// The logits of the next token of a sequence: of that of the last [`Sequences::read_all`], or of one of the last
    /// [`Sequences::step`].
    ///
    /// # Panics
    /// When there was no such sequence.
    pub fn logits(&self, sequence: usize) -> &[f32] {
        let vocabulary = self.interface.vocabulary;
        let at = (self.first + sequence) * vocabulary;
        &self.logits[at..at + vocabulary]
    }

    /// Appends the same number of tokens to each state. Writes the logits of the token after each of them to `logits`,
    /// from place `at`.
    fn call(&mut self, states: &mut [&mut State], tokens: &[i64], at: usize) -> Result<(), Error> {
        let Sequences { context, interface, logits, .. } = self;
        let rows = states.len();
        let new = tokens.len() / rows;
        let longest = states.iter().map(|state| state.length()).max().unwrap_or(0) + new;
        let input = |role: &Role| match role {
            Role::Tokens => (new, Cow::Borrowed(tokens)),
            // A shorter sequence has its positions at the beginning of its row. The rest of the row is not read.
            Role::Mask => (longest, Cow::Owned(vec![1; rows * longest])),
            Role::Positions => {
                let positions = |length: usize| (length..length + new).map(|position| position as i64);
                (new, states.iter().flat_map(|state| positions(state.length())).collect())
            }
        };
        let inputs: Vec<(usize, Cow<'_, [i64]>)> = interface.inputs.iter().map(input).collect();
        let inputs = inputs.iter().map(|(columns, elems)| TensorRef::new(&[rows, *columns], elems));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;

        let range = at * interface.vocabulary..(at + tokens.len()) * interface.vocabulary;
        if logits.len() < range.end {
            logits.resize(range.end, 0.0);
        }
        context.run_states(&inputs, &mut [TensorMut::new(&mut logits[range])], states)?;
        Ok(())
    }
}
