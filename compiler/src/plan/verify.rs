//! Verifies a plan, by other means than the planner's.
//!
//! The buffers that are alive at once are determined again, kernel by kernel. Two checks follow:
//! - For every value of the symbols: if two buffers are alive at once, one is reached from the other along `below`, so
//!   its offset is at least the other's end.
//! - Numerically: at the corners of the box of all symbols, offsets are computed from the sizes. Buffers alive at once
//!   must be disjoint and end within the arena. The memory of a device must be one piece without other buffers.
//!
//! Where partitions may run in any order, the checks hold for every order.

use super::arena::{ALIGN_BYTES, Plan};
use crate::{
    error::{Error, Result},
    kernel::{BufferId, Control, Inst, Kernel, MemorySpace, Policies, Program, Rhs, Stmt},
};
use num_bigint::BigInt;
use num_integer::Integer;
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Comparison, Symbol};

/// The result of a verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// Buffers placed.
    pub buffers: usize,
    /// Pairs of buffers that are alive at once.
    pub pairs: usize,
    /// Values of the symbols at which the plan was checked numerically.
    pub corners: usize,
    /// The maximum of the bytes alive at once, each buffer at its upper bound.
    pub max_live: u64,
    /// The plan's upper bound of the arena.
    pub height: u64,
}

impl Certificate {
    /// The distance from the live bytes to the height, as a fraction of the live bytes.
    pub fn gap(&self) -> f64 {
        match self.max_live {
            0 => 0.0,
            live => (self.height as f64 - live as f64) / live as f64,
        }
    }
}

/// With more symbols than this, only some corners are checked.
const MAX_CORNERS: usize = 64;

/// Checks a plan.
///
/// # Errors
/// The first rule of this module that is broken.
pub fn verify(program: &Program, plan: &Plan) -> Result<Certificate> {
    let alive = alive_sets(program);
    check_placements(plan, &alive)?;

    let mut pairs = pairs(&alive);
    if program.policies == Policies::Any {
        pairs.extend(pairs_in_any_order(program));
    }

    check_order(plan, &pairs)?;
    let mut corners = 0;
    for corner in corners_of(program) {
        corners += usize::from(check_corner(program, plan, &pairs, &corner)?);
    }

    let max_live = check_memories(program, plan, &alive)?;
    let max_live = max_live.saturating_mul(u64::from(program.arena_slices()));
    if plan.lower_bound != max_live {
        return Err(wrong(format!("the bound is {}, but {max_live} bytes are alive", plan.lower_bound)));
    }

    Ok(Certificate {
        buffers: plan.placements.len(),
        pairs: pairs.len(),
        corners,
        max_live,
        height: plan.arena_max,
    })
}

fn wrong(message: String) -> Error {
    Error::internal(format!("the arena plan is wrong: {message}"))
}

/// For each kernel, the buffers in the arena that must hold their contents while it runs.
fn alive_sets(program: &Program) -> Vec<BTreeSet<BufferId>> {
    let used: Vec<BTreeSet<BufferId>> = program.kernels.iter().map(|kernel| uses(program, kernel)).collect();
    let mut alive: Vec<BTreeSet<BufferId>> = (0..used.len())
        .map(|now| {
            let before: BTreeSet<BufferId> = used[..=now].iter().flatten().copied().collect();
            let after: BTreeSet<BufferId> = used[now..].iter().flatten().copied().collect();
            before.intersection(&after).copied().collect()
        })
        .collect();

    // A buffer that enters a loop or is needed after it is alive in every iteration. Inner loops come first.
    for (begin, end) in program.while_loops() {
        let outside: BTreeSet<BufferId> =
            used[..begin].iter().chain(&used[end + 1..]).flatten().copied().collect();
        let crossing: BTreeSet<BufferId> =
            used[begin..=end].iter().flatten().filter(|id| outside.contains(id)).copied().collect();
        alive[begin..=end].iter_mut().for_each(|set| set.extend(&crossing));
    }

    // The kernels of a group run again for each sequence.
    for group in program.sequence_groups() {
        let within: BTreeSet<BufferId> = alive[group.clone()].iter().flatten().copied().collect();
        alive[group.clone()].iter_mut().for_each(|set| set.extend(&within));
    }

    alive
}

fn uses(program: &Program, kernel: &Kernel) -> BTreeSet<BufferId> {
    let mut found = BTreeSet::new();
    match &kernel.control {
        Some(Control::If(cell) | Control::While(cell) | Control::Bind { from: cell, .. }) => {
            found.insert(*cell);
        }
        Some(Control::Call(call)) => {
            found.extend(call.operands.iter().chain(&call.results).map(|argument| argument.first.buffer));
            found.extend(call.scratch);
        }
        Some(Control::Else | Control::End | Control::Require(_) | Control::Fail(_)) | None => {}
    }

    let mut queue: Vec<&Stmt> = kernel.body.iter().collect();
    while let Some(stmt) = queue.pop() {
        let mut code = None;
        match stmt {
            Stmt::For { body, .. } | Stmt::While { body, .. } => queue.extend(body),
            Stmt::If { then, otherwise, .. } => queue.extend(then.iter().chain(otherwise)),
            Stmt::Block(block) | Stmt::Strip { code: block, .. } => code = Some(block),
            Stmt::Contraction(contraction) => {
                found.insert(contraction.lhs.buffer);
                found.insert(match &contraction.rhs {
                    Rhs::Indexed(access) => access.buffer,
                    Rhs::Panels { buffer, .. } => *buffer,
                    Rhs::FewBits(panels) => panels.buffer,
                });
                found.extend(contraction.scratch());
                code = Some(&contraction.epilogue);
            }
        }

        found.extend(code.into_iter().flat_map(|code| &code.insts).filter_map(|inst| match inst {
            Inst::Load(access) | Inst::Store(access, _) => Some(access.buffer),
            _ => None,
        }));
    }

    found.retain(|id| program.buffers[*id].space.is_planned());
    found
}

/// Each buffer that is used is placed once, after those below it.
fn check_placements(plan: &Plan, alive: &[BTreeSet<BufferId>]) -> Result<()> {
    let mut placed = BTreeSet::new();
    for placement in &plan.placements {
        if let Some(other) = placement.below.iter().find(|other| !placed.contains(*other)) {
            return Err(wrong(format!("{other:?} is below {:?}, and is placed later", placement.buffer)));
        }
        if !placed.insert(placement.buffer) {
            return Err(wrong(format!("{:?} is placed twice", placement.buffer)));
        }
    }

    match alive.iter().flatten().find(|id| !placed.contains(*id)) {
        None => Ok(()),
        Some(id) => Err(wrong(format!("{id:?} has no place"))),
    }
}

fn pairs(alive: &[BTreeSet<BufferId>]) -> BTreeSet<(BufferId, BufferId)> {
    let mut pairs = BTreeSet::new();
    for set in alive {
        for a in set {
            pairs.extend(set.range(..*a).map(|b| (*b, *a)));
        }
    }
    pairs
}

/// Pairs of buffers that are alive at once in some order of the partitions. For such a pair, neither buffer is dead
/// before the first use of the other in every order.
fn pairs_in_any_order(program: &Program) -> BTreeSet<(BufferId, BufferId)> {
    // A kernel runs before another in every order if a path of dependencies leads from one partition to the other.
    let n = program.partitions.len();

    let mut leads = vec![vec![false; n]; n];
    for (to, partition) in program.partitions.iter().enumerate() {
        for from in &partition.after {
            for (earlier, leads) in leads.iter_mut().enumerate() {
                leads[to] |= earlier == *from || leads[*from];
            }
        }
    }

    let mut moments: BTreeMap<BufferId, Vec<(usize, usize)>> = BTreeMap::new();
    let alive = alive_sets(program);

    for (number, partition) in program.partitions.iter().enumerate() {
        let used: BTreeSet<BufferId> = program.kernels[partition.kernels.clone()]
            .iter()
            .flat_map(|kernel| uses(program, kernel))
            .collect();
        for kernel in partition.kernels.clone() {
            for id in alive[kernel].intersection(&used) {
                moments.entry(*id).or_default().push((number, kernel));
            }
        }
    }

    let first = |a: &[(usize, usize)], b: &[(usize, usize)]| {
        let pairs = a.iter().flat_map(|x| b.iter().map(move |y| (x, y)));
        pairs.into_iter().all(|(x, y)| if x.0 == y.0 { x.1 < y.1 } else { leads[x.0][y.0] })
    };

    let mut pairs = BTreeSet::new();
    for (a, own) in &moments {
        for (b, other) in moments.range(..*a) {
            if !first(own, other) && !first(other, own) {
                pairs.insert((*b, *a));
            }
        }
    }

    pairs
}

/// Checks that in each pair, one buffer is reached from the other.
fn check_order(plan: &Plan, pairs: &BTreeSet<(BufferId, BufferId)>) -> Result<()> {
    let mut reached: BTreeMap<BufferId, BTreeSet<BufferId>> = BTreeMap::new();
    for placement in &plan.placements {
        let mut under: BTreeSet<BufferId> = placement.below.iter().copied().collect();
        for other in &placement.below {
            under.extend(&reached[other]);
        }
        reached.insert(placement.buffer, under);
    }

    match pairs.iter().find(|(a, b)| !reached[a].contains(b) && !reached[b].contains(a)) {
        None => Ok(()),
        Some((a, b)) => {
            Err(wrong(format!("{a:?} and {b:?} are alive at once, and neither is below the other")))
        }
    }
}

/// Where a buffer begins and ends.
type Span = (BigInt, BigInt);

type Corner = BTreeMap<Symbol, BigInt>;

/// Combinations of the ends of the symbols' ranges.
fn corners_of(program: &Program) -> Vec<Corner> {
    let mut corners = vec![Corner::new()];
    for symbol in &program.symbols {
        let declared = program.facts.declaration(symbol);
        let lo = declared.map_or(BigInt::ZERO, |declared| declared.lo.clone());
        let hi = declared.and_then(|declared| declared.hi.clone()).unwrap_or_else(|| lo.clone());

        let with = |value: &BigInt, corners: &[Corner]| -> Vec<Corner> {
            let mut corners = corners.to_vec();
            corners.iter_mut().for_each(|corner| drop(corner.insert(symbol.clone(), value.clone())));
            corners
        };

        let mut next = with(&hi, &corners);
        if corners.len() * 2 <= MAX_CORNERS {
            next.extend(with(&lo, &corners));
        }

        corners = next;
    }

    corners
}

/// Whether the call contract allows the corner; if so, checks the plan there.
fn check_corner(
    program: &Program,
    plan: &Plan,
    pairs: &BTreeSet<(BufferId, BufferId)>,
    corner: &Corner,
) -> Result<bool> {
    let value_of = |symbol: &Symbol| corner.get(symbol).cloned();
    for assumption in program.facts.assumptions() {
        let relation = &assumption.relation;

        // Relations between data-dependent symbols do not restrict sizes.
        let is_data_dependent =
            |dim: &symshape::Dim| program.data_dependent.iter().any(|entry| dim.contains(&entry.symbol));
        if is_data_dependent(&relation.a) || is_data_dependent(&relation.b) {
            continue;
        }

        let (Ok(a), Ok(b)) = (relation.a.eval(&value_of), relation.b.eval(&value_of)) else {
            return Ok(false);
        };

        let holds = match relation.comparison {
            Comparison::Eq => a == b,
            Comparison::Ne => a != b,
            Comparison::Lt => a < b,
            Comparison::Le => a <= b,
            Comparison::Divides => a != BigInt::ZERO && b.is_multiple_of(&a),
        };

        if !holds {
            return Ok(false);
        }
    }

    let mut spans: BTreeMap<BufferId, Span> = BTreeMap::new();
    for placement in &plan.placements {
        let buffer = &program.buffers[placement.buffer];
        let Ok(elems) = buffer.elems.eval(&value_of) else { return Ok(false) };
        let bytes = (elems * buffer.dtype.size_bytes()).max(BigInt::ZERO);
        let size =
            bytes.div_ceil(&BigInt::from(ALIGN_BYTES)) * ALIGN_BYTES * copies(program, placement.buffer);

        let below = placement.below.iter().map(|other| &spans[other].1);
        let begin = below.max().cloned().unwrap_or(BigInt::ZERO);
        let end = &begin + size;
        if &end * program.arena_slices() > BigInt::from(plan.arena_max) {
            return Err(wrong(format!(
                "{:?} ends at {end} of {} where {corner:?}",
                placement.buffer, plan.arena_max
            )));
        }

        spans.insert(placement.buffer, (begin, end));
    }

    check_devices(program, plan, &spans).map_err(|what| wrong(format!("{what} where {corner:?}")))?;
    let apart = |a: &Span, b: &Span| a.1 <= b.0 || b.1 <= a.0;
    match pairs.iter().find(|(a, b)| !apart(&spans[a], &spans[b])) {
        None => Ok(true),
        Some((a, b)) => Err(wrong(format!("{a:?} and {b:?} overlap where {corner:?}"))),
    }
}

/// How often a buffer is in a part of the arena.
fn copies(program: &Program, buffer: BufferId) -> u32 {
    if matches!(program.buffers[buffer].space, MemorySpace::Scratch) { program.workers.max(1) } else { 1 }
}

/// The maximum of the bytes alive at once, summed over memories. Each device must have them, and the plan must agree.
fn check_memories(program: &Program, plan: &Plan, alive: &[BTreeSet<BufferId>]) -> Result<u64> {
    if plan.devices.len() != program.devices.len() {
        return Err(wrong(format!("{} devices of {}", plan.devices.len(), program.devices.len())));
    }

    let mut total = max_live(program, alive, None)?;
    for (number, (usage, device)) in plan.devices.iter().zip(&program.devices).enumerate() {
        let live = max_live(program, alive, Some(number as u32))?;
        if usage.lower_bound != live || usage.max < live || usage.max > device.bytes {
            return Err(wrong(format!("{usage:?} of {device:?}, where {live} bytes are alive")));
        }
        total += live;
    }

    Ok(total)
}

/// The maximum of the bytes alive at once in one memory.
fn max_live(program: &Program, alive: &[BTreeSet<BufferId>], device: Option<u32>) -> Result<u64> {
    let mut max = BigInt::ZERO;
    for set in alive {
        let mut live = BigInt::ZERO;
        for id in set.iter().filter(|id| program.buffers[**id].space.device() == device) {
            let buffer = &program.buffers[*id];
            let bytes = &buffer.elems * buffer.dtype.size_bytes() as i64;
            let hi = program.facts.bounds(&program.facts.simplify(&bytes)).hi;
            let hi = hi.ok_or_else(|| wrong(format!("{id:?} has no bound")))?.max(BigInt::ZERO);
            live += hi.div_ceil(&BigInt::from(ALIGN_BYTES)) * ALIGN_BYTES * copies(program, *id);
        }
        max = max.max(live);
    }

    u64::try_from(max).map_err(|error| wrong(error.to_string()))
}

/// Checks that each device's buffers form one piece of memory, no longer than planned, without other buffers.
fn check_devices(
    program: &Program,
    plan: &Plan,
    spans: &BTreeMap<BufferId, Span>,
) -> std::result::Result<(), String> {
    for (number, usage) in plan.devices.iter().enumerate() {
        let is_own = |id: &BufferId| program.buffers[*id].space.device() == Some(number as u32);
        let own = || spans.iter().filter(|(id, _)| is_own(id)).map(|(_, span)| span);
        let (Some(begin), Some(end)) = (own().map(|span| &span.0).min(), own().map(|span| &span.1).max())
        else {
            continue;
        };

        if end - begin > BigInt::from(usage.max) {
            return Err(format!("device {number} takes {} of {} bytes", end - begin, usage.max));
        }

        let inside = |span: &Span| span.0 < *end && span.1 > *begin && span.0 < span.1;
        if let Some((id, _)) = spans.iter().find(|(id, span)| !is_own(id) && inside(span)) {
            return Err(format!("{id:?} is in the memory of device {number}"));
        }
    }
    Ok(())
}
