//! The C header of a model: the contract as constants and comments, the prototypes, and the structs of the ABI.
//!
//! It mirrors [`symshape_runtime::abi`], includes only `stddef.h` and `stdint.h`, and is valid C99 and C++.

use super::{
    batch, max_dim, ragged, state,
    template::{comment, named},
    weights::WeightsFile,
};
use crate::{
    codegen,
    kernel::{Policies, Port, Program},
    plan::Plan,
    scalar::Precision,
};
use std::{collections::HashSet, fmt::Write};

/// The structs of the ABI. An include guard keeps one copy if a program includes several headers.
const ABI: &str = include_str!("abi.h");

/// The header of `program`, whose weights are in `weights` or in the object.
pub fn header(program: &Program, plan: &Plan, weights: Option<&WeightsFile>) -> String {
    let mut text = String::new();
    write_header(&mut text, program, plan, None, weights).expect("writing to a string can't fail");
    text
}

/// Facts about C source that its header states.
pub(super) struct SourceHeader<'a> {
    /// A sentence that lists the functions of the C library that the source calls.
    pub(super) math_calls: &'a str,
    /// Bytes of the frame that the partitions of a call share.
    pub(super) frame_bytes: usize,
}

/// The header of `program` for its C source.
pub(super) fn header_for_source(
    program: &Program,
    plan: &Plan,
    source: &SourceHeader<'_>,
    weights: Option<&WeightsFile>,
) -> String {
    let mut text = String::new();
    write_header(&mut text, program, plan, Some(source), weights).expect("writing to a string can't fail");
    text
}

fn write_header(
    out: &mut String,
    program: &Program,
    plan: &Plan,
    source: Option<&SourceHeader<'_>>,
    weights: Option<&WeightsFile>,
) -> std::fmt::Result {
    let prefix = program.name.as_str();
    let upper = prefix.to_uppercase();
    writeln!(out, "/* {prefix}: compiled by symshape {}.\n *", env!("CARGO_PKG_VERSION"))?;
    contract(out, program)?;

    if let Some(source) = source {
        writeln!(out, " *\n * {}", source.math_calls)?;
    }

    writeln!(out, " */\n#ifndef SYMSHAPE_MODEL_{upper}_H\n#define SYMSHAPE_MODEL_{upper}_H\n\n{ABI}")?;
    writeln!(out, "#ifdef __cplusplus\nextern \"C\" {{\n#endif\n")?;
    let frame_bytes = source.map_or_else(|| codegen::frame_bytes(program), |source| source.frame_bytes);
    constants(out, program, plan, &upper, frame_bytes)?;
    prototypes(out, prefix)?;
    if let Some(weights) = weights {
        out.write_str(&weights.declarations(prefix))?;
    }
    out.write_str(&max_dim::functions(program, plan))?;
    out.write_str(&state::functions(program))?;
    // A batch of requests would need a state for each of them.
    // Rows of a ragged batch belong to sequences.
    if program.state.is_none() && program.ragged.is_none() {
        out.write_str(&batch::functions(program, weights.is_some()))?;
    }

    out.write_str(&ragged::functions(program, weights.is_some()))?;
    if program.may_use_tiles() && source.is_none() {
        out.write_str(&named(include_str!("tiles.h"), prefix))?;
    }

    externals(out, program)?;
    if !program.partitions.is_empty() {
        out.write_str(&named(include_str!("partitions.h"), prefix))?;
    }

    if source.is_some() {
        let declaration = match &program.state {
            Some(_) => include_str!("static_arena_state.h"),
            None => include_str!("static_arena.h"),
        };
        out.write_str(&named(declaration, prefix))?;
    }

    writeln!(out, "#ifdef __cplusplus\n}}\n#endif\n#endif")
}

/// The contract of the model, as a comment.
fn contract(out: &mut String, program: &Program) -> std::fmt::Result {
    writeln!(out, " * Symbols, in the order of `dims`:")?;
    for (idx, symbol) in program.symbols.iter().enumerate() {
        let declared = program.facts.declaration(symbol);
        let declared = declared.map_or_else(String::new, |declared| declared.to_string());
        writeln!(out, " *   dims[{idx}]  {}: {}", comment(symbol.name()), comment(&declared))?;
    }

    for (title, ports) in [("Inputs", &program.inputs), ("Outputs", &program.outputs)] {
        writeln!(out, " * {title}, dense and row-major:")?;
        for (idx, port) in ports.iter().enumerate() {
            let dtype = program.buffers[port.buffer].dtype;
            writeln!(out, " *   {idx}  {}: {dtype}[{}]", comment(&port.name), comment(&shape(port)))?;
        }
    }

    Ok(())
}

/// Sizes and ranges.
fn constants(
    out: &mut String,
    program: &Program,
    plan: &Plan,
    upper: &str,
    frame_bytes: usize,
) -> std::fmt::Result {
    let mut macros = Macros { upper, taken: HashSet::new() };
    writeln!(out, "/* Upper bound of the arena's bytes over all allowed sizes: for static arrays. */")?;
    macros.define(out, "ARENA_MAX", format!("{}u", plan.arena_max))?;
    macros.define(out, "ARENA_ALIGN", "64u")?;

    for (device, usage) in program.devices.iter().zip(&plan.devices) {
        writeln!(
            out,
            "\n/* Upper bound of the arena bytes that are memory of {}. */",
            comment(&device.target)
        )?;
        macros.define(
            out,
            &format!("{}_MEMORY_MAX", macro_name(&device.target)),
            format!("{}u", usage.max),
        )?;
    }

    macros.define(out, "N_SYMBOLS", program.symbols.len())?;
    macros.define(out, "N_DATA_DEPENDENT", program.data_dependent.len())?;
    macros.define(out, "N_INPUTS", program.inputs.len())?;
    macros.define(out, "N_OUTPUTS", program.outputs.len())?;

    if !program.partitions.is_empty() {
        let any = i32::from(program.policies == Policies::Any);
        writeln!(
            out,
            "\n/* Number of partitions, bytes of a call's frame, and whether partitions may run at once. */"
        )?;
        macros.define(out, "N_PARTITIONS", program.partitions.len())?;
        macros.define(out, "FRAME_BYTES", format!("{frame_bytes}u"))?;
        macros.define(out, "ANY_ORDER", any)?;
    }

    if program.precision != Precision::F32 {
        writeln!(
            out,
            "\n/* The precision of contractions on machines with tile registers, and the largest relative error of a\n \
             * multiplication there. Sums round as sums of f32 do. */"
        )?;
        macros.define(out, "PRECISION", format!("\"{}\"", program.precision))?;
        macros.define(out, "PRODUCT_ERROR", format!("{:.2e}", program.precision.max_product_error()))?;
    }

    for (idx, symbol) in program.symbols.iter().enumerate() {
        let name = macro_name(symbol.name());
        writeln!(out, "\n/* The symbol {}: its index in `dims`, and its range. */", comment(symbol.name()))?;
        macros.define(out, &format!("DIM_{name}"), idx)?;
        let Some(declared) = program.facts.declaration(symbol) else { continue };
        macros.define(out, &format!("{name}_MIN"), &declared.lo)?;
        if let Some(hi) = &declared.hi {
            macros.define(out, &format!("{name}_MAX"), hi)?;
        }
    }

    for (kind, ports) in [("INPUT", &program.inputs), ("OUTPUT", &program.outputs)] {
        for (idx, port) in ports.iter().enumerate() {
            let name = macro_name(&port.name);
            writeln!(
                out,
                "\n/* {} {}: its index, its rank, and its upper bound in bytes. */",
                kind.to_lowercase(),
                comment(&port.name)
            )?;

            macros.define(out, &format!("{kind}_{name}"), idx)?;
            macros.define(out, &format!("{kind}_{name}_RANK"), port.shape.len())?;
            let buffer = &program.buffers[port.buffer];

            let size = &buffer.elems * buffer.dtype.size_bytes() as i64;
            if let Some(bytes) = program.facts.bounds(&size).hi {
                macros.define(out, &format!("{kind}_{name}_MAX_BYTES"), format!("{bytes}u"))?;
            }
        }
    }

    writeln!(out)
}

/// The macros so far. If two names of a model yield the same macro, the first definition stays.
struct Macros<'n> {
    upper: &'n str,
    taken: HashSet<String>,
}

impl Macros<'_> {
    fn define(&mut self, out: &mut String, name: &str, value: impl std::fmt::Display) -> std::fmt::Result {
        if self.taken.insert(name.to_string()) {
            writeln!(out, "#define {}_{name} {value}", self.upper)
        } else {
            Ok(())
        }
    }
}

/// The prototypes with their documentation.
fn prototypes(out: &mut String, prefix: &str) -> std::fmt::Result {
    out.write_str(&named(include_str!("prototypes.h"), prefix))
}

/// The prototypes of external functions.
fn externals(out: &mut String, program: &Program) -> std::fmt::Result {
    let callees = program.callees();
    if callees.is_empty() {
        return Ok(());
    }

    let head = "\n/* The model calls these external functions: define them, with C linkage. Each gets its operands\n \
                * dense and row-major and returns 0, or a code of its choice, which ends the call of the model with the error\n \
                * SYMSHAPE_CALLEE_FAILED. Several calls of the model may run at once. */";
    writeln!(out, "{head}")?;
    callees
        .iter()
        .try_for_each(|callee| writeln!(out, "int32_t {}(const symshape_call *call);", callee.symbol))?;

    writeln!(out)
}

/// A shape as text, such as `N, 2*S + 1`.
fn shape(port: &Port) -> String {
    port.shape.iter().map(|dim| dim.to_string()).collect::<Vec<_>>().join(", ")
}

/// A name as part of a macro's name.
fn macro_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}
