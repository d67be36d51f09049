//! The memory of a module: which address every tensor has.

use crate::{
    emit::weights::WeightsFile,
    error::{Error, ErrorKind, Result},
    kernel::{Port, Program},
    plan::Plan,
};
use num_traits::ToPrimitive;

/// Bytes of a page of WebAssembly memory.
pub(super) const PAGE_BYTES: u64 = 1 << 16;

/// Largest memory that 32-bit addresses reach.
const MAX_BYTES: u64 = 1 << 32;

/// Tensors begin at multiples of this.
const ALIGN: u64 = 64;

/// Bytes of `symshape_error` and of `symshape_exec` on wasm32. The ES module knows the offsets of their members.
const ERROR_BYTES: u64 = 56;
const EXEC_BYTES: u64 = 20;

/// C that compiles only if the two structs have these sizes.
pub(super) fn layout_check() -> String {
    format!(
        "\n_Static_assert(sizeof(symshape_error) == {ERROR_BYTES}, \"symshape_error\");\n\
         _Static_assert(sizeof(symshape_exec) == {EXEC_BYTES}, \"symshape_exec\");\n"
    )
}

/// Memory for an input or output at its upper bound.
pub(super) struct Slot {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

/// Addresses of the data that a call reads and writes.
pub(super) struct Memory {
    /// The dims of the call: 64-bit integers.
    pub(super) dims: u64,
    /// The shapes of all inputs, one after another: 64-bit integers.
    pub(super) shapes: u64,
    /// The shape of one output.
    pub(super) output_shape: u64,
    pub(super) error: u64,
    pub(super) exec: u64,
    /// A table of the addresses of the inputs' shapes.
    pub(super) shape_table: u64,
    /// A table of the addresses of the inputs and of the weights.
    pub(super) input_table: u64,
    /// A table of the addresses of the outputs.
    pub(super) output_table: u64,
    /// The address of the state of a call.
    pub(super) state_table: u64,
    pub(super) weights: u64,
    /// Bytes of the weights that calls read.
    pub(super) weights_bytes: u64,
    pub(super) inputs: Vec<Slot>,
    pub(super) outputs: Vec<Slot>,
    /// Memory for states: the largest one, or several smaller ones.
    pub(super) states: Slot,
    pub(super) arena: u64,
    /// Bytes of the whole memory: whole pages.
    pub(super) end: u64,
}

impl Memory {
    /// The memory of a module whose code takes the first `code_bytes` bytes.
    ///
    /// # Errors
    /// When it exceeds 4 GiB, or a tensor has no upper bound.
    pub(super) fn of(
        program: &Program,
        plan: &Plan,
        weights: &WeightsFile,
        code_bytes: u64,
    ) -> Result<Memory> {
        let mut end = code_bytes;
        let mut take = |bytes: u64, align: u64| -> Result<u64> {
            let address = end.checked_next_multiple_of(align).ok_or_else(too_large)?;
            end = address.checked_add(bytes).ok_or_else(too_large)?;
            Ok(address)
        };
        let rank = |port: &Port| port.shape.len() as u64;
        let n_inputs = program.inputs.len() as u64;
        let n_dims = (program.symbols.len() + program.data_dependent.len()) as u64;

        let dims = take(8 * n_dims, ALIGN)?;
        let shapes = take(8 * program.inputs.iter().map(rank).sum::<u64>(), 8)?;
        let output_shape = take(8 * program.outputs.iter().map(rank).max().unwrap_or(0), 8)?;
        let error = take(ERROR_BYTES, 8)?;
        let exec = take(EXEC_BYTES, 8)?;
        // The words of a state are the shape of one more input.
        let shape_table = take(4 * (n_inputs + 1), 4)?;
        let input_table = take(4 * (n_inputs + 1), 4)?;
        let output_table = take(4 * program.outputs.len() as u64, 4)?;
        let state_table = take(4, 4)?;

        let weights_bytes = weights.table_offset();
        let weights = take(weights_bytes, ALIGN)?;
        let mut slots = |ports: &[Port]| -> Result<Vec<Slot>> {
            let slot = |port: &Port| {
                let bytes = max_bytes(program, port)?;
                Ok(Slot { address: take(bytes, ALIGN)?, bytes })
            };
            ports.iter().map(slot).collect()
        };
        let inputs = slots(&program.inputs)?;
        let outputs = slots(&program.outputs)?;
        let state_bytes = max_state_bytes(program)?;
        let states = Slot { address: take(state_bytes, ALIGN)?, bytes: state_bytes };
        let arena = take(plan.arena_max, ALIGN)?;
        let end = end.checked_next_multiple_of(PAGE_BYTES).ok_or_else(too_large)?;

        let memory = Memory {
            dims,
            shapes,
            output_shape,
            error,
            exec,
            shape_table,
            input_table,
            output_table,
            state_table,
            weights,
            weights_bytes,
            inputs,
            outputs,
            states,
            arena,
            end,
        };
        if memory.end > MAX_BYTES { Err(memory.exceeded(plan)) } else { Ok(memory) }
    }

    /// The error of a memory that 32-bit addresses don't reach.
    fn exceeded(&self, plan: &Plan) -> Error {
        let bytes = |slots: &[Slot]| slots.iter().map(|slot| slot.bytes).sum::<u64>();
        Error::new(
            ErrorKind::Limit,
            format!(
                "the model needs {} bytes at the upper bounds of its symbols (weights {}, inputs {}, outputs {}, \
                 state {}, arena {}), and a WebAssembly memory has at most 4 GiB: declare smaller bounds with --dim",
                self.end,
                self.weights_bytes,
                bytes(&self.inputs),
                bytes(&self.outputs),
                self.states.bytes,
                plan.arena_max
            ),
        )
    }
}

/// Upper bound of the bytes of a state; 0 if the program has none.
fn max_state_bytes(program: &Program) -> Result<u64> {
    let Some(bytes) = program.state_offsets().pop() else { return Ok(0) };
    let bound = program.facts.bounds(&bytes).hi.ok_or_else(|| {
        let message =
            "the state has no upper bound: WebAssembly memory does not grow, so declare bounds with --dim";
        Error::new(ErrorKind::Contract, message)
    })?;
    bound.to_u64().ok_or_else(too_large)
}

/// Upper bound of the bytes of an input or output.
fn max_bytes(program: &Program, port: &Port) -> Result<u64> {
    let buffer = &program.buffers[port.buffer];
    let size = &buffer.elems * buffer.dtype.size_bytes() as i64;
    let bound = program.facts.bounds(&size).hi.ok_or_else(|| {
        let message = format!(
            "`{}` has no upper bound: WebAssembly memory does not grow, so declare one with --dim",
            port.name
        );
        Error::new(ErrorKind::Contract, message)
    })?;
    bound.to_u64().ok_or_else(too_large)
}

fn too_large() -> Error {
    Error::new(ErrorKind::Limit, "a WebAssembly memory has at most 4 GiB: declare smaller bounds with --dim")
}
