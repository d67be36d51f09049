//! Relations between dims that operators rely on.

use symshape::Relation;

/// A relation that must hold for an operator to be well-defined.
#[derive(Clone, Debug)]
pub(crate) struct Requirement {
    pub(crate) relation: Relation,
    /// A description of the dims concerned, for messages.
    pub(crate) context: String,
}
