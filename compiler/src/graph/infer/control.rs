//! The types of branches and loops. A value has the same type outside of a region as its input or output inside.

use super::requirement::Requirement;
use crate::{
    error::{Result, ensure},
    graph::{Graph, Op, Type, Value},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

/// Requires that the dims of the operands of a region equal those of its inputs.
pub(super) fn require_equal_dims(
    graph: &Graph,
    op: &Op,
    operands: &[Value],
    requirements: &mut Vec<Requirement>,
) {
    for (first, region) in op.regions() {
        for ((name, input), operand) in region.inputs.iter().zip(&operands[first..]) {
            for (k, (a, b)) in region.shape(*input).iter().zip(graph.shape(*operand)).enumerate() {
                if a != b {
                    let context = format!("axis {k} of `{name}`");
                    requirements.push(Requirement { relation: Relation::eq(a, b), context });
                }
            }
        }
    }
}

/// The types of the results.
pub(super) fn types(op: &Op) -> Vec<Type> {
    let of = |graph: &Graph, k: usize| graph.ty(graph.outputs[k].1).clone();
    match op {
        Op::If { then, .. } => (0..then.outputs.len()).map(|k| of(then, k)).collect(),
        Op::Loop { body, carried, max_iterations, .. } => {
            let iterations = Type { dtype: DType::I64, shape: Vec::new() };
            let carried_types = body.inputs[..*carried].iter().map(|(_, value)| body.ty(*value).clone());
            let collected = (1 + carried..body.outputs.len()).map(|k| {
                let ty = of(body, k);
                Type { shape: [std::slice::from_ref(max_iterations), &ty.shape].concat(), ..ty }
            });
            [iterations].into_iter().chain(carried_types).chain(collected).collect()
        }
        _ => Vec::new(),
    }
}

/// Checks the number, ranks and element types of the inputs and outputs.
pub(super) fn check(graph: &Graph, op: &Op, operands: &[Value]) -> Result<()> {
    let scalar = |value: Value, dtype: DType| graph.rank(value) == 0 && graph.dtype(value) == dtype;
    match op {
        Op::If { then, otherwise } => {
            ensure(scalar(operands[0], DType::Bool), || "the condition is not a bool of rank 0".into())?;
            let same = |a: Value, b: Value| {
                let a = then.ty(a);
                let b = otherwise.ty(b);
                a.dtype == b.dtype
                    && a.shape.len() == b.shape.len()
                    && a.shape
                        .iter()
                        .zip(&b.shape)
                        .all(|(a, b)| a == b || graph.facts.prove_eq(a, b).is_yes())
            };

            let fits = then.outputs.len() == otherwise.outputs.len()
                && then.outputs.iter().zip(&otherwise.outputs).all(|((_, a), (_, b))| same(*a, *b));
            ensure(fits, || "the branches have outputs of different types".into())?;
            ensure(!then.outputs.is_empty(), || "the branches have no outputs".into())?;
        }
        Op::Loop { carried, body, .. } => {
            let heads = scalar(operands[0], DType::I64) && scalar(operands[1], DType::Bool);
            ensure(heads, || "the first two operands of a loop are not an i64 and a bool of rank 0".into())?;
            let outputs = body.outputs.len() > *carried && body.inputs.len() >= *carried;
            ensure(outputs, || "the body has fewer outputs than carried values".into())?;

            let (_, again) = body.outputs[0];
            let goes_on = body.rank(again) == 0 && body.dtype(again) == DType::Bool;
            ensure(goes_on, || "the body's first output is not a bool of rank 0".into())?;

            for (k, (name, input)) in body.inputs[..*carried].iter().enumerate() {
                let have = body.ty(body.outputs[1 + k].1);
                let want = body.ty(*input);
                let same = have.dtype == want.dtype && have.shape.len() == want.shape.len();
                let dims = || {
                    let mut pairs = have.shape.iter().zip(&want.shape);
                    pairs.all(|(a, b)| a == b || body.holds(&Relation::eq(a, b)))
                };
                ensure(same && dims(), || format!("an iteration changes the type of `{name}`"))?;
            }
        }
        _ => {}
    }

    for (first, region) in op.regions() {
        for ((name, input), operand) in region.inputs.iter().zip(&operands[first..]) {
            let fits =
                region.dtype(*input) == graph.dtype(*operand) && region.rank(*input) == graph.rank(*operand);
            ensure(fits, || format!("the operand for `{name}` has another type or rank"))?;
        }

        let hidden = |dim: &Dim| region.is_data_dependent(dim);
        let outputs = region.outputs.iter().flat_map(|(_, value)| region.shape(*value));
        let escapes = outputs.clone().find(|dim| hidden(dim));
        ensure(escapes.is_none(), || {
            "the shape of a region's output depends on a symbol that is bound inside of the region".into()
        })?;
    }
    Ok(())
}
