//! `run` as a loop over blocks of a batch, whose images several threads may share.
//!
//! Each thread then has the same number of whole images, in blocks of the same size: a block is a *share*. A thread
//! that is done takes shares of others. A share reads and writes the caller's tensors, and its thread has a slice of
//! the arena for itself. Threads don't wait for each other between kernels, and the output of a kernel is in the caches
//! of the thread that runs the next one. The images that remain run afterwards, kernel by kernel, on all threads.
//!
//! A share that fails only sets a flag, because several may fail at once. The loop then starts again from the first
//! image, meets the failure again, and reports it exactly as a call on one thread does.

use super::{BLOCK_BYTES, BatchBlocking};
use crate::{
    codegen::{
        function::{FuncCtx, ModuleBuilder},
        run::{
            arguments::{RUN_PARAMS, RunArguments},
            estimate,
            host::{Host, TASK_PARAMS},
        },
    },
    error::{Error, Result},
    kernel::cost,
    plan::ALIGN_BYTES,
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use cranelift_module::{FuncId, Linkage};
use symshape::Dim;

/// The job of the threads: offsets of words on the stack of `run`.
mod job {
    /// The caller's arrays of tensors, and the address of the arena.
    pub(super) const INPUTS: i32 = 0;
    pub(super) const OUTPUTS: i32 = 8;
    pub(super) const ARENA: i32 = 16;
    /// Images of each thread.
    pub(super) const THREAD_IMAGES: i32 = 24;
    /// Images of each share; the last one of a thread may have fewer.
    pub(super) const SHARE_IMAGES: i32 = 32;
    /// Shares of each thread.
    pub(super) const THREAD_SHARES: i32 = 40;
    /// Bytes of the arena's slice of a thread.
    pub(super) const SLICE_BYTES: i32 = 48;
    /// Not zero once a share has failed.
    pub(super) const FAILED: i32 = 56;
    /// Size of the job.
    pub(super) const WORDS: usize = 8;
}

/// Arguments of the calls for one block after another: arrays on the stack, see [`RunArguments`].
struct BlockArrays {
    inputs: Value,
    outputs: Value,
    dims: Value,
}

/// The images that a sequence of blocks covers.
#[derive(Clone, Copy)]
struct Images {
    first: Value,
    end: Value,
    /// Images of a block; the last block may have fewer.
    block: Value,
}

/// Bytes from image to image of the inputs and outputs.
struct ImageStrides {
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

impl BatchBlocking {
    /// Emits `run`, which calls `inner` for each block; `arena_bytes` is the exported function of that name.
    pub(crate) fn run(&self, unit: &mut ModuleBuilder, inner: FuncId, arena_bytes: FuncId) -> Result<FuncId> {
        let task = if self.can_share { Some(self.task(unit, inner)?) } else { None };
        let name = unit.symbol("run");
        let id = unit.declare(&name, Linkage::Export, &RUN_PARAMS, &[types::I32])?;
        unit.define(id, |f, params| {
            let arguments = RunArguments::of(params)?;
            let count = f.load_word(arguments.dims, 8 * self.symbol as i32);
            let [sized, rest, whole, larger, blocks] = [0; 5].map(|_| f.create_block());
            let done = f.builder.append_block_param(rest, types::I64);
            let arrays = self.block_arrays(f);
            // This function has no guards. It passes sizes out of range on to `inner`, which reports the error.
            let in_range = self.in_range(f, &arguments, &arrays);
            let has_several = f.ins().icmp_imm_s(IntCC::SignedGreaterThan, count, 1);
            let may_be_divided = f.ins().band(in_range, has_several);
            f.ins().brif(may_be_divided, sized, &[], whole, &[]);

            f.switch_to_block(sized);
            f.set_dims(arguments.dims, 0);
            let block = self.block_images(f)?;
            let block = f.ins().smin(block, count);
            let strides = self.strides(f)?;
            let zero = f.int(0);
            let shared = match task {
                Some(task) => {
                    let arrays = &arrays;
                    let sharing = ImageSharing { blocking: self, task, arena_bytes, arrays, count, block };
                    sharing.emit(f, &arguments)?
                }
                None => zero,
            };
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
            f.store_at(block, arrays.dims, 8 * self.symbol as i32);
            let needed = call_arena_bytes(f, arena_bytes, arrays.dims)?;
            let fits = f.ins().icmp(IntCC::SignedLessThanOrEqual, needed, available);
            f.ins().brif(fits, blocks, &[], whole, &[]);

            f.switch_to_block(blocks);
            let images = Images { first: done, end: count, block };
            let code = self.run_blocks(f, inner, &arrays, &arguments, &strides, images)?;
            f.ins().return_(&[code]);
            Ok(())
        })?;
        Ok(id)
    }

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

    /// The distances from image to image.
    fn strides(&self, f: &mut FuncCtx) -> Result<ImageStrides> {
        let mut values = |strides: &[Dim]| strides.iter().map(|stride| f.dim(stride)).collect::<Result<_>>();
        Ok(ImageStrides { inputs: values(&self.inputs)?, outputs: values(&self.outputs)? })
    }

    /// Stack memory for the arguments of calls for a block.
    fn block_arrays(&self, f: &mut FuncCtx) -> BlockArrays {
        let inputs = f.words(self.inputs.len() + usize::from(f.unit.has_weights_file()));
        let outputs = f.words(self.outputs.len());
        let dims = f.words(f.unit.program.symbols.len());
        BlockArrays { inputs, outputs, dims }
    }

    /// Calls `inner` for one block of images after another. Returns the code of the call that failed, or 0.
    fn run_blocks(
        &self,
        f: &mut FuncCtx,
        inner: FuncId,
        arrays: &BlockArrays,
        arguments: &RunArguments,
        strides: &ImageStrides,
        images: Images,
    ) -> Result<Value> {
        let Images { first, end, block } = images;
        let after = f.create_block();
        let code = f.builder.append_block_param(after, types::I32);
        let ok = f.ins().iconst(types::I32, 0);
        let zero = f.int(0);
        let count = f.ins().isub(end, first);
        let round_up = f.ins().iadd_imm_s(block, -1);
        let padded = f.ins().iadd(count, round_up);
        let n_blocks = f.ins().udiv(padded, block);
        if f.unit.has_weights_file() {
            let at = 8 * self.inputs.len() as i32;
            let weights = f.load_word(arguments.inputs, at);
            f.store_at(weights, arrays.inputs, at);
        }

        f.for_range(zero, n_blocks, |f, idx| {
            let skipped = f.ins().imul(idx, block);
            let image = f.ins().iadd(first, skipped);
            let remaining = f.ins().isub(end, image);
            let count = f.ins().smin(remaining, block);
            f.store_at(count, arrays.dims, 8 * self.symbol as i32);
            advance_tensors(f, &strides.inputs, arguments.inputs, arrays.inputs, image);
            advance_tensors(f, &strides.outputs, arguments.outputs, arrays.outputs, image);

            let block_arguments = RunArguments {
                inputs: arrays.inputs,
                outputs: arrays.outputs,
                dims: arrays.dims,
                ..*arguments
            };
            let result = f.call(inner, &block_arguments.values());
            let result = result.ok_or_else(|| Error::internal("`run` returns a code"))?;
            let next = f.create_block();
            f.ins().brif(result, after, &[BlockArg::Value(result)], next, &[]);

            f.switch_to_block(next);
            Ok(())
        })?;
        f.ins().jump(after, &[BlockArg::Value(ok)]);

        f.switch_to_block(after);
        Ok(code)
    }

    /// Emits the task that runs shares `begin..end` of a job: `(job, begin, end, worker)`.
    fn task(&self, unit: &mut ModuleBuilder, inner: FuncId) -> Result<FuncId> {
        unit.define_local("share_images", &TASK_PARAMS, &[], |f, params| {
            let [job, begin, end, worker] = *params else {
                return Err(Error::internal("a task has four parameters"));
            };
            let arrays = self.block_arrays(f);
            // Images of constant sizes are shared only.
            let strides = self.strides(f)?;
            let [inputs, outputs, arena, thread_images, block, thread_shares, slice_bytes] = [
                job::INPUTS,
                job::OUTPUTS,
                job::ARENA,
                job::THREAD_IMAGES,
                job::SHARE_IMAGES,
                job::THREAD_SHARES,
                job::SLICE_BYTES,
            ]
            .map(|offset| f.load_word(job, offset));
            let worker = f.ins().uextend(types::I64, worker);
            let skipped = f.ins().imul(worker, slice_bytes);
            let arena = f.ins().iadd(arena, skipped);

            f.for_range(begin, end, |f, share| {
                let failed = f.create_block();
                let next = f.create_block();
                let thread = f.ins().udiv(share, thread_shares);
                let before = f.ins().imul(thread, thread_shares);
                let of_thread = f.ins().isub(share, before);
                let thread_first = f.ins().imul(thread, thread_images);
                let skipped = f.ins().imul(of_thread, block);
                let first = f.ins().iadd(thread_first, skipped);
                let share_end = f.ins().iadd(first, block);
                let thread_end = f.ins().iadd(thread_first, thread_images);
                let end = f.ins().smin(share_end, thread_end);

                // A share runs on one thread, and must not report an error, so it has no `exec`.
                let exec = f.int(0);
                let arguments = RunArguments { inputs, outputs, dims: arrays.dims, arena, exec };
                let images = Images { first, end, block };
                let code = self.run_blocks(f, inner, &arrays, &arguments, &strides, images)?;
                f.ins().brif(code, failed, &[], next, &[]);

                f.switch_to_block(failed);
                let one = f.int(1);
                let flag = f.ins().iadd_imm_s(job, i64::from(job::FAILED));
                f.ins().atomic_store(MemFlagsData::trusted(), one, flag);
                f.ins().jump(next, &[]);

                f.switch_to_block(next);
                Ok(())
            })?;
            f.ins().return_(&[]);
            Ok(())
        })
    }
}

/// The bytes of arena that a call of these sizes needs.
fn call_arena_bytes(f: &mut FuncCtx, arena_bytes: FuncId, dims: Value) -> Result<Value> {
    f.call(arena_bytes, &[dims]).ok_or_else(|| Error::internal("`arena_bytes` returns a size"))
}

/// Stores the addresses of all tensors at an image, given the bytes from image to image of each.
fn advance_tensors(f: &mut FuncCtx, strides: &[Value], from: Value, to: Value, image: Value) {
    for (idx, stride) in strides.iter().enumerate() {
        let begin = f.load_word(from, 8 * idx as i32);
        let skipped = f.ins().imul(image, *stride);
        let address = f.ins().iadd(begin, skipped);
        f.store_at(address, to, 8 * idx as i32);
    }
}

/// The part of `run` that shares images among threads.
struct ImageSharing<'i> {
    blocking: &'i BatchBlocking,
    task: FuncId,
    arena_bytes: FuncId,
    arrays: &'i BlockArrays,
    /// Images of the call.
    count: Value,
    /// The most images of a block.
    block: Value,
}

/// The size of the shares.
struct Shares {
    /// Images of each thread.
    images: Value,
    /// Images of a share.
    block: Value,
    slice_bytes: Value,
}

impl ImageSharing<'_> {
    /// Runs the largest number of images that threads can share evenly, if that pays. Returns how many were run: none
    /// if a share failed.
    fn emit(&self, f: &mut FuncCtx, arguments: &RunArguments) -> Result<Value> {
        let [has_exec, can_share, pays, sized, smaller, shared, after] = [0; 7].map(|_| f.create_block());
        let block = f.builder.append_block_param(sized, types::I64);
        let done = f.builder.append_block_param(after, types::I64);
        let zero = f.int(0);
        let none = [BlockArg::Value(zero)];
        f.ins().brif(arguments.exec, has_exec, &[], after, &none);

        f.switch_to_block(has_exec);
        let host = Host::offered(f, arguments.exec);
        let is_possible = self.is_possible(f, &host);
        f.ins().brif(is_possible, can_share, &[], after, &none);

        f.switch_to_block(can_share);
        let program = f.unit.program;
        let work = Dim::sum(program.kernels.iter().map(|kernel| cost::work(program, &kernel.body)));
        let is_enough = estimate::is_enough(f, &work)?;
        f.ins().brif(is_enough, pays, &[], after, &none);

        f.switch_to_block(pays);
        let images = f.ins().udiv(self.count, host.threads);
        let max_block = f.ins().smin(images, self.block);
        let arena_bytes = call_arena_bytes(f, self.arena_bytes, arguments.dims)?;
        f.ins().jump(sized, &[BlockArg::Value(max_block)]);

        // Halve the block until the slices of all threads fit in the arena of the whole batch. A call needs some memory
        // that does not grow with its images, so slices for a full share may not fit.
        f.switch_to_block(sized);
        let slice_bytes = self.slice_bytes(f, block)?;
        let slices_bytes = f.ins().imul(slice_bytes, host.threads);
        let fits = f.ins().icmp(IntCC::SignedLessThanOrEqual, slices_bytes, arena_bytes);
        f.ins().brif(fits, shared, &[], smaller, &[]);

        f.switch_to_block(smaller);
        let half = f.ins().ushr_imm_u(block, 1);
        let has_images = f.ins().icmp_imm_s(IntCC::SignedGreaterThan, half, 0);
        f.ins().brif(has_images, sized, &[BlockArg::Value(half)], after, &none);

        f.switch_to_block(shared);
        let shares = Shares { images, block, slice_bytes };
        let n_done = self.run_shares(f, &host, arguments, &shares, zero);
        f.ins().jump(after, &[BlockArg::Value(n_done)]);

        f.switch_to_block(after);
        Ok(done)
    }

    /// Whether the host has threads, and each gets an image.
    fn is_possible(&self, f: &mut FuncCtx, host: &Host) -> Value {
        let has_threads = f.ins().icmp_imm_s(IntCC::NotEqual, host.parallel_for, 0);
        let has_images = f.ins().icmp(IntCC::SignedLessThanOrEqual, host.threads, self.count);
        f.ins().band(has_threads, has_images)
    }

    /// The aligned bytes of arena that a call for one block needs.
    fn slice_bytes(&self, f: &mut FuncCtx, block: Value) -> Result<Value> {
        f.store_at(block, self.arrays.dims, 8 * self.blocking.symbol as i32);
        let bytes = call_arena_bytes(f, self.arena_bytes, self.arrays.dims)?;
        let bytes = f.ins().iadd_imm_s(bytes, ALIGN_BYTES - 1);
        Ok(f.ins().band_imm_s(bytes, -ALIGN_BYTES))
    }

    /// Runs the shares on the threads. Returns the number of images, or zero if a share failed.
    fn run_shares(
        &self,
        f: &mut FuncCtx,
        host: &Host,
        arguments: &RunArguments,
        shares: &Shares,
        zero: Value,
    ) -> Value {
        let job = f.words(job::WORDS);
        let round_up = f.ins().iadd_imm_s(shares.block, -1);
        let padded = f.ins().iadd(shares.images, round_up);
        let thread_shares = f.ins().udiv(padded, shares.block);
        f.store_fields(
            job,
            &[
                (arguments.inputs, job::INPUTS),
                (arguments.outputs, job::OUTPUTS),
                (arguments.arena, job::ARENA),
                (shares.images, job::THREAD_IMAGES),
                (shares.block, job::SHARE_IMAGES),
                (thread_shares, job::THREAD_SHARES),
                (shares.slice_bytes, job::SLICE_BYTES),
                (zero, job::FAILED),
            ],
        );
        let n_shares = f.ins().imul(thread_shares, host.threads);
        host.parallel_for(f, n_shares, self.task, job);

        let has_failed = f.load_word(job, job::FAILED);
        let n_images = f.ins().imul(shares.images, host.threads);
        f.ins().select(has_failed, zero, n_images)
    }
}
