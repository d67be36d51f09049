//! The parameters that `run`, `begin` and the functions that they call share.

use crate::error::{Error, Result};
use cranelift_codegen::ir::{Type, Value, types};

/// Parameters of `run(inputs, outputs, dims, arena, exec) -> code`.
pub(crate) const RUN_PARAMS: [Type; 5] = [types::I64; 5];

/// The arguments of `run`, all of them addresses.
#[derive(Clone, Copy)]
pub(crate) struct RunArguments {
    /// The addresses of the input tensors, one word each.
    pub(crate) inputs: Value,
    /// The addresses of the output tensors, one word each.
    pub(crate) outputs: Value,
    /// The values of the symbols, one word each.
    pub(crate) dims: Value,
    pub(crate) arena: Value,
    /// The [`symshape_runtime::abi::Exec`] of the call, or null.
    pub(crate) exec: Value,
}

impl RunArguments {
    /// The first parameters of a function that begins with those of `run`.
    pub(crate) fn of(params: &[Value]) -> Result<RunArguments> {
        let [inputs, outputs, dims, arena, exec, ..] = *params else {
            return Err(Error::internal("`run` has five parameters"));
        };
        Ok(RunArguments { inputs, outputs, dims, arena, exec })
    }

    /// The arguments in the order of the parameters.
    pub(crate) fn values(&self) -> [Value; 5] {
        [self.inputs, self.outputs, self.dims, self.arena, self.exec]
    }
}
