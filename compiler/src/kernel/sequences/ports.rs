//! The symbol that counts the sequences of a call, and the inputs whose sizes differ from sequence to sequence.

use super::super::{Port, Program, sequence_parts::RaggedInput};
use num_traits::One;
use symshape::{Dim, Symbol};

/// The symbol that is the first axis of every output, and of every input that has it.
pub(crate) fn count(program: &Program) -> Result<Symbol, String> {
    let state = program.state.as_ref().ok_or("the model has no state")?;
    let first = program.outputs.iter().find_map(|output| output.shape.first()?.as_symbol().cloned());
    let of_state = || {
        let own = |symbol: &Symbol| {
            state.rows.as_ref().is_none_or(|rows| *symbol != rows.length && *symbol != rows.capacity)
        };
        state.words().into_iter().find(own)
    };
    let count = first.or_else(of_state).ok_or("no symbol is the first axis of the outputs")?;

    let declared = program.facts.declaration(&count).ok_or("the number of sequences has no declaration")?;
    let may_be_one = match &declared.values {
        Some(values) => values.iter().any(One::is_one),
        None => declared.lo <= 1.into() && declared.step.is_one(),
    };
    if !may_be_one {
        return Err(format!("{count} can't be 1, so a state can't be that of one sequence"));
    }
    if declared.hi.as_ref().is_some_and(|hi| *hi < 2.into()) {
        return Err(format!("{count} is at most 1"));
    }

    if let Some(rows) = &state.rows {
        if rows.growth.contains(&count) {
            return Err(format!("the number of new rows, {}, depends on {count}", rows.growth));
        }
        let is_ragged = |output: &&Port| {
            output.shape.iter().any(|dim| dim.contains(&rows.length) || dim.contains(&rows.capacity))
        };
        if let Some(output) = program.outputs.iter().find(is_ragged) {
            let (name, shape) = (&output.name, text(&output.shape));
            return Err(format!("output `{name}` has the shape [{shape}], another one for each length"));
        }
    }
    for output in &program.outputs {
        if !is_first_axis(output, &count) {
            let (name, shape) = (&output.name, text(&output.shape));
            return Err(format!("output `{name}` has the shape [{shape}], whose first axis is not {count}"));
        }
    }
    for input in program.inputs.iter().filter(|input| input.shape.iter().any(|dim| dim.contains(&count))) {
        if !is_first_axis(input, &count) {
            let (name, shape) = (&input.name, text(&input.shape));
            return Err(format!(
                "input `{name}` has the shape [{shape}], where {count} is not the first axis alone"
            ));
        }
    }
    Ok(count)
}

/// The inputs that have rows for all tokens of a sequence, each with the blocks that these rows form.
pub(super) fn ragged_inputs(program: &Program, count: &Symbol) -> Result<Vec<RaggedInput>, String> {
    let rows = program.state.as_ref().and_then(|state| state.rows.as_ref());
    let Some(rows) = rows else { return Ok(Vec::new()) };
    let mut ragged = Vec::new();
    for (idx, input) in program.inputs.iter().enumerate() {
        let is_own = |dim: &Dim| dim.contains(&rows.length) || dim.contains(&rows.capacity);
        let Some(axis) = input.shape.iter().position(is_own) else { continue };
        let (name, shape) = (&input.name, text(&input.shape));
        if !is_first_axis(input, count) {
            return Err(format!(
                "input `{name}` has the shape [{shape}], which sequences of different lengths can't share"
            ));
        }
        if input.shape[axis + 1..].iter().any(is_own) {
            return Err(format!("input `{name}` has the shape [{shape}], two axes of which have the length"));
        }
        let blocks = input.shape[1..axis].iter().fold(Dim::one(), |blocks, dim| blocks * dim);
        ragged.push(RaggedInput { input: idx, blocks: program.facts.simplify(&blocks) });
    }
    Ok(ragged)
}

/// Whether the symbol is the first axis of a port, and in no other axis.
fn is_first_axis(port: &Port, symbol: &Symbol) -> bool {
    match port.shape.split_first() {
        Some((first, rest)) => {
            first.as_symbol() == Some(symbol) && !rest.iter().any(|dim| dim.contains(symbol))
        }
        None => false,
    }
}

fn text(shape: &[Dim]) -> String {
    shape.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ")
}
