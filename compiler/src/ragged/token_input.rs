//! The input of a padded model that tells tokens from padding.

/// The input, by its index, that tells which positions of a padded model are tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TokenInput {
    /// 1 for tokens and 0 for padding: `[batch, length]`.
    Mask(usize),
    /// The length of each sequence, an integer: `[batch]`.
    Lengths(usize),
}

impl TokenInput {
    /// The index of the input.
    pub(crate) fn input(self) -> usize {
        match self {
            TokenInput::Mask(idx) | TokenInput::Lengths(idx) => idx,
        }
    }
}
