//! The arena's size as a formula for people.

use super::{
    arena::Plan,
    layout::{OffsetArithmetic, layout},
    size,
};
use crate::{
    error::{Error, ErrorKind, Result},
    kernel::{BufferId, Program},
};
use symshape::Dim;

/// A formula is for reading: with more alternatives than this, or more characters, a bound is given instead.
const MAX_ALTERNATIVES: usize = 6;
const MAX_CHARS: usize = 160;

/// The bytes of arena that a call takes, as an expression over the model's symbols, or `at most N` where the expression
/// would be too long to read.
pub fn arena_formula(program: &Program, plan: &Plan) -> String {
    let total = total_bytes(program, plan).map(|total| total * i64::from(program.arena_slices()));
    let formula = total.map(|total| program.facts.simplify(&total).to_string());
    match formula {
        Ok(text) if text.len() <= MAX_CHARS => text,
        _ => format!("at most {}", plan.arena_max),
    }
}

/// The largest end of all buffers.
fn total_bytes(program: &Program, plan: &Plan) -> Result<Dim> {
    let mut arithmetic = Alternatives { program };
    let spans = layout(&plan.placements, &mut arithmetic)?;

    let ends = arithmetic.largest(spans.into_iter().map(|span| span.end).collect())?;
    Ok(ends.into_iter().reduce(|a, b| a.max(b)).unwrap_or_else(Dim::zero))
}

/// Offsets as lists of expressions, the largest of which is the offset, whatever the values of the symbols.
struct Alternatives<'p> {
    program: &'p Program,
}

impl Alternatives<'_> {
    /// Adds `end`, unless another one is never smaller, and drops those that it is never smaller than.
    fn keep_largest(&self, list: &mut Vec<Dim>, end: Dim) -> Result<()> {
        let facts = &self.program.facts;
        if list.iter().any(|other| facts.prove_le(&end, other).is_yes()) {
            return Ok(());
        }

        list.retain(|other| !facts.prove_le(other, &end).is_yes());
        list.push(end);
        if list.len() <= MAX_ALTERNATIVES {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Limit, "the arena's size has too many alternatives to be read"))
        }
    }
}

impl OffsetArithmetic for Alternatives<'_> {
    type Offset = Vec<Dim>;

    fn largest(&mut self, ends: Vec<Vec<Dim>>) -> Result<Vec<Dim>> {
        let mut list = Vec::new();
        for end in ends.into_iter().flatten() {
            self.keep_largest(&mut list, end)?;
        }
        if list.is_empty() {
            list.push(Dim::zero());
        }
        Ok(list)
    }

    fn end(&mut self, buffer: BufferId, begin: &Vec<Dim>) -> Result<Vec<Dim>> {
        let size = size::reserved_bytes(self.program, buffer);
        Ok(begin.iter().map(|begin| self.program.facts.simplify(&(begin + &size))).collect())
    }
}
