//! Profiles: the time of each kernel in calls at given sizes, next to a lower bound of that time on this machine.
//!
//! 1. [`Profiler::new`] compiles the kernels twice: as usual, and with one entry of the partition table for each
//!    kernel, so that the clock can be read between kernels ([`measure`]).
//! 2. It measures this machine with the same compiler ([`machine`]): multiply-adds per second, and bytes per second
//!    for working sets from the first-level cache to memory.
//! 3. The [`demand`] of a kernel is its arithmetic and its bytes at the given sizes. Its bound is the larger one
//!    of the two times that the machine needs for them: the roofline model (Williams, Waterman and Patterson,
//!    "Roofline: An Insightful Visual Performance Model for Multicore Architectures", 2009).
//! 4. [`page`] shows the profiles in the report, next to those of an earlier page.
//!
//! [`scaling`] predicts the time on several threads: a call is divided as for these threads, and its shares run one
//! after another.
//!
//! The kernels of a ragged batch that run for one sequence after another are measured as one.
//!
//! Kernels run on one thread. In a usual call, kernels may also run in turns over blocks of the batch, which keeps
//! their operands in the cache; a profile shows the time of the usual call next to the sum over the kernels.

mod demand;
mod kernels;
mod machine;
mod measure;
mod page;
mod scaling;

use crate::{
    accuracy::inputs,
    emit,
    error::{Error, ErrorKind, Result},
    kernel::Program,
    partition,
    pipeline::{CPU, Lowered},
    tensor::{self, Tensor},
};
pub use demand::Demand;
pub use kernels::{KernelProfile, Profile};
pub use machine::{Bound, BoundBy, Machine};
use measure::Times;
pub use page::{Baseline, Profiles};
pub(crate) use page::{scaling_json, size_json};
pub use scaling::{Divided, KernelScaling, Scaling};
use std::ops::Range;
use symshape_runtime::{Model, SymbolInfo};

/// A call to measure.
struct Call {
    /// Its sizes as text.
    at: String,
    /// A dim for each symbol of the model.
    dims: Vec<i64>,
    /// The lengths of the sequences of a ragged batch; empty otherwise.
    lengths: Vec<usize>,
    inputs: Vec<Tensor>,
}

/// Profiles one model at any sizes.
pub struct Profiler<'l> {
    lowered: &'l Lowered,
    usual: Model,
    /// The model with one partition for each kernel.
    stepped: Model,
    /// The kernels of each partition.
    steps: Vec<Range<usize>>,
    machine: Machine,
}

impl<'l> Profiler<'l> {
    /// Compiles the model for profiles, and measures the machine. It takes about half a second more than two
    /// compilations.
    ///
    /// # Errors
    /// As [`Lowered::jit`].
    pub fn new(lowered: &'l Lowered) -> Result<Profiler<'l>> {
        let Lowered { program, plan, options, .. } = lowered;
        // The kernels run for one block of a divided batch.
        let mut program = Program { batch_blocks: None, ..program.clone() };
        partition::one_for_each_kernel(&mut program, CPU)?;
        let steps = program.partitions.iter().map(|partition| partition.kernels.clone()).collect();
        let (stepped, _) = emit::jit::jit(&program, plan, options)?;
        Ok(Profiler { lowered, usual: lowered.jit()?, stepped, steps, machine: Machine::measure()? })
    }

    /// The model that profiles call.
    pub fn model(&self) -> &Model {
        &self.usual
    }

    /// The measured speed of this machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The dims at these sizes, one for each symbol of the model.
    ///
    /// # Errors
    /// When a name is not a symbol of the model, or a symbol has no size.
    pub fn dims(&self, sizes: &[(String, i64)]) -> Result<Vec<i64>> {
        let symbols = self.usual.symbols();
        let is_symbol = |name: &str| symbols.iter().any(|symbol| symbol.name() == name);
        if let Some((name, _)) = sizes.iter().find(|(name, _)| !is_symbol(name)) {
            let known: Vec<&str> = symbols.iter().map(|symbol| symbol.name()).collect();
            return Err(usage(format!("the model has no symbol {name}; it has {}", known.join(", "))));
        }
        let size = |symbol: &SymbolInfo| {
            let given = sizes.iter().find(|(name, _)| name == symbol.name()).map(|(_, size)| *size);
            given.ok_or_else(|| usage(format!("{} has no size", symbol.name())))
        };
        symbols.iter().map(size).collect()
    }

    /// The profile of calls at these dims, one for each symbol of the model, with seeded inputs. The sequences of a
    /// ragged batch have almost equal lengths.
    ///
    /// # Errors
    /// When a dim is outside its range, the tensors exceed the memory, or the call fails on the seeded inputs.
    pub fn at(&self, dims: &[i64]) -> Result<Profile> {
        self.measure(self.call(dims)?)
    }

    /// The profile of ragged calls of sequences of these lengths, with seeded inputs.
    ///
    /// # Errors
    /// When the model takes no ragged batch or has symbols of other sizes, or as [`Profiler::at`].
    pub fn at_lengths(&self, lengths: &[usize]) -> Result<Profile> {
        self.measure(self.ragged_call(lengths)?)
    }

    /// The prediction for calls as those of [`Profiler::at`] on this number of threads.
    ///
    /// # Errors
    /// As [`Profiler::at`].
    pub fn scaling_at(&self, dims: &[i64], threads: u32) -> Result<Scaling> {
        self.scaling(self.call(dims)?, threads)
    }

    /// The prediction for calls as those of [`Profiler::at_lengths`] on this number of threads.
    ///
    /// # Errors
    /// As [`Profiler::at_lengths`].
    pub fn scaling_at_lengths(&self, lengths: &[usize], threads: u32) -> Result<Scaling> {
        self.scaling(self.ragged_call(lengths)?, threads)
    }

    fn call(&self, dims: &[i64]) -> Result<Call> {
        self.check(dims)?;
        let at = inputs::binding(&self.usual, dims);
        let dims = dims.to_vec();
        let Some(ragged) = self.usual.ragged() else {
            let inputs = inputs::inputs(&self.usual, &dims)?;
            return Ok(Call { at, dims, lengths: Vec::new(), inputs });
        };
        let lengths = inputs::even_lengths(ragged, &dims);
        let inputs = inputs::of_sequences(&self.usual, ragged, &dims, &lengths)?;
        Ok(Call { at, dims, lengths, inputs })
    }

    fn ragged_call(&self, lengths: &[usize]) -> Result<Call> {
        let Some(ragged) = self.usual.ragged() else {
            return Err(usage("lengths are given; the model takes no ragged batch".into()));
        };
        let rows = lengths.iter().try_fold(0_usize, |rows, length| rows.checked_add(*length));
        let size = |size: Option<usize>| size.and_then(|size| i64::try_from(size).ok());
        let rows = size(rows).ok_or_else(|| usage("the sum of the lengths is too large".into()))?;
        let symbols = self.usual.symbols();
        let name = |symbol: usize| symbols[symbol].name().to_string();
        let sequences = size(Some(lengths.len())).unwrap_or(i64::MAX);
        let dims = self.dims(&[(name(ragged.sequences()), sequences), (name(ragged.rows()), rows)])?;
        self.check(&dims)?;

        let inputs = inputs::of_sequences(&self.usual, ragged, &dims, lengths)?;
        let shortest = lengths.iter().min().copied().unwrap_or(0);
        let longest = lengths.iter().max().copied().unwrap_or(0);
        let binding = inputs::binding(&self.usual, &dims);
        let at = format!("{binding},{}={shortest}..{longest}", ragged.length().name());
        Ok(Call { at, dims, lengths: lengths.to_vec(), inputs })
    }

    /// Refuses other dims than the model allows.
    fn check(&self, dims: &[i64]) -> Result<()> {
        let symbols = self.usual.symbols();
        let outside = symbols.iter().zip(dims).find(|(symbol, dim)| !symbol.allows(**dim));
        if let Some((symbol, dim)) = outside {
            let name = symbol.name();
            return Err(usage(format!("{name} = {dim}; {name} is declared {symbol}")));
        }
        if dims.len() != symbols.len() {
            return Err(usage(format!("{} dims; the model has {} symbols", dims.len(), symbols.len())));
        }
        Ok(())
    }

    fn measure(&self, call: Call) -> Result<Profile> {
        let Call { at, dims, lengths, inputs } = call;
        let Times { call_ns, step_ns } = measure::times(&self.usual, &self.stepped, &tensor::refs(&inputs)?)?;
        let program = &self.lowered.program;
        let blocks = self.blocks();
        let kernel = |(kernels, ns): (&Range<usize>, f64)| {
            let demand = Demand::of(program, kernels.clone(), &dims, &lengths);
            let bound = (!demand.depends_on_data).then(|| self.machine.bound(&demand));
            let bound = bound.map(|bound| Bound { ns: bound.ns * blocks, ..bound });
            KernelProfile { kernels: kernels.clone(), ns: ns * blocks, demand: demand.times(blocks), bound }
        };
        let kernels = self.steps.iter().zip(step_ns).map(kernel).collect();
        Ok(Profile { at, call_ns, kernels })
    }

    /// How often a call runs the kernels.
    fn blocks(&self) -> f64 {
        self.lowered.program.batch_blocks.as_ref().map_or(1.0, |blocks| blocks.count() as f64)
    }

    fn scaling(&self, call: Call, threads: u32) -> Result<Scaling> {
        let inputs = tensor::refs(&call.inputs)?;
        let rehearsed = scaling::rehearse(&self.usual, &self.stepped, threads, &inputs)?;
        let kernel = |(kernels, divided): (&Range<usize>, Divided)| KernelScaling {
            kernels: kernels.clone(),
            divided: divided.times(self.blocks()),
        };
        Ok(Scaling {
            at: call.at,
            threads,
            alone_ns: rehearsed.alone_ns,
            call: rehearsed.call,
            kernels: self.steps.iter().zip(rehearsed.steps).map(kernel).collect(),
        })
    }
}

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}
