//! The rules about control markers and external calls.

use super::checker::in_scope;
use crate::{
    error::{At, Error, Result},
    external,
    kernel::{Argument, BufferId, Control, ExternalCall, Kernel, MemorySpace, Program},
};
use std::collections::BTreeSet;
use symshape::{Answer, Dim, Relation, Symbol};
use symshape_runtime::DType;

/// Checks the markers of all kernels.
pub(super) fn verify(program: &Program, symbols: &BTreeSet<Symbol>) -> Result<()> {
    let mut open = Vec::new();
    for kernel in &program.kernels {
        let Some(control) = &kernel.control else { continue };
        let at = || format!("kernel {}", kernel.name);
        no_body(kernel).and_then(|()| region(control, &mut open)).at(at)?;

        match control {
            Control::If(cell) | Control::While(cell) => is_cell(program, *cell, DType::Bool).at(at)?,
            Control::Bind { symbol, from, lo, end, .. } => {
                is_cell(program, *from, DType::I64).at(at)?;
                let is_declared = program.data_dependent.iter().any(|entry| entry.symbol == *symbol);
                if !is_declared {
                    return Err(Error::invalid(format!("{symbol} is not declared as data-dependent"))).at(at);
                }
                in_scope(lo, symbols).and_then(|()| in_scope(end, symbols)).at(at)?;
            }
            Control::Require(assumption) => {
                in_scope(&assumption.relation.a, symbols).at(at)?;
                in_scope(&assumption.relation.b, symbols).at(at)?;
            }
            Control::Call(call) => verify_call(program, call, symbols).at(at)?,
            Control::Else | Control::End | Control::Fail(_) => {}
        }
    }

    if open.is_empty() { Ok(()) } else { Err(Error::invalid("a region has no `end`")) }
}

fn no_body(kernel: &Kernel) -> Result<()> {
    if kernel.body.is_empty() && kernel.locals.is_empty() {
        Ok(())
    } else {
        Err(Error::invalid("a control marker has a body"))
    }
}

/// The marker that can follow in an open region.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    Else,
    End,
}

fn region(control: &Control, open: &mut Vec<Open>) -> Result<()> {
    match control {
        Control::If(_) => open.push(Open::Else),
        Control::While(_) => open.push(Open::End),
        Control::Else => match open.last_mut() {
            Some(last @ Open::Else) => *last = Open::End,
            _ => return Err(Error::invalid("an `else` without an `if`")),
        },
        Control::End => {
            open.pop().ok_or_else(|| Error::invalid("an `end` without an `if` or `while`"))?;
        }
        Control::Bind { .. } | Control::Require(_) | Control::Call(_) | Control::Fail(_) => {}
    }
    Ok(())
}

fn is_cell(program: &Program, cell: BufferId, dtype: DType) -> Result<()> {
    let buffer = &program.buffers[cell];
    if buffer.dtype == dtype {
        Ok(())
    } else {
        Err(Error::invalid(format!("{cell:?} has elements of {}, not {dtype}", buffer.dtype)))
    }
}

fn verify_call(program: &Program, call: &ExternalCall, symbols: &BTreeSet<Symbol>) -> Result<()> {
    external::check_symbol(&call.callee.symbol)?;
    if call.results.is_empty() {
        return Err(Error::invalid("the call has no results"));
    }
    for argument in call.operands.iter().chain(&call.results) {
        in_scope(&argument.first.index, symbols)?;
        argument.shape.iter().try_for_each(|dim| in_scope(dim, symbols))?;
    }

    let is_read_only =
        |id: BufferId| matches!(program.buffers[id].space, MemorySpace::Const(_) | MemorySpace::Input(_));
    let written = call.results.iter().map(|result| result.first.buffer).chain(call.scratch);
    if let Some(id) = written.clone().find(|id| is_read_only(*id)) {
        return Err(Error::invalid(format!("the call writes {id:?}, which is read only")));
    }
    let is_scratch = |id: &BufferId| matches!(program.buffers[*id].space, MemorySpace::Scratch);
    let (read, _) = Control::Call(Box::new(call.clone())).touched();
    if let Some(id) = read.into_iter().chain(written).find(is_scratch) {
        return Err(Error::invalid(format!("the call uses {id:?}, scratch memory of kernels with a body")));
    }
    Ok(())
}

/// The memory rules without a proof: arguments are within their buffers, and results overlap nothing else.
///
/// # Errors
/// An argument that is not within its buffer.
pub(super) fn arguments(program: &Program, call: &ExternalCall, guarded: bool) -> Result<Vec<String>> {
    let mut unproven = Vec::new();
    for argument in call.operands.iter().chain(&call.results) {
        let elems = &program.buffers[argument.first.buffer].elems;
        let end = &argument.first.index + argument.elems();
        for relation in [Relation::le(Dim::zero(), &argument.first.index), Relation::le(&end, elems)] {
            match program.facts.prove(&relation) {
                Answer::Yes(_) => {}
                Answer::No(_) if !guarded => {
                    return Err(Error::invalid(format!("{}: not `{relation}`", argument.first)));
                }
                Answer::No(_) | Answer::Unknown => {
                    unproven.push(format!("{}: `{relation}`", argument.first));
                }
            }
        }
    }

    for (k, result) in call.results.iter().enumerate() {
        for other in call.operands.iter().chain(&call.results[k + 1..]) {
            if result.first.buffer == other.first.buffer && !disjoint(program, result, other) {
                unproven.push(format!("{} and {} of a call may overlap", result.first, other.first));
            }
        }
        if call.scratch == Some(result.first.buffer) {
            return Err(Error::invalid("a result of the call is in its scratch memory"));
        }
    }

    Ok(unproven)
}

/// Whether two arguments are proven to be disjoint.
fn disjoint(program: &Program, a: &Argument, b: &Argument) -> bool {
    let before = |a: &Argument, b: &Argument| {
        let end = &a.first.index + a.elems();
        program.facts.prove_le(&end, &b.first.index).is_yes()
    };
    before(a, b) || before(b, a)
}
