//! Recurrent layers. The projection of the inputs is one contraction over all steps. The steps are a loop.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, build::LoopBody},
    import::{
        node::OnnxNode,
        ops::{
            index::reversed,
            quant::{dynamically_quantised, requantised_product},
            shared::gates::{Activation, activate, activations},
        },
    },
    scalar::{CompareOp, Scalar},
};
use symshape::Dim;

ops! {
    GRU 1 gru,
    LSTM 1 lstm,
    RNN 1 rnn,
    "com.microsoft" DynamicQuantizeLSTM 1 dynamic_quantize_lstm,
}

/// A recurrent layer with all its directions. Time is the first axis.
struct Layer {
    /// `[T, N, I]`
    x: Value,
    /// `[directions, gates * H, I]`, `[directions, gates * H, H]`, `[directions, 2 * gates * H]`
    w: Value,
    r: Value,
    b: Option<Value>,
    lens: Option<Value>,
    steps: Dim,
    batch: Dim,
    hidden: Dim,
    /// Whether each direction runs backwards.
    directions: Vec<bool>,
    batch_first: bool,
    clip: Option<f64>,
    /// The activations of all directions, one after the other.
    activations: Vec<Activation>,
    /// Scales and zero points of `w` and `r`, by direction, if the weights are integers.
    quantised: Option<[[Value; 2]; 2]>,
}

impl Layer {
    fn read(g: &mut Graph, n: &OnnxNode, gates: i64, defaults: &[&str]) -> Result<Layer> {
        let weights = [n.input(1)?, n.input(2)?];
        Layer::of_weights(g, n, weights, gates, defaults)
    }

    fn of_weights(
        g: &mut Graph,
        n: &OnnxNode,
        [w, r]: [Value; 2],
        gates: i64,
        defaults: &[&str],
    ) -> Result<Layer> {
        let batch_first = n.flag("layout", false)?;
        let mut x = n.input(0)?;
        if [x, w, r].iter().any(|value| g.rank(*value) != 3) {
            return Err(Error::invalid(format!("X, W and R of {} must have 3 axes", n.op)));
        }

        if batch_first {
            x = g.transpose(x, &[1, 0, 2])?;
        }

        let directions = match n.string_or("direction", "forward")? {
            "forward" => vec![false],
            "reverse" => vec![true],
            "bidirectional" => vec![false, true],
            other => return Err(Error::invalid(format!("unknown direction `{other}`"))),
        };

        let hidden = g.shape(r)[2].clone();
        if let Some(size) = n.int("hidden_size")? {
            g.require(symshape::Relation::eq(&hidden, size), "hidden_size")?;
        }

        for (value, axis) in [(w, 1), (r, 1)] {
            let size = g.shape(value)[axis].clone();
            g.require(symshape::Relation::eq(size, &hidden * gates), "gates of the weights")?;
        }

        n.int("output_sequence")?;
        let shape = g.shape(x).to_vec();
        Ok(Layer {
            x,
            w,
            r,
            b: n.optional(3),
            lens: n.optional(4),
            steps: shape[0].clone(),
            batch: shape[1].clone(),
            hidden,
            activations: activations(n, defaults, directions.len())?,
            directions,
            batch_first,
            clip: n.float("clip")?.map(f64::from).filter(|clip| *clip > 0.0),
            quantised: None,
        })
    }

    /// `x·Wᵀ` plus the biases for all steps, `[T, N, gates * H]`, and the recurrent biases if they are `separate`.
    fn inputs(&self, g: &mut Graph, d: usize, gates: i64, separate: bool) -> Result<(Value, Option<Value>)> {
        let w = part(g, self.w, d)?;
        let x = if self.directions[d] { self.backwards(g, self.x)? } else { self.x };

        let mut sum = match self.quantised {
            None => g.contract(x, b"tni", w, b"gi", b"tng")?,
            Some([[scale, zero], _]) => {
                let weights = [w, part(g, scale, d)?, part(g, zero, d)?];
                quantised_product(g, x, weights)?
            }
        };

        let Some(b) = self.b else { return Ok((sum, None)) };
        let b = part(g, b, d)?;
        let size = &self.hidden * gates;
        let own = g.slice(b, 0, Dim::zero(), size.clone(), 1)?;
        let recurrent = g.slice(b, 0, size.clone(), size, 1)?;
        sum = g.add(sum, own)?;

        if separate { Ok((sum, Some(recurrent))) } else { Ok((g.add(sum, recurrent)?, None)) }
    }

    /// The steps in reverse order, each sequence within its length.
    fn backwards(&self, g: &mut Graph, x: Value) -> Result<Value> {
        match self.lens {
            None => g.reverse(x, 0),
            Some(lens) => reversed(g, x, lens, 0, 1),
        }
    }

    /// The initial value of a state.
    fn initial(&self, g: &mut Graph, given: Option<Value>, d: usize) -> Result<Value> {
        match given {
            None => {
                let zero = g.scalar(Scalar::from_i64(g.dtype(self.x), 0))?;
                g.broadcast_to(zero, &[self.batch.clone(), self.hidden.clone()])
            }
            Some(given) => {
                let given = if self.batch_first { g.transpose(given, &[1, 0, 2])? } else { given };
                part(g, given, d)
            }
        }
    }

    /// Runs one direction. Returns the outputs of all steps, `[T, N, H]`, and the last states.
    ///
    /// `step` builds the next states. The first of them is the output.
    fn run(
        &self,
        g: &mut Graph,
        n: &OnnxNode,
        d: usize,
        states: &[Value],
        given: &[Value],
        step: impl FnOnce(&mut Graph, Value, &[Value], &[Value]) -> Result<Vec<Value>>,
    ) -> Result<(Value, Vec<Value>)> {
        let counter = n.fresh(g);
        let all = [&self.lens.into_iter().collect::<Vec<_>>()[..], given].concat();
        let rounds = g.iterate(&counter, &self.steps, [states, &all], |body, states, given| {
            let (lens, given) = given.split_at(usize::from(self.lens.is_some()));
            let t = Dim::from(&counter);
            let now = body.slice(given[0], 0, t.clone(), Dim::one(), 1)?;
            let now = body.squeeze(now, &[0])?;

            let mut next = step(body, now, states, &given[1..])?;
            let mut output = next[0];
            if let Some(lens) = lens.first() {
                let t = body.dim(body.dtype(*lens), t)?;
                let active = body.compare(CompareOp::Lt, t, *lens)?;
                let active = body.unsqueeze(active, &[1])?;
                for (next, old) in next.iter_mut().zip(states) {
                    *next = body.select(active, *next, *old)?;
                }
                let zero = body.number(body.dtype(output), 0.0)?;
                output = body.select(active, output, zero)?;
            }

            Ok(LoopBody { again: None, next, slices: vec![output] })
        })?;

        let y = rounds.slices[0];
        let y = if self.directions[d] { self.backwards(g, y)? } else { y };
        Ok((y, rounds.carried))
    }

    /// The outputs of the node from those of each direction.
    fn finish(&self, g: &mut Graph, runs: &[(Value, Vec<Value>)]) -> Result<Vec<Value>> {
        let mut ys = Vec::new();
        for (y, _) in runs {
            ys.push(g.unsqueeze(*y, &[1])?);
        }

        let y = g.concat(&ys, 1)?;
        let y = if self.batch_first { g.transpose(y, &[2, 0, 1, 3])? } else { y };

        let mut outputs = vec![y];
        for k in 0..runs[0].1.len() {
            let mut last = Vec::new();
            for (_, states) in runs {
                last.push(g.unsqueeze(states[k], &[0])?);
            }
            let last = g.concat(&last, 0)?;
            outputs.push(if self.batch_first { g.transpose(last, &[1, 0, 2])? } else { last });
        }

        Ok(outputs)
    }

    /// The activations of direction `d`.
    fn functions(&self, d: usize) -> &[Activation] {
        let each = self.activations.len() / self.directions.len();
        &self.activations[d * each..(d + 1) * each]
    }

    /// An activation of a gate, after the clip.
    fn gate(&self, g: &mut Graph, activation: &Activation, x: Value) -> Result<Value> {
        let x = match self.clip {
            None => x,
            Some(clip) => {
                let lo = g.number(g.dtype(x), -clip)?;
                let hi = g.number(g.dtype(x), clip)?;
                let x = g.max(x, lo)?;
                g.min(x, hi)?
            }
        };
        activate(g, activation, x)
    }
}

/// Slice `d` of the first axis.
fn part(g: &mut Graph, x: Value, d: usize) -> Result<Value> {
    let slice = g.slice(x, 0, Dim::from(d), Dim::one(), 1)?;
    g.squeeze(slice, &[0])
}

/// Gate `k` of `[N, gates * H]` (or of a vector of them).
fn gate(g: &mut Graph, x: Value, k: i64, hidden: &Dim) -> Result<Value> {
    g.slice(x, g.rank(x) - 1, hidden * k, hidden.clone(), 1)
}

/// `h·Rᵀ` for the rows of `gates`.
fn recur(
    g: &mut Graph,
    h: Value,
    r: Value,
    d: usize,
    gates: std::ops::Range<i64>,
    hidden: &Dim,
) -> Result<Value> {
    let r = part(g, r, d)?;
    let r = g.slice(r, 0, hidden * gates.start, hidden * (gates.end - gates.start), 1)?;
    g.contract(h, b"nh", r, b"gh", b"ng")
}

/// `x·Wᵀ`. `x` is quantised by its range. `W` holds integers with scale and zero point.
fn quantised_product(g: &mut Graph, x: Value, [w, w_scale, w_zero]: [Value; 3]) -> Result<Value> {
    let [x, scale, zero] = dynamically_quantised(g, x)?;
    let columns = g.transpose(w, &[1, 0])?;
    requantised_product(g, [x, columns], [Some(zero), Some(w_zero)], [scale, w_scale])
}

/// A simple recurrent layer: `h = f(x·Wᵀ + h·Rᵀ + b)`. All directions, sequence lengths, layouts, `clip` and
/// activations of ONNX.
///
/// `RNN([[[1]], [[0]]], [[[1]]], [[[2]]]; hidden_size=1, activations=["Relu"]) = [[[[1]]], [[[2]]]], [[[2]]]`
fn rnn(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let layer = Layer::read(g, n, 1, &["Tanh"])?;
    let h0 = n.optional(5);

    let mut runs = Vec::new();
    for d in 0..layer.directions.len() {
        let (x, _) = layer.inputs(g, d, 1, false)?;
        let h = layer.initial(g, h0, d)?;
        let f = layer.functions(d)[0].clone();
        let hidden = layer.hidden.clone();
        runs.push(layer.run(g, n, d, &[h], &[x, layer.r], |body, x, states, given| {
            let own = recur(body, states[0], given[0], d, 0..1, &hidden)?;
            let sum = body.add(x, own)?;
            Ok(vec![layer.gate(body, &f, sum)?])
        })?);
    }

    layer.finish(g, &runs)
}

/// A gated recurrent layer, with `linear_before_reset` 0 or 1. All directions, sequence lengths, layouts, `clip` and
/// activations of ONNX.
///
/// `GRU([[[0]]], [[[1], [1], [1]]], [[[0], [0], [0]]], _, _, [[[4]]]; hidden_size=1) = [[[[2]]]], [[[2]]]`
fn gru(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let layer = Layer::read(g, n, 3, &["Sigmoid", "Tanh"])?;
    let h0 = n.optional(5);
    let late = n.flag("linear_before_reset", false)?;

    let mut runs = Vec::new();
    for d in 0..layer.directions.len() {
        let (x, b) = layer.inputs(g, d, 3, true)?;
        let h = layer.initial(g, h0, d)?;

        let f = layer.functions(d).to_vec();
        let hidden = layer.hidden.clone();

        let given: Vec<Value> = [x, layer.r].into_iter().chain(b).collect();
        runs.push(layer.run(g, n, d, &[h], &given, |body, x, states, given| {
            let h = states[0];
            let r = given[0];

            let b = given.get(1).copied();
            let bias = |body: &mut Graph, value: Value, k: i64| match b {
                None => Ok(value),
                Some(b) => {
                    let b = gate(body, b, k, &hidden)?;
                    body.add(value, b)
                }
            };

            let own = recur(body, h, r, d, 0..2, &hidden)?;
            let mut gates = Vec::new();
            for k in 0..2 {
                let x = gate(body, x, k, &hidden)?;
                let own = gate(body, own, k, &hidden)?;
                let sum = body.add(x, own)?;
                let sum = bias(body, sum, k)?;
                gates.push(layer.gate(body, &f[0], sum)?);
            }

            let update = gates[0];
            let reset = gates[1];
            let x = gate(body, x, 2, &hidden)?;

            let own = if late {
                let own = recur(body, h, r, d, 2..3, &hidden)?;
                let own = bias(body, own, 2)?;
                body.mul(reset, own)?
            } else {
                let h = body.mul(reset, h)?;
                let own = recur(body, h, r, d, 2..3, &hidden)?;
                bias(body, own, 2)?
            };

            let sum = body.add(x, own)?;
            let new = layer.gate(body, &f[1], sum)?;
            let one = body.number(body.dtype(update), 1.0)?;
            let rest = body.sub(one, update)?;
            let new = body.mul(rest, new)?;
            let old = body.mul(update, h)?;

            Ok(vec![body.add(new, old)?])
        })?);
    }

    layer.finish(g, &runs)
}

/// A layer with long short-term memory. All directions, sequence lengths, peepholes, layouts, `clip`, `input_forget`
/// and activations of ONNX.
///
/// `LSTM([[[0]]], [[[1], [1], [1], [1]]], [[[0], [0], [0], [0]]]; hidden_size=1) = [[[[0]]]], [[[0]]], [[[0]]]`
fn lstm(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let layer = Layer::read(g, n, 4, &["Sigmoid", "Tanh", "Tanh"])?;
    lstm_of(g, n, &layer)
}

/// `LSTM` with integer weights `[directions, inputs, 4 * hidden]`. Inputs 8 to 11 are their scales and zero points, one
/// per direction or one per direction and column. Inputs and states are quantised by their range before each
/// multiplication.
///
/// `DynamicQuantizeLSTM([[[0]]], u8[[[1, 1, 1, 1]]], u8[[[1, 1, 1, 1]]], _, _, _, _, _, [1], u8[0], [1], u8[0]; hidden_size=1) = [[[[0]]]], [[[0]]], [[[0]]]`
fn dynamic_quantize_lstm(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let mut weights = [n.input(1)?, n.input(2)?];
    for weights in &mut weights {
        if g.rank(*weights) != 3 {
            return Err(Error::invalid("the weights must have 3 axes"));
        }
        *weights = g.transpose(*weights, &[0, 2, 1])?;
    }
    let quantised = [[n.input(8)?, n.input(9)?], [n.input(10)?, n.input(11)?]];
    let layer = Layer::of_weights(g, n, weights, 4, &["Sigmoid", "Tanh", "Tanh"])?;
    lstm_of(g, n, &Layer { quantised: Some(quantised), ..layer })
}

fn lstm_of(g: &mut Graph, n: &OnnxNode, layer: &Layer) -> Result<Vec<Value>> {
    let h0 = n.optional(5);
    let c0 = n.optional(6);
    let peepholes = n.optional(7);
    if peepholes.is_some_and(|weights| g.rank(weights) != 2) {
        return Err(Error::invalid("the peephole weights must have 2 axes"));
    }

    let coupled = n.flag("input_forget", false)?;
    let mut runs = Vec::new();
    for d in 0..layer.directions.len() {
        let (x, _) = layer.inputs(g, d, 4, false)?;
        let states = [layer.initial(g, h0, d)?, layer.initial(g, c0, d)?];

        let f = layer.functions(d).to_vec();
        let hidden = layer.hidden.clone();

        let scales = layer.quantised.iter().flat_map(|[_, of_states]| *of_states);
        let given: Vec<Value> = [x, layer.r].into_iter().chain(scales).chain(peepholes).collect();
        runs.push(layer.run(g, n, d, &states, &given, |body, x, states, given| {
            let h = states[0];
            let c = states[1];
            let r = given[0];

            let (own, given) = match layer.quantised {
                None => (recur(body, h, r, d, 0..4, &hidden)?, &given[1..]),
                Some(_) => {
                    let weights = [part(body, r, d)?, part(body, given[1], d)?, part(body, given[2], d)?];
                    (quantised_product(body, h, weights)?, &given[3..])
                }
            };

            let sum = body.add(x, own)?;

            // Gate `k` of `sum`, with peephole `p` of the cell state `c`.
            let open = |body: &mut Graph, k: i64, peephole: Option<(i64, Value)>, f: &Activation| {
                let mut value = gate(body, sum, k, &hidden)?;
                if let (Some((p, c)), Some(weights)) = (peephole, given.first()) {
                    let weights = part(body, *weights, d)?;
                    let weights = gate(body, weights, p, &hidden)?;
                    let seen = body.mul(weights, c)?;
                    value = body.add(value, seen)?;
                }
                layer.gate(body, f, value)
            };

            let input = open(body, 0, Some((0, c)), &f[0])?;
            let forget = if coupled {
                let one = body.number(body.dtype(input), 1.0)?;
                body.sub(one, input)?
            } else {
                open(body, 2, Some((2, c)), &f[0])?
            };

            let new = open(body, 3, None, &f[1])?;
            let kept = body.mul(forget, c)?;
            let new = body.mul(input, new)?;
            let c = body.add(kept, new)?;
            let output = open(body, 1, Some((1, c)), &f[0])?;
            let shown = activate(body, &f[2], c)?;

            Ok(vec![body.mul(output, shown)?, c])
        })?);
    }

    layer.finish(g, &runs)
}
