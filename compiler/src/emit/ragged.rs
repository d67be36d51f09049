//! Ragged batches in a C header: inline functions that run sequences in separate memory, or padded tensors.

use super::template::{comment, filled, string};
use crate::kernel::{PaddedPorts, Port, Program, Ragged};
use num_bigint::BigInt;
use std::fmt::Write;
use symshape::{Dim, Symbol};

/// The functions, if the model has a ragged batch whose rows have fixed sizes; otherwise nothing. With a weights file,
/// its address follows those of the inputs.
pub(super) fn functions(program: &Program, has_weights: bool) -> String {
    let Some(ragged) = &program.ragged else { return String::new() };
    let Some(parts) = parts(program, ragged) else { return String::new() };
    gaps(program, ragged, &parts, has_weights).unwrap_or_default()
}

/// How the sequences of a call share an input or output.
struct Part {
    kind: Kind,
    /// Bytes of a row or of an item.
    bytes: i64,
    /// In the padded model: 0 if all sequences have the same rows; 1 if their axis precedes that of positions; 2 if it
    /// follows.
    order: u8,
    /// Number of pieces of a row in the padded model.
    runs: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rows = 0,
    Items = 1,
    Shared = 2,
    Offsets = 3,
}

/// The parts of all inputs and outputs; `None` if a row has no fixed size.
fn parts(program: &Program, ragged: &Ragged) -> Option<Vec<Part>> {
    let ports = program.inputs.iter().chain(&program.outputs);
    let all = ports.zip(&ragged.padded.batch_axes).enumerate();
    all.map(|(idx, (port, sequences))| part(program, ragged, idx, port, *sequences)).collect()
}

fn part(
    program: &Program,
    ragged: &Ragged,
    idx: usize,
    port: &Port,
    sequences: Option<usize>,
) -> Option<Part> {
    let elem_bytes = program.buffers[port.buffer].dtype.size_bytes() as i64;
    let axis_of = |symbol: &Symbol| port.shape.iter().position(|dim| dim.as_symbol() == Some(symbol));
    let elems = |dims: &[Dim]| dims.iter().try_fold(1, |elems: i64, dim| elems.checked_mul(dim.as_i64()?));
    let whole = |kind: Kind, bytes: i64| Some(Part { kind, bytes, order: 0, runs: 1 });
    if idx == ragged.offsets as usize {
        return whole(Kind::Offsets, elem_bytes);
    }
    let Some(axis) = axis_of(&ragged.rows) else {
        return match axis_of(&ragged.sequences) {
            Some(axis) => whole(Kind::Items, elems(&port.shape[axis + 1..])? * elem_bytes),
            None => whole(Kind::Shared, 0),
        };
    };
    let bytes = elems(&port.shape[axis + 1..])? * elem_bytes;
    // The padded shape has the sequences before the axis `sequences` of the ragged one.
    let (order, runs) = match sequences {
        None => (0, 1),
        Some(sequences) if sequences <= axis => (1, 1),
        Some(sequences) => (2, elems(&port.shape[axis + 1..sequences])?),
    };
    Some(Part { kind: Kind::Rows, bytes, order, runs })
}

/// The filled template; `None` if a size has no upper bound.
fn gaps(program: &Program, ragged: &Ragged, parts: &[Part], has_weights: bool) -> Option<String> {
    let upper = program.name.to_uppercase();
    let hi = |symbol: &Symbol| program.facts.declaration(symbol)?.hi.clone();
    let index =
        |symbol: &Symbol| program.symbols.iter().position(|other| other == symbol).map(|idx| idx.to_string());
    let list = |entry: &dyn Fn(&Part) -> i64| {
        parts.iter().map(|part| entry(part).to_string()).collect::<Vec<_>>().join(", ")
    };
    let length = program.facts.declaration(&ragged.length)?;
    let max_sequences = hi(&ragged.sequences)?;
    let max_rows = hi(&ragged.rows)?;
    let staging = staging_bytes(parts, &max_sequences, &max_rows);

    let weights = |addresses: &str, from: &str| {
        let line = format!("    {addresses}[{upper}_N_INPUTS] = {from}[{upper}_N_INPUTS];\n");
        if has_weights { line } else { String::new() }
    };
    let PaddedPorts { mask, lengths, .. } = &ragged.padded;
    let without = match mask.as_deref().or(lengths.as_deref()) {
        Some(input) => format!("The input `{}` of the padded model is left out.", comment(input)),
        None => "All inputs of the padded model are inputs.".to_string(),
    };
    let filling: [(&str, String); 21] = [
        ("    WEIGHTS_OF_SEQUENCE\n", weights("inputs", "sequences[0].inputs")),
        ("    WEIGHTS_OF_PADDED\n", weights("packed", "inputs")),
        ("PADDED_INPUTS", without),
        (
            "ADDRESS_COUNT",
            if has_weights { format!("{upper}_N_INPUTS + 1") } else { format!("{upper}_N_INPUTS") },
        ),
        ("OFFSETS_INDEX", ragged.offsets.to_string()),
        ("SEQUENCES_SYMBOL", index(&ragged.sequences)?),
        ("ROWS_SYMBOL", index(&ragged.rows)?),
        ("LENGTH_LO", length.lo.to_string()),
        ("LENGTH_HI", length.hi.as_ref()?.to_string()),
        ("LENGTH_NAME", string(ragged.length.name())),
        ("ROWS_NAME", string(ragged.rows.name())),
        ("STAGING_BYTES", format!("{staging}u")),
        ("PART_BYTES", list(&|part| part.bytes)),
        ("PART_KINDS", list(&|part| part.kind as i64)),
        ("ROW_ORDERS", list(&|part| part.order.into())),
        ("ROW_RUNS", list(&|part| part.runs)),
        ("SHAPE_LINES", shapes(program, ragged)?),
        ("SEQUENCES_MAX", max_sequences.to_string()),
        ("ROWS_MAX", max_rows.to_string()),
        ("PREFIX", program.name.clone()),
        ("UPPER", upper.clone()),
    ];
    let filling: Vec<(&str, &str)> = filling.iter().map(|(gap, text)| (*gap, text.as_str())).collect();
    Some(filled(include_str!("ragged.h"), &filling))
}

/// The shapes of the inputs in a call with `sequences` sequences and `rows` rows, as C declarations.
fn shapes(program: &Program, ragged: &Ragged) -> Option<String> {
    let mut text = String::new();
    let mut names = Vec::new();
    for (idx, input) in program.inputs.iter().enumerate() {
        let is = |dim: &Dim, symbol: &Symbol| dim.as_symbol() == Some(symbol);
        let dim = |dim: &Dim| match dim.as_i64() {
            Some(size) => Some(size.to_string()),
            None if is(dim, &ragged.rows) => Some("rows".into()),
            None if is(dim, &ragged.sequences) => Some("sequences".into()),
            None if idx == ragged.offsets as usize => Some("offsets".into()),
            None => None,
        };
        let dims = input.shape.iter().map(dim).collect::<Option<Vec<String>>>()?;
        let dims = if dims.is_empty() { "0".to_string() } else { dims.join(", ") };
        writeln!(text, "    const int64_t shape_{idx}[] = {{{dims}}};").ok()?;
        names.push(format!("shape_{idx}"));
    }
    writeln!(text, "    const int64_t *const shapes[] = {{{}}};", names.join(", ")).ok()?;
    Some(text)
}

/// Upper bound of the bytes of the offsets and of all rows and items of a call, each tensor 64-byte aligned.
fn staging_bytes(parts: &[Part], max_sequences: &BigInt, max_rows: &BigInt) -> BigInt {
    let aligned = |bytes: BigInt| (bytes + 63) / 64 * 64;
    let mut bytes = aligned((max_sequences + 1) * size_of::<i64>());
    for part in parts {
        match part.kind {
            Kind::Rows => bytes += aligned(max_rows * part.bytes),
            Kind::Items => bytes += aligned(max_sequences * part.bytes),
            Kind::Shared | Kind::Offsets => {}
        }
    }
    bytes
}
