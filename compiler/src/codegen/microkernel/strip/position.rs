//! The place of one vector of iterations in the streams of a strip.

use super::{
    accumulators::Accumulators,
    alternate::{AlternateLanes, AlternatePairs, WORD, WaitingPairs},
    groups::{self, WaitingStreams},
    kept::{HeldStream, KeptValues},
    key::{Stream, StripKey},
    reduction::Reduction,
    repeated::LastPermutation,
};
use crate::{
    codegen::{
        microkernel::{
            body_value::BodyValue,
            lane_access::{self, LaneAccess, QuadWeights},
            memory,
            op::{Body, LaneOfGroup, Op, StreamStep, Ty},
            wide::{self, Wide},
        },
        vector::{
            Builder,
            vcode::{Int, IntOp, IntWidth, Mask, MaskOp, Mem, VBinary, Vector},
        },
    },
    scalar::ReduceOp,
};

/// The bytes of two words.
const ALTERNATE_BYTES: usize = 2 * WORD;

/// The lanes of a vector that are iterations.
#[derive(Clone, Copy)]
pub(super) enum ActiveLanes {
    All,
    /// The first ones: their number and mask.
    First(Int, Mask),
    /// Lane 0, whose mask this is.
    One(Mask),
}

/// The registers of a strip.
pub(super) struct StripRegisters<'a> {
    pub(super) key: &'a StripKey,
    /// The address of the current row, for each pointer.
    pub(super) pointers: Vec<Int>,
    pub(super) variables: Vec<Vector>,
    /// Not zero if a check failed. `None` if the strip has none.
    pub(super) failed: Option<Int>,
}

impl StripRegisters<'_> {
    /// The position of the first element of a row, in the streams of `body`.
    pub(super) fn row_start(&self, b: &mut Builder, body: &Body) -> Position {
        let mut strided = vec![None; self.key.pointers.len()];
        for idx in self.strided_pointers(body) {
            let pointer = b.copy(self.pointers[idx as usize]);
            let stride = b.arg(self.key.pointer(idx) + 2);
            strided[idx as usize] = Some(StridedPointer { pointer, stride });
        }
        Position { elements: b.imm(0), strided }
    }

    /// The pointers that `body` uses and that move by a stride, in ascending order.
    pub(super) fn strided_pointers(&self, body: &Body) -> Vec<u32> {
        let mut pointers: Vec<u32> = body
            .insts
            .iter()
            .filter_map(|(op, _)| match op {
                Op::Load(stream) | Op::Store(stream, _) => Some(self.key.streams[*stream as usize].pointer),
                _ => None,
            })
            .filter(|pointer| {
                matches!(self.key.pointers[*pointer as usize], StreamStep::Stride | StreamStep::Group(_))
            })
            .collect();

        pointers.sort_unstable();
        pointers.dedup();
        pointers
    }
}

/// A pointer at the current element.
#[derive(Clone, Copy)]
pub(super) struct StridedPointer {
    pub(super) pointer: Int,
    /// Bytes from element to element.
    pub(super) stride: Int,
}

/// The current element of a loop phase.
pub(super) struct Position {
    /// Elements before it in the row; the offset in streams of unit steps.
    elements: Int,
    /// The pointers that move by strides, at their indices.
    pub(super) strided: Vec<Option<StridedPointer>>,
}

impl Position {
    /// The first element of a row, in streams without strides.
    pub(super) fn first(b: &mut Builder) -> Position {
        Position { elements: b.imm(0), strided: Vec::new() }
    }

    pub(super) fn advance(&self, b: &mut Builder, elements: usize) {
        b.advance(self.elements, elements as i32);
        for &StridedPointer { pointer, stride } in self.strided.iter().flatten() {
            let step = b.int_op(IntOp::Mul, stride, elements as i32);
            b.advance(pointer, step);
        }
    }
}

/// The memory and registers of one vector of iterations of a phase.
#[derive(Clone, Copy)]
pub(super) struct VectorAccess<'a> {
    pub(super) strip: &'a StripRegisters<'a>,
    /// `None` in scalar phases.
    pub(super) position: Option<&'a Position>,
    pub(super) lanes: ActiveLanes,
    pub(super) reductions: &'a [Reduction],
    /// The partial results of reductions that this vector adds to.
    pub(super) partial: usize,
    /// Elements from the position to the first lane.
    pub(super) offset: usize,
    pub(super) held: &'a [HeldStream],
    /// The values that the row stored before, where registers keep them.
    pub(super) kept: Option<&'a KeptValues>,
    /// The elements that all rows load and store, where registers keep them.
    pub(super) accumulators: Option<&'a Accumulators>,
    /// The weights of sums of products of bytes, if registers hold them.
    pub(super) quad_weights: Option<&'a QuadWeights>,
    /// The lanes of streams with a distance of two elements, if not all lanes are iterations.
    pub(super) alternate: Option<AlternateLanes>,
    /// Such streams that share their loads.
    pub(super) pairs: Option<&'a AlternatePairs>,
    pub(super) waiting: WaitingPairs,
    /// The group that the strip stores.
    pub(super) group: WaitingStreams,
    pub(super) permutation: LastPermutation,
}

impl<'a> VectorAccess<'a> {
    /// The access of a scalar phase.
    pub(super) fn scalar(strip: &'a StripRegisters<'a>) -> VectorAccess<'a> {
        VectorAccess {
            strip,
            position: None,
            lanes: ActiveLanes::All,
            reductions: &[],
            partial: 0,
            offset: 0,
            held: &[],
            kept: None,
            accumulators: None,
            quad_weights: None,
            alternate: None,
            pairs: None,
            waiting: WaitingPairs::default(),
            group: WaitingStreams::default(),
            permutation: LastPermutation::default(),
        }
    }

    /// The access at a position of a loop phase.
    pub(super) fn at(
        strip: &'a StripRegisters<'a>,
        position: &'a Position,
        lanes: ActiveLanes,
    ) -> VectorAccess<'a> {
        VectorAccess { position: Some(position), lanes, ..VectorAccess::scalar(strip) }
    }

    /// The first lane in a short row. `None` in scalar phases.
    fn element(&self) -> Option<usize> {
        self.position.map(|_| self.offset)
    }

    fn position(&self) -> &'a Position {
        self.position.expect("scalar phases access fixed streams only")
    }

    /// The address of a stream's first lane, for unit steps.
    pub(super) fn unit(&self, stream: u32, ty: Ty) -> Mem {
        self.steps(stream, memory::elem_bytes(ty))
    }

    /// The address of a stream's first lane, for steps of two words.
    fn alternate(&self, stream: u32) -> Mem {
        self.steps(stream, ALTERNATE_BYTES)
    }

    /// The address of a stream's first lane, whose elements are `bytes` bytes apart.
    fn steps(&self, stream: u32, bytes: usize) -> Mem {
        let elements = self.position().elements;
        Mem { index: Some((elements, bytes as u8)), ..self.fixed(stream).plus(bytes * self.offset) }
    }

    /// The address of a stream's element, where it does not move.
    fn fixed(&self, stream: u32) -> Mem {
        let Stream { pointer, offset } = self.strip.key.streams[stream as usize];
        Mem { base: self.strip.pointers[pointer as usize], index: None, disp: offset }
    }

    /// The addresses of a stream's lanes, for strided steps.
    fn strided(&self, b: &mut Builder, stream: u32) -> Vec<Mem> {
        if self.strip.key.step(stream) == StreamStep::Alternate {
            let lanes = if matches!(self.lanes, ActiveLanes::One(_)) { 1 } else { b.lanes() };
            return (0..lanes).map(|lane| self.alternate(stream).plus(ALTERNATE_BYTES * lane)).collect();
        }
        let Stream { pointer, offset: disp } = self.strip.key.streams[stream as usize];
        let StridedPointer { pointer, stride } =
            self.position().strided[pointer as usize].expect("the position has the pointers of its body");
        if matches!(self.lanes, ActiveLanes::One(_)) {
            return vec![Mem { base: pointer, index: None, disp }];
        }
        b.lane_addresses(pointer, stride).into_iter().map(|address| Mem { disp, ..address }).collect()
    }

    /// The elements of a stream, from memory.
    pub(super) fn load_from_memory(&self, b: &mut Builder, stream: u32, ty: Ty) -> Vector {
        match (self.strip.key.step(stream), self.lanes) {
            (StreamStep::Fixed, _) => memory::broadcast(b, self.fixed(stream), ty),
            (StreamStep::Unit, ActiveLanes::All) => memory::load(b, self.unit(stream, ty), ty),
            (StreamStep::Unit, ActiveLanes::First(n, mask)) => {
                memory::load_first(b, self.unit(stream, ty), ty, n, mask)
            }
            (StreamStep::Unit, ActiveLanes::One(_)) => memory::load_one(b, self.unit(stream, ty), ty),
            (StreamStep::Alternate, ActiveLanes::All | ActiveLanes::First(..)) => {
                self.load_alternate(b, stream, ty)
            }
            (StreamStep::Stride, ActiveLanes::All) => {
                let addresses = self.strided(b, stream);
                memory::load_lanes(b, addresses, ty)
            }
            (StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_), _) => {
                let addresses = self.strided(b, stream);
                memory::load_one(b, addresses[0], ty)
            }
        }
    }

    /// Every second element, of one stream.
    fn load_alternate(&self, b: &mut Builder, stream: u32, ty: Ty) -> Vector {
        let [first, second] = self.load_neighbours(b, stream, ty, false);
        b.binary(VBinary::EvenThenOdd, first, second)
    }

    /// Two vectors with every second element, of one stream or of two. The second vector ends with the last element of
    /// the last stream, so that nothing behind it is read.
    fn load_neighbours(&self, b: &mut Builder, stream: u32, ty: Ty, are_shared: bool) -> [Vector; 2] {
        let first = self.alternate(stream);
        let distance = if are_shared { b.lanes() } else { b.lanes() - 1 };
        let both = [first, first.plus(memory::elem_bytes(ty) * distance)];
        match self.alternate {
            None => both.map(|mem| memory::load(b, mem, ty)),
            Some(lanes) => {
                let [first, second] = lanes.of(are_shared);
                [(both[0], first), (both[1], second)]
                    .map(|(mem, (count, mask))| memory::load_first(b, mem, ty, count, mask))
            }
        }
    }

    /// Stores a stream of a group, together with the others of it.
    fn store_to_group(&mut self, b: &mut Builder, stream: u32, streams: u8, ty: Ty, value: Vector) {
        let Stream { pointer, offset } = self.strip.key.streams[stream as usize];
        let first = self.strip.key.first_offset(pointer);
        let strided = self.position().strided[pointer as usize];
        let base = strided.expect("the position has the pointers of its body").pointer;
        let mem = Mem { base, index: None, disp: first };
        let value = memory::clamped(b, ty, value);
        let place = [(offset - first) as usize / memory::elem_bytes(ty), usize::from(streams)];
        let lanes = match self.lanes {
            ActiveLanes::First(n, mask) => Some((n, mask)),
            ActiveLanes::All => None,
            ActiveLanes::One(_) => unreachable!("single iterations store single bytes"),
        };
        self.group.add(b, mem, lanes, place, (ty, value));
    }

    /// The elements of a stream that shares its loads.
    fn load_shared(&mut self, b: &mut Builder, stream: u32, ty: Ty) -> Option<Vector> {
        let pairs = self.pairs.filter(|_| !matches!(self.lanes, ActiveLanes::One(_)))?;
        let mut waiting = self.waiting;
        let elements = waiting.load(b, pairs, stream, |b, first| self.load_neighbours(b, first, ty, true));
        self.waiting = waiting;
        elements
    }
}

impl LaneAccess for VectorAccess<'_> {
    fn load(&mut self, b: &mut Builder, stream: u32, ty: Ty) -> Vector {
        if let Some(elements) = self.accumulators.and_then(|accumulators| accumulators.load(stream)) {
            return elements.lanes();
        }
        let kept = self.kept.and_then(|kept| kept.load(self.strip.key, stream, self.element(), ty));
        let held = self.held.iter().find(|held| held.stream == stream).map(|held| held.elements);
        match kept.or(held) {
            Some(elements) => elements,
            None => match self.load_shared(b, stream, ty) {
                Some(elements) => elements,
                None => self.load_from_memory(b, stream, ty),
            },
        }
    }

    fn load_repeated(&mut self, b: &mut Builder, stream: u32, ty: Ty, place: LaneOfGroup) -> Vector {
        let group = usize::from(place.group);
        let is_one = matches!(self.lanes, ActiveLanes::One(_));
        if !is_one && b.lanes() > group {
            let elements = self.load_from_memory(b, stream, ty);
            return self.permutation.repeat(b, elements, place);
        }

        // All lanes are in one group.
        let size = memory::elem_bytes(ty);
        let first = if is_one || b.lanes() < group {
            let element = b.int_op(IntOp::Add, self.position().elements, self.offset as i32);
            let first = b.int_op(IntOp::And, element, -i32::from(place.group));
            Mem { index: Some((first, size as u8)), ..self.fixed(stream) }
        } else {
            self.unit(stream, ty)
        };
        memory::broadcast(b, first.plus(size * usize::from(place.lane)), ty)
    }

    fn load_quad(&mut self, b: &mut Builder, streams: &[u32]) -> Vector {
        let is_whole = matches!(self.lanes, ActiveLanes::All)
            && streams.iter().all(|stream| self.strip.key.step(*stream) == StreamStep::Unit);
        if is_whole && streams.len() > 1 {
            return b.load_interleaved(streams.iter().map(|stream| self.unit(*stream, Ty::U8)).collect());
        }
        lane_access::combined_bytes(self, b, streams)
    }

    fn quad_weights(&self) -> Option<&QuadWeights> {
        self.quad_weights
    }

    fn store(&mut self, b: &mut Builder, stream: u32, ty: Ty, value: Vector) {
        if let Some(accumulators) = self.accumulators
            && accumulators.store(b, stream, ty, BodyValue::Lanes(value))
        {
            return;
        }
        // A later load may read the stored elements.
        self.waiting = WaitingPairs::default();
        if let Some(kept) = self.kept {
            let value = if self.strip.variables.contains(&value) { b.variable(value) } else { value };
            kept.store(self.strip.key, stream, self.element(), (ty, value));
        }
        match (self.strip.key.step(stream), self.lanes) {
            (StreamStep::Fixed, _) => memory::store_one(b, self.fixed(stream), ty, value),
            (StreamStep::Unit, ActiveLanes::All) => memory::store(b, self.unit(stream, ty), ty, value),
            (StreamStep::Unit, ActiveLanes::First(n, mask)) => {
                memory::store_first(b, self.unit(stream, ty), ty, value, n, Some(mask));
            }
            (StreamStep::Unit, ActiveLanes::One(_)) => {
                memory::store_one(b, self.unit(stream, ty), ty, value);
            }
            (StreamStep::Group(streams), ActiveLanes::All | ActiveLanes::First(..))
                if groups::are_bytes_stored_together(streams, ty, b.shape()) =>
            {
                self.store_to_group(b, stream, streams, ty, value);
            }
            (StreamStep::Group(streams), ActiveLanes::All)
                if groups::are_words_stored_together(ty, b.shape()) =>
            {
                self.store_to_group(b, stream, streams, ty, value);
            }
            (StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_), ActiveLanes::All) => {
                let addresses = self.strided(b, stream);
                memory::store_lanes(b, addresses, ty, value);
            }
            (StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_), _) => {
                let addresses = self.strided(b, stream);
                memory::store_one(b, addresses[0], ty, value);
            }
        }
    }

    fn load_wide(&mut self, b: &mut Builder, stream: u32) -> Wide {
        if let Some(elements) = self.accumulators.and_then(|accumulators| accumulators.load(stream)) {
            return elements.wide();
        }
        match (self.strip.key.step(stream), self.lanes) {
            (StreamStep::Fixed, _) => wide::broadcast(b, self.fixed(stream)),
            (StreamStep::Unit, ActiveLanes::All) => wide::load(b, self.unit(stream, Ty::I64)),
            (StreamStep::Unit, ActiveLanes::First(n, _)) => {
                wide::load_first(b, self.unit(stream, Ty::I64), n)
            }
            (StreamStep::Unit, ActiveLanes::One(_)) => wide::broadcast(b, self.unit(stream, Ty::I64)),
            (StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_), ActiveLanes::All) => {
                let addresses = self.strided(b, stream);
                wide::load_lanes(b, &addresses)
            }
            (StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_), _) => {
                let addresses = self.strided(b, stream);
                wide::broadcast(b, addresses[0])
            }
        }
    }

    fn store_wide(&mut self, b: &mut Builder, stream: u32, value: Wide) {
        if let Some(accumulators) = self.accumulators
            && accumulators.store(b, stream, Ty::I64, BodyValue::Wide(value))
        {
            return;
        }
        match (self.strip.key.step(stream), self.lanes) {
            (StreamStep::Fixed, _) => wide::store_one(b, self.fixed(stream), value),
            (StreamStep::Unit, ActiveLanes::All) => wide::store(b, self.unit(stream, Ty::I64), value),
            (StreamStep::Unit, ActiveLanes::First(n, _)) => {
                wide::store_first(b, self.unit(stream, Ty::I64), value, n);
            }
            (StreamStep::Unit, ActiveLanes::One(_)) => {
                wide::store_one(b, self.unit(stream, Ty::I64), value);
            }
            (StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_), ActiveLanes::All) => {
                let addresses = self.strided(b, stream);
                wide::store_lanes(b, &addresses, value);
            }
            (StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_), _) => {
                let addresses = self.strided(b, stream);
                wide::store_one(b, addresses[0], value);
            }
        }
    }

    fn column(&mut self, b: &mut Builder) -> Vector {
        let first = b.arg(self.strip.key.first());
        let elements = b.int_op(IntOp::Add, self.position().elements, self.offset as i32);
        let column = b.int_op(IntOp::Add, elements, first);
        b.count_from(column)
    }

    fn gather(&mut self, b: &mut Builder, stream: u32, offsets: Vector) -> Vector {
        let origin = self.fixed(stream);
        match self.lanes {
            ActiveLanes::All => return b.gather(origin, offsets),
            // Past the end of the loop, only the origin is sure to exist.
            ActiveLanes::First(_, mask) => {
                let zero = b.bits(0);
                let offsets = b.select(mask, offsets, zero);
                return b.gather(origin, offsets);
            }
            ActiveLanes::One(_) => {}
        }
        let scratch = Mem::from(b.narrow_scratch());
        b.store_one(scratch, offsets);
        let offset = b.load_int(scratch, IntWidth::I32);
        b.load_one(Mem { index: Some((offset, 4)), ..origin })
    }

    fn fail_where(&mut self, b: &mut Builder, failures: Mask) {
        let failures = match self.lanes {
            ActiveLanes::All => failures,
            ActiveLanes::First(_, mask) | ActiveLanes::One(mask) => b.mask_op(MaskOp::And, failures, mask),
        };
        let any = b.any_lane(failures);
        b.advance(self.strip.failed.expect("the strip has checks"), any);
    }

    fn splat_wide(&mut self, b: &mut Builder, slot: u32) -> Wide {
        wide::broadcast(b, b.arg_mem(self.strip.key.scalar(slot)))
    }

    fn splat(&mut self, b: &mut Builder, slot: u32) -> Vector {
        b.broadcast(b.arg_mem(self.strip.key.scalar(slot)))
    }

    fn accumulator(&mut self, _: &mut Builder) -> Vector {
        unreachable!("strips have no contraction")
    }

    fn variable(&mut self, var: u32) -> Vector {
        self.strip.variables[var as usize]
    }

    fn reduce(&mut self, b: &mut Builder, op: ReduceOp, value: BodyValue, var: u32) {
        let mut reductions = self.reductions.iter();
        let reduction = reductions.find(|reduction| reduction.var == var && reduction.op == op);
        let reduction = reduction.expect("the phase has the reductions of its body");
        let mask = match self.lanes {
            ActiveLanes::All => None,
            ActiveLanes::First(_, mask) | ActiveLanes::One(mask) => Some(mask),
        };
        reduction.add(b, value, mask, self.partial);
    }
}
