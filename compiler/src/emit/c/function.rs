//! A C function under construction: its body, its guards, and the constants before it.

use super::{
    context::SourceContext,
    dims,
    names::{self, SymbolNames},
    text::identifiers,
    variables,
};
use crate::{
    error::{Error, Result},
    kernel::{
        Program,
        contract::{Condition, DeclaredSymbol, Failure, RelationGuard},
    },
};
use std::{collections::BTreeSet, fmt::Write};
use symshape::{Comparison, Dim, Symbol};

/// Prints the body of a function that runs outside of kernels.
pub(super) struct FunctionPrinter<'c> {
    pub(super) cx: &'c SourceContext<'c>,
    pub(super) body: String,
    /// Static constants to print before the function.
    pub(super) constants: String,
    /// Prefix of the names of these constants; unique in the file.
    prefix: String,
    n_constants: usize,
}

impl<'c> FunctionPrinter<'c> {
    pub(super) fn new(cx: &'c SourceContext<'c>, prefix: impl Into<String>) -> FunctionPrinter<'c> {
        let prefix = prefix.into();
        FunctionPrinter { cx, body: String::new(), constants: String::new(), prefix, n_constants: 0 }
    }

    pub(super) fn program(&self) -> &'c Program {
        self.cx.program
    }

    pub(super) fn line(&mut self, depth: usize, text: &str) {
        let _ = writeln!(self.body, "{:1$}{text}", "", 4 * depth);
    }

    pub(super) fn dim(&self, dim: &Dim) -> Result<String> {
        dims::term(&self.cx.names, &self.program().facts, dim)
    }

    pub(super) fn symbol(&self, symbol: &Symbol) -> Result<&'c str> {
        let name = self.cx.names.symbol(symbol);
        name.ok_or_else(|| Error::internal(format!("unknown symbol {symbol}")))
    }

    /// A name for a constant before the function.
    pub(super) fn fresh_constant(&mut self, kind: &str) -> String {
        self.n_constants += 1;
        format!("{}_{kind}_{}", self.prefix, self.n_constants - 1)
    }

    /// Returns from the function with `failure` if the condition `bad` holds. `value`, `lo` and `hi` are C expressions.
    pub(super) fn refuse_if(
        &mut self,
        depth: usize,
        bad: &str,
        failure: &Failure,
        [value, lo, hi]: [&str; 3],
    ) {
        let name = format!("{}_{}", self.prefix, self.n_constants);
        self.n_constants += 1;
        self.constants.push_str(&error_constant(&name, failure));
        self.line(depth, &format!("if ({bad}) return fail(error, &{name}, {value}, {lo}, {hi});"));
    }

    /// Guards the value of a symbol by its declaration.
    pub(super) fn symbol_guards(&mut self, declared: &DeclaredSymbol) -> Result<()> {
        let value = self.symbol(&declared.symbol)?;
        for guard in &declared.guards {
            let lo = guard.range.0.to_string();
            let hi = guard.range.1.to_string();

            let bad = match &guard.condition {
                Condition::InRange => format!("{value} < {lo} || {value} > {hi}"),
                Condition::OneOf(values) => {
                    let list: Vec<String> = values.iter().map(i64::to_string).collect();
                    let table = format!("{}_values_{}", self.prefix, self.n_constants);
                    let list = list.join(", ");
                    let _ = writeln!(self.constants, "static const int64_t {table}[] = {{{list}}};");
                    format!("!is_listed({value}, {table}, {})", values.len())
                }
                Condition::StepOf(step) => format!("({value} - {lo}) % {step} != 0"),
            };

            self.refuse_if(1, &bad, &guard.failure, [value, &lo, &hi]);
        }

        Ok(())
    }

    pub(super) fn relation_guard(&mut self, depth: usize, guard: &RelationGuard) -> Result<()> {
        let a = self.dim(&guard.relation.a)?;
        let b = self.dim(&guard.relation.b)?;

        let bad = match guard.relation.comparison {
            Comparison::Eq => format!("{a} != {b}"),
            Comparison::Ne => format!("{a} == {b}"),
            Comparison::Lt => format!("{a} >= {b}"),
            Comparison::Le => format!("{a} > {b}"),
            // `floor_mod` gives 0 for the divisor 0.
            Comparison::Divides => format!("floor_mod({b}, {a}) != 0"),
        };

        self.refuse_if(depth, &bad, &guard.failure, [&a, &b, &b]);
        Ok(())
    }

    /// `before`, then the definitions of the variables that the body uses, then the body.
    pub(super) fn with_variables(&self, before: &str) -> String {
        format!("{before}{}{}", variables::used_by(&self.cx.variables, &self.body), self.body)
    }
}

/// An error without the sizes of the call.
pub(super) fn error_constant(name: &str, failure: &Failure) -> String {
    let text = |text: &Option<String>| text.as_deref().map_or("NULL".into(), names::string);
    let tensor = failure.axis.map_or("UINT32_MAX".into(), |axis| axis.input.to_string());
    let axis = failure.axis.map_or(0, |axis| axis.axis);
    let symbol = failure.symbol.map_or("UINT32_MAX".into(), |symbol| symbol.to_string());
    format!(
        "static const symshape_error {name} = {{\n    {}, {tensor}, {axis}, {symbol}, 0, 0, 0,\n    {},\n    {},\n    {}\n}};\n\n",
        failure.code as i32,
        text(&failure.symbol_name),
        text(&failure.tensor_name),
        text(&failure.why),
    )
}

/// The definition of `error`, if the body uses it.
pub(super) fn error_variable(body: &str) -> &'static str {
    if uses(body, "error") {
        "    symshape_error unused;\n    symshape_error *const error = exec != NULL && exec->error != NULL ? exec->error : &unused;\n"
    } else {
        ""
    }
}

/// The lines that read the symbols that `body` uses from `dims`.
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

/// Whether `body` uses the identifier `name`.
pub(super) fn uses(body: &str, name: &str) -> bool {
    identifiers(body).any(|word| word == name)
}
