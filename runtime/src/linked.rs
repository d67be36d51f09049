//! Calls of a model that is linked in, without an allocator: for firmware and kernels.
//!
//! The state of a call, which a [`crate::Context`] keeps between calls, is on the stack, in arrays of fixed sizes. A
//! model has at most 16 inputs, 16 outputs, and 32 symbols and data-dependent sizes together. As in a context, types,
//! ranks, the whole contract and the sizes of all memory are checked before anything is written.

use crate::{
    DType, TensorMut, TensorRef,
    abi::{ABI_VERSION, Error, Exec, GROWS, MAGIC, MONOTONE, ModelDesc, SymbolDesc, TensorDesc},
    range::SymbolRange,
    tensor::{self, MAX_AXES},
    weights,
};
use core::{
    ffi::{CStr, c_char, c_void},
    fmt, ptr, slice,
};

/// Largest number of inputs, and of outputs.
const MAX_TENSORS: usize = 16;

/// Largest number of symbols and data-dependent sizes together.
const MAX_DIMS: usize = 32;

/// The arena begins at a multiple of this.
const ALIGN_BYTES: usize = 64;

/// A model whose code and data are part of the program.
#[derive(Clone, Copy)]
pub struct Linked {
    desc: &'static ModelDesc,
    weights: Option<&'static [u8]>,
}

/// The values of a model's symbols and data-dependent sizes, in the order of the header's `dims`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dims {
    values: [i64; MAX_DIMS],
    len: usize,
}

impl Dims {
    /// All values.
    pub fn values(&self) -> &[i64] {
        &self.values[..self.len]
    }
}

/// The error of a linked model or its call.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkedError {
    /// The descriptor is missing or damaged.
    #[error("not a symshape artefact: {0}")]
    Malformed(&'static str),
    /// The descriptor is of another version of symshape.
    #[error(
        "the artefact has ABI version {found}, this program needs version {expected}: recompile the artefact"
    )]
    Version {
        /// The artefact's version.
        found: u32,
        /// The version of this program.
        expected: u32,
    },
    /// The model has too many tensors, axes or symbols, or memory that grows.
    #[error("the model is too large for calls without an allocator: {0}")]
    TooLarge(&'static str),
    /// There are too few or too many tensors.
    #[error("got {got} tensors; the model has {expected}")]
    WrongCount {
        /// Number of tensors of the model.
        expected: usize,
        /// Number of tensors given.
        got: usize,
    },
    /// A tensor has another element type or number of axes.
    #[error("tensor {number}: the element type or the number of axes is wrong")]
    WrongTensor {
        /// Its index among the inputs or outputs.
        number: usize,
    },
    /// The memory of an output or the arena is too small.
    #[error("got {got} bytes of memory; the call needs {needed}")]
    TooSmall {
        /// The bytes that the call needs.
        needed: usize,
        /// The bytes available.
        got: usize,
    },
    /// There are too few or too many dims.
    #[error("got {got} dims; the model has {expected} symbols")]
    WrongDimCount {
        /// Number of symbols.
        expected: usize,
        /// Number of dims given.
        got: usize,
    },
    /// A dim violates the declaration of its symbol.
    #[error("dim {idx} = {value} is not allowed")]
    NotAllowed {
        /// The symbol's index in the header's `dims`.
        idx: usize,
        /// The value given.
        value: i64,
    },
    /// The model has no symbol of that name.
    #[error("the model has no such symbol")]
    NoSymbol,
    /// The weights do not belong to the artefact.
    #[error("the weights: {0}")]
    WrongWeights(&'static str),
    /// The artefact refuses the call, or ended it.
    #[error("{0}")]
    Refused(Refusal),
}

/// The error that an artefact reports.
#[derive(Clone, Copy)]
pub struct Refusal(Error);

// SAFETY: the pointers of the error point to constant data of an artefact that is part of the program.
unsafe impl Send for Refusal {}
// SAFETY: as above.
unsafe impl Sync for Refusal {}

impl Refusal {
    /// One of [`crate::abi::Code`], as a number.
    pub fn code(&self) -> i32 {
        self.0.code
    }

    /// The name of the symbol, or the text of the derived dim.
    pub fn symbol(&self) -> Option<&'static str> {
        text(self.0.symbol_name)
    }

    /// The name of the tensor, or of the node that failed.
    pub fn tensor(&self) -> Option<&'static str> {
        text(self.0.tensor_name)
    }

    /// The actual value, and the smallest and largest value allowed.
    pub fn values(&self) -> [i64; 3] {
        [self.0.value, self.0.lo, self.0.hi]
    }

    /// The declaration that is violated, and its place.
    pub fn why(&self) -> Option<&'static str> {
        text(self.0.why)
    }
}

impl PartialEq for Refusal {
    fn eq(&self, other: &Refusal) -> bool {
        self.code() == other.code() && self.values() == other.values() && self.symbol() == other.symbol()
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refusal({self})")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [value, lo, hi] = self.values();
        let tensor = self.tensor().unwrap_or("the call");
        let symbol = self.symbol().unwrap_or("a dim");
        write!(f, "`{tensor}`: {symbol} = {value}, allowed {lo}..={hi} (code {})", self.code())?;
        self.why().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// A string of an artefact's error, which is null or lives as long as the program.
fn text(at: *const c_char) -> Option<&'static str> {
    // SAFETY: errors come from artefacts that are part of the program, as `Linked::from_desc` requires, and so do their
    // strings.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_str().unwrap_or("?"))
}

impl Linked {
    /// The model of this descriptor.
    ///
    /// # Errors
    /// When the descriptor has another version, or the model is too large for calls without an allocator.
    ///
    /// # Safety
    /// `desc` is null or points to a descriptor from symshape's compiler that is linked into this program.
    pub unsafe fn from_desc(desc: *const ModelDesc) -> Result<Linked, LinkedError> {
        // SAFETY: as the caller promises; code and data of a program live as long as the program.
        let desc = unsafe { desc.as_ref() }.ok_or(LinkedError::Malformed("it is null"))?;
        if desc.magic != MAGIC {
            return Err(LinkedError::Malformed("it does not begin with symshape's magic number"));
        }
        if desc.abi_version != ABI_VERSION {
            return Err(LinkedError::Version { found: desc.abi_version, expected: ABI_VERSION });
        }
        if !desc.state.is_null() {
            return Err(LinkedError::TooLarge("its state"));
        }
        if desc.flags & GROWS != 0 {
            return Err(LinkedError::TooLarge("its memory grows"));
        }

        let model = Linked { desc, weights: None };
        if desc.n_inputs as usize > MAX_TENSORS || desc.n_outputs as usize > MAX_TENSORS {
            return Err(LinkedError::TooLarge("its tensors"));
        }
        if u64::from(desc.n_symbols).saturating_add(desc.n_data_dependent) > MAX_DIMS as u64 {
            return Err(LinkedError::TooLarge("its symbols"));
        }
        let mut tensors = model.inputs().iter().chain(model.outputs());
        if tensors.all(|tensor| tensor.rank as usize <= MAX_AXES) {
            Ok(model)
        } else {
            Err(LinkedError::TooLarge("the axes of a tensor"))
        }
    }

    /// The same model with these weights: the contents of its weights file, in memory at a multiple of 64. Their
    /// header, their size and their address are checked.
    ///
    /// # Errors
    /// When they belong to another artefact or are truncated, or the artefact contains its weights.
    pub fn with_weights(self, weights: &'static [u8]) -> Result<Linked, LinkedError> {
        // SAFETY: `Linked::from_desc` requires a descriptor from the compiler, whose pointer is null or valid.
        let Some(desc) = (unsafe { self.desc.weights.as_ref() }) else {
            return Err(LinkedError::WrongWeights("the artefact contains its weights"));
        };
        weights::check(weights, desc).map_err(LinkedError::WrongWeights)?;
        Ok(Linked { weights: Some(weights), ..self })
    }

    fn inputs(&self) -> &'static [TensorDesc] {
        tensors(self.desc.inputs, self.desc.n_inputs)
    }

    fn outputs(&self) -> &'static [TensorDesc] {
        tensors(self.desc.outputs, self.desc.n_outputs)
    }

    fn symbols(&self) -> &'static [SymbolDesc] {
        if self.desc.n_symbols == 0 {
            return &[];
        }
        // SAFETY: `Linked::from_desc` requires a descriptor from the compiler, whose table has `n_symbols` entries.
        unsafe { slice::from_raw_parts(self.desc.symbols, self.desc.n_symbols as usize) }
    }

    /// Upper bound of the arena's bytes over the whole contract. Memory that is not aligned to 64 bytes needs 63 more.
    pub fn arena_max(&self) -> usize {
        self.desc.arena_max as usize
    }

    /// Checks the contract for inputs of these types and shapes.
    ///
    /// # Errors
    /// When the inputs violate the contract.
    pub fn bind(&self, inputs: &[TensorRef<'_>]) -> Result<Dims, LinkedError> {
        let infos = self.inputs();
        if inputs.len() != infos.len() {
            return Err(LinkedError::WrongCount { expected: infos.len(), got: inputs.len() });
        }
        let mut shapes = [[0_i64; MAX_AXES]; MAX_TENSORS];
        for (number, (input, info)) in inputs.iter().zip(infos).enumerate() {
            let is_same_type = DType::from_code(info.dtype) == Some(input.dtype());
            if !is_same_type || input.shape().len() != info.rank as usize {
                return Err(LinkedError::WrongTensor { number });
            }
            for (to, from) in shapes[number].iter_mut().zip(input.shape()) {
                *to = i64::try_from(*from).unwrap_or(i64::MAX);
            }
        }

        let mut pointers = [ptr::null(); MAX_TENSORS];
        for (pointer, shape) in pointers.iter_mut().zip(&shapes) {
            *pointer = shape.as_ptr();
        }

        let len = self.desc.n_symbols as usize + self.desc.n_data_dependent as usize;
        let mut dims = Dims { values: [0; MAX_DIMS], len };
        let mut error = Error::NONE;
        // SAFETY: there is a pointer for each input, to a dim for each of its axes; an entry for each symbol; and an
        // error.
        let code = unsafe { (self.desc.check)(pointers.as_ptr(), dims.values.as_mut_ptr(), &mut error) };
        outcome(code, error)?;
        Ok(dims)
    }

    /// Bytes of arena that a call with these dims needs.
    pub fn arena_bytes(&self, dims: &Dims) -> usize {
        // SAFETY: `dims` has an entry for each symbol of any linked model; the function only computes.
        unsafe { (self.desc.arena_bytes)(dims.values.as_ptr()) }
    }

    /// The largest allowed value of `symbol` whose calls need at most `bytes` of arena, as `Model::max_dim` finds it.
    /// `dims` has the other symbols; its entry for `symbol` is ignored. `None` if every value needs more. Memory that
    /// is not aligned to 64 bytes needs 63 more.
    ///
    /// # Errors
    /// When there is no such symbol, or another dim is outside the contract.
    pub fn max_dim(&self, symbol: &str, bytes: usize, dims: &[i64]) -> Result<Option<i64>, LinkedError> {
        let symbols = self.symbols();
        let is_asked = |desc: &SymbolDesc| text(desc.name) == Some(symbol);
        let position = symbols.iter().position(is_asked).ok_or(LinkedError::NoSymbol)?;

        if dims.len() != symbols.len() {
            return Err(LinkedError::WrongDimCount { expected: symbols.len(), got: dims.len() });
        }
        for (idx, (desc, &value)) in symbols.iter().zip(dims).enumerate() {
            if idx != position && !range(desc).allows(value) {
                return Err(LinkedError::NotAllowed { idx, value });
            }
        }

        let mut values = [0; MAX_DIMS];
        values[..dims.len()].copy_from_slice(dims);
        let mut at = Dims { values, len: dims.len() };
        let fits = |value: i64| {
            at.values[position] = value;
            self.arena_bytes(&at) <= bytes
        };
        let is_monotone = self.desc.flags & MONOTONE != 0;
        Ok(range(&symbols[position]).largest(is_monotone, fits))
    }

    /// The bytes of output `number` at these dims. Data-dependent sizes take their upper bounds.
    fn output_bytes(&self, number: usize, dims: &Dims) -> usize {
        let info = &self.outputs()[number];
        let mut shape = [0_i64; MAX_AXES];

        // SAFETY: `dims` has all entries, and `shape` has one for each axis of that output.
        let code =
            unsafe { (self.desc.output_shape)(number as u32, dims.values.as_ptr(), shape.as_mut_ptr()) };
        debug_assert_eq!(code, 0, "the output exists");

        let mut sizes = [0_usize; MAX_AXES];
        for (size, dim) in sizes.iter_mut().zip(shape) {
            *size = usize::try_from(dim).unwrap_or(0);
        }

        let dtype = DType::from_code(info.dtype).unwrap_or(DType::U8);
        tensor::size_bytes(dtype, &sizes[..info.rank as usize]).unwrap_or(usize::MAX)
    }

    /// Runs the model into the caller's buffers, in an arena of the caller. Returns the dims, with the data-dependent
    /// sizes.
    ///
    /// # Errors
    /// When the tensors or the arena violate the contract; no memory is written then. Or when the data end the call,
    /// for instance by an index out of bounds; the outputs are undefined then.
    pub fn run(
        &self,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        arena: &mut [u8],
    ) -> Result<Dims, LinkedError> {
        let mut dims = self.bind(inputs)?;
        let infos = self.outputs();
        if outputs.len() != infos.len() {
            return Err(LinkedError::WrongCount { expected: infos.len(), got: outputs.len() });
        }

        let mut from: [*const c_void; MAX_TENSORS + 1] = [ptr::null(); MAX_TENSORS + 1];
        from[inputs.len()] = self.weights.map_or(ptr::null(), |weights| weights.as_ptr().cast());
        let mut to: [*mut c_void; MAX_TENSORS] = [ptr::null_mut(); MAX_TENSORS];
        for (slot, input) in from.iter_mut().zip(inputs) {
            *slot = input.bytes().as_ptr().cast();
        }
        for (number, (output, info)) in outputs.iter_mut().zip(infos).enumerate() {
            if DType::from_code(info.dtype) != Some(output.dtype()) {
                return Err(LinkedError::WrongTensor { number });
            }
            let needed = self.output_bytes(number, &dims);
            let got = output.len_bytes();
            if got < needed {
                return Err(LinkedError::TooSmall { needed, got });
            }
            to[number] = output.bytes().as_mut_ptr().cast();
        }

        let skip = arena.as_ptr().align_offset(ALIGN_BYTES).min(arena.len());
        let needed = self.arena_bytes(&dims);
        let got = arena.len() - skip;
        if got < needed {
            return Err(LinkedError::TooSmall { needed, got });
        }

        let arena: *mut c_void = arena[skip..].as_mut_ptr().cast();
        let mut error = Error::NONE;
        let exec =
            Exec { host: ptr::null_mut(), threads: 1, policy: 0, parallel_for: None, error: &mut error };
        // SAFETY: `bind` checked `dims` for the shapes of these inputs; `TensorRef` checked the size and alignment of
        // their memory. The outputs and the arena have the bytes that they need at these dims, as checked above, and
        // the arena begins at a 64-byte boundary. All of them are borrowed until the call returns.
        let code =
            unsafe { (self.desc.run)(from.as_ptr(), to.as_ptr(), dims.values.as_mut_ptr(), arena, &exec) };
        outcome(code, error)?;
        Ok(dims)
    }
}

impl fmt::Debug for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Linked").field("arena_max", &self.arena_max()).finish()
    }
}

/// A table of a descriptor.
fn tensors(at: *const TensorDesc, count: u32) -> &'static [TensorDesc] {
    if count == 0 {
        return &[];
    }
    // SAFETY: `Linked::from_desc` requires a descriptor from the compiler, whose tables have `count` entries.
    unsafe { slice::from_raw_parts(at, count as usize) }
}

/// The allowed values of a symbol.
fn range(desc: &SymbolDesc) -> SymbolRange<'static> {
    let values: &'static [i64] = if desc.n_values == 0 {
        &[]
    } else {
        // SAFETY: `Linked::from_desc` requires a descriptor from the compiler, whose lists have `n_values` entries.
        unsafe { slice::from_raw_parts(desc.values, desc.n_values as usize) }
    };
    SymbolRange { lo: desc.lo, hi: desc.hi, step: desc.step, offset: desc.offset, values }
}

fn outcome(code: i32, error: Error) -> Result<(), LinkedError> {
    if code == 0 { Ok(()) } else { Err(LinkedError::Refused(Refusal(Error { code, ..error }))) }
}
