//! The arena plan: which buffer is above which others, from lifetimes and symbolic sizes.
//!
//! A plan is an order, not a list of offsets: `offset(b) = max over a in below(b) of offset(a) + size(a)`, with sizes
//! rounded up to [`ALIGN_BYTES`]. Buffers that are alive at once are always ordered, directly or through others. So
//! they are disjoint for every value of the symbols, and small sizes stay compact.
//!
//! Where partitions may run in any order, buffers are alive at once unless every kernel that touches one of them runs
//! before every kernel that touches the other, whatever the order.
//!
//! Each memory is planned separately. The memories of devices are stacked above the host's buffers, so that each is
//! one contiguous piece of the arena.
//!
//! The order is that of a placement at the sizes' upper bounds, see [`problem`]. [`verify`] checks plans by other
//! means.

mod arena;
mod at_sizes;
mod formula;
mod greedy;
mod interval;
mod layout;
mod lifetime;
mod monotone;
mod order;
pub mod problem;
mod search;
pub(crate) mod size;
pub mod text;
pub mod verify;

pub use arena::{ALIGN_BYTES, ArenaUsage, Placement, Plan};
pub(crate) use at_sizes::arena_bytes;
pub use formula::arena_formula;
pub(crate) use layout::{OffsetArithmetic, Span, layout};
pub(crate) use lifetime::lifetimes;
use lifetime::{Interference, Lifetime};

use crate::{
    error::{Error, ErrorKind, Result},
    kernel::{BufferId, MemoryUse, Overflow, Program},
};
use interval::BufferInterval;
use problem::Budget;
use std::collections::HashSet;
use symshape::Dim;

/// Bytes that a buffer takes in the arena, at any values of the symbols.
pub(crate) fn reserved_bytes(program: &Program, buffer: BufferId) -> Dim {
    size::reserved_bytes(program, buffer)
}

/// Plans the arena of a program.
///
/// # Errors
/// A buffer, or all of them together, can become larger than memory, or has no upper bound at all; a device has too
/// little memory.
pub fn plan(program: &Program, budget: &Budget) -> Result<Plan> {
    let plan = plan_or_overflow(program, budget)?.map_err(|overflow| overflow.error)?;
    if cfg!(debug_assertions) {
        verify::verify(program, &plan)?;
    }
    Ok(plan)
}

/// As [`plan`], but returns the overflow of a device with too little memory.
pub(crate) fn plan_or_overflow(
    program: &Program,
    budget: &Budget,
) -> Result<std::result::Result<Plan, Overflow>> {
    let all = lifetimes(program);
    let interference = Interference::of(program);
    let mut plan = Plan::default();

    let devices = (0..program.devices.len() as u32).map(Some);
    for memory in [None].into_iter().chain(devices) {
        let in_it = |life: &&Lifetime| program.buffers[life.buffer].space.device() == memory;
        let lifetimes: Vec<Lifetime> = all.iter().filter(in_it).copied().collect();
        let placements = place(program, &lifetimes, &interference, budget)?;

        let usage = ArenaUsage {
            max: highest_end(program, &placements)?,
            lower_bound: lower_bound(program, &lifetimes)?,
        };

        if let Some(number) = memory {
            if let Some(overflow) = overflow(program, number as usize, usage.max, &lifetimes)? {
                return Ok(Err(overflow));
            }
            plan.devices.push(usage);
        }

        plan.lower_bound = plan.lower_bound.saturating_add(usage.lower_bound);
        stack(&mut plan.placements, placements);
    }

    let slices = u64::from(program.arena_slices());
    plan.lower_bound = plan.lower_bound.saturating_mul(slices);
    plan.arena_max = highest_end(program, &plan.placements)?.saturating_mul(slices);
    if plan.arena_max > size::MAX_BYTES as u64 {
        return Err(too_large(program, &all));
    }
    plan.is_monotone = monotone::is_monotone(program, &plan);

    Ok(Ok(plan))
}

/// Places the buffers of one memory.
fn place(
    program: &Program,
    lifetimes: &[Lifetime],
    interference: &Interference,
    budget: &Budget,
) -> Result<Vec<Placement>> {
    let mut items = Vec::with_capacity(lifetimes.len());
    for lifetime in lifetimes {
        items.push(BufferInterval {
            id: lifetime.buffer.to_string(),
            start: lifetime.first as i64,
            end: lifetime.last as i64 + 1,
            // A buffer that is always empty is planned like any other.
            size: size::upper_bound_bytes(program, lifetime.buffer)?.max(ALIGN_BYTES) / ALIGN_BYTES,
        });
    }

    let total = items.iter().try_fold(0i64, |total, item| total.checked_add(item.size));
    if total.is_none() {
        return Err(too_large(program, lifetimes));
    }

    let interferes = |a: usize, b: usize| interference.interferes(&lifetimes[a], &lifetimes[b]);
    let offsets = match interference {
        Interference::InOrder => problem::solve(&items, budget).offsets,
        Interference::AnyOrder(..) => greedy::place(&items, &interferes),
    };

    let (lowest_first, below) = order::order(&items, &offsets, &interferes);
    let buffer = |idx: &usize| lifetimes[*idx].buffer;
    let placed = lowest_first.iter().zip(&below);
    Ok(placed
        .map(|(idx, below)| Placement { buffer: buffer(idx), below: below.iter().map(buffer).collect() })
        .collect())
}

/// Stacks a memory above all placements so far: the buffers at its bottom begin where those end.
fn stack(placements: &mut Vec<Placement>, memory: Vec<Placement>) {
    let covered: HashSet<BufferId> =
        placements.iter().flat_map(|placement| &placement.below).copied().collect();
    let tops = placements.iter().map(|placement| placement.buffer);
    let tops: Vec<BufferId> = tops.filter(|buffer| !covered.contains(buffer)).collect();
    placements.extend(memory.into_iter().map(|placement| {
        if placement.below.is_empty() { Placement { below: tops.clone(), ..placement } } else { placement }
    }));
}

/// The reason why a device's buffers don't fit into its memory, if they don't.
fn overflow(program: &Program, number: usize, max: u64, lifetimes: &[Lifetime]) -> Result<Option<Overflow>> {
    let device = &program.devices[number];
    if max <= device.bytes {
        return Ok(None);
    }
    let message = format!(
        "the tensors alive at once take up to {max} bytes, but the memory of the device has {}{}",
        device.bytes,
        largest(program, lifetimes)
    );
    let error = Error::unsupported(message).at(format!("target {}", device.target));

    let mut steps = vec![MemoryUse::default(); program.kernels.len()];
    for lifetime in lifetimes {
        let bytes = size::upper_bound_bytes(program, lifetime.buffer)? as u64;
        for step in &mut steps[lifetime.first..=lifetime.last] {
            step.live = step.live.saturating_add(bytes);
            if step.largest.is_none() || bytes > step.largest_bytes {
                step.largest = Some(lifetime.buffer);
                step.largest_bytes = bytes;
            }
        }
    }
    Ok(Some(Overflow { device: number, needed: max, steps, error }))
}

/// The end of the highest buffer, each buffer at its upper bound.
fn highest_end(program: &Program, placements: &[Placement]) -> Result<u64> {
    let spans = layout(placements, &mut UpperBounds { program })?;
    Ok(spans.iter().map(|span| span.end).max().unwrap_or(0))
}

/// Offsets in bytes, each buffer at its upper bound.
struct UpperBounds<'p> {
    program: &'p Program,
}

impl OffsetArithmetic for UpperBounds<'_> {
    type Offset = u64;

    fn largest(&mut self, ends: Vec<u64>) -> Result<u64> {
        Ok(ends.into_iter().max().unwrap_or(0))
    }

    fn end(&mut self, buffer: BufferId, begin: &u64) -> Result<u64> {
        let bytes = size::upper_bound_bytes(self.program, buffer)?;
        Ok(begin.saturating_add(bytes as u64))
    }
}

/// The maximum of the bytes alive at once when kernels run one after another.
fn lower_bound(program: &Program, lifetimes: &[Lifetime]) -> Result<u64> {
    let mut live = vec![0u64; program.kernels.len()];
    for lifetime in lifetimes {
        let size = size::upper_bound_bytes(program, lifetime.buffer)? as u64;
        live[lifetime.first..=lifetime.last].iter_mut().for_each(|live| *live = live.saturating_add(size));
    }
    Ok(live.into_iter().max().unwrap_or(0))
}

fn too_large(program: &Program, lifetimes: &[Lifetime]) -> Error {
    Error::new(ErrorKind::Limit, format!("the arena can exceed 2^47 bytes{}", largest(program, lifetimes)))
}

/// Names the largest of some buffers.
fn largest(program: &Program, lifetimes: &[Lifetime]) -> String {
    let size = |lifetime: &&Lifetime| size::upper_bound_bytes(program, lifetime.buffer).unwrap_or(i64::MAX);
    let Some(lifetime) = lifetimes.iter().max_by_key(size) else { return String::new() };
    let id = lifetime.buffer;
    let buffer = &program.buffers[id];
    let bytes = program.bytes(id);
    let max = size(&lifetime);
    format!("; the largest buffer, {id:?} {} of {bytes} bytes, takes up to {max}", buffer.name)
}
