//! Left factors whose rows share what they read, as the windows of convolutions do.
//!
//! The window of a row is a few runs of numbers, and those of the rows beside it are mostly the same runs. Where all of
//! them lie whole multiples of one distance apart, memory is a line of *pixels*: a leaf that lays out its left factor does
//! so once for each pixel, and a row of it is where its window begins.

use super::{Access, Contraction, Program, Rhs, tiles::ROW_BF16};
use crate::scalar::Precision;
use num_integer::Integer;
use symshape::{Dim, Facts, Symbol};

/// Of what pixels take, at most one part in so many may be filled up.
const MOST_FILLED: i64 = 4;

/// A left factor as pixels; distances but `pitch` are in pixels.
pub(crate) struct SlidingWindows {
    /// Where it is read with all its axes at zero.
    pub(crate) base: Access,
    /// Numbers from pixel to pixel.
    pub(crate) pitch: i64,
    /// Numbers of a pixel that are read, its first ones.
    pub(crate) run: i64,
    /// The loops of the reduction around a run, innermost first: extent, and what they move by.
    pub(crate) taps: Vec<(i64, Dim)>,
    /// From row to row.
    pub(crate) row: Dim,
    /// What the outer row axes move by, at most two of them; no iteration begins in front of an earlier one.
    pub(crate) outer: Vec<Dim>,
}

impl SlidingWindows {
    /// The pixels of a contraction with constants whose precision is less than `f32`, where there are such and more than one
    /// of them is read for a row.
    pub(crate) fn of(program: &Program, contraction: &Contraction) -> Option<SlidingWindows> {
        let constant = matches!(&contraction.rhs, Rhs::Panels { buffer, .. } if program.is_const(*buffer));
        let mut facts = program.facts.clone();
        for axis in contraction.m.iter().chain(&contraction.k) {
            facts.declare_index(&axis.var, &axis.extent);
        }
        let (inner, loops) =
            contraction.k.split_last().filter(|_| constant && contraction.precision != Precision::F32)?;
        let mut at = contraction.lhs.index.clone();
        let mut step = |symbol: &Symbol| {
            let (step, rest) = facts.linear_in(&at, symbol)?;
            at = rest;
            facts.prove_le(&Dim::zero(), &step).is_yes().then_some(step)
        };
        let length = inner
            .extent
            .as_i64()
            .filter(|_| step(&inner.var).is_some_and(|step| step.as_i64() == Some(1)))?;
        let loops: Vec<(i64, Dim)> = loops
            .iter()
            .rev()
            .map(|axis| Some((axis.extent.as_i64()?, step(&axis.var)?)))
            .collect::<Option<_>>()?;
        let rows: Vec<Dim> = contraction.m.iter().map(|axis| step(&axis.var)).collect::<Option<_>>()?;
        let own = |dim: &Dim| contraction.m.iter().chain(&contraction.k).any(|axis| dim.contains(&axis.var));
        let steps = || loops.iter().map(|(_, step)| step).chain(&rows);
        if own(&at) || steps().any(own) {
            return None;
        }
        let divides = |pitch: &i64| steps().all(|step| facts.divides(&Dim::from(*pitch), step).is_yes());
        let pitch = steps().filter_map(Dim::as_i64).fold(0, |pitch, step| pitch.gcd(&step));
        // Runs side by side are one, which may be longer than a pixel; steps with symbols may be multiples of less.
        let candidates = [pitch, pitch.gcd(&length)];
        let pitch = candidates
            .into_iter()
            .skip(usize::from(length > pitch))
            .find(|pitch| *pitch > 0 && divides(pitch))?;
        let in_pixels = |step: &Dim| facts.simplify(&step.floor_div(pitch));
        let taps = loops.iter().map(|(extent, step)| (*extent, in_pixels(step)));
        let (run, taps): (i64, Vec<_>) = match length <= pitch {
            true => (length, taps.collect()),
            false => (pitch, std::iter::once((length / pitch, Dim::one())).chain(taps).collect()),
        };
        let filled = Dim::from(run).ceil_div(ROW_BF16).as_i64()? * ROW_BF16 - run;
        let many = taps.iter().map(|(extent, _)| extent).product::<i64>() > 1;
        let (row, outer) = rows.split_last()?;
        let fits = length % run == 0 && filled * MOST_FILLED <= filled + run && many;
        (fits && outer.len() <= 2 && ascends(&facts, contraction, outer)).then(|| SlidingWindows {
            base: Access { buffer: contraction.lhs.buffer, index: at.clone() },
            pitch,
            run,
            taps,
            row: in_pixels(row),
            outer: outer.iter().map(in_pixels).collect(),
        })
    }

    /// Numbers that a laid out pixel has room for: whole rows of registers.
    pub(crate) fn padded_run(&self) -> i64 {
        (self.run + ROW_BF16 - 1) / ROW_BF16 * ROW_BF16
    }

    /// Number of pixels that are packed for one row.
    pub(crate) fn taps_count(&self) -> i64 {
        self.taps.iter().map(|(extent, _)| extent).product()
    }

    /// Number of pixels from the first to the last of a row, inclusive.
    pub(crate) fn window(&self) -> Dim {
        self.taps.iter().fold(Dim::one(), |window, (extent, step)| window + step * (extent - 1))
    }

    /// The same of so many rows.
    pub(crate) fn windows(&self, rows: &Dim) -> Dim {
        (rows - 1).max(Dim::zero()) * &self.row + self.window()
    }

    /// The same of all iterations of the outer axes, of these extents, with so many rows each.
    pub(crate) fn all(&self, outer: &[Dim], rows: &Dim) -> Dim {
        let moved = self.outer.iter().zip(outer).map(|(step, extent)| step * (extent - 1).max(Dim::zero()));
        moved.fold(self.windows(rows), |all, moved| all + moved)
    }
}

/// Whether joint iterations of the outer axes begin one behind the other.
fn ascends(facts: &Facts, contraction: &Contraction, steps: &[Dim]) -> bool {
    match (steps, &contraction.m[..]) {
        ([outer, inner], [_, axis, _]) => {
            facts.prove_le(&((&axis.extent - 1).max(Dim::zero()) * inner), outer).is_yes()
        }
        _ => true,
    }
}
