//! Calls of a model that is linked in, without any allocator: for firmware and kernels.
//!
//! What a [`crate::Context`] keeps between calls lies on the stack here, in arrays of fixed sizes: a model has at most
//! 16 inputs and as many outputs, and 32 symbols and found sizes together. Everything else is as
//! there: types, ranks, the whole contract and the sizes of all memory are checked before anything is written.

use crate::{
    DType, TensorMut, TensorRef,
    abi::{ABI_VERSION, Error, Exec, GROWS, MAGIC, ModelDesc, TensorDesc},
    tensor::{self, MAX_AXES},
};
use core::{
    ffi::{CStr, c_char, c_void},
    fmt, ptr, slice,
};

/// Most inputs, and most outputs.
const MAX_TENSORS: usize = 16;

/// Most symbols and sizes that are found while running.
const MAX_DIMS: usize = 32;

/// The arena begins at a multiple of this.
const ALIGN_BYTES: usize = 64;

/// A model whose code and data are part of the program.
#[derive(Clone, Copy)]
pub struct Linked {
    desc: &'static ModelDesc,
}

/// The values of a model's symbols, and the sizes that a call found, in the order of the header's `dims`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dims {
    values: [i64; MAX_DIMS],
    len: usize,
}

impl Dims {
    /// All of them.
    pub fn values(&self) -> &[i64] {
        &self.values[..self.len]
    }
}

/// Why a model can't be called.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkedError {
    /// The descriptor is none, or damaged.
    #[error("not a symshape artefact: {0}")]
    Malformed(&'static str),
    /// The descriptor is of another version of symshape.
    #[error(
        "the artefact speaks version {found} of the interface, this program version {expected}: recompile it"
    )]
    Version {
        /// The artefact's.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// The model has more tensors, axes or symbols than there is room for, or memory that grows.
    #[error("the model is too large for calls without an allocator: {0}")]
    TooLarge(&'static str),
    /// There are too few or too many tensors.
    #[error("{got} tensors where the model has {expected}")]
    WrongCount {
        /// Number of the model.
        expected: usize,
        /// Number given.
        got: usize,
    },
    /// A tensor has another element type or number of axes.
    #[error("tensor number {number}: the element type or the number of axes is wrong")]
    WrongTensor {
        /// Its place among the inputs or outputs.
        number: usize,
    },
    /// Memory is too small: of an output, or the arena.
    #[error("{got} bytes of memory where the call needs {needed}")]
    TooSmall {
        /// What the call needs.
        needed: usize,
        /// What there is.
        got: usize,
    },
    /// The artefact refuses the call, or ended it.
    #[error("{0}")]
    Refused(Refusal),
}

/// What an artefact reports.
#[derive(Clone, Copy)]
pub struct Refusal(Error);

// SAFETY: the pointers of the error lead to constant data of a program's own artefact.
unsafe impl Send for Refusal {}
// SAFETY: as above.
unsafe impl Sync for Refusal {}

impl Refusal {
    /// One of [`crate::abi::Code`], as a number.
    pub fn code(&self) -> i32 {
        self.0.code
    }

    /// Name of the symbol or text of the derived dim concerned.
    pub fn symbol(&self) -> Option<&'static str> {
        text(self.0.symbol_name)
    }

    /// Name of the tensor, or of the node in which it went wrong.
    pub fn tensor(&self) -> Option<&'static str> {
        text(self.0.tensor_name)
    }

    /// The value met, and the lowest and highest allowed.
    pub fn values(&self) -> [i64; 3] {
        [self.0.value, self.0.lo, self.0.hi]
    }

    /// What is declared, and where.
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
        let (tensor, symbol) = (self.tensor().unwrap_or("the call"), self.symbol().unwrap_or("a dim"));
        write!(f, "`{tensor}`: {symbol} = {value}, allowed {lo}..={hi} (code {})", self.code())?;
        self.why().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// A string of an artefact's error, null or alive as long as the program.
fn text(at: *const c_char) -> Option<&'static str> {
    // SAFETY: errors are made by the artefacts that `Linked` was promised to be over; their strings live in the program.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_str().unwrap_or("?"))
}

impl Linked {
    /// The model of this descriptor.
    ///
    /// # Errors
    /// When it is none of this version, or a model that is too large for calls without an allocator.
    ///
    /// # Safety
    /// `desc` is null or points to a descriptor that symshape's compiler made, linked into this program.
    pub unsafe fn from_desc(desc: *const ModelDesc) -> Result<Linked, LinkedError> {
        // SAFETY: the caller's promise; code and data of a program live as long as it does.
        let desc = unsafe { desc.as_ref() }.ok_or(LinkedError::Malformed("it is null"))?;
        if desc.magic != MAGIC {
            return Err(LinkedError::Malformed("it does not begin with symshape's mark"));
        }
        if desc.abi_version != ABI_VERSION {
            return Err(LinkedError::Version { found: desc.abi_version, expected: ABI_VERSION });
        }
        if desc.flags & GROWS != 0 {
            return Err(LinkedError::TooLarge("its memory grows"));
        }
        let model = Linked { desc };
        if desc.n_inputs as usize > MAX_TENSORS || desc.n_outputs as usize > MAX_TENSORS {
            return Err(LinkedError::TooLarge("its tensors"));
        }
        if u64::from(desc.n_symbols).saturating_add(desc.n_data_dependent) > MAX_DIMS as u64 {
            return Err(LinkedError::TooLarge("its symbols"));
        }
        let mut tensors = model.inputs().iter().chain(model.outputs());
        match tensors.all(|tensor| tensor.rank as usize <= MAX_AXES) {
            true => Ok(model),
            false => Err(LinkedError::TooLarge("the axes of a tensor")),
        }
    }

    fn inputs(&self) -> &'static [TensorDesc] {
        tensors(self.desc.inputs, self.desc.n_inputs)
    }

    fn outputs(&self) -> &'static [TensorDesc] {
        tensors(self.desc.outputs, self.desc.n_outputs)
    }

    /// Bytes of arena that suffice for every size within the contract; lend 63 more where they are not aligned to 64.
    pub fn arena_max(&self) -> usize {
        self.desc.arena_max as usize
    }

    /// Checks the contract for inputs of these types and shapes.
    ///
    /// # Errors
    /// The first thing that is wrong with the inputs.
    pub fn bind(&self, inputs: &[TensorRef<'_>]) -> Result<Dims, LinkedError> {
        let infos = self.inputs();
        if inputs.len() != infos.len() {
            return Err(LinkedError::WrongCount { expected: infos.len(), got: inputs.len() });
        }
        let mut shapes = [[0_i64; MAX_AXES]; MAX_TENSORS];
        for (number, (input, info)) in inputs.iter().zip(infos).enumerate() {
            let same = DType::from_code(info.dtype) == Some(input.dtype());
            if !same || input.shape().len() != info.rank as usize {
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
        // SAFETY: a pointer for each input, to as many dims as it has axes, a place for each dim, and an error to write.
        let code = unsafe { (self.desc.check)(pointers.as_ptr(), dims.values.as_mut_ptr(), &mut error) };
        outcome(code, error)?;
        Ok(dims)
    }

    /// Bytes of arena that a call with these dims needs.
    pub fn arena_bytes(&self, dims: &Dims) -> usize {
        // SAFETY: `bind` made the dims, of this model or of one that has room for as many; the function only computes.
        unsafe { (self.desc.arena_bytes)(dims.values.as_ptr()) }
    }

    /// The bytes of output `number` at these dims, at its bound where a size is found only while running.
    fn output_bytes(&self, number: usize, dims: &Dims) -> usize {
        let info = &self.outputs()[number];
        let mut shape = [0_i64; MAX_AXES];
        // SAFETY: all dims, and a place for each axis of that output.
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

    /// Runs the model into the caller's buffers, in an arena that is lent; the dims as they came out.
    ///
    /// # Errors
    /// When anything about the tensors or the arena breaks the contract; nothing was written then. Or when the model
    /// meets, in the data, what ends the call; the outputs are undefined then.
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
        let mut from: [*const c_void; MAX_TENSORS] = [ptr::null(); MAX_TENSORS];
        let mut to: [*mut c_void; MAX_TENSORS] = [ptr::null_mut(); MAX_TENSORS];
        for (place, input) in from.iter_mut().zip(inputs) {
            *place = input.bytes().as_ptr().cast();
        }
        for (number, (output, info)) in outputs.iter_mut().zip(infos).enumerate() {
            if DType::from_code(info.dtype) != Some(output.dtype()) {
                return Err(LinkedError::WrongTensor { number });
            }
            let (needed, got) = (self.output_bytes(number, &dims), output.len_bytes());
            if got < needed {
                return Err(LinkedError::TooSmall { needed, got });
            }
            to[number] = output.bytes().as_mut_ptr().cast();
        }
        let skip = arena.as_ptr().align_offset(ALIGN_BYTES).min(arena.len());
        let (needed, got) = (self.arena_bytes(&dims), arena.len() - skip);
        if got < needed {
            return Err(LinkedError::TooSmall { needed, got });
        }
        let arena: *mut c_void = arena[skip..].as_mut_ptr().cast();
        let mut error = Error::NONE;
        let exec =
            Exec { host: ptr::null_mut(), threads: 1, policy: 0, parallel_for: None, error: &mut error };
        // SAFETY: `dims` are those that `bind` checked for the shapes of these inputs, whose memory `TensorRef` sized and
        // aligned; the outputs hold what their shapes ask for at these dims, and the arena the bytes that were just asked for, from a
        // 64-byte boundary on; all of them are borrowed until the call returns.
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
    match count {
        0 => &[],
        // SAFETY: `Linked::from_desc` was promised a descriptor that the compiler made: its tables have so many entries.
        _ => unsafe { slice::from_raw_parts(at, count as usize) },
    }
}

fn outcome(code: i32, error: Error) -> Result<(), LinkedError> {
    if code == 0 { Ok(()) } else { Err(LinkedError::Refused(Refusal(Error { code, ..error }))) }
}
