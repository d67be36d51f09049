//! Branches that give values without a common type: what follows them is imported once in each.
//!
//! Exporters guard squeezing with a branch (`If(dim == 1) { Squeeze } else { Identity }`), so that the rank of what comes
//! out depends on a size. Of such a node there can be no results in the graph around it. Instead, all that follows moves
//! into both branches, up to the outputs of the graph or body that it stands in; a branch under which that contradicts
//! what is declared ends the call if it is taken. A branch is imported under the fact that its condition holds.

use crate::{
    error::{At, Error, Result},
    graph::{Graph, Value},
    import::{
        model::proto::{GraphProto, NodeProto},
        node::OnnxNode,
        ops::shared::branches::{branch, contradiction, predicate, refuse_rank},
        scope::{Scope, initializers, regions::Region},
    },
};

impl<'a> Scope<'_, 'a> {
    /// An error that makes [`Scope::sequence`] try again with what follows the node in both of its branches.
    pub(crate) fn needs_split(&self, why: String) -> Error {
        self.set_needs_split();
        Error::unsupported(why)
    }

    /// The outputs of a graph of which the nodes up to `node` have been imported.
    pub(crate) fn apart(
        &self,
        g: &mut Graph,
        node: &'a NodeProto,
        rest: &[&'a NodeProto],
        outputs: &[&'a str],
    ) -> Result<Vec<Value>> {
        let n = OnnxNode::new(node, self.opset(&node.domain)?, self, g)?;
        let condition = n.input(0)?;

        let mut branches = Vec::new();
        for (name, taken) in [("then_branch", true), ("else_branch", false)] {
            let graph = n.graph(name)?;
            let region = self.continued(g, (node, graph, rest, outputs), (condition, taken));
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

    /// A branch of `node` and all that follows it, as a region.
    fn continued(
        &self,
        g: &mut Graph,
        (node, graph, rest, outputs): (&'a NodeProto, &'a GraphProto, &[&'a NodeProto], &[&'a str]),
        (condition, taken): (Value, bool),
    ) -> Result<Region> {
        let known = predicate(g, condition, taken);
        self.enclosed(g, &graph.name, Default::default(), |scope, region| {
            if let Some(relation) = known {
                let assumed = region.facts.assume(relation, "the condition of the branch");
                assumed.map_err(|error| Error::invalid(error.to_string()))?;
            }
            let body = scope.within(initializers(graph)?)?;
            let values = body.results(region, graph)?;
            for (name, value) in node.output.iter().zip(values).filter(|(name, _)| !name.is_empty()) {
                scope.define(name, value)?;
            }
            scope.sequence(region, rest, outputs)
        })
    }
}
