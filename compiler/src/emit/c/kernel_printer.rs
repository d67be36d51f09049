//! A kernel's C function under construction: its lines, names and expressions.

use super::{
    context::SourceContext,
    dims,
    names::{self, SymbolNames},
};
use crate::{
    error::{Error, Result},
    kernel::{Access, Axis, Kernel, Program},
};
use std::fmt::Write;
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// The C names of the columns that are computed at once: the first column, the end, and the array of their sums.
pub(super) struct ColumnNames {
    pub(super) first: String,
    pub(super) end: String,
    pub(super) sums: String,
}

/// Prints the function of one kernel.
pub(super) struct KernelPrinter<'p> {
    pub(super) program: &'p Program,
    pub(super) names: &'p SymbolNames,
    pub(super) kernel: &'p Kernel,
    /// Whether contractions are tiles of vectors.
    pub(super) vectors: bool,
    pub(super) facts: Facts,
    /// The statements of the function.
    pub(super) body: String,
    pub(super) depth: usize,
    /// Number of fresh names so far.
    n_names: u32,
    /// The errors that the kernel may return, as constants to print before the function.
    pub(super) error_constants: String,
    /// Number of error constants so far, in this kernel and the earlier ones.
    pub(super) n_errors: usize,
    pub(super) can_fail: bool,
}

impl<'p> KernelPrinter<'p> {
    pub(super) fn new(cx: &'p SourceContext<'p>, kernel: &'p Kernel, n_errors: usize) -> KernelPrinter<'p> {
        KernelPrinter {
            program: cx.program,
            names: &cx.names,
            kernel,
            vectors: cx.vectors,
            facts: cx.program.facts.clone(),
            body: String::new(),
            depth: 1,
            n_names: 0,
            error_constants: String::new(),
            n_errors,
            can_fail: false,
        }
    }

    pub(super) fn line(&mut self, text: &str) {
        let _ = writeln!(self.body, "{:1$}{text}", "", 4 * self.depth);
    }

    pub(super) fn dim(&self, dim: &Dim) -> Result<String> {
        dims::term(self.names, &self.facts, dim)
    }

    pub(super) fn symbol(&self, axis: &Axis) -> Result<String> {
        let name = self.names.symbol(&axis.var);
        name.map(str::to_string).ok_or_else(|| Error::internal(format!("unknown symbol {}", axis.var)))
    }

    pub(super) fn fresh(&mut self, letter: char) -> String {
        self.n_names += 1;
        format!("{letter}{}", self.n_names)
    }

    pub(super) fn element(&self, access: &Access) -> Result<String> {
        Ok(format!("{}[{}]", names::buffer(self.program, access.buffer), self.dim(&access.index)?))
    }

    pub(super) fn dtype(&self, access: &Access) -> DType {
        self.program.buffers[access.buffer].dtype
    }

    /// Prints a loop over an axis around the lines that `body` prints.
    pub(super) fn loop_over(
        &mut self,
        axis: &Axis,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let var = self.symbol(axis)?;
        let extent = self.dim(&axis.extent)?;
        self.open(&format!("for (int64_t {var} = 0; {var} < {extent}; {var}++) {{"));
        let outside = self.facts.clone();
        self.facts.declare_index(&axis.var, &axis.extent);
        body(self)?;
        self.facts = outside;
        self.close("}");
        Ok(())
    }

    /// Prints nested loops, the first axis outermost, around the lines that `body` prints.
    pub(super) fn nested_loops(
        &mut self,
        axes: &[Axis],
        body: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        match axes.split_first() {
            None => body(self),
            Some((axis, rest)) => self.loop_over(axis, |this| this.nested_loops(rest, body)),
        }
    }

    pub(super) fn open(&mut self, line: &str) {
        self.line(line);
        self.depth += 1;
    }

    pub(super) fn close(&mut self, line: &str) {
        self.depth -= 1;
        self.line(line);
    }
}
