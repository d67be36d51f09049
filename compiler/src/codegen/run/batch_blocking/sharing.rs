//! Whole images for each thread.
//!
//! Each thread has the same number of whole images, in blocks of the same size: a block is a *share*. A thread
//! that is done takes shares of others. A share reads and writes the caller's tensors, and its thread has a slice of
//! the arena for itself. Threads don't wait for each other between kernels, and the output of a kernel is in the caches
//! of the thread that runs the next one. The images that remain run afterwards, kernel by kernel, on all threads.
//!
//! A share that fails only sets a flag, because several may fail at once. The loop then starts again from the first
//! image, meets the failure again, and reports it exactly as a call on one thread does.

use super::{
    BatchBlocking, BatchSize,
    blocks::{BlockArrays, Images, call_arena_bytes},
};
use crate::{
    codegen::{
        function::{FuncCtx, ModuleBuilder},
        run::{
            arguments::RunArguments,
            estimate,
            host::{Host, TASK_PARAMS},
        },
    },
    error::{Error, Result},
    kernel::cost,
    plan::ALIGN_BYTES,
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use cranelift_module::FuncId;
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
    /// The caller's dims.
    pub(super) const DIMS: i32 = 64;
    /// Size of the job.
    pub(super) const WORDS: usize = 9;
}

impl BatchBlocking {
    /// Emits the task that runs shares `begin..end` of a job: `(job, begin, end, worker)`.
    pub(super) fn task(&self, unit: &mut ModuleBuilder, inner: FuncId) -> Result<FuncId> {
        unit.define_local("share_images", &TASK_PARAMS, &[], |f, params| {
            let [job, begin, end, worker] = *params else {
                return Err(Error::internal("a task has four parameters"));
            };
            let arrays = self.block_arrays(f);
            // Images of constant sizes are shared only.
            let strides = self.strides(f)?;
            let dims = f.load_word(job, job::DIMS);
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
                let arguments = RunArguments { inputs, outputs, dims, arena, exec };
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

/// The part of `run` that shares images among threads.
pub(super) struct ImageSharing<'i> {
    pub(super) blocking: &'i BatchBlocking,
    pub(super) task: FuncId,
    pub(super) arena_bytes: FuncId,
    pub(super) arrays: &'i BlockArrays,
    /// Images of the call.
    pub(super) count: Value,
    /// The most images of a block.
    pub(super) block: Value,
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
    pub(super) fn emit(&self, f: &mut FuncCtx, arguments: &RunArguments) -> Result<Value> {
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
        let work = match &self.blocking.size {
            BatchSize::Symbol(_) => work,
            BatchSize::Constant(blocks) => work * blocks.count(),
        };
        let is_enough = estimate::is_enough(f, &work)?;
        f.ins().brif(is_enough, pays, &[], after, &none);

        f.switch_to_block(pays);
        let images = self.thread_images(f, &host);
        let max_block = f.ins().smin(images, self.block);
        let arena_bytes = call_arena_bytes(f, self.arena_bytes, arguments.dims)?;
        f.ins().jump(sized, &[BlockArg::Value(max_block)]);

        // Halve the block until the slices of all threads fit in the arena of the whole batch. A call needs some memory
        // that does not grow with its images, so slices for a full share may not fit.
        f.switch_to_block(sized);
        let slice_bytes = self.slice_bytes(f, arguments, block)?;
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

    /// Images of each thread: as many for each, and whole blocks if their size is constant.
    fn thread_images(&self, f: &mut FuncCtx, host: &Host) -> Value {
        match &self.blocking.size {
            BatchSize::Symbol(_) => f.ins().udiv(self.count, host.threads),
            BatchSize::Constant(blocks) => {
                let whole = f.int(blocks.images / blocks.block);
                let of_thread = f.ins().udiv(whole, host.threads);
                f.ins().imul(of_thread, self.block)
            }
        }
    }

    /// Whether the host has threads, and each gets an image and a slice of the arena.
    fn is_possible(&self, f: &mut FuncCtx, host: &Host) -> Value {
        let has_threads = f.ins().icmp_imm_s(IntCC::NotEqual, host.parallel_for, 0);
        let most = match &self.blocking.size {
            BatchSize::Symbol(_) => self.count,
            BatchSize::Constant(blocks) => f.int(i64::from(blocks.slices)),
        };
        let has_images = f.ins().icmp(IntCC::SignedLessThanOrEqual, host.threads, most);
        f.ins().band(has_threads, has_images)
    }

    /// The aligned bytes of arena that a call for one block needs.
    fn slice_bytes(&self, f: &mut FuncCtx, arguments: &RunArguments, block: Value) -> Result<Value> {
        let bytes = match &self.blocking.size {
            BatchSize::Symbol(size) => {
                f.store_at(block, self.arrays.dims, 8 * size.symbol as i32);
                call_arena_bytes(f, self.arena_bytes, self.arrays.dims)?
            }
            BatchSize::Constant(blocks) => {
                let all = call_arena_bytes(f, self.arena_bytes, arguments.dims)?;
                f.ins().udiv_imm_u(all, i64::from(blocks.slices))
            }
        };
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
                (arguments.dims, job::DIMS),
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
