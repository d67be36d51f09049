//! Calls with several states: one step of several sequences, each with its length.

use crate::{
    CallError, Context, Outputs, State, TensorMut, TensorRef,
    descriptor::{MAX_WORDS, StateTable},
};

impl Context {
    /// Runs one step of several sequences into the caller's buffers. Row `i` of each tensor belongs to `states[i]`, a
    /// state of one sequence, and all sequences get the same number of new rows. Each has the bits that it has in a
    /// call with it alone, at any number of threads. The weights are read once for all of them.
    ///
    /// The length in the shape of an input, such as a mask `[N, past + S]`, is that of the longest sequence. A shorter
    /// sequence has its `past_i + S` columns at the beginning of its row; the others are not read.
    ///
    /// ```no_run
    /// use symshape_runtime::{Context, Model, State, TensorRef};
    ///
    /// let model = Model::open("decoder.so")?;
    /// let mut context = Context::new(&model)?;
    /// let [mut a, mut b] = [State::new(&model, 1024)?, State::new(&model, 256)?];
    /// context.run_stateful_views(&[TensorRef::new(&[1, 3], &[15_i64, 7, 42])?], &mut a)?;
    /// context.run_stateful_views(&[TensorRef::new(&[1, 2], &[15_i64, 8])?], &mut b)?;
    ///
    /// let next = TensorRef::new(&[2, 1], &[5_i64, 9])?;
    /// let logits = context.run_states_views(&[next], &mut [&mut a, &mut b])?;
    /// println!("{:?}", logits.get(0).shape());
    /// assert_eq!((a.length(), b.length()), (4, 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Context::run_stateful`] for each state, with its index; and when the model takes one state only, with the
    /// cause. All lengths and overwritten tensors are unchanged then.
    pub fn run_states(
        &mut self,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        states: &mut [&mut State],
    ) -> Result<(), CallError> {
        self.bind_states(inputs, states)?;
        self.take_outputs(outputs)?;
        self.call_stateful(inputs, states)
    }

    /// As [`Context::run_states`], into the context's own memory, where the outputs stay until the next call.
    ///
    /// # Errors
    /// As [`Context::run_states`].
    pub fn run_states_views(
        &mut self,
        inputs: &[TensorRef<'_>],
        states: &mut [&mut State],
    ) -> Result<Outputs<'_>, CallError> {
        self.bind_states(inputs, states)?;
        self.take_own_outputs()?;
        self.call_stateful(inputs, states)?;
        Ok(self.outputs())
    }

    /// Checks the contract for these inputs and the longest of these states, and returns the symbols' values.
    fn bind_states(&mut self, inputs: &[TensorRef<'_>], states: &[&mut State]) -> Result<&[i64], CallError> {
        let Some(table) = &self.model.desc.state else { return Err(CallError::ForeignState) };
        let max = self.model.max_states();
        if states.is_empty() || states.len() > max {
            let model = self.model.clone();
            return Err(CallError::WrongStateCount { model, max, got: states.len() });
        }
        if states.iter().any(|state| state.table().id != table.id) {
            return Err(CallError::ForeignState);
        }

        let mut words = [0_i64; MAX_WORDS];
        let Some(words) = words.get_mut(..table.words.len()) else { return Err(CallError::ForeignState) };
        words
            .iter_mut()
            .enumerate()
            .for_each(|(idx, word)| *word = self.model.merged_word(table, idx, states));
        self.bind_words(inputs, words)
    }
}

impl crate::Model {
    /// The value of a word for the check of a call with these states, at least one. The call checks the words of each.
    fn merged_word(&self, table: &StateTable, idx: usize, states: &[&mut State]) -> i64 {
        let first = states[0].word(idx);
        if states.len() == 1 {
            return first;
        }
        let symbol = table.words[idx];
        match idx {
            // The rows of each state are compared with its own capacity.
            0 if table.has_rows => self.desc.symbols[symbol].hi(),
            1 if table.has_rows => states.iter().map(|state| state.word(idx)).max().unwrap_or(first),
            _ if table.count == Some(symbol) => states.len() as i64,
            _ => first,
        }
    }
}
