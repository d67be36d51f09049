//! Random padded encoders: graphs over a batch of padded sequences and their mask. Many let padding reach an output,
//! because some steps forget the mask or use it wrongly.

use super::RandomSource;
use crate::{
    error::Result,
    graph::{Graph, Value, axis},
    scalar::{CompareOp, ReduceOp, Scalar},
    tensor::Tensor,
};
use symshape::{Declaration, Dim};
use symshape_runtime::DType;

/// The largest number of sequences. The symbol is `N`.
pub const MAX_SEQUENCES: i64 = 4;

/// The largest length of a sequence. The symbol is `S`.
pub const MAX_LENGTH: i64 = 9;

/// Elements of a token.
pub const WIDTH: i64 = 3;

/// The number of different tokens.
pub const TOKENS: i64 = 7;

/// Generates a graph over `ids: i64[N, S]`, `x: f32[N, S, WIDTH]` and `mask: i64[N, S]`.
///
/// The mask is 1 for tokens and 0 for padding. Values between steps are at most 10 in magnitude.
///
/// # Errors
/// None that is known: a step that the builder refuses is left out.
pub fn encoder(source: &mut RandomSource<'_>) -> Result<Graph> {
    let mut g = Graph { name: "padded".into(), ..Graph::default() };
    for (name, hi) in [("N", MAX_SEQUENCES), ("S", MAX_LENGTH)] {
        g.symbol(name, Declaration::range(1, hi))?;
    }
    let ids = g.input("ids", DType::I64, vec![sym("N"), sym("S")])?;
    let x = g.input("x", DType::F32, vec![sym("N"), sym("S"), WIDTH.into()])?;
    let mask = g.input("mask", DType::I64, vec![sym("N"), sym("S")])?;

    let mut steps = Steps { g, source, ids, mask };
    let mut tokens = vec![x];
    for _ in 0..1 + steps.source.below(6) {
        let latest = tokens[tokens.len() - 1 - steps.source.below(tokens.len().min(2))];
        if let Ok(value) = steps.step(latest, &tokens) {
            tokens.push(value);
        }
    }
    let last = tokens[tokens.len() - 1];
    if steps.source.below(3) > 0 {
        steps.g.output("hidden", last)?;
    }
    if (steps.g.outputs.is_empty() || steps.source.coin())
        && let Ok(pooled) = steps.pooled(last)
    {
        steps.g.output("pooled", pooled)?;
    }
    if steps.g.outputs.is_empty() {
        steps.g.output("hidden", last)?;
    }
    Ok(steps.g)
}

fn sym(name: &str) -> Dim {
    Dim::symbol(name)
}

/// A graph whose steps map `[N, S, WIDTH]` to itself.
struct Steps<'s, 'b> {
    g: Graph,
    source: &'s mut RandomSource<'b>,
    ids: Value,
    mask: Value,
}

impl Steps<'_, '_> {
    fn step(&mut self, x: Value, tokens: &[Value]) -> Result<Value> {
        match self.source.below(15) {
            0 => self.product(x),
            1 => {
                let other = tokens[self.source.below(tokens.len())];
                let sum = self.g.add(x, other)?;
                self.g.tanh(sum)
            }
            2 => self.masked(x),
            3 => self.looked_up(x),
            4 => self.gated(x),
            5 => self.running(x),
            6 => self.moved(x),
            7 => self.shares(x),
            8 => self.padded_places(x),
            9 => self.flat_product(x),
            11 => self.windows(x),
            10 => self.sorted(x),
            _ => self.attention(x),
        }
    }

    fn product(&mut self, x: Value) -> Result<Value> {
        let weights = self.weights(WIDTH)?;
        let product = self.g.matmul(x, weights)?;
        self.g.tanh(product)
    }

    /// Weights between -1 and 1: `[rows, WIDTH]`.
    fn weights(&mut self, rows: i64) -> Result<Value> {
        let seed = f32::from(self.source.byte());
        let elem = |idx: i64| ((idx as f32 + 1.0) * 12.989_8 + seed).sin();
        let elems: Vec<f32> = (0..rows * WIDTH).map(elem).collect();
        let weights = Tensor::from_f32(vec![rows as usize, WIDTH as usize], &elems);
        self.g.constant(weights.expect("the shape has this number of elements"))
    }

    /// The mask as floats, `[N, S]`, in one of the forms that exporters write; some are wrong.
    fn kept(&mut self) -> Result<Value> {
        let mask = self.mask;
        match self.source.below(8) {
            // The positions before the number of tokens.
            0 => {
                let count = self.g.reduce(ReduceOp::Sum, mask, &[1], true)?;
                let position = self.g.index(DType::I64, vec![1.into(), sym("S")], Dim::from(&axis(1)))?;
                let op = self.source.pick(&[CompareOp::Lt, CompareOp::Lt, CompareOp::Le]);
                let is_token = self.both(position, count, |g, a, b| g.compare(op, a, b))?;
                self.g.cast(DType::F32, is_token)
            }
            1 => {
                let zero = self.g.number(DType::I64, 0.0)?;
                let op = self.source.pick(&[CompareOp::Gt, CompareOp::Ne, CompareOp::Ge]);
                let is_token = self.both(mask, zero, |g, a, b| g.compare(op, a, b))?;
                self.g.cast(DType::F32, is_token)
            }
            2 => {
                let count = self.g.scan(ReduceOp::Sum, mask, 1, false, false)?;
                let kept = self.g.mul(count, mask)?;
                let kept = self.g.cast(DType::F32, kept)?;
                self.g.tanh(kept)
            }
            3 => self.g.cast(DType::F32, self.ids).and_then(|ids| self.g.tanh(ids)),
            _ => self.g.cast(DType::F32, mask),
        }
    }

    /// The operands in one shape, and an operator of both.
    fn both(
        &mut self,
        a: Value,
        b: Value,
        op: impl FnOnce(&mut Graph, Value, Value) -> Result<Value>,
    ) -> Result<Value> {
        let operands = self.g.broadcast(&[a, b])?;
        op(&mut self.g, operands[0], operands[1])
    }

    /// `x` with padding replaced: by zeros, or by another number.
    fn masked(&mut self, x: Value) -> Result<Value> {
        let kept = self.kept()?;
        let kept = self.g.unsqueeze(kept, &[2])?;
        if self.source.coin() {
            return self.both(x, kept, Graph::mul);
        }
        let is_token = self.g.cast(DType::Bool, kept)?;
        let far = self.source.pick(&[0.0, 1.0, -9.0]);
        let far = self.g.number(DType::F32, far)?;
        let operands = self.g.broadcast(&[is_token, x, far])?;
        self.g.select(operands[0], operands[1], operands[2])
    }

    /// Adds a row of a table: of a token, or of its position, which may count from the end or among the tokens.
    fn looked_up(&mut self, x: Value) -> Result<Value> {
        let position = Dim::from(&axis(1));
        let shape = vec![1.into(), sym("S")];
        let (rows, index) = match self.source.below(5) {
            0 => (MAX_LENGTH, self.g.index(DType::I64, shape, sym("S") - 1 - position)?),
            1 => (MAX_LENGTH + 1, self.g.scan(ReduceOp::Sum, self.mask, 1, false, false)?),
            2 => (MAX_LENGTH, self.g.index(DType::I64, shape, position)?),
            _ => (TOKENS, self.ids),
        };
        let table = self.weights(rows)?;
        let row = self.g.gather(table, index, 0)?;
        let sum = self.both(x, row, Graph::add)?;
        self.g.tanh(sum)
    }

    /// Adds a value of each sequence to its tokens.
    fn gated(&mut self, x: Value) -> Result<Value> {
        let pooled = self.pooled(x)?;
        let pooled = self.g.tanh(pooled)?;
        let pooled = self.g.unsqueeze(pooled, &[1])?;
        let sum = self.both(x, pooled, Graph::add)?;
        self.g.tanh(sum)
    }

    /// A value of each sequence, `[N, WIDTH]`.
    fn pooled(&mut self, x: Value) -> Result<Value> {
        match self.source.below(9) {
            0 => {
                let masked = self.masked(x)?;
                let op = self.source.pick(&[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min]);
                self.g.reduce(op, masked, &[1], false)
            }
            1 => {
                let kept = self.g.cast(DType::Bool, self.mask)?;
                let kept = self.g.unsqueeze(kept, &[2])?;
                let (op, far) = self.source.pick(&[
                    (ReduceOp::Max, f32::NEG_INFINITY),
                    (ReduceOp::Min, f32::INFINITY),
                    (ReduceOp::Max, f32::INFINITY),
                ]);
                let far = self.g.scalar(Scalar::f32(far))?;
                let operands = self.g.broadcast(&[kept, x, far])?;
                let kept = self.g.select(operands[0], operands[1], operands[2])?;
                self.g.reduce(op, kept, &[1], false)
            }
            2 => {
                let first = self.g.slice(x, 1, 0.into(), 1.into(), 1)?;
                self.g.squeeze(first, &[1])
            }
            3 => {
                let last = self.g.slice(x, 1, sym("S") - 1, 1.into(), 1)?;
                self.g.squeeze(last, &[1])
            }
            4 => self.g.mean(x, &[1], false),
            5 => {
                let all = self.g.reduce(ReduceOp::Max, x, &[0], true)?;
                self.g.reduce(ReduceOp::Max, all, &[1], false)
            }
            _ => {
                let masked = self.masked(x)?;
                let sum = self.g.reduce(ReduceOp::Sum, masked, &[1], false)?;
                let count = self.kept()?;
                let count = self.g.reduce(ReduceOp::Sum, count, &[1], true)?;
                let one = self.g.number(DType::F32, 1.0)?;
                let count = self.both(count, one, Graph::max)?;
                self.both(sum, count, Graph::div)
            }
        }
    }

    /// A scan along the sequence.
    fn running(&mut self, x: Value) -> Result<Value> {
        let x = if self.source.coin() { self.masked(x)? } else { x };
        let op = self.source.pick(&[ReduceOp::Sum, ReduceOp::Max]);
        let is_reverse = self.source.coin();
        let is_exclusive = op == ReduceOp::Sum && self.source.coin();
        let scan = self.g.scan(op, x, 1, is_reverse, is_exclusive)?;
        self.g.tanh(scan)
    }

    /// Tokens of other places: of the neighbours, in reverse order, or of other sequences.
    fn moved(&mut self, x: Value) -> Result<Value> {
        let x = if self.source.coin() { self.masked(x)? } else { x };
        match self.source.below(4) {
            0 => self.g.reverse(x, 1),
            1 => self.g.reverse(x, 0),
            side => {
                let zeros = vec![Dim::zero(); 3];
                let mut one = zeros.clone();
                one[1] = 1.into();
                let (lo, hi) = if side == 2 { (one, zeros) } else { (zeros, one) };
                let padded = self.g.pad(x, &lo, &hi, Scalar::f32(0.0))?;
                let start = if side == 2 { 0 } else { 1 };
                let moved = self.g.slice(padded, 1, start.into(), sym("S"), 1)?;
                let sum = self.g.add(x, moved)?;
                self.g.tanh(sum)
            }
        }
    }

    /// A convolution or a pooling of neighbours, with or without a mask before.
    fn windows(&mut self, x: Value) -> Result<Value> {
        let far = self.source.pick(&[0.0, 0.0, 0.0, 1.0]);
        let x = match self.source.below(4) {
            0 => x,
            1 => self.masked(x)?,
            _ => {
                let kept = self.g.unsqueeze(self.mask, &[2])?;
                let kept = self.g.cast(DType::Bool, kept)?;
                let far = self.g.number(DType::F32, far)?;
                let operands = self.g.broadcast(&[kept, x, far])?;
                self.g.select(operands[0], operands[1], operands[2])?
            }
        };
        let before = self.source.below(4) as i64;
        let after = self.source.below(4) as i64;
        let lo = [Dim::zero(), before.into(), Dim::zero()];
        let hi = [Dim::zero(), after.into(), Dim::zero()];
        let padded = self.g.pad(x, &lo, &hi, Scalar::f32(far as f32))?;
        let dilation = if (before + after) % 2 == 0 && self.source.coin() { 2 } else { 1 };
        let width = (before + after) / dilation + 1;
        let windows = self.g.window(padded, &[1], &[width], &[1], &[dilation])?;
        let pooled = if self.source.below(4) == 0 {
            // The mean of the positions that are not added.
            let sum = self.g.reduce(ReduceOp::Sum, windows, &[3], false)?;
            let one = self.g.number(DType::F32, 1.0)?;
            let ones = self.g.broadcast_to(one, &[1.into(), sym("S"), 1.into()])?;
            let ones = self.g.pad(ones, &lo, &hi, Scalar::f32(0.0))?;
            let ones = self.g.window(ones, &[1], &[width], &[1], &[dilation])?;
            let count = self.g.reduce(ReduceOp::Sum, ones, &[3], false)?;
            self.both(sum, count, Graph::div)?
        } else if self.source.coin() {
            let op = self.source.pick(&[ReduceOp::Max, ReduceOp::Sum]);
            self.g.reduce(op, windows, &[3], false)?
        } else {
            let filters = self.weights(WIDTH * width)?;
            let filters = self.g.reshape(filters, vec![WIDTH.into(), width.into(), WIDTH.into()])?;
            self.g.contract(windows, b"nsck", filters, b"ckd", b"nsd")?
        };
        self.g.tanh(pooled)
    }

    /// Softmax over the tokens of a sequence, or over the elements of a token.
    fn shares(&mut self, x: Value) -> Result<Value> {
        let along = if self.source.coin() { 1 } else { 2 };
        let x = if self.source.coin() {
            let kept = self.g.unsqueeze(self.mask, &[2])?;
            self.far_at_padding(x, kept)?
        } else {
            x
        };
        let shares = self.g.softmax(x, along)?;
        if self.source.coin() { self.masked(shares) } else { Ok(shares) }
    }

    /// Pads the elements of each token, and takes some of them.
    fn padded_places(&mut self, x: Value) -> Result<Value> {
        let mut hi = vec![Dim::zero(); 3];
        hi[2] = 1.into();
        let value = self.source.pick(&[0.0, 2.0]);
        let padded = self.g.pad(x, &[Dim::zero(), Dim::zero(), Dim::zero()], &hi, Scalar::f32(value))?;
        let masked = self.masked(padded)?;
        self.g.slice(masked, 2, 1.into(), WIDTH.into(), 1)
    }

    /// A product over the rows of all sequences, or one that takes other rows together.
    fn flat_product(&mut self, x: Value) -> Result<Value> {
        let shape = self.g.shape(x).to_vec();
        let x = if self.source.below(4) == 0 { self.g.transpose(x, &[1, 0, 2])? } else { x };
        let flat = self.g.reshape(x, vec![sym("N") * sym("S"), WIDTH.into()])?;
        let product = self.product(flat)?;
        self.g.reshape(product, shape)
    }

    /// The tokens in order of their elements, or the elements of each token in order.
    fn sorted(&mut self, x: Value) -> Result<Value> {
        let along = if self.source.coin() { 1 } else { 2 };
        let is_descending = self.source.coin();
        let (sorted, _) = self.g.sort(x, along, is_descending)?;
        Ok(sorted)
    }

    /// Attention of each token to others, with or without the mask of keys.
    fn attention(&mut self, x: Value) -> Result<Value> {
        let keys = self.product(x)?;
        let turned = self.g.transpose(keys, &[0, 2, 1])?;
        let mut scores = self.g.matmul(x, turned)?;
        // Mostly the keys, which are the last axis.
        let along = if self.source.below(6) == 0 { 2 } else { 1 };
        if self.source.below(6) > 0 {
            let kept = self.g.unsqueeze(self.mask, &[along])?;
            scores = self.far_at_padding(scores, kept)?;
        }
        if self.source.below(3) == 0 {
            let distance = Dim::from(&axis(0)) - Dim::from(&axis(1));
            let distance = self.g.index(DType::F32, vec![sym("S"), sym("S")], distance)?;
            let bias = self.g.sin(distance)?;
            scores = self.both(scores, bias, Graph::add)?;
        }
        let shares = self.g.softmax(scores, 2)?;
        let values = if self.source.coin() { keys } else { x };
        let seen = self.g.matmul(shares, values)?;
        let sum = self.g.add(x, seen)?;
        self.g.tanh(sum)
    }

    /// `x` where `kept` is 1, and a number far below at padding.
    fn far_at_padding(&mut self, x: Value, kept: Value) -> Result<Value> {
        let far = self.source.pick(&[f32::NEG_INFINITY, f32::MIN, -1e9, -1e4, -2.0]);
        if self.source.coin() || far == f32::NEG_INFINITY {
            let kept = self.g.cast(DType::Bool, kept)?;
            let far = self.g.scalar(Scalar::f32(far))?;
            let operands = self.g.broadcast(&[kept, x, far])?;
            return self.g.select(operands[0], operands[1], operands[2]);
        }
        let kept = self.g.cast(DType::F32, kept)?;
        let one = self.g.number(DType::F32, 1.0)?;
        let padding = self.both(one, kept, Graph::sub)?;
        let far = self.g.scalar(Scalar::f32(far))?;
        let bias = self.both(padding, far, Graph::mul)?;
        self.both(x, bias, Graph::add)
    }
}
