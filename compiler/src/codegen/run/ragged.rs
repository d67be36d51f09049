//! Groups of kernels that run for each sequence of a ragged batch: the function of a group, and its call.
//!
//! The function of a group has the parameters of a kernel part, and its iterations are the rows of all sequences: it
//! runs the sequences whose first row is in its range. So the driver shares a group among threads as it shares a
//! kernel, and each thread gets about as many rows.
//!
//! The kernels of a group are the same functions as in a call with one sequence. Their frame has
//! the sequence's length, and addresses that are moved to its part of each buffer.

use super::{
    calls::{call_part, call_whole, frame_on_stack},
    host::{Host, TASK_PARAMS},
    offsets::bounds,
    sequence_frame,
    steps::{EmittedPart, SequenceGroup},
};
use crate::{
    codegen::{
        body::split::{KernelPart, ParallelNest, PartSplit},
        function::{FuncCtx, ModuleBuilder, frame},
    },
    error::{Error, Result},
    kernel::{BufferId, MemorySpace, Ragged, SequencePart, walk},
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};
use std::{collections::BTreeSet, ops::Range};
use symshape::Dim;

/// Emits the function of a group of kernels, whose parts are emitted already.
pub(crate) fn emit<'k>(
    unit: &mut ModuleBuilder<'k>,
    ragged: &'k Ragged,
    kernels: Range<usize>,
    parts: Vec<EmittedPart<'k>>,
    name: &str,
) -> Result<SequenceGroup<'k>> {
    let program = unit.program;
    let first = kernels.start;
    let mut touched = BTreeSet::new();
    let mut passes_scratch = false;
    for kernel in &program.kernels[kernels] {
        let mut own = BTreeSet::new();
        walk::accesses(&kernel.body, &mut |site| _ = own.insert(site.access.buffer));
        let is_scratch = |id: &BufferId| matches!(program.buffers[*id].space, MemorySpace::Scratch);
        passes_scratch |= own.intersection(&touched).any(is_scratch);
        touched.extend(own);
    }
    touched.retain(|id| !matches!(program.buffers[*id].space, MemorySpace::Const(_)));

    let func = unit.define_local(name, &TASK_PARAMS, &[], |f, params| {
        SequenceFrame { ragged, touched: &touched }.run(f, params, &parts)
    })?;
    let whole = EmittedPart {
        func,
        part: KernelPart { body: &[], split: PartSplit::Loops(ParallelNest::of_loop(&ragged.row_axis, &[])) },
        kernel: first,
        work: work(ragged, &parts),
        fails: parts.iter().any(|part| part.fails),
        uses_scratch: parts.iter().any(|part| part.uses_scratch),
        is_divisible: true,
    };
    Ok(SequenceGroup { ragged, parts, whole, touched, passes_scratch })
}

/// Emits the calls of a group: threads run sequences, and all threads share the kernels of a sequence that has more
/// rows than the share of a thread. Such sequences use `own`, memory for a frame.
pub(crate) fn call(
    f: &mut FuncCtx,
    frame: Value,
    own: Value,
    host: &Host,
    group: &SequenceGroup,
) -> Result<()> {
    let no_limit = f.int(i64::MAX);
    f.store_at(no_limit, frame, frame::MAX_ROWS_ALONE);
    if group.passes_scratch || f.unit.program.workers < 2 {
        return call_part(f, frame, host, &group.whole);
    }

    let rows = f.dim(&Dim::from(&group.ragged.rows))?;
    // A host without threads has the number 0.
    let one = f.int(1);
    let threads = f.ins().umax(host.threads, one);
    let share = f.ins().udiv(rows, threads);
    let share = f.ins().iadd_imm_s(share, 1);
    let limit = f.ins().select(host.parallel_for, share, no_limit);
    f.store_at(limit, frame, frame::MAX_ROWS_ALONE);
    call_part(f, frame, host, &group.whole)?;

    let shared = f.create_block();
    let after = f.create_block();
    let exit = f.ins().brif(host.parallel_for, shared, &[], after, &[]);
    f.push_scope(exit);
    f.switch_to_block(shared);
    call_long(f, frame, own, host, group, limit)?;
    f.ins().jump(after, &[]);
    f.pop_scope();
    f.switch_to_block(after);
    Ok(())
}

/// Runs the sequences of more than `limit` rows one after another, each kernel on all threads.
fn call_long(
    f: &mut FuncCtx,
    frame: Value,
    own: Value,
    host: &Host,
    group: &SequenceGroup,
    limit: Value,
) -> Result<()> {
    let sequences = SequenceFrame { ragged: group.ragged, touched: &group.touched };
    sequences.open(f, frame, own);
    let error = f.load_word(frame, frame::ERROR);
    f.store_at(error, own, frame::ERROR);
    sequences.for_each(
        f,
        frame,
        |f, _, length| Ok(f.ins().icmp(IntCC::SignedGreaterThan, length, limit)),
        |f, sequence| {
            sequences.move_to(f, frame, own, &sequence)?;
            group.parts.iter().try_for_each(|part| call_part(f, own, host, part))
        },
    )
}

/// An estimate of the work of all sequences of a call, as if they had one length.
fn work(ragged: &Ragged, parts: &[EmittedPart<'_>]) -> Dim {
    let sequences = Dim::from(&ragged.sequences);
    let mean = Dim::from(&ragged.rows).ceil_div(sequences.clone());
    parts.iter().fold(Dim::zero(), |work, part| {
        let one = part.work.substitute(&|symbol| (*symbol == ragged.length).then(|| mean.clone()));
        work + one * &sequences
    })
}

/// A sequence, as values of the function that runs it.
struct Sequence {
    number: Value,
    first: Value,
    length: Value,
}

/// The frame of the sequences that a function runs one after another.
struct SequenceFrame<'g> {
    ragged: &'g Ragged,
    touched: &'g BTreeSet<BufferId>,
}

impl SequenceFrame<'_> {
    /// Emits the body of `(frame, begin, end, copy)`: runs the sequences whose first row is in `begin..end`, except
    /// those that are too long for one thread. A sequence without rows at the end of the batch counts to the last row.
    fn run(&self, f: &mut FuncCtx, params: &[Value], parts: &[EmittedPart<'_>]) -> Result<()> {
        let [frame, begin, end, copy] = *params else {
            return Err(Error::internal("the function of a group has four parameters"));
        };
        f.set_frame(frame);
        let own = frame_on_stack(f);
        self.open(f, frame, own);
        let limit = f.load_word(frame, frame::MAX_ROWS_ALONE);
        // Sequences without rows at the end of the batch begin after the last row.
        let rows = f.dim(&Dim::from(&self.ragged.rows))?;
        let last_row = f.ins().iadd_imm_s(rows, -1);
        self.for_each(
            f,
            frame,
            |f, first, length| {
                let row = f.ins().smin(first, last_row);
                let is_own = f.is_within(row, begin, end);
                let fits = f.ins().icmp(IntCC::SignedLessThanOrEqual, length, limit);
                Ok(f.ins().band(is_own, fits))
            },
            |f, sequence| {
                self.move_to(f, frame, own, &sequence)?;
                run_parts(f, frame, own, copy, parts)
            },
        )?;
        f.ins().return_(&[]);
        Ok(())
    }

    /// Emits `body` for each sequence that `is_wanted`, a function of its first row and its length.
    fn for_each(
        &self,
        f: &mut FuncCtx,
        frame: Value,
        is_wanted: impl FnOnce(&mut FuncCtx, Value, Value) -> Result<Value>,
        body: impl FnOnce(&mut FuncCtx, Sequence) -> Result<()>,
    ) -> Result<()> {
        let offsets = f.unit.program.inputs[self.ragged.offsets as usize].buffer;
        let slot = f.buffer_slot(offsets);
        let offsets = f.load_word(frame, slot);
        let count = f.dim(&Dim::from(&self.ragged.sequences))?;
        let zero = f.int(0);
        f.for_range(zero, count, |f, number| {
            let (first, length) = bounds(f, offsets, number);
            let is_wanted = is_wanted(f, first, length)?;
            let run = f.create_block();
            let next = f.create_block();
            let exit = f.ins().brif(is_wanted, run, &[], next, &[]);

            f.push_scope(exit);
            f.switch_to_block(run);
            f.bind(self.ragged.length.clone(), length);
            body(f, Sequence { number, first, length })?;
            f.ins().jump(next, &[]);
            f.pop_scope();
            f.switch_to_block(next);
            Ok(())
        })
    }

    /// Fills the slots of the sequences' frame that are the same for all sequences.
    fn open(&self, f: &mut FuncCtx, frame: Value, own: Value) {
        sequence_frame::open(f, frame, own);
        for id in self.touched.iter().filter(|id| !self.ragged.parts.contains_key(*id)) {
            let slot = f.buffer_slot(*id);
            sequence_frame::copy(f, frame, own, slot);
        }
    }

    /// Sets the length of a sequence and the addresses of its parts.
    fn move_to(&self, f: &mut FuncCtx, frame: Value, own: Value, sequence: &Sequence) -> Result<()> {
        let program = f.unit.program;
        let position = program.all_symbols().position(|symbol| *symbol == self.ragged.length);
        let position = position.ok_or_else(|| Error::internal("the length is a symbol of the program"))?;
        f.store_at(sequence.length, own, frame::symbol_slot(position));

        for id in self.touched {
            let (step, count) = match self.ragged.parts.get(id) {
                Some(SequencePart::Rows(row)) => (row, sequence.first),
                Some(SequencePart::Sequence(elems)) => (elems, sequence.number),
                None => continue,
            };
            let bytes = f.dim(&(step * program.buffers[*id].dtype.size_bytes() as i64))?;
            let distance = f.ins().imul(bytes, count);
            let slot = f.buffer_slot(*id);
            let address = f.load_word(frame, slot);
            let address = f.ins().iadd(address, distance);
            f.store_at(address, own, slot);
        }
        Ok(())
    }
}

/// Calls the kernels for the current sequence. After an error, the function returns.
fn run_parts(
    f: &mut FuncCtx,
    frame: Value,
    own: Value,
    copy: Value,
    parts: &[EmittedPart<'_>],
) -> Result<()> {
    for part in parts {
        call_whole(f, own, copy, part)?;
        if part.fails {
            sequence_frame::return_if_failed(f, frame, own)?;
        }
    }
    Ok(())
}
