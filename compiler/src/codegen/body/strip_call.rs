//! The decision whether a strip microkernel supports some statements, and which one.
//!
//! It depends only on the kernel and on facts about symbols, so no code is emitted for statements that are refused.

use super::{
    body_builder::{BodyBuilder, ScalarArg, Stream, reads},
    strip_pointers::{Pointer, StripPointers},
};
use crate::{
    codegen::microkernel::{
        op::{Op, StreamStep},
        strip::{MAX_SHORT_ROW, Phase, StripKey},
    },
    kernel::{Axis, Inst, InstSeq, Kernel, Local, Program, Stmt},
};
use std::collections::BTreeSet;
use symshape::{Dim, Facts, Symbol};

/// A microkernel and its arguments.
pub(super) struct StripCall {
    pub(super) key: StripKey,
    /// The extents of the inner loops, without repetitions.
    pub(super) extents: Vec<Dim>,
    pub(super) pointers: Vec<Pointer>,
    pub(super) scalars: Vec<ScalarArg>,
    /// The locals that the microkernel returns.
    pub(super) results: Vec<Local>,
    /// How a failure is found. `None` if the microkernel has no checks.
    pub(super) retry: Option<Retry>,
}

impl StripCall {
    /// The call for these statements, repeated along `row` if there is one. `None` unless all of them are strips or
    /// scalar code that microkernels support.
    pub(super) fn recognise(
        program: &Program,
        kernel: &Kernel,
        facts: &Facts,
        row: Option<&Axis>,
        body: &[Stmt],
    ) -> Option<StripCall> {
        if !body.iter().any(|stmt| matches!(stmt, Stmt::Strip { .. })) {
            return None;
        }
        let codes: Vec<&InstSeq> = body.iter().map(straight_line).collect::<Option<_>>()?;
        let inner = locals_set(&codes);
        // The microkernel of a row loop returns no locals, so nothing outside may read those that it sets.
        if row.is_some() && !are_reads_within(kernel, &codes, &inner) {
            return None;
        }

        let row_var = row.map(|axis| &axis.var);
        let mut builder = BodyBuilder::new(program, kernel, facts, row_var);
        builder.inner = inner;
        builder.may_fail = true;
        let mut extents = Vec::new();
        let phases = phases(&mut builder, &mut extents, row_var, body)?;
        let may_fail = phases.iter().any(|phase| phase.body().may_fail());
        let counts = phases.iter().any(|phase| phase.body().insts.iter().any(|(op, _)| *op == Op::Column));
        let retry = if may_fail { Some(Retry::of(&phases, &builder.streams)?) } else { None };
        let has_independent_rows = reads_nothing_written(&phases, &builder.streams);
        let keeps_stored = phases.len() > 1 && stores_alone(&phases, &builder.streams);
        let accumulators = if row.is_some() { accumulators(&phases, &builder.streams) } else { Vec::new() };
        let short_row = if row.is_some() { short_row(&phases, &extents) } else { None };
        let placed = StripPointers::of(program, facts, &builder.streams, &extents);
        let column_steps = placed.column_steps(program, if has_independent_rows { &phases } else { &[] });
        let StripPointers { pointers, streams } = placed;
        let row_step = |pointer: &Pointer| {
            if has_independent_rows || !accumulators.is_empty() {
                pointer.row_step(program)
            } else {
                StreamStep::Stride
            }
        };
        let row_steps = pointers.iter().map(row_step).collect();
        let results = if row.is_none() { builder.variables.clone() } else { Vec::new() };

        let key = StripKey {
            rows: row.is_some(),
            phases,
            row_steps,
            pointers: column_steps,
            streams,
            extents: extents.len() as u32,
            scalars: builder.scalars.len() as u32,
            variables: builder.variables.len() as u32,
            results: (0..results.len() as u32).collect(),
            may_fail,
            keeps_stored,
            short_row,
            accumulators,
            counts,
        };
        Some(StripCall { key, extents, pointers, scalars: builder.scalars, results, retry })
    }
}

/// The code of a strip or of a block.
fn straight_line(stmt: &Stmt) -> Option<&InstSeq> {
    match stmt {
        Stmt::Block(code) | Stmt::Strip { code, .. } => Some(code),
        _ => None,
    }
}

/// The phases of a row. Adds the extents of their loops to `extents`.
fn phases(
    builder: &mut BodyBuilder,
    extents: &mut Vec<Dim>,
    row: Option<&Symbol>,
    body: &[Stmt],
) -> Option<Vec<Phase>> {
    let mut phases = Vec::new();
    for stmt in body {
        let phase = match stmt {
            // An extent is an argument, which is the same for all rows.
            Stmt::Strip { axis, .. } if row.is_some_and(|row| axis.extent.contains(row)) => return None,
            Stmt::Strip { axis, code } => {
                builder.extent = Some(axis.extent.clone());
                let body = builder.body(code, Some(&axis.var)).ok()?;
                Phase::Loop { extent: extent_argument(extents, &axis.extent), body }
            }
            Stmt::Block(code) => Phase::Scalar(builder.body(code, None).ok()?),
            _ => return None,
        };
        phases.push(phase);
    }

    Some(phases)
}

/// Index of the argument for an extent, which is added if it is new.
fn extent_argument(extents: &mut Vec<Dim>, extent: &Dim) -> u32 {
    let idx = extents.iter().position(|other| other == extent).unwrap_or_else(|| {
        extents.push(extent.clone());
        extents.len() - 1
    });
    idx as u32
}

/// How scalar code finds the check that failed in a strip.
#[derive(Clone, Copy)]
pub(super) enum Retry {
    /// The checks alone run again: the strip writes nothing that they depend on.
    Checks,
    /// All of the strip runs again: from the start, it has the same results.
    Strip,
}

impl Retry {
    /// `None` if the failure could not be found again.
    fn of(phases: &[Phase], streams: &[Stream]) -> Option<Retry> {
        if keeps_checked_streams(phases, streams) {
            Some(Retry::Checks)
        } else if is_repeatable(phases, streams) {
            Some(Retry::Strip)
        } else {
            None
        }
    }
}

/// Whether only memory that no phase writes decides if a check fails.
fn keeps_checked_streams(phases: &[Phase], streams: &[Stream]) -> bool {
    let buffer = |stream: &u32| streams[*stream as usize].origin.buffer;
    let insts = || phases.iter().flat_map(|phase| &phase.body().insts);
    let stores = insts().filter_map(|(op, _)| match op {
        Op::Store(stream, _) => Some(buffer(stream)),
        _ => None,
    });
    let written: BTreeSet<_> = stores.collect();
    phases.iter().all(|phase| match phase.body().checked_streams() {
        Some(checked) => checked.iter().all(|stream| !written.contains(&buffer(stream))),
        None => false,
    })
}

/// Whether a second run computes the same as the first one. It does unless it reads memory that the first run changed:
/// an element of a written buffer may only be read by the row that wrote it before.
fn is_repeatable(phases: &[Phase], streams: &[Stream]) -> bool {
    let buffer = |stream: &u32| streams[*stream as usize].origin.buffer;
    // Streams are written completely where a loop of the same extent reads them.
    let mut written: Vec<(Option<u32>, u32)> = Vec::new();
    let mut read_before = BTreeSet::new();
    for phase in phases {
        let extent = match phase {
            Phase::Loop { extent, .. } => Some(*extent),
            Phase::Scalar(_) => None,
        };
        for (op, _) in &phase.body().insts {
            match op {
                Op::Load(stream) if written.contains(&(extent, *stream)) => {}
                Op::Load(stream) | Op::Gather(stream, _) => _ = read_before.insert(buffer(stream)),
                Op::Store(stream, _) => written.push((extent, *stream)),
                _ => {}
            }
        }
    }
    written.iter().all(|(_, stream)| !read_before.contains(&buffer(stream)))
}

/// The elements of all loops of a row, if they are few and known, and several phases share them.
fn short_row(phases: &[Phase], extents: &[Dim]) -> Option<u32> {
    let [extent] = extents else { return None };
    let elements = u32::try_from(extent.as_i64()?).ok()?;
    (phases.len() > 1 && (1..=MAX_SHORT_ROW).contains(&elements)).then_some(elements)
}

/// Whether each stream that the phases store to is the only one of its buffer.
fn stores_alone(phases: &[Phase], streams: &[Stream]) -> bool {
    let insts = phases.iter().flat_map(|phase| &phase.body().insts);
    let stored = insts.filter_map(|(op, _)| match op {
        Op::Store(stream, _) => Some(*stream as usize),
        _ => None,
    });
    let stored: BTreeSet<usize> = stored.collect();
    stored.iter().all(|stream| {
        let buffer = streams[*stream].origin.buffer;
        streams.iter().filter(|other| other.origin.buffer == buffer).count() == 1
    })
}

/// The streams that the only phase loads and stores, and whose elements are the same for all rows, if it reads nothing
/// else that it writes. See [`StripKey::accumulators`].
fn accumulators(phases: &[Phase], streams: &[Stream]) -> Vec<u32> {
    let [Phase::Loop { body, .. }] = phases else { return Vec::new() };
    let buffer = |stream: u32| streams[stream as usize].origin.buffer;
    let mut read = BTreeSet::new();
    let mut written = BTreeSet::new();
    for (op, _) in &body.insts {
        match op {
            Op::Load(stream) | Op::Gather(stream, _) => _ = read.insert(*stream),
            Op::Store(stream, _) => _ = written.insert(*stream),
            _ => {}
        }
    }

    let is_alone = |stream: u32| {
        let used = read.union(&written).filter(|other| buffer(**other) == buffer(stream));
        used.count() == 1
    };
    let is_row = |stream: u32| {
        let Stream { row, column, .. } = &streams[stream as usize];
        row.as_i64() == Some(0) && column.as_i64() == Some(1) && is_alone(stream)
    };
    let found: Vec<u32> = read.intersection(&written).copied().filter(|stream| is_row(*stream)).collect();
    let other_read: BTreeSet<_> =
        read.iter().filter(|stream| !found.contains(stream)).map(|stream| buffer(*stream)).collect();
    let is_independent = |stream: &u32| found.contains(stream) || !other_read.contains(&buffer(*stream));
    if written.iter().all(is_independent) { found } else { Vec::new() }
}

/// Whether the phases read no buffer that they write. Rows are then independent, and may run in any order.
fn reads_nothing_written(phases: &[Phase], streams: &[Stream]) -> bool {
    let buffer = |stream: &u32| streams[*stream as usize].origin.buffer;
    let mut read = BTreeSet::new();
    let mut written = BTreeSet::new();
    for phase in phases {
        for (op, _) in &phase.body().insts {
            match op {
                Op::Load(stream) | Op::Gather(stream, _) => _ = read.insert(buffer(stream)),
                Op::Store(stream, _) => _ = written.insert(buffer(stream)),
                _ => {}
            }
        }
    }

    read.is_disjoint(&written)
}

/// The locals that the code sets.
fn locals_set(codes: &[&InstSeq]) -> Vec<Local> {
    let insts = codes.iter().flat_map(|code| &code.insts);
    let locals = insts.filter_map(|inst| match inst {
        Inst::Set(local, _) | Inst::Reduce(_, _, local) => Some(*local),
        _ => None,
    });
    locals.collect()
}

/// Whether all reads of these locals in the kernel are within the code.
fn are_reads_within(kernel: &Kernel, codes: &[&InstSeq], locals: &[Local]) -> bool {
    let reads_in_kernel = reads(all_insts(&kernel.body).into_iter());
    let reads_in_code = reads(codes.iter().flat_map(|code| &code.insts));
    locals.iter().all(|local| reads_in_kernel.get(local) == reads_in_code.get(local))
}

/// All straight-line instructions of these statements.
fn all_insts(body: &[Stmt]) -> Vec<&Inst> {
    let insts = body.iter().flat_map(|stmt| match stmt {
        Stmt::Block(code) | Stmt::Strip { code, .. } => code.insts.iter().collect(),
        Stmt::Contraction(contraction) => contraction.epilogue.insts.iter().collect(),
        Stmt::For { body, .. } | Stmt::While { body, .. } => all_insts(body),
        Stmt::If { then, otherwise, .. } => [all_insts(then), all_insts(otherwise)].concat(),
    });
    insts.collect()
}
