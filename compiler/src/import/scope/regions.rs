//! Graph attributes: inlined, or imported as regions with captured values.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        model::proto::{GraphProto, TensorProto},
        scope::{NameScope, initializers},
    },
};
use std::{cell::RefCell, collections::HashMap};

/// The origin of an input of a graph attribute.
pub(crate) enum Origin {
    /// A value of the graph itself.
    Own(Value),
    /// A value of the enclosing graph.
    Outer(Value),
}

/// A graph attribute as a region.
pub(crate) struct Region {
    pub(crate) graph: Graph,
    /// The values of its outputs; the graph's own list is empty yet.
    pub(crate) outputs: Vec<Value>,
    /// Values captured from the enclosing graph, after the declared inputs.
    pub(crate) captured: Vec<Value>,
}

impl<'a> NameScope<'_, 'a> {
    /// The results of `graph`, a branch without inputs, inlined.
    pub(crate) fn branch(&self, g: &mut Graph, graph: &'a GraphProto) -> Result<Vec<Value>> {
        self.within(initializers(graph)?)?.results(g, graph)
    }

    /// The results of `graph`, a function of one value, inlined.
    pub(crate) fn applied(&self, g: &mut Graph, graph: &'a GraphProto, x: Value) -> Result<Vec<Value>> {
        let scope = self.within(initializers(graph)?)?;
        match graph.input.as_slice() {
            [input] => scope.define(&input.name, x)?,
            inputs => {
                return Err(Error::invalid(format!(
                    "the graph takes {} inputs, but 1 is given",
                    inputs.len()
                )));
            }
        }
        scope.results(g, graph)
    }

    /// The results of a branch or body.
    pub(crate) fn results(&self, g: &mut Graph, graph: &'a GraphProto) -> Result<Vec<Value>> {
        let outputs = || graph.output.iter().map(|output| output.name.as_str());
        let values = self.run(g, &graph.node, outputs())?;
        match outputs().find_map(|name| self.storage_type(name)) {
            Some(storage_type) => {
                Err(Error::unsupported(format!("a branch or loop with results of {}", storage_type.name())))
            }
            None => Ok(values),
        }
    }

    /// `proto` as a region. `inputs` creates its inputs.
    pub(crate) fn region(
        &self,
        g: &mut Graph,
        proto: &'a GraphProto,
        inputs: impl FnOnce(&mut Graph) -> Result<Vec<Origin>>,
    ) -> Result<Region> {
        let own = initializers(proto)?;
        self.enclosed(g, &proto.name, own, |scope, graph| scope.fill(graph, proto, inputs))
    }

    /// The region that `import` builds in a nested scope. It captures values of this scope when it uses them.
    pub(crate) fn enclosed(
        &self,
        g: &mut Graph,
        name: &str,
        initializers: HashMap<&'a str, &'a TensorProto>,
        import: impl FnOnce(&NameScope<'_, 'a>, &mut Graph) -> Result<Vec<Value>>,
    ) -> Result<Region> {
        let mut graph = g.region(name);
        let inner = self.inner()?;
        let outer = Some(RefCell::new(std::mem::take(g)));
        let scope = NameScope { initializers, outer, ..inner };
        let outputs = import(&scope, &mut graph);
        let NameScope { outer, captured, .. } = scope;
        *g = outer.map(RefCell::into_inner).unwrap_or_default();
        Ok(Region { graph, outputs: outputs?, captured: captured.into_inner().operands })
    }

    fn fill(
        &self,
        graph: &mut Graph,
        proto: &'a GraphProto,
        inputs: impl FnOnce(&mut Graph) -> Result<Vec<Origin>>,
    ) -> Result<Vec<Value>> {
        let values = inputs(graph)?;
        if values.len() != proto.input.len() {
            let has = proto.input.len();
            let given = values.len();
            return Err(Error::invalid(format!("the graph takes {has} inputs, but {given} are given")));
        }

        for (info, origin) in proto.input.iter().zip(values) {
            let value = match (origin, &self.outer) {
                (Origin::Own(value), _) => value,
                (Origin::Outer(value), Some(outer)) => {
                    self.captured.borrow_mut().take(&outer.borrow(), graph, value)?
                }
                (Origin::Outer(_), None) => {
                    return Err(Error::internal("an outer value must have a graph around it"));
                }
            };
            self.define(&info.name, value)?;
        }

        self.results(graph, proto)
    }
}
