//! Matrix multiplications, and contractions in Einstein notation.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::node::OnnxNode,
    scalar::ReduceOp,
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    Einsum 12 einsum,
    Gemm 1 gemm,
    MatMul 1 matmul,
    MatMulInteger 10 matmul_integer,
    "com.microsoft" FusedMatMul 1 fused_matmul,
    "com.microsoft" TransposeMatMul 1 fused_matmul,
}

/// The contraction that `equation` describes, a sum over all labels that the output lacks. A repeated label of one
/// input takes its diagonal. `...` stands for any number of axes, which are broadcast.
///
/// `Einsum([[1, 2], [3, 4]], [[5], [6]]; equation="ij,jk->ik") = [[17], [39]]`
/// `Einsum([[1, 2], [3, 4]]; equation="ii") = 5`
fn einsum(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let equation: String = n.string_or("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };

    let inputs = n.all()?;
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != inputs.len() {
        return Err(Error::invalid(format!(
            "`{equation}` has {} terms for {} inputs",
            terms.len(),
            inputs.len()
        )));
    }

    let mut operands = Vec::new();
    for (term, input) in terms.iter().zip(&inputs) {
        operands.push(EinsumTerm { labels: labels(term, g.rank(*input))?, value: *input });
    }

    let max_dots =
        operands.iter().map(|term| term.labels.iter().filter(|l| l.is_ascii_digit()).count()).max();
    let out = match right {
        Some(right) => {
            let named = right.replace("...", "").len();
            labels(right, named + if right.contains("...") { max_dots.unwrap_or(0) } else { 0 })?
        }
        None => implicit(&operands, max_dots.unwrap_or(0)),
    };

    let known = |label: &u8| operands.iter().any(|term| term.labels.contains(label));
    if !out.iter().all(known) {
        return Err(Error::invalid(format!("the result of `{equation}` has a label that is in no input")));
    }

    contract_all(g, operands, &out)
}

/// An operand and the labels of its axes. The axes of `...` have digits as labels, counted from the right.
struct EinsumTerm {
    labels: Vec<u8>,
    value: Value,
}

fn labels(term: &str, rank: usize) -> Result<Vec<u8>> {
    let bad = || Error::invalid(format!("the term `{term}` does not fit an input with {rank} axes"));
    let (head, tail) = term.split_once("...").unwrap_or((term, ""));
    if !head.chars().chain(tail.chars()).all(|c| c.is_ascii_alphabetic()) {
        return Err(bad());
    }
    let rest = rank.checked_sub(head.len() + tail.len()).ok_or_else(bad)?;
    if rest > 9 || (rest > 0 && !term.contains("...")) {
        return Err(bad());
    }
    let dots = (0..rest).rev().map(|k| b'0' + k as u8);
    Ok(head.bytes().chain(dots).chain(tail.bytes()).collect())
}

/// The labels of the output of an equation without `->`: the axes of `...`, then the labels that occur once, in
/// alphabetical order.
fn implicit(terms: &[EinsumTerm], dots: usize) -> Vec<u8> {
    let all: Vec<u8> = terms.iter().flat_map(|term| term.labels.iter().copied()).collect();
    let once = |label: &u8| all.iter().filter(|other| *other == label).count() == 1;
    let mut named: Vec<u8> = all.iter().copied().filter(|l| l.is_ascii_alphabetic() && once(l)).collect();
    named.sort_unstable();
    (0..dots).rev().map(|k| b'0' + k as u8).chain(named).collect()
}

fn contract_all(g: &mut Graph, terms: Vec<EinsumTerm>, out: &[u8]) -> Result<Value> {
    let mut terms = terms.into_iter().map(|term| diagonal(g, term)).collect::<Result<Vec<_>>>()?;
    let mut first = terms.remove(0);
    while !terms.is_empty() {
        let mut second = terms.remove(0);
        let later = |label: u8| out.contains(&label) || terms.iter().any(|term| term.labels.contains(&label));
        let a = first.labels.clone();
        let b = second.labels.clone();
        first = summed(g, first, &|label| later(label) || b.contains(&label))?;
        second = summed(g, second, &|label| later(label) || a.contains(&label))?;

        broadcast_dots(g, &mut first, &mut second)?;
        let both =
            first.labels.iter().chain(second.labels.iter().filter(|label| !first.labels.contains(label)));
        let kept: Vec<u8> = both.copied().filter(|label| later(*label)).collect();
        let value = g.contract(first.value, &first.labels, second.value, &second.labels, &kept)?;
        first = EinsumTerm { labels: kept, value };
    }

    let first = summed(g, first, &|label| out.contains(&label))?;
    let place = |label: &u8| first.labels.iter().position(|other| other == label);
    let perm: Option<Vec<usize>> = out.iter().map(place).collect();
    let perm = perm.filter(|perm| perm.len() == first.labels.len());

    g.transpose(
        first.value,
        &perm.ok_or_else(|| Error::invalid("the result must name each label at most once"))?,
    )
}

/// The term with each label once. A repeated label takes the diagonal.
fn diagonal(g: &mut Graph, term: EinsumTerm) -> Result<EinsumTerm> {
    let mut labels: Vec<u8> = Vec::new();
    for label in &term.labels {
        if !labels.contains(label) {
            labels.push(*label);
        }
    }

    if labels.len() == term.labels.len() {
        return Ok(term);
    }

    let from = g.shape(term.value).to_vec();
    let place =
        |label: &u8| labels.iter().position(|other| other == label).expect("every label was collected");

    let mut shape = vec![Dim::one(); labels.len()];
    for (dim, label) in from.iter().zip(&term.labels).rev() {
        let slot = &mut shape[place(label)];
        if *slot != Dim::one() {
            g.require(Relation::eq(&*slot, dim), "axes with a repeated label")?;
        }
        *slot = dim.clone();
    }

    let index = term.labels.iter().map(|label| axis(place(label)).into()).collect();
    let value = g.view(term.value, shape, index)?;
    Ok(EinsumTerm { labels, value })
}

/// The term, summed over the labels that are not `kept`.
fn summed(g: &mut Graph, term: EinsumTerm, kept: &dyn Fn(u8) -> bool) -> Result<EinsumTerm> {
    let axes: Vec<usize> = (0..term.labels.len()).filter(|k| !kept(term.labels[*k])).collect();
    let value = g.reduce(ReduceOp::Sum, term.value, &axes, false)?;
    Ok(EinsumTerm { labels: term.labels.iter().copied().filter(|label| kept(*label)).collect(), value })
}

/// Removes axes of size 1 under `...` where the other term has a larger size. A contraction broadcasts labels that one
/// side lacks.
fn broadcast_dots(g: &mut Graph, a: &mut EinsumTerm, b: &mut EinsumTerm) -> Result<()> {
    for swap in [false, true] {
        let (x, y) = if swap { (&mut *b, &*a) } else { (&mut *a, &*b) };
        let gone = |k: &usize| {
            let label = x.labels[*k];
            let other = y.labels.iter().position(|other| *other == label);
            let one = |value: Value, k: usize| g.is_one(&g.shape(value)[k]);
            other.is_some_and(|other| one(x.value, *k) && !one(y.value, other))
        };
        let gone: Vec<usize> = (0..x.labels.len()).filter(gone).collect();
        x.value = g.squeeze(x.value, &gone)?;
        x.labels = (0..x.labels.len()).filter(|k| !gone.contains(k)).map(|k| x.labels[k]).collect();
    }
    Ok(())
}

/// `alpha * A * B + beta * C` of matrices. `transA` and `transB` transpose `A` and `B`. `C` is optional and broadcast.
///
/// `Gemm([[1, 2]], [[3, 4]], [10]; transB=1, alpha=2.0) = [[32]]`
pub(crate) fn gemm(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let a = n.input(0)?;
    let b = n.input(1)?;
    let labels = |transposed: bool, plain: &'static [u8; 2], turned: &'static [u8; 2]| {
        if transposed { turned } else { plain }
    };
    let lhs = labels(n.flag("transA", false)?, b"mk", b"km");
    let rhs = labels(n.flag("transB", false)?, b"kn", b"nk");

    let alpha = n.float_or("alpha", 1.0)?;
    let beta = n.float_or("beta", 1.0)?;

    // Before opset 7 a flag allows C to be broadcast. Here C may always be broadcast.
    n.int("broadcast")?;
    if g.rank(a) != 2 || g.rank(b) != 2 {
        return Err(Error::invalid(format!(
            "the operands of Gemm must have 2 axes, but they have {} and {}",
            g.rank(a),
            g.rank(b)
        )));
    }

    let mut y = g.contract(a, lhs, b, rhs, b"mn")?;
    if alpha != 1.0 {
        let alpha = g.number(g.dtype(y), alpha)?;
        y = g.mul(y, alpha)?;
    }

    let Some(mut c) = n.optional(2).filter(|_| beta != 0.0) else { return Ok(y) };
    if beta != 1.0 {
        let beta = g.number(g.dtype(c), beta)?;
        c = g.mul(c, beta)?;
    }

    g.add(y, c)
}

/// The matrix product over the last two axes of the inputs. The other axes are broadcast. A vector is a row as `A` and
/// a column as `B`.
///
/// `MatMul([[1, 2]], [[3], [4]]) = [[11]]`
/// `MatMul([1, 2], [3, 4]) = 11`
fn matmul(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    g.matmul(n.input(0)?, n.input(1)?)
}

/// `alpha * MatMul(A, B)`. `transA` and `transB` transpose the last two axes of `A` and `B`.
///
/// Limits: no `transBatchA` and `transBatchB`.
///
/// `FusedMatMul([[1, 2]], [[3, 4]]; transB=1, alpha=2.0) = [[22]]`
fn fused_matmul(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    if n.flag("transBatchA", false)? || n.flag("transBatchB", false)? {
        return Err(Error::unsupported("FusedMatMul with transposed batch axes"));
    }

    let operand = |g: &mut Graph, k: usize, name: &str| -> Result<Value> {
        let x = n.input(k)?;
        let turned = n.flag(name, false)?;
        let rank = g.rank(x);
        if !turned || rank < 2 {
            return Ok(x);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        g.transpose(x, &perm)
    };

    let a = operand(g, 0, "transA")?;
    let b = operand(g, 1, "transB")?;
    let y = g.matmul(a, b)?;
    let alpha = g.number(g.dtype(y), n.float_or("alpha", 1.0)?)?;
    g.mul(y, alpha)
}

/// `x - zero` as `i32`. A zero point with one axis belongs to axis `k` of `x`.
pub(crate) fn centred(g: &mut Graph, x: Value, zero: Option<Value>, k: usize) -> Result<Value> {
    let rank = g.rank(x);
    let x = g.cast(DType::I32, x)?;
    let Some(zero) = zero else { return Ok(x) };
    let mut zero = g.cast(DType::I32, zero)?;
    if g.rank(zero) == 1 && !g.is_one(&g.shape(zero)[0]) {
        zero = g.unsqueeze(zero, &(1..rank - k).collect::<Vec<_>>())?;
    } else if g.rank(zero) == 1 {
        zero = g.squeeze(zero, &[0])?;
    }
    g.sub(x, zero)
}

/// The matrix product of 8-bit integers after subtraction of their zero points, exact in 32 bits. `a_zero_point` (input
/// 2) is a scalar or has one element per row of `A`. `b_zero_point` (input 3) is a scalar or has one element per column
/// of `B`.
///
/// `MatMulInteger(u8[[11, 7]], u8[[1], [2]], u8:10) = i32[[-5]]`
fn matmul_integer(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let a = n.input(0)?;
    let b = n.input(1)?;
    let a_rows = g.rank(a).saturating_sub(2);
    let b_columns = g.rank(b).saturating_sub(1);
    let a = centred(g, a, n.optional(2), a_rows)?;
    let b = centred(g, b, n.optional(3), b_columns)?;
    g.matmul(a, b)
}
