//! Strip leaves whose loops change places: for each vector of columns, down all rows.
//!
//! Streams that are the same for all rows, as the taps of a depthwise convolution are for all pixels, are loaded once and
//! held in registers.
//!
//! A stream whose columns lie apart, but whose rows lie side by side, is read along the rows, in squares of as many rows
//! and columns as a vector has lanes, which are transposed in registers: so a matrix is transposed with whole vectors
//! on both sides. Each element is computed by the same instructions either way.

use super::op::{Body, Op, StreamStep, Ty};
use super::strip::{ActiveLanes, At, Leaf, Phase, Position, StripKey};
use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{Int, IntOp, Mask, Mem, Vector},
};
use crate::{scalar::CompareOp, target::LINE_BYTES};

/// With fewer streams to hold, rows one after another are kinder to the caches.
const FEWEST_HELD: usize = 4;

/// The part of the loads that is held at least: where few are saved, memory is better read in its order.
const HELD_PART: (usize, usize) = (1, 3);

/// Longest code, in steps, that is written out for each row of a square.
const MOST_IN_SQUARE: usize = 12;

/// A leaf's only phase, and what is gained by going down the rows.
pub(super) struct Columns<'a> {
    extent: u32,
    body: &'a Body,
    gain: Gain,
}

enum Gain {
    /// These streams, of these types, stay in registers.
    Held(Vec<(u32, Ty)>),
    /// This stream is read in squares.
    Squares(u32),
}

impl<'a> Columns<'a> {
    /// None where rows had better come one after another.
    pub(super) fn of(key: &'a StripKey, shape: VectorShape) -> Option<Columns<'a>> {
        let [Phase::Loop { extent, body }] = &key.phases[..] else { return None };
        let pointer = |stream: u32| key.streams[stream as usize].pointer as usize;
        let (mut held, mut apart) = (Vec::new(), Vec::new());
        for &(op, ty) in &body.insts {
            match op {
                Op::Load(stream) if key.pointers[pointer(stream)] == StreamStep::Stride => {
                    let is_word = matches!(ty, Ty::F32 | Ty::I32);
                    if !is_word || key.row_steps[pointer(stream)] != StreamStep::Unit {
                        return None;
                    }
                    apart.push(stream);
                }
                Op::Load(stream)
                    if key.row_steps[pointer(stream)] == StreamStep::Fixed
                        && !held.contains(&(stream, ty)) =>
                {
                    held.push((stream, ty));
                }
                // What is stored in each row anew must not be taken for the same.
                Op::Store(stream, _)
                    if key.pointers[pointer(stream)] == StreamStep::Stride
                        || key.row_steps[pointer(stream)] == StreamStep::Fixed =>
                {
                    return None;
                }
                Op::Set(..) | Op::Get(_) | Op::Reduce(..) => return None,
                _ => {}
            }
        }
        apart.dedup();
        let gain = match apart[..] {
            [] => Gain::Held(held),
            [stream] => Gain::Squares(stream),
            _ => return None,
        };
        let columns = Columns { extent: *extent, body, gain };
        (key.rows && columns.pays(shape)).then_some(columns)
    }

    fn pays(&self, shape: VectorShape) -> bool {
        match &self.gain {
            Gain::Held(held) => {
                let is_held = |stream: u32| held.iter().any(|(other, _)| *other == stream);
                let loads = self.body.insts.iter().filter(|(op, _)| matches!(op, Op::Load(_))).count();
                held.len() * HELD_PART.1 >= loads * HELD_PART.0
                    && held.len() >= FEWEST_HELD
                    && held.len() + self.body.pressure(&is_held) <= shape.registers
            }
            Gain::Squares(stream) => {
                let pressure = self.body.pressure(&|other| other == *stream);
                self.body.cost() <= MOST_IN_SQUARE && shape.lanes + pressure < shape.registers
            }
        }
    }

    /// All rows, a vector of columns at a time.
    pub(super) fn emit(&self, leaf: &Leaf<'_>, b: &mut Builder) {
        let count = b.arg(leaf.key.extent(self.extent));
        let position = leaf.start(b, self.body);
        let lanes = b.lanes();
        // Squares side by side fill lines of memory before these leave the cache.
        let widths: &[usize] = match self.gain {
            Gain::Squares(_) if 4 * lanes < LINE_BYTES as usize => &[2, 1],
            _ => &[1],
        };
        for &vectors in widths {
            b.repeat(count, (vectors * lanes) as i32, |b| {
                self.down(leaf, b, &position, ActiveLanes::Full, vectors);
                position.advance(b, vectors * lanes);
            });
        }
        b.when(CompareOp::Gt, count, 0, |b| {
            let mask = b.mask_first(count);
            self.down(leaf, b, &position, ActiveLanes::First(count, mask), 1);
        });
    }

    /// So many vectors of columns down all rows.
    fn down(&self, leaf: &Leaf<'_>, b: &mut Builder, position: &Position, part: ActiveLanes, vectors: usize) {
        match &self.gain {
            Gain::Held(held) => {
                let top = at(leaf, position, part, 0, &[]);
                let held: Vec<(u32, Vector)> =
                    held.iter().map(|&(stream, ty)| (stream, top.fetch(b, stream, ty))).collect();
                let row = Row::first(leaf, b);
                let rows = b.arg(StripKey::ROWS);
                b.repeat(rows, 1, |b| {
                    self.body.emit(b, &mut at(&row.leaf, position, part, 0, &held));
                    row.advance(b);
                });
            }
            Gain::Squares(stream) => self.squares(leaf, b, *stream, position, part, vectors),
        }
    }

    fn squares(
        &self,
        leaf: &Leaf<'_>,
        b: &mut Builder,
        stream: u32,
        position: &Position,
        part: ActiveLanes,
        vectors: usize,
    ) {
        let place = leaf.key.streams[stream as usize];
        let (first, stride) = position.strided[place.pointer as usize].expect("its columns lie apart");
        let row = Row::first(leaf, b);
        let (rows, lanes) = (b.arg(StripKey::ROWS), b.lanes());
        let beside = b.int_op(IntOp::Mul, stride, lanes as i32);
        let squares: Vec<Square> = (0..vectors)
            .scan(first, |first, _| {
                let this = b.copy(*first);
                *first = b.address(Mem { base: this, index: Some((beside, 1)), disp: 0 });
                Some(Square { first: this, disp: place.offset, stride, part })
            })
            .collect();
        b.repeat(rows, lanes as i32, |b| {
            for (number, square) in squares.iter().enumerate() {
                if number > 0 {
                    row.back(b, lanes);
                }
                for vector in square.load(b, None) {
                    let held = [(stream, vector)];
                    self.body.emit(b, &mut at(&row.leaf, position, part, number * lanes, &held));
                    row.advance(b);
                }
                b.advance(square.first, 4 * lanes as i32);
            }
        });
        b.when(CompareOp::Gt, rows, 0, |b| {
            let mask = b.mask_first(rows);
            for (number, square) in squares.iter().enumerate() {
                if number > 0 {
                    row.back(b, lanes);
                }
                for (below, vector) in square.load(b, Some((rows, mask))).into_iter().enumerate() {
                    let held = [(stream, vector)];
                    b.when(CompareOp::Gt, rows, below as i32, |b| {
                        self.body.emit(b, &mut at(&row.leaf, position, part, number * lanes, &held));
                    });
                    row.advance(b);
                }
            }
        });
    }
}

fn at<'a>(
    leaf: &'a Leaf<'a>,
    position: &'a Position,
    part: ActiveLanes,
    ahead: usize,
    held: &'a [(u32, Vector)],
) -> At<'a> {
    At { leaf, position: Some(position), part, sums: &[], unroll: 0, ahead, held }
}

/// The row that is computed next.
struct Row<'a> {
    leaf: Leaf<'a>,
    /// Pointers that move from row to row, and by how much.
    steps: Vec<(Int, Int)>,
}

impl<'a> Row<'a> {
    fn first(leaf: &Leaf<'a>, b: &mut Builder) -> Row<'a> {
        let pointers: Vec<Int> = leaf.pointers.iter().map(|pointer| b.copy(*pointer)).collect();
        let is_moving = |idx: &usize| {
            leaf.key.pointers[*idx] != StreamStep::Stride && leaf.key.row_steps[*idx] != StreamStep::Fixed
        };
        let moving = (0..pointers.len()).filter(is_moving);
        let steps = moving.map(|idx| (pointers[idx], b.arg(leaf.key.pointer(idx as u32) + 1))).collect();
        Row { leaf: Leaf { key: leaf.key, pointers, variables: Vec::new() }, steps }
    }

    /// Goes on to the one below.
    fn advance(&self, b: &mut Builder) {
        self.steps.iter().for_each(|(pointer, step)| b.advance(*pointer, *step));
    }

    /// Goes back up.
    fn back(&self, b: &mut Builder, rows: usize) {
        for (pointer, step) in &self.steps {
            let up = b.int_op(IntOp::Mul, *step, -(rows as i32));
            b.advance(*pointer, up);
        }
    }
}

/// Where a stream is read in squares.
struct Square {
    /// Its first row and column.
    first: Int,
    disp: i32,
    /// Bytes from column to column.
    stride: Int,
    /// Which columns there are.
    part: ActiveLanes,
}

impl Square {
    /// A vector for each row; of the rows the first ones, where they are not as many as lanes.
    fn load(&self, b: &mut Builder, rows: Option<(Int, Mask)>) -> Vec<Vector> {
        let along = |b: &mut Builder, mem: Mem| match rows {
            None => b.load(mem),
            Some((rows, mask)) => b.load_first(mem, rows, mask),
        };
        let places = b.lane_places(self.first, self.stride);
        let columns = places.into_iter().enumerate().map(|(column, place)| {
            let mem = Mem { disp: self.disp, ..place };
            match self.part {
                ActiveLanes::Full => along(b, mem),
                ActiveLanes::First(count, _) => {
                    let zero = b.bits(0);
                    let vector = b.variable(zero);
                    b.when(CompareOp::Gt, count, column as i32, |b| {
                        let loaded = along(b, mem);
                        b.set(vector, loaded);
                    });
                    vector
                }
                ActiveLanes::One(_) => unreachable!("columns come as vectors"),
            }
        });
        let columns = columns.collect();
        b.transposed(columns)
    }
}
