//! States: the memory that a model keeps from call to call, one block for each sequence.
//!
//! A block begins with a header: a magic number, a hash of the model, the bytes of the block, and the values of the
//! symbols in the shapes of the tensors, capacity and length first. The compiled call checks the header, writes new
//! rows, and updates the length.

use crate::{
    CallError, Context, Model, Outputs, TensorMut, TensorRef,
    abi::{STATE_MAGIC, StateHeader},
    arena::Arena,
    bytes::array_at,
    descriptor::{MAX_WORDS, StateTable},
    tensor,
};
use alloc::{string::String, vec::Vec};
use thiserror::Error;

/// Byte offset of the first word after the fixed part of the header.
const WORDS_AT: usize = size_of::<StateHeader>();

/// The first bytes of a saved state.
const SAVED_MAGIC: &[u8; 8] = b"symsave1";

/// The state of one sequence: the cache of a decoder, the hidden values of a recurrent model.
///
/// ```no_run
/// use symshape_runtime::{Context, Model, State, TensorRef};
///
/// let model = Model::open("decoder.so")?;
/// let mut context = Context::new(&model)?;
/// let mut state = State::new(&model, 1024)?;
///
/// let prompt = [15_i64, 7, 42];
/// let outputs = context.run_stateful_views(&[TensorRef::new(&[1, 3], &prompt)?], &mut state)?;
/// println!("{:?}", outputs.get(0).shape());
/// assert_eq!(state.length(), 3);
///
/// let next = [8_i64];
/// context.run_stateful_views(&[TensorRef::new(&[1, 1], &next)?], &mut state)?;
/// state.truncate(3)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct State {
    model: Model,
    memory: Arena,
    /// The dims of the state, in the order of the model's symbols. Those of other symbols are the smallest allowed.
    dims: Vec<i64>,
}

/// The error of making, changing or loading a state.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StateError {
    /// The model has no state.
    #[error("the model has no state: compile it with --stateful or --state")]
    NoState,
    /// A dim is outside of the contract.
    #[error("{symbol} = {value}; {symbol} is declared {declared}")]
    NotAllowed {
        /// The symbol.
        symbol: String,
        /// The value given.
        value: i64,
        /// The declaration.
        declared: String,
    },
    /// The state has no symbol of this name.
    #[error("the state has no size `{name}`; it has {names}")]
    NoSymbol {
        /// The name given.
        name: String,
        /// The names that it has.
        names: String,
    },
    /// The system refuses the memory.
    #[error("can't reserve {bytes} bytes for a state")]
    Reserve {
        /// The bytes requested.
        bytes: usize,
    },
    /// More rows should stay than there are.
    #[error("can't truncate a state of {length} rows to {wanted}")]
    TooLong {
        /// The rows that there are.
        length: usize,
        /// The rows requested.
        wanted: usize,
    },
    /// A part of the state is overwritten by each call, and has no earlier values.
    #[error(
        "can't truncate the state: `{tensor}` is overwritten by each call; load a saved state, or keep a fork"
    )]
    Overwritten {
        /// The input.
        tensor: String,
    },
    /// The bytes are not those of a saved state of this model.
    #[error("not a state of this model: {0}")]
    Malformed(&'static str),
    /// A tensor has another type or shape.
    #[error("`{tensor}` is {expected} in this state; got {got}")]
    WrongTensor {
        /// The input.
        tensor: String,
        /// Type and shape in the state.
        expected: String,
        /// Type and shape given.
        got: String,
    },
}

impl State {
    /// An empty state with memory for `capacity` rows. All other sizes, such as the batch, are the smallest allowed
    /// ones that are not zero. A state without rows, as that of a recurrent model, has no capacity: pass 0.
    ///
    /// Memory is reserved now. The system commits most of it when it is first written.
    ///
    /// # Errors
    /// When the model has no state, the capacity is not allowed, or the system refuses the memory.
    pub fn new(model: &Model, capacity: usize) -> Result<State, StateError> {
        State::with_dims(model, capacity, &[])
    }

    /// As [`State::new`], with the values of other sizes of the state, such as `("N", 4)`.
    ///
    /// # Errors
    /// As [`State::new`], and when the state has no such size or its value is not allowed.
    pub fn with_dims(model: &Model, capacity: usize, sizes: &[(&str, i64)]) -> Result<State, StateError> {
        let table = table(model)?;
        let mut dims = sizes_to_dims(model, table, sizes)?;
        if table.has_rows {
            dims[table.words[0]] = i64::try_from(capacity).unwrap_or(i64::MAX);
            dims[table.words[1]] = 0;
        } else if capacity != 0 {
            return Err(StateError::NoSymbol { name: "capacity".into(), names: size_names(model, table) });
        }

        let length = table.has_rows.then(|| table.words[1]);
        for at in table.words.iter().filter(|at| Some(**at) != length) {
            allowed(model, *at, dims[*at])?;
        }

        let bytes = table.bytes(&dims);
        let memory = Arena::reserve(bytes, &[]).map_err(|_| StateError::Reserve { bytes })?;
        let mut state = State { model: model.clone(), memory, dims };
        state.write_header(bytes);
        Ok(state)
    }

    /// The largest capacity of a state of at most `bytes` bytes, with these other sizes; `None` if none fits.
    ///
    /// # Errors
    /// When the state has no rows, or a size is unknown or not allowed.
    pub fn max_capacity(
        model: &Model,
        bytes: usize,
        sizes: &[(&str, i64)],
    ) -> Result<Option<usize>, StateError> {
        let table = table(model)?;
        if !table.has_rows {
            return Err(StateError::NoSymbol { name: "capacity".into(), names: size_names(model, table) });
        }
        let capacity = &model.symbols()[table.words[0]];
        let mut dims = sizes_to_dims(model, table, sizes)?;
        let mut fits = |value: i64| {
            dims[table.words[0]] = value;
            table.bytes(&dims) <= bytes
        };
        // The bytes grow with the capacity.
        let (mut lo, mut hi) = (capacity.lo(), capacity.hi());
        if !fits(lo) {
            return Ok(None);
        }
        while lo < hi {
            let middle = hi - (hi - lo) / 2;
            if fits(middle) {
                lo = middle;
            } else {
                hi = middle - 1;
            }
        }
        Ok(usize::try_from(lo).ok())
    }

    /// The model that it belongs to.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Number of rows: of tokens that a decoder has read. 0 if the state has no rows.
    pub fn length(&self) -> usize {
        if self.table().has_rows { usize::try_from(self.word(1)).unwrap_or(0) } else { 0 }
    }

    /// Number of rows that there is memory for. 0 if the state has no rows.
    pub fn capacity(&self) -> usize {
        if self.table().has_rows { usize::try_from(self.word(0)).unwrap_or(0) } else { 0 }
    }

    /// Size of the block in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// The block: header, then tensors. Its address stays the same, and no other memory holds the state.
    pub fn block_bytes(&self) -> &[u8] {
        self.memory.slice(0, self.memory.len())
    }

    /// Forgets everything: no rows, and zeros in the tensors that calls overwrite.
    pub fn reset(&mut self) {
        for idx in 0..self.table().tensors.len() {
            if self.table().tensors[idx].axis.is_none() {
                let (offset, bytes) = self.span(idx);
                self.memory.slice_mut(offset, bytes).fill(0);
            }
        }
        self.set_length(0);
    }

    /// Forgets the rows after the first `length` ones. The next call appends after them.
    ///
    /// # Errors
    /// When there are fewer rows, or calls overwrite a tensor of the state: its earlier values are gone. A reset is
    /// always possible.
    pub fn truncate(&mut self, length: usize) -> Result<(), StateError> {
        let own = self.length();
        if length > own {
            return Err(StateError::TooLong { length: own, wanted: length });
        }
        let overwritten = self.table().tensors.iter().find(|tensor| tensor.axis.is_none());
        if let Some(tensor) = overwritten.filter(|_| length < own) {
            return Err(StateError::Overwritten { tensor: tensor.input().into() });
        }
        self.set_length(length);
        Ok(())
    }

    /// Forgets the rows after the first `length` ones, and leaves overwritten tensors as they are. Repeated
    /// measurements of one step use it; the values of later calls are right only if no tensor is overwritten.
    ///
    /// # Panics
    /// When there are fewer rows.
    pub fn rewind(&mut self, length: usize) {
        assert!(length <= self.length(), "a state can't be rewound to later rows");
        self.set_length(length);
    }

    /// A copy with the same content and capacity. Only the valid rows are copied.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn fork(&self) -> Result<State, StateError> {
        let bytes = self.memory.len();
        let memory = Arena::reserve(bytes, &[]).map_err(|_| StateError::Reserve { bytes })?;
        let mut copy = State { model: self.model.clone(), memory, dims: self.dims.clone() };
        copy.write_header(bytes);
        copy.set_length(self.length());
        for (offset, len) in self.spans() {
            copy.memory.slice_mut(offset, len).copy_from_slice(self.memory.slice(offset, len));
        }
        Ok(copy)
    }

    /// The content of the state as bytes, for [`State::load`]. Only the valid rows are written.
    pub fn save(&self) -> Vec<u8> {
        let header = self.table().header_bytes;
        let mut bytes = Vec::from(SAVED_MAGIC);
        bytes.extend_from_slice(self.memory.slice(0, header));
        for (offset, len) in self.spans() {
            bytes.extend_from_slice(self.memory.slice(offset, len));
        }
        bytes
    }

    /// The state that [`State::save`] wrote, with the same capacity.
    ///
    /// # Errors
    /// When the bytes are damaged, cut off, or were saved from a state of another model.
    pub fn load(model: &Model, bytes: &[u8]) -> Result<State, StateError> {
        let table = table(model)?;
        let cut = || StateError::Malformed("the file is cut off");
        let rest = bytes.strip_prefix(SAVED_MAGIC).ok_or(StateError::Malformed("it is not a saved state"))?;
        let (header, mut rest) = rest.split_at_checked(table.header_bytes).ok_or_else(cut)?;
        let word = |at: usize| i64::from_le_bytes(array_at(header, at));
        if word(0) as u64 != STATE_MAGIC {
            return Err(StateError::Malformed("its header is damaged"));
        }
        if word(8) as u64 != table.id {
            return Err(StateError::Malformed("it belongs to another model, or to another version of it"));
        }

        let mut dims: Vec<i64> = model.symbols().iter().map(smallest).collect();
        for (idx, at) in table.words.iter().enumerate() {
            dims[*at] = word(WORDS_AT + 8 * idx);
            let is_length = table.has_rows && idx == 1;
            if !is_length {
                allowed(model, *at, dims[*at])?;
            }
        }
        let length = if table.has_rows { dims[table.words[1]] } else { 0 };
        if table.has_rows && !(0..=dims[table.words[0]]).contains(&length) {
            return Err(StateError::Malformed("its length exceeds its capacity"));
        }

        let bytes = table.bytes(&dims);
        let memory = Arena::reserve(bytes, &[]).map_err(|_| StateError::Reserve { bytes })?;
        let mut state = State { model: model.clone(), memory, dims };
        state.write_header(bytes);
        state.set_length(usize::try_from(length).unwrap_or(0));
        for (offset, len) in state.spans() {
            let (own, tail) = rest.split_at_checked(len).ok_or_else(cut)?;
            state.memory.slice_mut(offset, len).copy_from_slice(own);
            rest = tail;
        }
        if !rest.is_empty() {
            return Err(StateError::Malformed("the file is too long"));
        }
        Ok(state)
    }

    /// The shape of tensor `idx`, as the model's input has it: with the valid rows only.
    ///
    /// # Panics
    /// When the state has no such tensor.
    pub fn shape(&self, idx: usize) -> Vec<usize> {
        let (_, mut shape) = self.table().place(idx, &self.dims);
        if let Some(axis) = self.table().tensors[idx].axis {
            shape[axis] = self.length();
        }
        shape
    }

    /// The valid elements of tensor `idx`, dense and row-major, as the model's output of the last call has them.
    ///
    /// # Panics
    /// When the state has no such tensor.
    pub fn tensor_bytes(&self, idx: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (offset, len) in self.tensor_spans(idx, self.length()) {
            bytes.extend_from_slice(self.memory.slice(offset, len));
        }
        bytes
    }

    /// Offset and bytes in the block of each run of elements that a call from `length` rows on has written: the rows
    /// from there to the end, and all tensors that calls overwrite.
    pub fn written_spans(&self, length: usize) -> Vec<(usize, usize)> {
        let mut spans = Vec::new();
        for (idx, info) in self.table().tensors.iter().enumerate() {
            let old = if info.axis.is_some() { self.tensor_spans(idx, length) } else { Vec::new() };
            for (at, (offset, len)) in self.tensor_spans(idx, self.length()).into_iter().enumerate() {
                let kept = old.get(at).map_or(0, |(_, kept)| *kept).min(len);
                spans.push((offset + kept, len - kept));
            }
        }
        spans
    }

    /// Sets all tensors, in the order of [`Model::state`], and with them the number of rows: the beginning of a
    /// conversation that another program computed.
    ///
    /// # Errors
    /// When a type or shape differs, or the numbers of rows differ or exceed the capacity. The state is unchanged then.
    pub fn set(&mut self, tensors: &[TensorRef<'_>]) -> Result<(), StateError> {
        let infos = self.model.state();
        if tensors.len() != infos.len() {
            return Err(StateError::Malformed("there must be one tensor for each tensor of the state"));
        }

        let mut length = None;
        for (idx, (tensor, info)) in tensors.iter().zip(infos).enumerate() {
            let (_, mut shape) = self.table().place(idx, &self.dims);
            let rows = info.axis.and_then(|axis| tensor.shape().get(axis).map(|rows| (axis, *rows)));
            if let Some((axis, rows)) = rows.filter(|(axis, rows)| *rows <= shape[*axis]) {
                shape[axis] = *length.get_or_insert(rows);
            }
            if tensor.dtype() != info.dtype() || tensor.shape() != shape {
                return Err(StateError::WrongTensor {
                    tensor: info.input().into(),
                    expected: alloc::format!("{}{shape:?}", info.dtype()),
                    got: alloc::format!("{}{:?}", tensor.dtype(), tensor.shape()),
                });
            }
        }

        let length = length.unwrap_or(0);
        for (idx, tensor) in tensors.iter().enumerate() {
            let mut rest = tensor.bytes();
            for (offset, len) in self.tensor_spans(idx, length) {
                let (own, tail) = rest.split_at(len);
                self.memory.slice_mut(offset, len).copy_from_slice(own);
                rest = tail;
            }
        }
        self.set_length(length);
        Ok(())
    }

    /// The address of the block.
    pub(crate) fn block(&mut self) -> *mut u8 {
        self.memory.at(0)
    }

    pub(crate) fn table(&self) -> &StateTable {
        self.model.desc.state.as_ref().expect("a state's model has state")
    }

    fn write_header(&mut self, bytes: usize) {
        let id = self.table().id;
        let mut words = alloc::vec![STATE_MAGIC, id, bytes as u64, 0];
        words.extend(self.table().words.iter().map(|at| self.dims[*at] as u64));
        let header: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.memory.slice_mut(0, header.len()).copy_from_slice(&header);
    }

    /// A word of the header.
    pub(crate) fn word(&self, idx: usize) -> i64 {
        let bytes = self.memory.slice(WORDS_AT + 8 * idx, 8);
        i64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn set_length(&mut self, length: usize) {
        if self.table().has_rows {
            let bytes = (length as i64).to_ne_bytes();
            self.memory.slice_mut(WORDS_AT + 8, 8).copy_from_slice(&bytes);
        }
    }

    /// Offset and bytes of the whole memory of a tensor.
    fn span(&self, idx: usize) -> (usize, usize) {
        let (offset, shape) = self.table().place(idx, &self.dims);
        (offset, tensor::size_bytes(self.table().tensors[idx].dtype(), &shape).unwrap_or(0))
    }

    /// Offset and bytes of each contiguous run of valid elements, of all tensors.
    fn spans(&self) -> Vec<(usize, usize)> {
        (0..self.table().tensors.len()).flat_map(|idx| self.tensor_spans(idx, self.length())).collect()
    }

    /// Offset and bytes of each contiguous run of the elements of a tensor in the first `length` rows.
    fn tensor_spans(&self, idx: usize, length: usize) -> Vec<(usize, usize)> {
        let (offset, shape) = self.table().place(idx, &self.dims);
        let (_, bytes) = self.span(idx);
        let Some(axis) = self.table().tensors[idx].axis else { return alloc::vec![(offset, bytes)] };
        let outer: usize = shape[..axis].iter().product();
        if outer == 0 || shape[axis] == 0 {
            return Vec::new();
        }
        let block = bytes / outer;
        let valid = block / shape[axis] * length;
        (0..outer).map(|at| (offset + at * block, valid)).collect()
    }
}

impl core::fmt::Debug for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("State")
            .field("model", &self.model.name())
            .field("length", &self.length())
            .field("capacity", &self.capacity())
            .field("bytes", &self.bytes())
            .finish()
    }
}

/// The state of a model.
fn table(model: &Model) -> Result<&StateTable, StateError> {
    model.desc.state.as_ref().ok_or(StateError::NoState)
}

/// The dims of a state with these sizes. Those without a value are the smallest that are allowed.
fn sizes_to_dims(model: &Model, table: &StateTable, sizes: &[(&str, i64)]) -> Result<Vec<i64>, StateError> {
    let symbols = model.symbols();
    let mut dims: Vec<i64> = symbols.iter().map(smallest).collect();
    for (name, value) in sizes {
        let own = table.words.iter().skip(if table.has_rows { 2 } else { 0 });
        let Some(at) = own.copied().find(|at| symbols[*at].name() == *name) else {
            return Err(StateError::NoSymbol { name: (*name).into(), names: size_names(model, table) });
        };
        allowed(model, at, *value)?;
        dims[at] = *value;
    }
    Ok(dims)
}

/// The smallest allowed value that is not zero, or zero.
fn smallest(symbol: &crate::SymbolInfo) -> i64 {
    let first = symbol.nth(0).unwrap_or(symbol.lo());
    if first > 0 { first } else { symbol.nth(1).unwrap_or(first) }
}

/// Refuses a value that the declaration of a symbol does not allow.
fn allowed(model: &Model, at: usize, value: i64) -> Result<(), StateError> {
    let symbol = &model.symbols()[at];
    if symbol.allows(value) {
        return Ok(());
    }
    let declared = alloc::format!("{symbol}");
    Err(StateError::NotAllowed { symbol: symbol.name().into(), value, declared })
}

/// The names of the sizes that a caller chooses.
fn size_names(model: &Model, table: &StateTable) -> String {
    let mut names = String::new();
    for (idx, at) in table.words.iter().enumerate() {
        if table.has_rows && idx == 1 {
            continue;
        }
        if !names.is_empty() {
            names.push_str(", ");
        }
        names.push_str(model.symbols()[*at].name());
    }
    if names.is_empty() { "none".into() } else { names }
}

impl Context {
    /// Runs a model with state into the caller's buffers. The call reads the state and updates it: new rows follow the
    /// old ones, and the length grows by their number.
    ///
    /// # Errors
    /// As [`Context::run`], and when the state belongs to another model or the new rows don't fit. The length of the
    /// state and its overwritten tensors are unchanged then.
    pub fn run_stateful(
        &mut self,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        state: &mut State,
    ) -> Result<(), CallError> {
        self.bind_state(inputs, state)?;
        self.take_outputs(outputs)?;
        self.call_stateful(inputs, &mut [state])
    }

    /// As [`Context::run_stateful`], into the context's own memory, where the outputs stay until the next call.
    ///
    /// # Errors
    /// As [`Context::run_stateful`].
    pub fn run_stateful_views(
        &mut self,
        inputs: &[TensorRef<'_>],
        state: &mut State,
    ) -> Result<Outputs<'_>, CallError> {
        self.bind_state(inputs, state)?;
        self.take_own_outputs()?;
        self.call_stateful(inputs, &mut [state])?;
        Ok(self.outputs())
    }

    /// Checks the contract for these inputs and this state, and returns the symbols' values.
    ///
    /// # Errors
    /// The first violation.
    pub fn bind_state(&mut self, inputs: &[TensorRef<'_>], state: &State) -> Result<&[i64], CallError> {
        let Some(table) = &self.model.desc.state else { return Err(CallError::ForeignState) };
        if table.id != state.table().id {
            return Err(CallError::ForeignState);
        }
        let mut words = [0_i64; MAX_WORDS];
        let n_words = table.words.len();
        let Some(words) = words.get_mut(..n_words) else { return Err(CallError::ForeignState) };
        words.iter_mut().enumerate().for_each(|(idx, word)| *word = state.word(idx));
        self.bind_words(inputs, words)
    }
}
