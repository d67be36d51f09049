//! The variables of buffers: offsets in the arena by the [offset rule](crate::plan::layout), and pointers.

use super::{
    dims,
    names::{self, SymbolNames},
    text::identifiers,
    weights::SourceWeights,
};
use crate::{
    error::{Error, Result},
    kernel::{BufferId, MemorySpace, Program},
    plan::{self, OffsetArithmetic, Plan},
};
use std::collections::BTreeSet;
use symshape::Dim;

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
    let pointers = Pointers { program, names, weights, state_offsets: program.state_offsets() };
    for buffer in program.buffers.keys() {
        variables.extend(pointers.variable(buffer)?);
    }
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

/// The index of the address of a state's block in the table of inputs.
pub(super) fn state_input(program: &Program, has_weights_file: bool) -> usize {
    program.inputs.len() + usize::from(has_weights_file)
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

/// Makes the pointers to buffers.
struct Pointers<'p> {
    program: &'p Program,
    names: &'p SymbolNames,
    weights: Option<&'p SourceWeights>,
    /// The byte offset of each tensor in a block of state.
    state_offsets: Vec<Dim>,
}

impl Pointers<'_> {
    /// The pointer to a buffer; constants that are arrays need none.
    fn variable(&self, id: BufferId) -> Result<Option<Variable>> {
        let Pointers { program, names, weights, state_offsets } = self;
        let buffer = &program.buffers[id];
        let ty = names::memory_type(buffer.dtype);
        let name = names::buffer(program, id);

        let line = match buffer.space {
            MemorySpace::Const(_) => {
                let Some(offset) = weights.and_then(|weights| weights.offsets.get(&id)) else {
                    return Ok(None);
                };
                let file = format!("inputs[{}]", program.inputs.len());
                format!(
                    "const {ty} *const {name} = (const {ty} *)((const unsigned char *){file} + {offset});"
                )
            }
            MemorySpace::Input(idx) => format!("const {ty} *const {name} = inputs[{idx}];"),
            MemorySpace::Output(idx) => format!("{ty} *const {name} = outputs[{idx}];"),
            MemorySpace::State(tensor) => {
                let block = format!("inputs[{}]", state_input(program, weights.is_some()));
                let offset = state_offsets.get(tensor as usize);
                let offset = offset.ok_or_else(|| Error::internal("the program has no such state"))?;
                let offset = dims::term(names, &program.facts, offset)?;
                format!("{ty} *const {name} = ({ty} *)((unsigned char *){block} + {offset});")
            }
            MemorySpace::Arena | MemorySpace::Scratch | MemorySpace::Device(_) => {
                format!("{ty} *const {name} = ({ty} *)((unsigned char *)arena + {});", begin(id))
            }
        };

        Ok(Some(Variable { name, line }))
    }
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
