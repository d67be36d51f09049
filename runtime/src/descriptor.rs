//! The descriptor of an artefact with a safe interface. Only this file follows its pointers and calls its code.
//!
//! [`Desc::read`] validates everything once and copies names and ranges into owned memory. The methods call the
//! function pointers that remain, with arguments of the lengths that the descriptor's counts require.

use crate::{
    DType, MAX_AXES, OpenError, PartitionInfo, RaggedInfo, StateInfo, SymbolInfo, TensorInfo,
    abi::{
        ABI_VERSION, ANY_ORDER, Code, Error, Exec, GROWS, MAGIC, MONOTONE, ModelDesc, PartitionDesc,
        Precision, StateDesc, StateHeader, StateTensorDesc, SymbolDesc, TensorDesc,
    },
};
use alloc::{string::String, sync::Arc, vec::Vec};
use core::{
    any::Any,
    ffi::{CStr, c_char, c_void},
    num::NonZeroU32,
};

/// A table with more entries than this means that the descriptor is damaged.
const MAX_ENTRIES: u32 = 1 << 16;

/// The largest number of words of a state's header.
pub(crate) const MAX_WORDS: usize = 64;

/// The owner of an artefact's memory: a loaded library, executable pages, or nothing.
pub(crate) type Keep = Arc<dyn Any + Send + Sync>;

/// A validated descriptor and the owner of its memory.
pub(crate) struct Desc {
    raw: &'static ModelDesc,
    pub(crate) name: String,
    pub(crate) formula: String,
    pub(crate) symbols: Vec<SymbolInfo>,
    pub(crate) inputs: Vec<TensorInfo>,
    pub(crate) outputs: Vec<TensorInfo>,
    pub(crate) partitions: Vec<PartitionInfo>,
    pub(crate) state: Option<StateTable>,
    pub(crate) ragged: Option<RaggedInfo>,
    _keep: Keep,
}

/// The state of a model, copied from its descriptor.
pub(crate) struct StateTable {
    raw: &'static StateDesc,
    pub(crate) id: u64,
    pub(crate) max_bytes: usize,
    pub(crate) header_bytes: usize,
    pub(crate) has_rows: bool,
    /// The symbols of the header's words, as indices into the dims.
    pub(crate) words: Vec<usize>,
    /// The symbol that is the number of states of a call, as an index into the dims; `None` if a call takes one.
    pub(crate) count: Option<usize>,
    /// Why a call takes one state only.
    pub(crate) one_state: Option<String>,
    pub(crate) tensors: Vec<StateInfo>,
}

impl StateTable {
    /// Reads and validates the descriptor of a state.
    ///
    /// # Safety
    /// `raw` points to a descriptor as the ABI says, which stays valid as long as the returned value is used.
    unsafe fn read(raw: *const StateDesc, n_symbols: u32) -> Result<Option<StateTable>, OpenError> {
        // SAFETY: as the caller promises.
        let Some(raw) = (unsafe { raw.as_ref() }) else { return Ok(None) };
        // SAFETY: the tables have the numbers of entries that the descriptor states.
        let (words, tensors) =
            unsafe { (table(raw.words, raw.n_words)?, table(raw.tensors, raw.n_tensors)?) };
        let has_rows = raw.has_rows != 0;
        let needed = size_of::<StateHeader>() + 8 * words.len();
        if words.iter().any(|word| *word >= n_symbols)
            || has_rows && words.len() < 2
            || words.len() > MAX_WORDS
            || (raw.header_bytes as usize) < needed
            || raw.max_bytes > isize::MAX as u64 / 2
        {
            return Err(OpenError::Malformed("the table of its state is damaged"));
        }
        // SAFETY: as the caller promises.
        let tensors = tensors.iter().map(|desc| unsafe { state_tensor(desc) }).collect::<Result<_, _>>()?;
        Ok(Some(StateTable {
            raw,
            id: raw.id,
            max_bytes: raw.max_bytes as usize,
            header_bytes: raw.header_bytes as usize,
            has_rows,
            words: words.iter().map(|word| *word as usize).collect(),
            count: (raw.count < n_symbols).then_some(raw.count as usize),
            // SAFETY: as the caller promises.
            one_state: (!raw.one_state.is_null()).then(|| unsafe { string(raw.one_state) }).transpose()?,
            tensors,
        }))
    }

    /// Bytes of a block at these dims, of which those of the words matter and are allowed.
    pub(crate) fn bytes(&self, dims: &[i64]) -> usize {
        // SAFETY: `dims` has an entry for each symbol, as all callers ensure; the function only computes.
        unsafe { (self.raw.bytes)(dims.as_ptr()) }
    }

    /// The byte offset of a tensor, and its dims in memory.
    pub(crate) fn place(&self, tensor: usize, dims: &[i64]) -> (usize, Vec<usize>) {
        let mut place = alloc::vec![0_i64; 1 + self.tensors[tensor].dims().len()];
        // SAFETY: the tensor exists, `place` has an entry for the offset and one for each axis; the rest as in `bytes`.
        let code = unsafe { (self.raw.place)(tensor as u32, dims.as_ptr(), place.as_mut_ptr()) };
        debug_assert_eq!(code, 0, "the tensor exists");
        let sizes: Vec<usize> = place.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).collect();
        (sizes[0], sizes[1..].to_vec())
    }
}

/// A row of the state's table.
///
/// # Safety
/// Its pointers are as the ABI says.
unsafe fn state_tensor(desc: &StateTensorDesc) -> Result<StateInfo, OpenError> {
    // SAFETY: as the caller promises.
    let (tensor, output) = unsafe { (tensor(&desc.tensor)?, string(desc.output)?) };
    let axis = (desc.axis != u32::MAX).then_some(desc.axis as usize);
    if axis.is_some_and(|axis| axis >= tensor.dims.len()) {
        return Err(OpenError::Malformed("the rows of a state are along an axis that it lacks"));
    }
    Ok(StateInfo { tensor, output, axis })
}

// SAFETY: a descriptor is constant data and its functions are re-entrant by the ABI; the rest is owned.
unsafe impl Send for Desc {}
// SAFETY: as above: the memory that the pointers refer to is never written.
unsafe impl Sync for Desc {}

impl Desc {
    /// Reads and validates the descriptor at `raw`.
    ///
    /// # Safety
    /// `raw` is null or points to a [`ModelDesc`] from symshape's compiler, or to one that meets the same
    /// requirements. It stays valid and constant while `keep` is alive. The first two fields are checked before the
    /// others are read.
    pub(crate) unsafe fn read(raw: *const ModelDesc, keep: Keep) -> Result<Desc, OpenError> {
        // SAFETY: as the caller promises, a non-null `raw` points to a descriptor that outlives `keep` and so `self`;
        // the `'static` never leaves this struct.
        let raw = unsafe { raw.as_ref() }.ok_or(OpenError::Malformed("its descriptor is null"))?;
        if raw.magic != MAGIC {
            return Err(OpenError::Malformed("it does not begin with symshape's magic number"));
        }
        if raw.abi_version != ABI_VERSION {
            return Err(OpenError::Version { found: raw.abi_version, expected: ABI_VERSION });
        }
        // SAFETY: the tables have the numbers of entries that the descriptor states, and all strings are C strings.
        unsafe {
            let symbols = table(raw.symbols, raw.n_symbols)?;
            let inputs = table(raw.inputs, raw.n_inputs)?;
            let outputs = table(raw.outputs, raw.n_outputs)?;
            if raw.n_data_dependent > u64::from(MAX_ENTRIES) {
                return Err(OpenError::Malformed("a table has too many entries"));
            }
            let n_partitions = u32::try_from(raw.n_partitions).unwrap_or(u32::MAX);
            let partitions = table(raw.partitions, n_partitions)?;
            if n_partitions > 0 && (raw.begin.is_none() || raw.arena_slice.is_none()) {
                return Err(OpenError::Malformed("it has partitions but not the functions that run them"));
            }
            if !usize::try_from(raw.arena_max).is_ok_and(|bytes| bytes < isize::MAX as usize / 2) {
                return Err(OpenError::Malformed("its arena exceeds the address space"));
            }

            Ok(Desc {
                raw,
                name: string(raw.name)?,
                formula: string(raw.arena_formula)?,
                symbols: symbols.iter().map(|desc| symbol(desc)).collect::<Result<_, _>>()?,
                inputs: inputs.iter().map(|desc| tensor(desc)).collect::<Result<_, _>>()?,
                outputs: outputs.iter().map(|desc| tensor(desc)).collect::<Result<_, _>>()?,
                partitions: partitions
                    .iter()
                    .enumerate()
                    .map(|(number, desc)| partition(number, desc, raw.n_symbols))
                    .collect::<Result<_, _>>()?,
                state: StateTable::read(raw.state, raw.n_symbols)?,
                ragged: ragged(raw)?,
                _keep: keep,
            })
        }
    }

    /// The description of the weights file that calls need; `None` if the artefact contains its weights.
    #[cfg(feature = "std")]
    pub(crate) fn weights_desc(&self) -> Option<&crate::abi::WeightsDesc> {
        // SAFETY: the pointer is null or as the ABI says, and the memory that it points to lives as long as `self`.
        unsafe { self.raw.weights.as_ref() }
    }

    /// The name of the weights file that was written with the artefact.
    #[cfg(feature = "std")]
    pub(crate) fn weights_name(&self) -> Result<Option<&str>, OpenError> {
        let Some(desc) = self.weights_desc() else { return Ok(None) };
        let name = crate::abi::WeightsDesc::parse_name(&desc.file_name);
        name.map(Some).ok_or(OpenError::Malformed("the name of its weights file is damaged"))
    }

    /// Length of `dims`: the symbols, then the data-dependent sizes.
    pub(crate) fn n_dims(&self) -> usize {
        self.symbols.len() + self.raw.n_data_dependent as usize
    }

    /// Whether the model has data-dependent sizes, so that the shapes of outputs are final only after a call.
    pub(crate) fn has_data_dependent_sizes(&self) -> bool {
        self.raw.n_data_dependent > 0
    }

    /// Whether contexts take memory when calls need it.
    pub(crate) fn grows(&self) -> bool {
        self.raw.flags & GROWS != 0
    }

    /// Whether the arena never shrinks as a dim grows.
    pub(crate) fn is_monotone(&self) -> bool {
        self.raw.flags & MONOTONE != 0
    }

    /// Whether partitions may run in any order that respects their dependencies.
    pub(crate) fn any_order(&self) -> bool {
        self.raw.flags & ANY_ORDER != 0
    }

    /// Bytes of a call's frame.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.raw.frame_bytes as usize
    }

    /// Estimated work of a partition for dims within the contract.
    pub(crate) fn cost(&self, partition: usize, dims: &[i64], threads: u32) -> i64 {
        assert!(dims.len() >= self.symbols.len() && partition < self.partitions.len());
        // SAFETY: the table has this entry, and `dims` one for each symbol; the function only computes.
        unsafe { ((*self.raw.partitions.add(partition)).cost)(dims.as_ptr(), threads) }
    }

    /// A partition's part of the arena for dims within the contract.
    pub(crate) fn arena_slice(&self, partition: usize, dims: &[i64]) -> core::ops::Range<usize> {
        assert!(dims.len() >= self.symbols.len() && partition < self.partitions.len());
        let mut slice = [0_usize; 2];
        if let Some(function) = self.raw.arena_slice {
            // SAFETY: `dims` has one entry for each symbol, and `slice` has two.
            let code = unsafe { function(partition as u32, dims.as_ptr(), slice.as_mut_ptr()) };
            debug_assert_eq!(code, 0, "the partition exists");
        }
        slice[0]..slice[1]
    }

    /// Prepares `frame` for the partitions of one call.
    ///
    /// # Safety
    /// As [`Desc::run`]; `frame` is memory of `frame_bytes()` bytes at a multiple of 64. All memory that the arguments
    /// point to, including `exec` and its error, stays valid until the last partition has run.
    pub(crate) unsafe fn begin(
        &self,
        slots: &Slots,
        dims: &mut [i64],
        arena: *mut u8,
        exec: *const Exec,
        frame: *mut u8,
    ) -> i32 {
        assert!(dims.len() == self.n_dims());
        assert!(slots.inputs.len() == self.inputs.len() + 1 && slots.outputs.len() == self.outputs.len());
        let begin = self.raw.begin.expect("`Desc::read` checked it");
        let inputs = slots.inputs.as_ptr();
        let outputs = slots.outputs.as_ptr();
        // SAFETY: as the caller promises.
        unsafe { begin(inputs, outputs, dims.as_mut_ptr(), arena.cast(), exec, frame.cast()) }
    }

    /// Runs a partition.
    ///
    /// # Safety
    /// [`Desc::begin`] has prepared `frame`, and its requirements still hold. All partitions that this one depends on
    /// have run in it, and this one has not. If the artefact is not planned for any order, all earlier partitions have
    /// run.
    pub(crate) unsafe fn step(&self, partition: usize, frame: *mut u8) -> i32 {
        assert!(partition < self.partitions.len());
        // SAFETY: the table has this entry; everything else is as the caller promises.
        unsafe { ((*self.raw.partitions.add(partition)).run)(frame.cast()) }
    }

    /// Operand precision of contractions on machines with tile registers.
    pub(crate) fn precision(&self) -> Precision {
        match self.raw.precision {
            1 => Precision::Bf16x3,
            2 => Precision::Bf16,
            _ => Precision::F32,
        }
    }

    /// Bound of the relative error of one multiplication on tile registers.
    pub(crate) fn product_error(&self) -> f64 {
        self.raw.product_error
    }

    /// Whether calls use tile registers.
    pub(crate) fn uses_tiles(&self) -> bool {
        // SAFETY: the function takes nothing and reads a word of the artefact.
        self.raw.uses_tiles.is_some_and(|uses| unsafe { uses() } != 0)
    }

    /// The bound of the arena as the descriptor states it.
    pub(crate) fn arena_max(&self) -> u64 {
        self.raw.arena_max
    }

    /// Binds the symbols from the inputs' shapes, which are concatenated in `shapes`, and from the words of the state's
    /// header, of which there are none if the model has no state.
    pub(crate) fn check(
        &self,
        shapes: &[i64],
        words: &[i64],
        slots: &mut Slots,
        dims: &mut [i64],
    ) -> Result<(), Error> {
        assert!(dims.len() == self.n_dims() && slots.shapes.len() == self.inputs.len() + 1);
        assert!(words.len() == self.state.as_ref().map_or(0, |state| state.words.len()));
        slots.shapes[self.inputs.len()] = words.as_ptr();
        let mut rest = shapes;
        for (slot, input) in slots.shapes.iter_mut().zip(&self.inputs) {
            let (shape, tail) = rest.split_at(input.rank());
            *slot = shape.as_ptr();
            rest = tail;
        }

        let mut error = Error::NONE;

        // SAFETY: there is a pointer for each input, to a dim for each of its axes (`split_at` above checks it); an
        // entry for each symbol; and an error.
        let code = unsafe { (self.raw.check)(slots.shapes.as_ptr(), dims.as_mut_ptr(), &mut error) };
        outcome(code, error)
    }

    /// Bytes of arena for dims within the contract.
    pub(crate) fn arena_bytes(&self, dims: &[i64]) -> usize {
        assert!(dims.len() >= self.symbols.len());
        // SAFETY: `dims` has one entry for each symbol; the function only computes.
        unsafe { (self.raw.arena_bytes)(dims.as_ptr()) }
    }

    /// Writes the shape of output `idx` into `shape`.
    pub(crate) fn output_shape(&self, idx: usize, dims: &[i64], shape: &mut [i64]) {
        assert!(dims.len() == self.n_dims() && shape.len() == self.outputs[idx].rank());
        // SAFETY: `dims` has all entries, and `shape` one for each axis of that output.
        let code = unsafe { (self.raw.output_shape)(idx as u32, dims.as_ptr(), shape.as_mut_ptr()) };
        debug_assert_eq!(code, 0, "the output exists");
    }

    /// Runs a model with state on the memory that `slots` points to, and on the blocks of the first `n_states` states
    /// there.
    ///
    /// # Safety
    /// As [`Desc::run`]. The blocks are 64-byte aligned states of this model, exclusive to this call and distinct. The
    /// check has seen the words of their headers: those of the only one, or those of the longest of several.
    pub(crate) unsafe fn run_stateful(
        &self,
        slots: &Slots,
        n_states: usize,
        dims: &mut [i64],
        arena: *mut u8,
        exec: Exec,
    ) -> Result<(), Error> {
        assert!(dims.len() == self.n_dims());
        assert!(slots.inputs.len() == self.inputs.len() + 1 && slots.outputs.len() == self.outputs.len());
        let state = self.state.as_ref().expect("the caller has a state of this model");
        let mut error = Error::NONE;
        let exec = Exec { error: &mut error, ..exec };
        let inputs = slots.inputs.as_ptr();
        let outputs = slots.outputs.as_ptr();
        let states = &slots.states[..n_states];
        let n_states = n_states as u32;
        let dims = dims.as_mut_ptr();
        // SAFETY: as the caller promises.
        let code =
            unsafe { (state.raw.run)(inputs, outputs, states.as_ptr(), n_states, dims, arena.cast(), &exec) };
        outcome(code, error)
    }

    /// Runs the model on the memory that `slots` points to.
    ///
    /// # Safety
    /// `dims` passed the check. `slots` has, for each input and output, memory of the size and alignment that its
    /// shape and type need at these dims; the outputs are writable and disjoint from all other memory. `arena` is
    /// 64-byte aligned memory of `arena_bytes(dims)` bytes, exclusive to this call. Everything that `exec` points to
    /// is valid.
    pub(crate) unsafe fn run(
        &self,
        slots: &Slots,
        dims: &mut [i64],
        arena: *mut u8,
        exec: Exec,
    ) -> Result<(), Error> {
        assert!(dims.len() == self.n_dims());
        assert!(slots.inputs.len() == self.inputs.len() + 1 && slots.outputs.len() == self.outputs.len());
        let mut error = Error::NONE;
        let exec = Exec { error: &mut error, ..exec };
        let inputs = slots.inputs.as_ptr();
        let outputs = slots.outputs.as_ptr();
        // SAFETY: as the caller promises.
        let code = unsafe { (self.raw.run)(inputs, outputs, dims.as_mut_ptr(), arena.cast(), &exec) };
        outcome(code, error)
    }
}

/// The pointer tables of a call, allocated once for each context.
pub(crate) struct Slots {
    shapes: Vec<*const i64>,
    /// The inputs, then the weights.
    inputs: Vec<*const c_void>,
    outputs: Vec<*mut c_void>,
    states: Vec<*mut c_void>,
}

// SAFETY: each call writes the pointers before it uses them, but for that of the weights. Those are only read, and live
// as long as the model of the context.
unsafe impl Send for Slots {}

impl Slots {
    /// Tables for a model with these numbers of tensors, and calls with at most `n_states` states. `weights` is the
    /// address of its weights file, or null.
    pub(crate) fn new(n_inputs: usize, n_outputs: usize, n_states: usize, weights: *const u8) -> Slots {
        let mut inputs = alloc::vec![core::ptr::null(); n_inputs + 1];
        inputs[n_inputs] = weights.cast();
        Slots {
            // The state's words are the shape of one more input.
            shapes: alloc::vec![core::ptr::null(); n_inputs + 1],
            inputs,
            outputs: alloc::vec![core::ptr::null_mut(); n_outputs],
            states: alloc::vec![core::ptr::null_mut(); n_states],
        }
    }

    /// Sets the address of input `idx`.
    pub(crate) fn set_input(&mut self, idx: usize, at: *const u8) {
        self.inputs[idx] = at.cast();
    }

    /// Sets the address of the block of state `idx`.
    pub(crate) fn set_state(&mut self, idx: usize, at: *mut u8) {
        self.states[idx] = at.cast();
    }

    /// Sets the address of output `idx`.
    pub(crate) fn set_output(&mut self, idx: usize, at: *mut u8) {
        self.outputs[idx] = at.cast();
    }
}

/// The code and error of a generated function as a result. The returned code overrides the one in the error.
pub(crate) fn outcome(code: i32, error: Error) -> Result<(), Error> {
    if code == Code::Ok as i32 { Ok(()) } else { Err(Error { code, ..error }) }
}

/// A table of the descriptor.
///
/// # Safety
/// `at` is null or points to `n` entries that live long enough.
unsafe fn table<'a, T>(at: *const T, n: u32) -> Result<&'a [T], OpenError> {
    match n {
        0 => Ok(&[]),
        _ if n > MAX_ENTRIES => Err(OpenError::Malformed("a table has too many entries")),
        _ if at.is_null() => Err(OpenError::Malformed("a table is missing")),
        // SAFETY: not null, so `at` points to `n` entries, as the caller promises.
        _ => Ok(unsafe { core::slice::from_raw_parts(at, n as usize) }),
    }
}

/// A copy of a C string.
///
/// # Safety
/// `at` is null or a C string.
unsafe fn string(at: *const c_char) -> Result<String, OpenError> {
    if at.is_null() {
        return Err(OpenError::Malformed("a name is missing"));
    }
    // SAFETY: not null, so it is a C string, as the caller promises.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map(String::from).map_err(|_| OpenError::Malformed("a name is not UTF-8"))
}

/// A symbol's row.
///
/// # Safety
/// Its pointers are as the ABI says.
unsafe fn symbol(desc: &SymbolDesc) -> Result<SymbolInfo, OpenError> {
    let n_values =
        u32::try_from(desc.n_values).map_err(|_| OpenError::Malformed("a table has too many entries"))?;

    // SAFETY: as the caller promises.
    let (name, values) = unsafe { (string(desc.name)?, table(desc.values, n_values)?) };
    if desc.lo > desc.hi || desc.step < 1 || !values.is_sorted() {
        return Err(OpenError::Malformed("a symbol's range is empty"));
    }

    Ok(SymbolInfo {
        name,
        lo: desc.lo,
        hi: desc.hi,
        step: desc.step,
        offset: desc.offset,
        values: values.to_vec(),
    })
}

/// The table of a ragged batch.
///
/// # Safety
/// The descriptor is as the ABI says.
unsafe fn ragged(model: &ModelDesc) -> Result<Option<RaggedInfo>, OpenError> {
    // SAFETY: as the caller promises.
    let Some(desc) = (unsafe { model.ragged.as_ref() }) else { return Ok(None) };
    if desc.offsets >= model.n_inputs || desc.sequences >= model.n_symbols || desc.rows >= model.n_symbols {
        return Err(OpenError::Malformed("the table of its ragged batch is damaged"));
    }
    let n_ports = model.n_inputs.saturating_add(model.n_outputs);
    // SAFETY: as the caller promises; there is an axis for each input and output.
    let (length, axes) = unsafe { (symbol(&desc.length)?, table(desc.batch_axes, n_ports)?) };
    // SAFETY: as the caller promises.
    let mask = (!desc.mask.is_null()).then(|| unsafe { string(desc.mask) }).transpose()?;
    let axes: Vec<_> = axes.iter().map(|axis| usize::try_from(*axis).ok()).collect();
    let (input_batch_axes, output_batch_axes) = axes.split_at(model.n_inputs as usize);
    Ok(Some(RaggedInfo {
        offsets: desc.offsets as usize,
        sequences: desc.sequences as usize,
        rows: desc.rows as usize,
        length,
        mask,
        has_lengths: desc.mask_is_lengths != 0,
        input_batch_axes: input_batch_axes.to_vec(),
        output_batch_axes: output_batch_axes.to_vec(),
    }))
}

/// A tensor's row, refused if it has more axes than a [`crate::TensorRef`] can have.
///
/// # Safety
/// Its pointers are as the ABI says.
unsafe fn tensor(desc: &TensorDesc) -> Result<TensorInfo, OpenError> {
    let dtype = DType::from_code(desc.dtype).ok_or(OpenError::Malformed("an element type is unknown"))?;
    // SAFETY: as the caller promises.
    let (name, dims) = unsafe { (string(desc.name)?, table(desc.dims, desc.rank)?) };
    if dims.len() > MAX_AXES {
        return Err(OpenError::TooManyAxes { tensor: name, axes: dims.len() });
    }
    // SAFETY: as the caller promises.
    let dims = dims.iter().map(|dim| unsafe { string(*dim) }).collect::<Result<_, _>>()?;
    let max_bytes = usize::try_from(desc.max_bytes)
        .map_err(|_| OpenError::Malformed("a tensor exceeds the address space"))?;
    Ok(TensorInfo { name, dtype, dims, max_bytes })
}

/// A copy of an entry of the partition table. It may depend only on earlier entries.
///
/// # Safety
/// Its pointers are as the ABI says.
unsafe fn partition(number: usize, desc: &PartitionDesc, n_symbols: u32) -> Result<PartitionInfo, OpenError> {
    // SAFETY: as the caller promises.
    let (after, symbols) =
        unsafe { (table(desc.after, desc.n_after)?, table(desc.symbols, desc.n_symbols)?) };
    if after.iter().any(|other| *other as usize >= number)
        || symbols.iter().any(|symbol| *symbol >= n_symbols)
    {
        return Err(OpenError::Malformed("a partition waits for a later one, or uses an unknown symbol"));
    }

    let indices = |list: &[u32]| list.iter().map(|idx| *idx as usize).collect();

    // SAFETY: as the caller promises.
    unsafe {
        Ok(PartitionInfo {
            name: string(desc.name)?,
            target: string(desc.target)?,
            cost: string(desc.cost_formula)?,
            after: indices(after),
            symbols: indices(symbols),
            stage: desc.stage as usize,
            at_once: NonZeroU32::new(desc.at_once),
        })
    }
}
