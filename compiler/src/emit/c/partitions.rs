//! Partitions in C: a function and a cost for each, the table, `begin`, `arena_slice`, and the one driver that reads the
//! table.
//!
//! Partitions that run at once run in waves. One call of the host's `parallel_for` runs all partitions that are ready.

use super::{
    super::template::named,
    contract::Checks,
    driver::{self, begin, end},
    frame,
    kernels::KernelCall,
    names::{self, SymbolNames},
    text::identifiers,
};
use crate::{
    error::Result,
    kernel::{
        Partition, Policies, Program, contract::Failure, cost, dependences::Footprint, partition::stages,
    },
    plan::Plan,
};
use std::fmt::Write;
use symshape::{Dim, Node};

/// Functions that run partitions at once.
const AT_ONCE: &str = include_str!("at_once.c");

/// Prints everything from the frame to `run`.
pub(super) fn all(
    out: &mut String,
    program: &Program,
    plan: &Plan,
    names: &SymbolNames,
    calls: &[Option<KernelCall>],
) -> Result<()> {
    let prefix = &program.name;
    out.push_str(&frame::definition(program));
    for (number, partition) in program.partitions.iter().enumerate() {
        function(out, program, plan, names, calls, number)?;
        cost_function(out, program, names, number, partition)?;
    }
    table(out, program);
    begin_function(out, program, names)?;
    arena_slice(out, program, plan, names)?;
    if program.policies == Policies::Any {
        out.push_str(&named(AT_ONCE, prefix));
    }
    run(out, program, names)
}

/// The function of a partition, and the wrapper that the table points to.
fn function(
    out: &mut String,
    program: &Program,
    plan: &Plan,
    names: &SymbolNames,
    calls: &[Option<KernelCall>],
    number: usize,
) -> Result<()> {
    // The error objects of a partition have names with its number.
    let mut checks = Checks::new(program, names, format!("stopped_{number}"));
    driver::steps(&mut checks, program.partitions[number].kernels.clone(), calls)?;
    checks.line(1, "return SYMSHAPE_OK;");
    let body = driver::with_definitions(&checks, plan, "")?;
    let mut head = String::new();
    for name in ["inputs", "outputs", "dims", "arena", "exec"] {
        if identifiers(&body).any(|word| word == name) || name == "dims" {
            let ty = match name {
                "inputs" => "const void *const *const ",
                "outputs" => "void *const *const ",
                "dims" => "int64_t *const ",
                "arena" => "void *const ",
                _ => "const symshape_exec *const ",
            };
            let _ = writeln!(head, "    {ty}{name} = call->{name};");
        }
    }
    if !identifiers(&body).any(|word| word == "error") {
        head.push_str("    (void)error;\n");
    }
    head.push_str(&driver::read_dims(program, names, &body));
    head.push_str(&driver::read_data_dependent(program, names, &body, number));
    let prefix = &program.name;
    let _ = writeln!(
        out,
        "{}static int32_t body_{number}(const struct {prefix}_call *call, symshape_error *error) {{\n{head}{body}}}\n\n\
         static int32_t partition_{number}(void *frame) {{\n    symshape_error error = {{0}};\n    \
         return ended(frame, body_{number}(frame, &error), &error);\n}}\n",
        checks.objects
    );
    Ok(())
}

/// The estimated work, in floating point: no size makes it overflow.
fn cost_function(
    out: &mut String,
    program: &Program,
    names: &SymbolNames,
    number: usize,
    partition: &Partition,
) -> Result<()> {
    let checks = Checks::new(program, names, "unused".into());
    let value = float(&checks, &work(program, partition))?;
    let body = format!(
        "    const double work = {value};\n    return work < 4e15 ? (int64_t)work : 4000000000000000;\n"
    );
    let head = driver::read_dims(program, names, &body);
    let _ = writeln!(
        out,
        "static int64_t cost_{number}(const int64_t *dims, uint32_t threads) {{\n    (void)threads;\n{head}{body}}}\n"
    );
    Ok(())
}

fn work(program: &Program, partition: &Partition) -> Dim {
    let work = program.kernels[partition.kernels.clone()].iter().map(|kernel| cost::of(program, kernel));
    program.facts.simplify(&Dim::sum(work))
}

/// An estimate of an expression as a `double`. Quotients are not rounded; a remainder counts as its divisor.
fn float(checks: &Checks, dim: &Dim) -> Result<String> {
    let list = |list: &[Dim], [before, between, after]: [&str; 3]| -> Result<String> {
        let terms = list.iter().map(|dim| float(checks, dim)).collect::<Result<Vec<_>>>()?;
        let joined = terms.into_iter().reduce(|a, b| format!("{before}{a}{between}{b}{after}"));
        Ok(joined.unwrap_or_else(|| "0.0".into()))
    };
    Ok(match dim.node() {
        Node::Int(value) => format!("{value}.0"),
        Node::Symbol(symbol) => format!("(double){}", checks.symbol(symbol)?),
        Node::Add(terms) => list(terms, ["(", " + ", ")"])?,
        Node::Mul(factors) => list(factors, ["", " * ", ""])?,
        Node::Min(all) => list(all, ["min_f64(", ", ", ")"])?,
        Node::Max(all) => list(all, ["max_f64(", ", ", ")"])?,
        Node::FloorDiv(a, b) => format!("({} / ({}))", float(checks, a)?, float(checks, b)?),
        Node::Mod(_, b) => float(checks, b)?,
    })
}

fn table(out: &mut String, program: &Program) {
    let stages = stages(&program.partitions);
    let mut entries = String::new();
    for (number, partition) in program.partitions.iter().enumerate() {
        let uses = Footprint::of(program, partition.kernels.clone());
        let symbols = program.symbols.iter().enumerate().filter(|(_, symbol)| uses.reads().contains(*symbol));
        let symbols: Vec<String> = symbols.map(|(idx, _)| idx.to_string()).collect();
        let after: Vec<String> = partition.after.iter().map(usize::to_string).collect();
        let [after_name, symbols_name] = [("after", &after), ("symbols", &symbols)].map(|(what, list)| {
            if list.is_empty() {
                return "NULL".to_string();
            }
            let name = format!("{what}_{number}");
            let _ = writeln!(out, "static const uint32_t {name}[] = {{{}}};", list.join(", "));
            name
        });
        let [name, target, formula] =
            [&partition.name, &partition.target, &work(program, partition).to_string()]
                .map(|text| names::string(text));
        let _ = writeln!(
            entries,
            "    {{{name}, {target}, partition_{number}, cost_{number},\n     {formula},\n     \
             {after_name}, {symbols_name}, {}, {}, {}, 0}},",
            after.len(),
            symbols.len(),
            stages[number]
        );
    }
    let (prefix, upper) = (&program.name, program.name.to_uppercase());
    let _ = writeln!(
        out,
        "\nconst symshape_partition {prefix}_partitions[{upper}_N_PARTITIONS] = {{\n{entries}}};\n"
    );
}

fn begin_function(out: &mut String, program: &Program, names: &SymbolNames) -> Result<()> {
    let mut checks = Checks::new(program, names, "stopped".into());
    driver::guards(&mut checks)?;
    for name in ["inputs", "outputs", "dims", "arena", "exec"] {
        checks.line(1, &format!("call->{name} = {name};"));
    }
    checks.line(1, "call->error = exec != NULL ? exec->error : NULL;");
    checks.line(1, "atomic_flag_clear(&call->has_failed);");
    checks.line(1, "call->code = 0;");
    let upper = program.name.to_uppercase();
    checks.line(1, &format!("for (uint32_t i = 0; i < {upper}_N_PARTITIONS; i++) call->is_done[i] = 0;"));
    checks.line(1, "return SYMSHAPE_OK;");
    let prefix = &program.name;
    let head = format!(
        "    struct {prefix}_call *const call = frame;\n{}{}",
        driver::error_of(&checks.body),
        driver::read_dims(program, names, &checks.body)
    );
    let _ = writeln!(
        out,
        "{}int32_t {prefix}_begin(const void *const *inputs, void *const *outputs, int64_t *dims, void *arena,\n    \
         const symshape_exec *exec, void *frame) {{\n{head}{}}}\n",
        checks.objects, checks.body
    );
    Ok(())
}

fn arena_slice(out: &mut String, program: &Program, plan: &Plan, names: &SymbolNames) -> Result<()> {
    let mut checks = Checks::new(program, names, "unused".into());
    checks.line(1, "switch (partition) {");
    for (number, partition) in program.partitions.iter().enumerate() {
        let uses = Footprint::of(program, partition.kernels.clone());
        let planned: Vec<_> = uses.buffers().filter(|id| program.buffers[*id].space.is_planned()).collect();
        let of = |name: &dyn Fn(&crate::kernel::BufferId) -> String, join: &str| {
            let places = planned.iter().map(name);
            places.reduce(|a, b| format!("{join}({a}, {b})")).unwrap_or_else(|| "0".into())
        };
        let (low, high) = (of(&|id| begin(*id), "min_i64"), of(&|id| end(*id), "max_i64"));
        checks.line(1, &format!("case {number}:"));
        checks.line(2, &format!("slice[0] = (size_t)({low});"));
        checks.line(2, &format!("slice[1] = (size_t)({high});"));
        checks.line(2, "return SYMSHAPE_OK;");
    }
    checks.line(1, "default:");
    checks.line(2, "return SYMSHAPE_OUT_OF_RANGE;");
    checks.line(1, "}");
    let body = driver::with_definitions(&checks, plan, "")?;
    let head = driver::read_dims(program, names, &body);
    let prefix = &program.name;
    let _ = writeln!(
        out,
        "int32_t {prefix}_arena_slice(uint32_t partition, const int64_t *dims, size_t *slice) {{\n{head}{body}}}\n"
    );
    Ok(())
}

/// The driver: stage by stage, one partition after another or, where memory is planned for it, at once.
fn run(out: &mut String, program: &Program, names: &SymbolNames) -> Result<()> {
    let mut checks = Checks::new(program, names, "refused_at_once".into());
    let (prefix, upper) = (&program.name, program.name.to_uppercase());
    let at_once = match program.policies {
        Policies::Any => {
            "if (is_at_once(&call, first, last)) code = run_at_once(&call, first, last);\n        else "
        }
        Policies::Serial => {
            let wrong = "exec != NULL && exec->policy == SYMSHAPE_PARALLEL";
            checks.refuse(1, wrong, &Failure::not_planned(), ["0", "0", "0"]);
            ""
        }
    };
    let head = driver::error_of(&checks.body);
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
        checks.objects, checks.body
    );
    Ok(())
}
