//! The verifier: the rules that every well-formed program obeys.
//!
//! Names
//! - Each port and its buffer name each other.
//! - Loop variables and bound symbols are distinct within a kernel, and differ from the program's symbols.
//! - Every expression uses only symbols in scope.
//! - Sizes of buffers depend only on the model's symbols.
//!
//! Instructions
//! - Registers are defined before they are used.
//! - The types of operands agree.
//! - Inputs and constants are never written.
//! - [`Inst::Sum`](super::Inst::Sum) occurs only in epilogues.
//! - [`Inst::Reduce`](super::Inst::Reduce) occurs only in strips, once for each variable.
//! - [`Inst::Set`](super::Inst::Set) occurs only in blocks.
//!
//! Memory
//! - Every access is within its buffer.
//! - A store to an appended tensor of the state is in the rows that the call appends.
//! - No kernel reads an overwritten tensor of the state after a kernel has written it.
//! - An iteration of a parallel loop does not access an element that another iteration writes.
//! - The results of an external function overlap neither each other nor its operands.
//! - Only calls of a device's target access the device's memory.
//!
//! Control
//! - Regions nest.
//! - Conditions are bool buffers, and data-dependent symbols are bound to `i64` buffers.
//!
//! Partitions
//! - They cover all kernels in order.
//! - None of them divides a region.
//! - If they may run in any order, two of them access no common element that one writes, unless one waits for the
//!   other.
//!
//! The memory rules are proofs. It is an error if values of the symbols refute a rule, except for an access under a
//! condition. A rule that is neither proven nor refuted is returned as [`Unproven`]; tests require an empty list.

mod access;
mod checker;
mod code;
mod control;
mod devices;
mod neighbours;
mod partitions;
mod state;
mod stmt;

use super::{Buffer, Control, Kernel, MemorySpace, Port, Program};
use crate::error::{At, Error, Result};
use checker::{Checker, Scope, in_scope};
use std::{collections::BTreeSet, fmt};
use symshape::{Dim, Facts, Relation, Symbol};

/// A memory rule that is neither proven nor refuted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unproven {
    /// Name of the kernel.
    pub kernel: String,
    /// The statement without a proof.
    pub what: String,
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}: {}", self.kernel, self.what)
    }
}

/// Checks the rules of this module, and returns the memory rules without a proof.
///
/// # Errors
/// The first rule that is broken, and its location.
pub fn verify(program: &Program) -> Result<Vec<Unproven>> {
    let of_model: BTreeSet<Symbol> = program.symbols.iter().cloned().collect();
    let symbols: BTreeSet<Symbol> = program.all_symbols().cloned().collect();
    if symbols.len() != program.all_symbols().count() {
        return Err(Error::invalid("a symbol is declared twice"));
    }
    for entry in &program.data_dependent {
        in_scope(&entry.upper_bound, &of_model).at(|| format!("bound of {}", entry.symbol))?;
    }

    for (id, buffer) in &program.buffers {
        verify_buffer(program, buffer, &of_model).at(|| format!("buffer {id:?} {}", buffer.name))?;
    }
    verify_ports(program, &program.inputs, &of_model, MemorySpace::Input)?;
    verify_ports(program, &program.outputs, &symbols, MemorySpace::Output)?;
    control::verify(program, &symbols)?;
    devices::verify(program)?;
    state::verify(program)?;
    partitions::verify(program)?;

    if let Some(blocks) = &program.batch_blocks {
        return verify(&blocks.program_of_block(program)?);
    }

    let mut unproven = Vec::new();
    let mut depth = 0;
    for kernel in &program.kernels {
        match kernel.control {
            Some(Control::If(_) | Control::While(_)) => depth += 1,
            Some(Control::End) => depth -= 1,
            _ => {}
        }

        // The facts include neither the conditions of regions nor the values of data-dependent symbols.
        let guarded = depth > 0 || !program.data_dependent.is_empty();
        let list =
            verify_kernel(program, kernel, &symbols, guarded).at(|| format!("kernel {}", kernel.name))?;
        unproven.extend(list.into_iter().map(|what| Unproven { kernel: kernel.name.clone(), what }));
    }
    Ok(unproven)
}

/// Whether the memory rules are proven for a kernel, which need not be one of the program's.
pub(crate) fn is_proven(program: &Program, kernel: &Kernel) -> bool {
    let symbols = program.all_symbols().cloned().collect();
    verify_kernel(program, kernel, &symbols, true).is_ok_and(|unproven| unproven.is_empty())
}

fn verify_buffer(program: &Program, buffer: &Buffer, symbols: &BTreeSet<Symbol>) -> Result<()> {
    in_scope(&buffer.elems, symbols)?;
    if program.facts.prove_le(&Dim::zero(), &buffer.elems).is_no() {
        return Err(Error::invalid(format!("its number of elements `{}` can be negative", buffer.elems)));
    }

    match &buffer.space {
        MemorySpace::Input(idx) => verify_owner(buffer, *idx, &program.inputs, program),
        MemorySpace::Output(idx) => verify_owner(buffer, *idx, &program.outputs, program),
        MemorySpace::Const(tensor) => {
            if tensor.dtype() == buffer.dtype && buffer.elems == Dim::from(tensor.elems()) {
                Ok(())
            } else {
                Err(Error::invalid(format!("its contents are {tensor:?}")))
            }
        }
        MemorySpace::State(idx) => {
            let tensor = program.state.as_ref().and_then(|state| state.tensors.get(*idx as usize));
            match tensor.map(|tensor| &program.buffers[tensor.buffer]) {
                Some(owner) if std::ptr::eq(owner, buffer) => Ok(()),
                _ => Err(Error::invalid("it is not the memory of the state tensor that it names")),
            }
        }
        MemorySpace::Arena | MemorySpace::Scratch => Ok(()),
        MemorySpace::Device(number) => match program.devices.get(*number as usize) {
            Some(_) => Ok(()),
            None => Err(Error::invalid(format!("there is no device {number}"))),
        },
    }
}

/// Checks that a buffer is the memory of the port with index `idx`.
fn verify_owner(buffer: &Buffer, idx: u32, ports: &[Port], program: &Program) -> Result<()> {
    match ports.get(idx as usize).map(|port| &program.buffers[port.buffer]) {
        Some(owner) if std::ptr::eq(owner, buffer) => Ok(()),
        _ => Err(Error::invalid("it is not the memory of the port that it names")),
    }
}

fn verify_ports(
    program: &Program,
    ports: &[Port],
    symbols: &BTreeSet<Symbol>,
    space: impl Fn(u32) -> MemorySpace,
) -> Result<()> {
    for (idx, port) in ports.iter().enumerate() {
        let at = || format!("port {}", port.name);
        port.shape.iter().try_for_each(|dim| in_scope(dim, symbols)).at(at)?;

        let buffer = &program.buffers[port.buffer];
        let is_own = match (&buffer.space, space(idx as u32)) {
            (MemorySpace::Input(a), MemorySpace::Input(b))
            | (MemorySpace::Output(a), MemorySpace::Output(b)) => *a == b,
            _ => false,
        };
        if !is_own {
            return Err(Error::invalid(format!("{:?} is not in its space", port.buffer))).at(at);
        }

        // The buffer of a tensor with a data-dependent size has the size's upper bound.
        let elems = Dim::product(port.shape.iter().cloned());
        let fits = if program.data_dependent.iter().any(|entry| elems.contains(&entry.symbol)) {
            program.facts.prove_le(&elems, &buffer.elems)
        } else {
            program.facts.prove_eq(&elems, &buffer.elems)
        };
        if fits.is_no() {
            let message = format!("`{elems}` elements in a buffer of `{}`", buffer.elems);
            return Err(Error::invalid(message)).at(at);
        }
    }
    Ok(())
}

/// The facts of the program. The offsets of a ragged batch make sure that no sequence is longer than all rows.
fn facts(program: &Program) -> Result<Facts> {
    let mut facts = program.facts.clone();
    if let Some(ragged) = &program.ragged {
        let fits = Relation::le(&ragged.length, &ragged.rows);
        facts.assume(fits, "the offsets").map_err(|error| Error::invalid(error.to_string()))?;
    }
    Ok(facts)
}

/// Checks one kernel, and returns the memory rules without a proof.
fn verify_kernel(
    program: &Program,
    kernel: &Kernel,
    symbols: &BTreeSet<Symbol>,
    guarded: bool,
) -> Result<Vec<String>> {
    let mut checker = Checker::new(program, kernel, symbols.clone());
    let scope = Scope { facts: facts(program)?, symbols: symbols.clone(), guarded, idle: false };
    checker.stmts(&kernel.body, scope)?;
    if let Some(Control::Call(call)) = &kernel.control {
        checker.unproven.extend(control::arguments(program, call, guarded)?);
    }
    Ok(checker.unproven)
}
