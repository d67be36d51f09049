//! Partitions in C: a function and a cost for each, the table, `begin`, `arena_slice`, and the one driver that reads
//! the table.
//!
//! Partitions that run at once run in waves. One call of the host's `parallel_for` runs all partitions that are ready.

use super::{
    context::SourceContext,
    driver, frame,
    function::{FunctionPrinter, error_variable, read_dims, uses},
    kernels::KernelCall,
    names,
    text::identifiers,
    variables::{begin, end},
};
use crate::{
    emit::template::named,
    error::Result,
    kernel::{
        BufferId, Control, Kernel, Partition, Policies, Program, contract::Failure, cost,
        dependences::Footprint, partition::stages,
    },
};
use std::{collections::BTreeSet, fmt::Write};
use symshape::{Dim, Node};

/// Functions that run partitions at once.
const AT_ONCE: &str = include_str!("at_once.c");

/// Prints everything from the frame to `run`.
pub(super) fn all(out: &mut String, cx: &SourceContext, calls: &[Option<KernelCall>]) -> Result<()> {
    let program = cx.program;
    out.push_str(&frame::definition(program));

    for (number, partition) in program.partitions.iter().enumerate() {
        function(out, cx, calls, number)?;
        cost_function(out, cx, number, partition)?;
    }

    table(out, program);
    begin_function(out, cx)?;
    arena_slice(out, cx)?;

    if program.policies == Policies::Any {
        out.push_str(&named(AT_ONCE, &program.name));
    }

    run(out, cx);
    Ok(())
}

/// Prints the function of a partition, and the wrapper that the table points to.
fn function(out: &mut String, cx: &SourceContext, calls: &[Option<KernelCall>], number: usize) -> Result<()> {
    let program = cx.program;
    let mut printer = FunctionPrinter::new(cx, format!("stopped_{number}"));
    driver::steps(&mut printer, program.partitions[number].kernels.clone(), calls)?;
    printer.line(1, "return SYMSHAPE_OK;");

    let body = printer.with_variables("");
    let mut head = String::new();
    for (name, ty) in [
        ("inputs", "const void *const *const "),
        ("outputs", "void *const *const "),
        ("dims", "int64_t *const "),
        ("arena", "void *const "),
        ("exec", "const symshape_exec *const "),
    ] {
        if name == "dims" || uses(&body, name) {
            let _ = writeln!(head, "    {ty}{name} = call->{name};");
        }
    }
    if !uses(&body, "error") {
        head.push_str("    (void)error;\n");
    }
    head.push_str(&read_dims(program, &cx.names, &body));
    head.push_str(&read_data_dependent(cx, &body, number));

    let prefix = &program.name;
    let _ = writeln!(
        out,
        "{}static int32_t body_{number}(const struct {prefix}_call *call, symshape_error *error) {{\n{head}{body}}}\n\n\
         static int32_t partition_{number}(void *frame) {{\n    symshape_error error = {{0}};\n    \
         return ended(frame, body_{number}(frame, &error), &error);\n}}\n",
        printer.constants
    );
    Ok(())
}

/// The lines that declare data-dependent symbols. Symbols that this partition binds become variables; the others are
/// read from `dims`.
fn read_data_dependent(cx: &SourceContext, body: &str, partition: usize) -> String {
    let program = cx.program;
    let kernels = &program.kernels[program.partitions[partition].kernels.clone()];
    let used: BTreeSet<&str> = identifiers(body).collect();

    let mut lines = String::new();
    for (idx, entry) in program.data_dependent.iter().enumerate() {
        let Some(name) = cx.names.symbol(&entry.symbol).filter(|name| used.contains(name)) else { continue };
        let binds = |kernel: &Kernel| matches!(&kernel.control, Some(Control::Bind { symbol, .. }) if *symbol == entry.symbol);
        let _ = if kernels.iter().any(binds) {
            writeln!(lines, "    int64_t {name} = 0;")
        } else {
            writeln!(lines, "    const int64_t {name} = dims[{}];", program.symbols.len() + idx)
        };
    }
    lines
}

/// Prints the function that estimates the work of a partition. It computes in floating point, so that no size makes it
/// overflow.
fn cost_function(out: &mut String, cx: &SourceContext, number: usize, partition: &Partition) -> Result<()> {
    let printer = FunctionPrinter::new(cx, "unused");
    let work = as_double(&printer, &work(cx.program, partition))?;
    let body = format!(
        "    const double work = {work};\n    return work < 4e15 ? (int64_t)work : 4000000000000000;\n"
    );

    let head = read_dims(cx.program, &cx.names, &body);
    let _ = writeln!(
        out,
        "static int64_t cost_{number}(const int64_t *dims, uint32_t threads) {{\n    (void)threads;\n{head}{body}}}\n"
    );
    Ok(())
}

/// The estimated work of a partition on one thread.
fn work(program: &Program, partition: &Partition) -> Dim {
    let work = program.kernels[partition.kernels.clone()].iter().map(|kernel| cost::of(program, kernel));
    program.facts.simplify(&Dim::sum(work))
}

/// An estimate of a dim as a C expression of type `double`. Quotients are not rounded; a remainder counts as its
/// divisor.
fn as_double(printer: &FunctionPrinter, dim: &Dim) -> Result<String> {
    let join = |operands: &[Dim], open: &str, between: &str, close: &str| -> Result<String> {
        let operands = operands.iter().map(|dim| as_double(printer, dim)).collect::<Result<Vec<_>>>()?;
        let joined = operands.into_iter().reduce(|a, b| format!("{open}{a}{between}{b}{close}"));
        Ok(joined.unwrap_or_else(|| "0.0".into()))
    };
    Ok(match dim.node() {
        Node::Int(value) => format!("{value}.0"),
        Node::Symbol(symbol) => format!("(double){}", printer.symbol(symbol)?),
        Node::Add(terms) => join(terms, "(", " + ", ")")?,
        Node::Mul(factors) => join(factors, "", " * ", "")?,
        Node::Min(operands) => join(operands, "min_f64(", ", ", ")")?,
        Node::Max(operands) => join(operands, "max_f64(", ", ", ")")?,
        Node::FloorDiv(a, b) => format!("({} / ({}))", as_double(printer, a)?, as_double(printer, b)?),
        Node::Mod(_, b) => as_double(printer, b)?,
    })
}

/// Prints the partition table.
fn table(out: &mut String, program: &Program) {
    let stages = stages(&program.partitions);
    let mut entries = String::new();
    for (number, partition) in program.partitions.iter().enumerate() {
        let footprint = Footprint::of(program, partition.kernels.clone());
        let is_read = |(_, symbol): &(usize, &_)| footprint.reads().contains(*symbol);
        let symbols = program.symbols.iter().enumerate().filter(is_read);
        let symbols: Vec<String> = symbols.map(|(idx, _)| idx.to_string()).collect();
        let after: Vec<String> = partition.after.iter().map(usize::to_string).collect();
        let after_name = index_list(out, &format!("after_{number}"), &after);
        let symbols_name = index_list(out, &format!("symbols_{number}"), &symbols);

        let name = names::string(&partition.name);
        let target = names::string(&partition.target);
        let formula = names::string(&work(program, partition).to_string());
        let _ = writeln!(
            entries,
            "    {{{name}, {target}, partition_{number}, cost_{number},\n     {formula},\n     \
             {after_name}, {symbols_name}, {}, {}, {}, {}}},",
            after.len(),
            symbols.len(),
            stages[number],
            program.at_once(&partition.target)
        );
    }

    let prefix = &program.name;
    let upper = program.name.to_uppercase();
    let _ = writeln!(
        out,
        "\nconst symshape_partition {prefix}_partitions[{upper}_N_PARTITIONS] = {{\n{entries}}};\n"
    );
}

/// Prints a list of indices; returns the expression that refers to it.
fn index_list(out: &mut String, name: &str, indices: &[String]) -> String {
    if indices.is_empty() {
        return "NULL".into();
    }
    let _ = writeln!(out, "static const uint32_t {name}[] = {{{}}};", indices.join(", "));
    name.into()
}

/// Prints `begin`.
fn begin_function(out: &mut String, cx: &SourceContext) -> Result<()> {
    let prefix = &cx.program.name;
    let upper = prefix.to_uppercase();
    let mut printer = FunctionPrinter::new(cx, "stopped");
    driver::guards(&mut printer)?;
    for name in ["inputs", "outputs", "dims", "arena", "exec"] {
        printer.line(1, &format!("call->{name} = {name};"));
    }
    printer.line(1, "call->error = exec != NULL ? exec->error : NULL;");
    printer.line(1, "atomic_flag_clear(&call->has_failed);");
    printer.line(1, "call->code = 0;");
    printer.line(1, &format!("for (uint32_t i = 0; i < {upper}_N_PARTITIONS; i++) call->is_done[i] = 0;"));
    printer.line(1, "return SYMSHAPE_OK;");

    let head = format!(
        "    struct {prefix}_call *const call = frame;\n{}{}",
        error_variable(&printer.body),
        read_dims(cx.program, &cx.names, &printer.body)
    );
    let _ = writeln!(
        out,
        "{}int32_t {prefix}_begin(const void *const *inputs, void *const *outputs, int64_t *dims, void *arena,\n    \
         const symshape_exec *exec, void *frame) {{\n{head}{}}}\n",
        printer.constants, printer.body
    );
    Ok(())
}

/// Prints `arena_slice`.
fn arena_slice(out: &mut String, cx: &SourceContext) -> Result<()> {
    let program = cx.program;
    let mut printer = FunctionPrinter::new(cx, "unused");
    printer.line(1, "switch (partition) {");
    for (number, partition) in program.partitions.iter().enumerate() {
        let footprint = Footprint::of(program, partition.kernels.clone());
        let is_planned = |buffer: &BufferId| program.buffers[*buffer].space.is_planned();
        let planned: Vec<BufferId> = footprint.buffers().filter(is_planned).collect();

        let join = |offset: fn(BufferId) -> String, function: &str| {
            let offsets = planned.iter().map(|buffer| offset(*buffer));
            offsets.reduce(|a, b| format!("{function}({a}, {b})")).unwrap_or_else(|| "0".into())
        };

        let low = join(begin, "min_i64");
        let high = join(end, "max_i64");
        printer.line(1, &format!("case {number}:"));
        printer.line(2, &format!("slice[0] = (size_t)({low});"));
        printer.line(2, &format!("slice[1] = (size_t)({high});"));
        printer.line(2, "return SYMSHAPE_OK;");
    }
    printer.line(1, "default:");
    printer.line(2, "return SYMSHAPE_OUT_OF_RANGE;");
    printer.line(1, "}");

    let body = printer.with_variables("");
    let head = read_dims(program, &cx.names, &body);
    let prefix = &program.name;
    let _ = writeln!(
        out,
        "int32_t {prefix}_arena_slice(uint32_t partition, const int64_t *dims, size_t *slice) {{\n{head}{body}}}\n"
    );
    Ok(())
}

/// Prints the driver. It goes stage by stage; it runs the partitions of a stage one after another or, if the arena is
/// planned for it, at once.
fn run(out: &mut String, cx: &SourceContext) {
    let program = cx.program;
    let prefix = &program.name;
    let upper = program.name.to_uppercase();
    let mut printer = FunctionPrinter::new(cx, "refused_at_once");
    let at_once = match program.policies {
        Policies::Any => {
            "if (is_at_once(&call, first, last)) code = run_at_once(&call, first, last);\n        else "
        }
        Policies::Serial => {
            let bad = "exec != NULL && exec->policy == SYMSHAPE_PARALLEL";
            printer.refuse_if(1, bad, &Failure::not_planned(), ["0", "0", "0"]);
            ""
        }
    };

    let head = error_variable(&printer.body);
    let _ = writeln!(
        out,
        "{}int32_t {prefix}_run(const void *const *inputs, void *const *outputs, int64_t *dims, void *arena,\n    \
         const symshape_exec *exec) {{\n    struct {prefix}_call call;\n{head}{}    \
         int32_t code = {prefix}_begin(inputs, outputs, dims, arena, exec, &call);\n    \
         for (uint32_t first = 0, last; first < {upper}_N_PARTITIONS && code == 0; first = last) {{\n        \
         last = first + 1;\n        \
         while (last < {upper}_N_PARTITIONS && {prefix}_partitions[last].stage == {prefix}_partitions[first].stage) last++;\n        \
         {at_once}for (uint32_t i = first; i < last && code == 0; i++) code = {prefix}_partitions[i].run(&call);\n    \
         }}\n    return code;\n}}\n",
        printer.constants, printer.body
    );
}
