//! The inputs of a ragged call, gathered from tensors of its sequences.

use super::{
    error::{MAX_INPUTS, RaggedError},
    ports::{PaddedRows, Part, positions_axis},
    tokens::Tokens,
};
use crate::{
    CallError, Model, RaggedInfo, TensorInfo, TensorName, TensorRef, element,
    tensor::{self, MAX_AXES},
};
use alloc::{string::ToString, vec::Vec};

/// The inputs of a call: sequences that are added one by one, or from padded tensors.
///
/// ```no_run
/// use symshape_runtime::{Context, Model, RaggedBatch, TensorRef};
///
/// let model = Model::open("encoder.so")?;    // ids: i64[T]
/// let mut context = Context::new(&model)?;
/// let mut batch = RaggedBatch::new(&model)?;
/// for text in [vec![101_i64, 7592, 102], vec![101, 102]] {
///     batch.push(&[TensorRef::new(&[text.len()], &text)?])?;
/// }
/// let outputs = context.run_ragged(&batch)?;
/// println!("{:?}", outputs.sequence(0, 1).shape());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Rows are copied once. After [`RaggedBatch::clear`], the memory is used again.
#[derive(Clone, Debug)]
pub struct RaggedBatch {
    pub(super) model: Model,
    inputs: Vec<Gathered>,
    offsets: Vec<i64>,
    tokens: Tokens,
}

/// The elements of an input so far.
#[derive(Clone, Debug)]
struct Gathered {
    part: Part,
    /// Whether tensors were added since the batch was empty.
    is_begun: bool,
    /// The shape of the input for all sequences so far.
    shape: Vec<usize>,
    /// Words, so that they are aligned for elements of any type.
    words: Vec<u64>,
    len_bytes: usize,
}

impl Gathered {
    fn bytes(&self) -> &[u8] {
        &element::bytes(&self.words)[..self.len_bytes]
    }

    /// Adds bytes at the end, which the caller writes.
    fn grow(&mut self, bytes: usize) -> &mut [u8] {
        let first = self.len_bytes;
        self.len_bytes += bytes;
        let needed = self.len_bytes.div_ceil(8);
        if self.words.len() < needed {
            self.words.resize(needed, 0);
        }
        &mut element::bytes_mut(&mut self.words)[first..first + bytes]
    }

    fn clear(&mut self) {
        self.is_begun = false;
        self.shape.clear();
        self.len_bytes = 0;
    }

    /// Whether the elements of a tensor can follow those so far: all axes but one have their sizes.
    fn wrong_axis(&self, shape: &[usize], except: Option<usize>) -> Option<usize> {
        if !self.is_begun {
            return None;
        }
        (0..shape.len()).find(|axis| Some(*axis) != except && shape[*axis] != self.shape[*axis])
    }
}

impl RaggedBatch {
    /// An empty batch.
    ///
    /// # Errors
    /// When the model has no ragged batch, or more than 32 inputs.
    pub fn new(model: &Model) -> Result<RaggedBatch, RaggedError> {
        let ragged = model.ragged().ok_or(RaggedError::NotRagged)?;
        if model.inputs().len() > MAX_INPUTS {
            return Err(RaggedError::TooManyInputs);
        }
        let input = |idx| Gathered {
            part: Part::of_input(model, ragged, idx),
            is_begun: false,
            shape: Vec::new(),
            words: Vec::new(),
            len_bytes: 0,
        };
        Ok(RaggedBatch {
            model: model.clone(),
            inputs: (0..model.inputs().len()).map(input).collect(),
            offsets: alloc::vec![0],
            tokens: Tokens::default(),
        })
    }

    /// Removes all sequences, and keeps the memory.
    pub fn clear(&mut self) {
        self.inputs.iter_mut().for_each(Gathered::clear);
        self.offsets.truncate(1);
        self.tokens.clear();
    }

    /// The places of the tokens of each sequence in padded tensors. Those of [`RaggedBatch::push`] begin at 0.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The first row of each sequence, and at last the number of rows.
    pub fn offsets(&self) -> &[i64] {
        &self.offsets
    }

    /// The inputs of the call, in the model's order.
    pub fn inputs(&self) -> Vec<TensorRef<'_>> {
        self.refs().into_iter().take(self.inputs.len()).collect()
    }

    /// Adds one sequence. `inputs` has the model's inputs without the offsets, each in its shape for this sequence
    /// alone: `[length, …]` for rows, `[1, …]` for an input with a part for each sequence.
    ///
    /// # Errors
    /// When a tensor has another type or shape, or when the batch would exceed the contract. The batch is as before.
    pub fn push(&mut self, inputs: &[TensorRef<'_>]) -> Result<(), RaggedError> {
        self.accept_types(inputs, |_| 0)?;
        let mut length = None;
        for (idx, input) in self.without_offsets().zip(inputs) {
            let except = match self.inputs[idx].part {
                Part::Rows { axis, .. } => {
                    let got = input.shape()[axis];
                    self.expect_size(idx, axis, *length.get_or_insert(got), got)?;
                    Some(axis)
                }
                Part::Item { axis } => {
                    self.expect_size(idx, axis, 1, input.shape()[axis])?;
                    Some(axis)
                }
                Part::Shared => {
                    self.expect_same(idx, input)?;
                    None
                }
                Part::Offsets => None,
            };
            if let Some(axis) = self.inputs[idx].wrong_axis(input.shape(), except) {
                self.expect_size(idx, axis, self.inputs[idx].shape[axis], input.shape()[axis])?;
            }
        }
        let length = length.unwrap_or(0);
        self.accept_lengths(core::iter::once(length))?;

        for (idx, input) in indices(&self.model).zip(inputs) {
            let gathered = &mut self.inputs[idx];
            let is_first = !core::mem::replace(&mut gathered.is_begun, true);
            if is_first {
                gathered.shape.extend_from_slice(input.shape());
            }
            match gathered.part {
                Part::Rows { axis, .. } | Part::Item { axis } if !is_first => {
                    gathered.shape[axis] += input.shape()[axis];
                }
                _ => {}
            }
            if gathered.part != Part::Shared || is_first {
                gathered.grow(input.bytes().len()).copy_from_slice(input.bytes());
            }
        }
        self.tokens.push(length);
        self.add_offset(length);
        Ok(())
    }

    /// Adds the sequences of padded tensors. `inputs` has the inputs of the padded model without the mask, in its
    /// order: `[N, S, …]` for rows.
    ///
    /// # Errors
    /// As [`RaggedBatch::push`].
    pub fn push_padded(&mut self, tokens: &Tokens, inputs: &[TensorRef<'_>]) -> Result<(), RaggedError> {
        self.accept_types(inputs, |part| match part {
            Part::Rows { sequences: Some(_), .. } => 1,
            _ => 0,
        })?;
        let n_sequences = tokens.spans().len();
        for (idx, input) in self.without_offsets().zip(inputs) {
            match self.inputs[idx].part {
                Part::Rows { axis, sequences } => {
                    let positions = positions_axis(axis, sequences);
                    self.expect_size(idx, positions, tokens.positions(), input.shape()[positions])?;
                    if let Some(axis) = sequences {
                        self.expect_size(idx, axis, n_sequences, input.shape()[axis])?;
                    }
                }
                Part::Item { axis } => self.expect_size(idx, axis, n_sequences, input.shape()[axis])?,
                Part::Shared => self.expect_same(idx, input)?,
                Part::Offsets => {}
            }
            let shape = row_shape(self.inputs[idx].part, input.shape());
            let except = axis_of(self.inputs[idx].part);
            if let Some(axis) = self.inputs[idx].wrong_axis(&shape[..input_rank(self, idx)], except) {
                self.expect_size(idx, axis, self.inputs[idx].shape[axis], shape[axis])?;
            }
        }
        self.accept_lengths(tokens.spans().iter().map(ExactSizeIterator::len))?;

        for (idx, input) in indices(&self.model).zip(inputs) {
            let rank = input_rank(self, idx);
            let gathered = &mut self.inputs[idx];
            let is_first = !core::mem::replace(&mut gathered.is_begun, true);
            if is_first {
                gathered.shape.extend_from_slice(&row_shape(gathered.part, input.shape())[..rank]);
                if let Some(axis) = axis_of(gathered.part) {
                    gathered.shape[axis] = 0;
                }
            }
            match gathered.part {
                Part::Rows { axis, sequences } => {
                    gathered.shape[axis] += tokens.rows();
                    let elem_bytes = input.dtype().size_bytes();
                    let padded = PaddedRows::new(input.shape(), elem_bytes, axis, sequences);
                    for (sequence, span) in tokens.spans().iter().enumerate() {
                        let rows = gathered.grow(span.len() * padded.row_bytes());
                        padded.gather(input.bytes(), sequence, span, rows);
                    }
                }
                Part::Item { axis } => {
                    gathered.shape[axis] += n_sequences;
                    gathered.grow(input.bytes().len()).copy_from_slice(input.bytes());
                }
                Part::Shared if is_first => {
                    gathered.grow(input.bytes().len()).copy_from_slice(input.bytes());
                }
                Part::Shared | Part::Offsets => {}
            }
        }
        self.tokens.extend(tokens);
        tokens.spans().iter().for_each(|span| self.add_offset(span.len()));
        Ok(())
    }

    fn add_offset(&mut self, length: usize) {
        self.offsets.push(self.offsets[self.offsets.len() - 1] + length as i64);
    }

    fn ragged(&self) -> &RaggedInfo {
        self.model.ragged().expect("the model has a ragged batch")
    }

    /// The indices of all inputs but the offsets.
    fn without_offsets(&self) -> impl Iterator<Item = usize> + use<> {
        indices(&self.model)
    }

    /// Checks number, types and ranks, where a tensor has `more` axes than in a call.
    fn accept_types(
        &self,
        inputs: &[TensorRef<'_>],
        more: impl Fn(Part) -> usize,
    ) -> Result<(), RaggedError> {
        let expected = self.inputs.len() - 1;
        let got = inputs.len();
        if expected != got {
            return Err(CallError::WrongInputCount { expected, got }.into());
        }
        for (idx, input) in self.without_offsets().zip(inputs) {
            let info = &self.model.inputs()[idx];
            let tensor = || TensorName::input(&self.model.desc, idx);
            if input.dtype() != info.dtype() {
                let expected = info.dtype();
                let got = input.dtype();
                return Err(CallError::WrongDType { tensor: tensor(), expected, got }.into());
            }
            let expected = info.rank() + more(self.inputs[idx].part);
            let got = input.shape().len();
            if expected != got {
                return Err(CallError::WrongRank { tensor: tensor(), expected, got }.into());
            }
        }
        Ok(())
    }

    /// Checks the lengths of new sequences, their number and that of their rows.
    fn accept_lengths(&self, lengths: impl Iterator<Item = usize>) -> Result<(), RaggedError> {
        let ragged = self.ragged();
        let mut sequences = self.offsets.len() - 1;
        let mut rows = usize::try_from(self.offsets[sequences]).unwrap_or(usize::MAX);
        for length in lengths {
            let info = ragged.length();
            if !i64::try_from(length).is_ok_and(|length| info.allows(length)) {
                let symbol = info.name().into();
                let declared = info.to_string();
                return Err(RaggedError::WrongLength { sequence: sequences, length, symbol, declared });
            }
            sequences += 1;
            rows = rows.saturating_add(length);
        }
        for (symbol, value) in [(ragged.sequences(), sequences), (ragged.rows(), rows)] {
            let info = &self.model.symbols()[symbol];
            if i64::try_from(value).map_or(true, |value| value > info.hi()) {
                let declared = info.to_string();
                return Err(RaggedError::TooLarge { symbol: info.name().into(), value, declared });
            }
        }
        Ok(())
    }

    fn expect_size(&self, idx: usize, axis: usize, expected: usize, got: usize) -> Result<(), RaggedError> {
        if expected == got {
            return Ok(());
        }
        Err(RaggedError::WrongSize { tensor: TensorName::input(&self.model.desc, idx), axis, expected, got })
    }

    fn expect_same(&self, idx: usize, input: &TensorRef<'_>) -> Result<(), RaggedError> {
        let gathered = &self.inputs[idx];
        if !gathered.is_begun || gathered.bytes() == input.bytes() {
            return Ok(());
        }
        Err(RaggedError::NotShared { tensor: TensorName::input(&self.model.desc, idx) })
    }

    /// The inputs of the call; those after the last one are empty.
    pub(super) fn refs(&self) -> [TensorRef<'_>; MAX_INPUTS] {
        let mut refs = [tensor::EMPTY; MAX_INPUTS];
        for (idx, (slot, input)) in refs.iter_mut().zip(&self.inputs).enumerate() {
            let offsets_shape = [self.offsets.len()];
            let dtype = self.model.inputs()[idx].dtype();
            let (shape, bytes) = match input.part {
                Part::Offsets => (&offsets_shape[..], element::bytes(&self.offsets)),
                _ if !input.is_begun => no_sequences(&self.model.inputs()[idx]),
                _ => (&input.shape[..], input.bytes()),
            };
            *slot = TensorRef::from_bytes(dtype, shape, bytes).expect("the shape of the gathered rows");
        }
        refs
    }
}

/// The shape and the bytes of an input of no sequences: no elements, or a scalar that is zero.
fn no_sequences(info: &TensorInfo) -> (&'static [usize], &'static [u8]) {
    static SHAPE: [usize; MAX_AXES] = [0; MAX_AXES];
    static SCALAR: [u64; 1] = [0];
    let elems = usize::from(info.rank() == 0);
    (&SHAPE[..info.rank()], &element::bytes(&SCALAR)[..elems * info.dtype().size_bytes()])
}

/// The indices of all inputs but the offsets.
fn indices(model: &Model) -> impl Iterator<Item = usize> + use<> {
    let offsets = model.ragged().map_or(0, RaggedInfo::offsets);
    (0..model.inputs().len()).filter(move |idx| *idx != offsets)
}

fn input_rank(batch: &RaggedBatch, idx: usize) -> usize {
    batch.model.inputs()[idx].rank()
}

/// The axis along which the tensors of sequences follow each other.
fn axis_of(part: Part) -> Option<usize> {
    match part {
        Part::Rows { axis, .. } | Part::Item { axis } => Some(axis),
        Part::Shared | Part::Offsets => None,
    }
}

/// The shape of a padded tensor without the axis of sequences, if it has rows.
fn row_shape(part: Part, padded: &[usize]) -> [usize; MAX_AXES] {
    let mut shape = [0; MAX_AXES];
    let skipped = match part {
        Part::Rows { sequences, .. } => sequences,
        _ => None,
    };
    let kept = (0..padded.len()).filter(|axis| Some(*axis) != skipped);
    for (to, from) in kept.enumerate() {
        shape[to] = padded[from];
    }
    shape
}
