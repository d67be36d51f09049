//! Attention with a cache of keys and values, as language models are exported with it.
//!
//! Each sequence of a batch has its own length. The cache is as large as the longest sequence, or larger. New keys are
//! appended to the past keys of their sequence.

use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, Value, axis},
    import::{
        node::{OnnxNode, axes::larger},
        ops::attention::{heads, joined, shared, turned},
    },
    scalar::{BinaryOp, CompareOp, ReduceOp, Scalar},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    "com.microsoft" GroupQueryAttention 1 group_query_attention,
}

/// Causal attention with a cache, where several query heads share a key head. Inputs 0 to 2 are queries, keys and
/// values, `[B, S, D]`, or packed in input 0. Inputs 3 and 4 are past keys and values, `[B, H, P, D]`. Input 5 is the
/// index of the last key of each sequence, input 6 the maximum number of keys. With `do_rotary`, queries and keys are
/// rotated by the cosines and sines in inputs 7 and 8. Their positions are input 9, or follow the past keys. Input 10
/// is a summand of the scores. Input 11 adds an element to the softmax of each head, as `smooth_softmax` does with 0.
/// With inputs 14 and 15, each head of queries and keys is divided by its root mean square and scaled before it is
/// rotated. A query sees keys up to its own, or the last `local_window_size` of them, or with `causal=0` all. Outputs 1
/// and 2 are the present keys and values.
///
/// Limits: no quantised caches, no caches of the size of the window, no lengths of queries, no output of products.
///
/// `GroupQueryAttention([[[0, 0]]], [[[1, 2]]], [[[3, 4]]], _, _, i32[0], i32:1; num_heads=1, kv_num_heads=1) = [[[3, 4]]], [[[[1, 2]]]], [[[[3, 4]]]]`
fn group_query_attention(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    refuse(n)?;
    let need = |name: &str| {
        let count = n.int(name)?.filter(|count| *count > 0);
        count.ok_or_else(|| Error::invalid(format!("GroupQueryAttention needs the attribute `{name}`")))
    };

    let count = need("num_heads")?;
    let kv_count = need("kv_num_heads")?;
    let [q, k, v] = inputs(g, n, count, kv_count)?;
    let [mut q, mut k] = normalised(g, n, [q, k])?;
    let places = Places::of(g, n, q)?;
    let interleaved = n.flag("rotary_interleaved", false)?;
    let given = [n.optional(7), n.optional(8), n.optional(9)];

    if n.flag("do_rotary", false)? {
        let [Some(cos), Some(sin), at] = given else {
            return Err(Error::invalid("rotary embedding needs both cosines and sines"));
        };

        let at = match at {
            Some(at) => places.given(g, at)?,
            None => places.of_queries,
        };

        let angles = [g.gather(cos, at, 0)?, g.gather(sin, at, 0)?];
        let part = g.shape(cos).last().map(|half| half * 2);
        let part =
            g.facts.simplify(&part.ok_or_else(|| Error::invalid("the cosines must have at least 1 axis"))?);
        (q, k) = (turned(g, q, angles, interleaved, part.clone())?, turned(g, k, angles, interleaved, part)?);
    }

    let k = places.appended(g, n.optional(3), k)?;
    let v = places.appended(g, n.optional(4), v)?;
    let heads = g.shape(q)[1].clone();
    let all_k = shared(g, k, &heads)?;
    let all_v = shared(g, v, &heads)?;

    let scores = scores(g, n, q, all_k)?;
    let seen = places.seen(g, n)?;
    let low = g.number(g.dtype(q), f64::NEG_INFINITY)?;
    let scores = g.select(seen, scores, low)?;
    let shares = match sink(g, n)? {
        Some(sink) => softmax_with_sink(g, scores, sink)?,
        None => g.softmax(scores, 3)?,
    };
    let y = g.contract(shares, b"bhst", all_v, b"bhtd", b"bhsd")?;

    Ok(vec![joined(g, y)?, k, v])
}

/// Refuses attributes and inputs that are not supported.
fn refuse(n: &OnnxNode) -> Result<()> {
    let is_quantised = ["k_quant_type", "v_quant_type"].into_iter().try_fold(false, |found, name| {
        n.string_or(name, "NONE").map(|quantised| found || quantised != "NONE")
    })?;
    n.int("kv_cache_bit_width")?;

    let shows_products = n.int_or("qk_output", 0)? > 0;
    let slides = n.flag("sliding_window_cache", false)?;
    if is_quantised || shows_products || slides || [12, 13, 16].iter().any(|k| n.optional(*k).is_some()) {
        return Err(Error::unsupported(
            "GroupQueryAttention with a quantised cache, a cache of the size of the window, lengths of queries, or an \
             output of products",
        ));
    }

    Ok(())
}

/// Queries and keys, `[B, H, S, D]`, each head divided by its root mean square and scaled by inputs 14 and 15, if these
/// are given.
fn normalised(g: &mut Graph, n: &OnnxNode, parts: [Value; 2]) -> Result<[Value; 2]> {
    let both = n.float_or("qk_norm_epsilon", 1e-6)? as f32;
    let epsilons = [n.float_or("q_norm_epsilon", both)?, n.float_or("k_norm_epsilon", both)?];
    let (Some(q), Some(k)) = (n.optional(14), n.optional(15)) else { return Ok(parts) };

    let mut normal = Vec::new();
    for ((part, weight), epsilon) in parts.into_iter().zip([q, k]).zip(epsilons) {
        let wide = g.cast(DType::F32, part)?;
        let squares = g.mul(wide, wide)?;
        let mean = g.mean(squares, &[3], true)?;
        let epsilon = g.number(DType::F32, epsilon)?;
        let shifted = g.add(mean, epsilon)?;
        let root = g.sqrt(shifted)?;
        let wide = g.div(wide, root)?;
        let weight = g.cast(DType::F32, weight)?;
        let scaled = g.mul(wide, weight)?;
        normal.push(g.cast(g.dtype(part), scaled)?);
    }
    Ok([normal[0], normal[1]])
}

/// The score of the sink of each head, `[H, 1, 1]`: input 11, or 0 with `smooth_softmax`.
fn sink(g: &mut Graph, n: &OnnxNode) -> Result<Option<Value>> {
    let is_smooth = n.int_or("smooth_softmax", 0)? > 0;
    match n.optional(11) {
        Some(sinks) => g.unsqueeze(sinks, &[1, 2]).map(Some),
        None if is_smooth => g.number(g.dtype(n.input(0)?), 0.0).map(Some),
        None => Ok(None),
    }
}

/// Softmax along the last axis with a further element in each row, the sink, which the result omits.
fn softmax_with_sink(g: &mut Graph, scores: Value, sink: Value) -> Result<Value> {
    let sink = g.cast(g.dtype(scores), sink)?;
    let max = g.reduce(ReduceOp::Max, scores, &[3], true)?;
    let max = g.max(max, sink)?;
    let shifted = g.sub(scores, max)?;
    let powers = g.exp_or_zero(shifted)?;
    let sum = g.reduce(ReduceOp::Sum, powers, &[3], true)?;
    let shifted = g.sub(sink, max)?;
    let of_sink = g.exp_or_zero(shifted)?;
    let sum = g.add(sum, of_sink)?;
    g.div(powers, sum)
}

/// Queries, keys and values by heads, `[B, H, S, D]`.
fn inputs(g: &mut Graph, n: &OnnxNode, count: i64, kv_count: i64) -> Result<[Value; 3]> {
    let q = n.input(0)?;
    if g.rank(q) != 3 {
        return Err(Error::invalid("the input must have 3 axes"));
    }

    let (k, v) = match (n.optional(1), n.optional(2)) {
        (Some(k), Some(v)) => (k, v),
        (None, None) => {
            let all = count + 2 * kv_count;
            let width = g.shape(q)[2].clone();
            g.require(Relation::divides(all, &width), "heads of queries, keys and values")?;
            let size = g.facts.simplify(&width.floor_div(all));
            let sizes = [&size * count, &size * kv_count, &size * kv_count];
            let parts = g.split(q, 2, &sizes)?;
            return Ok([
                heads(g, parts[0], count)?,
                heads(g, parts[1], kv_count)?,
                heads(g, parts[2], kv_count)?,
            ]);
        }
        _ => return Err(Error::invalid("keys need values")),
    };

    Ok([heads(g, q, count)?, heads(g, k, kv_count)?, heads(g, v, kv_count)?])
}

/// The scores before the softmax.
fn scores(g: &mut Graph, n: &OnnxNode, q: Value, k: Value) -> Result<Value> {
    let dtype = g.dtype(q);
    let scale = match n.float("scale")?.filter(|scale| *scale != 0.0) {
        Some(scale) => g.number(dtype, f64::from(scale))?,
        None => {
            let size = g.dim(DType::F64, g.shape(q)[3].clone())?;
            let root = g.sqrt(size)?;
            let scale = g.recip(root)?;
            g.cast(dtype, scale)?
        }
    };

    let product = g.contract(q, b"bhsd", k, b"bhtd", b"bhst")?;
    let mut scores = g.mul(product, scale)?;

    let softcap = n.float_or("softcap", 0.0)?;
    if softcap > 0.0 {
        let cap = g.number(dtype, softcap)?;
        let small = g.div(scores, cap)?;
        let small = g.tanh(small)?;
        scores = g.mul(small, cap)?;
    }

    match n.optional(10) {
        Some(bias) => g.add(scores, bias),
        None => Ok(scores),
    }
}

/// The numbers of past keys `past`, `[B, 1]`, which the call checks to be `capacity`.
///
/// A cache that is state, see [`Graph::keeps_state`], has one length, so that its new rows are at a place that the
/// compiler knows. Sequences of a padded batch would have others.
fn all_of(g: &mut Graph, n: &OnnxNode, past: Value, capacity: &Dim) -> Result<Value> {
    let all = g.dim(DType::I64, capacity.clone())?;
    let missing = g.sub(all, past)?;
    let squares = g.mul(missing, missing)?;
    let sum = g.reduce(ReduceOp::Sum, squares, &[0, 1], false)?;
    n.data_dependent(g, sum, 0, 0)?;
    let shape = g.shape(past).to_vec();
    g.broadcast_to(all, &shape)
}

/// The positions of queries and keys in their sequences.
struct Places {
    batch: Dim,
    /// Number of new keys.
    steps: Dim,
    /// Size of the cache.
    keys: Dim,
    /// Whether the new keys follow all keys of the cache, in every sequence.
    follows: bool,
    /// Whether no sequence has past keys, a bool.
    begins: Value,
    /// Number of past keys of each sequence, `[B, 1]`.
    past: Value,
    /// The index of each query, `[S]`.
    step: Value,
    /// The positions of the queries in their sequences, `[B, S]`.
    of_queries: Value,
}

impl Places {
    fn of(g: &mut Graph, n: &OnnxNode, q: Value) -> Result<Places> {
        let batch = g.shape(q)[0].clone();
        let steps = g.shape(q)[2].clone();
        let total = g.reshape(n.input(6)?, Vec::new())?;

        let total = g.cast(DType::I64, total)?;
        let all = match g.contents(total) {
            Some([all]) => all.clone(),
            _ => {
                let max = match n.declared_dim(g, 1, 2) {
                    Some(declared) => declared,
                    None => n.open_bound(g)?.1,
                };
                n.data_dependent(g, total, 0, max)?
            }
        };

        let capacity = n.optional(3).map_or(Ok(Dim::zero()), |past| match g.shape(past) {
            [_, _, capacity, _] => Ok(capacity.clone()),
            _ => Err(Error::invalid("past keys must have 4 axes")),
        })?;

        let keys = larger(g, &capacity, &all);
        let keys = g.facts.simplify(&keys);

        // Sequences that begin have no past keys, whatever their length.
        let last = g.reshape(n.input(5)?, vec![batch.clone(), Dim::one()])?;
        let last = g.cast(DType::I64, last)?;
        let new = g.dim(DType::I64, &steps - 1)?;
        let before = g.sub(last, new)?;

        let all = g.dim(DType::I64, all)?;
        let count = g.dim(DType::I64, steps.clone())?;
        let begins = g.compare(CompareOp::Eq, count, all)?;

        let zero = g.scalar(Scalar::i64(0))?;
        let past = g.select(begins, zero, before)?;
        let past = g.broadcast_to(past, &[batch.clone(), Dim::one()])?;
        let is_input = n.optional(3).is_some_and(|past| matches!(g.op(past), Op::Input(_)));
        let grows = g.facts.prove_eq(&keys, &(&capacity + &steps)).is_yes();
        let follows = g.keeps_state && is_input && grows;
        let past = if follows { all_of(g, n, past, &capacity)? } else { past };
        let step = g.index(DType::I64, vec![steps.clone()], axis(0).into())?;
        let of_queries = g.add(past, step)?;

        Ok(Places { batch, steps, keys, follows, begins, past, step, of_queries })
    }

    /// The positions in input 9. Where sequences begin, they continue from the first.
    fn given(&self, g: &mut Graph, at: Value) -> Result<Value> {
        let at = g.cast(DType::I64, at)?;
        let mut first = at;
        for k in 0..g.rank(at) {
            first = g.slice(first, k, Dim::zero(), Dim::one(), 1)?;
        }
        let first = g.add(first, self.step)?;
        g.select(self.begins, first, at)
    }

    /// `past` with the keys or values `new` appended to those of each sequence.
    fn appended(&self, g: &mut Graph, past: Option<Value>, new: Value) -> Result<Value> {
        if let Some(past) = past.filter(|_| self.follows) {
            return g.concat(&[past, new], 2);
        }
        let mut shape = g.shape(new).to_vec();
        shape[2] = self.keys.clone();

        let place = g.index(DType::I64, vec![self.keys.clone()], axis(0).into())?;
        let from = g.sub(place, self.past)?;

        let zero = g.scalar(Scalar::i64(0))?;
        let end = g.dim(DType::I64, self.steps.clone())?;
        let from_zero = g.compare(CompareOp::Ge, from, zero)?;
        let before = g.compare(CompareOp::Lt, from, end)?;
        let is_new = g.and(from_zero, before)?;
        let is_new = g.unsqueeze(is_new, &[1, 3])?;

        let last = g.dim(DType::I64, &self.steps - 1)?;
        let from = g.binary(BinaryOp::Min, from, last)?;
        let from = g.binary(BinaryOp::Max, from, zero)?;

        let at = |k: usize| Coord::At(axis(k).into());
        let loaded = Coord::Load { operand: 1, at: vec![axis(0).into(), axis(2).into()] };
        let coords = vec![at(0), at(1), loaded, at(3)];
        let moved = g.push(Op::Gather { shape, coords }, &[new, from])?;

        let old = match past {
            Some(past) => {
                let mut hi = vec![Dim::zero(); 4];
                hi[2] = g.facts.simplify(&(&self.keys - &g.shape(past)[2]));
                g.pad(past, &vec![Dim::zero(); 4], &hi, Scalar::from_i64(g.dtype(past), 0))?
            }
            None => g.number(g.dtype(new), 0.0)?,
        };

        g.select(is_new, moved, old)
    }

    /// Whether a query sees a key, `[B, 1, S, T]`.
    fn seen(&self, g: &mut Graph, n: &OnnxNode) -> Result<Value> {
        let shape = [self.batch.clone(), Dim::one(), self.steps.clone(), Dim::one()];
        let query = g.reshape(self.of_queries, shape.to_vec())?;
        let key = g.index(DType::I64, vec![self.keys.clone()], axis(0).into())?;
        let is_causal = n.flag("causal", true)?;
        let last = if is_causal {
            query
        } else {
            let new = g.dim(DType::I64, &self.steps - 1)?;
            let last = g.add(self.past, new)?;
            g.unsqueeze(last, &[1, 2])?
        };
        let seen = g.compare(CompareOp::Le, key, last)?;
        let window = n.int_or("local_window_size", -1)?;
        if window < 0 {
            return Ok(seen);
        }

        let window = g.scalar(Scalar::i64(window))?;
        let first = g.sub(query, window)?;
        let near = g.compare(CompareOp::Gt, key, first)?;
        g.and(seen, near)
    }
}
