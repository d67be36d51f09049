//! Runs the kernels of a program as its control markers require, and evaluates guards between kernels.

use super::machine::Machine;
use crate::{
    error::{At, Error, ErrorKind, Result},
    kernel::{BufferId, Control, Program},
    scalar::Scalar,
};
use symshape::{Assumption, Comparison};

/// Runs a verified program.
pub(super) fn run(program: &Program, machine: &mut Machine<'_>) -> Result<()> {
    let ends = ends(program);
    let mut at = 0;
    while let Some(kernel) = program.kernels.get(at) {
        at = match &kernel.control {
            None => {
                machine.run(kernel).at(|| format!("kernel {}", kernel.name))?;
                at + 1
            }
            Some(Control::If(cell) | Control::While(cell)) if !cell_of(machine, *cell)?.is_true() => {
                ends[at] + 1
            }
            // The `then` part of the branch is done.
            Some(Control::Else) => ends[at] + 1,
            Some(Control::End) => match program.kernels[ends[at]].control {
                Some(Control::While(_)) => ends[at],
                _ => at + 1,
            },
            Some(control) => {
                step(machine, control)?;
                at + 1
            }
        };
    }

    Ok(())
}

/// The matching marker of each marker: the `Else` or `End` of an `If`, the `End` of an `Else` or `While`, and the
/// marker that an `End` closes.
fn ends(program: &Program) -> Vec<usize> {
    let mut ends = vec![0; program.kernels.len()];
    let mut open = Vec::new();
    for (idx, kernel) in program.kernels.iter().enumerate() {
        match &kernel.control {
            Some(Control::If(_) | Control::While(_)) => open.push(idx),
            Some(Control::Else) => {
                let begin = open.pop().unwrap_or_default();
                ends[begin] = idx;
                open.push(idx);
            }
            Some(Control::End) => {
                let begin = open.pop().unwrap_or_default();
                ends[begin] = idx;
                ends[idx] = begin;
            }
            _ => {}
        }
    }

    ends
}

fn cell_of(machine: &Machine<'_>, cell: BufferId) -> Result<Scalar> {
    machine.read_all(cell, 1)?.first().copied().ok_or_else(|| Error::invalid(format!("{cell:?} is empty")))
}

fn step(machine: &mut Machine<'_>, control: &Control) -> Result<()> {
    match control {
        Control::Bind { symbol, from, lo, end, context } => {
            let value = cell_of(machine, *from)?.as_i64();
            let lo = machine.eval(lo)?;
            let end = machine.eval(end)?;
            if !(lo..end).contains(&value) {
                let message = format!("{context}: {symbol} = {value} is not in {lo}..={}", end - 1);
                return Err(Error::new(ErrorKind::Usage, message));
            }
            machine.bind(symbol, value);
            Ok(())
        }
        Control::Require(assumption) => require(machine, assumption),
        Control::Call(call) => machine.call(call).at(|| call.context.clone()),
        Control::Fail(why) => Err(Error::new(ErrorKind::Usage, why.clone())),
        Control::If(_) | Control::Else | Control::While(_) | Control::End => Ok(()),
    }
}

fn require(machine: &mut Machine<'_>, assumption: &Assumption) -> Result<()> {
    let relation = &assumption.relation;
    let a = machine.eval(&relation.a)?;
    let b = machine.eval(&relation.b)?;

    let holds = match relation.comparison {
        Comparison::Eq => a == b,
        Comparison::Ne => a != b,
        Comparison::Lt => a < b,
        Comparison::Le => a <= b,
        Comparison::Divides => a != 0 && b % a == 0,
    };

    if holds {
        Ok(())
    } else {
        let message = format!("{relation} does not hold ({})", assumption.origin);
        Err(Error::new(ErrorKind::Usage, message))
    }
}
