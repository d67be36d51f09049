//! The epilogue of a tile: operations on its accumulators and on the streams that it reads and writes.

use super::{
    packed_bytes::PackedBytes,
    tile::{RowInvariant, Tile},
};
use crate::{
    codegen::{
        microkernel::{
            body,
            body_value::BodyValue,
            lane_access::LaneAccess,
            memory,
            op::{Op, StreamStep, Ty},
        },
        vector::{
            Builder,
            vcode::{Int, IntOp, Mem, Vector},
        },
    },
    scalar::{CompareOp, ReduceOp},
    target::LINE_BYTES,
};

/// The largest cost of an epilogue that is unrolled over the rows of the tile, in the unit of its cost.
const UNROLLED_COST: usize = 12;

impl Tile<'_> {
    /// Stores the accumulators unchanged and advances the stream to the next tile.
    pub(super) fn store_partial_sums(&self, b: &mut Builder, stream: u32) {
        let stride = b.arg(self.key.stream(stream) + 1);
        for row in &self.accumulators {
            for (vector, &accumulator) in row.iter().enumerate() {
                VectorAccess::of(self, accumulator, vector).store(b, stream, Ty::F32, accumulator);
            }
            b.advance(self.streams[stream as usize], stride);
        }
    }

    /// Runs the epilogue on the final accumulators and advances its streams to the next tile.
    pub(super) fn epilogue(&self, b: &mut Builder) {
        if self.key.epilogue.cost() > UNROLLED_COST {
            return self.epilogue_by_rows(b);
        }
        // Copies, so that register pressure in the epilogue does not spill registers of the reduction.
        let copies: Vec<Vec<Vector>> =
            self.accumulators.iter().map(|row| row.iter().map(|x| b.variable(*x)).collect()).collect();
        for row in &copies {
            self.epilogue_row(b, row);
        }
    }

    /// The epilogue as a loop over rows, which read their accumulators from memory. Long code is thus emitted once.
    fn epilogue_by_rows(&self, b: &mut Builder) {
        let bytes = 4 * b.lanes();
        let vectors = self.key.vectors as usize;
        let stored = b.scratch(self.key.rows as usize * vectors * bytes);
        for (idx, accumulator) in self.accumulators.iter().flatten().enumerate() {
            b.store(Mem::from(stored).plus(idx * bytes), *accumulator);
        }
        let rows = b.imm(i64::from(self.key.rows));
        self.epilogue_rows(b, stored, rows);
    }

    /// The epilogue of `rows` rows, whose accumulators are consecutive in memory. `accumulators` advances past them,
    /// and `rows` becomes 0.
    pub(super) fn epilogue_rows(&self, b: &mut Builder, accumulators: Int, rows: Int) {
        let bytes = 4 * b.lanes();
        let vectors = self.key.vectors as usize;
        b.repeat(rows, 1, |b| {
            let row: Vec<Vector> =
                (0..vectors).map(|vector| b.load(Mem::from(accumulators).plus(vector * bytes))).collect();
            self.epilogue_row(b, &row);
            b.advance(accumulators, (vectors * bytes) as i32);
        });
    }

    /// The epilogue of one row. The streams advance to the next row.
    fn epilogue_row(&self, b: &mut Builder, accumulators: &[Vector]) {
        let epilogue = &self.key.epilogue;
        let mut packed = PackedBytes::of(self.key, b.shape());
        for (vector, &accumulator) in accumulators.iter().enumerate() {
            let mut lanes =
                VectorAccess { packed: packed.as_mut(), ..VectorAccess::of(self, accumulator, vector) };
            match self.tail.get(vector) {
                None => body::emit(epilogue, b, &mut lanes),
                Some(tail) => {
                    b.when(CompareOp::Gt, tail.count, 0, |b| body::emit(epilogue, b, &mut lanes));
                }
            }
        }

        if let Some(packed) = packed {
            packed.store(b, |stream| Mem::from(self.streams[stream as usize]));
        }
        if self.key.prefetch_epilogue {
            self.prefetch_next_columns(b);
        }
        for (stream, &pointer) in self.streams.iter().enumerate() {
            if !self.key.is_row_invariant(stream as u32) {
                let stride = b.arg(self.key.stream(stream as u32) + 1);
                b.advance(pointer, stride);
            }
        }
    }

    /// Prefetches the memory that the next tile of columns reads and writes in this row.
    fn prefetch_next_columns(&self, b: &mut Builder) {
        let mut prefetched = Vec::new();
        for &(op, ty) in &self.key.epilogue.insts {
            let (Op::Load(stream) | Op::Store(stream, _)) = op else { continue };
            let is_wanted = !self.key.is_row_invariant(stream)
                && self.key.streams[stream as usize] == StreamStep::Unit
                && !prefetched.contains(&stream);
            if is_wanted {
                prefetched.push(stream);
                let bytes = memory::elem_bytes(ty) * usize::from(self.key.vectors) * b.lanes();
                for offset in (0..bytes).step_by(LINE_BYTES as usize) {
                    b.prefetch(Mem::from(self.streams[stream as usize]).plus(bytes + offset));
                }
            }
        }
    }

    /// After the last row of a line, advances the streams to the first row of the next.
    pub(super) fn next_line(&self, b: &mut Builder) {
        let slot = self.key.line_batch_slot() + 2;
        for (stream, &pointer) in self.streams.iter().enumerate() {
            if !self.key.is_row_invariant(stream as u32) {
                let step = b.arg(slot + stream);
                b.advance(pointer, step);
            }
        }
    }

    /// Reserves registers for the values that all rows of the epilogue share, if there are enough.
    pub(super) fn hold_row_invariant(&mut self, b: &mut Builder) {
        let key = self.key;
        let body = &key.epilogue;
        let is_held =
            |stream: u32| key.is_row_invariant(stream) && key.streams[stream as usize] == StreamStep::Unit;
        let mut held: Vec<(u32, Ty)> = Vec::new();
        for &(op, ty) in &body.insts {
            if let Op::Load(stream) = op
                && is_held(stream)
                && !held.contains(&(stream, ty))
            {
                held.push((stream, ty));
            }
        }

        let vectors = usize::from(key.vectors);
        let needed = (held.len() + 1) * vectors
            + body.pressure(&|_, op| !matches!(op, Op::Load(stream) if is_held(stream)));
        if self.tail.is_empty() && needed <= b.shape().registers {
            let registers = |b: &mut Builder| (0..vectors).map(|_| b.vector()).collect();
            let hold = |(stream, ty)| RowInvariant { stream, ty, registers: registers(b) };
            self.held = held.into_iter().map(hold).collect();
        }
    }

    /// Loads the shared values from the current positions of their streams.
    pub(super) fn load_held(&self, b: &mut Builder) {
        for RowInvariant { stream, ty, registers } in &self.held {
            for (vector, &register) in registers.iter().enumerate() {
                let lanes = VectorAccess::of(self, register, vector);
                let value = memory::load(b, lanes.unit(b, *stream, *ty), *ty);
                b.set(register, value);
            }
        }
    }
}

/// One vector of accumulators in the epilogue.
struct VectorAccess<'a> {
    tile: &'a Tile<'a>,
    accumulator: Vector,
    vector: usize,
    /// The bytes of the row that are stored together.
    packed: Option<&'a mut PackedBytes>,
}

impl<'a> VectorAccess<'a> {
    fn of(tile: &'a Tile<'a>, accumulator: Vector, vector: usize) -> VectorAccess<'a> {
        VectorAccess { tile, accumulator, vector, packed: None }
    }

    /// The address of this vector in a stream of contiguous elements.
    fn unit(&self, b: &Builder, stream: u32, ty: Ty) -> Mem {
        Mem::from(self.tile.streams[stream as usize]).plus(memory::elem_bytes(ty) * self.vector * b.lanes())
    }

    /// The address of the first column in a strided stream, and the stride.
    fn first(&self, b: &mut Builder, stream: u32) -> (Int, Int) {
        let stride = b.arg(self.tile.key.stream(stream) + 2);
        let skip = b.int_op(IntOp::Mul, stride, (self.vector * b.lanes()) as i32);
        (b.int_op(IntOp::Add, self.tile.streams[stream as usize], skip), stride)
    }
}

impl LaneAccess for VectorAccess<'_> {
    fn load(&mut self, b: &mut Builder, stream: u32, ty: Ty) -> Vector {
        let held = self.tile.held.iter().find(|held| held.stream == stream && held.ty == ty);
        if let Some(held) = held {
            return held.registers[self.vector];
        }

        match (self.tile.key.streams[stream as usize], self.tile.tail.get(self.vector)) {
            (StreamStep::Fixed, _) => memory::broadcast(b, self.tile.streams[stream as usize].into(), ty),
            (StreamStep::Unit, None) => memory::load(b, self.unit(b, stream, ty), ty),
            (StreamStep::Unit, Some(tail)) => {
                let mask = tail.mask(b);
                memory::load_first(b, self.unit(b, stream, ty), ty, tail.count, mask)
            }
            (StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_), _) => {
                let (first, stride) = self.first(b, stream);
                self.tile.load_strided(b, self.vector, first, stride, ty)
            }
        }
    }

    fn store(&mut self, b: &mut Builder, stream: u32, ty: Ty, value: Vector) {
        match (self.tile.key.streams[stream as usize], self.tile.tail.get(self.vector)) {
            (StreamStep::Fixed, _) => {
                memory::store_one(b, self.tile.streams[stream as usize].into(), ty, value);
            }
            (StreamStep::Unit, None) => {
                let is_packed = self.packed.as_mut().is_some_and(|packed| packed.add(stream, ty, value));
                if !is_packed {
                    memory::store(b, self.unit(b, stream, ty), ty, value);
                }
            }
            (StreamStep::Unit, Some(tail)) => {
                let mask = tail.store_mask(b);
                memory::store_first(b, self.unit(b, stream, ty), ty, value, tail.count, mask);
            }
            (StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_), None) => {
                let (first, stride) = self.first(b, stream);
                let addresses = b.lane_addresses(first, stride);
                memory::store_lanes(b, addresses, ty, value);
            }
            (StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_), Some(tail)) => {
                let (first, stride) = self.first(b, stream);
                store_existing(b, first, stride, ty, value, tail.count);
            }
        }
    }

    fn splat(&mut self, b: &mut Builder, slot: u32) -> Vector {
        b.broadcast(b.arg_mem(self.tile.key.scalar(slot)))
    }

    fn accumulator(&mut self, _: &mut Builder) -> Vector {
        self.accumulator
    }

    fn variable(&mut self, _: u32) -> Vector {
        unreachable!("epilogues have no scalar variables")
    }

    fn reduce(&mut self, _: &mut Builder, _: ReduceOp, _: BodyValue, _: u32) {
        unreachable!("epilogues do not reduce")
    }
}

/// Stores the lanes below `n` at addresses `stride` bytes apart. Each lane is moved to lane 0 first: there is no
/// instruction that stores another one on all ISAs.
fn store_existing(b: &mut Builder, address: Int, stride: Int, ty: Ty, value: Vector, n: Int) {
    for lane in 0..b.lanes() {
        b.when(CompareOp::Gt, n, lane as i32, |b| {
            let mut moved = value;
            for bit in 0..b.lanes().trailing_zeros() {
                if lane >> bit & 1 == 1 {
                    moved = b.butterfly(moved, 1 << bit);
                }
            }
            memory::store_one(b, address.into(), ty, moved);
            b.advance(address, stride);
        });
    }
}
