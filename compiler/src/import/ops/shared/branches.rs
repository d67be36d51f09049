//! Branches that are decided at run time. Their outputs must have common types.

use crate::{
    error::{Error, ErrorKind, Result},
    graph::{Graph, Op, Type, Value},
    import::{
        node::{OnnxNode, axes::larger},
        scope::regions::Region,
    },
    scalar::{CompareOp, Reg, Scalar, Step, UnaryOp},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

/// A region, or the reason why it can't run: its shapes contradict the declared inputs.
pub(crate) fn contradiction(region: Result<Region>) -> Result<Result<Region, String>> {
    match region {
        Ok(region) => Ok(Ok(region)),
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Checks that the branches agree about the rank of output `k`.
///
/// If they don't, the branch that contradicts the declared rank never runs. Without a declared rank, returns why there
/// can't be such an output.
pub(crate) fn refuse_rank(
    branches: &mut [Result<Region, String>],
    k: usize,
    declared: Option<usize>,
) -> Option<String> {
    let rank = |branch: &Result<Region, String>| {
        branch.as_ref().ok().and_then(|region| region.outputs.get(k).map(|value| region.graph.rank(*value)))
    };
    let a = rank(&branches[0])?;
    let b = rank(&branches[1])?;
    if a == b {
        return None;
    }

    let Some(declared) = declared.filter(|rank| *rank == a || *rank == b) else {
        let message = "branches with";
        return Some(format!(
            "{message} {a} and {b} axes as output {k}, by a condition known only at run time"
        ));
    };

    let wrong = usize::from(declared == a);
    branches[wrong] = Err(format!("output {k} of the branch is declared with {declared} axes"));
    None
}

/// The outputs of one of two regions, chosen by `condition`.
pub(crate) fn branch(
    g: &mut Graph,
    n: &OnnxNode,
    condition: Value,
    branches: Vec<Result<Region, String>>,
) -> Result<Vec<Value>> {
    let [mut then, mut otherwise] = match <[_; 2]>::try_from(branches) {
        Ok([Err(why), Err(_)]) => return Err(Error::invalid(why)),
        Ok([Ok(then), Err(why)]) => {
            let other = failing(g, &then, why)?;
            [then, other]
        }
        Ok([Err(why), Ok(otherwise)]) => {
            let other = failing(g, &otherwise, why)?;
            [other, otherwise]
        }
        Ok([Ok(then), Ok(otherwise)]) => [then, otherwise],
        Err(_) => return Err(Error::internal("If must have two branches")),
    };

    if then.outputs.len() != otherwise.outputs.len() {
        return Err(Error::invalid("the branches of If must have the same number of outputs"));
    }

    let mut unequal = Vec::new();
    for k in 0..then.outputs.len() {
        unequal.push(level(g, [&mut then, &mut otherwise], k)?);
    }

    for region in [&mut then, &mut otherwise] {
        for (k, value) in region.outputs.clone().into_iter().enumerate() {
            region.graph.output(&format!("out{k}"), value)?;
        }
    }

    let operands = [&[condition], &then.captured[..], &otherwise.captured[..]].concat();
    let op = Op::If { then: Box::new(then.graph), otherwise: Box::new(otherwise.graph) };
    let results = g.push_multi(op, &operands)?;
    let count = unequal.len();

    let mut outputs = results[..count].to_vec();
    let mut sizes = results[count..].iter();
    for (output, axes) in outputs.iter_mut().zip(unequal) {
        for (k, max_size) in axes {
            let size = *sizes.next().ok_or_else(|| Error::internal("each unequal axis must have a size"))?;
            let size = n.data_dependent(g, size, 0, max_size)?;
            *output = g.slice(*output, k, Dim::zero(), size, 1)?;
        }
    }

    Ok(outputs)
}

/// A branch that ends the call with an error. Its outputs have the types of those of `other`.
fn failing(g: &Graph, other: &Region, why: String) -> Result<Region> {
    let mut graph = g.region("contradiction");
    let zero = graph.push(Op::Fail { why }, &[])?;

    let mut outputs = Vec::new();
    for value in &other.outputs {
        let Type { dtype, shape } = other.graph.ty(*value).clone();
        let shape: Option<Vec<Dim>> = shape.iter().map(|dim| other.graph.upper_bound(dim)).collect();
        let shape =
            shape.ok_or_else(|| Error::unsupported("a branch with a size that has no upper bound"))?;
        let one = graph.cast(dtype, zero)?;
        outputs.push(graph.broadcast_to(one, &shape)?);
    }

    Ok(Region { graph, outputs, captured: Vec::new() })
}

/// Pads output `k` of both branches to a common size. Returns the padded axes with their new sizes.
///
/// For each such axis, both branches get one more output: the size before padding.
fn level(g: &Graph, [then, otherwise]: [&mut Region; 2], k: usize) -> Result<Vec<(usize, Dim)>> {
    let a = then.outputs[k];
    let b = otherwise.outputs[k];
    let have = then.graph.ty(a).clone();

    let other = otherwise.graph.ty(b).clone();
    if have.dtype != other.dtype {
        return Err(Error::invalid(format!(
            "output {k} is {} in one branch and {} in the other",
            have.dtype, other.dtype
        )));
    }

    let mut padded = Vec::new();
    for (i, (x, y)) in have.shape.iter().zip(&other.shape).enumerate() {
        let hidden = then.graph.is_data_dependent(x) || otherwise.graph.is_data_dependent(y);
        if !hidden && (x == y || g.facts.prove_eq(x, y).is_yes()) {
            continue;
        }

        let bound = then.graph.upper_bound(x).zip(otherwise.graph.upper_bound(y));
        let (x_max, y_max) =
            bound.ok_or_else(|| Error::unsupported("branches with a size that has no upper bound"))?;
        let max_size = g.facts.simplify(&larger(g, &x_max, &y_max));

        for (region, size) in [(&mut *then, x), (&mut *otherwise, y)] {
            let value = region.outputs[k];
            let mut hi = vec![Dim::zero(); region.graph.rank(value)];
            hi[i] = &max_size - size;
            let lo = vec![Dim::zero(); hi.len()];
            let fill = Scalar::from_i64(region.graph.dtype(value), 0);
            region.outputs[k] = region.graph.pad(value, &lo, &hi, fill)?;
            let size = region.graph.dim(DType::I64, size.clone())?;
            region.outputs.push(size);
        }

        padded.push((i, max_size));
    }

    Ok(padded)
}

/// The relation of symbols where `condition` is `taken`, if it compares two dims.
pub(crate) fn predicate(g: &Graph, condition: Value, taken: bool) -> Option<Relation> {
    match g.op(condition) {
        Op::View { .. } => predicate(g, g.operands(condition)[0], taken),
        Op::Map(body) => {
            let [step] = body.steps.as_slice() else { return None };
            match step {
                Step::Unary(UnaryOp::Not, _) => predicate(g, g.operands(condition)[0], !taken),
                Step::Compare(op, Reg(0), Reg(1)) => {
                    let side = |k: usize| match g.contents(g.operands(condition)[k]) {
                        Some([dim]) => Some(dim.clone()),
                        _ => None,
                    };

                    let a = side(0)?;
                    let b = side(1)?;
                    Some(match (op, taken) {
                        (CompareOp::Eq, true) | (CompareOp::Ne, false) => Relation::eq(a, b),
                        (CompareOp::Ne, true) | (CompareOp::Eq, false) => Relation::ne(a, b),
                        (CompareOp::Lt, true) | (CompareOp::Ge, false) => Relation::lt(a, b),
                        (CompareOp::Le, true) | (CompareOp::Gt, false) => Relation::le(a, b),
                        (CompareOp::Gt, true) | (CompareOp::Le, false) => Relation::gt(a, b),
                        (CompareOp::Ge, true) | (CompareOp::Lt, false) => Relation::ge(a, b),
                    })
                }
                _ => None,
            }
        }
        _ => None,
    }
}
