//! The interface of an offload target, and the hooks in the order in which they run.

use super::cost::CallCost;
use crate::{
    error::Result,
    graph::{Graph, Node, Value},
    kernel::{ExternalCall, Program},
};
use std::{num::NonZeroU32, sync::Arc};

/// When a pass over a graph runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphPhase {
    /// Over the whole optimised graph, before any node is claimed.
    Optimized,
    /// Over each part that the target claimed.
    Claimed,
}

/// When a pass over kernels runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelPhase {
    /// Over the lowered program, with one kernel for each value in memory.
    Lowered,
    /// Over the scheduled program, before its memory is planned.
    Scheduled,
}

/// A part of a graph that a target claimed.
#[derive(Clone, Debug)]
pub struct Subgraph {
    /// The computation as a separate graph with the same symbols and facts. It contains its constants.
    pub graph: Graph,
    /// The values of its inputs, in the original graph.
    pub operands: Vec<Value>,
}

/// How many calls of a target may run at once, within one call of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Concurrency {
    /// One: a device, or a library that is not thread-safe.
    #[default]
    One,
    /// Up to this number: several queues or several equal devices.
    AtMost(NonZeroU32),
    /// Any number: the functions may run on any threads at once.
    Any,
}

impl Concurrency {
    /// The largest number of calls at once, if there is one.
    pub fn limit(self) -> Option<NonZeroU32> {
        match self {
            Concurrency::One => Some(NonZeroU32::MIN),
            Concurrency::AtMost(limit) => Some(limit),
            Concurrency::Any => None,
        }
    }
}

/// A library or device that runs parts of a model.
///
/// All hooks but the first three have a default that does nothing. They run in the order of this list, on the
/// compiler's own IRs. A target stores all its results there.
pub trait Target: Send + Sync {
    /// The name on the command line, in messages and in the target's calls: a single word.
    fn name(&self) -> &str;

    /// A pass over graphs, see [`GraphPhase`]. The graph must still compute the same results.
    ///
    /// # Errors
    /// The model can't be compiled for this target.
    fn graph_pass(&self, phase: GraphPhase, graph: &mut Graph) -> Result<()> {
        let _ = (phase, graph);
        Ok(())
    }

    /// Whether the target takes this node of the graph. Inputs, constants, control flow, calls, and nodes with
    /// data-dependent sizes are not offered.
    fn claim(&self, graph: &Graph, node: &Node) -> bool;

    /// Lowers a part into the graph: to calls of its functions ([`Op::Call`](crate::graph::Op::Call)) and any other
    /// core operators. Returns a value for each output of the part, of the same type.
    ///
    /// # Errors
    /// The part can't be lowered. Compiling ends with this error, and with the names of the target and of the nodes.
    fn lower(&self, part: &Subgraph, graph: &mut Graph) -> Result<Vec<Value>>;

    /// The size of the device memory in bytes, if there is one. Buffers that only the target's calls touch are planned
    /// in it: values that one call passes to another, and scratch memory. A part that needs more at once is divided or
    /// refused, as the compile options say.
    ///
    /// The memory is a part of the arena, so that calls of the model on several threads don't share it. A function
    /// receives its start ([`symshape_runtime::abi::Call::memory`]); the addresses of a real device are offsets from
    /// there.
    fn memory_bytes(&self) -> Option<u64> {
        None
    }

    /// How many of the target's calls may run at once. Entries of the partition table wait for each other such that no
    /// policy, the caller's own included, breaks the limit. It is a limit of one call of the model: several contexts,
    /// models and processes don't know of each other.
    fn concurrency(&self) -> Concurrency {
        Concurrency::One
    }

    /// A pass over kernels, see [`KernelPhase`].
    ///
    /// # Errors
    /// The model can't be compiled for this target.
    fn kernel_pass(&self, phase: KernelPhase, program: &mut Program) -> Result<()> {
        let _ = (phase, program);
        Ok(())
    }

    /// Completes a call of this target when the final program and its buffers are known, for example by an attribute
    /// with code for a device.
    ///
    /// # Errors
    /// The call can't be completed.
    fn emit(&self, call: &mut ExternalCall, program: &Program) -> Result<()> {
        let _ = (call, program);
        Ok(())
    }

    /// The estimated time of one of the target's calls, after [`Target::emit`]. It decides how the model is cut into
    /// partitions, and whether they run at once. The formula may contain the symbols of the model, which the dims of
    /// the arguments ([`Argument::shape`](crate::kernel::Argument::shape)) consist of. By default the time is guessed
    /// from the sizes of the arguments.
    fn cost(&self, call: &ExternalCall, program: &Program) -> Option<CallCost> {
        let _ = (call, program);
        None
    }
}

/// Targets in the order in which nodes are offered to them.
pub type Targets = [Arc<dyn Target>];
