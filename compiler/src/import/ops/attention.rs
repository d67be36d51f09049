//! Attention and rotary embedding.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis, build::LoopBody},
    import::{model::weights, node::OnnxNode},
    scalar::{CompareOp, ReduceOp, Scalar},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    Attention 23 attention,
    "ai.onnx.preview" FlexAttention 1 flex_attention,
    LinearAttention 27 linear_attention,
    "com.microsoft" LinearAttention 1 linear_attention,
    RotaryEmbedding 23 rotary_embedding,
}

/// `[B, S, H*D]` as `[B, H, S, D]`.
pub(crate) fn heads(g: &mut Graph, x: Value, count: i64) -> Result<Value> {
    let [batch, steps, width] = three(g, x)?;
    if count <= 0 {
        return Err(Error::invalid(format!("the number of heads must be positive, but it is {count}")));
    }
    g.require(Relation::divides(count, &width), "heads")?;
    let size = g.facts.simplify(&width.floor_div(count));
    let x = g.reshape(x, vec![batch, steps, count.into(), size])?;
    g.transpose(x, &[0, 2, 1, 3])
}

fn three(g: &Graph, x: Value) -> Result<[Dim; 3]> {
    let shape: Result<[Dim; 3], _> = g.shape(x).to_vec().try_into();
    shape.map_err(|_| Error::invalid("the inputs must have 3 axes"))
}

/// `[B, H, S, D]` as `[B, S, H*D]`.
pub(crate) fn joined(g: &mut Graph, x: Value) -> Result<Value> {
    let x = g.transpose(x, &[0, 2, 1, 3])?;
    let shape = g.shape(x).to_vec();
    g.reshape(x, vec![shape[0].clone(), shape[1].clone(), &shape[2] * &shape[3]])
}

/// Each head of `x`, `[B, H, S, D]`, repeated to `count` heads.
pub(crate) fn shared(g: &mut Graph, x: Value, count: &Dim) -> Result<Value> {
    let mut shape = g.shape(x).to_vec();
    if g.facts.prove_eq(&shape[1], count).is_yes() {
        return Ok(x);
    }
    let own = shape[1].clone();
    g.require(Relation::divides(&own, count), "heads of query and key")?;
    let each = g.facts.simplify(&count.floor_div(own));
    shape[1] = count.clone();
    let index = vec![axis(0).into(), Dim::from(axis(1)).floor_div(each), axis(2).into(), axis(3).into()];
    g.view(x, shape, index)
}

/// `softmax(Q·Kᵀ * scale + mask)·V` for each head. Inputs are `[B, H, S, D]`, or `[B, S, H·D]` with `q_num_heads` and
/// `kv_num_heads`. Keys and values are appended to `past_key` and `past_value` (inputs 4 and 5). Each key head serves
/// `q_num_heads / kv_num_heads` query heads. The mask (input 3) is boolean or additive. `is_causal`, window sizes, and
/// lengths without padding (input 6) restrict it further. A row without any key gives zeros.
///
/// `Attention([[[[0, 0]]]], [[[[1, 2], [3, 4]]]], [[[[1], [3]]]]) = [[[[2]]]]`
fn attention(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let mut q = n.input(0)?;
    let mut k = n.input(1)?;
    let mut v = n.input(2)?;
    let flat = g.rank(q) == 3;
    let q_heads = n.int("q_num_heads")?;
    let kv_heads = n.int("kv_num_heads")?;
    if flat {
        let missing =
            || Error::invalid("inputs with 3 axes need the attributes `q_num_heads` and `kv_num_heads`");
        let q_heads = q_heads.ok_or_else(missing)?;
        let kv_heads = kv_heads.ok_or_else(missing)?;
        (q, k, v) = (heads(g, q, q_heads)?, heads(g, k, kv_heads)?, heads(g, v, kv_heads)?);
    }
    if [q, k, v].iter().any(|x| g.rank(*x) != 4) {
        return Err(Error::invalid("Q, K and V must have 3 or 4 axes each"));
    }
    let dtype = g.dtype(q);
    let mut past = Dim::zero();
    if let (Some(past_k), Some(past_v)) = (n.optional(4), n.optional(5)) {
        past = g.shape(past_k)[2].clone();
        (k, v) = (g.concat(&[past_k, k], 2)?, g.concat(&[past_v, v], 2)?);
    }
    let present = [k, v];
    let count = g.shape(q)[1].clone();
    let k = shared(g, k, &count)?;
    let v = shared(g, v, &count)?;
    // The exponential magnifies rounding errors of the scores, so halves are widened until the end.
    let own = dtype;
    let dtype = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let q = g.cast(dtype, q)?;
    let k = g.cast(dtype, k)?;
    let v = g.cast(dtype, v)?;

    let factor = root_of_scale(g, q, n.float("scale")?.map(f64::from))?;
    let scaled_q = g.mul(q, factor)?;
    let scaled_k = g.mul(k, factor)?;
    let scores = g.contract(scaled_q, b"bhsd", scaled_k, b"bhtd", b"bhst")?;
    let softcap = n.float_or("softcap", 0.0)?;
    let capped = if softcap > 0.0 {
        let cap = g.number(dtype, softcap)?;
        let small = g.div(scores, cap)?;
        let small = g.tanh(small)?;
        g.mul(small, cap)?
    } else {
        scores
    };
    let Mask { bias, allowed } = mask(g, n, q, k, &past)?;
    let biased = match bias {
        Some(bias) => g.add(capped, bias)?,
        None => capped,
    };
    let low = g.number(dtype, f64::NEG_INFINITY)?;
    let masked = match allowed {
        Some(allowed) => g.select(allowed, biased, low)?,
        None => biased,
    };
    let precise = match n.int("softmax_precision")? {
        Some(code) => g.cast(weights::dtype(i32::try_from(code).unwrap_or(-1))?, masked)?,
        None => masked,
    };
    let shares = if bias.is_some() || allowed.is_some() {
        softmax_or_none(g, precise)?
    } else {
        g.softmax(precise, 3)?
    };
    let shares = g.cast(dtype, shares)?;
    let y = g.contract(shares, b"bhst", v, b"bhtd", b"bhsd")?;
    let y = if flat { joined(g, y)? } else { y };
    let y = g.cast(own, y)?;
    let shown = match n.int_or("qk_matmul_output_mode", 0)? {
        0 if softcap > 0.0 && n.opset < 24 => scores,
        0 => scores,
        1 => capped,
        2 => masked,
        3 => shares,
        other => return Err(Error::invalid(format!("unknown qk_matmul_output_mode {other}"))),
    };
    let shown = g.cast(own, shown)?;
    Ok(vec![Some(y), Some(present[0]), Some(present[1]), n.wants(3).then_some(shown)])
}

/// `prob_mod(softmax(score_mod(Q·Kᵀ * scale)))·V` of inputs `[B, H, S, D]`. `score_mod` and `prob_mod` are optional
/// graphs of one input and one output.
///
/// `FlexAttention([[[[0, 0]]]], [[[[1, 2], [3, 4]]]], [[[[1], [3]]]]) = [[[[2]]]]`
fn flex_attention(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let q = n.input(0)?;
    let k = n.input(1)?;
    let v = n.input(2)?;
    if [q, k, v].iter().any(|x| g.rank(*x) != 4) {
        return Err(Error::invalid("Q, K and V must have 4 axes each"));
    }

    let dtype = g.dtype(q);
    let precise = match n.int("softmax_precision")? {
        Some(code) => weights::dtype(i32::try_from(code).unwrap_or(-1))?,
        None if dtype == DType::F64 => DType::F64,
        None => DType::F32,
    };

    let count = g.shape(q)[1].clone();
    let k = shared(g, k, &count)?;
    let v = shared(g, v, &count)?;

    let factor = root_of_scale(g, q, n.float("scale")?.map(f64::from))?;
    let q = g.mul(q, factor)?;
    let k = g.mul(k, factor)?;
    let scores = g.contract(q, b"bhsd", k, b"bhtd", b"bhst")?;

    let mut scores = g.cast(precise, scores)?;
    if n.has("score_mod") {
        scores = n.applied(g, "score_mod", scores)?;
    }

    let mut shares = g.softmax(scores, 3)?;
    if n.has("prob_mod") {
        shares = n.applied(g, "prob_mod", shares)?;
    }

    let shares = g.cast(dtype, shares)?;
    g.contract(shares, b"bhst", v, b"bhtd", b"bhsd")
}

/// The square root of the scale. Queries and keys are both multiplied with it. The default scale is `1 / sqrt(D)`.
fn root_of_scale(g: &mut Graph, q: Value, scale: Option<f64>) -> Result<Value> {
    let factor = match scale {
        Some(scale) => {
            let scale = g.number(DType::F64, scale)?;
            g.sqrt(scale)?
        }
        None => {
            let size = g.dim(DType::F64, g.shape(q)[3].clone())?;
            let root = g.sqrt(size)?;
            let root = g.sqrt(root)?;
            g.recip(root)?
        }
    };
    g.cast(g.dtype(q), factor)
}

/// Softmax along the last axis; zeros where all elements are `-∞`.
fn softmax_or_none(g: &mut Graph, x: Value) -> Result<Value> {
    let dtype = g.dtype(x);
    let k = g.rank(x) - 1;

    let zero = g.number(dtype, 0.0)?;
    let one = g.number(dtype, 1.0)?;
    let low = g.number(dtype, f64::NEG_INFINITY)?;

    let max = g.reduce(ReduceOp::Max, x, &[k], true)?;
    let none = g.compare(CompareOp::Eq, max, low)?;
    let shift = g.select(none, zero, max)?;

    let shifted = g.sub(x, shift)?;
    let powers = g.exp_or_zero(shifted)?;
    let sum = g.reduce(ReduceOp::Sum, powers, &[k], true)?;
    let sum = g.select(none, one, sum)?;

    g.div(powers, sum)
}

/// The masks of the scores; both broadcast to `[B, H, S, T]`.
#[derive(Default)]
struct Mask {
    /// Summand of the scores.
    bias: Option<Value>,
    /// Whether a key counts for a query.
    allowed: Option<Value>,
}

/// The mask in input 3, combined with the limits by position.
fn mask(g: &mut Graph, n: &OnnxNode, q: Value, k: Value, past: &Dim) -> Result<Mask> {
    let rows = g.shape(q)[2].clone();
    let columns = g.shape(k)[2].clone();

    let mut mask = Mask::default();
    if let Some(given) = n.optional(3) {
        let given = full_width(g, given, &columns)?;
        match g.dtype(given) {
            DType::Bool => mask.allowed = Some(given),
            _ => mask.bias = Some(g.cast(g.dtype(q), given)?),
        }
    }

    for limit in position_limits(g, n, &rows, &columns, past)? {
        mask.allowed = Some(match mask.allowed {
            None => limit,
            Some(other) => g.and(other, limit)?,
        });
    }

    Ok(mask)
}

/// `mask`, padded to one column for each key. Padded keys don't count.
fn full_width(g: &mut Graph, mask: Value, columns: &Dim) -> Result<Value> {
    let rank = g.rank(mask);
    if rank == 0 {
        return Err(Error::invalid("the mask must have at least 1 axis"));
    }

    let width = g.shape(mask)[rank - 1].clone();
    // A symbolic width may be smaller than the number of keys: it is padded like a smaller one.
    if g.is_one(&width) || g.facts.prove_eq(&width, columns).is_yes() {
        return Ok(mask);
    }

    g.require(Relation::le(&width, columns), "columns of the mask")?;
    let lo = vec![Dim::zero(); rank];
    let mut hi = vec![Dim::zero(); rank];
    hi[rank - 1] = columns - &width;
    let fill = match g.dtype(mask) {
        DType::Bool => Scalar::bool(false),
        own => Scalar::from_f64(own, f64::NEG_INFINITY),
    };
    g.pad(mask, &lo, &hi, fill)
}

/// Conditions from the attributes `is_causal` and `…_window_size` and from the lengths in input 6.
fn position_limits(g: &mut Graph, n: &OnnxNode, rows: &Dim, columns: &Dim, past: &Dim) -> Result<Vec<Value>> {
    let lens = n.optional(6);
    let causal = n.flag("is_causal", false)?;
    let left = n.int_or("left_window_size", -1)?;
    let right = n.int_or("right_window_size", -1)?;

    let mut limits = Vec::new();
    if causal || left >= 0 || right >= 0 {
        // Position of the query among the keys, minus the position of the key.
        let distance = g.index(
            DType::I64,
            vec![rows.clone(), columns.clone()],
            Dim::from(axis(0)) - Dim::from(axis(1)),
        )?;

        let offset = match lens {
            Some(lens) => {
                let rows = g.dim(DType::I64, rows.clone())?;
                let lens = g.cast(DType::I64, lens)?;
                let offset = g.sub(lens, rows)?;
                g.unsqueeze(offset, &[1, 2, 3])?
            }
            None => g.dim(DType::I64, past.clone())?,
        };

        let distance = g.add(distance, offset)?;
        let mut limit = |g: &mut Graph, op, value: i64| -> Result<()> {
            let value = g.scalar(Scalar::i64(value))?;
            limits.push(g.compare(op, distance, value)?);
            Ok(())
        };

        if causal {
            limit(g, CompareOp::Ge, 0)?;
        }

        if left >= 0 {
            limit(g, CompareOp::Le, left)?;
        }

        if right >= 0 {
            limit(g, CompareOp::Ge, -right)?;
        }
    }

    if let Some(lens) = lens {
        let place = g.index(DType::I64, vec![columns.clone()], axis(0).into())?;
        let lens = g.cast(DType::I64, lens)?;
        let lens = g.unsqueeze(lens, &[1, 2, 3])?;
        limits.push(g.compare(CompareOp::Lt, place, lens)?);
    }

    Ok(limits)
}

/// Pairs of features, rotated by the angles whose cosines and sines are inputs 1 and 2. The optional input 3 holds
/// positions in these caches. A pair is the same feature of both halves of a head, or with `interleaved=1` two adjacent
/// features. `rotary_embedding_dim` restricts the rotation to the first features of a head.
///
/// `RotaryEmbedding([[[[1, 2]]]], [[[0]]], [[[1]]]) = [[[[-2, 1]]]]`
fn rotary_embedding(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let input = n.input(0)?;
    let mut cos = n.input(1)?;
    let mut sin = n.input(2)?;
    if let Some(positions) = n.optional(3) {
        (cos, sin) = (g.gather(cos, positions, 0)?, g.gather(sin, positions, 0)?);
    }
    rotated(g, n, input, [cos, sin])
}

/// The input, rotated by the angles whose cosines and sines are given for each position.
pub(crate) fn rotated(g: &mut Graph, n: &OnnxNode, input: Value, [cos, sin]: [Value; 2]) -> Result<Value> {
    let interleaved = n.flag("interleaved", false)?;
    let count = n.int_or("num_heads", 0)?;
    let part = n.int_or("rotary_embedding_dim", 0)?;
    let flat = g.rank(input) == 3;

    // Without `num_heads`, the caches define the width of a head.
    let count = match (flat && count == 0, g.shape(cos).last().and_then(Dim::as_i64)) {
        (true, Some(half)) if half > 0 => {
            let width = three(g, input)?[2].clone();
            width.as_i64().map_or(0, |width| width / (2 * half))
        }
        _ => count,
    };

    let x = if flat { heads(g, input, count)? } else { input };
    if g.rank(x) != 4 {
        return Err(Error::invalid("the input must have 3 or 4 axes"));
    }

    let part = if part == 0 { g.shape(x)[3].clone() } else { part.into() };
    let y = turned(g, x, [cos, sin], interleaved, part)?;
    if flat { joined(g, y) } else { Ok(y) }
}

/// `x: [B, H, S, D]` with its first `part` features rotated by the angles with these cosines and sines, `[B, S, part /
/// 2]`.
pub(crate) fn turned(
    g: &mut Graph,
    x: Value,
    [cos, sin]: [Value; 2],
    interleaved: bool,
    part: Dim,
) -> Result<Value> {
    let size = g.shape(x)[3].clone();
    let half = g.facts.simplify(&part.floor_div(2));
    let cos = g.unsqueeze(cos, &[1])?;
    let sin = g.unsqueeze(sin, &[1])?;

    let (first, second) = if interleaved {
        (g.slice(x, 3, Dim::zero(), half.clone(), 2)?, g.slice(x, 3, Dim::one(), half.clone(), 2)?)
    } else {
        (g.slice(x, 3, Dim::zero(), half.clone(), 1)?, g.slice(x, 3, half.clone(), half.clone(), 1)?)
    };

    let turn = |g: &mut Graph, a: Value, b: Value| -> Result<(Value, Value)> {
        Ok((g.mul(cos, a)?, g.mul(sin, b)?))
    };
    let (a, b) = turn(g, first, second)?;
    let real = g.sub(a, b)?;
    let (b, a) = turn(g, second, first)?;
    let imaginary = g.add(a, b)?;

    let turned_x = if interleaved {
        let real = g.unsqueeze(real, &[4])?;
        let imaginary = g.unsqueeze(imaginary, &[4])?;
        let pairs = g.concat(&[real, imaginary], 4)?;
        let mut shape = g.shape(x).to_vec();
        shape[3] = part.clone();
        g.reshape(pairs, shape)?
    } else {
        g.concat(&[real, imaginary], 3)?
    };

    if g.facts.prove_eq(&part, &size).is_yes() {
        return Ok(turned_x);
    }

    let rest = g.slice(x, 3, part.clone(), g.facts.simplify(&(size - part)), 1)?;
    g.concat(&[turned_x, rest], 3)
}

/// Attention with a state `[B, H, D, E]`. Each step updates it from its key and value and reads it with its query.
/// `update_rule` is `linear`, `gated` (the state decays), `delta` (the value minus the state's prediction for the key)
/// or `gated_delta`. Input 3 is the initial state, input 4 the decay, input 5 beta.
///
/// `LinearAttention([[[2]]], [[[3]]], [[[5]]]; q_num_heads=1, kv_num_heads=1, update_rule="linear", scale=1.0) = [[[30]]], [[[[15]]]]`
fn linear_attention(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let q = n.input(0)?;
    let k = n.input(1)?;
    let v = n.input(2)?;

    let need = |count: Option<i64>| {
        count.filter(|count| *count > 0).ok_or_else(|| {
            Error::invalid("LinearAttention needs the attributes `q_num_heads` and `kv_num_heads`")
        })
    };

    let q_heads = need(n.int("q_num_heads")?)?;
    let kv_heads = need(n.int("kv_num_heads")?)?;
    n.int("chunk_size")?;
    if n.int_or("state_window", 0)? != 0 {
        return Err(Error::unsupported("LinearAttention with state_window"));
    }
    let rule = n.string_or("update_rule", "gated_delta")?;
    if !["linear", "gated", "delta", "gated_delta"].contains(&rule) {
        return Err(Error::invalid(format!("unknown update_rule `{rule}`")));
    }

    let dtype = g.dtype(q);
    let wide = DType::F32;
    let state_type = n.optional(3).map_or(dtype, |past| g.dtype(past));

    let split = |g: &mut Graph, x: Value, count: i64| -> Result<Value> {
        let x = heads(g, x, count)?;
        g.cast(wide, x)
    };

    let q = split(g, q, q_heads)?;
    let k = split(g, k, kv_heads)?;
    let v = split(g, v, kv_heads)?;

    let d = g.shape(k)[3].clone();
    let e = g.shape(v)[3].clone();
    let batch = g.shape(k)[0].clone();
    let steps = g.shape(k)[2].clone();

    let decay = match n.optional(4) {
        Some(decay) => Some(decay_by_head(g, decay, kv_heads)?),
        None => None,
    };

    let beta = match n.optional(5) {
        Some(beta) => {
            let beta = g.transpose(beta, &[0, 2, 1])?;
            let beta = g.unsqueeze(beta, &[3])?;
            let beta = g.cast(wide, beta)?;
            // One element for all heads, or one per head.
            let shape = [batch.clone(), kv_heads.into(), steps.clone(), Dim::one()];
            Some(g.broadcast_to(beta, &shape)?)
        }
        None => None,
    };

    let state = match n.optional(3) {
        Some(past) => g.cast(wide, past)?,
        None => {
            let zero = g.number(wide, 0.0)?;
            g.broadcast_to(zero, &[batch, kv_heads.into(), d.clone(), e])?
        }
    };

    let scale = match n.float_or("scale", 0.0)? {
        0.0 => {
            let size = g.dim(DType::F64, d)?;
            let root = g.sqrt(size)?;
            let scale = g.recip(root)?;
            g.cast(wide, scale)?
        }
        scale => g.number(wide, scale)?,
    };

    let q = g.mul(q, scale)?;
    let counter = n.fresh(g);
    let given: Vec<Value> = [q, k, v].into_iter().chain(decay).chain(beta).collect();
    let step = LinearStep { q_heads, kv_heads, has_decay: decay.is_some(), has_beta: beta.is_some() };

    let rounds = g.iterate(&counter, &steps, [&[state], &given], |g, states, given| {
        let t = Dim::from(&counter);
        let mut now = Vec::new();
        for x in given {
            let x = g.slice(*x, 2, t.clone(), Dim::one(), 1)?;
            now.push(g.squeeze(x, &[2])?);
        }
        step.build(g, states[0], &now)
    })?;

    let y = g.transpose(rounds.slices[0], &[1, 0, 2])?;
    Ok(vec![g.cast(dtype, y)?, g.cast(state_type, rounds.carried[0])?])
}

/// The decay of the state in each step, `e^decay`, by head.
fn decay_by_head(g: &mut Graph, decay: Value, kv_heads: i64) -> Result<Value> {
    let by_head = heads(g, decay, kv_heads)?;
    g.require(Relation::divides(kv_heads, g.shape(decay)[2].clone()), "decay")?;
    let by_head = g.cast(DType::F32, by_head)?;
    g.exp(by_head)
}

/// One step of `LinearAttention`.
struct LinearStep {
    q_heads: i64,
    kv_heads: i64,
    has_decay: bool,
    has_beta: bool,
}

impl LinearStep {
    /// Updates `state` from the key and value of this step, then reads it with the query.
    ///
    /// `now` holds query, key and value, then the decay and beta if there are any.
    fn build(&self, g: &mut Graph, mut state: Value, now: &[Value]) -> Result<LoopBody> {
        let q = now[0];
        let k = now[1];
        let v = now[2];

        if self.has_decay {
            let decay = g.unsqueeze(now[3], &[3])?;
            state = g.mul(state, decay)?;
        }

        let mut new = v;
        if self.has_beta {
            let seen = g.contract(k, b"bhd", state, b"bhde", b"bhe")?;
            let rest = g.sub(v, seen)?;
            new = g.mul(rest, now[now.len() - 1])?;
        }

        let column = g.unsqueeze(k, &[3])?;
        let row = g.unsqueeze(new, &[2])?;
        let outer = g.mul(column, row)?;
        state = g.add(state, outer)?;

        let shape = g.shape(q).to_vec();
        let each = self.q_heads / self.kv_heads;
        let q = g.reshape(q, vec![shape[0].clone(), self.kv_heads.into(), each.into(), shape[2].clone()])?;
        let y = g.contract(q, b"bhgd", state, b"bhde", b"bhge")?;
        let width = g.shape(y)[3].clone();
        let y = g.reshape(y, vec![shape[0].clone(), width * self.q_heads])?;

        Ok(LoopBody { again: None, next: vec![state], slices: vec![y] })
    }
}
