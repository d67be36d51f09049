//! Control markers: branches and loops over whole kernels, run-time guards, and calls of external functions.

use super::{Access, BufferId};
use crate::external::Callee;
use symshape::{Assumption, Dim, Symbol};

/// A tensor that is passed to an external function: dense, row-major, beginning at `first`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Argument {
    /// The first element.
    pub first: Access,
    /// The shape, outermost dim first.
    pub shape: Vec<Dim>,
}

impl Argument {
    /// The number of elements.
    pub fn elems(&self) -> Dim {
        Dim::product(self.shape.iter().cloned())
    }
}

/// A call of an external function.
#[derive(Clone, Debug)]
pub struct ExternalCall {
    /// The function and its constants.
    pub callee: Callee,
    /// Tensors that the function reads.
    pub operands: Vec<Argument>,
    /// Tensors that the function writes completely. They overlap neither each other nor an operand.
    pub results: Vec<Argument>,
    /// Memory that only the function uses during the call.
    pub scratch: Option<BufferId>,
    /// The estimated work in vector multiply-adds, over the model's symbols. If it is `None`, the work is guessed from
    /// the sizes of the arguments.
    pub work: Option<Dim>,
    /// The node that the error of a failed call names.
    pub context: String,
}

/// A step between kernels. `If`, `Else`, `While` and `End` delimit regions, which nest.
#[derive(Clone, Debug)]
pub enum Control {
    /// Begins a branch. The kernels up to the matching `Else` or `End` run if element 0 of this bool buffer is true.
    If(BufferId),
    /// Begins the alternative of a branch. The kernels up to the matching `End` run if the condition is false.
    Else,
    /// Begins a loop. The kernels up to the matching `End` run while element 0 of this bool buffer is true. It is read
    /// before each iteration.
    While(BufferId),
    /// Ends a region.
    End,
    /// Binds a symbol of [`Program::data_dependent`](super::Program::data_dependent) to element 0 of an `i64` buffer,
    /// until it is bound again. A value outside `lo..end` ends the call with a typed error.
    Bind {
        /// The symbol that is bound.
        symbol: Symbol,
        /// The buffer that holds the value.
        from: BufferId,
        /// Smallest allowed value.
        lo: Dim,
        /// Exclusive upper bound of the allowed values.
        end: Dim,
        /// The node that the error names.
        context: String,
    },
    /// A relation that must hold when control reaches this step.
    Require(Assumption),
    /// Calls an external function. A failure of the function ends the call with a typed error.
    Call(Box<ExternalCall>),
    /// Ends the call with a typed error. Control reaches this step only if the inputs contradict the model, for the
    /// reason given.
    Fail(String),
}

impl Control {
    /// The buffers that the step reads, and the buffers that it writes.
    pub fn touched(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        match self {
            Control::If(cell) | Control::While(cell) | Control::Bind { from: cell, .. } => {
                (vec![*cell], Vec::new())
            }
            Control::Call(call) => {
                let buffers =
                    |arguments: &[Argument]| arguments.iter().map(|argument| argument.first.buffer).collect();
                let mut written: Vec<BufferId> = buffers(&call.results);
                written.extend(call.scratch);
                (buffers(&call.operands), written)
            }
            Control::Else | Control::End | Control::Require(_) | Control::Fail(_) => (Vec::new(), Vec::new()),
        }
    }

    /// Calls `see` for each use of a buffer.
    pub(crate) fn buffers_mut(&mut self, see: &mut dyn FnMut(&mut BufferId)) {
        match self {
            Control::If(cell) | Control::While(cell) | Control::Bind { from: cell, .. } => see(cell),
            Control::Call(call) => {
                let arguments = call.operands.iter_mut().chain(&mut call.results);
                arguments.for_each(|argument| see(&mut argument.first.buffer));
                call.scratch.iter_mut().for_each(see);
            }
            Control::Else | Control::End | Control::Require(_) | Control::Fail(_) => {}
        }
    }
}
