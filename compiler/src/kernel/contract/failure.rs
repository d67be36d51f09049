//! The part of an error that is known at compile time.

use crate::kernel::ExternalCall;
use symshape::Symbol;
use symshape_runtime::abi::Code;

/// An axis of an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InputAxis {
    /// Index of the input.
    pub input: u32,
    /// Index of the axis in the input's shape.
    pub axis: u32,
}

/// An error of a call without the values that are known only at run time; see [`symshape_runtime::abi::Error`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    /// The code that the call returns.
    pub code: Code,
    /// The axis that has a wrong size, or that a wrong value comes from.
    pub axis: Option<InputAxis>,
    /// Index of the symbol in the ABI's `dims`.
    pub symbol: Option<u32>,
    /// Name of the symbol, or text of the dim or relation.
    pub symbol_name: Option<String>,
    /// Name of the tensor or node.
    pub tensor_name: Option<String>,
    /// The declaration that is violated, or another reason.
    pub why: Option<String>,
}

impl Failure {
    /// A failure with this code and nothing else.
    pub(crate) fn new(code: Code) -> Failure {
        Failure { code, axis: None, symbol: None, symbol_name: None, tensor_name: None, why: None }
    }

    /// Control reaches code that contradicts the inputs, for the reason `why`.
    pub(crate) fn contradiction(why: &str) -> Failure {
        Failure { why: Some(why.into()), ..Failure::new(Code::Contradiction) }
    }

    /// The caller requests a policy that the arena is not planned for.
    pub(crate) fn not_planned() -> Failure {
        let why = "the arena of this artefact is planned for partitions that run one after another; \
                   compile with --policies any";
        Failure { why: Some(why.into()), ..Failure::new(Code::NotPlanned) }
    }

    /// An external function returns an error.
    pub(crate) fn external_call(call: &ExternalCall) -> Failure {
        Failure {
            symbol_name: Some(call.callee.symbol.clone()),
            tensor_name: Some(call.context.clone()),
            why: Some("the function is external to the model and defines its own error codes".into()),
            ..Failure::new(Code::CalleeFailed)
        }
    }

    /// The value of a [`Check`](crate::kernel::Check) is out of bounds.
    pub(crate) fn index_out_of_bounds(context: &str) -> Failure {
        Failure { tensor_name: Some(context.into()), ..Failure::new(Code::IndexOutOfBounds) }
    }

    /// The value of a data-dependent symbol is out of bounds.
    pub(crate) fn symbol_out_of_bounds(symbol: &Symbol, context: &str) -> Failure {
        Failure {
            symbol_name: Some(symbol.name().into()),
            why: Some(format!("{} depends on the data and is known only at run time", symbol.name())),
            ..Failure::index_out_of_bounds(context)
        }
    }
}
