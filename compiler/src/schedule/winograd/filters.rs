//! Changes the basis of packed filters, on all cores.

use super::form::{FilterChange, Form, TAPS};
use crate::{
    parallel,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::DType;

/// Filters in panels: the taps of each channel, each with `width` adjacent columns.
pub(super) struct Filters<'a> {
    pub(super) packed: &'a Tensor,
    /// Whether taps are bytes.
    pub(super) is_whole: bool,
    pub(super) channels: usize,
    pub(super) width: usize,
    pub(super) panels: usize,
}

/// The elements of one panel at each point, as bytes.
type PointSlices<'b> = Vec<&'b mut [u8]>;

impl Filters<'_> {
    /// The number of elements of a point.
    pub(super) fn point_elems(&self) -> usize {
        self.panels * self.panel_elems()
    }

    fn panel_elems(&self) -> usize {
        self.channels * self.width
    }

    /// The filters in the basis of `form`, with panels for each point. `None` if a sum could exceed the range that the
    /// form restores.
    pub(super) fn changed(&self, form: &Form) -> Option<Tensor> {
        let points = form.inputs() * form.inputs();
        let dtype = if self.is_whole { DType::I16 } else { DType::F32 };
        let elems = points * self.point_elems();
        let mut bytes = vec![0; elems * dtype.size_bytes()];

        let mut panels: Vec<PointSlices<'_>> = (0..self.panels).map(|_| Vec::with_capacity(points)).collect();
        let slices = bytes.chunks_exact_mut(self.panel_elems() * dtype.size_bytes());
        slices.enumerate().for_each(|(idx, slice)| panels[idx % self.panels].push(slice));

        let panels = panels.into_iter().enumerate().collect();
        let changed = parallel::map(panels, parallel::cores(), |(panel, mut out)| {
            self.change(panel, form, &mut form.filter_change(), &mut out)
        });
        self.packed.release();
        changed.into_iter().collect::<Option<()>>()?;
        Tensor::new(dtype, vec![elems], Bytes::Owned(bytes.into()))
    }

    /// Changes one panel.
    fn change(
        &self,
        panel: usize,
        form: &Form,
        change: &mut FilterChange,
        out: &mut PointSlices<'_>,
    ) -> Option<()> {
        let taps = self.taps(panel, form)?;
        for channel in 0..self.channels {
            let tap = |tap: usize| {
                let from = (tap * self.channels + channel) * self.width;
                taps.get(from..from + self.width)
            };
            let row = |i: usize| Some([tap(i * TAPS)?, tap(i * TAPS + 1)?, tap(i * TAPS + 2)?]);
            let window = [row(0)?, row(1)?, row(2)?];
            let lanes = channel * self.width..(channel + 1) * self.width;
            change.apply(&window, |point, values| {
                if self.is_whole {
                    let slots = &mut out[point].as_chunks_mut::<2>().0[lanes.clone()];
                    slots
                        .iter_mut()
                        .zip(values)
                        .for_each(|(slot, value)| *slot = (*value as f32 as i16).to_le_bytes());
                } else {
                    let slots = &mut out[point].as_chunks_mut::<4>().0[lanes.clone()];
                    slots
                        .iter_mut()
                        .zip(values)
                        .for_each(|(slot, value)| *slot = (*value as f32).to_le_bytes());
                }
            });
        }
        Some(())
    }

    /// The taps of a panel. `None` if a sum could exceed the range that the form restores.
    fn taps(&self, panel: usize, form: &Form) -> Option<Vec<f32>> {
        let elems = TAPS * TAPS * self.panel_elems();
        let bytes = self.packed.bytes();
        if !self.is_whole {
            let floats = bytes.as_chunks::<4>().0.get(panel * elems..(panel + 1) * elems)?;
            return Some(floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect());
        }
        let bytes = bytes.get(panel * elems..(panel + 1) * elems)?;
        let taps: Vec<f32> = bytes.iter().map(|byte| f32::from(*byte as i8)).collect();

        /// The largest magnitude of an input byte.
        const MAX_INPUT: i64 = 255;
        let fits = (0..self.width).all(|column| {
            let sum: f64 = taps.iter().skip(column).step_by(self.width).map(|tap| f64::from(tap.abs())).sum();
            sum as i64 * MAX_INPUT <= form.max_sum()
        });
        fits.then_some(taps)
    }
}
