//! The variables of buffers: offsets in the arena by the [offset rule](crate::plan::layout), and pointers.

use super::{
    dims,
    names::{self, SymbolNames},
    text::identifiers,
    weights::SourceWeights,
};
use crate::{
    error::Result,
    kernel::{BufferId, MemorySpace, Program},
    plan::{self, OffsetArithmetic, Plan},
};
use std::collections::BTreeSet;

/// A local variable and the line that defines it.
pub(super) struct Variable {
    name: String,
    line: String,
}

/// All variables of buffers, each after those that it depends on.
pub(super) fn of(
    program: &Program,
    plan: &Plan,
    names: &SymbolNames,
    weights: Option<&SourceWeights>,
) -> Result<Vec<Variable>> {
    let mut variables = offsets(program, plan, names)?;
    variables.extend(program.buffers.keys().filter_map(|buffer| pointer(program, buffer, weights)));
    variables.extend(devices(program, plan));
    Ok(variables)
}

/// The lines that define the variables that `body` uses, directly or through other variables.
pub(super) fn used_by(variables: &[Variable], body: &str) -> String {
    let mut used: BTreeSet<&str> = identifiers(body).collect();
    let mut lines = Vec::new();
    for variable in variables.iter().rev() {
        if used.contains(variable.name.as_str()) {
            used.extend(identifiers(&variable.line));
            lines.push(&variable.line);
        }
    }
    lines.iter().rev().map(|line| format!("    {line}\n")).collect()
}

/// The variable that holds the offset of a buffer in the arena.
pub(super) fn begin(buffer: BufferId) -> String {
    format!("begin_{}", buffer.as_u32())
}

/// The variable that holds the offset of the end of a buffer in the arena.
pub(super) fn end(buffer: BufferId) -> String {
    format!("end_{}", buffer.as_u32())
}

/// The expression for the largest of `values`, or 0.
pub(super) fn largest(values: impl DoubleEndedIterator<Item = String>) -> String {
    let largest = values.rev().reduce(|rest, value| format!("max_i64({value}, {rest})"));
    largest.unwrap_or_else(|| "0".into())
}

/// Offsets as C expressions; an end is the name of a variable.
struct OffsetExpressions;

impl OffsetArithmetic for OffsetExpressions {
    type Offset = String;

    fn largest(&mut self, ends: Vec<String>) -> Result<String> {
        Ok(largest(ends.into_iter()))
    }

    fn end(&mut self, buffer: BufferId, _begin: &String) -> Result<String> {
        Ok(end(buffer))
    }
}

/// The begin and the end of each buffer in the arena.
fn offsets(program: &Program, plan: &Plan, names: &SymbolNames) -> Result<Vec<Variable>> {
    let mut variables = Vec::new();
    for span in plan::layout(&plan.placements, &mut OffsetExpressions)? {
        let begin = begin(span.buffer);
        let end = span.end;
        let bytes = dims::term(names, &program.facts, &plan::reserved_bytes(program, span.buffer))?;

        let begin_line = format!("const int64_t {begin} = {};", span.begin);
        let end_line = format!("const int64_t {end} = {begin} + {bytes};");
        variables.push(Variable { name: begin, line: begin_line });
        variables.push(Variable { name: end, line: end_line });
    }
    Ok(variables)
}

/// The pointer to a buffer; constants that are arrays need none.
fn pointer(program: &Program, id: BufferId, weights: Option<&SourceWeights>) -> Option<Variable> {
    let buffer = &program.buffers[id];
    let ty = names::memory_type(buffer.dtype);
    let name = names::buffer(program, id);

    let line = match buffer.space {
        MemorySpace::Const(_) => {
            let offset = weights?.offsets.get(&id)?;
            let file = format!("inputs[{}]", program.inputs.len());
            format!("const {ty} *const {name} = (const {ty} *)((const unsigned char *){file} + {offset});")
        }
        MemorySpace::Input(idx) => format!("const {ty} *const {name} = inputs[{idx}];"),
        MemorySpace::Output(idx) => format!("{ty} *const {name} = outputs[{idx}];"),
        // `source` refuses programs with state.
        MemorySpace::State(_) => return None,
        MemorySpace::Arena | MemorySpace::Scratch | MemorySpace::Device(_) => {
            format!("{ty} *const {name} = ({ty} *)((unsigned char *)arena + {});", begin(id))
        }
    };

    Some(Variable { name, line })
}

/// The start of each device's memory: its lowest buffer.
fn devices(program: &Program, plan: &Plan) -> Vec<Variable> {
    let variable = |device: usize| {
        let name = names::device(device);
        let lowest = plan.lowest_of(program, device as u32)?;
        let line = format!("void *const {name} = (unsigned char *)arena + {};", begin(lowest));
        Some(Variable { name, line })
    };
    (0..program.devices.len()).filter_map(variable).collect()
}
