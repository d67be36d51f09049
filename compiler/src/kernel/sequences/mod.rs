//! Calls for several sequences with a state each: which kernels run once for all of them, and which run once for each.
//!
//! The sequences are the rows of a batch whose size `N` may be 1. Each is computed as in a call with one sequence:
//!
//! - A kernel runs *once* if it uses no state and neither length nor capacity, and keeps the items of a batch apart
//!   ([`Items`]). Row `i` of a buffer that it uses is then `i * step..(i + 1) * step`, where `step` is the size at
//!   `N = 1`.
//! - Every other kernel runs once for *each* sequence, with `N = 1` and the sequence's length and capacity. If each of
//!   its buffers is the sequence's part, it runs as in a call with one sequence. So a kernel without a proof may always
//!   run so.
//!
//! Buffers of the arena that only kernels of the second kind use get a part for each sequence ([`prepare`]), as large
//! as the longest sequence needs. Kernels run in the order of the program, each for all sequences before the next one,
//! so the lifetimes that the arena is planned for hold.

mod ports;

pub(crate) use ports::count;

use super::{
    Axis, BufferId, EachKernel, Kernel, MemorySpace, Part, Program, Sequences, items::Items, monotone, walk,
};
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Symbol};

/// How the program runs several sequences, without the proof that their parts fit in their buffers; or why it
/// can't: a sentence without a period.
fn classify(program: &Program) -> Result<Sequences, String> {
    if !program.microkernels.is_native() {
        return Err("C source runs one batch".into());
    }
    let count = ports::count(program)?;
    let ragged = ports::ragged_inputs(program, &count)?;
    if let Some(kernel) = program.kernels.iter().find(|kernel| kernel.control.is_some()) {
        return Err(format!("{} is a branch, a loop or an external function", kernel.name));
    }
    if !program.data_dependent.is_empty() {
        return Err("a size of the model depends on data".into());
    }
    if program.ragged.is_some() {
        return Err("it takes ragged batches".into());
    }
    if !program.partitions.is_empty() {
        return Err("its kernels are divided into partitions".into());
    }

    let mut classes = Classes::new(program, &Items::new(program, &count));
    while classes.demote(program, &count) {}

    let kernels = (0..program.kernels.len()).filter(|idx| classes.each.contains(idx));
    let each = kernels.map(|kernel| EachKernel {
        kernel,
        axis: Axis { var: Symbol::new("sequence"), extent: Dim::from(&count) },
        buffers: used(&program.kernels[kernel])
            .filter_map(|buffer| Some((buffer, classes.part(program, &count, buffer)?)))
            .collect(),
    });
    let each = each.collect();
    Ok(Sequences { count, each, ragged })
}

/// Makes each buffer of the arena as large as the parts of all sequences in it.
fn reserve(program: &mut Program, sequences: &Sequences) {
    for (id, part) in sequences.each.iter().flat_map(|each| &each.buffers) {
        let Part::Rows(step) = part else { continue };
        let buffer = &program.buffers[*id];
        let all = Dim::from(&sequences.count) * step;
        let is_arena = matches!(buffer.space, MemorySpace::Arena);
        if is_arena && !program.facts.prove_le(&all, &buffer.elems).is_yes() {
            program.buffers[*id].elems = program.facts.simplify(&buffer.elems.clone().max(all));
        }
    }
}

/// Proves that the parts of all sequences fit in the buffers of a kernel.
fn check_sizes(program: &Program, sequences: &Sequences, each: &EachKernel) -> Result<(), String> {
    let facts = monotone::declarations(program).ok_or("a symbol has no declaration")?;
    let rows = program.state.as_ref().and_then(|state| state.rows.as_ref());
    let own: Vec<&Symbol> = rows.iter().flat_map(|rows| [&rows.length, &rows.capacity]).collect();
    for (id, part) in &each.buffers {
        let buffer = &program.buffers[*id];
        let fits = match part {
            Part::Shared | Part::State(_) => true,
            Part::Rows(step) => {
                let all = Dim::from(&sequences.count) * step;
                program.facts.prove_le(&all, &buffer.elems).is_yes()
                    && own.iter().all(|symbol| monotone::never_decreases(&facts, step, symbol))
            }
            Part::Scratch => {
                let mut symbols = own.iter().copied().chain([&sequences.count]);
                symbols.all(|symbol| monotone::never_decreases(&facts, &buffer.elems, symbol))
            }
        };
        if !fits {
            let kernel = &program.kernels[each.kernel].name;
            return Err(format!("the size of {}, which {kernel} uses, is not proven", buffer.name));
        }
    }
    Ok(())
}

/// Decides how a program with state runs several sequences, and makes the buffers of the arena as large as the parts of
/// all sequences. It must run before the arena is planned.
pub fn prepare(program: &mut Program) {
    if program.state.is_none() {
        return;
    }
    program.sequences = Some(classify(program).and_then(|sequences| {
        reserve(program, &sequences);
        sequences.each.iter().try_for_each(|each| check_sizes(program, &sequences, each))?;
        Ok(sequences)
    }));
}

/// The classes of the kernels while they are found.
struct Classes {
    /// The kernels that run for each sequence.
    each: BTreeSet<usize>,
    /// For each other kernel: the elements from item to item of the buffers that it uses, 0 if all items share it.
    steps: BTreeMap<usize, BTreeMap<BufferId, Dim>>,
}

impl Classes {
    /// The kernels that run for each sequence by themselves.
    fn new(program: &Program, items: &Items) -> Classes {
        let mut classes = Classes { each: BTreeSet::new(), steps: BTreeMap::new() };
        for (idx, kernel) in program.kernels.iter().enumerate() {
            let steps = if is_of_sequence(program, kernel) { None } else { items.steps(kernel).ok() };
            match steps {
                Some(steps) => _ = classes.steps.insert(idx, steps),
                None => _ = classes.each.insert(idx),
            }
        }
        classes
    }

    /// Lets a kernel run for each sequence if one of its buffers has other steps in another kernel, or differs from
    /// sequence to sequence. Returns whether there were any.
    fn demote(&mut self, program: &Program, count: &Symbol) -> bool {
        let mut stored = BTreeSet::new();
        for idx in &self.each {
            walk::accesses(&program.kernels[*idx].body, &mut |site| {
                if site.is_store {
                    stored.insert(site.access.buffer);
                }
            });
        }

        let mut known: BTreeMap<BufferId, &Dim> = BTreeMap::new();
        let mut demoted = Vec::new();
        for (idx, steps) in &self.steps {
            let has_steps = |(buffer, step): (&BufferId, &Dim)| {
                let elems = &program.buffers[*buffer].elems;
                let fits = if is_shared(step) {
                    !elems.contains(count) && !stored.contains(buffer)
                } else {
                    program.facts.prove_eq(&(Dim::from(count) * step), elems).is_yes()
                };
                fits && known.get(buffer).is_none_or(|other| program.facts.prove_eq(other, step).is_yes())
            };
            if steps.iter().all(has_steps) {
                known.extend(steps.iter().map(|(buffer, step)| (*buffer, step)));
            } else {
                demoted.push(*idx);
            }
        }

        for idx in &demoted {
            self.steps.remove(idx);
            self.each.insert(*idx);
        }
        !demoted.is_empty()
    }

    /// The part of a sequence in a buffer that a kernel uses for each sequence; `None` for constants.
    fn part(&self, program: &Program, count: &Symbol, id: BufferId) -> Option<Part> {
        let buffer = &program.buffers[id];
        let has_rows = buffer.elems.contains(count);
        let step = buffer.elems.substitute(&|symbol| (symbol == count).then(Dim::one));
        let rows = || Part::Rows(program.facts.simplify(&step));
        Some(match buffer.space {
            MemorySpace::Const(_) => return None,
            MemorySpace::State(tensor) => Part::State(tensor),
            MemorySpace::Scratch => Part::Scratch,
            MemorySpace::Input(_) | MemorySpace::Output(_) if has_rows => rows(),
            MemorySpace::Input(_) | MemorySpace::Output(_) => Part::Shared,
            MemorySpace::Arena | MemorySpace::Device(_) => {
                let mut steps = self.steps.values().filter_map(|steps| steps.get(&id));
                if steps.any(is_shared) { Part::Shared } else { rows() }
            }
        })
    }
}

/// Whether this distance from item to item says that all items share a buffer.
fn is_shared(step: &Dim) -> bool {
    step.as_i64() == Some(0)
}

/// The buffers that a kernel uses, each once.
fn used(kernel: &Kernel) -> impl Iterator<Item = BufferId> {
    let mut buffers = BTreeSet::new();
    walk::accesses(&kernel.body, &mut |site| _ = buffers.insert(site.access.buffer));
    buffers.into_iter()
}

/// Whether a kernel uses the state, its length or its capacity.
pub(crate) fn is_of_sequence(program: &Program, kernel: &Kernel) -> bool {
    let uses_state = used(kernel).any(|id| matches!(program.buffers[id].space, MemorySpace::State(_)));
    let Some(rows) = program.state.as_ref().and_then(|state| state.rows.as_ref()) else { return uses_state };
    let depends = |dim: &Dim| dim.contains(&rows.length) || dim.contains(&rows.capacity);
    uses_state
        || walk::any_dim(&kernel.body, &depends)
        || used(kernel).any(|id| depends(&program.buffers[id].elems))
}
