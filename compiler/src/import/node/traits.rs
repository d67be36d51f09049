//! Properties of operators that other parts of the importer rely on. Rows of the operator table name them.

/// A property of an operator that other parts of the importer rely on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trait {
    /// It moves elements without computing: the outputs have the element type of the inputs.
    MovesElements,
    /// It does not read the elements of its inputs.
    IgnoresElements,
    /// The output has the shape of its tensor inputs, up to broadcasting.
    Elementwise,
    /// As [`Trait::Elementwise`], but only for the first input.
    ElementwiseInFirst,
}
