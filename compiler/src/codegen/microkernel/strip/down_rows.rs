//! Strips whose rows are combined into one row, as in sums down the rows: for a few vectors of columns, a loop down the
//! rows, with the combined elements in registers.
//!
//! ```text
//! for row { strip c { sums[c] = sums[c] + x[row, c] } }
//! ⇒  for a few vectors of c { registers = sums[c]; for row { registers += x[row, c] }; sums[c] = registers }
//! ```
//!
//! Each element is computed by the same instructions, in the same order, as without the interchange.

use super::{
    accumulators::{Accumulator, Accumulators},
    columns::Row,
    kept::HeldStream,
    key::{Phase, StripKey},
    position::{ActiveLanes, Position, StripRegisters, VectorAccess},
};
use crate::{
    codegen::{
        microkernel::{
            body,
            body_value::BodyValue,
            lane_access::LaneAccess,
            op::{Body, Op, StreamStep, Ty},
        },
        vector::{
            Builder, VectorShape,
            vcode::{Int, IntOp},
        },
    },
    scalar::CompareOp,
};

/// Most vectors of the last columns of a row, which are one block. Their additions hide the latency of one.
const MAX_LAST_VECTORS: usize = 4;

/// The numbers of vectors of a block, and the longest body for each, by [`Body::cost`]. Blocks of more vectors read
/// longer parts of each row.
const WIDTHS: [(usize, usize); 4] = [(8, 8), (MAX_LAST_VECTORS, 16), (2, 48), (1, usize::MAX)];

/// The fewest lanes of vectors with masks for a part of a vector.
const MIN_MASKED_LANES: usize = 8;

/// The only phase of a strip, to be run down the rows.
pub(super) struct Accumulation<'a> {
    extent: u32,
    body: &'a Body,
    /// The streams that registers accumulate, and the types of their elements.
    accumulators: Vec<(u32, Ty)>,
    /// The streams that all rows load, and that none stores.
    invariants: Vec<(u32, Ty)>,
    /// The streams of a row with one element for all columns.
    uniform: Vec<(u32, Ty)>,
    /// Vectors of a block.
    vectors: usize,
}

impl<'a> Accumulation<'a> {
    /// `None` where the loops stay as they are.
    pub(super) fn of(key: &'a StripKey, shape: VectorShape) -> Option<Accumulation<'a>> {
        let [Phase::Loop { extent, body }] = &key.phases[..] else { return None };
        if !key.rows || key.accumulators.is_empty() {
            return None;
        }

        let mut found = Accumulation {
            extent: *extent,
            body,
            accumulators: Vec::new(),
            invariants: Vec::new(),
            uniform: Vec::new(),
            vectors: 0,
        };
        for &(op, ty) in &body.insts {
            match op {
                Op::Load(stream) => found.add_load(key, stream, ty)?,
                // Stores round elements of 16 bits, and those of one element have no order of columns.
                Op::Store(stream, x)
                    if key.step(stream) != StreamStep::Unit
                        || key.accumulators.contains(&stream) && matches!(body.ty(x), Ty::F16 | Ty::Bf16) =>
                {
                    return None;
                }
                Op::Set(..) | Op::Get(_) | Op::Reduce(..) | Op::Gather(..) | Op::Checked(..) | Op::Column => {
                    return None;
                }
                _ => {}
            }
        }
        found.vectors = found.max_vectors(shape)?;
        Some(found)
    }

    fn add_load(&mut self, key: &StripKey, stream: u32, ty: Ty) -> Option<()> {
        let streams = match (key.step(stream), key.row_step(stream)) {
            _ if key.accumulators.contains(&stream) => &mut self.accumulators,
            (StreamStep::Fixed, _) if !ty.is_wide() => &mut self.uniform,
            (StreamStep::Unit, StreamStep::Fixed) if !ty.is_wide() => &mut self.invariants,
            (StreamStep::Fixed | StreamStep::Unit, _) => return Some(()),
            _ => return None,
        };
        if !streams.contains(&(stream, ty)) {
            streams.push((stream, ty));
        }
        Some(())
    }

    /// The vectors of a block whose registers suffice. `None` if one vector needs more.
    fn max_vectors(&self, shape: VectorShape) -> Option<usize> {
        let registers = |streams: &[(u32, Ty)]| -> usize {
            streams.iter().map(|(_, ty)| if ty.is_wide() { 2 } else { 1 }).sum()
        };
        let is_held = |stream: u32| {
            [&self.accumulators, &self.invariants, &self.uniform]
                .iter()
                .any(|streams| streams.iter().any(|(held, _)| *held == stream))
        };
        let others = registers(&self.uniform)
            + self.body.pressure(&|_, op| !matches!(op, Op::Load(stream) if is_held(stream)));
        let each = registers(&self.accumulators) + registers(&self.invariants);
        let cost = self.body.cost();
        let fits =
            |(vectors, most): &(usize, usize)| cost <= *most && vectors * each + others <= shape.registers;
        WIDTHS.into_iter().find(fits).map(|(vectors, _)| vectors)
    }

    /// Whether a part of a vector is loaded as fast as all of it.
    fn has_masks(&self, strip: &StripRegisters<'_>, shape: VectorShape) -> bool {
        let is_masked = |&(op, ty): &(Op, Ty)| match op {
            Op::Load(stream) if strip.key.step(stream) == StreamStep::Fixed => true,
            Op::Load(_) | Op::Store(..) => match ty {
                Ty::F32 | Ty::I32 => true,
                Ty::I64 | Ty::F64 => false,
                _ => shape.narrow_masks,
            },
            _ => true,
        };
        shape.lanes >= MIN_MASKED_LANES && self.body.insts.iter().all(is_masked)
    }

    /// Emits all rows, a block of columns at a time.
    pub(super) fn emit(&self, strip: &StripRegisters<'_>, b: &mut Builder) {
        let rows = b.arg(StripKey::ROWS);
        let count = b.arg(strip.key.extent(self.extent));
        let position = strip.row_start(b, self.body);
        let lanes = b.lanes();
        let has_masks = self.has_masks(strip, b.shape());

        let max_last = if has_masks { self.vectors.min(MAX_LAST_VECTORS) } else { 1 };
        let widths = WIDTHS.into_iter().map(|(vectors, _)| vectors);
        for vectors in widths.filter(|vectors| (max_last..=self.vectors).contains(vectors)) {
            b.repeat(count, (vectors * lanes) as i32, |b| {
                self.emit_block(strip, b, &position, &vec![ActiveLanes::All; vectors], rows);
                position.advance(b, vectors * lanes);
            });
        }
        // The last columns, of which one vector is a part.
        for vectors in 1..=max_last {
            let whole = (vectors - 1) * lanes;
            b.when(CompareOp::Gt, count, whole as i32, |b| {
                b.when(CompareOp::Le, count, (whole + lanes) as i32, |b| {
                    let rest = b.int_op(IntOp::Sub, count, whole as i32);
                    let mask = b.mask_first(rest);
                    let mut active = vec![ActiveLanes::All; vectors];
                    active[vectors - 1] = ActiveLanes::First(rest, mask);
                    self.emit_block(strip, b, &position, &active, rows);
                });
            });
        }
    }

    /// Emits all rows of as many vectors of columns as `active` has elements.
    fn emit_block(
        &self,
        strip: &StripRegisters<'_>,
        b: &mut Builder,
        position: &Position,
        active: &[ActiveLanes],
        rows: Int,
    ) {
        let accesses: Vec<VectorAccess<'_>> = (0..)
            .zip(active)
            .map(|(idx, lanes): (usize, _)| VectorAccess {
                offset: idx * b.lanes(),
                ..VectorAccess::at(strip, position, *lanes)
            })
            .collect();
        let accumulators: Vec<Accumulators> =
            accesses.iter().map(|access| self.load_accumulators(b, *access)).collect();
        let invariants: Vec<Vec<HeldStream>> =
            accesses.iter().map(|access| held(b, *access, &self.invariants)).collect();

        let row = Row::first(strip, b);
        let rows = b.copy(rows);
        b.repeat(rows, 1, |b| {
            let uniform = held(b, VectorAccess { strip: &row.strip, ..accesses[0] }, &self.uniform);
            for (idx, access) in accesses.iter().enumerate() {
                let held = [&uniform[..], &invariants[idx]].concat();
                let mut access = VectorAccess {
                    strip: &row.strip,
                    held: &held,
                    accumulators: Some(&accumulators[idx]),
                    ..*access
                };
                body::emit(self.body, b, &mut access);
                accumulators[idx].update(b);
            }
            row.advance(b);
        });
        for (access, accumulators) in accesses.into_iter().zip(&accumulators) {
            self.store_accumulators(b, access, accumulators);
        }
    }

    fn load_accumulators(&self, b: &mut Builder, mut access: VectorAccess<'_>) -> Accumulators {
        let mut loaded = Vec::with_capacity(self.accumulators.len());
        for &(stream, ty) in &self.accumulators {
            let elements = if ty.is_wide() {
                BodyValue::Wide(access.load_wide(b, stream))
            } else {
                BodyValue::Lanes(access.load_from_memory(b, stream, ty))
            };
            loaded.push(Accumulator { stream, elements });
        }
        Accumulators::start(b, loaded.into_iter())
    }

    fn store_accumulators(&self, b: &mut Builder, mut access: VectorAccess<'_>, accumulators: &Accumulators) {
        for (&(stream, ty), accumulator) in self.accumulators.iter().zip(accumulators.all()) {
            match accumulator.elements {
                BodyValue::Wide(wide) => access.store_wide(b, stream, wide),
                elements => access.store(b, stream, ty, elements.lanes()),
            }
        }
    }
}

/// Loads the elements of streams.
fn held(b: &mut Builder, access: VectorAccess<'_>, streams: &[(u32, Ty)]) -> Vec<HeldStream> {
    let held =
        |&(stream, ty): &(u32, Ty)| HeldStream { stream, elements: access.load_from_memory(b, stream, ty) };
    streams.iter().map(held).collect()
}
