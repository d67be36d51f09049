//! `arena_bytes`, `output_shape` and `run` in C.

use super::{
    contract::Checks,
    kernels::KernelCall,
    names::{self, SymbolNames},
    text::identifiers,
};
use crate::{
    error::{Error, Result},
    kernel::{
        Buffer, BufferId, Control, Kernel, MemorySpace, Program,
        contract::{Contract, Failure, RelationGuard},
    },
    plan::{self, Plan},
};
use std::{collections::BTreeSet, fmt::Write, ops::Range};

/// Prints the functions that compute sizes: `arena_bytes` and `output_shape`.
pub(super) fn sizes(out: &mut String, program: &Program, plan: &Plan, names: &SymbolNames) -> Result<()> {
    let _ = writeln!(out, "const size_t {}_arena_max = {}u;\n", program.name, plan.arena_max);
    arena_bytes(out, program, plan, names)?;
    output_shape(out, program, names)
}

/// A local variable and the line that defines it.
struct Definition {
    name: String,
    line: String,
}

/// The begin and end of each buffer in the arena, in ascending order of dependence.
fn offsets(checks: &Checks, plan: &Plan) -> Result<Vec<Definition>> {
    let mut list = Vec::new();
    for placement in &plan.placements {
        let (begin, end) = (begin(placement.buffer), end(placement.buffer));
        let below: Vec<String> = placement.below.iter().map(|buffer| self::end(*buffer)).collect();
        let lowest = below.into_iter().rev().reduce(|rest, other| format!("max_i64({other}, {rest})"));
        let bytes = checks.dim(&plan::reserved_bytes(checks.program, placement.buffer))?;
        let line = format!("const int64_t {begin} = {};", lowest.unwrap_or_else(|| "0".into()));
        let above = format!("const int64_t {end} = {begin} + {bytes};");
        list.push(Definition { name: begin, line });
        list.push(Definition { name: end, line: above });
    }
    Ok(list)
}

/// The definitions that `body` needs.
fn needed(definitions: &[Definition], body: &str) -> String {
    let mut wanted: BTreeSet<&str> = identifiers(body).collect();
    let mut kept = Vec::new();
    for definition in definitions.iter().rev() {
        if wanted.contains(definition.name.as_str()) {
            wanted.extend(identifiers(&definition.line));
            kept.push(&definition.line);
        }
    }
    kept.iter().rev().map(|line| format!("    {line}\n")).collect()
}

pub(super) fn begin(buffer: BufferId) -> String {
    format!("begin_{}", buffer.as_u32())
}

pub(super) fn end(buffer: BufferId) -> String {
    format!("end_{}", buffer.as_u32())
}

/// The lines that read the symbols which `body` uses from `dims`.
pub(super) fn read_dims(program: &Program, names: &SymbolNames, body: &str) -> String {
    let used: BTreeSet<&str> = identifiers(body).collect();
    let mut lines = String::new();
    for (idx, symbol) in program.symbols.iter().enumerate() {
        if let Some(name) = names.symbol(symbol).filter(|name| used.contains(name)) {
            let _ = writeln!(lines, "    const int64_t {name} = dims[{idx}];");
        }
    }
    if lines.is_empty() && !used.contains("dims") { "    (void)dims;\n".into() } else { lines }
}

/// The lines that declare data-dependent symbols. Those that this partition binds become variables; others are read
/// from `dims`.
pub(super) fn read_data_dependent(
    program: &Program,
    names: &SymbolNames,
    body: &str,
    partition: usize,
) -> String {
    let used: BTreeSet<&str> = identifiers(body).collect();
    let own = &program.kernels[program.partitions[partition].kernels.clone()];
    let mut lines = String::new();
    for (idx, entry) in program.data_dependent.iter().enumerate() {
        let Some(name) = names.symbol(&entry.symbol).filter(|name| used.contains(name)) else { continue };
        let binds = |kernel: &Kernel| matches!(&kernel.control, Some(Control::Bind { symbol, .. }) if *symbol == entry.symbol);
        let _ = match own.iter().any(binds) {
            true => writeln!(lines, "    int64_t {name} = 0;"),
            false => writeln!(lines, "    const int64_t {name} = dims[{}];", program.symbols.len() + idx),
        };
    }
    lines
}

fn arena_bytes(out: &mut String, program: &Program, plan: &Plan, names: &SymbolNames) -> Result<()> {
    let offsets = offsets(&Checks::new(program, names, "unused".into()), plan)?;
    let ends: Vec<String> = plan.placements.iter().map(|placement| end(placement.buffer)).collect();
    let total = ends.into_iter().rev().reduce(|rest, other| format!("max_i64({other}, {rest})"));
    let last = format!("    return (size_t)({});\n", total.unwrap_or_else(|| "0".into()));
    let body = format!("{}{last}", needed(&offsets, &last));
    let (prefix, head) = (&program.name, read_dims(program, names, &body));
    let _ = writeln!(out, "size_t {prefix}_arena_bytes(const int64_t *dims) {{\n{head}{body}}}\n");
    Ok(())
}

fn output_shape(out: &mut String, program: &Program, names: &SymbolNames) -> Result<()> {
    let mut checks = Checks::new(program, names, "unused".into());
    checks.line(1, "switch (output) {");
    for (idx, port) in program.outputs.iter().enumerate() {
        checks.line(1, &format!("case {idx}:"));
        for (axis, dim) in port.shape.iter().enumerate() {
            let dim = checks.dim(dim)?;
            checks.line(2, &format!("shape[{axis}] = {dim};"));
        }
        checks.line(2, "return SYMSHAPE_OK;");
    }
    checks.line(1, "default:");
    checks.line(2, "return SYMSHAPE_OUT_OF_RANGE;");
    checks.line(1, "}");
    // A data-dependent symbol that is not known yet takes its upper bound.
    let mut found = String::new();
    for (idx, entry) in program.data_dependent.iter().enumerate() {
        let (name, most) = (checks.symbol(&entry.symbol)?, checks.dim(&entry.upper_bound)?);
        if identifiers(&checks.body).chain(identifiers(&found)).any(|word| word == name) {
            let at = program.symbols.len() + idx;
            let _ =
                writeln!(found, "    const int64_t {name} = dims[{at}] == INT64_MIN ? {most} : dims[{at}];");
        }
    }
    let body = format!("{found}{}", checks.body);
    let mut head = read_dims(program, names, &body);
    if !identifiers(&body).any(|word| word == "shape") {
        head.push_str("    (void)shape;\n");
    }
    let prefix = &program.name;
    let _ = writeln!(
        out,
        "int32_t {prefix}_output_shape(uint32_t output, const int64_t *dims, int64_t *shape) {{\n{head}{body}}}\n"
    );
    Ok(())
}

/// Prints `run` of a model without partitions.
pub(super) fn run(
    out: &mut String,
    program: &Program,
    plan: &Plan,
    names: &SymbolNames,
    calls: &[Option<KernelCall>],
) -> Result<()> {
    let mut checks = Checks::new(program, names, "stopped".into());
    guards(&mut checks)?;
    let guards = std::mem::take(&mut checks.body);
    for entry in &program.data_dependent {
        let name = checks.symbol(&entry.symbol)?;
        checks.line(1, &format!("int64_t {name} = 0;"));
    }
    steps(&mut checks, 0..program.kernels.len(), calls)?;
    checks.line(1, "return SYMSHAPE_OK;");
    let body = with_definitions(&checks, plan, &guards)?;
    let used: Vec<&str> = identifiers(&body).collect();
    let mut head = String::from(match error_of(&body) {
        "" => "    (void)exec;\n",
        error => error,
    });
    for name in ["inputs", "outputs", "arena"] {
        if !used.contains(&name) {
            let _ = writeln!(head, "    (void){name};");
        }
    }
    head.push_str(&read_dims(program, names, &body));
    let _ = writeln!(
        out,
        "{}int32_t {}_run(const void *const *inputs, void *const *outputs, int64_t *dims, void *arena,\n    const symshape_exec *exec) {{\n{head}{body}}}\n",
        checks.objects, program.name
    );
    Ok(())
}

/// Checks the dims of a call against the declarations.
pub(super) fn guards(checks: &mut Checks) -> Result<()> {
    let contract = Contract::of(checks.program)?;
    for declared in &contract.symbols {
        checks.guards(declared)?;
    }
    contract.relations.iter().try_for_each(|guard| checks.relation(1, guard))
}

/// The definition of `error`, if the body writes one.
pub(super) fn error_of(body: &str) -> &'static str {
    match identifiers(body).any(|word| word == "error") {
        true => {
            "    symshape_error unseen;\n    symshape_error *const error = exec != NULL && exec->error != NULL ? exec->error : &unseen;\n"
        }
        false => "",
    }
}

/// `before`, then the definitions that the body uses, then the body.
pub(super) fn with_definitions(checks: &Checks, plan: &Plan, before: &str) -> Result<String> {
    let mut definitions = offsets(checks, plan)?;
    definitions.extend(pointers(checks.program));
    definitions.extend(devices(checks.program, plan));
    Ok(format!("{before}{}{}", needed(&definitions, &checks.body), checks.body))
}

/// A pointer for each buffer that is not a constant.
fn pointers(program: &Program) -> Vec<Definition> {
    let pointer = |(id, buffer): (BufferId, &Buffer)| {
        let (ty, name) = (names::memory_type(buffer.dtype), names::buffer(program, id));
        let line = match buffer.space {
            MemorySpace::Const(_) => return None,
            MemorySpace::Input(idx) => format!("const {ty} *const {name} = inputs[{idx}];"),
            MemorySpace::Output(idx) => format!("{ty} *const {name} = outputs[{idx}];"),
            MemorySpace::Arena | MemorySpace::Scratch | MemorySpace::Device(_) => {
                format!("{ty} *const {name} = ({ty} *)((unsigned char *)arena + {});", begin(id))
            }
        };
        Some(Definition { name, line })
    };
    program.buffers.iter().filter_map(pointer).collect()
}

/// The start of each device's memory: its lowest buffer.
fn devices(program: &Program, plan: &Plan) -> Vec<Definition> {
    let define = |number: usize| {
        let (name, lowest) = (names::device(number), plan.lowest_of(program, number as u32)?);
        let line = format!("void *const {name} = (unsigned char *)arena + {};", begin(lowest));
        Some(Definition { name, line })
    };
    (0..program.devices.len()).filter_map(define).collect()
}

/// Prints the calls of kernels and the control flow around them.
pub(super) fn steps(checks: &mut Checks, kernels: Range<usize>, calls: &[Option<KernelCall>]) -> Result<()> {
    let mut depth = 1;
    let program = checks.program;
    for (kernel, call) in program.kernels[kernels.clone()].iter().zip(&calls[kernels]) {
        match (&kernel.control, call) {
            (None, Some(KernelCall { text, fails: false })) => checks.line(depth, &format!("{text};")),
            (None, Some(KernelCall { text, fails: true })) => {
                checks.line(depth, &format!("if ({text} != 0) return error->code;"));
            }
            (None, None) => return Err(Error::internal("C source: a kernel has no function")),
            (Some(control), _) => depth = control_marker(checks, depth, control)?,
        }
    }
    Ok(())
}

/// Prints a control marker; returns the depth of the following lines.
fn control_marker(checks: &mut Checks, depth: usize, control: &Control) -> Result<usize> {
    let program = checks.program;
    match control {
        Control::If(cell) => {
            checks.line(depth, &format!("if ({}[0]) {{", names::buffer(program, *cell)));
            return Ok(depth + 1);
        }
        Control::While(cell) => {
            checks.line(depth, &format!("while ({}[0]) {{", names::buffer(program, *cell)));
            return Ok(depth + 1);
        }
        Control::Else => checks.line(depth - 1, "} else {"),
        Control::End => {
            checks.line(depth - 1, "}");
            return Ok(depth - 1);
        }
        Control::Bind { symbol, from, lo, end, context } => {
            let name = checks.symbol(symbol)?;
            checks.line(depth, &format!("{name} = {}[0];", names::buffer(program, *from)));
            let (lo, end) = (checks.dim(lo)?, checks.dim(end)?);
            let failure = Failure::symbol_out_of_bounds(symbol, context);
            let hi = format!("{end} - 1");
            checks.refuse(depth, &format!("{name} < {lo} || {name} >= {end}"), &failure, [name, &lo, &hi]);
            let at = program.all_symbols().position(|known| known == symbol).unwrap_or_default();
            checks.line(depth, &format!("dims[{at}] = {name};"));
        }
        Control::Require(assumption) => checks.relation(depth, &RelationGuard::of(assumption))?,
        Control::Call(call) => super::call::call(checks, depth, call)?,
        Control::Fail(why) => checks.refuse(depth, "1", &Failure::contradiction(why), ["0", "0", "0"]),
    }
    Ok(depth)
}

/// Prints a static arena and `run_static`, which uses it; both are compiled only with `NAME_STATIC_ARENA`.
pub(super) fn static_arena(out: &mut String, program: &Program) {
    let (prefix, upper) = (&program.name, program.name.to_uppercase());
    let _ = writeln!(
        out,
        "#ifdef {upper}_STATIC_ARENA\n\
         int32_t {prefix}_run_static(const void *const *inputs, void *const *outputs, int64_t *dims,\n    \
             const symshape_exec *exec) {{\n    \
             static union {{\n        \
                 _Alignas(64) unsigned char bytes[{upper}_ARENA_MAX > 0 ? {upper}_ARENA_MAX : 1];\n        \
                 double number;\n    \
             }} arena;\n    \
             return {prefix}_run(inputs, outputs, dims, arena.bytes, exec);\n}}\n#endif"
    );
}
