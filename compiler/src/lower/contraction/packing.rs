//! Packs constant operands at compile time.

use super::nest::{AxisClass, ContractionNest};
use crate::{
    Error, Result,
    kernel::{Axis, Buffer, BufferId, MemorySpace, Rhs},
    lower::{
        lowering::{KernelScope, Lowering, node_name},
        nest::AxisRole,
        weights::PackedForm,
    },
    parallel,
    tensor::{ByContent, Bytes, Tensor},
};
use symshape::Dim;

/// The number of columns of a packed panel, a whole number of vectors on every target.
const PANEL_WIDTH: u32 = 16;

/// The same for indices.
const LANES: usize = PANEL_WIDTH as usize;

/// The size of panels that several threads copy.
const MIN_SHARED_BYTES: usize = 1 << 20;

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
        let block_elems = self.block_elems(n_extent);
        let base = scope.facts.simplify(&(first.floor_div(n_extent.max(1)) * Dim::from(block_elems)));

        let form = self.form(n_extent);
        let buffer = match lowering.weights.panels.get(&form) {
            Some(buffer) => *buffer,
            None => {
                let packed = self.panels(n_extent)?;
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

    /// Elements of the panels of one block of `n_extent` columns.
    fn block_elems(&self, n_extent: usize) -> usize {
        n_extent.div_ceil(PANEL_WIDTH as usize) * self.k.len() * PANEL_WIDTH as usize
    }

    /// The panels of all blocks.
    fn panels(&self, n_extent: usize) -> Result<Tensor> {
        let bytes = match self.tensor.dtype().size_bytes() {
            1 => self.copied::<1>(n_extent),
            2 => self.copied::<2>(n_extent),
            4 => self.copied::<4>(n_extent),
            8 => self.copied::<8>(n_extent),
            _ => None,
        };
        let bytes = bytes.ok_or_else(not_innermost)?;
        let elems = bytes.len() / self.tensor.dtype().size_bytes();
        Tensor::new(self.tensor.dtype(), vec![elems], Bytes::Owned(bytes.into())).ok_or_else(not_innermost)
    }

    /// The bytes of the panels of all blocks, for elements of `SIZE` bytes. `None` if the weight has no element at an
    /// offset, or elements of another size. All cores copy large panels.
    fn copied<const SIZE: usize>(&self, n_extent: usize) -> Option<Vec<u8>> {
        let elems = self.tensor.bytes().as_chunks::<SIZE>().0;
        let block_elems = self.block_elems(n_extent);
        let n_blocks = (self.batch.len() * self.columns.len()).checked_div(n_extent).unwrap_or(0);

        let mut bytes = vec![0; n_blocks * block_elems * SIZE];
        let slots = bytes.as_chunks_mut::<SIZE>().0;
        for (block, slots) in slots.chunks_exact_mut(block_elems.max(1)).enumerate() {
            let lanes: Vec<usize> = (block * n_extent..(block + 1) * n_extent)
                .map(|column| {
                    let (batch, column) = self.split(column);
                    usize::try_from(batch + column).ok()
                })
                .collect::<Option<_>>()?;
            let threads = if size_of_val(slots) < MIN_SHARED_BYTES { 1 } else { parallel::cores() };
            let share = lanes.len().div_ceil(LANES).div_ceil(threads).max(1);
            let panels = slots.chunks_mut((share * self.k.len() * LANES).max(1));
            let shares = panels.zip(lanes.chunks(share * LANES)).collect();
            let copied = parallel::map(shares, threads, |(panels, lanes)| self.copy(elems, lanes, panels));
            copied.into_iter().collect::<Option<()>>()?;
        }
        Some(bytes)
    }

    /// Copies the columns at the offsets `lanes` into adjacent panels.
    ///
    /// A few rows of all panels are copied before the next rows, so that neighbours in the weight are read together.
    fn copy<const SIZE: usize>(
        &self,
        elems: &[[u8; SIZE]],
        lanes: &[usize],
        panels: &mut [[u8; SIZE]],
    ) -> Option<()> {
        const ROWS: usize = 64;
        for (chunk, ks) in self.k.chunks(ROWS).enumerate() {
            let panels = panels.chunks_exact_mut(self.k.len() * LANES);
            for (panel, lanes) in panels.zip(lanes.chunks(LANES)) {
                copy_rows(elems, lanes, ks, &mut panel[chunk * ROWS * LANES..])?;
            }
        }
        Some(())
    }

    /// The offsets of the batch and column with the index `flat`.
    pub(super) fn split(&self, flat: usize) -> (i64, i64) {
        (self.batch[flat / self.columns.len()], self.columns[flat % self.columns.len()])
    }
}

/// Copies a row of a panel for each of `ks`: the elements at the offsets `lanes`, all moved by `k`.
fn copy_rows<const SIZE: usize>(
    elems: &[[u8; SIZE]],
    lanes: &[usize],
    ks: &[i64],
    panel: &mut [[u8; SIZE]],
) -> Option<()> {
    let first = *lanes.first()?;
    let is_run = lanes.iter().zip(first..).all(|(lane, at)| *lane == at);
    for (row, k) in panel.chunks_exact_mut(PANEL_WIDTH as usize).zip(ks) {
        let k = usize::try_from(*k).ok()?;
        let row = &mut row[..lanes.len()];
        if is_run {
            row.copy_from_slice(elems.get(first + k..first + k + lanes.len())?);
            continue;
        }
        for (slot, lane) in row.iter_mut().zip(lanes) {
            *slot = *elems.get(lane + k)?;
        }
    }
    Some(())
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
