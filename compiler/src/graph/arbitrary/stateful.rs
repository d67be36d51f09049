//! Random graphs with state: caches that grow along one axis, and tensors that each call overwrites.

use super::RandomSource;
use crate::{
    error::Result,
    graph::{Graph, Value, axis},
    scalar::{CompareOp, ReduceOp, Scalar},
    tensor::Tensor,
};
use symshape::{Declaration, Dim};
use symshape_runtime::DType;

/// The largest number of rows of a state before a call. The symbol is `P`.
pub const MAX_PAST: i64 = 7;

/// The largest number of new rows of a call. The symbol is `S`.
pub const MAX_NEW: i64 = 3;

/// The largest batch. The symbol is `N`.
pub const MAX_BATCH: i64 = 5;

/// Generates a graph over `x: f32[N, S, C]` and perhaps `mask: f32[N, P + S]`, whose output is `y: f32[N, S, C]`. Each
/// layer may have a cache `past.k` that becomes `present.k`, or an overwritten tensor `h.k` that becomes `h.kn`.
///
/// # Errors
/// None that is known: the builder accepts what is built here.
pub fn decoder(source: &mut RandomSource<'_>) -> Result<Graph> {
    let mut g = Graph { name: "stateful".into(), ..Graph::default() };
    for (name, lo, hi) in [("N", 1, MAX_BATCH), ("S", 1, MAX_NEW), ("P", 0, MAX_PAST)] {
        g.symbol(name, Declaration::range(lo, hi))?;
    }

    let width = 1 + source.below(9) as i64;
    let x = g.input("x", DType::F32, vec![sym("N"), sym("S"), width.into()])?;
    let mut decoder = Layers { g, source, width, mask: None, states: Vec::new(), has_cache: false };
    if decoder.source.coin() {
        let shape = vec![sym("N"), sym("P") + sym("S")];
        decoder.mask = Some(decoder.g.input("mask", DType::F32, shape)?);
    }

    let mut x = x;
    for _ in 0..1 + decoder.source.below(4) {
        x = decoder.layer(x)?;
    }
    // Without a cache, nothing would have the length `P`.
    if !decoder.has_cache {
        x = decoder.sums(x)?;
    }
    decoder.g.output("y", x)?;
    for (name, value) in decoder.states {
        decoder.g.output(&name, value)?;
    }
    Ok(decoder.g)
}

fn sym(name: &str) -> Dim {
    Dim::symbol(name)
}

/// A graph whose layers map `[N, S, width]` to itself.
struct Layers<'s, 'b> {
    g: Graph,
    source: &'s mut RandomSource<'b>,
    width: i64,
    mask: Option<Value>,
    /// The outputs that are state.
    states: Vec<(String, Value)>,
    has_cache: bool,
}

impl Layers<'_, '_> {
    fn layer(&mut self, x: Value) -> Result<Value> {
        match self.source.below(7) {
            0 => self.product(x),
            1 => self.norm(x),
            2 => self.positions(x),
            3 => self.sums(x),
            4 => self.overwritten(x),
            _ => self.attention(x),
        }
    }

    /// A product with constant weights, and a map.
    fn product(&mut self, x: Value) -> Result<Value> {
        let weights = self.weights()?;
        let product = self.g.matmul(x, weights)?;
        if self.source.coin() { self.g.tanh(product) } else { self.g.relu(product) }
    }

    /// Square weights between -1 and 1, divided by the width.
    fn weights(&mut self) -> Result<Value> {
        let width = self.width as usize;
        let seed = f32::from(self.source.byte());
        let elem = |idx: usize| ((idx as f32 + 1.0) * 12.989_8 + seed).sin() / width as f32;
        let elems: Vec<f32> = (0..width * width).map(elem).collect();
        let weights = Tensor::from_f32(vec![width, width], &elems);
        self.g.constant(weights.expect("the shape has this number of elements"))
    }

    /// `x / (1 + mean(x * x))`.
    fn norm(&mut self, x: Value) -> Result<Value> {
        let squares = self.g.mul(x, x)?;
        let mean = self.g.mean(squares, &[2], true)?;
        let one = self.g.number(DType::F32, 1.0)?;
        let size = self.both(mean, one, Graph::add)?;
        self.both(x, size, Graph::div)
    }

    /// The sum of `x` and of the sine of each position, which depends on the length.
    fn positions(&mut self, x: Value) -> Result<Value> {
        let position = sym("P") + Dim::from(&axis(0));
        let position = self.g.index(DType::I64, vec![sym("S"), 1.into()], position)?;
        let position = self.g.cast(DType::F32, position)?;
        let angle = self.g.sin(position)?;
        self.both(x, angle, Graph::add)
    }

    /// The sum of `x` and of a reduction over its cache.
    fn sums(&mut self, x: Value) -> Result<Value> {
        let all = self.cache(x)?;
        let op = self.source.pick(&[ReduceOp::Sum, ReduceOp::Max]);
        let reduced = self.g.reduce(op, all, &[1], true)?;
        let bounded = self.g.tanh(reduced)?;
        self.both(x, bounded, Graph::add)
    }

    /// The sum of `x` and of its attention to keys and values in caches.
    fn attention(&mut self, x: Value) -> Result<Value> {
        let weights = self.weights()?;
        let keys = self.g.matmul(x, weights)?;
        let keys = self.cache(keys)?;
        let values = if self.source.coin() { self.cache(x)? } else { keys };
        let turned = self.g.transpose(keys, &[0, 2, 1])?;
        let mut scores = self.g.matmul(x, turned)?;
        if let Some(mask) = self.mask.filter(|_| self.source.coin()) {
            let mask = self.g.unsqueeze(mask, &[1])?;
            scores = self.both(scores, mask, Graph::add)?;
        }
        if self.source.coin() {
            scores = self.causal(scores)?;
        }
        let shares = self.g.softmax(scores, 2)?;
        let sums = self.g.matmul(shares, values)?;
        self.g.add(x, sums)
    }

    /// Scores of rows after the own one become small.
    fn causal(&mut self, scores: Value) -> Result<Value> {
        let shape = vec![sym("S"), sym("P") + sym("S")];
        let distance = sym("P") + Dim::from(&axis(0)) - Dim::from(&axis(1));
        let distance = self.g.index(DType::I64, shape, distance)?;
        let zero = self.g.scalar(Scalar::from_f64(DType::I64, 0.0))?;
        let [distance, zero] = self.pair(distance, zero)?;
        let is_visible = self.g.compare(CompareOp::Ge, distance, zero)?;
        let hidden = self.g.number(DType::F32, -30.0)?;
        let shape = self.g.shape(scores).to_vec();
        let is_visible = self.g.broadcast_to(is_visible, &shape)?;
        let hidden = self.g.broadcast_to(hidden, &shape)?;
        self.g.select(is_visible, scores, hidden)
    }

    /// `x` after the rows of a new cache, `[N, P + S, width]`. In memory, the rows may be the last axis.
    fn cache(&mut self, x: Value) -> Result<Value> {
        self.has_cache = true;
        let idx = self.states.len();
        let is_turned = self.source.coin();
        let mut shape = vec![sym("N"), sym("P"), self.width.into()];
        let mut new = x;
        if is_turned {
            shape.swap(1, 2);
            new = self.g.transpose(x, &[0, 2, 1])?;
        }
        let past = self.g.input(&format!("past.{idx}"), DType::F32, shape)?;
        let present = self.g.concat(&[past, new], if is_turned { 2 } else { 1 })?;
        self.states.push((format!("present.{idx}"), present));
        if is_turned { self.g.transpose(present, &[0, 2, 1]) } else { Ok(present) }
    }

    /// The sum of `x` and of a tensor that becomes a mean of itself and of `x`.
    fn overwritten(&mut self, x: Value) -> Result<Value> {
        let idx = self.states.len();
        let before = self.g.input(&format!("h.{idx}"), DType::F32, vec![sym("N"), self.width.into()])?;
        let mean = self.g.mean(x, &[1], false)?;
        let sum = self.g.add(before, mean)?;
        let after = self.g.tanh(sum)?;
        self.states.push((format!("h.{idx}n"), after));
        let row = self.g.unsqueeze(before, &[1])?;
        self.both(x, row, Graph::add)
    }

    /// A binary operation on values that are broadcast to one shape.
    fn both(
        &mut self,
        a: Value,
        b: Value,
        op: impl FnOnce(&mut Graph, Value, Value) -> Result<Value>,
    ) -> Result<Value> {
        let [a, b] = self.pair(a, b)?;
        op(&mut self.g, a, b)
    }

    /// Two values that are broadcast to one shape.
    fn pair(&mut self, a: Value, b: Value) -> Result<[Value; 2]> {
        let values = self.g.broadcast(&[a, b])?;
        Ok([values[0], values[1]])
    }
}
