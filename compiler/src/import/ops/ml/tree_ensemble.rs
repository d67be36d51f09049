//! Ensembles of decision trees (`ai.onnx.ml`).

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::OnnxNode,
        ops::ml::{scores::transformed, trees::Trees},
    },
    scalar::{CompareOp, ReduceOp},
    tensor::Tensor,
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    "ai.onnx.ml" TreeEnsembleRegressor 1 tree_ensemble_regressor,
    "ai.onnx.ml" TreeEnsembleClassifier 1 tree_ensemble_classifier,
    "ai.onnx.ml" TreeEnsemble 5 tree_ensemble,
}

/// The sum, mean, minimum or maximum (`aggregate_function`) by target of the leaves that each row of the input reaches,
/// then `post_transform`.
///
/// Limits: no `PROBIT`; minimum and maximum only if all leaves have weights for all targets.
///
/// `TreeEnsemble([[1], [9]]; n_targets=1, aggregate_function=1, post_transform=0, tree_roots=[0], nodes_featureids=[0], nodes_modes=u8[0], nodes_splits=f32[5.0], nodes_truenodeids=[0], nodes_trueleafs=[1], nodes_falsenodeids=[1], nodes_falseleafs=[1], leaf_targetids=[0, 0], leaf_weights=f32[10.0, 20.0]) = [[10], [20]]`
fn tree_ensemble(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let trees = Trees::read(n)?;
    let y = trees.predictions(g, n, x)?;
    let name = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"];
    let at = usize::try_from(n.int_or("post_transform", 0)?).unwrap_or(usize::MAX);
    transformed(g, y, name.get(at).copied().unwrap_or("?"))
}

/// The class with the highest score, and the scores by class, as in `TreeEnsembleRegressor`. If all leaves vote for one
/// of two classes, the other score is 1 minus its score, or with negative votes its negative.
///
/// Limits: integer classes; no `PROBIT`.
///
/// `TreeEnsembleClassifier([[1], [9]]; classlabels_int64s=[7, 8], nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values=[5.0, 0.0, 0.0], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], class_treeids=[0, 0], class_nodeids=[1, 2], class_ids=[0, 1], class_weights=[1.0, 1.0]) = i64[7, 8], [[1, 0], [0, 1]]`
fn tree_ensemble_classifier(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    if n.has("classlabels_strings") {
        return Err(Error::unsupported("TreeEnsembleClassifier with string classes"));
    }

    let labels = n.ints("classlabels_int64s")?.filter(|labels| !labels.is_empty());
    let labels = labels.ok_or_else(|| Error::invalid("TreeEnsembleClassifier without classes"))?;
    let count = labels.len() as i64;
    let trees = Trees::read_by_tree(n, "class", count)?;

    let name = n.string_or("post_transform", "NONE")?;
    let scores = trees.predictions(g, n, x)?;
    let scores = g.cast(DType::F32, scores)?;
    let (lone, positive) = trees.votes();

    let labels = g.constant(
        Tensor::from_i64(vec![labels.len()], &labels)
            .ok_or_else(|| Error::internal("the elements of a vector must match its shape"))?,
    )?;

    let (choice, scores) = match lone.filter(|_| count == 2) {
        None => {
            let choice = g.argreduce(ReduceOp::Max, scores, 1, false, false)?;
            (choice, transformed(g, scores, name)?)
        }
        Some(class) => {
            let score = g.slice(scores, 1, class.into(), Dim::one(), 1)?;
            let limit = g.number(DType::F32, if positive { 0.5 } else { 0.0 })?;
            let won = g.compare(CompareOp::Gt, score, limit)?;
            let won = g.squeeze(won, &[1])?;

            let other = if positive {
                let one = g.number(DType::F32, 1.0)?;
                g.sub(one, score)?
            } else {
                g.neg(score)?
            };

            let pair = g.concat(&[other, score], 1)?;
            (g.cast(DType::I64, won)?, transformed(g, pair, name)?)
        }
    };

    Ok(vec![g.gather(labels, choice, 0)?, scores])
}

/// `TreeEnsemble` with the attributes of the first versions, in `f32`.
///
/// Limits: as `TreeEnsemble`.
///
/// `TreeEnsembleRegressor([[1], [9]]; n_targets=1, nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values=[5.0, 0.0, 0.0], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[10.0, 20.0]) = [[10], [20]]`
fn tree_ensemble_regressor(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let trees = Trees::read_by_tree(n, "target", n.int_or("n_targets", 1)?)?;
    let y = trees.predictions(g, n, x)?;
    let y = g.cast(DType::F32, y)?;
    transformed(g, y, n.string_or("post_transform", "NONE")?)
}
