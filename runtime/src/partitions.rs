//! The partition table of a model, and calls that run partitions by the caller's policy.

use crate::{CallError, Context, Model, Outputs, PartitionInfo, QueryError, Steps, TensorMut, TensorRef};
use core::ops::Range;

impl Model {
    /// The partition table; empty if the model has no partitions.
    pub fn partitions(&self) -> &[PartitionInfo] {
        &self.desc.partitions
    }

    /// Whether partitions may run at once, in any order that respects their dependencies. If not, they run one after
    /// another in the order of the table.
    pub fn any_order(&self) -> bool {
        self.desc.any_order()
    }

    /// Estimated work of a partition on `threads` threads, in vector multiply-adds.
    ///
    /// # Errors
    /// When dims are outside the contract, or there is no such partition.
    pub fn partition_cost(&self, partition: usize, dims: &[i64], threads: u32) -> Result<i64, QueryError> {
        self.allowed(dims)?;
        self.accept_partition(partition)?;
        Ok(self.desc.cost(partition, dims, threads.max(1)))
    }

    /// The bytes of the arena between the first and the last that a partition touches. These ranges may overlap for
    /// partitions that run at once; their buffers never do.
    ///
    /// # Errors
    /// As [`Model::partition_cost`].
    pub fn arena_slice(&self, partition: usize, dims: &[i64]) -> Result<Range<usize>, QueryError> {
        self.allowed(dims)?;
        self.accept_partition(partition)?;
        Ok(self.desc.arena_slice(partition, dims))
    }

    fn accept_partition(&self, number: usize) -> Result<(), QueryError> {
        if number < self.partitions().len() { Ok(()) } else { Err(QueryError::NoPartition { number }) }
    }
}

impl Context {
    /// Runs a model with partitions into the caller's buffers. `policy` must run each partition once, after the
    /// partitions that it depends on; it may use several threads. Results have the same bits for any policy.
    ///
    /// ```no_run
    /// # use symshape_runtime::{CallError, Context, TensorMut, TensorRef};
    /// # type Result = std::result::Result<(), CallError>;
    /// # fn call(context: &mut Context, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result {
    /// context.run_steps(inputs, outputs, |steps| {
    ///     for number in 0..steps.len() {
    ///         if steps.run(number).is_err() {
    ///             break;
    ///         }
    ///     }
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Context::run`]; and [`CallError::NotRun`] if the policy did not run every partition. The outputs are
    /// undefined then.
    pub fn run_steps(
        &mut self,
        inputs: &[TensorRef<'_>],
        outputs: &mut [TensorMut<'_>],
        policy: impl FnOnce(&Steps<'_>),
    ) -> Result<(), CallError> {
        self.bind_into(inputs, outputs)?;
        if self.model.partitions().is_empty() {
            return self.call(inputs);
        }
        self.call_steps(inputs, policy)
    }

    /// As [`Context::run_steps`], into the context's own memory, where the outputs stay until the next call.
    ///
    /// # Errors
    /// As [`Context::run_views`] and [`Context::run_steps`].
    pub fn run_views_by_steps(
        &mut self,
        inputs: &[TensorRef<'_>],
        policy: impl FnOnce(&Steps<'_>),
    ) -> Result<Outputs<'_>, CallError> {
        self.bind(inputs)?;
        self.take_own_outputs()?;
        if self.model.partitions().is_empty() {
            self.call(inputs)?;
        } else {
            self.call_steps(inputs, policy)?;
        }
        Ok(self.outputs())
    }
}
