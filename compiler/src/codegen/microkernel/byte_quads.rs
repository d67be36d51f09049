//! Sums of products of bytes, four products an instruction.
//!
//! [`VInst::DotBytes`](crate::codegen::vector::vcode::VInst::DotBytes) multiplies four pairs of bytes of each lane, and
//! adds the products. A depthwise convolution multiplies the bytes of one channel in each lane, so four of its taps
//! become the bytes of a lane: a quad. The taps of a quad are those of one column of the window. Outputs that are
//! neighbours in a row then share the quads of their windows.
//!
//! The instruction takes unsigned bytes of the inputs. Signed ones are raised by 128, and the sum is corrected by 128
//! times the sum of the weights.

use super::{
    lane_access::{LaneAccess, QuadWeights},
    op::{Body, Op, Ty},
};
use crate::{
    codegen::vector::{
        Builder, VectorShape,
        vcode::{VBinary, Vector},
    },
    scalar::BinaryOp,
};
use std::ops::RangeInclusive;

/// Bytes of a lane.
const QUAD: usize = 4;

/// The number of products for which the exchange of bytes pays. Fewer are too few, and with more the weights, all of
/// which are loaded first, would have no registers.
const TERMS: RangeInclusive<usize> = 9..=64;

/// The streams whose bytes are those of a lane, the lowest first: at most four.
type Quad = Vec<u32>;

/// A sum of products.
struct Sum {
    /// The instruction that adds the last product.
    last: usize,
    /// The value that the products are added to.
    base: Option<u32>,
    /// The loads of both operands of each product, in the order of the sum.
    terms: Vec<[u32; 2]>,
}

/// The quads that one sum multiplies.
struct QuadSum {
    last: usize,
    base: Option<u32>,
    inputs: Vec<Quad>,
}

/// The sums of a body that have the same weights.
pub(super) struct ByteQuads {
    sums: Vec<QuadSum>,
    weights: Vec<Quad>,
    /// Whether inputs have a sign.
    is_signed: bool,
    /// The instructions that the sums absorb.
    skipped: Vec<bool>,
    /// The values of the sums, once they are computed.
    computed: Vec<Vector>,
}

impl ByteQuads {
    /// Finds them in a body: all sums of [`TERMS`] products of bytes, if they have the same weights.
    pub(super) fn of(body: &Body, shape: &VectorShape) -> Option<ByteQuads> {
        if !shape.byte_quads {
            return None;
        }
        let uses = body.use_counts();
        let sums = sums(body, &uses);
        let types = |term: &[u32; 2]| term.map(|load| body.ty(load));
        let first = sums.first()?;
        let first_types = types(&first.terms[0]);
        let weight_side = match first_types {
            [Ty::U8, Ty::I8] => 1,
            [Ty::I8, Ty::U8] => 0,
            // Either operand may be raised. That of the weights is the same for all sums.
            [Ty::I8, Ty::I8] => usize::from(sums.iter().all(|sum| side(sum, 1) == side(first, 1))),
            _ => return None,
        };
        let is_uniform = |sum: &Sum| {
            sum.terms.iter().all(|term| types(term) == first_types)
                && side(sum, weight_side) == side(first, weight_side)
        };
        if !sums.iter().all(is_uniform) {
            return None;
        }

        let absorbed = absorbed(body, &sums);
        if !is_closed(body, &absorbed, &sums) {
            return None;
        }
        let quads = quads(first.terms.len(), window_columns(&sums, 1 - weight_side));
        let stream = |load: u32| match body.op(load) {
            Op::Load(stream) => stream,
            _ => unreachable!("operands are loads"),
        };
        let quads_of = |sum: &Sum, side: usize| -> Vec<Quad> {
            quads.iter().map(|taps| taps.iter().map(|tap| stream(sum.terms[*tap][side])).collect()).collect()
        };
        let mut skipped = absorbed;
        sums.iter().for_each(|sum| skipped[sum.last] = false);
        Some(ByteQuads {
            weights: quads_of(first, weight_side),
            is_signed: first_types[1 - weight_side] == Ty::I8,
            sums: sums
                .iter()
                .map(|sum| QuadSum { last: sum.last, base: sum.base, inputs: quads_of(sum, 1 - weight_side) })
                .collect(),
            skipped,
            computed: Vec::new(),
        })
    }

    /// Whether no emitted instruction needs the value of this one.
    pub(super) fn skips(&self, idx: usize) -> bool {
        self.skipped[idx]
    }

    /// The streams of the weights.
    pub(super) fn weight_streams(&self) -> impl Iterator<Item = u32> {
        self.weights.iter().flatten().copied()
    }

    /// Registers that the sums need at once, next to those of the weights.
    pub(super) fn pressure(&self) -> usize {
        // A quad of inputs, another one on its way, and the constant that raises them.
        self.sums.len() + 3
    }

    /// Registers of the weights.
    pub(super) fn weight_registers(&self) -> usize {
        self.weights.len() + usize::from(self.is_signed)
    }

    /// Loads the weights.
    pub(super) fn load_weights(&self, b: &mut Builder, lanes: &mut dyn LaneAccess) -> QuadWeights {
        let quads: Vec<Vector> = self.weights.iter().map(|quad| lanes.load_quad(b, quad)).collect();
        let correction = self.is_signed.then(|| {
            let zero = b.bits(0);
            let sum = b.variable(zero);
            // One register for all, as the instruction takes no constants.
            let raise = b.bits(RAISE);
            let raise = b.variable(raise);
            quads.iter().for_each(|quad| b.set_dot_bytes(sum, raise, *quad));
            b.binary(VBinary::SubInt, zero, sum)
        });
        QuadWeights { quads, correction }
    }

    /// The sum whose last instruction is at `idx`. The first one computes all. `value` gives the values of earlier
    /// instructions.
    pub(super) fn emit(
        &mut self,
        b: &mut Builder,
        lanes: &mut dyn LaneAccess,
        idx: usize,
        value: impl Fn(u32) -> Vector,
    ) -> Option<Vector> {
        let at = self.sums.iter().position(|sum| sum.last == idx)?;
        if self.computed.is_empty() {
            let weights = match lanes.quad_weights() {
                Some(weights) => weights.clone(),
                None => self.load_weights(b, lanes),
            };
            self.compute(b, lanes, &weights, value);
        }
        Some(self.computed[at])
    }

    /// Computes all sums, a quad of inputs after another.
    fn compute(
        &mut self,
        b: &mut Builder,
        lanes: &mut dyn LaneAccess,
        weights: &QuadWeights,
        value: impl Fn(u32) -> Vector,
    ) {
        let start = |b: &mut Builder, sum: &QuadSum| {
            let base = sum.base.map(&value);
            match (base, weights.correction) {
                (Some(base), Some(correction)) => b.binary(VBinary::AddInt, base, correction),
                (Some(value), None) | (None, Some(value)) => b.variable(value),
                (None, None) => {
                    let zero = b.bits(0);
                    b.variable(zero)
                }
            }
        };
        let accumulators: Vec<Vector> = self.sums.iter().map(|sum| start(b, sum)).collect();
        for quad in self.inputs() {
            let mut inputs = lanes.load_quad(b, &quad);
            if self.is_signed {
                let raise = b.bits(RAISE);
                inputs = b.binary(VBinary::Xor, inputs, raise);
            }
            for (sum, &accumulator) in self.sums.iter().zip(&accumulators) {
                for (other, &weight) in sum.inputs.iter().zip(&weights.quads) {
                    if *other == quad {
                        b.set_dot_bytes(accumulator, inputs, weight);
                    }
                }
            }
        }
        self.computed = accumulators;
    }

    /// The different quads of inputs, those of one column after another.
    fn inputs(&self) -> Vec<Quad> {
        let mut all: Vec<Quad> = Vec::new();
        for sum in &self.sums {
            for quad in &sum.inputs {
                if !all.contains(quad) {
                    all.push(quad.clone());
                }
            }
        }
        all
    }
}

/// Raises signed bytes by 128: their sign bits.
const RAISE: u32 = 0x8080_8080;

/// One operand of all products of a sum.
fn side(sum: &Sum, side: usize) -> Vec<u32> {
    sum.terms.iter().map(|term| term[side]).collect()
}

/// The long sums of products of bytes, in the order of their last instructions.
fn sums(body: &Body, uses: &[usize]) -> Vec<Sum> {
    let product = |reg: u32| product(body, reg);
    let next = |idx: usize| {
        let (term, addend) = body.term(idx, uses, |reg| product(reg).is_some())?;
        let is_sum = body.term(addend as usize, uses, |reg| product(reg).is_some()).is_some();
        let is_continued = uses[addend as usize] == 1 && (is_sum || product(addend).is_some());
        Some((product(term)?, addend, is_continued))
    };
    let mut continued = vec![false; body.insts.len()];
    for idx in 0..body.insts.len() {
        if let Some((_, addend, true)) = next(idx) {
            continued[addend as usize] = true;
        }
    }

    let mut sums = Vec::new();
    for last in (0..body.insts.len()).filter(|idx| !continued[*idx]) {
        let mut terms = Vec::new();
        let mut base = None;
        let mut at = last;
        while let Some((term, addend, is_continued)) = next(at) {
            terms.push(term);
            base = (!is_continued).then_some(addend);
            at = addend as usize;
            if !is_continued {
                break;
            }
            if let Some(first) = product(addend) {
                terms.push(first);
                break;
            }
        }
        terms.reverse();
        if TERMS.contains(&terms.len()) {
            sums.push(Sum { last, base, terms });
        }
    }
    sums
}

/// The loads whose bytes a product multiplies.
fn product(body: &Body, reg: u32) -> Option<[u32; 2]> {
    let byte = |reg: u32| match body.op(reg) {
        Op::Cast(load) if matches!(body.insts[load as usize], (Op::Load(_), Ty::U8 | Ty::I8)) => Some(load),
        _ => None,
    };
    match body.insts[reg as usize] {
        (Op::Binary(BinaryOp::Mul, x, y), Ty::I32) => Some([byte(x)?, byte(y)?]),
        _ => None,
    }
}

/// The instructions of the sums: their additions, products, casts and loads.
fn absorbed(body: &Body, sums: &[Sum]) -> Vec<bool> {
    let mut absorbed = vec![false; body.insts.len()];
    for sum in sums {
        let mut open = vec![sum.last as u32];
        while let Some(reg) = open.pop() {
            if Some(reg) == sum.base {
                continue;
            }
            absorbed[reg as usize] = true;
            match body.op(reg) {
                Op::Binary(_, x, y) => open.extend([x, y]),
                Op::Cast(x) => open.push(x),
                _ => {}
            }
        }
    }
    absorbed
}

/// Whether the sums may be computed at the first of their last instructions: nothing else reads what they absorb, their
/// bases are known, and no store before their loads changes these.
fn is_closed(body: &Body, absorbed: &[bool], sums: &[Sum]) -> bool {
    let is_last = |reg: u32| sums.iter().any(|sum| sum.last == reg as usize);
    let is_inner = |reg: u32| absorbed[reg as usize] && !is_last(reg);
    let first = sums.iter().map(|sum| sum.last).min().unwrap_or(0);
    let others = body.insts.iter().zip(absorbed).filter(|(_, is_absorbed)| !**is_absorbed);
    let is_private = others.flat_map(|((op, _), _)| op.operands()).all(|reg| !is_inner(reg));
    is_private
        && sums.iter().all(|sum| sum.base.is_none_or(|base| (base as usize) < first))
        && body.stores_elsewhere
}

/// The columns of the window that the sums slide along, as far as two of them show: by how many products the second
/// one is ahead, and where a row of the window ends. `None` where they share no inputs.
fn window_columns(sums: &[Sum], inputs: usize) -> Option<usize> {
    let [first, second, ..] = sums else { return None };
    let [first, second] = [first, second].map(|sum| side(sum, inputs));
    let step = first.iter().position(|load| *load == second[0]).filter(|step| *step > 0)?;
    let is_shared = |tap: &usize| first.get(tap + step) == Some(&second[*tap]);
    let shared = (0..second.len()).take_while(is_shared).count();
    let columns = shared + step;
    first.len().is_multiple_of(columns).then_some(columns)
}

/// The taps of each quad of a window.
fn quads(taps: usize, columns: Option<usize>) -> Vec<Vec<usize>> {
    let columns = columns.unwrap_or(1);
    let column = |column: usize| (column..taps).step_by(columns).collect::<Vec<_>>();
    (0..columns).flat_map(|idx| column(idx).chunks(QUAD).map(<[usize]>::to_vec).collect::<Vec<_>>()).collect()
}
