//! Decides which values get memory, and which contraction is finished in the registers of which root.
//!
//! A value is a *root* for one of three reasons. It can't be inlined into its users (contractions, reductions,
//! everything that is not a pure function of an index). An output or a contraction needs it in memory. Or inlining
//! would repeat an expensive computation. All other values are definitions.
//!
//! A contraction is *absorbed* by a root when all its readers lead to that root through views and maps that visit each
//! of its elements exactly once. Bias, residual and activation are then the contraction's epilogue. An output that
//! would scatter the columns of the contraction does not absorb it (`scattered_columns.rs`).

use super::{
    crossed_gathers::{crossed_gathers, gathered_views},
    index::{address, elems, identity, mixed_radix, row_major, substitute, with_digits},
    scattered_columns::{are_scattered, interleaves_runs},
};
use crate::{
    graph::{Coord, Graph, Node, NodeId, Op, Value},
    scalar::{BinaryOp, Body, Step, UnaryOp},
};
use cranelift_entity::SecondaryMap;
use std::collections::{BTreeSet, HashMap, HashSet, hash_map::Entry};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// The highest cost of a definition that each of its users may compute again.
const CHEAP: u32 = 4;
/// The highest cost of a definition that a view or loaded addresses repeat over a larger tensor: a load and one
/// operation. A more expensive definition is computed once for each of its own elements.
const SPREAD: u32 = 2;
/// A root's definition is cut where its cost would exceed this, to bound code size and recursion.
const LARGEST: u32 = 160;

/// The largest number of maps between a value and the map where all its readers merge.
const MAX_MAPS: usize = 16;

/// The decisions of [`fuse`].
pub(super) struct Fusion {
    roots: SecondaryMap<Value, bool>,
    absorbed: HashMap<Value, Value>,
    absorber: HashMap<Value, Value>,
    /// Operands that are stored inside the buffer of their user, a `Pad` or `Concat`, with the operand's position.
    placed: HashMap<Value, (Value, usize)>,
    /// Further users of such operands, which their kernels can store to as well.
    places: HashMap<Value, Vec<(Value, usize)>>,
    row_major: HashSet<Value>,
}

impl Fusion {
    /// Whether a kernel computes `value` into memory.
    pub(super) fn is_root(&self, value: Value) -> bool {
        self.roots[value] && !self.absorbed.contains_key(&value)
    }

    /// Whether `value` is a gather or a view that is stored in row-major order, see [`crossed_gathers`] and
    /// [`gathered_views`].
    pub(super) fn is_row_major(&self, value: Value) -> bool {
        self.row_major.contains(&value)
    }

    /// The contraction that `root` finishes.
    pub(super) fn absorbed_by(&self, root: Value) -> Option<Value> {
        self.absorber.get(&root).copied()
    }

    /// The `Pad` or `Concat` whose buffer contains `value`, and the position of `value` among its operands.
    pub(super) fn placed_in(&self, value: Value) -> Option<(Value, usize)> {
        self.placed.get(&value).copied()
    }

    /// Further `Pad`s and `Concat`s that contain `value`, each with the position of `value` among its operands.
    pub(super) fn further_places(&self, value: Value) -> &[(Value, usize)] {
        self.places.get(&value).map_or(&[], Vec::as_slice)
    }
}

/// Decides for all values of `graph`.
pub(super) fn fuse(graph: &Graph) -> Fusion {
    let users = users(graph);
    let row_major = &crossed_gathers(graph) | &gathered_views(graph);
    let roots = roots(graph, &users, &row_major);
    let mut fusion = Fusion {
        roots,
        absorbed: HashMap::new(),
        absorber: HashMap::new(),
        placed: HashMap::new(),
        places: HashMap::new(),
        row_major,
    };
    absorb(graph, &users, &mut fusion);
    place(graph, &mut fusion);
    fusion
}

type Users = SecondaryMap<Value, Vec<Value>>;

/// The readers of each value: the first result of each node, once for each operand position.
fn users(graph: &Graph) -> Users {
    let mut users = Users::new();
    for (_, node) in &graph.nodes {
        for operand in &node.operands {
            users[*operand].push(node.results[0]);
        }
    }
    users
}

fn roots(graph: &Graph, users: &Users, row_major: &HashSet<Value>) -> SecondaryMap<Value, bool> {
    let mut roots = SecondaryMap::new();
    for (_, node) in &graph.nodes {
        for operand in &node.operands {
            if needs_memory(&node.op) {
                roots[graph.through_views(*operand)] = true;
            }
            if let (Op::Contraction { .. }, Some(folded)) = (&node.op, folded_view(graph, *operand)) {
                roots[folded] = true;
            }
            if steers(&node.op) {
                roots[*operand] = true;
            }
        }
    }

    for (_, node) in &graph.nodes {
        let Op::Gather { coords, .. } = &node.op else { continue };
        for (operand, _) in coords.iter().filter_map(Coord::as_load) {
            if let Some(byte) = byte_of_address(graph, node.operands[operand]) {
                roots[byte] = true;
            }
        }
    }

    let outputs = graph.outputs.iter().map(|(_, value)| value);
    outputs.chain(row_major).for_each(|value| roots[*value] = true);
    let mut cost: SecondaryMap<Value, u32> = SecondaryMap::new();

    // The bytes of a sum, for the definitions that are the only readers of a contraction; 0 for all others.
    let mut sum_bytes: SecondaryMap<Value, usize> = SecondaryMap::new();
    for (_, node) in &graph.nodes {
        for result in &node.results {
            let below = node.operands.iter().map(|operand| sum_bytes[*operand]).max().unwrap_or(0);
            let of_sum = below > 0;
            // Readers of a view compute the definition again, as readers of the value itself do.
            let last = last_view(graph, users, *result);
            let readers = &users[last];
            let together = rejoins(graph, users, &roots, last);
            let (is_root, own) = judge(graph, node, *result, (&roots, together), &cost, &users[*result]);
            // Such a contraction needs memory anyway. Storing the finished value is better than storing the bare sum.
            let is_root = is_root || of_sum && !together && matches!(node.op, Op::Map(_));
            // So is a finished value of fewer bytes, if its reader can't finish the contraction.
            let own_bytes = graph.dtype(*result).size_bytes();
            let is_root = is_root
                || own_bytes < below && matches!(node.op, Op::Map(_)) && is_reduced(graph, users, *result);
            let is_root = is_root || row_major.contains(result);
            roots[*result] = is_root;
            // All its readers share the cost of computing it once.
            let shared = if together { own.div_ceil(readers.len().max(1) as u32) } else { own };
            cost[*result] = if is_root { 1 } else { shared };
            let begins = together && matches!(node.op, Op::Contraction { .. });
            sum_bytes[*result] = if begins {
                own_bytes
            } else if is_root {
                0
            } else {
                below
            };
        }
    }
    roots
}

/// Whether the readers of `value` are one reduction, through maps and views with one reader each.
fn is_reduced(graph: &Graph, users: &Users, mut value: Value) -> bool {
    for _ in 0..MAX_MAPS {
        let [user] = users[value][..] else { return false };
        match graph.op(user) {
            Op::Reduce { .. } => return true,
            Op::Map(_) | Op::View { .. } if !is_output(graph, user) => value = user,
            _ => return false,
        }
    }
    false
}

/// The last of the views that read each other and of which the first is the only reader of `value`, or `value` itself.
fn last_view(graph: &Graph, users: &Users, mut value: Value) -> Value {
    while let [user] = users[value][..]
        && matches!(graph.op(user), Op::View { .. })
    {
        value = user;
    }
    value
}

/// Whether `value` has one reader, or readers that merge again in a single map, as both operands of `x * sigmoid(x)`
/// do. Inlining then computes each element once.
fn rejoins(graph: &Graph, users: &Users, roots: &SecondaryMap<Value, bool>, value: Value) -> bool {
    let by_order = |user: &Value| (graph.values[*user].def, *user);
    let mut open: BTreeSet<(NodeId, Value)> = users[value].iter().map(by_order).collect();
    if open.len() < 2 {
        return users[value].len() < 2 || open.iter().all(|(_, user)| matches!(graph.op(*user), Op::Map(_)));
    }

    for _ in 0..MAX_MAPS {
        let is_inlined = |(_, user): &(NodeId, Value)| matches!(graph.op(*user), Op::Map(_));
        if !open.iter().all(is_inlined) {
            return false;
        }

        // The first reader in order can't be the one that the others lead to.
        let Some((_, first)) = open.pop_first() else { return false };
        if open.is_empty() {
            return true;
        }
        if roots[first] || is_output(graph, first) {
            return false;
        }

        open.extend(users[first].iter().map(by_order));
    }

    false
}

/// Operators that read each element of their operands many times, or outside of the loops generated here.
fn needs_memory(op: &Op) -> bool {
    matches!(
        op,
        Op::Contraction { .. } | Op::Sort { .. } | Op::Pad { .. } | Op::Concat { .. } | Op::Call { .. }
    )
}

/// The view that defines `value`, directly or through views, and that mirrors or clamps, as padding by copies does. No
/// loop steps linearly through its addresses, and a contraction would compute one for each multiplication. The
/// elements are copied once instead.
fn folded_view(graph: &Graph, mut value: Value) -> Option<Value> {
    while let Op::View { .. } = graph.op(value) {
        if graph.op(value).folds() {
            return Some(value);
        }
        value = graph.operands(value)[0];
    }
    None
}

/// The byte that an address is computed from. No epilogue of a contraction loads addresses, so the byte is stored
/// rather than the sum that it is computed from.
fn byte_of_address(graph: &Graph, mut value: Value) -> Option<Value> {
    while !matches!(graph.dtype(value), DType::U8 | DType::I8) {
        let Op::Map(_) = graph.op(value) else { return None };
        let is_fixed = |operand: &&Value| matches!(graph.op(graph.through_views(**operand)), Op::Const(_));
        let mut varying = graph.operands(value).iter().filter(|operand| !is_fixed(operand));
        value = *varying.next()?;
        if varying.next().is_some() {
            return None;
        }
    }
    Some(value)
}

/// Operators that pass their operands to kernels of other graphs, which read them from memory.
fn steers(op: &Op) -> bool {
    matches!(op, Op::Bind { .. } | Op::If { .. } | Op::Loop { .. })
}

/// Whether `value` is a root, and the cost of inlining it once.
fn judge(
    graph: &Graph,
    node: &Node,
    value: Value,
    (roots, together): (&SecondaryMap<Value, bool>, bool),
    cost: &SecondaryMap<Value, u32>,
    users: &[Value],
) -> (bool, u32) {
    let below: u32 = node.operands.iter().map(|operand| cost[*operand]).sum();
    let own = match &node.op {
        Op::Input(_) | Op::Const(_) => return (false, 1),
        Op::View { .. } => below,
        // An index is computed from the loops' counters.
        Op::Index { .. } => 0,
        Op::Map(body) => below + body_cost(body),
        Op::Gather { .. } => below + 2,
        _ => return (true, 1),
    };

    let is_map = matches!(node.op, Op::Map(_) | Op::Gather { .. } | Op::Index { .. });
    let spread = users.iter().any(|user| repeats(graph, *user, value));
    let dear = !together && own > CHEAP || spread && own > SPREAD;
    let handed = users.iter().any(|user| steers(graph.op(*user)));
    let copied = is_map || node.op.folds();
    let wanted = roots[value] && (copied || handed || is_output(graph, value));

    // Addresses that mirror or clamp are also computed once for each element.
    let folded = node.op.folds() && spread;
    let is_root = wanted || folded || is_map && dear || own > LARGEST;
    (is_root, own)
}

fn is_output(graph: &Graph, value: Value) -> bool {
    graph.outputs.iter().any(|(_, output)| *output == value)
}

/// Whether `user` reads elements of `value` more than once.
fn repeats(graph: &Graph, user: Value, value: Value) -> bool {
    match graph.op(user) {
        Op::View { .. } => is_read_more(graph, user, value),
        Op::Gather { coords, .. } => {
            let operands = graph.operands(user);
            let loads = coords.iter().filter_map(Coord::as_load);
            let n_loads = loads.filter(|(operand, _)| operands[*operand] == value).count();
            operands[0] == value || n_loads > 1 || is_read_more(graph, user, value)
        }
        _ => false,
    }
}

/// Whether `user` may have more elements than `value`.
fn is_read_more(graph: &Graph, user: Value, value: Value) -> bool {
    let more = graph.facts.prove_le(&elems(graph.shape(user)), &elems(graph.shape(value)));
    !more.is_yes()
}

fn body_cost(body: &Body) -> u32 {
    let cost = |step: &Step| match step {
        Step::Const(_) => 0,
        Step::Unary(UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not, _) => 1,
        Step::Unary(UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc, _) => 1,
        Step::Unary(UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::Sign | UnaryOp::RoundBf16, _) => 2,
        Step::Unary(UnaryOp::Sqrt | UnaryOp::Recip, _) | Step::Binary(BinaryOp::Div, ..) => 5,
        Step::Unary(..) => 12,
        Step::Binary(BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::Rem | BinaryOp::Mod, ..) => 12,
        Step::Binary(..) | Step::Compare(..) | Step::Select(..) | Step::Cast(..) | Step::Bits(..) => 1,
    };
    body.steps.iter().map(cost).sum()
}

fn absorb(graph: &Graph, users: &Users, fusion: &mut Fusion) {
    let sums: Vec<Value> = graph
        .values
        .keys()
        .filter(|value| matches!(graph.op(*value), Op::Contraction { .. }) && !is_output(graph, *value))
        .collect();

    // The last contraction of a root wins, because the others are in memory by then.
    for sum in sums.into_iter().rev() {
        let mut reached = BTreeSet::new();
        reach_roots(users, &fusion.roots, sum, &mut reached);

        let [root] = reached.into_iter().collect::<Vec<_>>()[..] else { continue };
        let root = match fusion.absorber.get(&root) {
            None => Some(root),
            // Values that depend on the root's own sum are finished with that sum, in the root.
            Some(other) => narrower(graph, users, &fusion.roots, sum)
                .filter(|narrow| !is_made_of(graph, fusion, *narrow, *other)),
        };

        let Some(root) = root else { continue };
        let finishes = matches!(graph.op(root), Op::Map(_) | Op::View { .. });
        let index = sum_index(graph, fusion, root, sum).filter(|_| finishes);
        if index.is_some_and(|index| !is_output(graph, root) || !are_scattered(graph, root, sum, &index)) {
            fusion.roots[root] = true;
            fusion.absorber.insert(root, sum);
            fusion.absorbed.insert(sum, root);
        }
    }
}

/// A value between the sum and its root that depends on the sum alone and takes fewer bytes. It is stored instead.
fn narrower(graph: &Graph, users: &Users, roots: &SecondaryMap<Value, bool>, sum: Value) -> Option<Value> {
    let mut value = sum;
    let mut narrowest = None;
    while let [user] = users[value][..] {
        if roots[user] || !matches!(graph.op(user), Op::Map(_)) {
            break;
        }
        value = user;
        let min_bytes = graph.dtype(narrowest.unwrap_or(sum)).size_bytes();
        if graph.dtype(value).size_bytes() < min_bytes {
            narrowest = Some(value);
        }
    }

    narrowest
}

/// Whether the definition of `value`, up to values in memory, reads `sum`.
fn is_made_of(graph: &Graph, fusion: &Fusion, value: Value, sum: Value) -> bool {
    graph
        .operands(value)
        .iter()
        .any(|operand| *operand == sum || !fusion.roots[*operand] && is_made_of(graph, fusion, *operand, sum))
}

fn reach_roots(
    users: &Users,
    roots: &SecondaryMap<Value, bool>,
    value: Value,
    reached: &mut BTreeSet<Value>,
) {
    for user in &users[value] {
        if roots[*user] {
            reached.insert(*user);
        } else {
            reach_roots(users, roots, *user, reached);
        }
    }
}

/// The index at which `root`, at its axes `$k`, reads `sum`. It visits each element once and is the same for all reads
/// of `sum`.
pub(super) fn sum_index(graph: &Graph, fusion: &Fusion, root: Value, sum: Value) -> Option<Vec<Dim>> {
    let mut index_of_sum = None;
    let index = identity(graph.rank(root));
    find_sum(graph, fusion, root, &index, sum, true, &mut index_of_sum).then_some(())?;
    let index_of_sum = index_of_sum?;
    let visits_once = |index: &[Dim], shape: &[Dim]| {
        let facts = graph.index_facts(shape);
        let flat = address(Dim::zero(), &row_major(graph.shape(sum)), index);
        mixed_radix(&facts, &facts.simplify(&flat), shape)
    };
    let is_visited = visits_once(&index_of_sum, graph.shape(root))
        || interleaves_runs(graph, graph.rank(root), sum, &index_of_sum) && {
            let (index, shape) = with_digits(&graph.facts, &index_of_sum, graph.shape(root));
            visits_once(&index, &shape)
        };
    is_visited.then_some(index_of_sum)
}

/// Walks the definition of `value` at `index`. Returns false if `sum` is read at two different indices, or as an
/// address.
fn find_sum(
    graph: &Graph,
    fusion: &Fusion,
    value: Value,
    index: &[Dim],
    sum: Value,
    is_start: bool,
    index_of_sum: &mut Option<Vec<Dim>>,
) -> bool {
    if value == sum {
        return index_of_sum.get_or_insert_with(|| index.to_vec()) == index;
    }
    if fusion.roots[value] && !is_start {
        return true;
    }

    let operands = graph.operands(value);
    match graph.op(value) {
        Op::Map(_) => {
            operands.iter().all(|operand| find_sum(graph, fusion, *operand, index, sum, false, index_of_sum))
        }
        Op::View { index: map, .. } => {
            let index = substitute(map, index);
            find_sum(graph, fusion, operands[0], &index, sum, false, index_of_sum)
        }
        Op::Gather { coords, .. } => {
            let is_address = |coord: &Coord| match coord {
                Coord::Load { operand, .. } => graph.through_views(operands[*operand]) == sum,
                Coord::At(_) => false,
            };
            graph.through_views(operands[0]) != sum && !coords.iter().any(is_address)
        }
        _ => true,
    }
}

/// Lets roots be computed directly into the padded or concatenated tensors that read them, unless their offset in one
/// depends on a symbol that is bound later. The first of these tensors is a root's own memory.
fn place(graph: &Graph, fusion: &mut Fusion) {
    let binds_of_symbols = binds(graph);

    // The first node that stores into the memory of a value.
    let mut first: HashMap<Value, NodeId> = HashMap::new();
    for value in graph.values.keys() {
        let (Op::Pad { .. } | Op::Concat { .. }) = graph.op(value) else { continue };
        let known =
            place_symbols(graph, value).filter_map(|symbol| binds_of_symbols.get(&symbol).copied()).max();

        for (position, operand) in graph.operands(value).iter().enumerate() {
            let free = fusion.is_root(*operand)
                && !is_output(graph, *operand)
                && !matches!(graph.op(*operand), Op::Input(_) | Op::Const(_));
            let begin = first.get(operand).copied().unwrap_or(graph.values[*operand].def);
            if !free || known.is_some_and(|bind| bind >= begin) {
                continue;
            }

            match fusion.placed.entry(*operand) {
                Entry::Vacant(own) => _ = own.insert((value, position)),
                Entry::Occupied(_) => fusion.places.entry(*operand).or_default().push((value, position)),
            }
            let first = first.entry(value).or_insert(begin);
            *first = begin.min(*first);
        }
    }
}

/// The node that binds each data-dependent symbol.
fn binds(graph: &Graph) -> HashMap<Symbol, NodeId> {
    let bind = |(id, node): (NodeId, &Node)| match &node.op {
        Op::Bind { symbol, .. } => Some((symbol.clone(), id)),
        _ => None,
    };
    graph.nodes.iter().filter_map(bind).collect()
}

/// The symbols in the offsets of the operands of a padded or concatenated tensor.
fn place_symbols(graph: &Graph, value: Value) -> impl Iterator<Item = Symbol> {
    let pads = match graph.op(value) {
        Op::Pad { lo, hi, .. } => [lo.as_slice(), hi.as_slice()].concat(),
        _ => Vec::new(),
    };
    let operands = graph.operands(value).iter().flat_map(|operand| graph.shape(*operand));
    let dims = graph.shape(value).iter().chain(operands).chain(&pads);
    dims.flat_map(Dim::symbols).collect::<Vec<_>>().into_iter()
}
