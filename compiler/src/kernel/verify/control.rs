//! Regions of kernels nest, and what steers them has the right type.

use super::in_scope;
use crate::{
    error::{At, Error, Result},
    kernel::{BufferId, Control, Kernel, Program},
};
use std::collections::BTreeSet;
use symshape::Symbol;
use symshape_runtime::DType;

/// Checks the rules about regions.
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
                let known = program.found.iter().any(|found| found.symbol == *symbol);
                if !known {
                    return Err(Error::invalid(format!("{symbol} is not declared as found"))).at(at);
                }
                in_scope(lo, symbols).and_then(|()| in_scope(end, symbols)).at(at)?;
            }
            Control::Require(assumption) => {
                in_scope(&assumption.relation.a, symbols).at(at)?;
                in_scope(&assumption.relation.b, symbols).at(at)?;
            }
            Control::Else | Control::End | Control::Fail(_) => {}
        }
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(Error::invalid("a region has no end")),
    }
}

fn no_body(kernel: &Kernel) -> Result<()> {
    match kernel.body.is_empty() && kernel.locals.is_empty() {
        true => Ok(()),
        false => Err(Error::invalid("a kernel that steers others has a body")),
    }
}

/// What may still come in a region that is open.
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
            _ => return Err(Error::invalid("an `otherwise` without its `when`")),
        },
        Control::End => {
            open.pop().ok_or_else(|| Error::invalid("an `end` of nothing"))?;
        }
        Control::Bind { .. } | Control::Require(_) | Control::Fail(_) => {}
    }
    Ok(())
}

fn is_cell(program: &Program, cell: BufferId, dtype: DType) -> Result<()> {
    let buffer = &program.buffers[cell];
    match buffer.dtype == dtype {
        true => Ok(()),
        false => Err(Error::invalid(format!("{cell:?} holds {}, not {dtype}", buffer.dtype))),
    }
}
