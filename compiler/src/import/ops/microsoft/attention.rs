//! Attention operators of ONNX Runtime's domain, with projection, mask and past keys.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        node::OnnxNode,
        ops::{
            attention::{heads, joined, rotated},
            quant::requantised_product,
        },
    },
    scalar::{CompareOp, Scalar},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    "com.microsoft" Attention 1 attention,
    "com.microsoft" MultiHeadAttention 1 multi_head_attention,
    "com.microsoft" QAttention 1 quantised_attention,
    "com.microsoft" RotaryEmbedding 1 rotary_embedding,
}

/// The scale of the scores `[B, H, S, T]`, their summands and their mask.
struct Scores {
    scale: Option<f64>,
    summands: Vec<Value>,
    /// The number of past keys, if a query sees only keys up to its own position.
    causal: Option<Dim>,
}

/// `softmax(Q·Kᵀ * scale + summands)·V` of `[B, H, S, D]`, with the heads joined.
fn attend(g: &mut Graph, [q, k, v]: [Value; 3], scores: &Scores) -> Result<Value> {
    let dtype = g.dtype(q);
    let product = g.contract(q, b"bhsd", k, b"bhtd", b"bhst")?;

    let scale = match scores.scale {
        Some(scale) => g.number(dtype, scale)?,
        None => {
            let size = g.dim(DType::F64, g.shape(q)[3].clone())?;
            let root = g.sqrt(size)?;
            let scale = g.recip(root)?;
            g.cast(dtype, scale)?
        }
    };

    let mut sum = g.mul(product, scale)?;
    for summand in &scores.summands {
        sum = g.add(sum, *summand)?;
    }

    if let Some(past) = &scores.causal {
        let shape = g.shape(sum)[2..].to_vec();
        let distance = g.index(DType::I64, shape, Dim::from(axis(1)) - Dim::from(axis(0)) - past)?;
        let zero = g.scalar(Scalar::i64(0))?;
        let seen = g.compare(CompareOp::Le, distance, zero)?;
        let low = g.number(dtype, f64::NEG_INFINITY)?;
        sum = g.select(seen, sum, low)?;
    }

    let shares = g.softmax(sum, 3)?;
    let y = g.contract(shares, b"bhst", v, b"bhtd", b"bhsd")?;
    joined(g, y)
}

/// A mask as a summand of the scores: 0 where a key counts, else `filter`.
///
/// A mask of 1 axis has the end of the keys of each of the `batch` sequences, or their ends and then their starts.
/// Other masks have one element per key, or one per query and key.
fn masked(g: &mut Graph, mask: Value, batch: &Dim, keys: &Dim, filter: Value) -> Result<Value> {
    let zero = g.number(g.dtype(filter), 0.0)?;
    let counts = match g.rank(mask) {
        1 => {
            let size = g.shape(mask)[0].clone();
            let mask = g.cast(DType::I64, mask)?;
            let place = g.index(DType::I64, vec![keys.clone()], axis(0).into())?;

            let part = |g: &mut Graph, from: Dim| {
                let part = g.slice(mask, 0, from, batch.clone(), 1)?;
                g.unsqueeze(part, &[1, 2, 3])
            };

            let end = part(g, Dim::zero())?;
            let before_end = g.compare(CompareOp::Lt, place, end)?;

            if g.facts.prove_eq(&size, batch).is_yes() {
                before_end
            } else if g.facts.prove_eq(&size, &(batch * 2)).is_yes() {
                let start = part(g, batch.clone())?;
                let from_start = g.compare(CompareOp::Ge, place, start)?;
                g.and(before_end, from_start)?
            } else {
                return Err(Error::unsupported(format!("a mask of {size} elements for {batch} sequences")));
            }
        }
        rank @ (2 | 3) => {
            let zero = g.scalar(Scalar::from_i64(g.dtype(mask), 0))?;
            let counts = g.compare(CompareOp::Gt, mask, zero)?;
            g.unsqueeze(counts, if rank == 2 { &[1, 2] } else { &[1] })?
        }
        rank => return Err(Error::unsupported(format!("an attention mask of {rank} axes"))),
    };

    g.select(counts, zero, filter)
}

/// The parts of the last axis of `x` for queries, keys and values.
fn three_parts(g: &mut Graph, x: Value, sizes: &[Dim; 3]) -> Result<[Value; 3]> {
    let parts = g.split(x, g.rank(x) - 1, sizes)?;
    parts.try_into().map_err(|_| Error::internal("there must be three parts"))
}

/// Widths of queries, keys and values in a projection to `width` features.
fn widths(g: &mut Graph, n: &OnnxNode, width: &Dim) -> Result<[Dim; 3]> {
    let sizes = match n.ints("qkv_hidden_sizes")? {
        Some(sizes) => sizes.into_iter().map(Dim::from).collect(),
        None => {
            g.require(Relation::divides(3, width), "queries, keys and values")?;
            vec![g.facts.simplify(&width.floor_div(3)); 3]
        }
    };
    sizes.try_into().map_err(|_| Error::invalid("qkv_hidden_sizes must hold three sizes"))
}

/// Attention over the projected inputs `[B, S, Dq + Dk + Dv]`.
fn over_projection(
    g: &mut Graph,
    n: &OnnxNode,
    projected: Value,
    [mask, past, summand]: [Option<Value>; 3],
) -> Result<Vec<Option<Value>>> {
    let count = n.int_or("num_heads", 0)?;
    let causal = n.flag("unidirectional", false)?;
    let scale = n.float("scale")?.map(f64::from);

    let filter = n.float_or("mask_filter_value", -10000.0)?;
    if n.flag("do_rotary", false)? || n.flag("past_present_share_buffer", false)? {
        return Err(Error::unsupported(format!(
            "{} with rotary embedding or a shared buffer of past keys",
            n.op
        )));
    }

    n.int_or("rotary_embedding_dim", 0)?;
    if g.rank(projected) != 3 {
        return Err(Error::invalid("the input must have 3 axes"));
    }

    let sizes = widths(g, n, &g.shape(projected)[2].clone())?;
    let mut parts = three_parts(g, projected, &sizes)?;
    for part in &mut parts {
        *part = heads(g, *part, count)?;
    }

    let [q, mut k, mut v] = parts;
    let mut before = Dim::zero();
    if let Some(past) = past {
        before = g.shape(past).get(3).cloned().ok_or_else(|| Error::invalid("past must have 5 axes"))?;
        let mut own = Vec::new();
        for i in 0..2 {
            let one = g.slice(past, 0, Dim::from(i), Dim::one(), 1)?;
            own.push(g.squeeze(one, &[0])?);
        }
        (k, v) = (g.concat(&[own[0], k], 2)?, g.concat(&[own[1], v], 2)?);
    }

    let batch = g.shape(k)[0].clone();
    let keys = g.shape(k)[2].clone();

    let mut summands = Vec::new();
    if let Some(mask) = mask {
        let filter = g.number(g.dtype(q), filter)?;
        summands.push(masked(g, mask, &batch, &keys, filter)?);
    }

    summands.extend(summand);
    let scores =
        Scores { scale: scale.filter(|scale| *scale != 0.0), summands, causal: causal.then_some(before) };
    let y = attend(g, [q, k, v], &scores)?;

    let present = if n.wants(1) {
        let k = g.unsqueeze(k, &[0])?;
        let v = g.unsqueeze(v, &[0])?;
        Some(g.concat(&[k, v], 0)?)
    } else {
        None
    };

    Ok(vec![Some(y), present])
}

/// Self-attention. `input·weights + bias` (inputs 0 to 2) holds queries, keys and values. Input 3 is the mask, input 4
/// past keys and values, input 5 a summand of the scores. Output 1 holds the present keys and values.
///
/// Limits: no rotary embedding, no shared past buffer, no mask of 4 axes.
///
/// `Attention([[[1], [1]]], [[0, 0, 2]], [0, 0, 1]; num_heads=1) = [[[3], [3]]]`
fn attention(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let mut projected = g.matmul(n.input(0)?, n.input(1)?)?;
    if let Some(bias) = n.optional(2) {
        projected = g.add(projected, bias)?;
    }
    if n.optional(6).is_some() {
        return Err(Error::unsupported("Attention with a shared buffer of past keys"));
    }
    over_projection(g, n, projected, [n.optional(3), n.optional(4), n.optional(5)])
}

/// `Attention` of 8-bit integers. Scales of input and weights are inputs 3 and 4, their zero points inputs 6 and 7.
/// Input 5 is the mask, input 8 past keys and values.
///
/// Limits: as `com.microsoft::Attention`.
///
/// `QAttention(u8[[[3], [3]]], u8[[1, 1, 3]], [0, 0, 1], 0.5, 2, _, u8:1, u8:1; num_heads=1) = [[[5], [5]]]`
fn quantised_attention(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let factors = [n.input(3)?, n.input(4)?];
    let projected =
        requantised_product(g, [n.input(0)?, n.input(1)?], [n.optional(6), n.optional(7)], factors)?;
    let projected = match n.optional(2) {
        Some(bias) => g.add(projected, bias)?,
        None => projected,
    };
    over_projection(g, n, projected, [n.optional(5), n.optional(8), None])
}

/// Attention of queries, keys and values (inputs 0 to 2) of `[B, S, D]`. Keys and values may also be `[B, H, T, D]`.
/// Packed inputs have 5 axes. Input 3 is a bias for all three, input 4 the mask, input 5 a summand of the scores.
/// Inputs 6 and 7 are past keys and values. Outputs 1 and 2 are the present ones.
///
/// Limits: no shared past buffer.
///
/// `MultiHeadAttention([[[0, 0]]], [[[1, 2], [3, 4]]], [[[1], [3]]]; num_heads=1) = [[[2]]]`
fn multi_head_attention(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let count = n.int_or("num_heads", 0)?;
    let scale = n.float("scale")?.map(f64::from).filter(|scale| *scale != 0.0);
    let filter = n.float_or("mask_filter_value", -10000.0)?;
    let causal = n.flag("unidirectional", false)?;
    if (8..n.input_count()).any(|k| n.optional(k).is_some()) {
        return Err(Error::unsupported("MultiHeadAttention with a shared buffer of past keys"));
    }

    let inputs = unpacked(g, n)?;
    let mut parts = Vec::new();

    let mut at = Dim::zero();
    for (i, input) in inputs.into_iter().enumerate() {
        let mut part = input;
        if let Some(bias) = n.optional(3) {
            // Keys of 4 axes were projected before, including their bias.
            let width = match g.rank(part) {
                3 => g.shape(part)[2].clone(),
                _ => g.facts.simplify(&(&g.shape(part)[3] * count)),
            };
            if g.rank(part) == 3 {
                let own = g.slice(bias, 0, at.clone(), width.clone(), 1)?;
                part = g.add(part, own)?;
            }
            at = g.facts.simplify(&(at + width));
        }

        parts.push(match (g.rank(part), i) {
            (3, _) => heads(g, part, count)?,
            (4, 1 | 2) => part,
            (rank, _) => return Err(Error::invalid(format!("input {i} has {rank} axes"))),
        });
    }

    let [q, mut k, mut v] =
        <[Value; 3]>::try_from(parts).map_err(|_| Error::internal("there must be three inputs"))?;

    let mut before = Dim::zero();
    if let (Some(past_k), Some(past_v)) = (n.optional(6), n.optional(7)) {
        before =
            g.shape(past_k).get(2).cloned().ok_or_else(|| Error::invalid("past keys must have 4 axes"))?;
        (k, v) = (g.concat(&[past_k, k], 2)?, g.concat(&[past_v, v], 2)?);
    }

    let batch = g.shape(k)[0].clone();
    let keys = g.shape(k)[2].clone();

    let mut summands = Vec::new();
    if let Some(mask) = n.optional(4) {
        let filter = g.number(g.dtype(q), filter)?;
        summands.push(masked(g, mask, &batch, &keys, filter)?);
    }

    summands.extend(n.optional(5));
    let y = attend(g, [q, k, v], &Scores { scale, summands, causal: causal.then_some(before) })?;
    Ok(vec![Some(y), Some(k), Some(v)])
}

/// Queries, keys and values. All three may be packed in input 0, `[B, S, H, 3, D]`, or keys and values in input 1, `[B,
/// T, H, 2, D]`.
fn unpacked(g: &mut Graph, n: &OnnxNode) -> Result<[Value; 3]> {
    let one = |g: &mut Graph, x: Value, k: usize| -> Result<Value> {
        let one = g.slice(x, 3, Dim::from(k), Dim::one(), 1)?;
        let one = g.squeeze(one, &[3])?;
        let shape = g.shape(one).to_vec();
        let width = g.facts.simplify(&(&shape[2] * &shape[3]));
        g.reshape(one, vec![shape[0].clone(), shape[1].clone(), width])
    };

    let q = n.input(0)?;
    let k = n.optional(1);

    let v = n.optional(2);
    match (k, v) {
        (None, _) if g.rank(q) == 5 => Ok([one(g, q, 0)?, one(g, q, 1)?, one(g, q, 2)?]),
        (Some(k), None) if g.rank(k) == 5 => Ok([q, one(g, k, 0)?, one(g, k, 1)?]),
        (Some(k), Some(v)) if [q, k, v].iter().all(|x| [3, 4].contains(&g.rank(*x))) => Ok([q, k, v]),
        _ => Err(Error::invalid(
            "queries, keys and values must have 3 or 4 axes, or 5 axes if they are packed",
        )),
    }
}

/// `RotaryEmbedding` with the positions as input 1, before the caches. There is one position per element, or the
/// position of the first.
///
/// Limits: no `scale` and no packed batches.
///
/// `RotaryEmbedding([[[[1, 2]]]], i64[0], [[0]], [[1]]) = [[[[-2, 1]]]]`
fn rotary_embedding(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let places = n.input(1)?;
    if n.float_or("scale", 1.0)? != 1.0 || n.flag("is_packed_batching", false)? {
        return Err(Error::unsupported("RotaryEmbedding with a scale or packed batches"));
    }

    let steps = match g.shape(x) {
        [_, steps, _] | [_, _, steps, _] => steps.clone(),
        _ => return Err(Error::invalid("the input must have 3 or 4 axes")),
    };

    let batch = g.shape(x)[0].clone();
    let places = match g.rank(places) {
        2 => places,
        _ => {
            let first = g.reshape(places, vec![Dim::one(), Dim::one()])?;
            let place = g.index(DType::I64, vec![batch, steps], axis(1).into())?;
            let first = g.cast(DType::I64, first)?;
            g.add(place, first)?
        }
    };

    let cos = g.gather(n.input(2)?, places, 0)?;
    let sin = g.gather(n.input(3)?, places, 0)?;
    rotated(g, n, x, [cos, sin])
}
