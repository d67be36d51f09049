//! The time of calls on several threads, predicted on one.
//!
//! A rehearsal ([`Context::rehearse`]) divides a call as for these threads, and runs the ranges that they claim one
//! after another. The prediction replaces the sum of the ranges of each kernel by the time of the thread that is done
//! last ([`Round::longest_ns`]), and adds the time of a barrier. It ignores that threads share the bandwidth of memory,
//! the third-level cache and the clock.
//!
//! A range is the same work in every call, so its time is the shortest one of several calls. Otherwise the longest
//! range would be the one that another program interrupted.

use super::measure::{call_by_steps, context, nanoseconds, refused, span_ns};
use crate::error::Result;
use std::{
    ops::Range,
    time::{Duration, Instant},
};
use symshape_runtime::{Context, Model, Round, TensorRef};

/// The time to start the threads of a kernel and to wait for the last one, in nanoseconds.
const BARRIER_NS: f64 = 1250.0;

/// How long the calls of one size may take.
const BUDGET: Duration = Duration::from_millis(400);

/// Most samples of each time, and how many there are at least.
const MAX_SAMPLES: usize = 31;
const MIN_SAMPLES: usize = 3;

/// The prediction for calls on several threads.
#[derive(Clone, PartialEq, Debug)]
pub struct Scaling {
    /// The sizes, as those of a [`Profile`](super::Profile).
    pub at: String,
    /// The number of threads.
    pub threads: u32,
    /// The shortest time of a call on one thread, in nanoseconds.
    pub alone_ns: f64,
    /// A usual call that is divided among the threads.
    pub call: Divided,
    /// The kernels in the order in which they run. They run one by one here, so they may have more barriers than a
    /// usual call.
    pub kernels: Vec<KernelScaling>,
}

impl Scaling {
    /// The predicted speed-up over one thread.
    pub fn speedup(&self) -> f64 {
        self.alone_ns / self.call.predicted_ns().max(1.0)
    }
}

/// The work of one kernel, or of kernels that run together: see [`KernelProfile`](super::KernelProfile).
#[derive(Clone, PartialEq, Debug)]
pub struct KernelScaling {
    /// Indices of the kernels in the program.
    pub kernels: Range<usize>,
    /// How their work is divided.
    pub divided: Divided,
}

impl KernelScaling {
    /// The predicted time beyond an equal share of the work for each thread, in nanoseconds.
    pub fn lost_ns(&self, threads: u32) -> f64 {
        self.divided.predicted_ns() - self.divided.ns / f64::from(threads)
    }
}

/// Work that is divided among threads in rounds. Threads wait for each other after each round.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Divided {
    /// The time on one thread in nanoseconds, with all ranges.
    pub ns: f64,
    /// The number of rounds. Each ends with a barrier.
    pub barriers: usize,
    /// The largest number of threads that have a share of a round; 0 if nothing is divided.
    pub shares: usize,
    /// The time of all ranges in nanoseconds.
    pub divided_ns: f64,
    /// The sum of the times of the threads that are done last in each round, in nanoseconds.
    pub longest_ns: f64,
}

impl Divided {
    /// The work of this many runs.
    pub(super) fn times(self, runs: f64) -> Divided {
        Divided {
            ns: self.ns * runs,
            barriers: self.barriers * runs as usize,
            divided_ns: self.divided_ns * runs,
            longest_ns: self.longest_ns * runs,
            ..self
        }
    }

    /// The time of the work that one thread does alone, in nanoseconds.
    pub fn serial_ns(&self) -> f64 {
        (self.ns - self.divided_ns).max(0.0)
    }

    /// The predicted time in nanoseconds.
    pub fn predicted_ns(&self) -> f64 {
        self.serial_ns() + self.longest_ns + self.barriers as f64 * BARRIER_NS
    }

    /// The time until the last thread is done, relative to that of equal work for all threads: at least 1.
    pub fn imbalance(&self, threads: u32) -> f64 {
        if self.barriers == 0 { 1.0 } else { self.longest_ns * f64::from(threads) / self.divided_ns.max(1.0) }
    }
}

/// The shortest times of rehearsals.
pub(super) struct Rehearsed {
    pub(super) alone_ns: f64,
    pub(super) call: Divided,
    /// Each partition of the other model.
    pub(super) steps: Vec<Divided>,
}

/// Rehearses calls of `usual`, and the partitions of `stepped`, in turns.
pub(super) fn rehearse(
    usual: &Model,
    stepped: &Model,
    threads: u32,
    inputs: &[TensorRef<'_>],
) -> Result<Rehearsed> {
    let mut alone = context(usual)?;
    let mut whole = context(usual)?;
    let mut by_steps = context(stepped)?;
    whole.rehearse(threads);
    by_steps.rehearse(threads);
    // The first calls commit memory.
    alone.run_views(inputs).map_err(refused)?;
    whole.run_views(inputs).map_err(refused)?;
    whole.take_rounds();

    let mut alone_ns = f64::INFINITY;
    let mut call = Work::of_call(&mut whole, inputs)?;
    let mut steps = Work::of_steps(&mut by_steps, inputs)?;
    let begin = Instant::now();
    for samples in 0.. {
        if samples >= MIN_SAMPLES && (samples >= MAX_SAMPLES || begin.elapsed() >= BUDGET) {
            break;
        }
        let start = Instant::now();
        alone.run_views(inputs).map_err(refused)?;
        alone_ns = alone_ns.min(nanoseconds(start));
        call.shorten(Work::of_call(&mut whole, inputs)?);
        let again = Work::of_steps(&mut by_steps, inputs)?;
        steps.iter_mut().zip(again).for_each(|(step, again)| step.shorten(again));
    }
    Ok(Rehearsed { alone_ns, call: call.divided(), steps: steps.iter().map(Work::divided).collect() })
}

/// The times of some work.
struct Work {
    /// That of the work that is not divided.
    serial_ns: f64,
    /// Those of the work that is divided.
    rounds: Vec<Round>,
}

impl Work {
    fn of_call(context: &mut Context, inputs: &[TensorRef<'_>]) -> Result<Work> {
        let start = Instant::now();
        context.run_views(inputs).map_err(refused)?;
        let ns = nanoseconds(start);
        Ok(Work::new(ns, context.take_rounds().into_iter()))
    }

    fn of_steps(context: &mut Context, inputs: &[TensorRef<'_>]) -> Result<Vec<Work>> {
        let spans = call_by_steps(context, inputs)?;
        let rounds = context.take_rounds();
        let work = |span: &Range<Instant>| {
            Work::new(span_ns(span), rounds.iter().filter(|round| span.contains(&round.start)).cloned())
        };
        Ok(spans.iter().map(work).collect())
    }

    fn new(ns: f64, rounds: impl Iterator<Item = Round>) -> Work {
        let rounds: Vec<Round> = rounds.collect();
        let divided_ns: f64 = times(&rounds).sum();
        Work { serial_ns: (ns - divided_ns).max(0.0), rounds }
    }

    /// Keeps the shorter one of both times of each range. The same work has the same ranges.
    fn shorten(&mut self, again: Work) {
        self.serial_ns = self.serial_ns.min(again.serial_ns);
        let own = self.rounds.iter_mut().flat_map(|round| round.parts_ns.iter_mut().flatten());
        own.zip(times(&again.rounds)).for_each(|(ns, again)| *ns = ns.min(again));
    }

    fn divided(&self) -> Divided {
        let divided_ns: f64 = times(&self.rounds).sum();
        let shares = |round: &Round| round.parts_ns.iter().filter(|part| !part.is_empty()).count();
        Divided {
            ns: self.serial_ns + divided_ns,
            barriers: self.rounds.len(),
            shares: self.rounds.iter().map(shares).max().unwrap_or(0),
            divided_ns,
            longest_ns: self.rounds.iter().map(Round::longest_ns).sum(),
        }
    }
}

/// The times of all ranges.
fn times(rounds: &[Round]) -> impl Iterator<Item = f64> {
    rounds.iter().flat_map(|round| round.parts_ns.iter().flatten().copied())
}
