//! The steps of a call for several sequences with a state each; see [`crate::kernel::sequences`].
//!
//! A kernel that runs for each sequence becomes one more function, whose iterations are the sequences. It calls the
//! functions of the kernel on the frame of a sequence ([`sequence_frame`]). So the driver shares sequences among
//! threads as it shares the iterations of a loop, and the code of a kernel exists once. All other steps are those of a
//! call with one state.

use super::{
    calls,
    host::TASK_PARAMS,
    sequence_frame, state, state_header,
    steps::{DriverStep, EmittedPart},
};
use crate::{
    codegen::{
        body::split::{KernelPart, ParallelNest, PartSplit},
        function::{FuncCtx, ModuleBuilder, frame},
    },
    error::{Error, Result},
    kernel::{BufferId, EachKernel, Part, Sequences, StateBlock},
};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use symshape::Dim;

/// The steps of a call for several sequences. `steps` are those of a call with one state, and `level` ends the names of
/// the functions.
pub(crate) fn steps<'k>(
    unit: &mut ModuleBuilder,
    sequences: &'k Sequences,
    steps: &[DriverStep<'k>],
    level: &str,
) -> Result<Vec<DriverStep<'k>>> {
    let mut own = Vec::with_capacity(steps.len());
    let mut each = sequences.each.iter().peekable();
    let mut rest = steps;
    while let Some((step, after)) = rest.split_first() {
        let DriverStep::Part(part) = step else {
            return Err(Error::internal("a program that runs several sequences has no control markers"));
        };
        if let Some(kernel) = each.next_if(|each| each.kernel == part.kernel) {
            let count = rest.iter().take_while(|step| is_of(step, kernel.kernel)).count();
            own.push(DriverStep::Part(for_each(unit, sequences, kernel, &rest[..count], level)?));
            rest = &rest[count..];
        } else {
            own.push(DriverStep::Part(part.clone()));
            rest = after;
        }
    }
    Ok(own)
}

/// Whether a step is a part of this kernel.
fn is_of(step: &DriverStep, kernel: usize) -> bool {
    matches!(step, DriverStep::Part(part) if part.kernel == kernel)
}

/// The part that runs the steps of one kernel for each sequence.
fn for_each<'k>(
    unit: &mut ModuleBuilder,
    sequences: &'k Sequences,
    each: &'k EachKernel,
    steps: &[DriverStep<'k>],
    level: &str,
) -> Result<EmittedPart<'k>> {
    let parts: Vec<&EmittedPart<'k>> = steps
        .iter()
        .filter_map(|step| match step {
            DriverStep::Part(part) => Some(part),
            DriverStep::Control(_) | DriverStep::Sequences(_) => None,
        })
        .collect();
    let fails = parts.iter().any(|part| part.fails);
    let name = format!("sequences_{}{level}", each.kernel);
    let func = unit.define_local(&name, &TASK_PARAMS, &[], |f, params| {
        let task = SequenceTask { sequences, each, parts: &parts, fails };
        task.emit(f, params)
    })?;

    let body = parts.first().map_or(&[][..], |part| part.part.body);
    let split = PartSplit::Loops(ParallelNest::of_loop(&each.axis, body));
    let work = Dim::sum(parts.iter().map(|part| part.work.clone()));
    Ok(EmittedPart {
        func,
        part: KernelPart { body, split },
        kernel: each.kernel,
        work: unit.program.facts.simplify(&work),
        fails,
        uses_scratch: parts.iter().any(|part| part.uses_scratch),
        is_divisible: true,
    })
}

/// The function that runs one kernel for sequences `begin..end`: `(frame, begin, end, copy)`.
struct SequenceTask<'s, 'k> {
    sequences: &'s Sequences,
    each: &'s EachKernel,
    parts: &'s [&'s EmittedPart<'k>],
    fails: bool,
}

/// A buffer of which each sequence has some rows.
struct Rows {
    buffer: BufferId,
    /// The address of the rows of the first sequence.
    first: Value,
    /// Bytes from sequence to sequence.
    bytes: Value,
}

impl SequenceTask<'_, '_> {
    fn emit(&self, f: &mut FuncCtx, params: &[Value]) -> Result<()> {
        let [frame, begin, end, copy] = *params else {
            return Err(Error::internal("a task has four parameters"));
        };
        let Some(state) = &f.unit.program.state else {
            return Err(Error::internal("a program without state has no sequences"));
        };
        f.set_dims(frame, frame::symbol_slot(0));
        let own = calls::frame_on_stack(f);
        sequence_frame::open(f, frame, own);
        let states = f.load_word(frame, frame::STATES);
        let rows = self.store_shared(f, frame, own, copy)?;

        f.for_range(begin, end, |f, sequence| {
            let at = f.ins().imul_imm_s(sequence, 8);
            let at = f.ins().iadd(states, at);
            let block = f.load_word(at, 0);
            self.set_sizes(f, own, block, state);
            self.store_parts(f, own, &rows, sequence, block)?;

            let first_copy = f.ins().iconst(types::I32, 0);
            for part in self.parts {
                calls::call_whole(f, own, first_copy, part)?;
            }
            if self.fails {
                sequence_frame::return_if_failed(f, frame, own)?;
            }
            Ok(())
        })?;
        f.ins().return_(&[]);
        Ok(())
    }

    /// Stores the addresses of the buffers that do not move from sequence to sequence. Returns those that do.
    fn store_shared(&self, f: &mut FuncCtx, frame: Value, own: Value, copy: Value) -> Result<Vec<Rows>> {
        let program = f.unit.program;
        let copy = f.ins().uextend(types::I64, copy);
        let mut rows = Vec::new();
        for (buffer, part) in &self.each.buffers {
            let slot = f.buffer_slot(*buffer);
            match part {
                Part::Shared => sequence_frame::copy(f, frame, own, slot),
                // The distance of two copies is that of the longest sequence, so the kernel must not compute it.
                Part::Scratch => {
                    let first = f.load_word(frame, slot);
                    let bytes = f.dim(&program.copy_bytes(*buffer))?;
                    let skipped = f.ins().imul(copy, bytes);
                    let address = f.ins().iadd(first, skipped);
                    f.store_at(address, own, slot);
                }
                Part::Rows(step) => {
                    let bytes = step * program.buffers[*buffer].dtype.size_bytes() as i64;
                    let first = f.load_word(frame, slot);
                    let bytes = f.dim(&bytes)?;
                    rows.push(Rows { buffer: *buffer, first, bytes });
                }
                Part::State(_) => {}
            }
        }
        Ok(rows)
    }

    /// Sets the sizes that differ from sequence to sequence: those of a batch of one, and those in the state's header.
    fn set_sizes(&self, f: &mut FuncCtx, own: Value, block: Value, state: &StateBlock) {
        let program = f.unit.program;
        let one = f.int(1);
        let mut sizes = vec![(&self.sequences.count, one)];
        if let Some(rows) = &state.rows {
            for (idx, symbol) in [&rows.capacity, &rows.length].into_iter().enumerate() {
                let value = f.load_word(block, state_header::word_offset(idx));
                sizes.push((symbol, value));
            }
        }
        for (symbol, value) in sizes {
            if let Some(idx) = program.symbols.iter().position(|known| known == symbol) {
                f.store_at(value, own, frame::symbol_slot(idx));
            }
            f.bind(symbol.clone(), value);
        }
    }

    /// Stores the addresses of the sequence's rows and of the tensors of its state.
    fn store_parts(
        &self,
        f: &mut FuncCtx,
        own: Value,
        rows: &[Rows],
        sequence: Value,
        block: Value,
    ) -> Result<()> {
        for Rows { buffer, first, bytes } in rows {
            let skipped = f.ins().imul(sequence, *bytes);
            let address = f.ins().iadd(*first, skipped);
            let slot = f.buffer_slot(*buffer);
            f.store_at(address, own, slot);
        }
        for (buffer, part) in &self.each.buffers {
            let Part::State(tensor) = part else { continue };
            let address = state::tensor_in_block(f, block, *tensor)?;
            let slot = f.buffer_slot(*buffer);
            f.store_at(address, own, slot);
        }
        Ok(())
    }
}
