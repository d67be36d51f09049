//! Packs constant operands at compile time.

use super::{
    nest::{AxisClass, ContractionNest},
    panels::{PANEL_WIDTH, Panels},
};
use crate::{
    Error, Result,
    kernel::{Axis, Buffer, BufferId, MemorySpace, Rhs},
    lower::{
        lowering::{KernelScope, Lowering, node_name},
        nest::AxisRole,
        weights::PackedForm,
    },
    tensor::{ByContent, Tensor},
};
use symshape::Dim;

/// A constant right operand that is to be packed: the offsets of its elements by batch, column and reduction point.
pub(super) struct PackedPanels {
    pub(super) tensor: Tensor,
    pub(super) batch: Vec<i64>,
    pub(super) columns: Vec<i64>,
    pub(super) k: Vec<i64>,
    /// `batch index * columns + column index`, over the axes before they are merged.
    pub(super) flat: Dim,
}

impl PackedPanels {
    /// `None` if the right operand is not a constant, or its address is not linear in axes with constant extents.
    pub(super) fn of(contraction: &ContractionNest, scope: &KernelScope) -> Option<PackedPanels> {
        let address = &contraction.nest.exprs[1];
        let tensor = contraction.operands[1].constant.clone()?;
        let class = contraction.classify();

        let linear = |axes: &[Axis]| -> Option<Vec<(i64, i64)>> {
            let of = |axis: &Axis| {
                let (coef, _) = scope.facts.linear_in(address, &axis.var)?;
                Some((coef.as_i64()?, axis.extent.as_i64()?))
            };
            axes.iter().map(of).collect()
        };
        let moving = |wanted: AxisClass| -> Vec<Axis> {
            contraction.nest.axes(AxisRole::Kept).into_iter().filter(|axis| class(axis) == wanted).collect()
        };

        let batch_axes = moving(AxisClass::Batch);
        let column_axes = moving(AxisClass::Column);
        let batch = linear(&batch_axes)?;
        let columns = linear(&column_axes)?;
        let k = linear(&contraction.nest.axes(AxisRole::Reduced))?;
        let origin = address.eval_i64(&|_| Some(0)).ok()?;
        let batch = offsets(&batch).into_iter().map(|offset| origin + offset).collect();

        let flat = batch_axes.iter().chain(&column_axes);
        let flat = flat.fold(Dim::zero(), |flat, axis| flat * &axis.extent + Dim::from(&axis.var));
        let flat = scope.facts.simplify(&flat);
        Some(PackedPanels { tensor, batch, columns: offsets(&columns), k: offsets(&k), flat })
    }

    /// Packs for the column axis `n`, where `flat` is [`PackedPanels::flat`] over the merged axes. Each block of `n`'s
    /// extent has its own panels. Contractions that need the same panels of one weight share their buffer.
    pub(super) fn pack(
        &self,
        lowering: &mut Lowering,
        scope: &KernelScope,
        contraction: &ContractionNest,
        n: &Axis,
        flat: &Dim,
    ) -> Result<Rhs> {
        let n_extent = n.extent.as_i64().ok_or_else(not_innermost)?.max(0) as usize;
        let first = flat.substitute(&|symbol| (*symbol == n.var).then(Dim::zero));
        let columns =
            self.batch.iter().flat_map(|batch| self.columns.iter().map(move |column| batch + column));
        let columns: Vec<i64> = columns.collect();
        let panels =
            Panels::new(self.tensor.clone(), &columns, &self.k, n_extent).ok_or_else(not_innermost)?;
        let block_elems = panels.block_elems();
        let base = scope.facts.simplify(&(first.floor_div(n_extent.max(1)) * Dim::from(block_elems)));

        let form = self.form(n_extent);
        let buffer = match lowering.weights.panels.get(&form) {
            Some(buffer) => *buffer,
            None => {
                let dtype = self.tensor.dtype();
                let packed = Tensor::computed(dtype, panels).ok_or_else(not_innermost)?;
                let name = format!("{} (packed)", node_name(lowering.graph, contraction.root));
                let buffer = constant_buffer(lowering, name, packed, (&self.tensor, "panels"));
                lowering.weights.panels.insert(form, buffer);
                buffer
            }
        };

        Ok(Rhs::Panels { buffer, base, width: PANEL_WIDTH })
    }

    /// The key of the panels in blocks of `n_extent` columns.
    pub(super) fn form(&self, n_extent: usize) -> PackedForm {
        PackedForm {
            weight: ByContent(self.tensor.clone()),
            batch: self.batch.clone(),
            columns: self.columns.clone(),
            k: self.k.clone(),
            block_columns: n_extent,
        }
    }

    /// The offsets of the batch and column with the index `flat`.
    pub(super) fn split(&self, flat: usize) -> (i64, i64) {
        (self.batch[flat / self.columns.len()], self.columns[flat % self.columns.len()])
    }
}

/// The offsets of all points of axes with these steps and extents, in row-major order.
pub(super) fn offsets(axes: &[(i64, i64)]) -> Vec<i64> {
    axes.iter().fold(vec![0], |offsets, (step, extent)| {
        offsets.iter().flat_map(|offset| (0..*extent).map(move |at| offset + at * step)).collect()
    })
}

fn not_innermost() -> Error {
    Error::internal("the columns of a constant are not its innermost axis")
}

/// A new buffer for a form of a weight. The bytes of the weight itself are rarely needed again.
pub(super) fn constant_buffer(
    lowering: &mut Lowering,
    name: String,
    tensor: Tensor,
    (weight, form): (&Tensor, &'static str),
) -> BufferId {
    let dtype = tensor.dtype();
    let elems = Dim::from(tensor.elems());
    let buffer =
        lowering.program.buffers.push(Buffer { name, dtype, elems, space: MemorySpace::Const(tensor) });
    lowering.weights.record(&mut lowering.program, buffer, weight, form);
    weight.release();
    buffer
}
