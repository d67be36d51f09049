//! Contractions, with the epilogue of the root that finishes them.
//!
//! The loops run over the root's axes rather than the contraction's, and the index of the sum is an expression over
//! them. The operands' addresses classify an axis. A *row* axis moves only the varying operand, a *column* axis moves
//! only the other one, and a *batch* axis moves both. The columns are the axes of that operand that move the result's
//! address by one. If that is a batch axis (depthwise convolution), there is no matrix product, and the products are
//! summed by strips along it.

use super::{
    buffers,
    fuse::sum_index,
    index::{address, row_major, substitute},
    inline::Inliner,
    lowering::{KernelScope, Lowering, node_name},
    map,
    nest::{AxisRole, Nest, append, axes_of, exprs_of, loops, renamed, step, with_exprs},
    reduce::points,
};
use crate::{
    Error, Result,
    graph::{Graph, Label, Op, Value},
    kernel::{Access, Axis, Buffer, BufferId, Contraction, Inst, InstSeq, Kernel, MemorySpace, Rhs, Stmt},
    scalar::{BinaryOp, Precision, Reg, Scalar},
    tensor::{Bytes, Tensor},
};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// The number of columns of a packed panel, a whole number of vectors on every target.
pub(super) const PANEL_WIDTH: u32 = 16;

/// The largest number of products that a strip sums in registers.
const MOST_UNROLLED: i64 = 64;

/// The facts about one contraction that determine its loops. Expressions 0 and 1 of the nest are the addresses of the
/// two operands. The rest belong to the epilogue, and the last is the address of the result.
struct ContractionNest {
    root: Value,
    nest: Nest,
    operands: [Operand; 2],
    epilogue: InstSeq,
    dtype: DType,
    precision: Precision,
}

struct Operand {
    value: Value,
    dtype: DType,
    constant: Option<Tensor>,
}

/// The kernel of `root`, which finishes the contraction `sum`. Both may be the same value.
pub(super) fn lower(lowering: &mut Lowering, root: Value, sum: Value) -> Result<()> {
    let mut scope = lowering.scope();
    let mut this = gather(lowering, &mut scope, root, sum)?;
    this.nest.split(&mut scope);
    let target = this.nest.exprs[this.nest.exprs.len() - 1].clone();
    this.nest.order_by(&scope.facts, AxisRole::Kept, &target);
    let roles = Roles::of(&this, &scope, &target);
    if !roles.is_matrix {
        return by_strips(lowering, &mut scope, sum, this);
    }
    if roles.swapped {
        this.operands.swap(0, 1);
        this.nest.exprs.swap(0, 1);
    }
    let lhs = this.nest.exprs[0].clone();
    this.nest.order_by(&scope.facts, AxisRole::Reduced, &lhs);
    matrix(lowering, &mut scope, this)
}

/// Sets up the axes, the operands' addresses and the epilogue.
fn gather(
    lowering: &mut Lowering,
    scope: &mut KernelScope,
    root: Value,
    sum: Value,
) -> Result<ContractionNest> {
    let graph = lowering.graph;
    let Op::Contraction { lhs, rhs, out, dtype, precision } = graph.op(sum) else {
        return Err(Error::internal("not a contraction"));
    };
    let (kept, index) = axes_of(scope, graph.shape(root));
    let at_sum = if root == sum {
        index.clone()
    } else {
        let map = sum_index(graph, lowering.fusion, root, sum);
        substitute(&map.ok_or_else(|| Error::internal("the epilogue does not read its sum"))?, &index)
    };
    let values = [graph.operands(sum)[0], graph.operands(sum)[1]];
    let gone = reduced_labels(lhs, out);
    let extents: Vec<Dim> = gone.iter().map(|label| extent(graph, values[0], lhs, *label)).collect();
    let (reduced, at_gone) = axes_of(scope, &extents);
    let at = |label: &Label| match out.iter().position(|other| other == label) {
        Some(k) => at_sum[k].clone(),
        None => gone.iter().position(|other| other == label).map_or_else(Dim::zero, |k| at_gone[k].clone()),
    };
    let mut exprs = Vec::new();
    let mut operands = Vec::new();
    for (value, labels) in values.into_iter().zip([lhs, rhs]) {
        let at: Vec<Dim> = labels.iter().map(at).collect();
        let (operand, address) = operand_at(lowering, scope, value, &at)?;
        operands.push(operand);
        exprs.push(address);
    }
    let target = lowering.storage[&root].clone();
    let mut inliner = Inliner::new(lowering, scope);
    inliner.sum = Some(sum);
    let reg = inliner.define(root, &index)?;
    inliner.store(&target, &index, reg);
    let epilogue = inliner.code;
    exprs.extend(exprs_of(&epilogue));
    let [lhs, rhs] = <[Operand; 2]>::try_from(operands).map_err(|_| Error::internal("two operands"))?;
    let nest = Nest::new(kept, reduced, exprs);
    let precision = if *precision == Precision::Full { Precision::F32 } else { *precision };
    Ok(ContractionNest { root, nest, operands: [lhs, rhs], epilogue, dtype: *dtype, precision })
}

fn reduced_labels(lhs: &[Label], out: &[Label]) -> Vec<Label> {
    lhs.iter().copied().filter(|label| !out.contains(label)).collect()
}

fn extent(graph: &Graph, operand: Value, labels: &[Label], label: Label) -> Dim {
    let axis = labels.iter().position(|other| *other == label);
    axis.map_or_else(Dim::one, |axis| graph.shape(operand)[axis].clone())
}

/// The memory of an operand, and the address of its element at `index`.
fn operand_at(
    lowering: &Lowering,
    scope: &KernelScope,
    operand: Value,
    index: &[Dim],
) -> Result<(Operand, Dim)> {
    let graph = lowering.graph;
    let (mut value, mut index) = (operand, index.to_vec());
    while !lowering.storage.contains_key(&value)
        && let Op::View { index: map, .. } = graph.op(value)
    {
        index = substitute(map, &index).iter().map(|expr| scope.facts.simplify(expr)).collect();
        value = graph.operands(value)[0];
    }
    let constant = graph.as_constant(value).cloned();
    let at = match lowering.storage.get(&value) {
        Some(storage) => storage.at(&index).index,
        None => address(Dim::zero(), &row_major(graph.shape(value)), &index),
    };
    let address = scope.facts.simplify(&at);
    Ok((Operand { value, dtype: graph.dtype(value), constant }, address))
}

/// Classifies the axes by the operands that they move.
struct Roles {
    is_matrix: bool,
    swapped: bool,
}

impl Roles {
    fn of(this: &ContractionNest, scope: &KernelScope, target: &Dim) -> Roles {
        let [lhs, rhs] = [&this.nest.exprs[0], &this.nest.exprs[1]];
        let kept = this.nest.axes(AxisRole::Kept);
        let unit = kept.iter().rev().find(|axis| step(&scope.facts, target, axis) == 1).or(kept.last());
        let Some(unit) = unit else { return Roles { is_matrix: true, swapped: false } };
        match (lhs.contains(&unit.var), rhs.contains(&unit.var)) {
            // A single column is a row of the other operand.
            (true, false) => Roles { is_matrix: true, swapped: true },
            (false, _) => Roles { is_matrix: true, swapped: false },
            (true, true) => Roles { is_matrix: false, swapped: false },
        }
    }
}

/// Emits a batch of matrix products.
fn matrix(lowering: &mut Lowering, scope: &mut KernelScope, mut this: ContractionNest) -> Result<()> {
    // Batch axes go outside, and rows outside columns, whatever their order in memory, because merging needs
    // neighbours.
    let class = classes(&this);
    this.nest.sort_kept_by(class);
    let packing = Packing::of(&this, scope);
    if let Some(packing) = &packing {
        this.nest.exprs[1] = packing.flat.clone();
    }
    this.nest.merge(scope);

    let class = classes(&this);
    let (mut outer, mut m, mut columns) = (Vec::new(), Vec::new(), Vec::new());
    for axis in this.nest.axes(AxisRole::Kept) {
        [&mut outer, &mut m, &mut columns][class(&axis) as usize].push(axis);
    }
    let n = columns.pop().unwrap_or_else(|| single(scope));
    outer.extend(columns);
    if m.is_empty() {
        m.push(single(scope));
    }
    let mut k = this.nest.axes(AxisRole::Reduced);
    if k.is_empty() {
        k.push(single(scope));
    }
    let (lhs, rhs) = (this.nest.exprs[0].clone(), this.nest.exprs[1].clone());
    let rhs = match &packing {
        Some(packing) => packing.panels(lowering, scope, &this, &n, &rhs)?,
        None => Rhs::Indexed(Access {
            buffer: buffers::stored(lowering, this.operands[1].value)?.buffer,
            index: rhs,
        }),
    };
    let contraction = Contraction {
        m,
        n,
        k,
        lhs: Access { buffer: buffers::stored(lowering, this.operands[0].value)?.buffer, index: lhs },
        rhs,
        dtype: this.dtype,
        precision: this.precision,
        pack_buffer: None,
        epilogue: with_exprs(&this.epilogue, &this.nest.exprs[2..]),
    };
    let body = loops(&outer, true, vec![Stmt::Contraction(Box::new(contraction))]);
    lowering.push(this.root, "contraction", Kernel::default(), body);
    Ok(())
}

/// 0 for batch axes, 1 for rows, 2 for columns.
fn classes(this: &ContractionNest) -> impl Fn(&Axis) -> i32 + use<> {
    let (lhs, rhs) = (this.nest.exprs[0].clone(), this.nest.exprs[1].clone());
    move |axis| match (lhs.contains(&axis.var), rhs.contains(&axis.var)) {
        (true, true) => 0,
        (false, true) => 2,
        (_, false) => 1,
    }
}

/// An axis of one iteration.
fn single(scope: &mut KernelScope) -> Axis {
    let var = scope.fresh("i");
    scope.facts.declare_index(&var, &Dim::one());
    Axis { var, extent: Dim::one() }
}

/// A constant right operand that is to be packed: the offsets of its elements by batch, column and reduction point.
struct Packing {
    tensor: Tensor,
    batch: Vec<i64>,
    columns: Vec<i64>,
    k: Vec<i64>,
    /// `batch index * columns + column index`, over the axes before they are merged.
    flat: Dim,
}

impl Packing {
    /// `None` if the right operand is not a constant, or its address is not linear in axes with constant extents.
    fn of(this: &ContractionNest, scope: &KernelScope) -> Option<Packing> {
        let address = &this.nest.exprs[1];
        let tensor = this.operands[1].constant.clone()?;
        let class = classes(this);
        let linear = |axes: &[Axis]| -> Option<Vec<(i64, i64)>> {
            let of = |axis: &Axis| {
                let (coef, _) = scope.facts.linear_in(address, &axis.var)?;
                Some((coef.as_i64()?, axis.extent.as_i64()?))
            };
            axes.iter().map(of).collect()
        };
        let moving = |wanted: i32| -> Vec<Axis> {
            this.nest.axes(AxisRole::Kept).into_iter().filter(|axis| class(axis) == wanted).collect()
        };
        let (batch_axes, column_axes) = (moving(0), moving(2));
        let (batch, columns) = (linear(&batch_axes)?, linear(&column_axes)?);
        let k = linear(&this.nest.axes(AxisRole::Reduced))?;
        let origin = address.eval_i64(&|_| Some(0)).ok()?;
        let batch = offsets(&batch).into_iter().map(|offset| origin + offset).collect();
        let flat = batch_axes.iter().chain(&column_axes);
        let flat = flat.fold(Dim::zero(), |flat, axis| flat * &axis.extent + Dim::from(&axis.var));
        let flat = scope.facts.simplify(&flat);
        Some(Packing { tensor, batch, columns: offsets(&columns), k: offsets(&k), flat })
    }

    /// Packs for the column axis `n`, where `flat` is [`Packing::flat`] over the merged axes. Each block of `n`'s
    /// extent has its own panels.
    fn panels(
        &self,
        lowering: &mut Lowering,
        scope: &KernelScope,
        this: &ContractionNest,
        n: &Axis,
        flat: &Dim,
    ) -> Result<Rhs> {
        let wrong = || Error::internal("the columns of a constant are not its innermost axis");
        let n_extent = n.extent.as_i64().ok_or_else(wrong)?.max(0) as usize;
        let n_panels = n_extent.div_ceil(PANEL_WIDTH as usize);
        let block_elems = n_panels * self.k.len() * PANEL_WIDTH as usize;
        let n_blocks = (self.batch.len() * self.columns.len()).checked_div(n_extent).unwrap_or(0);
        let size = self.tensor.dtype().size_bytes();
        let mut bytes = vec![0; n_blocks * block_elems * size];
        let mut slots = bytes.chunks_exact_mut(size);
        for block in 0..n_blocks {
            for panel in 0..n_panels {
                for k in &self.k {
                    for lane in 0..PANEL_WIDTH as usize {
                        let column = panel * PANEL_WIDTH as usize + lane;
                        let slot = slots.next().ok_or_else(wrong)?;
                        if column < n_extent {
                            let (batch, column) = self.split(block * n_extent + column);
                            let from = (batch + column + k) as usize * size;
                            slot.copy_from_slice(
                                self.tensor.bytes().get(from..from + size).ok_or_else(wrong)?,
                            );
                        }
                    }
                }
            }
        }
        let packed = Tensor::new(self.tensor.dtype(), vec![bytes.len() / size], Bytes::Owned(bytes.into()));
        let packed = packed.ok_or_else(wrong)?;
        let name = format!("{} (packed)", node_name(lowering.graph, this.root));
        let buffer = constant_buffer(lowering, name, packed);
        let first = flat.substitute(&|symbol| (*symbol == n.var).then(Dim::zero));
        let base = scope.facts.simplify(&(first.floor_div(n_extent.max(1)) * Dim::from(block_elems)));
        Ok(Rhs::Panels { buffer, base, width: PANEL_WIDTH })
    }

    /// The offsets of the batch and column with the index `flat`.
    fn split(&self, flat: usize) -> (i64, i64) {
        (self.batch[flat / self.columns.len()], self.columns[flat % self.columns.len()])
    }
}

/// The offsets of all points of axes with these steps and extents, in row-major order.
fn offsets(axes: &[(i64, i64)]) -> Vec<i64> {
    axes.iter().fold(vec![0], |offsets, (step, extent)| {
        offsets.iter().flat_map(|offset| (0..*extent).map(move |at| offset + at * step)).collect()
    })
}

/// Emits strips along a batch axis, along which both operands are streamed.
fn by_strips(
    lowering: &mut Lowering,
    scope: &mut KernelScope,
    sum: Value,
    mut this: ContractionNest,
) -> Result<()> {
    let buffers = [streamed(lowering, scope, &mut this, 0)?, streamed(lowering, scope, &mut this, 1)?];
    let this = &this;
    let reduced = this.nest.axes(AxisRole::Reduced);
    let extents: Option<Vec<i64>> = reduced.iter().map(|axis| axis.extent.as_i64()).collect();
    match extents {
        Some(extents) if extents.iter().product::<i64>() <= MOST_UNROLLED => {
            let code = unrolled(scope, this, buffers, &reduced, &extents);
            let body = map::pass(scope, this.nest.axes(AxisRole::Kept), &code);
            lowering.push(this.root, "products", Kernel::default(), body);
            Ok(())
        }
        _ => through_memory(lowering, scope, buffers, sum, this),
    }
}

/// The memory of an operand as strips read it. A constant is packed so that it is contiguous along the strips.
fn streamed(
    lowering: &mut Lowering,
    scope: &KernelScope,
    this: &mut ContractionNest,
    side: usize,
) -> Result<BufferId> {
    let Some((tensor, address)) = along_strips(scope, this, side) else {
        return Ok(buffers::stored(lowering, this.operands[side].value)?.buffer);
    };
    this.nest.exprs[side] = address;
    let name = format!("{} (packed)", node_name(lowering.graph, this.root));
    Ok(constant_buffer(lowering, name, tensor))
}

/// Packs a constant operand with the reduction axes outside and the result's axes inside, and returns the address of
/// its elements.
fn along_strips(scope: &KernelScope, this: &ContractionNest, side: usize) -> Option<(Tensor, Dim)> {
    let tensor = this.operands[side].constant.as_ref()?;
    let old = &this.nest.exprs[side];
    let axes = [this.nest.axes(AxisRole::Reduced), this.nest.axes(AxisRole::Kept)].concat();
    let axes: Vec<Axis> = axes.into_iter().filter(|axis| old.contains(&axis.var)).collect();
    let steps: Option<Vec<(i64, i64)>> = axes
        .iter()
        .map(|axis| Some((scope.facts.linear_in(old, &axis.var)?.0.as_i64()?, axis.extent.as_i64()?)))
        .collect();
    let origin = old.eval_i64(&|_| Some(0)).ok()?;
    let size = tensor.dtype().size_bytes();
    let mut bytes = Vec::new();
    for offset in offsets(&steps?) {
        let from = usize::try_from(origin + offset).ok()? * size;
        bytes.extend_from_slice(tensor.bytes().get(from..from + size)?);
    }
    let tensor = Tensor::new(tensor.dtype(), vec![bytes.len() / size], Bytes::Owned(bytes.into()))?;
    let address = axes.iter().fold(Dim::zero(), |at, axis| at * &axis.extent + Dim::from(&axis.var));
    Some((tensor, scope.facts.simplify(&address)))
}

fn constant_buffer(lowering: &mut Lowering, name: String, tensor: Tensor) -> BufferId {
    let (dtype, elems) = (tensor.dtype(), Dim::from(tensor.elems()));
    lowering.program.buffers.push(Buffer { name, dtype, elems, space: MemorySpace::Const(tensor) })
}

/// The product of the operands' elements at these addresses, in the type of the sum.
fn product(this: &ContractionNest, buffers: [BufferId; 2], code: &mut InstSeq, addresses: &[Dim]) -> Reg {
    let [x, y] = [0, 1].map(|side| {
        let factor = &this.operands[side];
        let access = Access { buffer: buffers[side], index: addresses[side].clone() };
        let reg = code.push(Inst::Load(access));
        if factor.dtype == this.dtype { reg } else { code.push(Inst::Cast(this.dtype, reg)) }
    });
    code.push(Inst::Binary(BinaryOp::Mul, x, y))
}

/// Sums all products in registers, then runs the epilogue.
fn unrolled(
    scope: &KernelScope,
    this: &ContractionNest,
    buffers: [BufferId; 2],
    reduced: &[Axis],
    extents: &[i64],
) -> InstSeq {
    let mut code = InstSeq::default();
    let mut epilogue = with_exprs(&this.epilogue, &this.nest.exprs[2..]);
    let mut total = None;
    if !points(extents).is_empty()
        && let Some(addend) = take_addend(&mut epilogue)
    {
        total = Some(code.push(addend));
    }
    for point in points(extents) {
        let value = |symbol: &Symbol| {
            reduced.iter().position(|axis| axis.var == *symbol).map(|k| Dim::from(point[k]))
        };
        let addresses = [0, 1].map(|side| scope.facts.simplify(&this.nest.exprs[side].substitute(&value)));
        let term = product(this, buffers, &mut code, &addresses);
        total = Some(match total {
            None => term,
            Some(total) => code.push(Inst::Binary(BinaryOp::Add, total, term)),
        });
    }
    let total = total.unwrap_or_else(|| code.push(Inst::Const(Scalar::from_i64(this.dtype, 0))));
    append(&mut code, &epilogue, total);
    code
}

/// Removes the first addend of an epilogue, such as a bias, if it is an element and the sum has no other use. The sum
/// can then start with it.
fn take_addend(epilogue: &mut InstSeq) -> Option<Inst> {
    let uses = |reg: usize| {
        let operands = epilogue.insts.iter().flat_map(Inst::operands);
        operands.filter(|operand| operand.0 as usize == reg).count()
    };
    let (idx, x, y) = epilogue.insts.iter().enumerate().find_map(|(idx, inst)| match inst {
        Inst::Binary(BinaryOp::Add, x, y) => Some((idx, x.0 as usize, y.0 as usize)),
        _ => None,
    })?;
    let is_sum = |reg: usize| matches!(epilogue.insts[reg], Inst::Sum);
    let (sum, addend) = if is_sum(x) { (x, y) } else { (y, x) };
    // A loaded address is not known before the sum.
    let bound = epilogue.insts.iter().any(|inst| matches!(inst, Inst::Bind(..)));
    let is_load = matches!(epilogue.insts[addend], Inst::Load(_)) && !bound;
    let once = is_sum(sum) && uses(sum) == 1 && uses(addend) == 1;
    if !(is_load && once) {
        return None;
    }
    // All three represent the finished sum now, and only the last is used.
    epilogue.insts[idx] = Inst::Sum;
    Some(std::mem::replace(&mut epilogue.insts[addend], Inst::Sum))
}

/// Sums products in scratch memory, with one strip for each point of the reduction.
fn through_memory(
    lowering: &mut Lowering,
    scope: &mut KernelScope,
    buffers: [BufferId; 2],
    sum: Value,
    this: &ContractionNest,
) -> Result<()> {
    let mut kept = this.nest.axes(AxisRole::Kept);
    let inner = kept.pop().ok_or_else(|| Error::internal("the batch has no axis"))?;
    let elems = lowering.upper_bound_elems(&scope.facts.simplify(&inner.extent))?;
    let buffer = lowering.program.buffers.push(Buffer {
        name: format!("{} (sums)", node_name(lowering.graph, sum)),
        dtype: this.dtype,
        elems,
        space: MemorySpace::Scratch,
    });
    let acc = Access { buffer, index: Dim::from(&inner.var) };
    let mut first = InstSeq::default();
    let zero = first.push(Inst::Const(Scalar::from_i64(this.dtype, 0)));
    first.push(Inst::Store(acc.clone(), zero));
    let mut round = InstSeq::default();
    let term = product(this, buffers, &mut round, &this.nest.exprs[..2]);
    let old = round.push(Inst::Load(acc.clone()));
    let new = round.push(Inst::Binary(BinaryOp::Add, old, term));
    round.push(Inst::Store(acc.clone(), new));
    let mut last = InstSeq::default();
    let total = last.push(Inst::Load(acc));
    append(&mut last, &with_exprs(&this.epilogue, &this.nest.exprs[2..]), total);

    let strip = |code: InstSeq| Stmt::Strip { axis: inner.clone(), code };
    let mut body = vec![renamed(scope, &strip(first))];
    body.extend(loops(&this.nest.axes(AxisRole::Reduced), false, vec![strip(round)]));
    body.push(renamed(scope, &strip(last)));
    lowering.push(this.root, "products", Kernel::default(), loops(&kept, true, body));
    Ok(())
}
