//! Branches whose outputs have no common type: the nodes after them are imported once per branch.
//!
//! Exporters guard squeezing with a branch (`If(dim == 1) { Squeeze } else { Identity }`), so the rank of the output
//! depends on a size. Such a node can't have results in the enclosing graph. Instead, all following nodes move into
//! both branches, up to the outputs of the graph or body. A branch is imported under the fact that its condition holds.
//! If its continuation contradicts a declaration, the branch ends the call with an error when it runs.

use crate::{
    error::{At, Error, Result},
    graph::{Graph, Value},
    import::{
        model::proto::{GraphProto, NodeProto},
        node::OnnxNode,
        ops::shared::branches::{branch, contradiction, predicate, refuse_rank},
        scope::{NameScope, initializers, regions::Region},
    },
};
use symshape::Relation;

/// A node with branches, and the nodes that follow it.
struct Continuation<'r, 'a> {
    node: &'a NodeProto,
    /// The nodes after it.
    rest: &'r [&'a NodeProto],
    /// The outputs of the graph or body.
    outputs: &'r [&'a str],
}

impl<'a> NameScope<'_, 'a> {
    /// An error that makes [`NameScope::sequence`] try again, with the following nodes in both branches of the node.
    pub(crate) fn needs_split(&self, why: String) -> Error {
        self.set_needs_split();
        Error::unsupported(why)
    }

    /// The outputs of a graph of which the nodes up to `node` have been imported.
    pub(crate) fn split_at_branch(
        &self,
        g: &mut Graph,
        node: &'a NodeProto,
        rest: &[&'a NodeProto],
        outputs: &[&'a str],
    ) -> Result<Vec<Value>> {
        let n = OnnxNode::new(node, self.opset(&node.domain)?, self, g)?;
        let condition = n.input(0)?;

        let continuation = Continuation { node, rest, outputs };
        let mut branches = Vec::new();
        for (name, taken) in [("then_branch", true), ("else_branch", false)] {
            let known = predicate(g, condition, taken);
            let region = self.continued(g, n.graph(name)?, known, &continuation);
            branches.push(contradiction(region.at(|| format!("{name} of {}", n.op)))?);
        }

        n.finish(&[])?;
        for (k, name) in outputs.iter().enumerate() {
            let declared = self.declared(g, name).map(|dims| dims.len());
            if let Some(why) = refuse_rank(&mut branches, k, declared) {
                return Err(if self.has_parent() { self.needs_split(why) } else { Error::unsupported(why) });
            }
        }

        let condition = g.reshape(condition, Vec::new())?;
        branch(g, &n, condition, branches)
    }

    /// A branch of the node and all nodes after it, as a region.
    fn continued(
        &self,
        g: &mut Graph,
        branch: &'a GraphProto,
        known: Option<Relation>,
        continuation: &Continuation<'_, 'a>,
    ) -> Result<Region> {
        let Continuation { node, rest, outputs } = *continuation;
        self.enclosed(g, &branch.name, Default::default(), |scope, region| {
            if let Some(relation) = known {
                let assumed = region.facts.assume(relation, "the condition of the branch");
                assumed.map_err(|error| Error::invalid(error.to_string()))?;
            }
            let body = scope.within(initializers(branch)?)?;
            let values = body.results(region, branch)?;
            for (name, value) in node.output.iter().zip(values).filter(|(name, _)| !name.is_empty()) {
                scope.define(name, value)?;
            }
            scope.sequence(region, rest, outputs)
        })
    }
}
