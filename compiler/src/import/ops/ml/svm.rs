//! Support vector machines (`ai.onnx.ml`): weighted similarities of rows to vectors.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::OnnxNode,
        ops::{
            ml::scores::{transformed, vector},
            shared::arithmetic::linear,
        },
    },
    scalar::{BinaryOp, CompareOp, ReduceOp},
    tensor::Tensor,
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    "ai.onnx.ml" SVMClassifier 1 svm_classifier,
    "ai.onnx.ml" SVMRegressor 1 svm_regressor,
}

/// The weighted sum of the similarities of each row to the `n_supports` support vectors, plus `rho`. The weights are
/// `coefficients`. Without support vectors it is the dot product with `coefficients`. `kernel_type` is `LINEAR`,
/// `POLY`, `RBF` or `SIGMOID`, with `kernel_params` gamma, offset and exponent. With `one_class`, the result is the
/// sign, 1 or -1.
///
/// Limits: no `PROBIT`.
///
/// `SVMRegressor([[1, 2]]; n_supports=2, support_vectors=[1.0, 0.0, 0.0, 1.0], coefficients=[3.0, 5.0], rho=[0.5]) = [[13.5]]`
/// `SVMRegressor([[1, 2]]; n_supports=1, support_vectors=[1.0, 2.0], coefficients=[3.0], rho=[0.0], kernel_type="RBF", kernel_params=[0.5, 0.0, 0.0]) = [[3]]`
fn svm_regressor(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    if g.rank(x) != 2 {
        return Err(Error::invalid("the input must have 2 axes"));
    }

    let x = g.cast(DType::F32, x)?;
    let coefficients = n.floats("coefficients")?.unwrap_or_default();
    let vectors = n.floats("support_vectors")?.unwrap_or_default();
    let count = n.int_or("n_supports", 0)?;

    let count = usize::try_from(count)
        .map_err(|_| Error::invalid(format!("n_supports must not be negative, but it is {count}")))?;
    let y = match count {
        0 => {
            // Without support vectors the kernel has no effect.
            n.floats("kernel_params")?;
            n.string_or("kernel_type", "LINEAR")?;
            let weights = vector(g, &coefficients)?;
            let weights = g.reshape(weights, vec![coefficients.len().into(), Dim::one()])?;
            g.matmul(x, weights)?
        }
        _ => {
            if coefficients.len() != count {
                return Err(Error::invalid(format!(
                    "{} coefficients are given for {count} vectors",
                    coefficients.len()
                )));
            }
            let similarities = similarity(g, n, x, &vectors, count)?;
            let weights = vector(g, &coefficients)?;
            let weights = g.reshape(weights, vec![count.into(), Dim::one()])?;
            g.matmul(similarities, weights)?
        }
    };

    let rho = n.floats("rho")?.and_then(|rho| rho.first().copied()).unwrap_or(0.0);
    let rho = g.number(DType::F32, f64::from(rho))?;
    let y = g.add(y, rho)?;
    if !n.flag("one_class", false)? {
        return transformed(g, y, n.string_or("post_transform", "NONE")?);
    }

    n.string_or("post_transform", "NONE")?;
    let [zero, one, minus] = [0.0, 1.0, -1.0].map(|number| g.number(DType::F32, number));
    let inside = g.compare(CompareOp::Gt, y, zero?)?;
    g.select(inside, one?, minus?)
}

/// The class that wins the most pairwise comparisons, and the scores of all comparisons. Of equal classes the first
/// wins. A score is `rho` plus the weighted similarities to the support vectors of both classes, as in `SVMRegressor`.
/// The first class wins above 0. With two classes, the opposite score is also returned.
///
/// Limits: integer classes, with support vectors; no probabilities (`prob_a`); no `PROBIT`; with two classes only
/// `NONE` and `LOGISTIC`.
///
/// `SVMClassifier([[1, 2]]; classlabels_ints=[7, 8], vectors_per_class=[1, 1], support_vectors=[1.0, 0.0, 0.0, 1.0], coefficients=[1.0, -1.0], rho=[0.5]) = i64[8], [[0.5, -0.5]]`
/// `SVMClassifier([[1, 2]]; classlabels_ints=[7, 8, 9], vectors_per_class=[1, 1, 1], support_vectors=[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], coefficients=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], rho=[-5.0, -10.0, -20.0]) = i64[8], [[0, 3, 8]]`
fn svm_classifier(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    if g.rank(x) != 2 {
        return Err(Error::invalid("the input must have 2 axes"));
    }

    if n.has("classlabels_strings") {
        return Err(Error::unsupported("SVMClassifier with string classes"));
    }
    if [n.floats("prob_a")?, n.floats("prob_b")?].into_iter().flatten().any(|elements| !elements.is_empty()) {
        return Err(Error::unsupported("SVMClassifier with probabilities (prob_a)"));
    }

    let labels = n.ints("classlabels_ints")?.unwrap_or_default();
    let Some(votes) = PairwiseVotes::read(n, labels.len())? else {
        return Err(Error::unsupported("SVMClassifier without support vectors"));
    };
    let name = n.string_or("post_transform", "NONE")?;

    let x = g.cast(DType::F32, x)?;
    let vectors = n.floats("support_vectors")?.unwrap_or_default();
    let similarities = similarity(g, n, x, &vectors, votes.vectors)?;
    let weights = matrix(g, &votes.weights, votes.vectors)?;
    let scores = g.matmul(similarities, weights)?;

    let rho = vector(g, &votes.rho)?;
    let scores = g.add(scores, rho)?;
    let labels = Tensor::from_i64(vec![labels.len()], &labels);
    let labels =
        g.constant(labels.ok_or_else(|| Error::internal("the elements of a vector must match its shape"))?)?;
    let choice = votes.won(g, scores)?;

    let scores = match votes.rho.len() {
        1 if !matches!(name, "NONE" | "LOGISTIC") => {
            return Err(Error::unsupported(format!(
                "SVMClassifier of two classes with post_transform `{name}`"
            )));
        }
        1 => {
            let other = g.neg(scores)?;
            g.concat(&[other, scores], 1)?
        }
        _ => scores,
    };

    Ok(vec![g.gather(labels, choice, 0)?, transformed(g, scores, name)?])
}

/// The comparisons of each class with each later one.
struct PairwiseVotes {
    classes: usize,
    /// Number of support vectors of all classes.
    vectors: usize,
    /// The weight of each vector in each comparison, a row for each vector.
    weights: Vec<f32>,
    /// The offset of each comparison.
    rho: Vec<f32>,
}

/// Maximum size of the table of weights. It grows with the square of the number of classes.
const MAX_WEIGHTS: usize = 1 << 24;

impl PairwiseVotes {
    /// Reads the attributes. `None` without support vectors.
    fn read(n: &OnnxNode, classes: usize) -> Result<Option<PairwiseVotes>> {
        let counts = n.ints("vectors_per_class")?.unwrap_or_default();
        let coefficients = n.floats("coefficients")?.unwrap_or_default();
        let rho = n.floats("rho")?.unwrap_or_default();

        let counts = counts.iter().map(|count| usize::try_from(*count).ok()).collect::<Option<Vec<_>>>();
        let counts = counts.ok_or_else(|| Error::invalid("vectors_per_class holds a negative count"))?;
        let vectors = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
        let vectors = vectors.ok_or_else(|| Error::invalid("the sum of vectors_per_class is too large"))?;
        if vectors == 0 {
            return Ok(None);
        }

        let pairs = classes * classes.saturating_sub(1) / 2;
        let fits = classes > 1
            && counts.len() == classes
            && rho.len() == pairs
            && (classes - 1).checked_mul(vectors) == Some(coefficients.len());

        if !fits {
            return Err(Error::invalid(format!(
                "{classes} classes, vectors for {}, {} coefficients for {vectors} vectors and {} elements of rho don't fit",
                counts.len(),
                coefficients.len(),
                rho.len()
            )));
        }
        if pairs.checked_mul(vectors).is_none_or(|count| count > MAX_WEIGHTS) {
            return Err(Error::unsupported(format!(
                "SVMClassifier of {classes} classes with {vectors} vectors"
            )));
        }

        let owners: Vec<usize> =
            counts.iter().enumerate().flat_map(|(class, count)| std::iter::repeat_n(class, *count)).collect();

        let weight = |vector: usize, (i, j): (usize, usize)| match owners[vector] {
            owner if owner == i => coefficients[(j - 1) * vectors + vector],
            owner if owner == j => coefficients[i * vectors + vector],
            _ => 0.0,
        };

        let weights = (0..vectors).flat_map(|vector| class_pairs(classes).map(move |pair| (vector, pair)));
        let weights = weights.map(|(vector, pair)| weight(vector, pair)).collect();
        Ok(Some(PairwiseVotes { classes, vectors, weights, rho }))
    }

    /// The index of the winning class, by row of `scores`.
    fn won(&self, g: &mut Graph, scores: Value) -> Result<Value> {
        let zero = g.number(DType::F32, 0.0)?;
        let won = g.compare(CompareOp::Gt, scores, zero)?;
        let won = g.cast(DType::F32, won)?;

        // Each comparison is a vote for the later class, or if it is won for the earlier one.
        let mut sure = vec![0.0; self.classes];
        let mut moves = vec![0.0; self.rho.len() * self.classes];
        for (k, (i, j)) in class_pairs(self.classes).enumerate() {
            sure[j] += 1.0;
            moves[k * self.classes + i] = 1.0;
            moves[k * self.classes + j] = -1.0;
        }

        let sure = vector(g, &sure)?;
        let moves = matrix(g, &moves, self.rho.len())?;
        let votes = g.matmul(won, moves)?;
        let votes = g.add(votes, sure)?;
        g.argreduce(ReduceOp::Max, votes, 1, false, false)
    }
}

/// Each class with each later one, in the order of their scores.
fn class_pairs(classes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..classes).flat_map(move |i| (i + 1..classes).map(move |j| (i, j)))
}

/// A constant matrix with `rows` rows.
fn matrix(g: &mut Graph, elements: &[f32], rows: usize) -> Result<Value> {
    let flat = vector(g, elements)?;
    g.reshape(flat, vec![rows.into(), (elements.len() / rows.max(1)).into()])
}

/// The similarity of each row of `x` to each of `count` vectors, which are stored one after the other.
fn similarity(g: &mut Graph, n: &OnnxNode, x: Value, vectors: &[f32], count: usize) -> Result<Value> {
    if vectors.is_empty() || !vectors.len().is_multiple_of(count) {
        return Err(Error::invalid(format!("{} elements are given for {count} vectors", vectors.len())));
    }

    let params = n.floats("kernel_params")?.unwrap_or_default();
    let param = |k: usize| f64::from(params.get(k).copied().unwrap_or(0.0));

    let table = vector(g, vectors)?;
    let table = g.reshape(table, vec![count.into(), (vectors.len() / count).into()])?;

    let kind = n.string_or("kernel_type", "LINEAR")?;
    if kind == "RBF" {
        let unsqueezed = g.unsqueeze(x, &[1])?;
        let way = g.sub(unsqueezed, table)?;
        let squares = g.mul(way, way)?;
        let squares = g.reduce(ReduceOp::Sum, squares, &[2], false)?;
        let scale = g.number(DType::F32, -param(0))?;
        let scaled = g.mul(squares, scale)?;
        return g.exp(scaled);
    }

    let columns = g.transpose(table, &[1, 0])?;
    let product = g.matmul(x, columns)?;
    if kind == "LINEAR" {
        return Ok(product);
    }

    let inner = linear(g, product, param(0), param(1))?;
    match kind {
        "POLY" => {
            let exponent = g.number(DType::F32, param(2))?;
            g.binary(BinaryOp::Pow, inner, exponent)
        }
        "SIGMOID" => g.tanh(inner),
        other => Err(Error::invalid(format!("unknown kernel_type `{other}`"))),
    }
}
