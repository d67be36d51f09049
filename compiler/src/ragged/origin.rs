//! The origin of the elements of a value: which sequence and which tokens they belong to.

use super::at_padding::AtPadding;
use crate::{graph::axis, scalar::ReduceOp};
use symshape::Dim;

/// Where the elements of a value come from.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Origin {
    /// The sequence of an element; `None` if all sequences share it.
    pub(super) sequence: Option<Dim>,
    /// The tokens of an element, and the facts if this one is padding.
    pub(super) tokens: Vec<Token>,
    /// What is known about an element without tokens.
    pub(super) value: AtPadding,
}

impl Default for Origin {
    fn default() -> Origin {
        Origin { sequence: None, tokens: Vec::new(), value: AtPadding::Any }
    }
}

/// A token of an element.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Token {
    /// The position in the sequence.
    pub(super) at: Dim,
    /// What is known about the element if this position is padding, or outside of `0..S` where `is_padded` allows it.
    pub(super) padding: AtPadding,
    /// Positions were added before or after those of the sequence, see [`crate::graph::Op::Pad`].
    pub(super) is_padded: bool,
}

impl Token {
    pub(super) fn new(at: Dim, padding: AtPadding) -> Token {
        Token { at, padding, is_padded: false }
    }
}

impl Origin {
    /// What is known about the element if the position `at` is padding.
    pub(super) fn at(&self, at: &Dim) -> AtPadding {
        let token = self.tokens.iter().find(|token| token.at == *at);
        token.map_or(self.alone(), |token| token.padding)
    }

    /// What is known about all elements.
    pub(super) fn alone(&self) -> AtPadding {
        if self.tokens.is_empty() { self.value } else { AtPadding::Any }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.sequence.is_none() && self.tokens.is_empty()
    }
}

/// An origin, or the reason why a value must not reach an output.
pub(super) type Found = Result<Origin, Refusal>;

/// The reason why a proof fails, and the node that it concerns.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) reason: String,
    /// Empty until the node is known.
    pub(super) node: String,
    /// The number of nodes before it.
    pub(super) position: usize,
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal { reason, node: String::new(), position: 0 }
    }
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Refusal {
        reason.to_string().into()
    }
}

/// Whether a coordinate depends on the axis `$k`.
pub(super) fn has_axis(origin: &Origin, k: usize) -> bool {
    let tokens = origin.tokens.iter().map(|token| &token.at);
    tokens.chain(&origin.sequence).any(|at| at.contains(&axis(k)))
}

/// Adds a token. If it is there already, both facts hold, and a known one is kept.
pub(super) fn add(tokens: &mut Vec<Token>, token: Token) {
    let Some(other) = tokens.iter_mut().find(|other| other.at == token.at) else {
        tokens.push(token);
        return;
    };
    if other.padding == AtPadding::Any {
        other.padding = token.padding;
    }
    other.is_padded |= token.is_padded;
}

/// The origin of elements that are computed from elements of all these values.
pub(super) fn union(operands: &[&Origin]) -> Found {
    let mut origin = Origin::default();
    for operand in operands {
        match (&origin.sequence, &operand.sequence) {
            (Some(a), Some(b)) if a != b => {
                return Err("it combines elements of different sequences".into());
            }
            (None, Some(at)) => origin.sequence = Some(at.clone()),
            _ => {}
        }
        operand.tokens.iter().for_each(|token| add(&mut origin.tokens, token.clone()));
    }
    Ok(origin)
}

pub(super) fn reduce(operand: &Origin, op: ReduceOp, axes: &[usize]) -> Found {
    let is_reduced = |at: &Dim| axes.iter().any(|k| at.contains(&axis(*k)));
    if operand.sequence.as_ref().is_some_and(is_reduced) {
        return Err("it reduces the sequences of the batch to one".into());
    }
    let mut kept = Origin { sequence: operand.sequence.clone(), ..Origin::default() };
    for token in &operand.tokens {
        if !is_reduced(&token.at) {
            // Only zeros add up to a known value.
            let stays = op == ReduceOp::Sum && token.padding.is_zero();
            let padding = if stays { token.padding } else { AtPadding::Any };
            kept.tokens.push(Token::new(token.at.clone(), padding));
        } else if !axes.iter().any(|k| token.at.as_symbol() == Some(&axis(*k))) {
            return Err("it reduces a part of the tokens".into());
        } else if !token.padding.is_neutral(op) {
            return Err("it reduces all tokens, and padding is not masked".into());
        }
    }
    Ok(without_axes(&kept, axes))
}

/// The origin after these axes are removed, which no coordinate contains.
pub(super) fn without_axes(origin: &Origin, axes: &[usize]) -> Origin {
    let renamed = |at: &Dim| {
        at.substitute(&|symbol| {
            let k = (0..crate::graph::MAX_RANK).find(|k| axis(*k) == *symbol)?;
            let removed = axes.iter().filter(|other| **other < k).count();
            Some(axis(k - removed).into())
        })
    };
    let tokens = origin.tokens.iter().map(|token| Token { at: renamed(&token.at), ..token.clone() });
    let sequence = origin.sequence.as_ref().map(renamed);
    Origin { sequence, tokens: tokens.collect(), ..Origin::default() }
}
