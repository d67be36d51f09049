//! The division of a program for one sequence into kernels that run per row and kernels that run per sequence.

use super::batch::Batch;
use crate::{
    error::{Error, ErrorKind, Result},
    kernel::{
        Axis, Buffer, BufferId, Kernel, MemorySpace, Port, Program, Ragged, SequencePart,
        items::{Items, Reason},
        walk,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};
use symshape::{Declaration, Dim, Symbol};
use symshape_runtime::DType;

/// How a kernel runs.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Class {
    /// It computes the same for all sequences, and runs once.
    Once,
    /// It runs once for the rows of all sequences.
    PerRow,
    /// It runs once for each sequence, for this reason.
    PerSequence(String),
}

impl Class {
    fn is_per_sequence(&self) -> bool {
        matches!(self, Class::PerSequence(_))
    }
}

/// Turns a program for one sequence into one for a ragged batch, see [`Ragged`].
///
/// # Errors
/// Control flow, calls, or a port whose rows are not adjacent in memory.
pub(crate) fn divide(program: &mut Program, batch: &Batch) -> Result<()> {
    refuse_control(program)?;
    declare(program, batch)?;
    let parts = parts(program, batch);
    let mut parts = share(program, &batch.length, parts);
    let mut classes = classes(program, batch, &parts);
    let temporaries = temporaries(program, &batch.length, &parts);
    join_users(program, &temporaries, &mut classes);

    let groups = groups(&classes);
    let mut row_scratch = BTreeSet::new();
    for (idx, kernel) in program.kernels.iter_mut().enumerate() {
        if !classes[idx].is_per_sequence() {
            walk::accesses(&kernel.body, &mut |site| _ = row_scratch.insert(site.access.buffer));
            *kernel = at_all_rows(kernel, batch);
        }
    }

    resize(program, batch, &mut parts, &temporaries, &row_scratch);
    program.symbols.retain(|symbol| *symbol != batch.length);
    let offsets = program.inputs.len() as u32;
    add_offsets(program, batch);
    shape_ports(program, batch)?;
    program.ragged = Some(Ragged {
        length: batch.length.clone(),
        sequences: batch.sequences.clone(),
        rows: batch.rows.clone(),
        row_axis: Axis { var: Symbol::new("row"), extent: Dim::from(&batch.rows) },
        offsets,
        groups,
        reasons: reasons(classes),
        parts,
        padded: batch.padded.clone(),
    });
    Ok(())
}

fn refuse_control(program: &Program) -> Result<()> {
    match program.kernels.iter().find(|kernel| kernel.control.is_some()) {
        None => Ok(()),
        Some(kernel) => {
            let why = format!(
                "--ragged: {} is a branch, a loop, a call or a data-dependent size, which ragged batches don't support",
                kernel.name
            );
            Err(Error::unsupported(why))
        }
    }
}

/// The part of each buffer that belongs to a sequence. Buffers of other sizes than these are temporaries.
fn parts(program: &Program, batch: &Batch) -> BTreeMap<BufferId, SequencePart> {
    let mut parts = BTreeMap::new();
    for (id, buffer) in &program.buffers {
        if matches!(buffer.space, MemorySpace::Const(_) | MemorySpace::Scratch) {
            continue;
        }
        if matches!(buffer.space, MemorySpace::Input(input) if batch.is_shared_input(input)) {
            continue;
        }
        if !buffer.elems.contains(&batch.length) {
            parts.insert(id, SequencePart::Sequence(buffer.elems.clone()));
            continue;
        }
        let linear = program.facts.linear_in(&buffer.elems, &batch.length);
        if let Some((row, rest)) = linear
            && rest.as_i64() == Some(0)
        {
            parts.insert(id, SequencePart::Rows(row));
        }
    }
    parts
}

/// Removes the parts of buffers that are computed from shared memory alone, because they are equal for all sequences.
fn share(
    program: &Program,
    length: &Symbol,
    mut parts: BTreeMap<BufferId, SequencePart>,
) -> BTreeMap<BufferId, SequencePart> {
    let mut varying: BTreeSet<BufferId> = parts
        .iter()
        .filter(|(id, part)| {
            let is_written = matches!(program.buffers[**id].space, MemorySpace::Arena);
            !is_written || matches!(part, SequencePart::Rows(_))
        })
        .map(|(id, _)| *id)
        .collect();
    loop {
        let before = varying.len();
        for kernel in &program.kernels {
            let mut touched = BTreeSet::new();
            let mut written = BTreeSet::new();
            walk::accesses(&kernel.body, &mut |site| {
                touched.insert(site.access.buffer);
                if site.is_store {
                    written.insert(site.access.buffer);
                }
            });
            let is_shared = touched
                .iter()
                .all(|id| !varying.contains(id) && !program.buffers[*id].elems.contains(length));
            if !is_shared || uses_length(kernel, length) {
                varying.extend(written);
            }
        }
        if varying.len() == before {
            break;
        }
    }
    parts.retain(|id, _| varying.contains(id));
    parts
}

fn uses_length(kernel: &Kernel, length: &Symbol) -> bool {
    walk::any_dim(&kernel.body, &|dim| dim.contains(length))
}

fn classes(program: &Program, batch: &Batch, parts: &BTreeMap<BufferId, SequencePart>) -> Vec<Class> {
    let length = &batch.length;
    let class = |kernel: &Kernel| {
        let mut touches = false;
        walk::accesses(&kernel.body, &mut |site| {
            touches |= parts.contains_key(&site.access.buffer)
                || program.buffers[site.access.buffer].elems.contains(length);
        });
        if !touches && !uses_length(kernel, length) {
            return Class::Once;
        }
        match runs_by_rows(program, batch, parts, kernel) {
            Ok(()) => Class::PerRow,
            Err(reason) => Class::PerSequence(reason),
        }
    };
    program.kernels.iter().map(class).collect()
}

/// Proves that a kernel that runs over the rows of all sequences computes each row from the same row.
fn runs_by_rows(
    program: &Program,
    batch: &Batch,
    parts: &BTreeMap<BufferId, SequencePart>,
    kernel: &Kernel,
) -> Result<(), Reason> {
    let steps = Items::new(program, &batch.rows).steps(&at_all_rows(kernel, batch))?;
    for (id, step) in steps {
        let name = &program.buffers[id].name;
        match parts.get(&id) {
            Some(SequencePart::Rows(row)) if program.facts.prove_eq(&step, row).is_yes() => {}
            None if step.as_i64() == Some(0) => {}
            Some(SequencePart::Sequence(_)) => return Err(format!("{name} has no rows")),
            Some(SequencePart::Rows(_)) => return Err(format!("it does not access {name} row by row")),
            None => return Err(format!("{name} is read at the position in the sequence")),
        }
    }
    Ok(())
}

/// The buffers of the arena that have neither rows nor a size that is free of the length.
fn temporaries(
    program: &Program,
    length: &Symbol,
    parts: &BTreeMap<BufferId, SequencePart>,
) -> BTreeSet<BufferId> {
    let is_temporary = |(id, buffer): (BufferId, &Buffer)| {
        let is_arena = matches!(buffer.space, MemorySpace::Arena);
        (is_arena && buffer.elems.contains(length) && !parts.contains_key(&id)).then_some(id)
    };
    program.buffers.iter().filter_map(is_temporary).collect()
}

/// Makes all kernels from the first to the last user of a temporary one group: it has memory for one sequence alone.
fn join_users(program: &Program, temporaries: &BTreeSet<BufferId>, classes: &mut [Class]) {
    let mut users: BTreeMap<BufferId, Range<usize>> = BTreeMap::new();
    for (idx, kernel) in program.kernels.iter().enumerate() {
        walk::accesses(&kernel.body, &mut |site| {
            if temporaries.contains(&site.access.buffer) {
                users.entry(site.access.buffer).or_insert(idx..idx).end = idx + 1;
            }
        });
    }
    for (buffer, range) in users {
        let name = &program.buffers[buffer].name;
        for class in classes[range].iter_mut().filter(|class| !class.is_per_sequence()) {
            *class = Class::PerSequence(format!("it is between kernels of a sequence that share {name}"));
        }
    }
}

/// The maximal ranges of kernels that run per sequence.
fn groups(classes: &[Class]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (idx, class) in classes.iter().enumerate() {
        if !class.is_per_sequence() {
            continue;
        }
        match groups.last_mut() {
            Some(last) if last.end == idx => last.end += 1,
            _ => groups.push(idx..idx + 1),
        }
    }
    groups
}

fn reasons(classes: Vec<Class>) -> BTreeMap<usize, String> {
    let reason = |(idx, class)| match class {
        Class::PerSequence(reason) => Some((idx, reason)),
        Class::Once | Class::PerRow => None,
    };
    classes.into_iter().enumerate().filter_map(reason).collect()
}

/// The kernel over all rows instead of the rows of one sequence.
fn at_all_rows(kernel: &Kernel, batch: &Batch) -> Kernel {
    let rows = Dim::from(&batch.rows);
    let at_rows = |dim: &Dim| dim.substitute(&|symbol| (*symbol == batch.length).then(|| rows.clone()));
    Kernel { body: walk::rewrite(&kernel.body, &walk::Rewrite::dims(&at_rows)), ..kernel.clone() }
}

/// Gives every buffer the size for all sequences, in symbols of the call.
///
/// No sequence is longer than all rows, nor than its declared bound. That gives temporaries and scratch memory a size
/// that depends on the number of rows alone.
fn resize(
    program: &mut Program,
    batch: &Batch,
    parts: &mut BTreeMap<BufferId, SequencePart>,
    temporaries: &BTreeSet<BufferId>,
    row_scratch: &BTreeSet<BufferId>,
) {
    let rows = Dim::from(&batch.rows);
    let sequences = Dim::from(&batch.sequences);
    let longest = rows.clone().min(batch.max_length.clone().into());
    let at = |elems: &Dim, length: &Dim| {
        elems.substitute(&|symbol| (*symbol == batch.length).then(|| length.clone()))
    };
    for (id, buffer) in program.buffers.iter_mut() {
        buffer.elems = match parts.get(&id) {
            Some(SequencePart::Rows(row)) => row * &rows,
            Some(SequencePart::Sequence(elems)) => elems * &sequences,
            None if !buffer.elems.contains(&batch.length) => continue,
            None if row_scratch.contains(&id) => at(&buffer.elems, &rows).max(at(&buffer.elems, &longest)),
            None => at(&buffer.elems, &longest),
        };
        if temporaries.contains(&id) {
            buffer.space = MemorySpace::Scratch;
        }
    }
}

/// Declares the symbols of the call.
fn declare(program: &mut Program, batch: &Batch) -> Result<()> {
    let wanted = [(&batch.sequences, &batch.max_sequences), (&batch.rows, &batch.max_rows)];
    for (symbol, max) in wanted {
        let declared = program.facts.declare(symbol, Declaration::range(1, max.clone()));
        declared.map_err(|error| Error::new(ErrorKind::Contract, error.to_string()))?;
        program.symbols.push(symbol.clone());
    }
    Ok(())
}

/// Adds the input that holds the first row of each sequence.
fn add_offsets(program: &mut Program, batch: &Batch) {
    let elems = Dim::from(&batch.sequences) + 1;
    let buffer = program.buffers.push(Buffer {
        name: batch.offsets.clone(),
        dtype: DType::I64,
        elems: elems.clone(),
        space: MemorySpace::Input(program.inputs.len() as u32),
    });
    program.inputs.push(Port { name: batch.offsets.clone(), shape: vec![elems], buffer });
}

/// Gives the ports the shapes that they have in a ragged call.
fn shape_ports(program: &mut Program, batch: &Batch) -> Result<()> {
    for (port, shape) in program.inputs.iter_mut().zip(&batch.inputs) {
        port.shape.clone_from(shape);
    }
    for (port, shape) in program.outputs.iter_mut().zip(&batch.outputs) {
        port.shape.clone_from(shape);
    }
    let ports = program.inputs.iter().chain(&program.outputs);
    for port in ports {
        let elems = Dim::product(port.shape.iter().cloned());
        if !program.facts.prove_eq(&elems, &program.buffers[port.buffer].elems).is_yes() {
            return Err(Error::internal(format!("`{}` has other elements than its buffer", port.name)));
        }
    }
    Ok(())
}
