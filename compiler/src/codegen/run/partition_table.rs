//! Access to the table of partitions, and to their states, from generated code.

use crate::{
    codegen::function::FuncCtx,
    error::{Error, Result},
};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use std::mem::offset_of;
use symshape_runtime::abi::PartitionDesc;

/// States of a partition, which the frame stores.
pub(crate) mod state {
    pub(crate) const FREE: i64 = 0;
    pub(crate) const TAKEN: i64 = 1;
    pub(crate) const DONE: i64 = 2;
}

/// The address of an entry of the table, a [`PartitionDesc`].
pub(crate) struct PartitionEntry(Value);

impl PartitionEntry {
    /// The entry of a partition.
    pub(crate) fn at(f: &mut FuncCtx, table: Value, partition: Value) -> PartitionEntry {
        let offset = f.ins().imul_imm_s(partition, size_of::<PartitionDesc>() as i64);
        PartitionEntry(f.ins().iadd(table, offset))
    }

    /// Calls the partition's function, and returns its code.
    pub(crate) fn run(&self, f: &mut FuncCtx, frame: Value) -> Result<Value> {
        let function = f.load_word(self.0, offset_of!(PartitionDesc, run) as i32);
        let code = f.call_indirect(function, &[types::I64], &[types::I32], &[frame]);
        code.ok_or_else(|| Error::internal("a partition returns a code"))
    }

    /// The estimate of the partition's work on this number of threads.
    pub(crate) fn cost(&self, f: &mut FuncCtx, dims: Value, threads: Value) -> Result<Value> {
        let function = f.load_word(self.0, offset_of!(PartitionDesc, cost) as i32);
        let work = f.call_indirect(function, &[types::I64, types::I32], &[types::I64], &[dims, threads]);
        work.ok_or_else(|| Error::internal("a cost function returns work"))
    }

    /// `for other in after { body }`, over the partitions that this one depends on.
    pub(crate) fn for_each_dependency(
        &self,
        f: &mut FuncCtx,
        body: impl FnOnce(&mut FuncCtx, Value) -> Result<()>,
    ) -> Result<()> {
        let trusted = MemFlagsData::trusted();
        let list = f.load_word(self.0, offset_of!(PartitionDesc, after) as i32);
        let count = f.ins().uload32(trusted, self.0, offset_of!(PartitionDesc, n_after) as i32);
        let zero = f.int(0);
        f.for_range(zero, count, |f, idx| {
            let offset = f.ins().imul_imm_s(idx, 4);
            let address = f.ins().iadd(list, offset);
            let other = f.ins().uload32(trusted, address, 0);
            body(f, other)
        })
    }
}

/// The address of word `idx` of an array.
pub(crate) fn word_at(f: &mut FuncCtx, array: Value, idx: Value) -> Value {
    let offset = f.ins().imul_imm_s(idx, 8);
    f.ins().iadd(array, offset)
}
