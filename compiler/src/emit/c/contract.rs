//! The function `check` in C, from the [call contract](crate::kernel::contract).

use super::{
    context::SourceContext,
    function::{FunctionPrinter, uses},
};
use crate::{
    error::Result,
    kernel::contract::{Failure, InputAxis, SymbolBinding, ValueSource},
};
use std::fmt::Write;
use symshape::Dim;

/// Prints `check`.
pub(super) fn check(out: &mut String, cx: &SourceContext) -> Result<()> {
    let mut printer = FunctionPrinter::new(cx, "refused");
    for binding in &cx.call_contract.bindings {
        bind_symbol(&mut printer, binding)?;
    }
    for guard in &cx.call_contract.axes {
        let size = axis_size(&guard.axis);
        let expected = printer.dim(&guard.dim)?;
        let bad = format!("{size} != {expected}");
        printer.refuse_if(1, &bad, &guard.failure, [&size, &expected, &expected]);
    }
    for guard in &cx.call_contract.relations {
        printer.relation_guard(1, guard)?;
    }

    let program = cx.program;
    for (idx, symbol) in program.symbols.iter().enumerate() {
        let name = printer.symbol(symbol)?;
        printer.line(1, &format!("dims[{idx}] = {name};"));
    }
    for idx in 0..program.data_dependent.len() {
        printer.line(1, &format!("dims[{}] = INT64_MIN;", program.symbols.len() + idx));
    }

    let mut head = String::new();
    for name in ["input_shapes", "dims", "error"] {
        if !uses(&printer.body, name) {
            let _ = writeln!(head, "    (void){name};");
        }
    }
    if uses(&printer.body, "error") {
        head.push_str("    symshape_error unused;\n    if (error == NULL) error = &unused;\n");
    }

    let _ = writeln!(
        out,
        "{}int32_t {}_check(const int64_t *const *input_shapes, int64_t *dims, symshape_error *error) {{\n{head}{}    return 0;\n}}\n",
        printer.constants, program.name, printer.body
    );
    Ok(())
}

/// The size of an axis in the arguments of `check`.
fn axis_size(axis: &InputAxis) -> String {
    format!("input_shapes[{}][{}]", axis.input, axis.axis)
}

/// Defines the variable of a symbol, and guards its value.
fn bind_symbol(printer: &mut FunctionPrinter, binding: &SymbolBinding) -> Result<()> {
    let name = printer.symbol(&binding.declared.symbol)?;
    match &binding.source {
        ValueSource::Fixed(value) => printer.line(1, &format!("const int64_t {name} = {value};")),
        ValueSource::Axis { axis, coefficient, rest, if_zero, inexact } => {
            let equation = LinearEquation { size: &axis_size(axis), coefficient, rest, if_zero: *if_zero };
            equation.solve(printer, name, inexact)?;
        }
    }
    printer.symbol_guards(&binding.declared)
}

/// The equation `size = coefficient * symbol + rest`; the symbol is `if_zero` where the coefficient is zero.
struct LinearEquation<'a> {
    size: &'a str,
    coefficient: &'a Dim,
    rest: &'a Dim,
    if_zero: Option<i64>,
}

impl LinearEquation<'_> {
    /// Defines the variable `name` as the solution; refuses the call with `inexact` if no integer solves the equation.
    fn solve(&self, printer: &mut FunctionPrinter, name: &str, inexact: &Failure) -> Result<()> {
        let size = self.size;
        let difference = if self.rest.as_i64() == Some(0) {
            size.to_string()
        } else {
            format!("{size} - ({})", printer.dim(self.rest)?)
        };
        if self.coefficient.as_i64() == Some(1) {
            printer.line(1, &format!("const int64_t {name} = {difference};"));
            return Ok(());
        }

        let by = printer.dim(self.coefficient)?;
        let if_zero = self.if_zero.unwrap_or(0);
        let quotient = format!("({by}) == 0 ? {if_zero} : ({difference}) / ({by})");
        printer.line(1, &format!("const int64_t {name} = {quotient};"));

        let bad = format!("({by}) == 0 ? ({difference}) != 0 : ({difference}) % ({by}) != 0");
        let rest = printer.dim(self.rest)?;
        let nearest = format!("({difference}) / (({by}) == 0 ? 1 : ({by})) * ({by}) + ({rest})");
        printer.refuse_if(1, &bad, inexact, [size, &nearest, &nearest]);
        Ok(())
    }
}
