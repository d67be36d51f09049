//! The strip leaf: phases over the rows of a row loop, each a loop of straight-line code or scalar code.
//!
//! `for row { phase; phase; … }`, where a phase is either a loop over `extent` elements (vectors of them, then a tail)
//! or scalar code, which runs with the same value in all lanes. Scalar variables live in vector registers, all lanes
//! equal, so a maximum found by one phase is an operand of the next without leaving them: softmax and layer norm are one
//! leaf each.
//!
//! Where many streams are the same for all rows, as the taps of a depthwise convolution are for all pixels, the loops
//! change places: for each vector of columns those streams are loaded once and held in registers down all rows.
//!
//! Sums run over [`ACCUMULATORS`] vectors in turn where the code is short, over [`together`] where it is a long chain, else
//! over one; those are added pairwise, then lanes by halves. So the order of a sum depends on its length, the code and the ISA, and on nothing else.

use super::body::{Body, Lanes, Op, Ty};
use super::{math, memory};
use crate::codegen::vector::{
    Builder, Shape,
    code::{Code, Int, IntOp, Mask, Mem, Op2, Vector},
};
use crate::scalar::{CompareOp, ReduceOp, UnaryOp};

/// Vectors that a short reduction is spread over.
pub const ACCUMULATORS: usize = 4;

/// Vectors that are computed side by side where the code is one long chain of dependent steps, as functions of
/// `math` are: as many as registers allow.
pub fn together(shape: Shape) -> usize {
    match shape {
        // Loops for several vectors make leaves long, and branches of small machines don't reach far.
        Shape { lanes: ..8, .. } => 1,
        Shape { registers: 32.., .. } => 4,
        Shape { .. } => 2,
    }
}

/// Most instructions around such a function that registers are left for.
const MOST_TOGETHER: usize = 24;

/// With fewer streams to hold, rows one after another are kinder to the caches.
const FEWEST_HELD: usize = 4;

/// The part of the loads that is held at least: where few are saved, memory is better read in its order.
const HELD_PART: (usize, usize) = (1, 3);

/// Longest code, in steps, that is unrolled for a reduction.
const UNROLL_COST: usize = 16;

/// How a stream moves with the phase's loop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Along {
    /// Not at all.
    Fixed,
    /// By one element.
    Unit,
    /// By any number of bytes.
    Stride,
}

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
    pub pointers: Vec<Along>,
    /// Which pointers are the same for all rows.
    pub still: Vec<bool>,
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
pub fn emit(key: &StripKey, shape: Shape) -> Code {
    let mut b = Builder::new(shape);
    let pointers =
        (0..key.pointers.len()).map(|pointer| b.arg(key.pointer(pointer as u32))).collect::<Vec<_>>();
    let zero = b.bits(0);
    let variables = (0..key.variables).map(|_| b.variable(zero)).collect();
    let leaf = Leaf { key, pointers, variables };
    if let Some((extent, body, held)) = turned(key, shape) {
        leaf.by_columns(&mut b, extent, body, &held);
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

/// Streams that are held in registers, and their types.
type Held = Vec<(u32, Ty)>;

/// The extent, the body and the streams to be held where the loops change places.
fn turned(key: &StripKey, shape: Shape) -> Option<(u32, &Body, Held)> {
    let [Phase::Loop { extent, body }] = &key.phases[..] else { return None };
    let pointer = |stream: u32| key.streams[stream as usize].pointer as usize;
    let mut held = Held::new();
    for (op, ty) in &body.insts {
        match op {
            Op::Load(stream) | Op::Store(stream, _) if key.pointers[pointer(*stream)] == Along::Stride => {
                return None;
            }
            Op::Load(stream) if key.still[pointer(*stream)] && !held.contains(&(*stream, *ty)) => {
                held.push((*stream, *ty));
            }
            // What is stored in each row anew must not be taken for the same.
            Op::Store(stream, _) if key.still[pointer(*stream)] => return None,
            Op::Set(..) | Op::Get(_) | Op::Reduce(..) => return None,
            _ => {}
        }
    }
    let is_held = |stream: u32| held.iter().any(|(other, _)| *other == stream);
    let loads = body.insts.iter().filter(|(op, _)| matches!(op, Op::Load(_))).count();
    if held.len() * HELD_PART.1 < loads * HELD_PART.0 {
        return None;
    }
    let fits = held.len() >= FEWEST_HELD && held.len() + body.pressure(&is_held) <= shape.registers;
    (key.rows && fits).then_some((*extent, body, held))
}

/// Whether the code is little more than a function that takes many dependent steps.
fn is_chain(body: &Body) -> bool {
    use UnaryOp::{Erf, Exp, Expm1, Log, Log1p, Tanh};
    let is_function = |op: &Op| matches!(op, Op::Unary(Exp | Expm1 | Log | Log1p | Tanh | Erf, _));
    body.insts.len() <= MOST_TOGETHER && body.insts.iter().any(|(op, _)| is_function(op))
}

struct Leaf<'a> {
    key: &'a StripKey,
    /// Where the current row begins.
    pointers: Vec<Int>,
    variables: Vec<Vector>,
}

/// Which lanes of a vector count.
#[derive(Clone, Copy)]
enum Part {
    /// All.
    Full,
    /// The first ones.
    First(Int, Mask),
    /// Lane 0.
    One(Mask),
}

/// The streams of a loop phase at the current element.
struct Position {
    /// Elements passed in unit streams.
    offset: Int,
    /// Pointers of strided streams.
    strided: Vec<Option<(Int, Int)>>,
}

impl Leaf<'_> {
    fn phases(&self, b: &mut Builder) {
        for phase in &self.key.phases {
            match phase {
                Phase::Scalar(body) => {
                    let mut lanes = At {
                        leaf: self,
                        position: None,
                        part: Part::Full,
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

    /// All rows, a vector of columns at a time.
    fn by_columns(&self, b: &mut Builder, extent: u32, body: &Body, held: &[(u32, Ty)]) {
        let count = b.arg(self.key.extent(extent));
        let position = Position { offset: b.imm(0), strided: vec![None; self.key.pointers.len()] };
        let lanes = b.lanes();
        b.repeat(count, lanes as i32, |b| {
            self.down(b, body, &position, Part::Full, held);
            position.advance(b, lanes);
        });
        b.when(CompareOp::Gt, count, 0, |b| {
            let mask = b.mask_first(count);
            self.down(b, body, &position, Part::First(count, mask), held);
        });
    }

    /// One vector of columns down all rows.
    fn down(&self, b: &mut Builder, body: &Body, position: &Position, part: Part, held: &[(u32, Ty)]) {
        let top =
            At { leaf: self, position: Some(position), part, sums: &[], unroll: 0, ahead: 0, held: &[] };
        let held: Vec<(u32, Vector)> =
            held.iter().map(|&(stream, ty)| (stream, top.fetch(b, stream, ty))).collect();
        let pointers = self.pointers.iter().map(|pointer| b.copy(*pointer)).collect();
        let row = Leaf { key: self.key, pointers, variables: Vec::new() };
        let moving = (0..self.key.pointers.len()).filter(|idx| !self.key.still[*idx]);
        let strides: Vec<(Int, Int)> =
            moving.map(|idx| (row.pointers[idx], b.arg(self.key.pointer(idx as u32) + 1))).collect();
        let rows = b.arg(StripKey::ROWS);
        b.repeat(rows, 1, |b| {
            let held = &held;
            body.emit(
                b,
                &mut At { leaf: &row, position: Some(position), part, sums: &[], unroll: 0, ahead: 0, held },
            );
            strides.iter().for_each(|(pointer, stride)| b.advance(*pointer, *stride));
        });
    }

    fn along(&self, stream: u32) -> Along {
        self.key.pointers[self.key.streams[stream as usize].pointer as usize]
    }

    /// The pointers that move so and that a body uses.
    fn touched(&self, body: &Body, along: Along) -> Vec<u32> {
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
        let is_plain = self.touched(body, Along::Stride).is_empty();
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
            part: Part::Full,
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

    fn start(&self, b: &mut Builder, body: &Body) -> Position {
        let mut strided = vec![None; self.key.pointers.len()];
        for idx in self.touched(body, Along::Stride) {
            let pointer = b.copy(self.pointers[idx as usize]);
            let stride = b.arg(self.key.pointer(idx) + 2);
            strided[idx as usize] = Some((pointer, stride));
        }
        Position { offset: b.imm(0), strided }
    }

    fn tail(&self, b: &mut Builder, body: &Body, count: Int, position: &Position, sums: &[Sum]) {
        let masked = position.strided.iter().all(Option::is_none);
        let emit = |b: &mut Builder, part: Part| {
            let position = Some(position);
            body.emit(b, &mut At { leaf: self, position, part, sums, unroll: 0, ahead: 0, held: &[] });
        };
        b.when(CompareOp::Gt, count, 0, |b| {
            if masked {
                let mask = b.mask_first(count);
                emit(b, Part::First(count, mask));
            } else {
                let one = b.imm(1);
                let mask = b.mask_first(one);
                b.repeat(count, 1, |b| {
                    emit(b, Part::One(mask));
                    position.advance(b, 1);
                });
            }
        });
    }
}

impl Position {
    fn advance(&self, b: &mut Builder, elements: usize) {
        b.advance(self.offset, elements as i32);
        for &(pointer, stride) in self.strided.iter().flatten() {
            let step = b.int_op(IntOp::Mul, stride, elements as i32);
            b.advance(pointer, step);
        }
    }
}

/// A running reduction.
struct Sum {
    op: ReduceOp,
    ty: Ty,
    var: u32,
    /// What is combined; a maximum of floats is kept with its sign turned, see [`math::max`].
    parts: Vec<Vector>,
    neutral: Vector,
}

impl Sum {
    fn start(b: &mut Builder, op: ReduceOp, ty: Ty, var: u32, unroll: usize) -> Sum {
        let bits = match (op, ty) {
            (ReduceOp::Sum, _) => 0,
            (ReduceOp::Prod, _) => 1f32.to_bits(),
            (ReduceOp::Min | ReduceOp::Max, Ty::F32) => f32::INFINITY.to_bits(),
            (ReduceOp::Min, _) => i32::MAX as u32,
            (ReduceOp::Max, _) => i32::MIN as u32,
        };
        let neutral = b.bits(bits);
        let parts = (0..unroll).map(|_| b.variable(neutral)).collect();
        Sum { op, ty, var, parts, neutral }
    }

    fn is_turned(&self) -> bool {
        (self.op, self.ty) == (ReduceOp::Max, Ty::F32)
    }

    fn combine(&self, b: &mut Builder, x: Vector, y: Vector) -> Vector {
        match (self.op, self.ty) {
            (ReduceOp::Sum, Ty::F32) => b.op2(Op2::Add, x, y),
            (ReduceOp::Prod, _) => b.op2(Op2::Mul, x, y),
            (ReduceOp::Min | ReduceOp::Max, Ty::F32) => math::min(b, x, y),
            (ReduceOp::Sum, _) => b.op2(Op2::AddInt, x, y),
            (ReduceOp::Min, _) => b.op2(Op2::MinInt, x, y),
            (ReduceOp::Max, _) => b.op2(Op2::MaxInt, x, y),
        }
    }

    fn add(&self, b: &mut Builder, value: Vector, part: Part, unroll: usize) {
        let value = if self.is_turned() { math::neg(b, value) } else { value };
        let value = match part {
            Part::Full => value,
            Part::First(_, mask) | Part::One(mask) => b.select(mask, value, self.neutral),
        };
        let sum = self.combine(b, self.parts[unroll], value);
        b.set(self.parts[unroll], sum);
    }

    /// Combines everything into `dst`, all lanes equal.
    fn finish(&self, b: &mut Builder, dst: Vector) {
        let mut parts = self.parts.clone();
        while parts.len() > 1 {
            parts = parts.chunks(2).map(|pair| self.combine(b, pair[0], pair[1])).collect();
        }
        let mut sum = parts[0];
        let mut distance = b.lanes() / 2;
        while distance > 0 {
            let other = b.butterfly(sum, distance as u8);
            sum = self.combine(b, sum, other);
            distance /= 2;
        }
        let sum = if self.is_turned() { math::neg(b, sum) } else { sum };
        b.set(dst, sum);
    }
}

/// One vector of iterations of a phase.
struct At<'a> {
    leaf: &'a Leaf<'a>,
    /// None in scalar phases.
    position: Option<&'a Position>,
    part: Part,
    sums: &'a [Sum],
    unroll: usize,
    /// Elements from the position on.
    ahead: usize,
    /// Streams whose elements are in registers.
    held: &'a [(u32, Vector)],
}

impl At<'_> {
    fn unit(&self, stream: u32, ty: Ty) -> Mem {
        let position = self.position.expect("scalar phases touch fixed streams only");
        let bytes = memory::elem_bytes(ty);
        Mem { index: Some((position.offset, bytes as u8)), ..self.fixed(stream).plus(bytes * self.ahead) }
    }

    fn fixed(&self, stream: u32) -> Mem {
        let Stream { pointer, offset } = self.leaf.key.streams[stream as usize];
        Mem { base: self.leaf.pointers[pointer as usize], index: None, disp: offset }
    }

    /// The places of a strided stream's lanes.
    fn strided(&self, b: &mut Builder, stream: u32) -> Vec<Mem> {
        let position = self.position.expect("scalar phases touch fixed streams only");
        let Stream { pointer, offset: disp } = self.leaf.key.streams[stream as usize];
        let (pointer, stride) = position.strided[pointer as usize].expect("started with the phase");
        if matches!(self.part, Part::One(_)) {
            return vec![Mem { base: pointer, index: None, disp }];
        }
        b.lane_places(pointer, stride).into_iter().map(|place| Mem { disp, ..place }).collect()
    }

    /// The elements of a stream from memory.
    fn fetch(&self, b: &mut Builder, stream: u32, ty: Ty) -> Vector {
        match (self.leaf.along(stream), self.part) {
            (Along::Fixed, _) => memory::broadcast(b, self.fixed(stream), ty),
            (Along::Unit, Part::Full) => memory::load(b, self.unit(stream, ty), ty),
            (Along::Unit, Part::First(n, mask)) => memory::load_first(b, self.unit(stream, ty), ty, n, mask),
            (Along::Unit, Part::One(_)) => memory::load_one(b, self.unit(stream, ty), ty),
            (Along::Stride, Part::Full) => {
                let mems = self.strided(b, stream);
                memory::load_lanes(b, mems, ty)
            }
            (Along::Stride, _) => {
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
            (Along::Fixed, _) => memory::store_one(b, self.fixed(stream), ty, value),
            (Along::Unit, Part::Full) => memory::store(b, self.unit(stream, ty), ty, value),
            (Along::Unit, Part::First(n, mask)) => {
                memory::store_first(b, self.unit(stream, ty), ty, value, n, mask);
            }
            (Along::Unit, Part::One(_)) => memory::store_one(b, self.unit(stream, ty), ty, value),
            (Along::Stride, Part::Full) => {
                let mems = self.strided(b, stream);
                memory::store_lanes(b, mems, ty, value);
            }
            (Along::Stride, _) => {
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
