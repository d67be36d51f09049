//! The proof that the images of a batch are independent, and the distance from image to image in each buffer.
//!
//! Every top-level statement must have a *head*: a loop over the images around all of its work, so that a block of
//! images takes a part of the work of each kernel. [`Items`] proves that the iterations of an image access that image
//! alone.

use super::{BufferId, Kernel, MemorySpace, Program, Stmt, items::Items, walk};
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Symbol};

/// Bytes that the kernels of one block may access: a part of a third-level cache.
pub(crate) const BLOCK_BYTES: i64 = 4 << 20;

/// The smallest ratio of the bytes accessed for one image to the bytes of the weights. Below it, reading the weights
/// again for each block or thread costs more than the blocks gain.
const MIN_TRAFFIC_TO_WEIGHTS: i64 = 3;

/// The least bytes that kernels must access for an image, so that blocks pay.
pub(crate) fn min_image_bytes(program: &Program) -> i64 {
    weight_bytes(program).saturating_mul(MIN_TRAFFIC_TO_WEIGHTS)
}

/// Bytes of constants.
pub(crate) fn weight_bytes(program: &Program) -> i64 {
    let bytes = program.buffers.values().filter_map(|buffer| match &buffer.space {
        MemorySpace::Const(tensor) => Some(tensor.size_bytes() as i64),
        _ => None,
    });
    bytes.sum()
}

/// Distances from image to image.
pub(crate) struct BatchStrides<'p> {
    program: &'p Program,
    /// The batch size.
    symbol: &'p Symbol,
    /// Elements from image to image; 0 for buffers that all images share. Constants and scratch are absent.
    elements: BTreeMap<BufferId, Dim>,
}

/// Bytes that kernels access for one image, as formulas over the other symbols.
pub(crate) struct ImageTraffic {
    /// The sum over all kernels.
    pub(crate) total: Dim,
    /// The different sums of kernels.
    pub(crate) of_kernels: BTreeSet<Dim>,
}

impl<'p> BatchStrides<'p> {
    /// The distances, or `None` unless the images are independent.
    pub(crate) fn of(program: &'p Program, symbol: &'p Symbol) -> Option<BatchStrides<'p>> {
        let mut strides = BatchStrides::new(program, symbol);
        program.kernels.iter().try_for_each(|kernel| strides.add_kernel(kernel))?;
        Some(strides)
    }

    /// The distances of no kernel yet; `symbol` is the batch size.
    pub(crate) fn new(program: &'p Program, symbol: &'p Symbol) -> BatchStrides<'p> {
        BatchStrides { program, symbol, elements: BTreeMap::new() }
    }

    /// Elements from image to image of each buffer, 0 for those that all images share. Constants and scratch are
    /// absent.
    pub(crate) fn elements(&self) -> &BTreeMap<BufferId, Dim> {
        &self.elements
    }

    /// Bytes from image to image of the input or output in this memory space, if the images are its outermost axis or
    /// it does not depend on them.
    pub(crate) fn bytes_of(&self, space: &MemorySpace) -> Option<Dim> {
        let mut buffers = self.program.buffers.iter();
        let (id, buffer) = buffers.find(|(_, buffer)| is_same_port(&buffer.space, space))?;
        let elements = self.elements.get(&id).cloned().unwrap_or_else(Dim::zero);

        let is_shared = elements.as_i64() == Some(0) && !buffer.elems.contains(self.symbol);
        let all_images = Dim::from(self.symbol) * &elements;
        let fits = is_shared || self.program.facts.prove_eq(&all_images, &buffer.elems).is_yes();
        fits.then(|| elements * buffer.dtype.size_bytes() as i64)
    }

    /// Bytes that the kernels access for one image.
    pub(crate) fn traffic(&self) -> ImageTraffic {
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

    /// Adds the distances of a kernel, or none of them unless its images are independent and all distances fit those
    /// of other kernels.
    pub(crate) fn add_kernel(&mut self, kernel: &Kernel) -> Option<()> {
        if !kernel.body.iter().all(|stmt| self.has_head(stmt)) {
            return None;
        }
        let steps = Items::new(self.program, self.symbol).steps(kernel).ok()?;
        if !steps.iter().all(|(buffer, step)| self.fits(*buffer, step)) {
            return None;
        }
        self.elements.extend(steps);
        Some(())
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

    /// Whether a buffer may have this distance, which must be the same for all accesses.
    fn fits(&self, buffer: BufferId, elements: &Dim) -> bool {
        // The image or a loop may not be part of it: it is computed once for a call.
        let is_known = |symbol: &Symbol| symbol != self.symbol && self.is_symbol(symbol);
        if !elements.symbols().iter().all(is_known) {
            return false;
        }
        let known = self.elements.get(&buffer);
        known.is_none_or(|known| self.program.facts.prove_eq(known, elements).is_yes())
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
