//! Argument blocks of microkernels: arrays of 64-bit words on the stack.

use super::body_builder::{ScalarArg, Stream};
use crate::{codegen::function::FuncCtx, error::Result};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};

/// An argument block while its values are computed. A slot without a value becomes zero.
#[derive(Clone)]
pub(crate) struct ArgBlock {
    values: Vec<Option<Value>>,
}

impl ArgBlock {
    /// A block of this many slots.
    pub(crate) fn new(slots: usize) -> ArgBlock {
        ArgBlock { values: vec![None; slots] }
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

    /// Sets a slot to a scalar: all of its bits if it has 64, else the low 32.
    pub(crate) fn set_scalar(&mut self, f: &mut FuncCtx, slot: usize, scalar: &ScalarArg) -> Result<()> {
        let value = match scalar {
            ScalarArg::Index(dim) => f.dim(dim)?,
            ScalarArg::Local(local) => {
                let value = f.local(*local)?;
                match f.builder.func.dfg.value_type(value) {
                    types::I64 => value,
                    types::F64 => f.ins().bitcast(types::I64, MemFlagsData::new(), value),
                    types::F32 => {
                        let bits = f.ins().bitcast(types::I32, MemFlagsData::new(), value);
                        f.ins().uextend(types::I64, bits)
                    }
                    _ => f.ins().uextend(types::I64, value),
                }
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

    /// Stores the block on the stack; its address is valid until the next block is stored.
    pub(crate) fn place(&self, f: &mut FuncCtx) -> Value {
        let values = self.values(f);
        f.args(&values)
    }
}
