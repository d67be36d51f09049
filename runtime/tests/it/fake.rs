//! A hand-written model with the interface of an artefact:
//! `z[N, S] = 2 * x[N, S] + y[N]` and `rows = N`, for N in 1..=64 and S one of 2, 4, 8.

use std::{
    ffi::{CStr, c_char, c_void},
    sync::Arc,
};
use symshape_runtime::{
    MAX_AXES, Model, OpenError,
    abi::{ABI_VERSION, Code, Error, Exec, GROWS, MAGIC, ModelDesc, RaggedDesc, SymbolDesc, TensorDesc},
};

const VALUES: [i64; 3] = [2, 4, 8];

/// Pointers to constants, which threads may share.
struct Shared<T>(T);
// SAFETY: all pointers inside lead to constants.
unsafe impl<T> Sync for Shared<T> {}

static SYMBOLS: Shared<[SymbolDesc; 2]> = Shared([
    SymbolDesc {
        name: c"N".as_ptr(),
        lo: 1,
        hi: 64,
        step: 1,
        offset: 0,
        n_values: 0,
        values: std::ptr::null(),
    },
    SymbolDesc {
        name: c"S".as_ptr(),
        lo: 2,
        hi: 8,
        step: 1,
        offset: 0,
        n_values: 3,
        values: VALUES.as_ptr(),
    },
]);

static DIMS: Shared<[*const c_char; 2]> = Shared([c"N".as_ptr(), c"S".as_ptr()]);

const fn tensor(name: &'static CStr, dtype: u32, rank: u32, max_bytes: u64) -> TensorDesc {
    TensorDesc { name: name.as_ptr(), dtype, rank, dims: DIMS.0.as_ptr(), max_bytes }
}

static INPUTS: Shared<[TensorDesc; 2]> = Shared([tensor(c"x", 1, 2, 64 * 8 * 4), tensor(c"y", 1, 1, 64 * 4)]);
static OUTPUTS: Shared<[TensorDesc; 2]> = Shared([tensor(c"z", 1, 2, 64 * 8 * 4), tensor(c"rows", 7, 0, 8)]);

static MANY_DIMS: Shared<[*const c_char; MAX_AXES + 1]> = Shared([c"N".as_ptr(); MAX_AXES + 1]);

static WIDE: Shared<[TensorDesc; 2]> = Shared([
    TensorDesc { dims: MANY_DIMS.0.as_ptr(), ..tensor(c"wide", 1, MAX_AXES as u32, 64 * 4) },
    TensorDesc { dims: MANY_DIMS.0.as_ptr(), ..tensor(c"wider", 1, MAX_AXES as u32 + 1, 64 * 4) },
]);

static BATCH_AXES: Shared<[i64; 4]> = Shared([0, -1, 0, -1]);

static RAGGED: Shared<[RaggedDesc; 3]> = Shared([ragged_at(0), ragged_at(1), ragged_at(2)]);

/// The table of a ragged batch whose offsets are the input `offsets`.
const fn ragged_at(offsets: u32) -> RaggedDesc {
    RaggedDesc {
        offsets,
        sequences: 0,
        rows: 1,
        mask_is_lengths: 0,
        length: SymbolDesc {
            name: c"L".as_ptr(),
            lo: 1,
            hi: 7,
            step: 1,
            offset: 0,
            n_values: 0,
            values: core::ptr::null(),
        },
        mask: c"mask".as_ptr(),
        batch_axes: BATCH_AXES.0.as_ptr(),
    }
}

/// The table of a ragged batch whose offsets are the input `offsets`, up to 2. The model has two inputs.
pub(crate) fn ragged(offsets: usize) -> *const RaggedDesc {
    &RAGGED.0[offsets]
}

/// The descriptor of a tensor with the largest number of axes, and of one with one more.
pub(crate) fn wide() -> &'static [TensorDesc; 2] {
    &WIDE.0
}

/// The descriptor. Tests may damage a copy.
pub(crate) fn desc() -> ModelDesc {
    ModelDesc {
        magic: MAGIC,
        abi_version: ABI_VERSION,
        n_symbols: 2,
        n_inputs: 2,
        n_outputs: 2,
        name: c"fake".as_ptr(),
        symbols: SYMBOLS.0.as_ptr(),
        inputs: INPUTS.0.as_ptr(),
        outputs: OUTPUTS.0.as_ptr(),
        arena_max: 64 * 8 * 4,
        arena_formula: c"4*N*S".as_ptr(),
        check,
        arena_bytes,
        output_shape,
        run,
        n_data_dependent: 0,
        flags: 0,
        n_partitions: 0,
        partitions: core::ptr::null(),
        frame_bytes: 0,
        begin: None,
        arena_slice: None,
        precision: 0,
        reserved: 0,
        product_error: 0.0,
        uses_tiles: None,
        state: core::ptr::null(),
        weights: core::ptr::null(),
        ragged: core::ptr::null(),
    }
}

/// The model with only the output `z`, whose inputs and outputs all consist of rows.
pub(crate) fn rows() -> Model {
    open(ModelDesc { n_outputs: 1, run: run_rows, ..desc() }).expect("well-formed")
}

/// The model of rows, with memory that grows.
pub(crate) fn growing() -> Model {
    open(ModelDesc { n_outputs: 1, run: run_rows, flags: GROWS, ..desc() }).expect("well-formed")
}

/// The model.
pub(crate) fn model() -> Model {
    open(desc()).expect("well-formed")
}

/// A model of this descriptor.
pub(crate) fn open(desc: ModelDesc) -> Result<Model, OpenError> {
    let desc = Arc::new(SharedDesc(desc));
    // SAFETY: the descriptor lives in the `Arc`, which the model keeps, and its functions meet the requirements of the
    // ABI.
    unsafe { Model::from_desc(&raw const desc.0, desc.clone()) }
}

struct SharedDesc(ModelDesc);
// SAFETY: as for `Shared`.
unsafe impl Send for SharedDesc {}
// SAFETY: as for `Shared`.
unsafe impl Sync for SharedDesc {}

fn violation(code: Code, symbol: u32, tensor: u32, axis: u32, (value, lo, hi): (i64, i64, i64)) -> Error {
    let why = match code {
        Code::Mismatch => c"`x` axis 0 gave it first".as_ptr(),
        _ => std::ptr::null(),
    };
    let (symbol_name, tensor_name) = (std::ptr::null(), std::ptr::null());
    Error { code: code as i32, tensor, axis, symbol, value, lo, hi, symbol_name, tensor_name, why }
}

unsafe extern "C" fn check(shapes: *const *const i64, dims: *mut i64, err: *mut Error) -> i32 {
    // SAFETY: two inputs with two axes and one; two symbols.
    unsafe {
        let (n, s, m) = (**shapes, *(*shapes).add(1), **shapes.add(1));
        let error = if !(1..=64).contains(&n) {
            violation(Code::OutOfRange, 0, 0, 0, (n, 1, 64))
        } else if !VALUES.contains(&s) {
            violation(Code::NotAllowed, 1, 0, 1, (s, 2, 8))
        } else if m != n {
            violation(Code::Mismatch, 0, 1, 0, (m, n, n))
        } else {
            *dims = n;
            *dims.add(1) = s;
            return 0;
        };
        *err = error;
        error.code
    }
}

unsafe extern "C" fn arena_bytes(dims: *const i64) -> usize {
    // SAFETY: two symbols.
    unsafe { (*dims * *dims.add(1) * 4) as usize }
}

unsafe extern "C" fn output_shape(output: u32, dims: *const i64, shape: *mut i64) -> i32 {
    if output == 0 {
        // SAFETY: two symbols, and the output has two axes.
        unsafe { shape.copy_from_nonoverlapping(dims, 2) };
    }
    0
}

unsafe extern "C" fn run(
    inputs: *const *const c_void,
    outputs: *const *mut c_void,
    dims: *mut i64,
    arena: *mut c_void,
    exec: *const Exec,
) -> i32 {
    // SAFETY: the sizes are those of the descriptor; the runtime always passes an `exec`.
    unsafe {
        let (n, s) = (*dims as usize, *dims.add(1) as usize);
        let (x, y) = (*inputs as *const f32, *inputs.add(1) as *const f32);
        let (z, rows) = (*outputs as *mut f32, *outputs.add(1) as *mut i64);
        let doubled = arena as *mut f32;
        for idx in 0..n * s {
            *doubled.add(idx) = 2.0 * *x.add(idx);
        }
        for idx in 0..n * s {
            *z.add(idx) = *doubled.add(idx) + *y.add(idx / s);
        }
        if *y == f32::INFINITY {
            *(*exec).error = violation(Code::IndexOutOfBounds, u32::MAX, 1, u32::MAX, (9, 0, 7));
            return Code::IndexOutOfBounds as i32;
        }
        if *y == f32::NEG_INFINITY {
            // Simulates a bug of the compiler: a write beyond the end of the arena.
            *doubled.add(n * s) = 1.0;
        }
        *rows = n as i64;
        0
    }
}

pub(crate) unsafe extern "C" fn run_rows(
    inputs: *const *const c_void,
    outputs: *const *mut c_void,
    dims: *mut i64,
    arena: *mut c_void,
    exec: *const Exec,
) -> i32 {
    // SAFETY: as the caller promises; the second output gets memory here. Any row can stop the call.
    unsafe {
        let y = *inputs.add(1) as *const f32;
        for row in 0..*dims as usize {
            if *y.add(row) == f32::INFINITY {
                *(*exec).error = violation(Code::IndexOutOfBounds, u32::MAX, 1, u32::MAX, (9, 0, 7));
                return Code::IndexOutOfBounds as i32;
            }
        }
        let mut unused = 0i64;
        let both = [*outputs, (&raw mut unused).cast()];
        run(inputs, both.as_ptr(), dims, arena, exec)
    }
}
