//! Everything that the functions of a C source share, computed once for the source.

use super::{
    names::SymbolNames,
    variables::{self, Variable},
    weights::SourceWeights,
};
use crate::{
    error::Result,
    kernel::{Program, contract::Contract},
    plan::Plan,
};

/// A program with its plan, its C names and its call contract.
pub(super) struct SourceContext<'p> {
    pub(super) program: &'p Program,
    pub(super) plan: &'p Plan,
    pub(super) names: SymbolNames,
    pub(super) call_contract: Contract,
    /// The variables of buffers that functions may use, each after those that it depends on.
    pub(super) variables: Vec<Variable>,
    /// The weights file, if the source does not contain its constants.
    pub(super) weights: Option<SourceWeights>,
    /// Whether contractions are tiles of vectors.
    pub(super) vectors: bool,
}

impl<'p> SourceContext<'p> {
    /// # Errors
    /// A size that does not fit in 64 bits, or symbols that don't follow from the shapes of the inputs.
    pub(super) fn new(
        program: &'p Program,
        plan: &'p Plan,
        weights: Option<SourceWeights>,
        vectors: bool,
    ) -> Result<SourceContext<'p>> {
        let names = SymbolNames::new(program);
        let call_contract = Contract::of(program)?;
        let variables = variables::of(program, plan, &names, weights.as_ref())?;
        Ok(SourceContext { program, plan, names, call_contract, variables, weights, vectors })
    }
}
