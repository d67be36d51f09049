//! The refusals of a model: the import goes on after a node that it refuses, to report all of them in one error.

use crate::{
    error::{Error, ErrorKind},
    import::model::{order::title, proto::NodeProto},
};
use std::collections::HashSet;

/// The number of reasons that an error lists.
const MAX_REASONS: usize = 20;

/// Nodes of the main graph that can't be imported.
#[derive(Default)]
pub(crate) struct Refusals<'a> {
    /// The outputs of refused nodes, and of all nodes that need them.
    undefined: HashSet<&'a str>,
    /// At most [`MAX_REASONS`], so that a file with many refused nodes is refused soon.
    reasons: Vec<Reason>,
    /// Nodes with other reasons.
    other_nodes: usize,
}

/// An error, and the nodes that have it.
struct Reason {
    error: Error,
    first_node: String,
    node_count: usize,
}

impl<'a> Refusals<'a> {
    /// Whether the import of the other nodes can go on after this error.
    pub(crate) fn is_refusal(error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Contract)
    }

    /// Whether the node needs a value that is undefined because of a refusal.
    pub(crate) fn affect(&self, node: &NodeProto) -> bool {
        !self.undefined.is_empty() && node.input.iter().any(|name| self.undefined.contains(name.as_str()))
    }

    /// Whether a node was refused.
    pub(crate) fn any(&self) -> bool {
        !self.reasons.is_empty()
    }

    /// Records that the outputs of a node are undefined.
    pub(crate) fn skip(&mut self, node: &'a NodeProto) {
        self.undefined.extend(node.output.iter().map(String::as_str).filter(|name| !name.is_empty()));
    }

    /// Records the error of a node.
    pub(crate) fn add(&mut self, node: &NodeProto, error: Error) {
        let is_full = self.reasons.len() == MAX_REASONS;
        match self.reasons.iter_mut().find(|reason| reason.error == error) {
            Some(reason) => reason.node_count += 1,
            None if is_full => self.other_nodes += 1,
            None => self.reasons.push(Reason { error, first_node: title(node), node_count: 1 }),
        }
    }

    /// The error of the whole model, if a node was refused.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        let mut reasons = std::mem::take(&mut self.reasons);
        let first = reasons.first()?;
        let kind = first.error.kind();
        if let ([_], 1) = (&reasons[..], first.node_count) {
            let Reason { error, first_node, .. } = reasons.remove(0);
            return Some(error.at(first_node));
        }

        let listed: usize = reasons.iter().map(|reason| reason.node_count).sum();
        let mut lines = vec![format!("{} nodes can't be compiled:", listed + self.other_nodes)];
        lines.extend(reasons.iter().map(Reason::line));
        if self.other_nodes > 0 {
            lines.push(format!("and {} nodes for other reasons", self.other_nodes));
        }
        Some(Error::new(kind, lines.join("\n  ")))
    }
}

impl Reason {
    fn line(&self) -> String {
        let Reason { error, first_node, node_count } = self;
        match node_count {
            1 => format!("{first_node}: {error}"),
            2 => format!("{first_node} and another: {error}"),
            count => format!("{first_node} and {} others: {error}", count - 1),
        }
    }
}
