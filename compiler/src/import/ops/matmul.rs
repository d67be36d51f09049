//! Matrix multiplications, and contractions in Einstein notation.

use crate::{
    error::{Error, Result},
    graph::{Graph, Label, Value, axis},
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
    "com.microsoft" MatMulInteger16 1 matmul_integer,
    "com.microsoft" FusedMatMul 1 fused_matmul,
    "com.microsoft" TransposeMatMul 1 fused_matmul,
}

/// The contraction that `equation` describes, a sum over all labels that the output lacks. A repeated label of one
/// input takes its diagonal. `...` is any number of axes, which are broadcast as in `MatMul`; an output without
/// `...` sums over them. Without `->`, the output has the axes of `...` and then the labels that occur once, capital
/// letters first.
///
/// Limits: at most 52 labels, with each axis of `...` counted as one.
///
/// `Einsum([[1, 2], [3, 4]], [[5], [6]]; equation="ij,jk->ik") = [[17], [39]]`
/// `Einsum([[1, 2], [3, 4]]; equation="ii") = 5`
/// `Einsum([[[1, 2]], [[3, 4]]], [[5], [6]]; equation="...k,kj->...j") = [[[17]], [[39]]]`
fn einsum(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let equation: String = n.string_or("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };

    let inputs = n.all()?;
    let terms = left.split(',').map(TermText::parse).collect::<Result<Vec<_>>>()?;
    if terms.len() != inputs.len() {
        return Err(Error::invalid(format!(
            "`{equation}` has {} terms for {} inputs",
            terms.len(),
            inputs.len()
        )));
    }

    let mut max_dots = 0;
    for (term, input) in terms.iter().zip(&inputs) {
        max_dots = max_dots.max(term.dots(g.rank(*input))?);
    }

    let dots = dot_labels(&equation, max_dots)?;
    let mut operands = Vec::new();
    for (term, input) in terms.iter().zip(&inputs) {
        let count = term.dots(g.rank(*input))?;
        operands.push(EinsumTerm { labels: term.labels(&dots[max_dots - count..]), value: *input });
    }

    let out = match right {
        Some(right) => TermText::parse(right)?.labels(&dots),
        None => implicit(&operands, &dots),
    };

    let known = |label: &Label| operands.iter().any(|term| term.labels.contains(label));
    if !out.iter().all(known) {
        return Err(Error::invalid(format!("the result of `{equation}` has a label that is in no input")));
    }

    contract_all(g, operands, &out)
}

/// The text of a term of an equation, split at `...`.
struct TermText<'a> {
    text: &'a str,
    head: &'a str,
    tail: &'a str,
    has_dots: bool,
}

impl<'a> TermText<'a> {
    fn parse(text: &'a str) -> Result<TermText<'a>> {
        let split = text.split_once("...");
        let (head, tail) = split.unwrap_or((text, ""));
        if let Some(wrong) = head.chars().chain(tail.chars()).find(|c| !c.is_ascii_alphabetic()) {
            let message = "labels are letters, and `...` occurs once in a term";
            return Err(Error::invalid(format!("`{wrong}` in the term `{text}`: {message}")));
        }

        Ok(TermText { text, head, tail, has_dots: split.is_some() })
    }

    /// The number of axes of `...` in an input with `rank` axes.
    fn dots(&self, rank: usize) -> Result<usize> {
        let named = self.head.len() + self.tail.len();
        let dots = rank.checked_sub(named).filter(|dots| *dots == 0 || self.has_dots);
        let message = || format!("the term `{}` does not fit an input with {rank} axes", self.text);
        dots.ok_or_else(|| Error::invalid(message()))
    }

    /// The labels of all axes. Those of `...` are `dots`.
    fn labels(&self, dots: &[Label]) -> Vec<Label> {
        let dots = if self.has_dots { dots } else { &[] };
        self.head.bytes().chain(dots.iter().copied()).chain(self.tail.bytes()).collect()
    }
}

/// An operand and the labels of its axes.
struct EinsumTerm {
    labels: Vec<Label>,
    value: Value,
}

/// Labels for `count` axes of `...`: letters that the equation does not use. An input with fewer such axes has the last
/// of them.
fn dot_labels(equation: &str, count: usize) -> Result<Vec<Label>> {
    let unused = (b'A'..=b'Z').chain(b'a'..=b'z').filter(|letter| !equation.contains(*letter as char));
    let labels: Vec<Label> = unused.take(count).collect();
    if labels.len() < count {
        let free = labels.len();
        return Err(Error::unsupported(format!(
            "`{equation}` with {count} axes for `...`: labels are letters, and it leaves {free} of the 52 letters \
             unused; name fewer axes"
        )));
    }

    Ok(labels)
}

/// The labels of the output of an equation without `->`: the axes of `...`, then the labels that occur once, in
/// alphabetical order.
fn implicit(terms: &[EinsumTerm], dots: &[Label]) -> Vec<Label> {
    let all: Vec<Label> = terms.iter().flat_map(|term| term.labels.iter().copied()).collect();
    let once = |label: &Label| all.iter().filter(|other| *other == label).count() == 1;
    let mut named: Vec<Label> = all.iter().copied().filter(|l| !dots.contains(l) && once(l)).collect();
    named.sort_unstable();
    dots.iter().copied().chain(named).collect()
}

fn contract_all(g: &mut Graph, terms: Vec<EinsumTerm>, out: &[Label]) -> Result<Value> {
    let mut terms = terms.into_iter().map(|term| diagonal(g, term)).collect::<Result<Vec<_>>>()?;
    let mut first = terms.remove(0);
    while !terms.is_empty() {
        let mut second = terms.remove(0);
        let later =
            |label: Label| out.contains(&label) || terms.iter().any(|term| term.labels.contains(&label));

        // An axis of size 1 leaves its label to the other operand, which may then be the only one to sum over it.
        drop_stretched_axes(g, &mut first, &mut second)?;
        let a = first.labels.clone();
        let b = second.labels.clone();
        first = summed(g, first, &|label| later(label) || b.contains(&label))?;
        second = summed(g, second, &|label| later(label) || a.contains(&label))?;

        let both =
            first.labels.iter().chain(second.labels.iter().filter(|label| !first.labels.contains(label)));
        let kept: Vec<Label> = both.copied().filter(|label| later(*label)).collect();
        let value = g.contract(first.value, &first.labels, second.value, &second.labels, &kept)?;
        first = EinsumTerm { labels: kept, value };
    }

    let first = summed(g, first, &|label| out.contains(&label))?;
    let place = |label: &Label| first.labels.iter().position(|other| other == label);
    let perm: Option<Vec<usize>> = out.iter().map(place).collect();
    let perm = perm.filter(|perm| perm.len() == first.labels.len());

    g.transpose(
        first.value,
        &perm.ok_or_else(|| Error::invalid("the result must name each label at most once"))?,
    )
}

/// The term with each label once. A repeated label takes the diagonal.
fn diagonal(g: &mut Graph, term: EinsumTerm) -> Result<EinsumTerm> {
    let mut labels: Vec<Label> = Vec::new();
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
        |label: &Label| labels.iter().position(|other| other == label).expect("every label was collected");

    let mut shape: Vec<Dim> = Vec::new();
    for (k, (dim, label)) in from.iter().zip(&term.labels).enumerate() {
        let first = place(label);
        if first == shape.len() {
            shape.push(dim.clone());
        } else if shape[first] != *dim {
            let context = format!("axis {k}, which repeats the label `{}`", *label as char);
            g.require(Relation::eq(&shape[first], dim), &context)?;
        }
    }

    let index = term.labels.iter().map(|label| axis(place(label)).into()).collect();
    let value = g.view(term.value, shape, index)?;
    Ok(EinsumTerm { labels, value })
}

/// The term, summed over the labels that are not `kept`.
fn summed(g: &mut Graph, term: EinsumTerm, kept: &dyn Fn(Label) -> bool) -> Result<EinsumTerm> {
    let axes: Vec<usize> = (0..term.labels.len()).filter(|k| !kept(term.labels[*k])).collect();
    let value = g.reduce(ReduceOp::Sum, term.value, &axes, false)?;
    Ok(EinsumTerm { labels: term.labels.iter().copied().filter(|label| kept(*label)).collect(), value })
}

/// Removes axes of size 1 where the other term has another size. A contraction broadcasts labels that one side lacks.
fn drop_stretched_axes(g: &mut Graph, a: &mut EinsumTerm, b: &mut EinsumTerm) -> Result<()> {
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

/// `alpha * MatMul(A, B)`. `transA` and `transB` transpose the last two axes of `A` and `B`. `transBatchA` and
/// `transBatchB` move their first axis before the last one, first.
///
/// `FusedMatMul([[1, 2]], [[3, 4]]; transB=1, alpha=2.0) = [[22]]`
/// `FusedMatMul([[[1, 2]], [[3, 4]]], [[[1], [10]]]; transBatchA=1) = [[[21], [43]]]`
fn fused_matmul(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let operand = |g: &mut Graph, k: usize, name: &str, batch: &str| -> Result<Value> {
        let x = n.input(k)?;
        let turned = n.flag(name, false)?;
        let batch_turned = n.flag(batch, false)?;
        let rank = g.rank(x);
        if rank < 2 {
            return Ok(x);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        if batch_turned {
            perm[..rank - 1].rotate_left(1);
        }
        if turned {
            perm.swap(rank - 2, rank - 1);
        }
        g.transpose(x, &perm)
    };

    let a = operand(g, 0, "transA", "transBatchA")?;
    let b = operand(g, 1, "transB", "transBatchB")?;
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

/// The matrix product of 8-bit or 16-bit integers after subtraction of their zero points, exact in 32 bits.
/// `a_zero_point` (input 2) is a scalar or has one element per row of `A`. `b_zero_point` (input 3) is a scalar or has
/// one element per column of `B`.
///
/// `MatMulInteger(u8[[11, 7]], u8[[1], [2]], u8:10) = i32[[-5]]`
/// `MatMulInteger16(i16[[300, 7]], i16[[300], [2]]) = i32[[90014]]`
fn matmul_integer(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let a = n.input(0)?;
    let b = n.input(1)?;
    let a_rows = g.rank(a).saturating_sub(2);
    let b_columns = g.rank(b).saturating_sub(1);
    let a = centred(g, a, n.optional(2), a_rows)?;
    let b = centred(g, b, n.optional(3), b_columns)?;
    g.matmul(a, b)
}
