//! The strip leaf: phases over the rows of a row loop, each a loop of straight-line code or scalar code.
//!
//! `for row { phase; phase; … }`, where a phase is either a loop over `extent` elements (vectors of them, then a tail)
//! or scalar code, which runs with the same value in all lanes. Scalar variables live in vector registers, all lanes
//! equal, so a maximum found by one phase is an operand of the next without leaving them: softmax and layer norm are one
//! leaf each.
//!
//! Where it saves memory accesses, the loops change places, see [`super::columns`].
//!
//! Sums run over [`ACCUMULATORS`] vectors in turn where the code is short, over [`together`] where it is a long chain, else
//! over one; those are added pairwise, then lanes by halves. So the order of a sum depends on its length, the code and the ISA, and on nothing else.

use super::columns::Columns;
use super::memory;
use super::op::{Body, Lanes, Op, StreamStep, Ty};
use super::sum::Sum;
use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{Int, IntOp, Mask, Mem, VCode, Vector},
};
use crate::scalar::{CompareOp, ReduceOp, UnaryOp};

/// Vectors that a short reduction is spread over.
pub const ACCUMULATORS: usize = 4;

/// Vectors that are computed side by side where the code is one long chain of dependent steps, as functions of
/// `math` are: as many as registers allow.
pub fn together(shape: VectorShape) -> usize {
    match shape {
        // Loops for several vectors make leaves long, and branches of small machines don't reach far.
        VectorShape { lanes: ..8, .. } => 1,
        VectorShape { registers: 32.., .. } => 4,
        VectorShape { .. } => 2,
    }
}

/// Most instructions around such a function that registers are left for.
const MOST_TOGETHER: usize = 24;

/// Longest code, in steps, that is unrolled for a reduction.
const UNROLL_COST: usize = 16;

/// A stream: elements at a fixed distance from a pointer that streams with the same steps share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stream {
    /// Which pointer.
    pub pointer: u32,
    /// How far from it, in bytes.
    pub offset: i32,
}

/// A phase.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Runs once a row.
    Scalar(Body),
    /// Runs for each element of the row; the extent is argument number `extent` of the extents.
    Loop {
        /// Which extent.
        extent: u32,
        /// What runs.
        body: Body,
    },
}

/// Everything that a strip leaf's code depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StripKey {
    /// There is a row loop.
    pub rows: bool,
    /// In order.
    pub phases: Vec<Phase>,
    /// How the pointers move.
    pub pointers: Vec<StreamStep>,
    /// How the pointers move from row to row: not at all, by one element of 32 bits, or by anything.
    pub row_steps: Vec<StreamStep>,
    /// The streams of all phases.
    pub streams: Vec<Stream>,
    /// Number of extents.
    pub extents: u32,
    /// Number of scalar arguments.
    pub scalars: u32,
    /// Number of scalar variables.
    pub variables: u32,
    /// Variables whose value is put into the argument block at the end; only without a row loop.
    pub results: Vec<u32>,
}

/// Where a strip leaf's arguments lie in the argument block.
impl StripKey {
    /// Number of rows.
    pub const ROWS: usize = 0;

    /// Extent number `extent`.
    pub fn extent(&self, extent: u32) -> usize {
        1 + extent as usize
    }

    /// Pointer `pointer`: its value, then bytes from row to row, then bytes from element to element.
    pub fn pointer(&self, pointer: u32) -> usize {
        1 + self.extents as usize + 3 * pointer as usize
    }

    /// Scalar argument `scalar`, 32 bits of it.
    pub fn scalar(&self, scalar: u32) -> usize {
        self.pointer(self.pointers.len() as u32) + scalar as usize
    }

    /// Result number `result`, 32 bits, written by the leaf.
    pub fn result(&self, result: usize) -> usize {
        self.scalar(self.scalars) + result
    }

    /// Length of the argument block.
    pub fn slots(&self) -> usize {
        self.result(self.results.len())
    }
}

/// The leaf's code on an ISA of this shape.
pub fn emit(key: &StripKey, shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    let pointers =
        (0..key.pointers.len()).map(|pointer| b.arg(key.pointer(pointer as u32))).collect::<Vec<_>>();
    let zero = b.bits(0);
    let variables = (0..key.variables).map(|_| b.variable(zero)).collect();
    let leaf = Leaf { key, pointers, variables };
    if let Some(columns) = Columns::of(key, shape) {
        columns.emit(&leaf, &mut b);
    } else if key.rows {
        let rows = b.arg(StripKey::ROWS);
        b.repeat(rows, 1, |b| {
            leaf.phases(b);
            for (idx, &pointer) in leaf.pointers.iter().enumerate() {
                let stride = b.arg(key.pointer(idx as u32) + 1);
                b.advance(pointer, stride);
            }
        });
    } else {
        leaf.phases(&mut b);
        for (index, &var) in key.results.iter().enumerate() {
            b.store_one(b.arg_mem(key.result(index)), leaf.variables[var as usize]);
        }
    }
    b.finish()
}

/// Whether the code is little more than a function that takes many dependent steps.
fn is_chain(body: &Body) -> bool {
    use UnaryOp::{Erf, Exp, Expm1, Log, Log1p, Tanh};
    let is_function = |op: &Op| matches!(op, Op::Unary(Exp | Expm1 | Log | Log1p | Tanh | Erf, _));
    body.insts.len() <= MOST_TOGETHER && body.insts.iter().any(|(op, _)| is_function(op))
}

pub(super) struct Leaf<'a> {
    pub(super) key: &'a StripKey,
    /// Where the current row begins.
    pub(super) pointers: Vec<Int>,
    pub(super) variables: Vec<Vector>,
}

/// Which lanes of a vector count.
#[derive(Clone, Copy)]
pub(super) enum ActiveLanes {
    /// All.
    Full,
    /// The first ones.
    First(Int, Mask),
    /// Lane 0.
    One(Mask),
}

/// The streams of a loop phase at the current element.
pub(super) struct Position {
    /// Elements passed in unit streams.
    pub(super) offset: Int,
    /// Pointers of strided streams, and what they move by.
    pub(super) strided: Vec<Option<(Int, Int)>>,
}

impl Leaf<'_> {
    fn phases(&self, b: &mut Builder) {
        for phase in &self.key.phases {
            match phase {
                Phase::Scalar(body) => {
                    let mut lanes = At {
                        leaf: self,
                        position: None,
                        part: ActiveLanes::Full,
                        sums: &[],
                        unroll: 0,
                        ahead: 0,
                        held: &[],
                    };
                    body.emit(b, &mut lanes);
                }
                Phase::Loop { extent, body } => self.run(b, *extent, body),
            }
        }
    }

    pub(super) fn along(&self, stream: u32) -> StreamStep {
        self.key.pointers[self.key.streams[stream as usize].pointer as usize]
    }

    /// The pointers that move so and that a body uses.
    fn touched(&self, body: &Body, along: StreamStep) -> Vec<u32> {
        let mut pointers: Vec<u32> = body
            .insts
            .iter()
            .filter_map(|(op, _)| match op {
                Op::Load(stream) | Op::Store(stream, _) => Some(self.key.streams[*stream as usize].pointer),
                _ => None,
            })
            .filter(|pointer| self.key.pointers[*pointer as usize] == along)
            .collect();
        pointers.sort_unstable();
        pointers.dedup();
        pointers
    }

    fn run(&self, b: &mut Builder, extent: u32, body: &Body) {
        let reductions: Vec<(ReduceOp, Ty, u32)> = body
            .insts
            .iter()
            .filter_map(|(op, _)| match *op {
                Op::Reduce(op, x, var) => Some((op, body.insts[x as usize].1, var)),
                _ => None,
            })
            .collect();
        let is_plain = self.touched(body, StreamStep::Stride).is_empty();
        let together = if is_plain && is_chain(body) { together(b.shape()) } else { 1 };
        let unroll = match body.cost() {
            _ if together > 1 => together,
            cost if cost <= UNROLL_COST && !reductions.is_empty() => ACCUMULATORS,
            _ => 1,
        };
        let sums: Vec<Sum> =
            reductions.iter().map(|&(op, ty, var)| Sum::start(b, op, ty, var, unroll)).collect();
        let count = b.arg(self.key.extent(extent));
        let position = self.start(b, body);
        let lanes = b.lanes() as i32;
        let at = |unroll: usize, ahead: usize| At {
            leaf: self,
            position: Some(&position),
            part: ActiveLanes::Full,
            sums: &sums,
            unroll,
            ahead,
            held: &[],
        };
        for vectors in [4, 2].into_iter().filter(|vectors| *vectors <= together) {
            b.repeat(count, lanes * vectors as i32, |b| {
                let lanes = b.lanes();
                b.alternate(vectors, &mut |b, vector| body.emit(b, &mut at(vector, vector * lanes)));
                position.advance(b, vectors * lanes);
            });
        }
        let in_turn = unroll > together;
        let blocks: &[usize] = if in_turn { &[ACCUMULATORS, 1] } else { &[1] };
        for &block in blocks {
            b.repeat(count, lanes * block as i32, |b| {
                for unroll in 0..block {
                    body.emit(b, &mut at(unroll, 0));
                    position.advance(b, b.lanes());
                }
            });
        }
        self.tail(b, body, count, &position, &sums);
        for sum in &sums {
            sum.finish(b, self.variables[sum.var as usize]);
        }
    }

    pub(super) fn start(&self, b: &mut Builder, body: &Body) -> Position {
        let mut strided = vec![None; self.key.pointers.len()];
        for idx in self.touched(body, StreamStep::Stride) {
            let pointer = b.copy(self.pointers[idx as usize]);
            let stride = b.arg(self.key.pointer(idx) + 2);
            strided[idx as usize] = Some((pointer, stride));
        }
        Position { offset: b.imm(0), strided }
    }

    fn tail(&self, b: &mut Builder, body: &Body, count: Int, position: &Position, sums: &[Sum]) {
        let masked = position.strided.iter().all(Option::is_none);
        let emit = |b: &mut Builder, part: ActiveLanes| {
            let position = Some(position);
            body.emit(b, &mut At { leaf: self, position, part, sums, unroll: 0, ahead: 0, held: &[] });
        };
        b.when(CompareOp::Gt, count, 0, |b| {
            if masked {
                let mask = b.mask_first(count);
                emit(b, ActiveLanes::First(count, mask));
            } else {
                let one = b.imm(1);
                let mask = b.mask_first(one);
                b.repeat(count, 1, |b| {
                    emit(b, ActiveLanes::One(mask));
                    position.advance(b, 1);
                });
            }
        });
    }
}

impl Position {
    pub(super) fn advance(&self, b: &mut Builder, elements: usize) {
        b.advance(self.offset, elements as i32);
        for &(pointer, stride) in self.strided.iter().flatten() {
            let step = b.int_op(IntOp::Mul, stride, elements as i32);
            b.advance(pointer, step);
        }
    }
}

/// One vector of iterations of a phase.
pub(super) struct At<'a> {
    pub(super) leaf: &'a Leaf<'a>,
    /// None in scalar phases.
    pub(super) position: Option<&'a Position>,
    pub(super) part: ActiveLanes,
    pub(super) sums: &'a [Sum],
    pub(super) unroll: usize,
    /// Elements from the position on.
    pub(super) ahead: usize,
    /// Streams whose elements are in registers.
    pub(super) held: &'a [(u32, Vector)],
}

impl At<'_> {
    fn unit(&self, stream: u32, ty: Ty) -> Mem {
        let position = self.position.expect("scalar phases touch fixed streams only");
        let bytes = memory::elem_bytes(ty);
        Mem { index: Some((position.offset, bytes as u8)), ..self.fixed(stream).plus(bytes * self.ahead) }
    }

    pub(super) fn fixed(&self, stream: u32) -> Mem {
        let Stream { pointer, offset } = self.leaf.key.streams[stream as usize];
        Mem { base: self.leaf.pointers[pointer as usize], index: None, disp: offset }
    }

    /// The places of a strided stream's lanes.
    fn strided(&self, b: &mut Builder, stream: u32) -> Vec<Mem> {
        let position = self.position.expect("scalar phases touch fixed streams only");
        let Stream { pointer, offset: disp } = self.leaf.key.streams[stream as usize];
        let (pointer, stride) = position.strided[pointer as usize].expect("started with the phase");
        if matches!(self.part, ActiveLanes::One(_)) {
            return vec![Mem { base: pointer, index: None, disp }];
        }
        b.lane_places(pointer, stride).into_iter().map(|place| Mem { disp, ..place }).collect()
    }

    /// The elements of a stream from memory.
    pub(super) fn fetch(&self, b: &mut Builder, stream: u32, ty: Ty) -> Vector {
        match (self.leaf.along(stream), self.part) {
            (StreamStep::Fixed, _) => memory::broadcast(b, self.fixed(stream), ty),
            (StreamStep::Unit, ActiveLanes::Full) => memory::load(b, self.unit(stream, ty), ty),
            (StreamStep::Unit, ActiveLanes::First(n, mask)) => {
                memory::load_first(b, self.unit(stream, ty), ty, n, mask)
            }
            (StreamStep::Unit, ActiveLanes::One(_)) => memory::load_one(b, self.unit(stream, ty), ty),
            (StreamStep::Stride, ActiveLanes::Full) => {
                let mems = self.strided(b, stream);
                memory::load_lanes(b, mems, ty)
            }
            (StreamStep::Stride, _) => {
                let mems = self.strided(b, stream);
                memory::load_one(b, mems[0], ty)
            }
        }
    }
}

impl Lanes for At<'_> {
    fn load(&mut self, b: &mut Builder, stream: u32, ty: Ty) -> Vector {
        let held = self.held.iter().find(|(other, _)| *other == stream);
        held.map_or_else(|| self.fetch(b, stream, ty), |(_, vector)| *vector)
    }

    fn store(&mut self, b: &mut Builder, stream: u32, ty: Ty, value: Vector) {
        match (self.leaf.along(stream), self.part) {
            (StreamStep::Fixed, _) => memory::store_one(b, self.fixed(stream), ty, value),
            (StreamStep::Unit, ActiveLanes::Full) => memory::store(b, self.unit(stream, ty), ty, value),
            (StreamStep::Unit, ActiveLanes::First(n, mask)) => {
                memory::store_first(b, self.unit(stream, ty), ty, value, n, mask);
            }
            (StreamStep::Unit, ActiveLanes::One(_)) => memory::store_one(b, self.unit(stream, ty), ty, value),
            (StreamStep::Stride, ActiveLanes::Full) => {
                let mems = self.strided(b, stream);
                memory::store_lanes(b, mems, ty, value);
            }
            (StreamStep::Stride, _) => {
                let mems = self.strided(b, stream);
                memory::store_one(b, mems[0], ty, value);
            }
        }
    }

    fn splat(&mut self, b: &mut Builder, slot: u32) -> Vector {
        b.broadcast(b.arg_mem(self.leaf.key.scalar(slot)))
    }

    fn sum(&mut self, _: &mut Builder) -> Vector {
        unreachable!("strips have no contraction sum")
    }

    fn variable(&mut self, var: u32) -> Vector {
        self.leaf.variables[var as usize]
    }

    fn reduce(&mut self, b: &mut Builder, op: ReduceOp, value: Vector, var: u32) {
        let sum =
            self.sums.iter().find(|sum| sum.var == var && sum.op == op).expect("started with the phase");
        sum.add(b, value, self.part, self.unroll);
    }
}
