//! Products of a rounded left-hand side with weights of few bits, see `scalar/activations.rs`.
//!
//! The elements of a row are rounded again for each panel of columns, so the source needs no memory for them.

use super::kernel_printer::{ColumnNames, KernelPrinter};
use crate::{
    error::{Error, Result},
    kernel::{Axis, Contraction, FewBitsPanels, few_bits},
};
use symshape::Dim;

impl KernelPrinter<'_> {
    /// Prints the sums of some columns of one row.
    pub(super) fn multiply_rounded(
        &mut self,
        contraction: &Contraction,
        panels: &FewBitsPanels,
        ColumnNames { first, end, sums }: &ColumnNames,
    ) -> Result<()> {
        let place = panels.place(contraction)?;
        let depth = contraction.depth().as_i64().ok_or_else(|| Error::internal("a depth of few bits"))?;
        let block = i64::from(panels.form.block);
        let n = self.symbol(&contraction.n)?;
        let width = few_bits::WIDTH;
        let [from, until, largest, dots] = ['k', 'k', 'x', 's'].map(|letter| self.fresh(letter));

        self.open(&format!("for (int64_t {from} = 0; {from} < {depth}; {from} += {block}) {{"));
        self.line(&format!("const int64_t {until} = min_i64({from} + {block}, {depth});"));
        self.line(&format!("int32_t {dots}[{width}] = {{0}};"));
        let inverse = self.largest_magnitude(contraction, &from, &until, &largest)?;

        let name = self.fresh('a');
        let code = self.fresh('q');
        self.over_indices(contraction, &from, &until, &mut |this| {
            this.load_lhs(contraction, &name)?;
            this.line(&format!("const int32_t {code} = rounded_code({name}, {inverse});"));
            this.open(&format!("for (int64_t {n} = {first}; {n} < {end}; {n}++) {{"));
            let integer = this.weight_integer(panels, &place)?;
            this.line(&format!("{dots}[{n} - {first}] += {code} * ({integer});"));
            this.close("}");
            Ok(())
        })?;

        // All elements of a block have the scale of the first.
        self.define_indices(contraction, &from)?;
        self.open(&format!("for (int64_t {n} = {first}; {n} < {end}; {n}++) {{"));
        let scale = self.weight_scale(panels, &place)?;
        self.line(&format!(
            "{sums}[{n} - {first}] += (float){dots}[{n} - {first}] * (block_scale({largest}) * {scale});"
        ));
        self.close("}");
        self.close("}");
        Ok(())
    }

    /// Prints the largest magnitude of the joint reduction indices from `from` to `until`, in a variable of this name,
    /// and its inverse, whose name is returned.
    pub(super) fn largest_magnitude(
        &mut self,
        contraction: &Contraction,
        from: &str,
        until: &str,
        largest: &str,
    ) -> Result<String> {
        self.line(&format!("int32_t {largest} = 0;"));
        let name = self.fresh('a');
        self.over_indices(contraction, from, until, &mut |this| {
            this.load_lhs(contraction, &name)?;
            this.line(&format!("{largest} = max_magnitude({largest}, {name});"));
            Ok(())
        })?;
        let inverse = self.fresh('x');
        self.line(&format!("const float {inverse} = block_inverse({largest});"));
        Ok(inverse)
    }

    /// Prints a loop over joint reduction indices.
    pub(super) fn over_indices(
        &mut self,
        contraction: &Contraction,
        from: &str,
        until: &str,
        body: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let joint = self.fresh('k');
        self.open(&format!("for (int64_t {joint} = {from}; {joint} < {until}; {joint}++) {{"));
        let outside = self.facts.clone();
        self.define_indices(contraction, &joint)?;
        body(self)?;
        self.facts = outside;
        self.close("}");
        Ok(())
    }

    /// Defines the reduction variables by their joint index.
    pub(super) fn define_indices(&mut self, contraction: &Contraction, joint: &str) -> Result<()> {
        let mut stride = Dim::one();
        for (position, axis) in contraction.k.iter().enumerate().rev() {
            let Axis { var, extent } = axis;
            let name = self.symbol(axis)?;
            let step = self.dim(&stride)?;
            let value = match (position, stride.as_i64()) {
                (0, Some(1)) => joint.to_string(),
                (0, _) => format!("{joint} / ({step})"),
                _ => format!("{joint} / ({step}) % ({})", self.dim(extent)?),
            };
            self.line(&format!("const int64_t {name} = {value};"));
            self.facts.declare_index(var, extent);
            stride = stride * extent;
        }
        Ok(())
    }
}
