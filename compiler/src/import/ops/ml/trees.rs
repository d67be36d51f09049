//! Decision trees as tables: one step of all rows in all trees is a few lookups.
//!
//! One list holds the nodes and then the leaves of all trees. The successor of a leaf is the leaf itself. After as many
//! steps as the deepest tree has levels, every row has reached a leaf. The weights of the leaves are then combined by
//! target.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis, build::LoopBody},
    import::node::OnnxNode,
    scalar::{CompareOp, ReduceOp, Scalar, UnaryOp},
    tensor::Tensor,
};
use std::collections::HashMap;
use symshape::Dim;
use symshape_runtime::DType;

/// Larger tables are refused.
const MAX_ENTRIES: usize = 1 << 28;

/// The tests of nodes by their index: comparisons, then membership in a set.
const MODES: [&str; 7] =
    ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"];

/// Trees over features of one type.
pub(crate) struct Trees {
    dtype: DType,
    /// The inner nodes of all trees.
    nodes: Vec<TreeNode>,
    /// The targets and weights of each leaf.
    leaves: Vec<Vec<(usize, f64)>>,
    /// The index of the root of each tree.
    roots: Vec<usize>,
    targets: usize,
    combine: Combine,
    base: Vec<f64>,
    depth: usize,
}

#[derive(Clone, Default)]
struct TreeNode {
    feature: i64,
    split: f64,
    mode: usize,
    next: [usize; 2],
    nan_passes: bool,
    set: Vec<f64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Combine {
    Mean,
    Sum,
    Min,
    Max,
}

fn bad(message: impl Into<String>) -> Error {
    Error::invalid(format!("trees: {}", message.into()))
}

fn floats(n: &OnnxNode, name: &str) -> Result<Option<(DType, Vec<f64>)>> {
    if let Some(tensor) = n.tensor(&format!("{name}_as_tensor"))? {
        return Ok(Some((tensor.dtype(), (0..tensor.elems()).map(|k| tensor.get(k).as_f64()).collect())));
    }
    let list = n.floats(name)?;
    Ok(list.map(|list| (DType::F32, list.into_iter().map(f64::from).collect())))
}

fn tensor(n: &OnnxNode, name: &str) -> Result<Option<(DType, Vec<f64>)>> {
    let tensor = n.tensor(name)?;
    Ok(tensor.map(|tensor| (tensor.dtype(), (0..tensor.elems()).map(|k| tensor.get(k).as_f64()).collect())))
}

impl Trees {
    /// The trees in the attributes of `TreeEnsemble`.
    pub(crate) fn read(n: &OnnxNode) -> Result<Trees> {
        let list = |name: &str| n.ints(name)?.ok_or_else(|| bad(format!("`{name}` is missing")));
        let features = list("nodes_featureids")?;
        let roots = list("tree_roots")?;
        let count = features.len();

        let (dtype, splits) = tensor(n, "nodes_splits")?.ok_or_else(|| bad("`nodes_splits` is missing"))?;
        let (_, modes) = tensor(n, "nodes_modes")?.ok_or_else(|| bad("`nodes_modes` is missing"))?;
        let (_, weights) = tensor(n, "leaf_weights")?.ok_or_else(|| bad("`leaf_weights` is missing"))?;
        tensor(n, "nodes_hitrates")?;
        let targets = list("leaf_targetids")?;
        let nan = n.ints("nodes_missing_value_tracks_true")?.unwrap_or_else(|| vec![0; count]);

        let ways = [
            (list("nodes_truenodeids")?, list("nodes_trueleafs")?),
            (list("nodes_falsenodeids")?, list("nodes_falseleafs")?),
        ];

        let lens = [
            splits.len(),
            modes.len(),
            nan.len(),
            ways[0].0.len(),
            ways[0].1.len(),
            ways[1].0.len(),
            ways[1].1.len(),
        ];

        if lens.iter().any(|len| *len != count) || targets.len() != weights.len() {
            return Err(bad("lists of different lengths"));
        }

        let place = |id: i64, is_leaf: bool| {
            let (first, count) = if is_leaf { (count, weights.len()) } else { (0, count) };
            let id = usize::try_from(id).ok().filter(|id| *id < count);
            id.map(|id| first + id).ok_or_else(|| bad("a node that does not exist"))
        };

        let mut sets = sets(tensor(n, "membership_values")?.map_or(Vec::new(), |(_, values)| values));
        let mut nodes = Vec::new();
        for k in 0..count {
            let mode = modes[k] as usize;
            let next = [0, 1].map(|way| place(ways[way].0[k], ways[way].1[k] != 0));
            let [yes, no] = next;

            let set = if mode == 6 { sets.pop().ok_or_else(|| bad("a set is missing"))? } else { Vec::new() };
            nodes.push(TreeNode {
                feature: features[k],
                split: splits[k],
                mode,
                next: [yes?, no?],
                nan_passes: nan[k] != 0,
                set,
            });
        }

        let count_targets = n.int_or("n_targets", 1)?;
        let leaves = targets
            .iter()
            .zip(&weights)
            .map(|(target, weight)| Ok(vec![(checked_target(*target, count_targets)?, *weight)]));

        let leaves: Vec<Vec<(usize, f64)>> = leaves.collect::<Result<_>>()?;

        // A tree of one leaf has a root whose branches both lead to this leaf.
        let roots = roots.iter().map(|root| place(*root, false)).collect::<Result<_>>()?;

        let combine = match n.int_or("aggregate_function", 1)? {
            0 => Combine::Mean,
            1 => Combine::Sum,
            2 => Combine::Min,
            3 => Combine::Max,
            other => return Err(bad(format!("aggregate_function {other}"))),
        };

        let targets = usize::try_from(count_targets).unwrap_or(0);
        Trees { dtype, nodes, leaves, roots, targets, combine, base: Vec::new(), depth: 0 }.checked()
    }

    /// The trees in the attributes of the first versions.
    ///
    /// Nodes are listed by tree and node id, leaves among them. The names of the lists of weights begin with `prefix`.
    pub(crate) fn read_by_tree(n: &OnnxNode, prefix: &str, targets: i64) -> Result<Trees> {
        let list = |name: &str| n.ints(name)?.ok_or_else(|| bad(format!("`{name}` is missing")));
        let trees = list("nodes_treeids")?;
        let ids = list("nodes_nodeids")?;
        let features = list("nodes_featureids")?;
        let yes = list("nodes_truenodeids")?;
        let no = list("nodes_falsenodeids")?;

        let modes = n.strings("nodes_modes")?.ok_or_else(|| bad("`nodes_modes` is missing"))?;
        let (dtype, values) = floats(n, "nodes_values")?.ok_or_else(|| bad("`nodes_values` is missing"))?;
        floats(n, "nodes_hitrates")?;
        let count = ids.len();

        let nan = n
            .ints("nodes_missing_value_tracks_true")?
            .filter(|list| !list.is_empty())
            .unwrap_or_else(|| vec![0; count]);

        let lens = [trees.len(), features.len(), yes.len(), no.len(), modes.len(), values.len(), nan.len()];
        if lens.iter().any(|len| *len != count) {
            return Err(bad("lists of different lengths"));
        }

        let inner: Vec<usize> = (0..count).filter(|k| modes[*k] != "LEAF").collect();
        let outer: Vec<usize> = (0..count).filter(|k| modes[*k] == "LEAF").collect();
        let all = inner.iter().chain(&outer).enumerate();
        let places: HashMap<(i64, i64), usize> =
            all.map(|(place, k)| ((trees[*k], ids[*k]), place)).collect();
        let place = |tree: i64, id: i64| {
            places.get(&(tree, id)).copied().ok_or_else(|| bad("a node that does not exist"))
        };

        let mut nodes = Vec::new();
        for k in inner.iter().copied() {
            let mode = MODES[..6].iter().position(|mode| *mode == modes[k]);
            let mode =
                mode.ok_or_else(|| Error::unsupported(format!("trees with nodes of mode `{}`", modes[k])))?;
            let next = [place(trees[k], yes[k])?, place(trees[k], no[k])?];
            let feature = features[k];
            let split = values[k];
            nodes.push(TreeNode { feature, split, mode, next, nan_passes: nan[k] != 0, set: Vec::new() });
        }

        let names = ["treeids", "nodeids", "ids"].map(|name| list(&format!("{prefix}_{name}")));
        let [weight_trees, weight_nodes, weight_targets] = names;
        let weight_trees = weight_trees?;
        let weight_nodes = weight_nodes?;
        let weight_targets = weight_targets?;
        let (_, weights) =
            floats(n, &format!("{prefix}_weights"))?.ok_or_else(|| bad("weights are missing"))?;

        let mut leaves = vec![Vec::new(); outer.len()];
        for (k, weight) in weights.iter().enumerate() {
            let (Some(tree), Some(node), Some(target)) =
                (weight_trees.get(k), weight_nodes.get(k), weight_targets.get(k))
            else {
                return Err(bad("lists of different lengths"));
            };
            let leaf = place(*tree, *node)?
                .checked_sub(nodes.len())
                .ok_or_else(|| bad("a weight of a node that is not a leaf"))?;
            leaves[leaf].push((checked_target(*target, targets)?, *weight));
        }

        // The root of a tree is its first node in the lists.
        let mut met = Vec::new();
        let mut roots = Vec::new();
        for k in 0..count {
            if !met.contains(&trees[k]) {
                met.push(trees[k]);
                roots.push(place(trees[k], ids[k])?);
            }
        }

        let combine = match n.string_or("aggregate_function", "SUM")? {
            "SUM" => Combine::Sum,
            "AVERAGE" => Combine::Mean,
            "MIN" => Combine::Min,
            "MAX" => Combine::Max,
            other => return Err(bad(format!("aggregate_function `{other}`"))),
        };

        let base = floats(n, "base_values")?.map_or(Vec::new(), |(_, base)| base);
        let targets = usize::try_from(targets).unwrap_or(0);
        Trees { dtype, nodes, leaves, roots, targets, combine, base, depth: 0 }.checked()
    }

    /// Checks the trees and computes `depth`, the number of steps that reach a leaf from every root.
    fn checked(mut self) -> Result<Trees> {
        let entries = (self.nodes.len() + self.leaves.len()).saturating_mul(self.targets.max(1));
        if self.targets == 0 || self.roots.is_empty() || self.leaves.is_empty() || entries > MAX_ENTRIES {
            return Err(bad(format!("{} trees for {} targets", self.roots.len(), self.targets)));
        }
        if self.nodes.iter().any(|node| node.mode >= MODES.len() || node.feature < 0) {
            return Err(bad("a node of an unknown mode or feature"));
        }

        let mut level: Vec<usize> = self.roots.clone();
        while !level.is_empty() {
            // Branches of one level may lead to the same node.
            let mut next: Vec<usize> =
                level.iter().filter_map(|place| self.nodes.get(*place)).flat_map(|node| node.next).collect();
            next.sort_unstable();
            next.dedup();
            next.retain(|place| *place < self.nodes.len());
            self.depth += 1;
            if self.depth > self.nodes.len() + 1 {
                return Err(bad("a tree with a cycle"));
            }
            level = next;
        }

        Ok(self)
    }

    /// The only target with votes, if there is just one, and whether no vote is negative.
    pub(crate) fn votes(&self) -> (Option<usize>, bool) {
        let mut all = self.leaves.iter().flatten();
        let first = all.clone().next().map(|(target, _)| *target);
        let lone = first.filter(|first| all.all(|(target, _)| target == first));
        (lone, self.leaves.iter().flatten().all(|(_, weight)| *weight >= 0.0))
    }

    fn table(&self, g: &mut Graph, dtype: DType, of: impl Fn(&TreeNode) -> f64, leaf: f64) -> Result<Value> {
        let values = self.nodes.iter().map(of).chain(self.leaves.iter().map(|_| leaf));
        let scalars: Vec<Scalar> = values
            .map(|x| {
                if dtype.is_float() { Scalar::from_f64(dtype, x) } else { Scalar::from_i64(dtype, x as i64) }
            })
            .collect();
        let tensor = Tensor::from_scalars(dtype, vec![scalars.len()], &scalars);
        g.constant(tensor.ok_or_else(|| Error::internal("the elements of a table must match its shape"))?)
    }

    /// The predictions of the trees for each row of `x`, `[N, features]`: `[N, targets]`.
    pub(crate) fn predictions(&self, g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
        if g.rank(x) != 2 {
            return Err(bad("the input must have 2 axes"));
        }

        let x = g.cast(self.dtype, x)?;
        let rows = g.shape(x)[0].clone();

        let roots: Vec<i64> = self.roots.iter().map(|root| *root as i64).collect();
        let roots = Tensor::from_i64(vec![roots.len()], &roots)
            .ok_or_else(|| Error::internal("the elements of a vector must match its shape"))?;
        let roots = g.constant(roots)?;
        let start = g.broadcast_to(roots, &[rows, self.roots.len().into()])?;
        let arrived = if self.nodes.is_empty() { start } else { self.reached_leaves(g, n, x, start)? };

        let leaves: Vec<Scalar> = self.weights();
        let shape = vec![self.leaves.len(), self.targets];
        let weights = Tensor::from_scalars(self.dtype, shape, &leaves)
            .ok_or_else(|| Error::internal("the elements of a matrix must match its shape"))?;
        let weights = g.constant(weights)?;

        let first = g.scalar(Scalar::i64(self.nodes.len() as i64))?;
        let leaf = g.sub(arrived, first)?;
        let votes = g.gather(weights, leaf, 0)?;

        let mut y = match self.combine {
            Combine::Sum | Combine::Mean => g.reduce(ReduceOp::Sum, votes, &[1], false)?,
            Combine::Min | Combine::Max if self.leaves.iter().any(|leaf| leaf.len() != self.targets) => {
                return Err(Error::unsupported(
                    "aggregate_function MIN or MAX of trees that don't have every target",
                ));
            }
            Combine::Min => g.reduce(ReduceOp::Min, votes, &[1], false)?,
            Combine::Max => g.reduce(ReduceOp::Max, votes, &[1], false)?,
        };

        if self.combine == Combine::Mean {
            let count = g.number(self.dtype, self.roots.len() as f64)?;
            y = g.div(y, count)?;
        }

        if self.base.is_empty() {
            return Ok(y);
        }

        let base: Vec<Scalar> = self.base.iter().map(|x| Scalar::from_f64(self.dtype, *x)).collect();
        let base = Tensor::from_scalars(self.dtype, vec![base.len()], &base)
            .ok_or_else(|| Error::internal("the elements of a vector must match its shape"))?;
        let base = g.constant(base)?;
        g.add(y, base)
    }

    fn weights(&self) -> Vec<Scalar> {
        let row = |leaf: &Vec<(usize, f64)>| {
            let mut row = vec![0.0; self.targets];
            leaf.iter().for_each(|(target, weight)| row[*target] += weight);
            row
        };
        self.leaves.iter().flat_map(row).map(|x| Scalar::from_f64(self.dtype, x)).collect()
    }

    /// The leaf that each row reaches in each tree, `[N, trees]`.
    fn reached_leaves(&self, g: &mut Graph, n: &OnnxNode, x: Value, start: Value) -> Result<Value> {
        let own = self.nodes.len() as f64;
        let features = self.table(g, DType::I64, |node| node.feature as f64, 0.0)?;
        let splits = self.table(g, self.dtype, |node| node.split, 0.0)?;
        let modes = self.table(g, DType::I64, |node| node.mode as f64, own)?;
        let nan = self.table(g, DType::Bool, |node| f64::from(u8::from(node.nan_passes)), 0.0)?;

        let yes = self.next(g, 0)?;
        let no = self.next(g, 1)?;

        let sets = self.sets(g)?;
        let width = g.shape(x)[1].clone();
        let last_feature = self.nodes.iter().map(|node| node.feature).max().unwrap_or(0);
        g.require(symshape::Relation::lt(last_feature, width), "features of the trees")?;
        let used: Vec<usize> =
            (0..MODES.len()).filter(|mode| self.nodes.iter().any(|node| node.mode == *mode)).collect();
        let counter = n.fresh(g);

        let given: Vec<Value> = [x, features, splits, modes, nan, yes, no].into_iter().chain(sets).collect();
        let rounds = g.iterate(&counter, &self.depth.into(), [&[start], &given], |g, states, given| {
            let at = states[0];
            let [feature, split, mode, nan_passes, yes, no] = {
                let mut found = Vec::new();
                for table in &given[1..7] {
                    found.push(g.gather(*table, at, 0)?);
                }
                <[Value; 6]>::try_from(found).map_err(|_| Error::internal("there must be six tables"))?
            };

            let value = picked(g, given[0], feature)?;
            let mut holds = None;
            for k in &used {
                let test = match COMPARISONS.get(*k) {
                    Some(op) => g.compare(*op, value, split)?,
                    None => {
                        let set = sets_at(g, given, at)?;
                        member(g, value, set)?
                    }
                };

                let test = if used.len() == 1 {
                    test
                } else {
                    let own = g.scalar(Scalar::i64(*k as i64))?;
                    let here = g.compare(CompareOp::Eq, mode, own)?;
                    g.and(here, test)?
                };

                holds = Some(match holds {
                    None => test,
                    Some(other) => g.or(other, test)?,
                });
            }

            let mut holds = holds.ok_or_else(|| Error::internal("trees must have a mode"))?;
            if self.nodes.iter().any(|node| node.nan_passes) {
                let none = g.unary(UnaryOp::IsNan, value)?;
                let passes = g.and(none, nan_passes)?;
                holds = g.or(holds, passes)?;
            }

            let next = g.select(holds, yes, no)?;
            Ok(LoopBody { again: None, next: vec![next], slices: Vec::new() })
        })?;

        Ok(rounds.carried[0])
    }

    fn next(&self, g: &mut Graph, way: usize) -> Result<Value> {
        let count = self.nodes.len();
        let ways = self.nodes.iter().map(|node| node.next[way] as i64);
        let all: Vec<i64> = ways.chain((0..self.leaves.len()).map(|leaf| (count + leaf) as i64)).collect();
        let tensor = Tensor::from_i64(vec![all.len()], &all);
        g.constant(tensor.ok_or_else(|| Error::internal("the elements of a table must match its shape"))?)
    }

    /// The sets of the nodes that test for membership, filled up with NaN, which equals nothing.
    fn sets(&self, g: &mut Graph) -> Result<Option<Value>> {
        let width = self.nodes.iter().map(|node| node.set.len()).max().unwrap_or(0);
        if width == 0 {
            return Ok(None);
        }
        if width.saturating_mul(self.nodes.len() + self.leaves.len()) > MAX_ENTRIES {
            return Err(bad("sets that are too large"));
        }

        let row = |set: &[f64]| {
            let set: Vec<f64> = set.iter().copied().chain(std::iter::repeat(f64::NAN)).take(width).collect();
            set
        };

        let nodes = self.nodes.iter().flat_map(|node| row(&node.set));
        let all = nodes.chain(self.leaves.iter().flat_map(|_| row(&[])));
        let scalars: Vec<Scalar> = all.map(|x| Scalar::from_f64(self.dtype, x)).collect();
        let shape = vec![self.nodes.len() + self.leaves.len(), width];
        let tensor = Tensor::from_scalars(self.dtype, shape, &scalars);
        g.constant(tensor.ok_or_else(|| Error::internal("the elements of a matrix must match its shape"))?)
            .map(Some)
    }
}

const COMPARISONS: [CompareOp; 6] =
    [CompareOp::Le, CompareOp::Lt, CompareOp::Ge, CompareOp::Gt, CompareOp::Eq, CompareOp::Ne];

/// The sets of the nodes `at`.
fn sets_at(g: &mut Graph, given: &[Value], at: Value) -> Result<Value> {
    let sets = given.get(7).ok_or_else(|| Error::internal("membership tests need sets"))?;
    g.gather(*sets, at, 0)
}

/// Whether `value`, `[N, T]`, is in `set`, `[N, T, K]`.
fn member(g: &mut Graph, value: Value, set: Value) -> Result<Value> {
    let value = g.unsqueeze(value, &[2])?;
    let same = g.compare(CompareOp::Eq, value, set)?;
    let same = g.cast(DType::I32, same)?;
    let any = g.reduce(ReduceOp::Max, same, &[2], false)?;
    g.cast(DType::Bool, any)
}

/// `x[i, feature[i, j]]`.
fn picked(g: &mut Graph, x: Value, feature: Value) -> Result<Value> {
    use crate::graph::{Coord, Op};
    let shape = g.shape(feature).to_vec();
    let i = Dim::from(axis(0));
    let j = Dim::from(axis(1));
    let coords = vec![Coord::At(i.clone()), Coord::Load { operand: 1, at: vec![i, j] }];
    g.push(Op::Gather { shape, coords }, &[x, feature])
}

fn checked_target(target: i64, count: i64) -> Result<usize> {
    usize::try_from(target)
        .ok()
        .filter(|_| target < count)
        .ok_or_else(|| bad(format!("target {target} of {count}")))
}

/// Sets that NaN separates, the first one last.
fn sets(values: Vec<f64>) -> Vec<Vec<f64>> {
    let mut sets: Vec<Vec<f64>> = values.split(|value| value.is_nan()).map(<[f64]>::to_vec).collect();
    if values.last().is_some_and(|last| last.is_nan()) {
        sets.pop();
    }
    sets.reverse();
    sets
}
