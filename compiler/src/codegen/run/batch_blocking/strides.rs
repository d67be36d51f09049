//! The proof that the images of a batch are independent, and the distance from image to image in each buffer.
//!
//! Every top-level statement must have a *head*: a loop over the images around all of its work, so that a block of
//! images takes a part of the work of each kernel. [`Items`] proves that the iterations of an image access that image
//! alone.

use crate::kernel::{BufferId, Kernel, MemorySpace, Program, Stmt, items::Items, walk};
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Symbol};

/// Distances from image to image.
pub(super) struct BatchStrides<'p> {
    program: &'p Program,
    /// The batch size.
    symbol: &'p Symbol,
    /// Elements from image to image; 0 for buffers that all images share. Constants and scratch are absent.
    elements: BTreeMap<BufferId, Dim>,
}

/// Bytes that kernels access for one image, as formulas over the other symbols.
pub(super) struct ImageTraffic {
    /// The sum over all kernels.
    pub(super) total: Dim,
    /// The different sums of kernels.
    pub(super) of_kernels: BTreeSet<Dim>,
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
    pub(super) fn bytes_of(&self, space: &MemorySpace) -> Option<Dim> {
        let mut buffers = self.program.buffers.iter();
        let (id, buffer) = buffers.find(|(_, buffer)| is_same_port(&buffer.space, space))?;
        let elements = self.elements.get(&id).cloned().unwrap_or_else(Dim::zero);

        let is_shared = elements.as_i64() == Some(0) && !buffer.elems.contains(self.symbol);
        let all_images = Dim::from(self.symbol) * &elements;
        let fits = is_shared || self.program.facts.prove_eq(&all_images, &buffer.elems).is_yes();
        fits.then(|| elements * buffer.dtype.size_bytes() as i64)
    }

    /// Bytes that the kernels access for one image.
    pub(super) fn traffic(&self) -> ImageTraffic {
        let mut traffic = ImageTraffic { total: Dim::zero(), of_kernels: BTreeSet::new() };
        for kernel in &self.program.kernels {
            let mut accessed = BTreeSet::new();
            walk::accesses(&kernel.body, &mut |site| _ = accessed.insert(site.access.buffer));
            let bytes = accessed.iter().filter_map(|id| {
                let size = self.program.buffers[*id].dtype.size_bytes() as i64;
                Some(self.elements.get(id)? * size)
            });
            let bytes = Dim::sum(bytes);
            traffic.total = traffic.total + &bytes;
            traffic.of_kernels.insert(bytes);
        }

        traffic
    }

    fn add_kernel(&mut self, kernel: &Kernel) -> Option<()> {
        if !kernel.body.iter().all(|stmt| self.has_head(stmt)) {
            return None;
        }
        let steps = Items::new(self.program, self.symbol).steps(kernel).ok()?;
        steps.into_iter().try_for_each(|(buffer, step)| self.add_stride(buffer, step))
    }

    /// Whether the outermost loop of a statement is over the images, or the loops around those over images are over
    /// something else, such as the groups of a convolution. A block of images then takes its part of the work.
    fn has_head(&self, stmt: &Stmt) -> bool {
        let axis = match stmt {
            Stmt::For { axis, body, .. } if !axis.extent.contains(self.symbol) => {
                return !body.is_empty() && body.iter().all(|stmt| self.has_head(stmt));
            }
            Stmt::For { axis, .. } | Stmt::Strip { axis, .. } => Some(axis),
            Stmt::Contraction(contraction) => contraction.m.first(),
            Stmt::Block(_) | Stmt::If { .. } | Stmt::While { .. } => None,
        };
        axis.is_some_and(|axis| axis.extent.contains(self.symbol))
    }

    /// Records a buffer's distance, which must be the same for all accesses.
    fn add_stride(&mut self, buffer: BufferId, elements: Dim) -> Option<()> {
        // The image or a loop may not be part of it: it is computed once for a call.
        if !elements.symbols().iter().all(|symbol| symbol != self.symbol && self.is_symbol(symbol)) {
            return None;
        }
        let known = self.elements.entry(buffer).or_insert_with(|| elements.clone());
        self.program.facts.prove_eq(known, &elements).is_yes().then_some(())
    }

    /// Whether the program declares the symbol.
    fn is_symbol(&self, symbol: &Symbol) -> bool {
        self.program.symbols.contains(symbol)
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
