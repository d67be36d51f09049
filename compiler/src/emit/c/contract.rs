//! `check` and the errors in C, from the steps of [`crate::kernel::contract`].

use super::{
    dims,
    names::{self, SymbolNames},
    text::identifiers,
};
use crate::{
    error::{Error, Result},
    kernel::{
        Program,
        contract::{Condition, Contract, DeclaredSymbol, Failure, InputAxis, RelationGuard, ValueSource},
    },
};
use std::fmt::Write;
use symshape::{Comparison, Dim, Facts, Symbol};

/// Prints checks; each needs the error objects before the function.
pub(super) struct Checks<'p> {
    pub(super) program: &'p Program,
    pub(super) names: &'p SymbolNames,
    pub(super) facts: Facts,
    /// The function's body.
    pub(super) body: String,
    /// The objects that go before it.
    pub(super) objects: String,
    /// What their names begin with.
    prefix: String,
    count: usize,
}

impl<'p> Checks<'p> {
    pub(super) fn new(program: &'p Program, names: &'p SymbolNames, prefix: String) -> Checks<'p> {
        let facts = program.facts.clone();
        Checks { program, names, facts, body: String::new(), objects: String::new(), prefix, count: 0 }
    }

    pub(super) fn line(&mut self, depth: usize, text: &str) {
        let _ = writeln!(self.body, "{:1$}{text}", "", 4 * depth);
    }

    pub(super) fn dim(&self, dim: &Dim) -> Result<String> {
        dims::term(self.names, &self.facts, dim)
    }

    pub(super) fn symbol(&self, symbol: &Symbol) -> Result<&'p str> {
        self.names.symbol(symbol).ok_or_else(|| Error::internal(format!("unknown symbol {symbol}")))
    }

    /// A name for an object before the function.
    pub(super) fn fresh(&mut self, what: &str) -> String {
        self.count += 1;
        format!("{}_{what}_{}", self.prefix, self.count - 1)
    }

    /// Leaves with the failure where `bad` holds.
    pub(super) fn refuse(&mut self, depth: usize, bad: &str, failure: &Failure, numbers: [&str; 3]) {
        let name = format!("{}_{}", self.prefix, self.count);
        self.count += 1;
        self.objects.push_str(&object(&name, failure));
        let [value, lo, hi] = numbers;
        self.line(depth, &format!("if ({bad}) return fail(error, &{name}, {value}, {lo}, {hi});"));
    }

    /// Holds a symbol against what is declared.
    pub(super) fn guards(&mut self, declared: &DeclaredSymbol) -> Result<()> {
        let value = self.symbol(&declared.symbol)?;
        for guard in &declared.guards {
            let (lo, hi) = (guard.range.0.to_string(), guard.range.1.to_string());
            let bad = match &guard.condition {
                Condition::InRange => format!("{value} < {lo} || {value} > {hi}"),
                Condition::OneOf(values) => {
                    let list: Vec<String> = values.iter().map(i64::to_string).collect();
                    let table = format!("{}_values_{}", self.prefix, self.count);
                    let _ =
                        writeln!(self.objects, "static const int64_t {table}[] = {{{}}};", list.join(", "));
                    format!("!is_listed({value}, {table}, {})", values.len())
                }
                Condition::StepOf(step) => format!("({value} - {lo}) % {step} != 0"),
            };
            self.refuse(1, &bad, &guard.failure, [value, &lo, &hi]);
        }
        Ok(())
    }

    pub(super) fn relation(&mut self, depth: usize, guard: &RelationGuard) -> Result<()> {
        let relation = &guard.relation;
        let (a, b) = (self.dim(&relation.a)?, self.dim(&relation.b)?);
        let bad = match relation.comparison {
            Comparison::Eq => format!("{a} != {b}"),
            Comparison::Ne => format!("{a} == {b}"),
            Comparison::Lt => format!("{a} >= {b}"),
            Comparison::Le => format!("{a} > {b}"),
            // What is divided by 0 has no remainder to speak of.
            Comparison::Divides => format!("floor_mod({b}, {a}) != 0"),
        };
        self.refuse(depth, &bad, &guard.failure, [&a, &b, &b]);
        Ok(())
    }
}

/// An error with everything but its numbers.
pub(super) fn object(name: &str, failure: &Failure) -> String {
    let text = |text: &Option<String>| text.as_deref().map_or("NULL".into(), names::string);
    let (tensor, axis) =
        failure.axis.map_or(("UINT32_MAX".into(), 0), |axis| (axis.input.to_string(), axis.axis));
    let symbol = failure.symbol.map_or("UINT32_MAX".into(), |symbol| symbol.to_string());
    format!(
        "static const symshape_error {name} = {{\n    {}, {tensor}, {axis}, {symbol}, 0, 0, 0,\n    {},\n    {},\n    {}\n}};\n\n",
        failure.code as i32,
        text(&failure.symbol_name),
        text(&failure.tensor_name),
        text(&failure.why),
    )
}

/// Prints `check`.
pub(super) fn check(out: &mut String, program: &Program, names: &SymbolNames) -> Result<()> {
    let Contract { bindings, axes, relations, .. } = Contract::of(program)?;
    let mut checks = Checks::new(program, names, "refused".into());
    let size_of = |axis: &InputAxis| format!("input_shapes[{}][{}]", axis.input, axis.axis);
    for binding in &bindings {
        let name = checks.symbol(&binding.declared.symbol)?;
        match &binding.source {
            ValueSource::Fixed(value) => checks.line(1, &format!("const int64_t {name} = {value};")),
            ValueSource::Axis { axis, coefficient, rest, if_zero, inexact } => {
                solve(&mut checks, name, &size_of(axis), [coefficient, rest], *if_zero, inexact)?;
            }
        }
        checks.guards(&binding.declared)?;
    }
    for guard in &axes {
        let (met, wanted) = (size_of(&guard.axis), checks.dim(&guard.dim)?);
        checks.refuse(1, &format!("{met} != {wanted}"), &guard.failure, [&met, &wanted, &wanted]);
    }
    for guard in &relations {
        checks.relation(1, guard)?;
    }
    for (idx, symbol) in program.symbols.iter().enumerate() {
        let name = checks.symbol(symbol)?;
        checks.line(1, &format!("dims[{idx}] = {name};"));
    }
    for idx in 0..program.data_dependent.len() {
        checks.line(1, &format!("dims[{}] = INT64_MIN;", program.symbols.len() + idx));
    }
    let unused =
        |name: &str| if identifiers(&checks.body).any(|word| word == name) { "" } else { "    (void)" };
    let mut head = String::new();
    for name in ["input_shapes", "dims", "error"] {
        let mark = unused(name);
        if !mark.is_empty() {
            let _ = writeln!(head, "{mark}{name};");
        }
    }
    if identifiers(&checks.body).any(|word| word == "error") {
        head.push_str("    symshape_error unseen;\n    if (error == NULL) error = &unseen;\n");
    }
    let _ = writeln!(
        out,
        "{}int32_t {}_check(const int64_t *const *input_shapes, int64_t *dims, symshape_error *error) {{\n{head}{}    return 0;\n}}\n",
        checks.objects, program.name, checks.body
    );
    Ok(())
}

/// Prints how a symbol follows from the size of an axis.
fn solve(
    checks: &mut Checks,
    name: &str,
    axis: &str,
    [coefficient, rest]: [&Dim; 2],
    free: Option<i64>,
    inexact: &Failure,
) -> Result<()> {
    let difference = match rest.as_i64() {
        Some(0) => axis.to_string(),
        _ => format!("{axis} - ({})", checks.dim(rest)?),
    };
    if coefficient.as_i64() == Some(1) {
        checks.line(1, &format!("const int64_t {name} = {difference};"));
        return Ok(());
    }
    let by = checks.dim(coefficient)?;
    let free = free.unwrap_or(0);
    checks.line(1, &format!("const int64_t {name} = ({by}) == 0 ? {free} : ({difference}) / ({by});"));
    let bad = format!("({by}) == 0 ? ({difference}) != 0 : ({difference}) % ({by}) != 0");
    let below = format!("({difference}) / (({by}) == 0 ? 1 : ({by})) * ({by}) + ({})", checks.dim(rest)?);
    checks.refuse(1, &bad, inexact, [axis, &below, &below]);
    Ok(())
}
