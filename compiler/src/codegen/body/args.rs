//! Argument blocks of microkernels: arrays of 64-bit words on the stack.

use super::body_builder::{ScalarArg, Stream};
use crate::{codegen::function::FuncCtx, error::Result};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};

/// An argument block while its values are computed.
#[derive(Clone)]
pub(crate) struct Args {
    values: Vec<Option<Value>>,
}

impl Args {
    /// A block of this many slots.
    pub(crate) fn new(slots: usize) -> Args {
        Args { values: vec![None; slots] }
    }

    pub(crate) fn set(&mut self, slot: usize, value: Value) {
        self.values[slot] = Some(value);
    }

    pub(crate) fn get(&self, slot: usize) -> Option<Value> {
        self.values[slot]
    }

    /// Sets three slots: the address of a stream's origin and its strides in bytes.
    pub(crate) fn set_stream(&mut self, f: &mut FuncCtx, slot: usize, stream: &Stream) -> Result<()> {
        let size = f.unit.program.buffers[stream.origin.buffer].dtype.size_bytes() as i64;
        self.set(slot, f.address(&stream.origin)?);
        self.set(slot + 1, f.dim(&(&stream.row * size))?);
        self.set(slot + 2, f.dim(&(&stream.column * size))?);
        Ok(())
    }

    /// Sets a slot to 32 bits.
    pub(crate) fn set_scalar(&mut self, f: &mut FuncCtx, slot: usize, scalar: &ScalarArg) -> Result<()> {
        let value = match scalar {
            ScalarArg::Index(dim) => f.dim(dim)?,
            ScalarArg::Local(local) => {
                let value = f.local(*local)?;
                let bits = match f.builder.func.dfg.value_type(value) {
                    types::F32 => f.builder.ins().bitcast(types::I32, MemFlagsData::new(), value),
                    _ => value,
                };
                f.builder.ins().uextend(types::I64, bits)
            }
        };
        self.set(slot, value);
        Ok(())
    }

    /// The values of all slots.
    pub(crate) fn values(&self, f: &mut FuncCtx) -> Vec<Value> {
        let zero = f.int(0);
        self.values.iter().map(|value| value.unwrap_or(zero)).collect()
    }

    /// The address of the block in memory.
    pub(crate) fn place(&self, f: &mut FuncCtx) -> Value {
        let values = self.values(f);
        f.args(&values)
    }
}
