//! Optional values, which are present or absent at compile time, and text as integers.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::node::OnnxNode,
    scalar::{CompareOp, ReduceOp, Scalar},
    tensor::Tensor,
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    OptionalGetElement 15 optional_get_element,
    OptionalHasElement 15 optional_has_element,
    TfIdfVectorizer 9 tf_idf_vectorizer,
}

/// The input, which must be present.
///
/// Limits: no optional inputs of the model.
///
/// `OptionalGetElement([[1, 2]]) = [[1, 2]]`
fn optional_get_element(_: &mut Graph, n: &OnnxNode) -> Result<Value> {
    n.input(0)
}

/// Whether the input is present.
///
/// `OptionalHasElement([[1, 2]]) = bool:1`
fn optional_has_element(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    g.scalar(Scalar::bool(n.optional(0).is_some()))
}

/// The number of occurrences of each sequence of `pool_int64s` in the input, a vector or one per row. Sequences have
/// `min_gram_length` to `max_gram_length` elements. Up to `max_skip_count` elements may be skipped between two of them.
/// `mode` `TF` gives the count, `IDF` the weight where the count is not 0, `TFIDF` count times weight.
///
/// Limits: integers only (`pool_int64s`).
///
/// `TfIdfVectorizer(i64[[1, 2, 1]]; mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1], pool_int64s=[1, 3]) = [[2, 0]]`
fn tf_idf_vectorizer(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let input = n.input(0)?;
    if n.has("pool_strings") {
        return Err(Error::unsupported("TfIdfVectorizer of strings"));
    }

    let need =
        |name: &str| n.int(name)?.ok_or_else(|| Error::invalid(format!("TfIdfVectorizer needs `{name}`")));
    let list =
        |name: &str| n.ints(name)?.ok_or_else(|| Error::invalid(format!("TfIdfVectorizer needs `{name}`")));

    let min = need("min_gram_length")?;
    let max = need("max_gram_length")?;
    let skips = need("max_skip_count")?;

    let counts = list("ngram_counts")?;
    let indexes = list("ngram_indexes")?;
    let pool = list("pool_int64s")?;
    if !(1..=64).contains(&min) || !(min..=64).contains(&max) || !(0..=64).contains(&skips) {
        return Err(Error::invalid(format!(
            "n-grams of {min} to {max} elements with at most {skips} skipped are not valid"
        )));
    }

    let x = if g.rank(input) == 1 { g.unsqueeze(input, &[0])? } else { input };
    if g.rank(x) != 2 {
        return Err(Error::invalid("the input must have 1 or 2 axes"));
    }

    let columns = indexes.iter().max().map_or(0, |last| last.saturating_add(1));
    let sizes = usize::try_from(columns).ok().filter(|size| *size > 0 && *size <= 1 << 24);
    let size = sizes.ok_or_else(|| Error::invalid("ngram_indexes must be given and must not be negative"))?;
    let x = g.cast(DType::I64, x)?;
    let mut totals = Vec::new();
    let mut columns = Vec::new();

    for group in ngrams(&pool, &counts, &indexes)? {
        let count = group.columns.len();
        if count == 0 || !(min..=max).contains(&(group.len as i64)) {
            continue;
        }

        let grams = Tensor::from_i64(vec![count, group.len], group.elements)
            .ok_or_else(|| Error::internal("the elements of a matrix must match its shape"))?;
        let grams = g.constant(grams)?;

        // A sequence of one element has no gaps.
        let skips = if group.len == 1 { 0 } else { skips };
        totals.push(occurrences(g, x, grams, group.len as i64, skips)?);
        columns.extend(group.columns.iter().map(|column| *column as usize));
    }

    let weights: Vec<f64> = n.floats("weights")?.unwrap_or_default().into_iter().map(f64::from).collect();
    let rows = g.shape(x)[0].clone();
    let zero = g.number(DType::F32, 0.0)?;
    let none = g.broadcast_to(zero, &[rows, Dim::one()])?;
    totals.insert(0, none);
    let all = g.concat(&totals, 1)?;

    // The position in `all` of each output column. Columns without a sequence read the zeros at position 0.
    let mut from = vec![0_i64; size];
    for (k, column) in columns.iter().enumerate() {
        let slot =
            from.get_mut(*column).ok_or_else(|| Error::invalid("a negative index in ngram_indexes"))?;
        *slot = k as i64 + 1;
    }

    let from = g.constant(
        Tensor::from_i64(vec![size], &from)
            .ok_or_else(|| Error::internal("the elements of a vector must match its shape"))?,
    )?;

    let mut y = g.gather(all, from, 1)?;
    let mode = n.string_or("mode", "")?;
    if mode == "IDF" {
        let there = g.compare(CompareOp::Gt, y, zero)?;
        y = g.cast(DType::F32, there)?;
    }

    match mode {
        "TF" => {}
        "IDF" | "TFIDF" if weights.is_empty() => {}
        "IDF" | "TFIDF" => {
            // Weights are in the order of the sequences in the pool.
            let mut by_column = vec![1.0_f32; size];
            for (place, weight) in indexes.iter().zip(&weights) {
                by_column[*place as usize] = *weight as f32;
            }
            let weights = Tensor::from_f32(vec![size], &by_column)
                .ok_or_else(|| Error::internal("the elements of a vector must match its shape"))?;
            let weights = g.constant(weights)?;
            y = g.mul(y, weights)?;
        }
        other => return Err(Error::invalid(format!("unknown mode `{other}`"))),
    }

    if g.rank(input) == 1 { g.squeeze(y, &[0]) } else { Ok(y) }
}

/// The sequences of one length in the pool of `TfIdfVectorizer`.
struct Ngrams<'a> {
    /// Elements of a sequence.
    len: usize,
    /// All sequences, one after the other.
    elements: &'a [i64],
    /// The output column of each sequence.
    columns: &'a [i64],
}

/// The sequences in `pool` by length. `counts` holds the start of each length in `pool`.
fn ngrams<'a>(pool: &'a [i64], counts: &[i64], indexes: &'a [i64]) -> Result<Vec<Ngrams<'a>>> {
    let mut groups = Vec::new();
    let mut first = 0;
    for (k, start) in counts.iter().enumerate() {
        let len = k + 1;
        let end = counts.get(k + 1).copied().unwrap_or(pool.len() as i64);
        let part = usize::try_from(*start).ok().zip(usize::try_from(end).ok());
        let elements = part.and_then(|(start, end)| pool.get(start..end));
        let elements = elements
            .filter(|elements| elements.len() % len == 0)
            .ok_or_else(|| Error::invalid("ngram_counts don't fit the pool"))?;

        let count = elements.len() / len;
        let columns = indexes
            .get(first..first + count)
            .ok_or_else(|| Error::invalid("ngram_indexes has too few elements"))?;
        first += count;
        groups.push(Ngrams { len, elements, columns });
    }

    Ok(groups)
}

/// The number of occurrences of each of `grams`, `[G, len]`, in each row of `x`: `[N, G]`.
fn occurrences(g: &mut Graph, x: Value, grams: Value, len: i64, skips: i64) -> Result<Value> {
    let size = g.shape(x)[1].clone();
    let mut total = None;
    for step in 1..=skips + 1 {
        let reach = (len - 1) * step;
        let padded = g.pad(x, &[Dim::zero(), Dim::zero()], &[Dim::zero(), reach.into()], Scalar::i64(0))?;

        // `[N, C, len]`: the sequence that starts at each element.
        let seen = g.window(padded, &[1], &[len], &[1], &[step])?;
        let seen = g.unsqueeze(seen, &[2])?;
        let same = g.compare(CompareOp::Eq, seen, grams)?;
        let same = g.cast(DType::I32, same)?;
        let all = g.reduce(ReduceOp::Min, same, &[3], false)?;

        let place = g.index(DType::I64, vec![size.clone(), Dim::one()], axis(0).into())?;
        let end = g.dim(DType::I64, &size - reach)?;
        let inside = g.compare(CompareOp::Lt, place, end)?;
        let inside = g.cast(DType::I32, inside)?;
        let counted = g.mul(all, inside)?;

        let counted = g.cast(DType::F32, counted)?;
        let sum = g.reduce(ReduceOp::Sum, counted, &[1], false)?;
        total = Some(match total {
            None => sum,
            Some(other) => g.add(other, sum)?,
        });
    }

    total.ok_or_else(|| Error::internal("there must be at least one step"))
}
