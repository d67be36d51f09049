//! Batches of a constant size that run a few images at a time.

use std::collections::BTreeSet;

/// How a call runs a batch of constant size: its kernels compute one block of images, and run once for each block.
///
/// The inputs and outputs have all images, one after another. Buffers of the arena have those of one block. If the
/// blocks don't divide the batch, the last one begins earlier and computes some images again, with the same results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchBlocks {
    /// Images of a call.
    pub images: i64,
    /// Images of a block, at most those of a call.
    pub block: i64,
    /// Parts of the arena with the tensors of one block each: as many threads may run blocks at once.
    pub slices: u32,
    /// Indices of the inputs that all images share.
    pub shared: BTreeSet<u32>,
}

impl BatchBlocks {
    /// Runs of the kernels in a call.
    pub fn count(&self) -> i64 {
        let block = self.block.max(1);
        self.images / block + i64::from(self.images % block != 0)
    }

    /// The first image of a block.
    pub(crate) fn first_image(&self, block: i64) -> i64 {
        (block * self.block).min(self.images - self.block)
    }
}
