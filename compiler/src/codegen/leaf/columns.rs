//! Strip leaves whose loops change places: for each vector of columns, down all rows.
//!
//! Streams that are the same for all rows, as the taps of a depthwise convolution are for all pixels, are loaded once and
//! held in registers.
//!
//! A stream whose columns lie apart, but whose rows lie side by side, is read along the rows, in squares of as many rows
//! and columns as a vector has lanes, which are transposed in registers: so a matrix is transposed with whole vectors
//! on both sides. Each element is computed by the same instructions either way.

use super::body::{Body, Op, Ty};
use super::strip::{Along, At, Leaf, Part, Phase, Position, StripKey};
use crate::codegen::vector::{
    Builder, Shape,
    code::{Int, Mask, Mem, Vector},
};
use crate::scalar::CompareOp;

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
    pub(super) fn of(key: &'a StripKey, shape: Shape) -> Option<Columns<'a>> {
        let [Phase::Loop { extent, body }] = &key.phases[..] else { return None };
        let pointer = |stream: u32| key.streams[stream as usize].pointer as usize;
        let (mut held, mut apart) = (Vec::new(), Vec::new());
        for &(op, ty) in &body.insts {
            match op {
                Op::Load(stream) if key.pointers[pointer(stream)] == Along::Stride => {
                    let is_word = matches!(ty, Ty::F32 | Ty::I32);
                    if !is_word || key.down[pointer(stream)] != Along::Unit {
                        return None;
                    }
                    apart.push(stream);
                }
                Op::Load(stream) if key.down[pointer(stream)] == Along::Fixed => {
                    if !held.contains(&(stream, ty)) {
                        held.push((stream, ty));
                    }
                }
                // What is stored in each row anew must not be taken for the same.
                Op::Store(stream, _)
                    if key.pointers[pointer(stream)] == Along::Stride
                        || key.down[pointer(stream)] == Along::Fixed =>
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

    fn pays(&self, shape: Shape) -> bool {
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
        b.repeat(count, lanes as i32, |b| {
            self.down(leaf, b, &position, Part::Full);
            position.advance(b, lanes);
        });
        b.when(CompareOp::Gt, count, 0, |b| {
            let mask = b.mask_first(count);
            self.down(leaf, b, &position, Part::First(count, mask));
        });
    }

    /// One vector of columns down all rows.
    fn down(&self, leaf: &Leaf<'_>, b: &mut Builder, position: &Position, part: Part) {
        match &self.gain {
            Gain::Held(held) => {
                let top = at(leaf, position, part, &[]);
                let held: Vec<(u32, Vector)> =
                    held.iter().map(|&(stream, ty)| (stream, top.fetch(b, stream, ty))).collect();
                let row = Row::first(leaf, b);
                let rows = b.arg(StripKey::ROWS);
                b.repeat(rows, 1, |b| row.emit(b, self.body, position, part, &held));
            }
            Gain::Squares(stream) => self.squares(leaf, b, *stream, position, part),
        }
    }

    fn squares(&self, leaf: &Leaf<'_>, b: &mut Builder, stream: u32, position: &Position, part: Part) {
        let place = leaf.key.streams[stream as usize];
        let (first, stride) = position.strided[place.pointer as usize].expect("its columns lie apart");
        let square = Square { first: b.copy(first), disp: place.offset, stride, part };
        let row = Row::first(leaf, b);
        let (rows, lanes) = (b.arg(StripKey::ROWS), b.lanes() as i32);
        b.repeat(rows, lanes, |b| {
            for vector in square.load(b, None) {
                row.emit(b, self.body, position, part, &[(stream, vector)]);
            }
            b.advance(square.first, 4 * lanes);
        });
        b.when(CompareOp::Gt, rows, 0, |b| {
            let mask = b.mask_first(rows);
            for (number, vector) in square.load(b, Some((rows, mask))).into_iter().enumerate() {
                b.when(CompareOp::Gt, rows, number as i32, |b| {
                    row.emit(b, self.body, position, part, &[(stream, vector)]);
                });
            }
        });
    }
}

fn at<'a>(leaf: &'a Leaf<'a>, position: &'a Position, part: Part, held: &'a [(u32, Vector)]) -> At<'a> {
    At { leaf, position: Some(position), part, sums: &[], unroll: 0, ahead: 0, held }
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
        let is_moving =
            |idx: &usize| leaf.key.pointers[*idx] != Along::Stride && leaf.key.down[*idx] != Along::Fixed;
        let moving = (0..pointers.len()).filter(is_moving);
        let steps = moving.map(|idx| (pointers[idx], b.arg(leaf.key.pointer(idx as u32) + 1))).collect();
        Row { leaf: Leaf { key: leaf.key, pointers, variables: Vec::new() }, steps }
    }

    /// Computes it and goes on to the one below.
    fn emit(&self, b: &mut Builder, body: &Body, position: &Position, part: Part, held: &[(u32, Vector)]) {
        body.emit(b, &mut at(&self.leaf, position, part, held));
        self.steps.iter().for_each(|(pointer, step)| b.advance(*pointer, *step));
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
    part: Part,
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
                Part::Full => along(b, mem),
                Part::First(count, _) => {
                    let zero = b.bits(0);
                    let vector = b.variable(zero);
                    b.when(CompareOp::Gt, count, column as i32, |b| {
                        let loaded = along(b, mem);
                        b.set(vector, loaded);
                    });
                    vector
                }
                Part::One(_) => unreachable!("columns come as vectors"),
            }
        });
        let columns = columns.collect();
        b.transposed(columns)
    }
}
