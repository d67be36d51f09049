//! The proof that the images of a batch are independent, and the distance from image to image in each buffer.
//!
//! Every top-level statement must have a parallel *head*: an outermost loop whose extent is a multiple of the batch
//! size, so that it runs the same number of steps for each image. Each access must then stay within the image of the
//! current step, or within memory that all images share. Nothing else may depend on the batch size.

use crate::kernel::{
    Access, Axis, BufferId, FewBitsPanels, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt, walk,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};
use symshape::{Dim, Symbol};

/// Distances from image to image.
pub(super) struct BatchStrides<'p> {
    program: &'p Program,
    /// The batch size.
    symbol: &'p Symbol,
    /// Elements from image to image; 0 for buffers that all images share. Constants and scratch are absent.
    elements: BTreeMap<BufferId, i64>,
}

/// Bytes that kernels access for one image.
pub(super) struct ImageTraffic {
    /// The sum over all kernels.
    pub(super) total: i64,
    /// The largest sum of one kernel, at least 1.
    pub(super) max_of_kernel: i64,
}

/// The parallel axis around a statement, which runs over the images.
struct HeadAxis<'k> {
    axis: &'k Axis,
    /// Its steps for each image.
    steps: i64,
}

impl<'p> BatchStrides<'p> {
    /// The distances, or `None` unless the images are independent.
    pub(super) fn of(program: &'p Program, symbol: &'p Symbol) -> Option<BatchStrides<'p>> {
        let mut strides = BatchStrides { program, symbol, elements: BTreeMap::new() };
        program.kernels.iter().try_for_each(|kernel| strides.add_kernel(kernel))?;
        Some(strides)
    }

    /// Bytes from image to image of the input or output in this memory space, if the images are its outermost axis or
    /// it does not depend on them.
    pub(super) fn bytes_of(&self, space: &MemorySpace) -> Option<i64> {
        let mut buffers = self.program.buffers.iter();
        let (id, buffer) = buffers.find(|(_, buffer)| is_same_port(&buffer.space, space))?;
        let elements = self.elements.get(&id).copied().unwrap_or(0);

        let is_shared = elements == 0 && !buffer.elems.contains(self.symbol);
        let all_images = Dim::from(self.symbol) * elements;
        let fits = is_shared || self.program.facts.prove_eq(&all_images, &buffer.elems).is_yes();
        fits.then(|| elements * buffer.dtype.size_bytes() as i64)
    }

    /// Bytes that the kernels access for one image.
    pub(super) fn traffic(&self) -> ImageTraffic {
        let mut traffic = ImageTraffic { total: 0, max_of_kernel: 1 };
        for kernel in &self.program.kernels {
            let mut accessed = BTreeSet::new();
            walk::accesses(&kernel.body, &mut |site| _ = accessed.insert(site.access.buffer));
            let bytes = accessed.iter().filter_map(|id| {
                let size = self.program.buffers[*id].dtype.size_bytes() as i64;
                Some(self.elements.get(id)? * size)
            });
            let bytes: i64 = bytes.sum();
            traffic.total = traffic.total.saturating_add(bytes);
            traffic.max_of_kernel = traffic.max_of_kernel.max(bytes);
        }

        traffic
    }

    fn add_kernel(&mut self, kernel: &Kernel) -> Option<()> {
        kernel.body.iter().try_for_each(|stmt| self.add_stmt(stmt))
    }

    fn add_stmt(&mut self, stmt: &Stmt) -> Option<()> {
        let head = self.head(stmt)?;
        if !self.is_independent(stmt, head.axis) {
            return None;
        }

        let mut result = Some(());
        walk::accesses(slice::from_ref(stmt), &mut |site| {
            result = result.and_then(|()| self.add_access(&head, site.access, site.axes));
        });
        result
    }

    /// The head of a statement, if it has one.
    fn head<'k>(&self, stmt: &'k Stmt) -> Option<HeadAxis<'k>> {
        let axis = match stmt {
            Stmt::For { axis, parallel: true, .. } => axis,
            Stmt::Strip { axis, code } if !has_reductions(code) => axis,
            Stmt::Contraction(contraction) => contraction.m.first()?,
            _ => return None,
        };
        let (steps, rest) = self.program.facts.linear_in(&axis.extent, self.symbol)?;
        let steps = steps.as_i64()?;
        (steps > 0 && rest.as_i64() == Some(0)).then_some(HeadAxis { axis, steps })
    }

    /// Whether only the head's extent and addresses depend on the image.
    fn is_independent(&self, stmt: &Stmt, head: &Axis) -> bool {
        let depends = |dim: &Dim| dim.contains(self.symbol);
        let is_plain = |code: &InstSeq| {
            code.insts.iter().all(|inst| match inst {
                Inst::Index(_, dim) => !depends(dim) && !dim.contains(&head.var),
                Inst::Bind(..) | Inst::Check(_) => false,
                _ => true,
            })
        };
        let is_fixed = |axis: &Axis| axis == head || !depends(&axis.extent);

        match stmt {
            Stmt::Block(code) => is_plain(code),
            Stmt::Strip { axis, code } => is_fixed(axis) && is_plain(code),
            Stmt::For { axis, body, .. } => {
                is_fixed(axis) && body.iter().all(|stmt| self.is_independent(stmt, head))
            }
            Stmt::Contraction(contraction) => {
                let rhs = match &contraction.rhs {
                    Rhs::Panels { base, .. } | Rhs::FewBits(FewBitsPanels { base, .. }) => base,
                    Rhs::Indexed(access) => &access.index,
                };
                contraction.m.iter().all(is_fixed)
                    && contraction.k.iter().all(is_fixed)
                    && is_fixed(&contraction.n)
                    && !depends(rhs)
                    && is_plain(&contraction.epilogue)
            }
            Stmt::If { .. } | Stmt::While { .. } => false,
        }
    }

    /// Adds the distance of an access inside `axes`, if it stays within the current image.
    fn add_access(&mut self, head: &HeadAxis, access: &Access, axes: &[Axis]) -> Option<()> {
        if access.index.contains(self.symbol) {
            return None;
        }
        let moves = access.index.contains(&head.axis.var);
        let space = &self.program.buffers[access.buffer].space;
        if matches!(space, MemorySpace::Const(_) | MemorySpace::Scratch) {
            return (!moves).then_some(());
        }
        if !moves {
            return self.add_stride(access.buffer, 0);
        }

        let mut facts = self.program.facts.clone();
        axes.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
        let (step, rest) = facts.linear_in(&access.index, &head.axis.var)?;
        let step = step.as_i64()?;
        let is_inside =
            facts.prove_le(&Dim::zero(), &rest).is_yes() && facts.prove_lt(&rest, &step.into()).is_yes();
        let stride = step.checked_mul(head.steps)?;
        self.add_stride(access.buffer, stride)?;
        is_inside.then_some(())
    }

    /// Records a buffer's distance, which must be the same for all accesses.
    fn add_stride(&mut self, buffer: BufferId, elements: i64) -> Option<()> {
        let known = *self.elements.entry(buffer).or_insert(elements);
        (known == elements).then_some(())
    }
}

/// Whether both are the same input or the same output.
fn is_same_port(a: &MemorySpace, b: &MemorySpace) -> bool {
    match (a, b) {
        (MemorySpace::Input(a), MemorySpace::Input(b)) => a == b,
        (MemorySpace::Output(a), MemorySpace::Output(b)) => a == b,
        _ => false,
    }
}

fn has_reductions(code: &InstSeq) -> bool {
    code.insts.iter().any(|inst| matches!(inst, Inst::Reduce(..)))
}
