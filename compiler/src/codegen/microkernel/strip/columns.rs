//! Strips whose loops are interchanged: for each vector of columns, a loop down the rows.
//!
//! Streams that are the same for all rows, as the taps of a depthwise convolution are for all pixels, are loaded once
//! and held in registers.
//!
//! A stream whose rows are contiguous, but whose columns are strided, is read along the rows. Squares of as many rows
//! and columns as a vector has lanes are transposed in registers. So a matrix transposition uses whole vectors on both
//! sides.
//!
//! Each element is computed by the same instructions as without the interchange.

use super::{
    byte_squares::{ByteCopy, Matrix},
    kept::HeldStream,
    key::{Phase, StripKey},
    position::{ActiveLanes, Position, StridedPointer, StripRegisters, VectorAccess},
};
use crate::codegen::{
    microkernel::{
        body,
        byte_quads::ByteQuads,
        memory,
        op::{Body, Op, StreamStep, Ty},
    },
    vector::{
        Builder, VectorShape,
        vcode::{Int, IntOp, Mask, Mem, Vector},
    },
};
use crate::{scalar::CompareOp, target::LINE_BYTES};

/// With fewer held streams, the cache behaviour of rows one after another is worth more.
const MIN_HELD: usize = 4;

/// At least one load in this many must be held. Otherwise it is better to read memory in its order.
const LOADS_PER_HELD: usize = 3;

/// Longest body, by [`Body::cost`], that is repeated for each row of a square.
const MAX_SQUARE_COST: usize = 12;

/// Columns from a store to the place in its row that is prefetched for a later store. The rows of a result are too far
/// apart for the hardware to foresee.
const STORE_DISTANCE: usize = 2 * LINE_BYTES as usize / 4;

/// The only phase of a strip, to be run down the rows.
pub(super) struct Columns<'a> {
    extent: u32,
    body: &'a Body,
    gain: Gain,
}

/// The reason to interchange the loops.
enum Gain {
    /// These streams, of these element types, stay in registers, and so do the weights of sums of products of bytes.
    Held(Vec<(u32, Ty)>, Option<ByteQuads>),
    /// This stream, of this element type, is read in squares.
    Squares(u32, Ty),
}

/// The loads of a body by how the interchange treats them.
#[derive(Default)]
struct Loads {
    /// The streams that are the same for all rows.
    held: Vec<(u32, Ty)>,
    /// The streams whose columns are strided and whose rows are contiguous.
    strided: Vec<(u32, Ty)>,
}

impl Loads {
    /// `None` where the loops can't be interchanged.
    fn of(key: &StripKey, body: &Body) -> Option<Loads> {
        let mut loads = Loads::default();

        for &(op, ty) in &body.insts {
            if ty.is_wide() {
                return None;
            }
            match op {
                Op::Load(stream) if key.step(stream).is_strided() => {
                    // Two vectors have all elements of a distance of two.
                    let has_squares = ty.has_squares() && key.step(stream) == StreamStep::Stride;
                    if !has_squares || key.row_step(stream) != StreamStep::Unit {
                        return None;
                    }
                    loads.strided.push((stream, ty));
                }
                Op::Load(stream)
                    if key.row_step(stream) == StreamStep::Fixed && !loads.held.contains(&(stream, ty)) =>
                {
                    loads.held.push((stream, ty));
                }
                // A stream that each row stores to is not the same for all rows.
                Op::Store(stream, _)
                    if key.step(stream).is_strided() || key.row_step(stream) == StreamStep::Fixed =>
                {
                    return None;
                }
                Op::Set(..) | Op::Get(_) | Op::Reduce(..) | Op::Gather(..) | Op::Checked(..) | Op::Column => {
                    return None;
                }
                _ => {}
            }
        }
        loads.strided.dedup();
        Some(loads)
    }
}

impl<'a> Columns<'a> {
    /// `None` where the loops stay as they are.
    pub(super) fn of(key: &'a StripKey, shape: VectorShape) -> Option<Columns<'a>> {
        let [Phase::Loop { extent, body }] = &key.phases[..] else { return None };
        if !key.rows {
            return None;
        }

        let loads = Loads::of(key, body)?;
        let gain = match loads.strided[..] {
            [] => {
                let is_held = |stream: u32| loads.held.iter().any(|(other, _)| *other == stream);
                let quads = ByteQuads::of(body, &shape).filter(|quads| quads.weight_streams().all(is_held));
                Gain::Held(loads.held, quads)
            }
            [(stream, ty)] => Gain::Squares(stream, ty),
            _ => return None,
        };

        let columns = Columns { extent: *extent, body, gain };
        columns.is_profitable(shape).then_some(columns)
    }

    fn is_profitable(&self, shape: VectorShape) -> bool {
        match &self.gain {
            Gain::Held(held, quads) => {
                let loads = self.body.insts.iter().filter(|(op, _)| matches!(op, Op::Load(_))).count();
                held.len() * LOADS_PER_HELD >= loads
                    && held.len() >= MIN_HELD
                    && self.held_pressure(held, quads.as_ref()) <= shape.registers
            }
            Gain::Squares(stream, _) => {
                let pressure =
                    self.body.pressure(&|_, op| !matches!(op, Op::Load(other) if other == *stream));
                self.body.cost() <= MAX_SQUARE_COST && shape.lanes + pressure < shape.registers
            }
        }
    }

    /// The registers of a row, those of held streams included.
    fn held_pressure(&self, held: &[(u32, Ty)], quads: Option<&ByteQuads>) -> usize {
        let is_held = |stream: u32| held.iter().any(|(other, _)| *other == stream);
        let is_skipped = |idx: usize| quads.is_some_and(|quads| quads.skips(idx));
        let rest = self
            .body
            .pressure(&|idx, op| !is_skipped(idx) && !matches!(op, Op::Load(stream) if is_held(stream)));
        match quads {
            None => held.len() + rest,
            Some(quads) => {
                let others = held.len() - quads.weight_streams().count();
                others + quads.weight_registers() + rest.max(quads.pressure())
            }
        }
    }

    /// Emits all rows, a vector of columns at a time.
    pub(super) fn emit(&self, strip: &StripRegisters<'_>, b: &mut Builder) {
        let rest = b.arg(StripKey::ROWS);
        let Gain::Squares(stream, _) = self.gain else { return self.emit_rows(strip, b, rest) };
        let most = self.block_rows(strip, b, stream, rest);
        let pointers = strip.pointers.iter().map(|pointer| b.copy(*pointer)).collect();
        let block = StripRegisters { key: strip.key, pointers, variables: Vec::new(), failed: None };
        b.repeat(rest, 1, |b| {
            let rows = b.copy(most);
            b.when(CompareOp::Lt, rest, rows, |b| b.set_copy(rows, rest));
            self.emit_rows(&block, b, rows);
            for (idx, &pointer) in block.pointers.iter().enumerate() {
                let step = b.arg(strip.key.pointer(idx as u32) + 1);
                let bytes = b.int_op(IntOp::Mul, step, rows);
                b.advance(pointer, bytes);
            }
            // The loop subtracts one row.
            let others = b.int_op(IntOp::Sub, rows, 1);
            b.set_int_op(IntOp::Sub, rest, others);
        });
    }

    /// The rows that are computed before the next ones begin: those of a line of the stream, or all of them.
    ///
    /// A vector of columns reads memory in its order, and writes a line of each row; a block of rows does the opposite.
    /// The order with the smaller steps between lines is chosen.
    fn block_rows(&self, strip: &StripRegisters<'_>, b: &mut Builder, stream: u32, all: Int) -> Int {
        let pointer = |stream: u32| strip.key.pointer(strip.key.streams[stream as usize].pointer);
        let rows = b.copy(all);
        let stores = self.body.insts.iter().find_map(|(op, _)| match op {
            Op::Store(stream, _) => Some(*stream),
            _ => None,
        });
        if let Some(stores) = stores {
            let between_rows = b.arg(pointer(stores) + 1);
            let between_columns = b.arg(pointer(stream) + 2);
            b.when(CompareOp::Gt, between_rows, between_columns, |b| {
                let few = b.imm(LINE_BYTES / 4);
                b.set_copy(rows, few);
            });
        }
        rows
    }

    /// Emits `rows` rows.
    fn emit_rows(&self, strip: &StripRegisters<'_>, b: &mut Builder, rows: Int) {
        let count = b.arg(strip.key.extent(self.extent));
        let position = strip.row_start(b, self.body);
        let lanes = b.lanes();

        if let (Gain::Squares(stream, _), Some(copy)) = (&self.gain, ByteCopy::of(self.body)) {
            let from = position.strided[strip.key.streams[*stream as usize].pointer as usize];
            let from = from.expect("the stream is strided");
            copy.emit(strip, b, &Matrix { from, rows, columns: count });
        }

        // Adjacent squares fill cache lines of the result before these are evicted.
        let widths: &[usize] = match self.gain {
            Gain::Squares(..) if 4 * lanes < LINE_BYTES as usize => &[2, 1],
            _ => &[1],
        };
        for &vectors in widths {
            b.repeat(count, (vectors * lanes) as i32, |b| {
                let access = VectorAccess::at(strip, &position, ActiveLanes::All);
                self.emit_down(b, access, &position, vectors, [rows, count]);
                position.advance(b, vectors * lanes);
            });
        }
        b.when(CompareOp::Gt, count, 0, |b| {
            let mask = b.mask_first(count);
            let tail = ActiveLanes::First(count, mask);
            self.emit_down(b, VectorAccess::at(strip, &position, tail), &position, 1, [rows, count]);
        });
    }

    /// Emits `vectors` vectors of columns, `rows` rows of them. `count` columns are left, with these.
    fn emit_down(
        &self,
        b: &mut Builder,
        access: VectorAccess<'_>,
        position: &Position,
        vectors: usize,
        [rows, count]: [Int; 2],
    ) {
        let rows = b.copy(rows);
        match &self.gain {
            Gain::Held(held, quads) => self.emit_held(b, access, held, quads.as_ref(), rows),
            Gain::Squares(stream, ty) => {
                let squares = self.squares(b, &access, position, (*stream, *ty), vectors);
                self.emit_squares(b, access, *stream, &squares, [rows, count]);
            }
        }
    }

    fn emit_held(
        &self,
        b: &mut Builder,
        mut access: VectorAccess<'_>,
        streams: &[(u32, Ty)],
        quads: Option<&ByteQuads>,
        rows: Int,
    ) {
        let quad_weights = quads.map(|quads| quads.load_weights(b, &mut access));
        let is_weight =
            |stream: u32| quads.is_some_and(|quads| quads.weight_streams().any(|other| other == stream));
        let mut held = Vec::new();
        for &(stream, ty) in streams.iter().filter(|(stream, _)| !is_weight(*stream)) {
            held.push(HeldStream { stream, elements: access.load_from_memory(b, stream, ty) });
        }
        let access = VectorAccess { quad_weights: quad_weights.as_ref(), ..access };
        let row = Row::first(access.strip, b);
        b.repeat(rows, 1, |b| {
            body::emit(self.body, b, &mut VectorAccess { strip: &row.strip, held: &held, ..access });
            row.advance(b);
        });
    }

    /// The squares of the first rows.
    fn squares(
        &self,
        b: &mut Builder,
        access: &VectorAccess<'_>,
        position: &Position,
        (stream, ty): (u32, Ty),
        vectors: usize,
    ) -> Vec<Square> {
        let place = access.strip.key.streams[stream as usize];
        let StridedPointer { pointer, stride } =
            position.strided[place.pointer as usize].expect("the stream is strided");

        let square_bytes = b.int_op(IntOp::Mul, stride, b.lanes() as i32);
        let mut first = pointer;
        let mut squares = Vec::with_capacity(vectors);
        for _ in 0..vectors {
            let this = b.copy(first);
            first = b.address(Mem { base: this, index: Some((square_bytes, 1)), disp: 0 });
            let next = b.int_op(IntOp::Mul, square_bytes, vectors as i32);
            squares.push(Square { first: this, disp: place.offset, ty, stride, next, lanes: access.lanes });
        }
        squares
    }

    fn emit_squares(
        &self,
        b: &mut Builder,
        access: VectorAccess<'_>,
        stream: u32,
        squares: &[Square],
        [rows, count]: [Int; 2],
    ) {
        let row = Row::first(access.strip, b);
        let lanes = b.lanes();

        let emit_row = |b: &mut Builder, square: usize, elements: Vector| {
            let held = [HeldStream { stream, elements }];
            let offset = square * lanes;
            body::emit(self.body, b, &mut VectorAccess { strip: &row.strip, held: &held, offset, ..access });
        };
        b.repeat(rows, lanes as i32, |b| {
            if matches!(access.lanes, ActiveLanes::All) {
                b.when(CompareOp::Gt, count, STORE_DISTANCE as i32, |b| {
                    row.prefetch_stores(b, &VectorAccess { strip: &row.strip, ..access }, self.body);
                });
            }
            for (idx, square) in squares.iter().enumerate() {
                if idx > 0 {
                    row.go_back(b, lanes);
                }
                for vector in square.load(b, None) {
                    emit_row(b, idx, vector);
                    row.advance(b);
                }
                b.advance(square.first, (memory::elem_bytes(square.ty) * lanes) as i32);
            }
        });
        b.when(CompareOp::Gt, rows, 0, |b| {
            let mask = b.mask_first(rows);
            for (idx, square) in squares.iter().enumerate() {
                if idx > 0 {
                    row.go_back(b, lanes);
                }
                for (below, vector) in square.load(b, Some((rows, mask))).into_iter().enumerate() {
                    b.when(CompareOp::Gt, rows, below as i32, |b| emit_row(b, idx, vector));
                    row.advance(b);
                }
            }
        });
    }
}

/// The current row.
pub(super) struct Row<'a> {
    pub(super) strip: StripRegisters<'a>,
    /// The pointers that move from row to row, with the bytes that they move by.
    steps: Vec<(Int, Int)>,
}

impl<'a> Row<'a> {
    pub(super) fn first(strip: &StripRegisters<'a>, b: &mut Builder) -> Row<'a> {
        let key = strip.key;
        let pointers: Vec<Int> = strip.pointers.iter().map(|pointer| b.copy(*pointer)).collect();
        let mut steps = Vec::new();
        for (idx, &pointer) in pointers.iter().enumerate() {
            if !key.pointers[idx].is_strided() && key.row_steps[idx] != StreamStep::Fixed {
                steps.push((pointer, b.arg(key.pointer(idx as u32) + 1)));
            }
        }
        Row { strip: StripRegisters { key, pointers, variables: Vec::new(), failed: None }, steps }
    }

    /// Moves to the next row.
    pub(super) fn advance(&self, b: &mut Builder) {
        self.steps.iter().for_each(|(pointer, step)| b.advance(*pointer, *step));
    }

    /// Prefetches the memory that as many rows as a vector has lanes, from this one on, store to `STORE_DISTANCE`
    /// columns further.
    fn prefetch_stores(&self, b: &mut Builder, access: &VectorAccess<'_>, body: &Body) {
        for &(op, ty) in &body.insts {
            let Op::Store(stream, _) = op else { continue };
            let pointer = access.strip.pointers[access.strip.key.streams[stream as usize].pointer as usize];
            let step = self.steps.iter().find(|(moved, _)| *moved == pointer).map(|(_, step)| *step);
            if let Some(step) = step.filter(|_| access.strip.key.step(stream) == StreamStep::Unit) {
                let first = b.address(access.unit(stream, ty).plus(memory::elem_bytes(ty) * STORE_DISTANCE));
                for address in b.lane_addresses(first, step) {
                    b.prefetch_write(address);
                }
            }
        }
    }

    /// Moves back by `rows` rows.
    fn go_back(&self, b: &mut Builder, rows: usize) {
        for (pointer, step) in &self.steps {
            let up = b.int_op(IntOp::Mul, *step, -(rows as i32));
            b.advance(*pointer, up);
        }
    }
}

/// A square of a stream, as many rows and columns as a vector has lanes.
struct Square {
    /// The pointer at its first row and column.
    first: Int,
    /// Bytes from there to the stream.
    disp: i32,
    /// The type of its elements.
    ty: Ty,
    /// Bytes from column to column.
    stride: Int,
    /// Bytes to the square of the next columns, which is prefetched.
    next: Int,
    /// The columns that exist.
    lanes: ActiveLanes,
}

impl Square {
    /// Loads a vector for each row. `rows` are the number and mask of the rows that exist, if not all do.
    fn load(&self, b: &mut Builder, rows: Option<(Int, Mask)>) -> Vec<Vector> {
        let load_column = |b: &mut Builder, mem: Mem| match rows {
            None => memory::load(b, mem, self.ty),
            Some((rows, mask)) => memory::load_first(b, mem, self.ty, rows, mask),
        };

        // The lines of a square are far apart, so no hardware foresees the next ones.
        let next = b.address(Mem { base: self.first, index: Some((self.next, 1)), disp: self.disp });
        for address in b.lane_addresses(next, self.stride) {
            b.prefetch(address);
        }
        let addresses = b.lane_addresses(self.first, self.stride);
        let addresses = addresses.into_iter().map(|address| Mem { disp: self.disp, ..address });
        let addresses: Vec<Mem> = addresses.collect();
        let are_words = matches!(self.ty, Ty::F32 | Ty::I32);
        if are_words && rows.is_none() && matches!(self.lanes, ActiveLanes::All) {
            return b.load_transposed(&addresses);
        }

        let mut columns = Vec::with_capacity(addresses.len());
        for (column, mem) in addresses.into_iter().enumerate() {
            columns.push(match self.lanes {
                ActiveLanes::All => load_column(b, mem),
                ActiveLanes::First(count, _) => {
                    let zero = b.bits(0);
                    let vector = b.variable(zero);
                    b.when(CompareOp::Gt, count, column as i32, |b| {
                        let loaded = load_column(b, mem);
                        b.set(vector, loaded);
                    });
                    vector
                }
                ActiveLanes::One(_) => unreachable!("columns come as vectors"),
            });
        }

        b.transpose(columns)
    }
}
