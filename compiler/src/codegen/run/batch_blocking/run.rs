//! `run` as a loop over blocks of a batch, whose images several threads may share.

use super::{
    BLOCK_BYTES, BatchBlocking, BatchSize, SymbolSize,
    blocks::{BlockArrays, Images, call_arena_bytes},
    sharing::ImageSharing,
};
use crate::{
    codegen::{
        function::{FuncCtx, ModuleBuilder},
        run::arguments::{RUN_PARAMS, RunArguments},
    },
    error::Result,
    kernel::BatchBlocks,
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, condcodes::IntCC, types};
use cranelift_module::{FuncId, Linkage};

/// Functions that `run` calls.
#[derive(Clone, Copy)]
struct Callees {
    /// Runs all kernels.
    inner: FuncId,
    /// The exported function of this name.
    arena_bytes: FuncId,
    /// Runs shares of a job, if threads may share images.
    task: Option<FuncId>,
}

impl BatchBlocking {
    /// Emits `run`, which calls `inner` for each block; `arena_bytes` is the exported function of that name.
    pub(crate) fn run(&self, unit: &mut ModuleBuilder, inner: FuncId, arena_bytes: FuncId) -> Result<FuncId> {
        let task = if self.can_share { Some(self.task(unit, inner)?) } else { None };
        let callees = Callees { inner, arena_bytes, task };
        let name = unit.symbol("run");
        let id = unit.declare(&name, Linkage::Export, &RUN_PARAMS, &[types::I32])?;
        unit.define(id, |f, params| match &self.size {
            BatchSize::Symbol(size) => self.run_symbol(f, params, size, callees),
            BatchSize::Constant(blocks) => self.run_constant(f, params, blocks, callees),
        })?;
        Ok(id)
    }

    /// Emits the body of `run` for a batch whose size is a symbol.
    fn run_symbol(
        &self,
        f: &mut FuncCtx,
        params: &[Value],
        size: &SymbolSize,
        callees: Callees,
    ) -> Result<()> {
        let Callees { inner, arena_bytes, .. } = callees;
        let arguments = RunArguments::of(params)?;
        let count = f.load_word(arguments.dims, 8 * size.symbol as i32);
        let [sized, rest, whole, larger, blocks] = [0; 5].map(|_| f.create_block());
        let done = f.builder.append_block_param(rest, types::I64);
        let arrays = self.block_arrays(f);
        // This function has no guards. It passes sizes out of range on to `inner`, which reports the error.
        let in_range = size.in_range(f, &arguments, &arrays);
        let has_several = f.ins().icmp_imm_s(IntCC::SignedGreaterThan, count, 1);
        let may_be_divided = f.ins().band(in_range, has_several);
        f.ins().brif(may_be_divided, sized, &[], whole, &[]);

        f.switch_to_block(sized);
        f.set_dims(arguments.dims, 0);
        let block = size.block_images(f)?;
        let block = f.ins().smin(block, count);
        let strides = self.strides(f)?;
        let shared = self.share(f, callees, &arrays, count, block, &arguments)?;
        f.ins().jump(rest, &[BlockArg::Value(shared)]);

        f.switch_to_block(rest);
        let is_larger = f.ins().icmp(IntCC::SignedGreaterThan, count, block);
        let has_begun = f.ins().icmp_imm_s(IntCC::NotEqual, done, 0);
        let is_blocked = f.ins().bor(is_larger, has_begun);
        f.ins().brif(is_blocked, larger, &[], whole, &[]);

        f.switch_to_block(whole);
        f.return_call_result(inner, params);

        // A block has the arena of the whole batch.
        f.switch_to_block(larger);
        let available = call_arena_bytes(f, arena_bytes, arguments.dims)?;
        f.store_at(block, arrays.dims, 8 * size.symbol as i32);
        let needed = call_arena_bytes(f, arena_bytes, arrays.dims)?;
        let fits = f.ins().icmp(IntCC::SignedLessThanOrEqual, needed, available);
        f.ins().brif(fits, blocks, &[], whole, &[]);

        f.switch_to_block(blocks);
        let images = Images { first: done, end: count, block };
        let code = self.run_blocks(f, inner, &arrays, &arguments, &strides, images)?;
        f.ins().return_(&[code]);
        Ok(())
    }

    /// Emits the body of `run` for a batch of constant size.
    fn run_constant(
        &self,
        f: &mut FuncCtx,
        params: &[Value],
        blocks: &BatchBlocks,
        callees: Callees,
    ) -> Result<()> {
        let arguments = RunArguments::of(params)?;
        let arrays = self.block_arrays(f);
        let [count, block] = [blocks.images, blocks.block].map(|images| f.int(images));
        let strides = self.strides(f)?;
        let done = self.share(f, callees, &arrays, count, block, &arguments)?;
        let images = Images { first: done, end: count, block };
        let code = self.run_blocks(f, callees.inner, &arrays, &arguments, &strides, images)?;
        f.ins().return_(&[code]);
        Ok(())
    }

    /// Emits the part of `run` that shares images among threads, if they may. Returns how many were run.
    fn share(
        &self,
        f: &mut FuncCtx,
        callees: Callees,
        arrays: &BlockArrays,
        count: Value,
        block: Value,
        arguments: &RunArguments,
    ) -> Result<Value> {
        let Some(task) = callees.task else { return Ok(f.int(0)) };
        let Callees { arena_bytes, .. } = callees;
        let sharing = ImageSharing { blocking: self, task, arena_bytes, arrays, count, block };
        sharing.emit(f, arguments)
    }
}

impl SymbolSize {
    /// Copies the sizes of the call to the array for blocks. Returns whether all are in their ranges.
    fn in_range(&self, f: &mut FuncCtx, arguments: &RunArguments, arrays: &BlockArrays) -> Value {
        let mut in_range = f.ins().iconst(types::I8, 1);
        for (idx, (lo, hi)) in self.ranges.iter().enumerate() {
            let value = f.load_word(arguments.dims, 8 * idx as i32);
            f.store_at(value, arrays.dims, 8 * idx as i32);
            let is_not_below = f.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, value, *lo);
            let is_not_above = f.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, value, *hi);
            let is_within = f.ins().band(is_not_below, is_not_above);
            in_range = f.ins().band(in_range, is_within);
        }
        in_range
    }

    /// Images of a block: as many as [`BLOCK_BYTES`] allow in each kernel, or all where blocks don't pay.
    fn block_images(&self, f: &mut FuncCtx) -> Result<Value> {
        let one = f.int(1);
        let mut kernel_bytes = one;
        for bytes in &self.kernel_bytes {
            let bytes = f.dim(bytes)?;
            kernel_bytes = f.ins().smax(kernel_bytes, bytes);
        }
        let budget = f.int(BLOCK_BYTES);
        let images = f.ins().udiv(budget, kernel_bytes);
        let images = f.ins().smax(images, one);
        let image_bytes = f.dim(&self.image_bytes)?;
        let pays = f.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, image_bytes, self.min_image_bytes);
        let all = f.int(self.max_images);
        Ok(f.ins().select(pays, images, all))
    }
}
