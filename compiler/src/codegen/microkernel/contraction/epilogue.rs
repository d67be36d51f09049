//! The epilogue of a tile: operations on its accumulators, and the streams that it reads and writes.

use super::tile::Tile;
use crate::{
    codegen::{
        microkernel::{
            body::{self, LaneAccess},
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

/// Longest epilogue, in steps, that is repeated for each row of the tile.
const UNROLLED_COST: usize = 12;

impl Tile<'_> {
    /// Stores the accumulators unchanged and advances the stream to the next tile.
    pub(super) fn store_partial_sums(&self, b: &mut Builder, stream: u32) {
        let stride = b.arg(self.key.stream(stream) + 1);
        for sums in &self.accumulators {
            for (vector, &sum) in sums.iter().enumerate() {
                VectorAccess { tile: self, sum, vector }.store(b, stream, Ty::F32, sum);
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
            self.accumulators.iter().map(|row| row.iter().map(|sum| b.variable(*sum)).collect()).collect();
        for row in &copies {
            self.epilogue_row(b, row);
        }
    }

    /// The epilogue as a loop over rows, the sums going through memory: long code is not repeated for each.
    fn epilogue_by_rows(&self, b: &mut Builder) {
        let bytes = 4 * b.lanes();
        let vectors = self.key.vectors as usize;
        let place = b.scratch(self.key.rows as usize * vectors * bytes);
        for (idx, sum) in self.accumulators.iter().flatten().enumerate() {
            b.store(Mem::from(place).plus(idx * bytes), *sum);
        }
        let rows = b.imm(i64::from(self.key.rows));
        self.epilogue_rows(b, place, rows);
    }

    /// The epilogue of as many rows, whose sums lie at `place`, one behind the other; both registers are used up.
    pub(super) fn epilogue_rows(&self, b: &mut Builder, place: Int, rows: Int) {
        let (bytes, vectors) = (4 * b.lanes(), self.key.vectors as usize);
        b.repeat(rows, 1, |b| {
            let row: Vec<Vector> =
                (0..vectors).map(|vector| b.load(Mem::from(place).plus(vector * bytes))).collect();
            self.epilogue_row(b, &row);
            b.advance(place, (vectors * bytes) as i32);
        });
    }

    /// The epilogue of one row; advances the streams to the next.
    fn epilogue_row(&self, b: &mut Builder, sums: &[Vector]) {
        for (vector, &sum) in sums.iter().enumerate() {
            let mut at = VectorAccess { tile: self, sum, vector };
            match self.tail.get(vector) {
                None => body::emit(&self.key.epilogue, b, &mut at),
                Some(&(n, _)) => b.when(CompareOp::Gt, n, 0, |b| body::emit(&self.key.epilogue, b, &mut at)),
            }
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
        let mut asked = Vec::new();
        for &(op, ty) in &self.key.epilogue.insts {
            let (Op::Load(stream) | Op::Store(stream, _)) = op else { continue };
            let is_wanted = !self.key.is_row_invariant(stream)
                && self.key.streams[stream as usize] == StreamStep::Unit
                && !asked.contains(&stream);
            if is_wanted {
                asked.push(stream);
                let bytes = memory::elem_bytes(ty) * usize::from(self.key.vectors) * b.lanes();
                for at in (0..bytes).step_by(LINE_BYTES as usize) {
                    b.prefetch(Mem::from(self.streams[stream as usize]).plus(bytes + at));
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

    /// Registers for the values that all rows of the epilogue share, where there are enough.
    pub(super) fn hold_row_invariant(&mut self, b: &mut Builder) {
        let (body, key) = (&self.key.epilogue, self.key);
        let is_kept =
            |stream: u32| key.is_row_invariant(stream) && key.streams[stream as usize] == StreamStep::Unit;
        let mut kept: Vec<(u32, Ty)> = Vec::new();
        for &(op, ty) in &body.insts {
            if let Op::Load(stream) = op
                && is_kept(stream)
                && !kept.contains(&(stream, ty))
            {
                kept.push((stream, ty));
            }
        }
        let vectors = usize::from(key.vectors);
        let needed = (kept.len() + 1) * vectors + body.pressure(&is_kept);
        if self.tail.is_empty() && needed <= b.shape().registers {
            let registers = |b: &mut Builder| (0..vectors).map(|_| b.vector()).collect();
            self.held = kept.into_iter().map(|(stream, ty)| (stream, ty, registers(b))).collect();
        }
    }

    /// Loads the shared values from the current positions of their streams.
    pub(super) fn load_held(&self, b: &mut Builder) {
        for (stream, ty, registers) in &self.held {
            for (vector, &register) in registers.iter().enumerate() {
                let at = VectorAccess { tile: self, sum: register, vector };
                let value = memory::load(b, at.unit(b, *stream, *ty), *ty);
                b.set(register, value);
            }
        }
    }
}

/// One vector of accumulators in the epilogue.
struct VectorAccess<'a> {
    tile: &'a Tile<'a>,
    sum: Vector,
    vector: usize,
}

impl VectorAccess<'_> {
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
        let kept = self.tile.held.iter().find(|kept| (kept.0, kept.1) == (stream, ty));
        if let Some((.., registers)) = kept {
            return registers[self.vector];
        }
        match (self.tile.key.streams[stream as usize], self.tile.tail.get(self.vector)) {
            (StreamStep::Fixed, _) => memory::broadcast(b, self.tile.streams[stream as usize].into(), ty),
            (StreamStep::Unit, None) => memory::load(b, self.unit(b, stream, ty), ty),
            (StreamStep::Unit, Some(&(n, mask))) => {
                memory::load_first(b, self.unit(b, stream, ty), ty, n, mask)
            }
            (StreamStep::Stride, _) => {
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
            (StreamStep::Unit, None) => memory::store(b, self.unit(b, stream, ty), ty, value),
            (StreamStep::Unit, Some(&(n, mask))) => {
                memory::store_first(b, self.unit(b, stream, ty), ty, value, n, mask);
            }
            (StreamStep::Stride, None) => {
                let (first, stride) = self.first(b, stream);
                let places = b.lane_addresses(first, stride);
                memory::store_lanes(b, places, ty, value);
            }
            (StreamStep::Stride, Some(&(n, _))) => {
                let (first, stride) = self.first(b, stream);
                store_existing(b, (first, stride), ty, value, n);
            }
        }
    }

    fn splat(&mut self, b: &mut Builder, slot: u32) -> Vector {
        b.broadcast(b.arg_mem(self.tile.key.scalar(slot)))
    }

    fn accumulator(&mut self, _: &mut Builder) -> Vector {
        self.sum
    }

    fn variable(&mut self, _: u32) -> Vector {
        unreachable!("epilogues have no scalar variables")
    }

    fn reduce(&mut self, _: &mut Builder, _: ReduceOp, _: Vector, _: u32) {
        unreachable!("epilogues do not reduce")
    }
}

/// Stores the lanes below `n`, lane by lane, each brought to lane 0 in its turn.
fn store_existing(b: &mut Builder, (place, stride): (Int, Int), ty: Ty, value: Vector, n: Int) {
    for lane in 0..b.lanes() {
        b.when(CompareOp::Gt, n, lane as i32, |b| {
            let mut shown = value;
            for bit in 0..b.lanes().trailing_zeros() {
                if lane >> bit & 1 == 1 {
                    shown = b.butterfly(shown, 1 << bit);
                }
            }
            memory::store_one(b, place.into(), ty, shown);
            b.advance(place, stride);
        });
    }
}
