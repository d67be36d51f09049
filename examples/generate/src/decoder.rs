//! Calls of the model: new tokens in, logits of the next token out.

use crate::{
    Error,
    interface::{Interface, Role},
};
use symshape_runtime::{Context, Model, State, TensorMut, TensorRef};

/// A decoder with the keys and values of one or more conversations, its rows. They are state: a call appends those of
/// the new tokens in place.
///
/// All rows have the same number of positions. Shorter rows begin with padding, which their mask hides.
pub struct Decoder {
    context: Context,
    interface: Interface,
    state: State,
    /// Number of positions of padding at the beginning of each row.
    padding: Vec<usize>,
    logits: Vec<f32>,
    /// New tokens of the last call.
    new: usize,
}

impl Decoder {
    /// A decoder of one empty conversation, whose calls take `threads` threads.
    ///
    /// # Errors
    /// When the model is not a decoder with past keys and values, or the system refuses memory or threads.
    pub fn new(model: &Model, threads: u32) -> Result<Decoder, Error> {
        let interface = Interface::of(model)?;
        let mut context = Context::new(model)?;
        context.set_threads(threads)?;
        let state = empty_state(model, &interface, 1)?;
        Ok(Decoder { context, interface, state, padding: vec![0], logits: Vec::new(), new: 0 })
    }

    /// Largest number of conversations at once.
    pub fn max_rows(&self) -> usize {
        self.interface.max_rows
    }

    /// Number of positions that each row has, padding included.
    pub fn positions(&self) -> usize {
        self.state.length()
    }

    /// Number of tokens that each row can still take.
    pub fn remaining(&self) -> usize {
        self.interface.max_past.saturating_add(1).saturating_sub(self.state.length())
    }

    /// Forgets all conversations, and starts one for each prompt.
    ///
    /// # Errors
    /// When there are too many prompts, one is empty or too long, or the model refuses the call.
    pub fn start(&mut self, prompts: &[Vec<i64>]) -> Result<(), Error> {
        if prompts.is_empty() || prompts.len() > self.max_rows() {
            let max = self.max_rows();
            return Err(Error::Tokens(format!("{} prompts: the model takes 1 to {max}", prompts.len())));
        }
        if prompts.iter().any(Vec::is_empty) {
            return Err(Error::Tokens("a prompt has no tokens".into()));
        }

        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        if prompts.len() == self.padding.len() {
            self.state.reset();
        } else {
            self.state = empty_state(self.context.model(), &self.interface, prompts.len())?;
        }
        self.padding = prompts.iter().map(|prompt| longest - prompt.len()).collect();
        let padded: Vec<Vec<i64>> =
            prompts.iter().map(|prompt| [&vec![0; longest - prompt.len()][..], prompt].concat()).collect();
        self.feed(&padded)
    }

    /// Appends the same number of tokens to each row.
    ///
    /// # Errors
    /// When there are no tokens or more than [`Decoder::remaining`]; no row has changed then. Or when the model
    /// refuses the call.
    pub fn feed(&mut self, rows: &[Vec<i64>]) -> Result<(), Error> {
        let count = rows.first().map_or(0, Vec::len);
        if rows.len() != self.padding.len() || count == 0 || rows.iter().any(|row| row.len() != count) {
            return Err(Error::Tokens(format!("expected {} rows of equal length", self.padding.len())));
        }
        if count > self.remaining() {
            let left = self.remaining();
            return Err(Error::Tokens(format!(
                "{count} more tokens: the model has place for {left} after the {} that it has",
                self.positions()
            )));
        }

        let chunk = self.interface.max_new;
        for first in (0..count).step_by(chunk) {
            let last = count.min(first.saturating_add(chunk));
            let tokens: Vec<i64> = rows.iter().flat_map(|row| row[first..last].iter().copied()).collect();
            self.call(&tokens, last - first)?;
        }
        Ok(())
    }

    /// The logits of the token after the last one of this row.
    ///
    /// # Panics
    /// When there is no such row, or no token was fed.
    pub fn logits(&self, row: usize) -> &[f32] {
        let vocabulary = self.interface.vocabulary;
        let at = (row * self.new + self.new - 1) * vocabulary;
        &self.logits[at..at + vocabulary]
    }

    /// Calls the model with `new` tokens for each row.
    fn call(&mut self, tokens: &[i64], new: usize) -> Result<(), Error> {
        let Decoder { context, interface, state, padding, logits, .. } = self;
        read(context, interface, state, padding, tokens, logits)?;
        self.new = new;
        Ok(())
    }
}

/// Appends `tokens`, the same number for each row, to the state, and writes the logits of the token after each of them.
/// `padding` is the number of positions at the beginning of each row that its tokens don't look at.
pub(crate) fn read(
    context: &mut Context,
    interface: &Interface,
    state: &mut State,
    padding: &[usize],
    tokens: &[i64],
    logits: &mut Vec<f32>,
) -> Result<(), Error> {
    let past = state.length();
    let rows = padding.len();
    let new = tokens.len() / rows;
    let mask: Vec<i64> =
        padding.iter().flat_map(|pad| (0..past + new).map(move |at| i64::from(at >= *pad))).collect();
    let positions: Vec<i64> = padding
        .iter()
        .flat_map(|pad| (past..past + new).map(move |at| at.saturating_sub(*pad) as i64))
        .collect();
    let n_logits = tokens.len() * interface.vocabulary;
    if logits.len() < n_logits {
        logits.resize(n_logits, 0.0);
    }

    let input = |role: &Role| match role {
        Role::Tokens => TensorRef::new(&[rows, new], tokens),
        Role::Mask => TensorRef::new(&[rows, past + new], &mask),
        Role::Positions => TensorRef::new(&[rows, new], &positions),
    };
    let inputs = interface.inputs.iter().map(input).collect::<Result<Vec<_>, _>>()?;
    context.run_stateful(&inputs, &mut [TensorMut::new(&mut logits[..])], state)?;
    Ok(())
}

/// Appends a token to each state, and writes the logits of the token after it.
pub(crate) fn step(
    context: &mut Context,
    interface: &Interface,
    states: &mut [&mut State],
    tokens: &[i64],
    logits: &mut [f32],
) -> Result<(), Error> {
    let rows = states.len();
    let positions: Vec<i64> = states.iter().map(|state| state.length() as i64).collect();
    let longest = states.iter().map(|state| state.length()).max().unwrap_or(0) + 1;
    // A shorter sequence has its positions at the beginning of its row of the mask. The rest of the row is not read.
    let mask = vec![1_i64; rows * longest];

    let input = |role: &Role| match role {
        Role::Tokens => TensorRef::new(&[rows, 1], tokens),
        Role::Mask => TensorRef::new(&[rows, longest], &mask),
        Role::Positions => TensorRef::new(&[rows, 1], &positions),
    };
    let inputs = interface.inputs.iter().map(input).collect::<Result<Vec<_>, _>>()?;
    context.run_states(&inputs, &mut [TensorMut::new(logits)], states)?;
    Ok(())
}

/// A state without positions for this number of rows. Its memory is taken when it is first written.
pub(crate) fn empty_state(model: &Model, interface: &Interface, rows: usize) -> Result<State, Error> {
    let size = interface.rows.as_deref().map(|name| (name, rows as i64));
    Ok(State::with_dims(model, interface.capacity, size.as_slice())?)
}
