//! `arena_bytes`, `output_shape` and `run` in C.

use super::{
    call,
    context::SourceContext,
    function::{FunctionPrinter, error_variable, read_dims, uses},
    kernels::KernelCall,
    names, variables,
};
use crate::{
    error::{Error, Result},
    kernel::{
        Control, Program,
        contract::{Failure, RelationGuard},
        data_dependent,
    },
};
use std::{fmt::Write, ops::Range};
use symshape_runtime::abi::Code;

/// Prints the functions that compute sizes: `arena_bytes` and `output_shape`.
pub(super) fn sizes(out: &mut String, cx: &SourceContext) -> Result<()> {
    let _ = writeln!(out, "const size_t {}_arena_max = {}u;\n", cx.program.name, cx.plan.arena_max);
    arena_bytes(out, cx);
    output_shape(out, cx)
}

fn arena_bytes(out: &mut String, cx: &SourceContext) {
    let ends = cx.plan.placements.iter().map(|placement| variables::end(placement.buffer));
    let total = variables::largest(ends);
    let mut printer = FunctionPrinter::new(cx, "unused");
    printer.line(1, &format!("return (size_t)({total});"));

    let body = printer.with_variables("");
    let head = read_dims(cx.program, &cx.names, &body);
    let prefix = &cx.program.name;
    let _ = writeln!(out, "size_t {prefix}_arena_bytes(const int64_t *dims) {{\n{head}{body}}}\n");
}

fn output_shape(out: &mut String, cx: &SourceContext) -> Result<()> {
    let program = cx.program;
    let mut printer = FunctionPrinter::new(cx, "unused");
    printer.line(1, "switch (output) {");
    for (idx, port) in program.outputs.iter().enumerate() {
        printer.line(1, &format!("case {idx}:"));
        for (axis, dim) in port.shape.iter().enumerate() {
            let size = printer.dim(dim)?;
            let size = match data_dependent::unknown_value(&program.facts, &program.data_dependent, dim)? {
                None => size,
                Some(unknown) => {
                    let is_unset =
                        |idx: &usize| format!("dims[{}] == INT64_MIN", program.symbols.len() + idx);
                    let is_unknown: Vec<String> = unknown.symbols.iter().map(is_unset).collect();
                    format!("{} ? {} : {size}", is_unknown.join(" || "), printer.dim(&unknown.upper_bound)?)
                }
            };
            printer.line(2, &format!("shape[{axis}] = {size};"));
        }
        printer.line(2, "return SYMSHAPE_OK;");
    }
    printer.line(1, "default:");
    printer.line(2, "return SYMSHAPE_OUT_OF_RANGE;");
    printer.line(1, "}");

    // A data-dependent symbol that is not bound yet takes its upper bound.
    let mut data_dependent = String::new();
    for (idx, entry) in program.data_dependent.iter().enumerate() {
        let name = printer.symbol(&entry.symbol)?;
        let upper_bound = printer.dim(&entry.upper_bound)?;
        if uses(&printer.body, name) || uses(&data_dependent, name) {
            let at = program.symbols.len() + idx;
            let _ = writeln!(
                data_dependent,
                "    const int64_t {name} = dims[{at}] == INT64_MIN ? {upper_bound} : dims[{at}];"
            );
        }
    }

    let body = format!("{data_dependent}{}", printer.body);
    let mut head = read_dims(program, &cx.names, &body);
    if !uses(&body, "shape") {
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
pub(super) fn run(out: &mut String, cx: &SourceContext, calls: &[Option<KernelCall>]) -> Result<()> {
    let program = cx.program;
    let mut printer = FunctionPrinter::new(cx, "stopped");
    guards(&mut printer)?;
    let guards = std::mem::take(&mut printer.body);

    for entry in &program.data_dependent {
        let name = printer.symbol(&entry.symbol)?;
        printer.line(1, &format!("int64_t {name} = 0;"));
    }
    steps(&mut printer, 0..program.kernels.len(), calls)?;
    printer.line(1, "return SYMSHAPE_OK;");

    let body = printer.with_variables(&guards);
    let mut head = if uses(&body, "error") {
        error_variable(&body).to_string()
    } else {
        "    (void)exec;\n".to_string()
    };
    for name in ["inputs", "outputs", "arena"] {
        if !uses(&body, name) {
            let _ = writeln!(head, "    (void){name};");
        }
    }
    head.push_str(&read_dims(program, &cx.names, &body));
    let _ = writeln!(
        out,
        "{}int32_t {}_run(const void *const *inputs, void *const *outputs, int64_t *dims, void *arena,\n    const symshape_exec *exec) {{\n{head}{body}}}\n",
        printer.constants, program.name
    );
    Ok(())
}

/// Guards the dims of a call by the declarations.
pub(super) fn guards(printer: &mut FunctionPrinter) -> Result<()> {
    let call_contract = &printer.cx.call_contract;
    for declared in &call_contract.symbols {
        printer.symbol_guards(declared)?;
    }
    call_contract.relations.iter().try_for_each(|guard| printer.relation_guard(1, guard))?;
    if printer.cx.weights.is_some() {
        let program = printer.program();
        let (name, upper) = (&program.name, program.name.to_uppercase());
        let bad = format!("!{name}_has_weights(inputs[{}], {upper}_WEIGHTS_BYTES)", program.inputs.len());
        let why = "the address after those of the inputs does not point to weights of this model";
        let tensor_name = Some("the weights".into());
        let failure = Failure { tensor_name, why: Some(why.into()), ..Failure::new(Code::WrongWeights) };
        printer.refuse_if(1, &bad, &failure, ["0", "0", "0"]);
    }
    Ok(())
}

/// Prints the calls of kernels and the control flow around them.
pub(super) fn steps(
    printer: &mut FunctionPrinter,
    kernels: Range<usize>,
    calls: &[Option<KernelCall>],
) -> Result<()> {
    let program = printer.program();
    let mut depth = 1;
    for (kernel, call) in program.kernels[kernels.clone()].iter().zip(&calls[kernels]) {
        match (&kernel.control, call) {
            (None, Some(KernelCall { text, can_fail: false })) => printer.line(depth, &format!("{text};")),
            (None, Some(KernelCall { text, can_fail: true })) => {
                printer.line(depth, &format!("if ({text} != 0) return error->code;"));
            }
            (None, None) => return Err(Error::internal("C source: a kernel has no function")),
            (Some(control), _) => depth = control_marker(printer, depth, control)?,
        }
    }

    Ok(())
}

/// Prints a control marker; returns the depth of the lines after it.
fn control_marker(printer: &mut FunctionPrinter, depth: usize, control: &Control) -> Result<usize> {
    let program = printer.program();
    match control {
        Control::If(cell) => {
            printer.line(depth, &format!("if ({}[0]) {{", names::buffer(program, *cell)));
            return Ok(depth + 1);
        }
        Control::While(cell) => {
            printer.line(depth, &format!("while ({}[0]) {{", names::buffer(program, *cell)));
            return Ok(depth + 1);
        }
        Control::Else => printer.line(depth - 1, "} else {"),
        Control::End => {
            printer.line(depth - 1, "}");
            return Ok(depth - 1);
        }
        Control::Bind { symbol, from, lo, end, context } => {
            let name = printer.symbol(symbol)?;
            printer.line(depth, &format!("{name} = {}[0];", names::buffer(program, *from)));

            let lo = printer.dim(lo)?;
            let end = printer.dim(end)?;
            let hi = format!("{end} - 1");
            let bad = format!("{name} < {lo} || {name} >= {end}");
            printer.refuse_if(depth, &bad, &Failure::symbol_out_of_bounds(symbol, context), [name, &lo, &hi]);

            let at = program.all_symbols().position(|known| known == symbol).unwrap_or_default();
            printer.line(depth, &format!("dims[{at}] = {name};"));
        }
        Control::Require(assumption) => printer.relation_guard(depth, &RelationGuard::of(assumption))?,
        Control::Call(external) => call::call(printer, depth, external)?,
        Control::Fail(why) => printer.refuse_if(depth, "1", &Failure::contradiction(why), ["0", "0", "0"]),
    }
    Ok(depth)
}

/// Prints a static arena and `run_static` or `run_stateful_static`, which uses it; both are compiled only with
/// `NAME_STATIC_ARENA`.
pub(super) fn static_arena(out: &mut String, program: &Program) {
    let prefix = &program.name;
    let upper = program.name.to_uppercase();
    let (run, states, given) = if program.state.is_some() {
        ("run_stateful", " void *const *states,\n    uint32_t n_states,", " states, n_states,")
    } else {
        ("run", "", "")
    };

    let _ = writeln!(
        out,
        "#ifdef {upper}_STATIC_ARENA\n\
         int32_t {prefix}_{run}_static(const void *const *inputs, void *const *outputs,{states} int64_t *dims,\n    \
             const symshape_exec *exec) {{\n    \
             static union {{\n        \
                 _Alignas(64) unsigned char bytes[{upper}_ARENA_MAX > 0 ? {upper}_ARENA_MAX : 1];\n        \
                 double number;\n    \
             }} arena;\n    \
             return {prefix}_{run}(inputs, outputs,{given} dims, arena.bytes, exec);\n}}\n#endif"
    );
}
