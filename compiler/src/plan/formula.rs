//! The arena's size as people write it.

use super::{Plan, size};
use crate::kernel::{BufferId, Program};
use std::collections::HashMap;
use symshape::{Dim, Facts};

/// A formula is for reading: with more alternatives than this, or more characters, a bound is given.
const MAX_ALTERNATIVES: usize = 6;
const MAX_CHARS: usize = 160;

/// The bytes of arena that a call takes, as an expression over the model's symbols; where that would be too long to
/// read, an upper bound, which is then written as one.
pub fn arena_formula(program: &Program, plan: &Plan) -> String {
    let bound = || format!("at most {}", plan.arena_max);
    let Some(total) = alternatives(program, plan) else { return bound() };
    let total = total.into_iter().reduce(|a, b| a.max(b)).unwrap_or_else(Dim::zero);
    let text = program.facts.simplify(&total).to_string();
    if text.len() <= MAX_CHARS { text } else { bound() }
}

/// Ends of which one is the highest, whatever the values; `None` when there are too many.
fn alternatives(program: &Program, plan: &Plan) -> Option<Vec<Dim>> {
    let facts = &program.facts;
    let mut ends: HashMap<BufferId, Vec<Dim>> = HashMap::new();
    let mut total = Vec::new();
    for placement in &plan.placements {
        let size = size::reserved_bytes(program, placement.buffer);
        let mut begins = Vec::new();
        for below in &placement.below {
            for end in ends.get(below)? {
                keep_highest(facts, &mut begins, end)?;
            }
        }
        if begins.is_empty() {
            begins.push(Dim::zero());
        }
        let list: Vec<Dim> = begins.iter().map(|begin| facts.simplify(&(begin + &size))).collect();
        for end in &list {
            keep_highest(facts, &mut total, end)?;
        }
        ends.insert(placement.buffer, list);
    }
    Some(total)
}

/// Adds `end`, unless one of the others is never lower, and drops those that it is never lower than.
fn keep_highest(facts: &Facts, list: &mut Vec<Dim>, end: &Dim) -> Option<()> {
    if list.iter().any(|other| facts.prove_le(end, other).is_yes()) {
        return Some(());
    }
    list.retain(|other| !facts.prove_le(other, end).is_yes());
    list.push(end.clone());
    (list.len() <= MAX_ALTERNATIVES).then_some(())
}
