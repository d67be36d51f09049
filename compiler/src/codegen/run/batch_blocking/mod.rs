//! Large batches a few images at a time.
//!
//! Where all that a model computes for one image (one step of a symbol that heads every loop) is apart from all others,
//! a call for many is as good as several calls for a few, to the bit. It is faster where what passes between kernels is
//! large and weights are small: the tensors of a few images stay in the caches from one kernel to the next, those of a
//! whole batch don't. `run` then is a loop around the function that runs all kernels, with the caller's tensors moved on
//! from group to group; the arena and the contraction are those of the whole batch. Several threads take images of their own.

mod run;

use crate::kernel::{Access, Axis, BufferId, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt, walk};
use num_traits::ToPrimitive;
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Facts, Symbol};

/// Bytes that the kernels of one group may touch between them: a part of a third-level cache.
const GROUP_BYTES: i64 = 4 << 20;

/// What passes between kernels for one image, in weights: with less, reading these once more for each group or thread
/// costs more than is gained.
const TRAFFIC_TO_WEIGHTS: i64 = 3;

/// How a batch is cut.
pub(crate) struct Images {
    /// The symbol's place among the dims, and its highest value.
    symbol: usize,
    most: i64,
    /// Images of a group.
    group: i64,
    /// Several threads may take images of their own. The size of a part of the arena must depend on the number of images
    /// alone, and a table of partitions is the caller's, who may run it as he likes.
    at_once: bool,
    /// Bytes from image to image of each input and output; 0 for those that all images share.
    inputs: Vec<i64>,
    outputs: Vec<i64>,
}

impl Images {
    /// How to cut the program's batches, if that can be done and is worth it.
    pub(crate) fn of(program: &Program) -> Option<Images> {
        let plain = program.data_dependent.is_empty()
            && program.kernels.iter().all(|kernel| kernel.control.is_none());
        let symbols = program.symbols.iter().enumerate().filter(|_| plain);
        symbols.into_iter().find_map(|(idx, symbol)| Images::along(program, idx, symbol))
    }

    fn along(program: &Program, idx: usize, symbol: &Symbol) -> Option<Images> {
        let declared = program.facts.declaration(symbol)?;
        let free = declared.values.is_none()
            && declared.step.to_i64() == Some(1)
            && !program
                .facts
                .assumptions()
                .iter()
                .any(|fact| fact.relation.a.contains(symbol) || fact.relation.b.contains(symbol));
        let bounds = program.facts.bounds(&Dim::from(symbol));
        let (lo, most) = (bounds.lo?.to_i64()?, bounds.hi?.to_i64()?);
        if !free || lo > 1 {
            return None;
        }
        let mut strides = Strides { program, symbol, of: BTreeMap::new() };
        program.kernels.iter().try_for_each(|kernel| strides.kernel(kernel))?;
        let (traffic, widest) = strides.traffic();
        let pays = traffic >= weights(program).saturating_mul(TRAFFIC_TO_WEIGHTS);
        let group = (GROUP_BYTES / widest).max(1).min(most);
        let at_once = most > 1 && program.symbols.len() == 1 && program.partitions.is_empty();
        if !pays || group == most && !at_once {
            return None;
        }
        let ports = |space: &dyn Fn(&MemorySpace) -> bool| -> Option<i64> {
            let (id, buffer) = program.buffers.iter().find(|(_, buffer)| space(&buffer.space))?;
            let elems = strides.of.get(&id).copied().unwrap_or(0);
            let whole = Dim::from(symbol) * elems;
            let fits = elems == 0 && !buffer.elems.contains(symbol)
                || program.facts.prove_eq(&whole, &buffer.elems).is_yes();
            fits.then(|| elems * buffer.dtype.size_bytes() as i64)
        };
        let inputs = (0..program.inputs.len() as u32)
            .map(|number| ports(&|space| matches!(space, MemorySpace::Input(other) if *other == number)))
            .collect::<Option<_>>()?;
        let outputs = (0..program.outputs.len() as u32)
            .map(|number| ports(&|space| matches!(space, MemorySpace::Output(other) if *other == number)))
            .collect::<Option<_>>()?;
        Some(Images { symbol: idx, most, group, at_once, inputs, outputs })
    }
}

/// What is found of the buffers' elements from image to image.
struct Strides<'p> {
    program: &'p Program,
    symbol: &'p Symbol,
    of: BTreeMap<BufferId, i64>,
}

impl Strides<'_> {
    /// Looks at a kernel; `None` where an image is not apart from the others.
    fn kernel(&mut self, kernel: &Kernel) -> Option<()> {
        kernel.body.iter().try_for_each(|stmt| self.stmt(stmt))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Option<()> {
        let reduces = |code: &InstSeq| code.insts.iter().any(|inst| matches!(inst, Inst::Reduce(..)));
        let head = match stmt {
            Stmt::For { axis, parallel: true, .. } => axis,
            Stmt::Strip { axis, code } if !reduces(code) => axis,
            Stmt::Contraction(contraction) => contraction.m.first()?,
            _ => return None,
        };
        // The head runs over so many steps of each image.
        let steps = self.program.facts.linear_in(&head.extent, self.symbol);
        let steps =
            steps.filter(|(_, rest)| rest.as_i64() == Some(0))?.0.as_i64().filter(|steps| *steps > 0)?;
        self.mentions_no_more(stmt, head).then_some(())?;
        let mut good = Some(());
        walk::accesses(std::slice::from_ref(stmt), &mut |site| {
            good = good.and_then(|()| self.access(head, steps, site.access, site.axes));
        });
        good
    }

    /// Whether nothing but the head's extent and addresses tells one image from another.
    fn mentions_no_more(&self, stmt: &Stmt, head: &Axis) -> bool {
        let by_image = |dim: &Dim| dim.contains(self.symbol);
        let is_plain = |code: &InstSeq| {
            code.insts.iter().all(|inst| match inst {
                Inst::Index(_, dim) => !by_image(dim) && !dim.contains(&head.var),
                Inst::Bind(..) | Inst::Check(_) => false,
                _ => true,
            })
        };
        let extents = |axes: &[Axis]| axes.iter().all(|axis| axis == head || !by_image(&axis.extent));
        match stmt {
            Stmt::Block(code) => is_plain(code),
            Stmt::Strip { axis, code } => extents(std::slice::from_ref(axis)) && is_plain(code),
            Stmt::For { axis, body, .. } => {
                extents(std::slice::from_ref(axis))
                    && body.iter().all(|stmt| self.mentions_no_more(stmt, head))
            }
            Stmt::Contraction(contraction) => {
                let base = match &contraction.rhs {
                    Rhs::Panels { base, .. } => base,
                    Rhs::Indexed(access) => &access.index,
                };
                extents(&contraction.m)
                    && extents(&contraction.k)
                    && extents(std::slice::from_ref(&contraction.n))
                    && !by_image(base)
                    && is_plain(&contraction.epilogue)
            }
            Stmt::If { .. } | Stmt::While { .. } => false,
        }
    }

    /// An access is within the image that the head stands at, at a distance from image to image that all share.
    fn access(&mut self, head: &Axis, steps: i64, access: &Access, axes: &[Axis]) -> Option<()> {
        let space = &self.program.buffers[access.buffer].space;
        if access.index.contains(self.symbol) {
            return None;
        }
        if matches!(space, MemorySpace::Const(_) | MemorySpace::Scratch) {
            return (!access.index.contains(&head.var)).then_some(());
        }
        let mut facts: Facts = self.program.facts.clone();
        axes.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
        // What does not move is the same for all images.
        if !access.index.contains(&head.var) {
            return (*self.of.entry(access.buffer).or_insert(0) == 0).then_some(());
        }
        let (step, rest) = facts.linear_in(&access.index, &head.var)?;
        let step = step.as_i64()?;
        let inside =
            facts.prove_le(&Dim::zero(), &rest).is_yes() && facts.prove_lt(&rest, &step.into()).is_yes();
        let stride = step.checked_mul(steps)?;
        let known = *self.of.entry(access.buffer).or_insert(stride);
        (inside && known == stride).then_some(())
    }

    /// Bytes that the kernels touch for one image, in all and at most in one of them.
    fn traffic(&self) -> (i64, i64) {
        let bytes = |id: &BufferId| self.of[id] * self.program.buffers[*id].dtype.size_bytes() as i64;
        let (mut traffic, mut widest) = (0_i64, 1);
        for kernel in &self.program.kernels {
            let mut touched = BTreeSet::new();
            walk::accesses(&kernel.body, &mut |site| _ = touched.insert(site.access.buffer));
            let here: i64 = touched.iter().filter(|id| self.of.contains_key(id)).map(bytes).sum();
            traffic = traffic.saturating_add(here);
            widest = widest.max(here);
        }
        (traffic, widest)
    }
}

/// Bytes of constants.
fn weights(program: &Program) -> i64 {
    let weights = program.buffers.values().filter_map(|buffer| match &buffer.space {
        MemorySpace::Const(tensor) => Some(tensor.bytes().len() as i64),
        _ => None,
    });
    weights.sum()
}
