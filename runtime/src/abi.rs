//! The interface of compiled code and its callers: the C structs and function types of an artefact.
//!
//! Everything here is `#[repr(C)]` and is mirrored by the header that `symc compile` writes.
//! All lengths are in elements unless a name says bytes; all strings end with a zero byte and live as long as
//! the artefact.

use core::ffi::{c_char, c_void};

/// First field of every [`ModelDesc`]: the bytes `symshape` read as a little-endian integer.
pub const MAGIC: u64 = u64::from_le_bytes(*b"symshape");

/// Version of this ABI; a loader refuses a descriptor with another one.
pub const ABI_VERSION: u32 = 9;

/// Operand precision of contractions on machines with tile registers. Other machines multiply `f32`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Precision {
    /// `f32`.
    #[default]
    F32 = 0,
    /// Each `f32` as the sum of two bf16, with three of the four multiplications.
    Bf16x3 = 1,
    /// Each `f32` as one bf16.
    Bf16 = 2,
}

/// Flag of a [`ModelDesc`]: symbols without a declared upper bound have one that no machine reaches, and a context
/// takes memory as calls need it.
pub const GROWS: u64 = 1;

/// Flag of a [`ModelDesc`]: memory is planned such that partitions may run in any order that respects their
/// dependencies.
pub const ANY_ORDER: u64 = 2;

/// Flag of a [`ModelDesc`]: the compiler proved that [`ModelDesc::arena_bytes`] never decreases as one dim grows and
/// the others stay.
pub const MONOTONE: u64 = 4;

/// Name under which a shared object exports its [`ModelDesc`].
pub const DESC_SYMBOL: &str = "symshape_model";

/// Return codes of the generated functions; `0` is success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Code {
    /// The call succeeded.
    Ok = 0,
    /// A symbol's value is outside its declared range.
    OutOfRange = 1,
    /// A symbol's value is in range but breaks its step or is not in its value set.
    NotAllowed = 2,
    /// Two places give the same symbol, or the same derived dim, different values.
    Mismatch = 3,
    /// A fact declared about several symbols does not hold.
    FactBroken = 4,
    /// An index in the data is out of bounds.
    IndexOutOfBounds = 5,
    /// The call reached code whose shapes contradict the declared inputs.
    Contradiction = 6,
    /// An external function returned a value other than zero, see [`Callee`].
    CalleeFailed = 7,
    /// The call asked for partitions to run at once, but the artefact's memory is not planned for it.
    NotPlanned = 8,
    /// The artefact needs tile registers, which the machine lacks or the system refused.
    NoTiles = 9,
    /// A state does not fit the call: it belongs to another artefact, is damaged, or has other sizes.
    WrongState = 10,
    /// The rows after the call would exceed the capacity of the state.
    StateFull = 11,
    /// The address of the weights is null or misaligned, or does not point to weights of this artefact.
    WrongWeights = 12,
}

/// How the partitions of an artefact run, if it has any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum Policy {
    /// The policy that is estimated to be faster for the dims and threads of the call.
    #[default]
    Auto = 0,
    /// One after another, the kernels of each on all threads.
    Serial = 1,
    /// Independent partitions at once, each on one thread.
    Parallel = 2,
}

/// The error of a call: filled by `check` and `run` when they return non-zero.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Error {
    /// One of [`Code`].
    pub code: i32,
    /// Index of the input tensor, or `u32::MAX` if the error concerns no input.
    pub tensor: u32,
    /// Axis of that tensor. If the error concerns one state of several, its place among them, from 1 on.
    pub axis: u32,
    /// Index of the symbol, or `u32::MAX`.
    pub symbol: u32,
    /// The actual value.
    pub value: i64,
    /// Smallest value allowed.
    pub lo: i64,
    /// Largest value allowed.
    pub hi: i64,
    /// Name of the symbol or text of the derived dim, or null.
    pub symbol_name: *const c_char,
    /// Name of the tensor or node, or null.
    pub tensor_name: *const c_char,
    /// The declaration that is violated and its place, or null.
    pub why: *const c_char,
}

impl Error {
    /// An error without content, to be filled by a call.
    pub const NONE: Error = Error {
        code: 0,
        tensor: u32::MAX,
        axis: u32::MAX,
        symbol: u32::MAX,
        value: 0,
        lo: 0,
        hi: 0,
        symbol_name: core::ptr::null(),
        tensor_name: core::ptr::null(),
        why: core::ptr::null(),
    };
}

/// Marks a data-dependent size in `dims` that is not known yet.
pub const UNKNOWN_DIM: i64 = i64::MIN;

/// A task of a parallel loop: iterations `begin..end`, run by worker `worker` of `threads`.
pub type Task = unsafe extern "C" fn(data: *mut c_void, begin: i64, end: i64, worker: u32);

/// How the host runs a call. A null pointer to it means serial execution.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Exec {
    /// Passed back to `parallel_for`.
    pub host: *mut c_void,
    /// Number of workers that may run at once, at least 1; worker ids are smaller. A worker runs one task at a time.
    pub threads: u32,
    /// One of [`Policy`].
    pub policy: u32,
    /// Runs `task(data, b, e, w)` over disjoint ranges that cover `0..count`, and returns when all are done.
    pub parallel_for:
        Option<unsafe extern "C" fn(host: *mut c_void, count: i64, task: Task, data: *mut c_void)>,
    /// Receives the error of `run`, or null.
    pub error: *mut Error,
}

/// Binds the symbols from the shapes of the inputs, or describes the error. Reads nothing else; writes `dims` and
/// `err`. After the symbols, `dims` has an entry for each data-dependent size, which is [`UNKNOWN_DIM`] until it is
/// known.
pub type CheckFn =
    unsafe extern "C" fn(input_shapes: *const *const i64, dims: *mut i64, err: *mut Error) -> i32;
/// Bytes of arena that a call with these dims needs; the dims must have passed the check.
pub type ArenaBytesFn = unsafe extern "C" fn(dims: *const i64) -> usize;
/// Writes the shape of output `output` for these dims. Data-dependent sizes that are not known yet take their bounds.
pub type OutputShapeFn = unsafe extern "C" fn(output: u32, dims: *const i64, shape: *mut i64) -> i32;
/// Runs the model. Inputs and outputs are dense row-major; `arena` is 64-byte aligned. Data-dependent sizes are
/// written after the symbols in `dims`, so that [`OutputShapeFn`] then returns the actual shapes.
pub type RunFn = unsafe extern "C" fn(
    inputs: *const *const c_void,
    outputs: *const *mut c_void,
    dims: *mut i64,
    arena: *mut c_void,
    exec: *const Exec,
) -> i32;

/// Checks the contract as [`RunFn`] does and prepares `frame`, [`ModelDesc::frame_bytes`] bytes at a multiple of 64,
/// for the partitions of one call. All memory that the arguments point to must stay valid until the last partition has
/// run.
pub type BeginFn = unsafe extern "C" fn(
    inputs: *const *const c_void,
    outputs: *const *mut c_void,
    dims: *mut i64,
    arena: *mut c_void,
    exec: *const Exec,
    frame: *mut c_void,
) -> i32;
/// Runs a partition; all partitions that it depends on must have run in this frame. Kernels use the threads of the
/// frame's `exec`.
pub type PartitionFn = unsafe extern "C" fn(frame: *mut c_void) -> i32;
/// Estimated work of a partition on `threads` threads, in vector multiply-adds.
pub type CostFn = unsafe extern "C" fn(dims: *const i64, threads: u32) -> i64;
/// Writes the begin and end of a partition's part of the arena, in bytes, for these dims. Fails if there is no such
/// partition.
pub type ArenaSliceFn = unsafe extern "C" fn(partition: u32, dims: *const i64, slice: *mut usize) -> i32;

/// Whether calls use tile registers: 1 if the machine has them and the system granted them when the artefact was
/// loaded, or else 0.
pub type UsesTilesFn = unsafe extern "C" fn() -> i32;

/// First field of every [`StateHeader`]: the bytes `symstate` read as a little-endian integer.
pub const STATE_MAGIC: u64 = u64::from_le_bytes(*b"symstate");

/// First field of every [`WeightsHeader`]: the bytes `symwghts` read as a little-endian integer.
pub const WEIGHTS_MAGIC: u64 = u64::from_le_bytes(*b"symwghts");

/// Version of the format of weights files; a loader refuses a file with another one.
pub const WEIGHTS_VERSION: u32 = 1;

/// Bytes of the first page, which holds the header. Segments of at least as many bytes begin at multiples of it in the
/// file.
pub const WEIGHTS_ALIGN: usize = 4096;

/// The beginning of a weights file, in its first page of [`WEIGHTS_ALIGN`] bytes. The segments follow. The table of
/// segments, [`WeightsHeader::n_segments`] entries of [`WeightsSegment`], and then their names in the same order are
/// the end of the file. All bytes in between are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct WeightsHeader {
    /// [`WEIGHTS_MAGIC`].
    pub magic: u64,
    /// [`WEIGHTS_VERSION`].
    pub version: u32,
    /// Number of segments.
    pub n_segments: u32,
    /// Bytes of the whole file.
    pub bytes: u64,
    /// Offset of the table of segments.
    pub table_offset: u64,
    /// [`WeightsDesc::artefact`] of the artefacts that can read the file.
    pub artefact: [u8; 32],
    /// The ISA levels that the segments are packed for, separated by commas and padded with zeros.
    pub levels: [u8; 64],
    /// BLAKE3 hash of the header, with zeros in place of this field, and of the bytes from `table_offset` on.
    pub hash: [u8; 32],
}

/// A constant of the artefact in a weights file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct WeightsSegment {
    /// Offset of its bytes in the file.
    pub offset: u64,
    /// Number of its bytes.
    pub bytes: u64,
    /// Offset of its name in the file.
    pub name_offset: u64,
    /// Bytes of its name, which is UTF-8.
    pub name_bytes: u64,
    /// BLAKE3 hash of its bytes.
    pub hash: [u8; 32],
}

/// The weights file that an artefact needs. Its address is one more input for [`RunFn`], [`BeginFn`] and
/// [`RunStatefulFn`], after those of the model. It is a multiple of 64.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WeightsDesc {
    /// A hash of the artefact without its weights: files for it have the same value in their headers.
    pub artefact: [u8; 32],
    /// Offset of the file's table of segments: calls read only the bytes before it.
    pub table_offset: u64,
    /// Name of the file that was written with the artefact, without its folder. It ends with a zero byte.
    pub file_name: [u8; 256],
}

#[cfg(feature = "std")]
impl WeightsDesc {
    /// The value of [`WeightsDesc::file_name`] for this name; `None` if it does not fit, or is not the name of a file
    /// in the folder of the artefact.
    pub fn name_field(name: &str) -> Option<[u8; 256]> {
        let mut field = [0; 256];
        field.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        (WeightsDesc::parse_name(&field)? == name).then_some(field)
    }

    /// The name in a [`WeightsDesc::file_name`]; `None` if it is damaged, or not the name of a file in the folder of
    /// the artefact.
    pub fn parse_name(field: &[u8; 256]) -> Option<&str> {
        use std::path::{Component, Path};
        let name = core::ffi::CStr::from_bytes_until_nul(field).ok()?.to_str().ok()?;
        let mut components = Path::new(name).components();
        let is_name =
            components.next() == Some(Component::Normal(name.as_ref())) && components.next().is_none();
        // On Windows a backslash separates folders. Everywhere the same names are refused.
        (is_name && !name.contains('\\')).then_some(name)
    }
}

/// Sequences of different lengths in a call. Their rows follow each other in the inputs and outputs with rows.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RaggedDesc {
    /// Index of the input that holds the first row of each sequence, and at last the number of rows: `i64`.
    pub offsets: u32,
    /// Index of the symbol that is the number of sequences.
    pub sequences: u32,
    /// Index of the symbol that is the number of rows of all sequences.
    pub rows: u32,
    /// Whether `mask` names the input that is the length of each sequence: 1 or 0.
    pub mask_is_lengths: u32,
    /// The length of each sequence. It is not one of the model's symbols.
    pub length: SymbolDesc,
    /// Name of the input of the padded model that is 1 for tokens and 0 for padding, or that is the length of each
    /// sequence, or null. Calls don't take it.
    pub mask: *const c_char,
    /// For each input and then for each output: the axis of the sequences in the padded model, where the rows are an
    /// axis too; or -1 if the port has no rows.
    pub batch_axes: *const i64,
}

/// The beginning of a state's block. [`StateDesc::n_words`] words follow it, then the tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct StateHeader {
    /// [`STATE_MAGIC`].
    pub magic: u64,
    /// [`StateDesc::id`] of the artefact.
    pub id: u64,
    /// Bytes of the whole block, see [`StateDesc::bytes`].
    pub bytes: u64,
    /// Zero.
    pub reserved: u64,
}

/// Writes the byte offset of tensor `tensor` in the block of a state with these dims, then its dims in memory. The
/// tensor is dense and row-major. Fails if there is no such tensor.
pub type StatePlaceFn = unsafe extern "C" fn(tensor: u32, dims: *const i64, place: *mut i64) -> i32;

/// As [`RunFn`], for an artefact with state. `states` are the addresses of `n_states` blocks, at multiples of 64.
///
/// With several states, each is that of one sequence, and the sequences are the rows of the batch. The dims then have
/// `n_states` as the value of [`StateDesc::count`], and the largest length of all. An input whose shape has the length
/// has the rows of each sequence at the beginning of the sequence's share, which is that of the longest one.
///
/// A block that does not fit the call is refused before the first store. The call writes nothing of a state but the new
/// rows of appended tensors, the overwritten tensors, and the length in the header. A call that fails leaves the length
/// and the overwritten tensors as they were.
pub type RunStatefulFn = unsafe extern "C" fn(
    inputs: *const *const c_void,
    outputs: *const *mut c_void,
    states: *const *mut c_void,
    n_states: u32,
    dims: *mut i64,
    arena: *mut c_void,
    exec: *const Exec,
) -> i32;

/// A tensor of the state.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StateTensorDesc {
    /// The model's input: its name, type, and shape in memory, where the capacity is the number of rows.
    pub tensor: TensorDesc,
    /// The name of the model's output.
    pub output: *const c_char,
    /// The axis of the rows if calls append rows; `u32::MAX` if calls write the whole tensor.
    pub axis: u32,
    /// Zero.
    pub reserved: u32,
}

/// The state of an artefact: tensors that are neither inputs nor outputs of a call.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StateDesc {
    /// A hash of the model. The header of each state repeats it.
    pub id: u64,
    /// Upper bound of `bytes` over the whole contract.
    pub max_bytes: u64,
    /// Entries of `tensors`.
    pub n_tensors: u32,
    /// Entries of `words`.
    pub n_words: u32,
    /// Bytes of the header with its words.
    pub header_bytes: u32,
    /// 1 if calls append rows: then the first two words are the capacity and the length.
    pub has_rows: u32,
    /// The symbols whose values the header holds, as indices into `dims`.
    pub words: *const u32,
    /// The tensors in order.
    pub tensors: *const StateTensorDesc,
    /// Bytes of a block. Reads only the dims of the symbols in `words`.
    pub bytes: ArenaBytesFn,
    /// See [`StatePlaceFn`].
    pub place: StatePlaceFn,
    /// See [`RunStatefulFn`].
    pub run: RunStatefulFn,
    /// The symbol that is the number of states of a call, as an index into `dims`; `u32::MAX` if a call takes one.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
    /// Why a call takes one state only, or null.
    pub one_state: *const c_char,
}

/// An entry of an artefact's partition table: kernels that run as one step.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PartitionDesc {
    /// Its name.
    pub name: *const c_char,
    /// The name of the target that it runs on.
    pub target: *const c_char,
    /// See [`PartitionFn`].
    pub run: PartitionFn,
    /// See [`CostFn`].
    pub cost: CostFn,
    /// The cost on one thread as a readable formula.
    pub cost_formula: *const c_char,
    /// The partitions that must run before it: earlier entries of the table.
    pub after: *const u32,
    /// The symbols that it uses, as indices into `dims`.
    pub symbols: *const u32,
    /// Entries of `after`.
    pub n_after: u32,
    /// Entries of `symbols`.
    pub n_symbols: u32,
    /// Partitions of one stage may run at once; earlier stages end before later ones begin.
    pub stage: u32,
    /// How many calls of its target may run at once; 0 for any number. The dependencies keep to it within a call of the
    /// model.
    pub at_once: u32,
}

/// A symbol of the contract.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SymbolDesc {
    /// Its name.
    pub name: *const c_char,
    /// Smallest value allowed.
    pub lo: i64,
    /// Largest value allowed.
    pub hi: i64,
    /// The allowed values are `offset + k * step`; 1 if every value in range is allowed.
    pub step: i64,
    /// See `step`.
    pub offset: i64,
    /// Number of entries of `values`; 0 when every value in range and step is allowed.
    pub n_values: u64,
    /// The allowed values in ascending order, or null.
    pub values: *const i64,
}

/// An input or output of the model.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TensorDesc {
    /// Its name.
    pub name: *const c_char,
    /// ONNX code of its element type, see [`crate::DType`].
    pub dtype: u32,
    /// Number of axes.
    pub rank: u32,
    /// The text of each dim, such as `N`, `2*S + 1` or `3`.
    pub dims: *const *const c_char,
    /// Upper bound of the tensor's bytes over the whole contract.
    pub max_bytes: u64,
}

/// The root of an artefact: its contract and its functions.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ModelDesc {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// Entries of `symbols`.
    pub n_symbols: u32,
    /// Entries of `inputs`.
    pub n_inputs: u32,
    /// Entries of `outputs`.
    pub n_outputs: u32,
    /// Name of the model.
    pub name: *const c_char,
    /// The contract's symbols, in the order of `dims`.
    pub symbols: *const SymbolDesc,
    /// The inputs in order.
    pub inputs: *const TensorDesc,
    /// The outputs in order.
    pub outputs: *const TensorDesc,
    /// Upper bound of `arena_bytes` over the whole contract.
    pub arena_max: u64,
    /// Closed form of the arena's size, as a readable formula.
    pub arena_formula: *const c_char,
    /// See [`CheckFn`].
    pub check: CheckFn,
    /// See [`ArenaBytesFn`].
    pub arena_bytes: ArenaBytesFn,
    /// See [`OutputShapeFn`].
    pub output_shape: OutputShapeFn,
    /// See [`RunFn`].
    pub run: RunFn,
    /// Number of data-dependent sizes, whose entries follow the symbols in `dims`.
    pub n_data_dependent: u64,
    /// A set of the flags [`GROWS`], [`ANY_ORDER`] and [`MONOTONE`].
    pub flags: u64,
    /// Entries of `partitions`; 0 if the model has no partitions.
    pub n_partitions: u64,
    /// The partition table, or null.
    pub partitions: *const PartitionDesc,
    /// Bytes of a call's frame, see [`BeginFn`].
    pub frame_bytes: u64,
    /// Null if there are no partitions.
    pub begin: Option<BeginFn>,
    /// Null if there are no partitions.
    pub arena_slice: Option<ArenaSliceFn>,
    /// One of [`Precision`].
    pub precision: u32,
    /// Zero.
    pub reserved: u32,
    /// Bound of the relative error of one multiplication on tile registers.
    pub product_error: f64,
    /// Null if there is no code for tile registers.
    pub uses_tiles: Option<UsesTilesFn>,
    /// The state, or null. With state, the words of a block's header count as the shape of one more input for
    /// [`CheckFn`], and the block's address as the address of one more input for [`RunFn`] and [`BeginFn`]. It follows
    /// the weights, if there are any.
    pub state: *const StateDesc,
    /// The weights file that calls need, or null if the artefact contains its weights.
    pub weights: *const WeightsDesc,
    /// How calls take sequences of different lengths, or null.
    pub ragged: *const RaggedDesc,
}

/// A tensor of a [`Call`]: dense and row-major, its memory aligned to its elements.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallTensor {
    /// Its elements; those of inputs must not be written.
    pub data: *mut c_void,
    /// Its `rank` dims.
    pub shape: *const i64,
    /// ONNX code of its element type, see [`crate::DType`].
    pub dtype: u32,
    /// Number of axes.
    pub rank: u32,
}

/// Kind of a [`CallAttribute`]: `data` are `count` values of type `int64_t`.
pub const INTS: u32 = 1;
/// Kind of a [`CallAttribute`]: `data` are `count` values of type `float`.
pub const FLOATS: u32 = 2;
/// Kind of a [`CallAttribute`]: `data` are `count` bytes, followed by a zero byte.
pub const BYTES: u32 = 3;

/// A constant of a [`Call`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallAttribute {
    /// Its name.
    pub name: *const c_char,
    /// Its values, whose type depends on `kind`.
    pub data: *const c_void,
    /// Number of values or bytes.
    pub count: u64,
    /// [`INTS`], [`FLOATS`] or [`BYTES`].
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}

/// The argument of an external function. The function may use all of it, but only until it returns.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Call {
    /// The operands.
    pub inputs: *const CallTensor,
    /// The results. The function must write every element. They overlap neither each other nor the operands.
    pub outputs: *const CallTensor,
    /// The constants, in the order in which they were declared.
    pub attributes: *const CallAttribute,
    /// Scratch memory for this call alone, 64-byte aligned; null if none was requested.
    pub scratch: *mut c_void,
    /// Size of the scratch memory.
    pub scratch_bytes: u64,
    /// The data registered along with the function; null in artefacts.
    pub data: *mut c_void,
    /// How the host runs this call of the model, or null: a function may use its `parallel_for`.
    pub exec: *const Exec,
    /// Entries of `inputs`.
    pub n_inputs: u32,
    /// Entries of `outputs`.
    pub n_outputs: u32,
    /// Entries of `attributes`.
    pub n_attributes: u32,
    /// Zero.
    pub reserved: u32,
    /// Start of the device memory of the target, which may hold arguments and scratch; null if it has none.
    pub memory: *mut c_void,
}

/// A function that a model calls. Zero is success; any other value ends the model's call with [`Code::CalleeFailed`].
pub type Callee = unsafe extern "C" fn(call: *const Call) -> i32;
