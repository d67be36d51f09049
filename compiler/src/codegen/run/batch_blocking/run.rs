//! `run` as a loop around the function that runs all kernels, and its images shared by several threads.
//!
//! With several threads each takes as many whole images as the others, from the caller's tensors and with a part of the
//! arena for itself: nobody waits for anybody between kernels, and what a kernel leaves is in the caches of the thread
//! that runs the next one. Images that are left over are run by all threads together, kernel by kernel.
//!
//! A thread that fails says so and no more: the loop begins anew with the first image then, finds the failure again, and
//! reports it as a call on one thread does.

use super::Images;
use crate::{
    codegen::{
        function::{FuncCtx, ModuleBuilder},
        run::{estimate, host::Host},
    },
    error::Result,
    kernel::cost,
    plan::ALIGN_BYTES,
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use cranelift_module::{FuncId, Linkage};
use symshape::Dim;

/// What the threads are told, in words on the stack of `run`.
mod job {
    /// The caller's arrays of tensors, and the first byte of the arena.
    pub(super) const INPUTS: i32 = 0;
    pub(super) const OUTPUTS: i32 = 8;
    pub(super) const ARENA: i32 = 16;
    /// Images of each share, of each call within it, and the bytes of arena that such a call takes.
    pub(super) const EACH: i32 = 24;
    pub(super) const GROUP: i32 = 32;
    pub(super) const BYTES: i32 = 40;
    /// Not zero once a call has failed.
    pub(super) const FAILED: i32 = 48;
    /// Length.
    pub(super) const WORDS: usize = 7;
}

/// The arguments of one call after another, in memory.
struct Call {
    inputs: Value,
    outputs: Value,
    dims: Value,
}

impl Images {
    /// Emits `run`, which calls `inner` for each group; `arena_bytes` is the exported function of that name.
    pub(crate) fn run(&self, unit: &mut ModuleBuilder, inner: FuncId, arena_bytes: FuncId) -> Result<FuncId> {
        let task = self.at_once.then(|| self.task(unit, inner)).transpose()?;
        let name = unit.symbol("run");
        let id = unit.declare(&name, Linkage::Export, &[types::I64; 5], &[types::I32])?;
        unit.define(id, |f, params| {
            let [inputs, outputs, dims, arena, exec] = *params else { return Ok(()) };
            let count = f.load_word(dims, 8 * self.symbol as i32);
            let (alone, once, several) = (f.create_block(), f.create_block(), f.create_block());
            let done = f.builder.append_block_param(alone, types::I64);
            let call = self.call(f);
            for idx in 0..f.unit.program.symbols.len() as i32 {
                let value = f.load_word(dims, 8 * idx);
                f.store_at(value, call.dims, 8 * idx);
            }
            // What breaks the contract is refused by the function that runs the kernels.
            let known = f.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, count, self.most);
            let zero = f.int(0);
            match task {
                None => _ = f.ins().jump(alone, &[BlockArg::Value(zero)]),
                Some(task) => {
                    let shared = Shared { images: self, task, arena_bytes, call: &call, count, known };
                    let done = shared.emit(f, [inputs, outputs, dims, arena, exec])?;
                    f.ins().jump(alone, &[BlockArg::Value(done)]);
                }
            }
            f.switch_to_block(alone);
            let many = f.ins().icmp_imm_s(IntCC::SignedGreaterThan, count, self.group);
            let cut = f.ins().band(many, known);
            let begun = f.ins().icmp_imm_s(IntCC::NotEqual, done, 0);
            let cut = f.ins().bor(cut, begun);
            f.ins().brif(cut, several, &[], once, &[]);
            f.switch_to_block(once);
            let result = f.call(inner, params);
            f.ins().return_(&Vec::from_iter(result));
            f.switch_to_block(several);
            let group = f.int(self.group);
            let code = self.groups(f, inner, &call, [inputs, outputs, arena, exec], (done, count), group)?;
            f.ins().return_(&[code]);
            Ok(())
        })?;
        Ok(id)
    }

    /// Room for the arguments of calls for a group.
    fn call(&self, f: &mut FuncCtx) -> Call {
        let [inputs, outputs, dims] =
            [self.inputs.len(), self.outputs.len(), f.unit.program.symbols.len()].map(|count| f.words(count));
        Call { inputs, outputs, dims }
    }

    /// Calls `inner` for the images from `first` on, some of them at a time; the code of the call that failed, or 0.
    fn groups(
        &self,
        f: &mut FuncCtx,
        inner: FuncId,
        call: &Call,
        [inputs, outputs, arena, exec]: [Value; 4],
        (first, end): (Value, Value),
        group: Value,
    ) -> Result<Value> {
        let after = f.create_block();
        let code = f.builder.append_block_param(after, types::I32);
        let ok = f.ins().iconst(types::I32, 0);
        let zero = f.int(0);
        let (all, rest) = (f.ins().isub(end, first), f.ins().iadd_imm_s(group, -1));
        let padded = f.ins().iadd(all, rest);
        let calls = f.ins().udiv(padded, group);
        f.for_range(zero, calls, |f, number| {
            let before = f.ins().imul(number, group);
            let at = f.ins().iadd(first, before);
            let left = f.ins().isub(end, at);
            let here = f.ins().smin(left, group);
            f.store_at(here, call.dims, 8 * self.symbol as i32);
            for (strides, from, to) in
                [(&self.inputs, inputs, call.inputs), (&self.outputs, outputs, call.outputs)]
            {
                for (idx, stride) in strides.iter().enumerate() {
                    let start = f.load_word(from, 8 * idx as i32);
                    let skipped = f.ins().imul_imm_s(at, *stride);
                    let start = f.ins().iadd(start, skipped);
                    f.store_at(start, to, 8 * idx as i32);
                }
            }
            let result = f.call(inner, &[call.inputs, call.outputs, call.dims, arena, exec]);
            let result = result.unwrap_or(ok);
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
        let params = [types::I64, types::I64, types::I64, types::I32];
        unit.define_local("share_images", &params, &[], |f, params| {
            let [job, begin, end, _] = *params else { return Ok(()) };
            let call = self.call(f);
            let word = |f: &mut FuncCtx, at: i32| f.load_word(job, at);
            let [inputs, outputs, arena, each, group, bytes] =
                [job::INPUTS, job::OUTPUTS, job::ARENA, job::EACH, job::GROUP, job::BYTES]
                    .map(|at| word(f, at));
            f.for_range(begin, end, |f, share| {
                let (failed, next) = (f.create_block(), f.create_block());
                let first = f.ins().imul(share, each);
                let last = f.ins().iadd(first, each);
                let skipped = f.ins().imul(share, bytes);
                let own = f.ins().iadd(arena, skipped);
                let nobody = f.int(0);
                let lent = [inputs, outputs, own, nobody];
                let code = self.groups(f, inner, &call, lent, (first, last), group)?;
                f.ins().brif(code, failed, &[], next, &[]);
                f.switch_to_block(failed);
                let (one, place) = (f.int(1), f.ins().iadd_imm_s(job, i64::from(job::FAILED)));
                f.ins().atomic_store(trusted(), one, place);
                f.ins().jump(next, &[]);
                f.switch_to_block(next);
                Ok(())
            })?;
            f.ins().return_(&[]);
            Ok(())
        })
    }
}

/// The part of `run` that shares images.
struct Shared<'i> {
    images: &'i Images,
    task: FuncId,
    arena_bytes: FuncId,
    call: &'i Call,
    count: Value,
    /// The count is not above its range.
    known: Value,
}

impl Shared<'_> {
    /// Runs as many images as can be shared evenly, where that pays; how many were run.
    fn emit(&self, f: &mut FuncCtx, [inputs, outputs, dims, arena, exec]: [Value; 5]) -> Result<Value> {
        let (images, count) = (self.images, self.count);
        let [asked, known, able, sized, fewer, shared, after] = [0; 7].map(|_| f.create_block());
        let group = f.builder.append_block_param(sized, types::I64);
        let done = f.builder.append_block_param(after, types::I64);
        let zero = f.int(0);
        let none = [BlockArg::Value(zero)];
        f.ins().brif(exec, asked, &[], after, &none);

        f.switch_to_block(asked);
        let host = Host::offered(f, exec);
        let threads = host.threads;
        let several = f.ins().icmp_imm_s(IntCC::NotEqual, host.parallel_for, 0);
        let enough = f.ins().icmp(IntCC::SignedLessThanOrEqual, threads, count);
        let can = f.ins().band(several, enough);
        let can = f.ins().band(can, self.known);
        f.ins().brif(can, known, &[], after, &none);

        // The count lies within its range here, so that formulas over it hold.
        f.switch_to_block(known);
        f.set_dims(dims, 0);
        let program = f.unit.program;
        let work = Dim::sum(program.kernels.iter().map(|kernel| cost::work(program, &kernel.body)));
        let pays = estimate::is_enough(f, &work)?;
        f.ins().brif(pays, able, &[], after, &none);

        // Each share has a part of the arena that the whole batch may use. What a call takes beside its images' tensors
        // is in none of the parts of a batch that is cut evenly: then a share's images come a few at a time.
        f.switch_to_block(able);
        let each = f.ins().udiv(count, threads);
        let most = f.int(images.group);
        let most = f.ins().smin(each, most);
        let whole = f.call(self.arena_bytes, &[dims]).unwrap_or(zero);
        f.ins().jump(sized, &[BlockArg::Value(most)]);
        f.switch_to_block(sized);
        f.store_at(group, self.call.dims, 8 * images.symbol as i32);
        let bytes = f.call(self.arena_bytes, &[self.call.dims]).unwrap_or(zero);
        let bytes = f.ins().iadd_imm_s(bytes, ALIGN_BYTES - 1);
        let bytes = f.ins().band_imm_s(bytes, -ALIGN_BYTES);
        let all = f.ins().imul(bytes, threads);
        let fits = f.ins().icmp(IntCC::SignedLessThanOrEqual, all, whole);
        f.ins().brif(fits, shared, &[], fewer, &[]);
        f.switch_to_block(fewer);
        let half = f.ins().ushr_imm_u(group, 1);
        let any = f.ins().icmp_imm_s(IntCC::SignedGreaterThan, half, 0);
        f.ins().brif(any, sized, &[BlockArg::Value(half)], after, &none);

        f.switch_to_block(shared);
        let job = f.words(job::WORDS);
        for (value, at) in [
            (inputs, job::INPUTS),
            (outputs, job::OUTPUTS),
            (arena, job::ARENA),
            (each, job::EACH),
            (group, job::GROUP),
            (bytes, job::BYTES),
            (zero, job::FAILED),
        ] {
            f.store_at(value, job, at);
        }
        host.parallel_for(f, threads, self.task, job);
        let failed = f.load_word(job, job::FAILED);
        let even = f.ins().imul(each, threads);
        let run = f.ins().select(failed, zero, even);
        f.ins().jump(after, &[BlockArg::Value(run)]);
        f.switch_to_block(after);
        Ok(done)
    }
}

fn trusted() -> MemFlagsData {
    MemFlagsData::trusted()
}
