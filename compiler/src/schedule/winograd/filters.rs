//! Changes the basis of packed filters, on all cores, when they are read.

use super::form::Form;
use crate::{
    parallel,
    tensor::{Computation, Tensor},
};
use std::convert::Infallible;
use symshape_runtime::DType;

/// Filters in panels: the windows of each outer slice, the channels of each tap, and `width` adjacent columns of each
/// channel.
#[derive(Clone)]
pub(super) struct Filters {
    pub(super) packed: Tensor,
    /// Whether taps are bytes.
    pub(super) is_whole: bool,
    /// The number of windows whose sums are added.
    pub(super) outer_slices: usize,
    /// The number of slices of a window. All have as many taps as the form, but the last may have fewer.
    pub(super) segments: usize,
    /// The number of taps of a window.
    pub(super) taps: usize,
    pub(super) channels: usize,
    pub(super) width: usize,
    pub(super) panels: usize,
}

/// The elements of one panel for each filter in the basis, as bytes.
type FilterSlices<'b> = Vec<&'b mut [u8]>;

/// Filters in the basis of a form, with panels for each of them.
struct ChangedFilters {
    filters: Filters,
    form: &'static Form,
}

impl Filters {
    /// The number of elements of one filter in the basis.
    pub(super) fn elems(&self) -> usize {
        self.panels * self.panel_elems()
    }

    fn panel_elems(&self) -> usize {
        self.outer_slices * self.segments * self.channels * self.width
    }

    /// Bytes of a packed panel.
    fn packed_panel_bytes(&self) -> usize {
        self.outer_slices * self.taps * self.channels * self.width * self.packed.dtype().size_bytes()
    }

    /// The filters in the basis of `form`, with panels for each of them. `None` if a sum could exceed the range that
    /// the form restores.
    pub(super) fn changed(self, form: &'static Form) -> Option<Tensor> {
        if self.panels * self.packed_panel_bytes() > self.packed.size_bytes() {
            return None;
        }
        if self.is_whole && !self.fits(form) {
            return None;
        }
        let dtype = if self.is_whole { DType::I16 } else { DType::F32 };
        Tensor::computed(dtype, ChangedFilters { filters: self, form })
    }

    /// Whether no sum of integers can exceed the range that the form restores.
    fn fits(&self, form: &Form) -> bool {
        /// The largest magnitude of an input byte.
        const MAX_INPUT: i64 = 255;
        self.packed.all_parts(self.packed_panel_bytes(), |panel| {
            (0..self.width).all(|column| {
                let taps = panel.iter().skip(column).step_by(self.width);
                let sum: i64 = taps.map(|byte| i64::from((*byte as i8).unsigned_abs())).sum();
                sum * MAX_INPUT <= form.max_sum()
            })
        })
    }

    /// Changes one packed panel.
    fn change(&self, panel: &[u8], form: &Form, out: &mut FilterSlices<'_>) {
        let (mut change, taps_of_form) = (form.filter_change(), form.taps());
        let taps: Vec<f32> = if self.is_whole {
            panel.iter().map(|byte| f32::from(*byte as i8)).collect()
        } else {
            panel.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        let zeros = vec![0.0; self.width];
        for at in 0..self.outer_slices * self.segments * self.channels {
            let (slice, channel) = (at / self.channels, at % self.channels);
            let (outer, segment) = (slice / self.segments, slice % self.segments);
            let tap = |tap: usize| {
                let tap = segment * taps_of_form + tap;
                let from = ((outer * self.taps + tap) * self.channels + channel) * self.width;
                if tap < self.taps { &taps[from..from + self.width] } else { &zeros[..] }
            };
            let window: Vec<&[f32]> = (0..taps_of_form).map(tap).collect();
            let lanes = at * self.width..(at + 1) * self.width;
            change.apply(&window, |filter, values| {
                if self.is_whole {
                    let slots = &mut out[filter].as_chunks_mut::<2>().0[lanes.clone()];
                    slots
                        .iter_mut()
                        .zip(values)
                        .for_each(|(slot, value)| *slot = (*value as f32 as i16).to_le_bytes());
                } else {
                    let slots = &mut out[filter].as_chunks_mut::<4>().0[lanes.clone()];
                    slots
                        .iter_mut()
                        .zip(values)
                        .for_each(|(slot, value)| *slot = (*value as f32).to_le_bytes());
                }
            });
        }
    }
}

impl ChangedFilters {
    fn count(&self) -> usize {
        self.form.filter_count()
    }

    /// Bytes of one panel of one filter in the basis.
    fn panel_bytes(&self) -> usize {
        let element_bytes = if self.filters.is_whole { 2 } else { 4 };
        self.filters.panel_elems() * element_bytes
    }
}

/// Packed panels that are in memory at once.
const CHUNK_BYTES: usize = 1 << 20;

impl Computation for ChangedFilters {
    fn len(&self) -> usize {
        self.count() * self.filters.panels * self.panel_bytes()
    }

    /// A panel is changed for all filters of the basis together, so there is one unit.
    fn unit_bytes(&self) -> usize {
        self.len()
    }

    fn compute(&self, _: usize, out: &mut [u8]) {
        let n_panels = self.filters.panels;
        let mut panels: Vec<FilterSlices<'_>> =
            (0..n_panels).map(|_| Vec::with_capacity(self.count())).collect();
        let slices = out.chunks_exact_mut(self.panel_bytes());
        slices.enumerate().for_each(|(idx, slice)| panels[idx % n_panels].push(slice));

        let mut panels = panels.into_iter();
        let packed_bytes = self.filters.packed_panel_bytes();
        let chunk_bytes = (CHUNK_BYTES / packed_bytes).max(1) * packed_bytes;
        let visited: Result<(), Infallible> = self.filters.packed.visit(chunk_bytes, &mut |chunk| {
            debug_assert_eq!(chunk.len() % packed_bytes, 0, "a panel is divided");
            let jobs = chunk.chunks_exact(packed_bytes).zip(&mut panels).collect();
            parallel::map(jobs, parallel::cores(), |(packed, mut out)| {
                self.filters.change(packed, self.form, &mut out);
            });
            Ok(())
        });
        let Ok(()) = visited;
    }

    fn head(&self) -> Vec<u8> {
        let mut first = vec![0; self.count() * self.panel_bytes()];
        let mut filters: FilterSlices<'_> = first.chunks_exact_mut(self.panel_bytes()).collect();
        let packed_bytes = self.filters.packed_panel_bytes();
        let end_after_first = self.filters.packed.visit(packed_bytes, &mut |packed| {
            self.filters.change(packed, self.form, &mut filters);
            Err(())
        });
        debug_assert!(end_after_first.is_err());
        first.truncate(self.panel_bytes());
        first
    }

    fn release(&self) {
        self.filters.packed.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_filters_begin_with_their_head() {
        let columns = &Form::COLUMNS_OF_FLOATS[1];
        let cases = [(1, 1, 9, &Form::FLOATS[0]), (2, 1, 9, &Form::FLOATS[1]), (2, 3, 7, columns)];
        for (outer_slices, segments, taps, form) in cases {
            let count = 3 * outer_slices * taps * 5 * 8;
            let floats: Vec<f32> = (0..count).map(|at| (at % 101) as f32 - 50.0).collect();
            let packed = Tensor::from_f32(vec![count], &floats).expect("floats");
            let is_whole = false;
            let filters =
                Filters { packed, is_whole, outer_slices, segments, taps, channels: 5, width: 8, panels: 3 };
            let changed = ChangedFilters { filters, form };
            let mut all = vec![0; changed.len()];
            changed.compute(0, &mut all);
            let head = changed.head();
            assert_eq!(head.len(), outer_slices * segments * 5 * 8 * 4);
            assert!(all.starts_with(&head));
        }
    }
}
