//! Left-hand sides whose rows overlap, as the windows of convolutions do.
//!
//! A row reads a *window*: a few runs of consecutive elements. Neighbouring rows read mostly the same runs. If all runs
//! begin at multiples of one distance, memory is a sequence of *pixels* at that distance. A microkernel then packs each
//! pixel once, and a row of the packed operand begins at the first pixel of its window.

use super::{Access, Contraction, Program, Rhs, tiles::ROW_BF16};
use crate::scalar::Precision;
use num_integer::Integer;
use symshape::{Dim, Facts, Symbol};

/// At most one in this many elements of a packed pixel may be padding.
const PADDING_DIVISOR: i64 = 4;

/// The microkernels support at most this many row axes around the last one.
const MAX_OUTER_AXES: usize = 2;

/// A left-hand side as pixels. All distances except `pitch` are in pixels.
pub(crate) struct SlidingWindows {
    /// The element that is read when all row and reduction variables are zero.
    pub(crate) base: Access,
    /// Distance between two pixels, in elements.
    pub(crate) pitch: i64,
    /// Number of elements that are read of each pixel, from its start.
    pub(crate) run: i64,
    /// The reduction loops around a run, innermost first.
    pub(crate) taps: Vec<Tap>,
    /// Distance between two rows.
    pub(crate) row_step: Dim,
    /// Distance between two iterations of each outer row axis, at most two. Iterations begin in ascending order.
    pub(crate) outer_steps: Vec<Dim>,
}

/// A reduction loop that visits pixels of a window.
pub(crate) struct Tap {
    /// Number of iterations.
    pub(crate) extent: i64,
    /// Distance between two iterations, in pixels.
    pub(crate) step: Dim,
}

/// The address of a left-hand side, as the sum of a base and a step for each loop; in elements.
struct Strides {
    base: Dim,
    /// Extent of the innermost reduction loop, whose step is 1.
    length: i64,
    /// The other reduction loops, innermost first.
    loops: Vec<Tap>,
    /// The steps of the row axes, outermost first.
    rows: Vec<Dim>,
}

impl SlidingWindows {
    /// The sliding windows of a contraction with constants at a precision below `f32`; `None` if its address does not
    /// have this form, or if a row reads a single pixel.
    pub(crate) fn of(program: &Program, contraction: &Contraction) -> Option<SlidingWindows> {
        let Rhs::Panels { buffer, .. } = &contraction.rhs else { return None };
        if !program.is_const(*buffer) || contraction.precision == Precision::F32 {
            return None;
        }

        let mut facts = program.facts.clone();
        for axis in contraction.m.iter().chain(&contraction.k) {
            facts.declare_index(&axis.var, &axis.extent);
        }
        let Strides { base, length, loops, rows } = Strides::of(&facts, contraction)?;
        let pitch = pitch(&facts, length, &loops, &rows)?;
        let in_pixels = |step: &Dim| facts.simplify(&step.floor_div(pitch));

        let mut taps = Vec::with_capacity(loops.len() + 1);
        let run = length.min(pitch);
        if length > pitch {
            taps.push(Tap { extent: length / pitch, step: Dim::one() });
        }
        taps.extend(loops.iter().map(|tap| Tap { extent: tap.extent, step: in_pixels(&tap.step) }));

        let padding = padded(run) - run;
        let is_dense = padding * PADDING_DIVISOR <= padding + run;
        let has_many_pixels = taps.iter().map(|tap| tap.extent).product::<i64>() > 1;
        let (row_step, outer_steps) = rows.split_last()?;
        let fits = length % run == 0 && is_dense && has_many_pixels;
        if !fits || outer_steps.len() > MAX_OUTER_AXES || !ascends(&facts, contraction, outer_steps) {
            return None;
        }
        Some(SlidingWindows {
            base: Access { buffer: contraction.lhs.buffer, index: base },
            pitch,
            run,
            taps,
            row_step: in_pixels(row_step),
            outer_steps: outer_steps.iter().map(in_pixels).collect(),
        })
    }

    /// Number of elements of a packed pixel, padded to whole rows of tile registers.
    pub(crate) fn padded_run(&self) -> i64 {
        padded(self.run)
    }

    /// Number of pixels that a row reads.
    pub(crate) fn tap_count(&self) -> i64 {
        self.taps.iter().map(|tap| tap.extent).product()
    }

    /// Number of pixels from the first to the last one of a row, inclusive.
    pub(crate) fn span_of_row(&self) -> Dim {
        self.taps.iter().fold(Dim::one(), |span, tap| span + &tap.step * (tap.extent - 1))
    }

    /// Number of pixels from the first to the last one of `rows` consecutive rows, inclusive.
    pub(crate) fn span_of_rows(&self, rows: &Dim) -> Dim {
        (rows - 1).max(Dim::zero()) * &self.row_step + self.span_of_row()
    }

    /// Number of pixels from the first to the last one of all rows, inclusive: `rows` in each iteration of the outer
    /// axes, which have the extents `outer`.
    pub(crate) fn span_of_all(&self, outer: &[Dim], rows: &Dim) -> Dim {
        let moved =
            self.outer_steps.iter().zip(outer).map(|(step, extent)| step * (extent - 1).max(Dim::zero()));
        moved.fold(self.span_of_rows(rows), |span, moved| span + moved)
    }
}

impl Strides {
    /// Splits the address of a left-hand side, with steps that are never negative. An empty reduction has no runs.
    fn of(facts: &Facts, contraction: &Contraction) -> Option<Strides> {
        let (inner, outer) = contraction.k.split_last()?;
        let length = inner.extent.as_i64().filter(|length| *length > 0)?;

        let mut base = contraction.lhs.index.clone();
        let mut take_step = |symbol: &Symbol| {
            let (step, rest) = facts.linear_in(&base, symbol)?;
            base = rest;
            facts.prove_le(&Dim::zero(), &step).is_yes().then_some(step)
        };
        if take_step(&inner.var)?.as_i64() != Some(1) {
            return None;
        }
        let mut loops = Vec::with_capacity(outer.len());
        for axis in outer.iter().rev() {
            loops.push(Tap { extent: axis.extent.as_i64()?, step: take_step(&axis.var)? });
        }
        let mut rows = Vec::with_capacity(contraction.m.len());
        for axis in &contraction.m {
            rows.push(take_step(&axis.var)?);
        }

        let has_variable =
            |dim: &Dim| contraction.m.iter().chain(&contraction.k).any(|axis| dim.contains(&axis.var));
        if has_variable(&base) || loops.iter().map(|tap| &tap.step).chain(&rows).any(has_variable) {
            return None;
        }
        Some(Strides { base, length, loops, rows })
    }
}

/// The largest distance, in elements, that divides all steps. It divides `length` too if runs are longer than it.
fn pitch(facts: &Facts, length: i64, loops: &[Tap], rows: &[Dim]) -> Option<i64> {
    let steps = || loops.iter().map(|tap| &tap.step).chain(rows);
    let divides_all = |pitch: i64| steps().all(|step| facts.divides(&Dim::from(pitch), step).is_yes());

    let pitch = steps().filter_map(Dim::as_i64).fold(0, |pitch, step| pitch.gcd(&step));
    // Adjacent runs form one run, which can be longer than a pixel. Symbolic steps can be multiples of a smaller pitch.
    let shared = pitch.gcd(&length);
    if length <= pitch && pitch > 0 && divides_all(pitch) {
        Some(pitch)
    } else {
        (shared > 0 && divides_all(shared)).then_some(shared)
    }
}

/// `run`, rounded up to whole rows of tile registers.
fn padded(run: i64) -> i64 {
    (run + ROW_BF16 - 1) / ROW_BF16 * ROW_BF16
}

/// Whether the joint iterations of the outer axes begin in ascending order.
fn ascends(facts: &Facts, contraction: &Contraction, steps: &[Dim]) -> bool {
    let ([outer, inner], [_, axis, _]) = (steps, &contraction.m[..]) else { return true };
    let last = (&axis.extent - 1).max(Dim::zero()) * inner;
    facts.prove_le(&last, outer).is_yes()
}

#[cfg(test)]
mod tests {
    use super::SlidingWindows;
    use crate::{
        error::Result,
        kernel::{Stmt, text},
    };

    /// A convolution over rows of 32 channels with three taps, whose innermost reduction axis has this extent.
    fn run_of_convolution(channels: i64) -> Result<Option<i64>> {
        let program = text::parse(&format!(
            "program convolution {{
  symbol N = 3..64
  @0 x: f32[32*N] input 0
  @1 w: f32[1536] const [1536] all 1.0
  @2 y: f32[16*N] output 0
  input x[N, 32] = @0
  output y[N, 16] = @2
  kernel convolution {{
    contraction f32 by bf16 {{
      m row in 0..N - 2
      n column in 0..16
      k tap in 0..3
      k channel in 0..{channels}
      lhs @0[channel + 32*row + 32*tap]
      rhs panels @1[0] width 16
      %0 = sum
      store @2[column + 16*row], %0
    }}
  }}
}}
"
        ))?;

        let Stmt::Contraction(contraction) = &program.kernels[0].body[0] else { return Ok(None) };
        Ok(SlidingWindows::of(&program, contraction).map(|windows| windows.run))
    }

    #[test]
    fn an_empty_reduction_has_no_sliding_windows() -> Result<()> {
        assert_eq!(run_of_convolution(32)?, Some(32));
        assert_eq!(run_of_convolution(0)?, None);
        Ok(())
    }
}
