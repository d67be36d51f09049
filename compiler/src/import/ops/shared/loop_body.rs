//! Static analysis of a loop body: unchanged carried values, and an upper bound of the iterations.

use crate::{
    error::Result,
    graph::{Graph, Value},
    import::{
        model::{
            domain::same_domain,
            proto::{GraphProto, NodeProto},
            weights,
        },
        node::{OnnxNode, axes::larger},
    },
};
use std::collections::HashMap;
use symshape::Dim;

/// Maximum length of a chain of nodes that pass a value on.
const MAX_STEPS: usize = 16;

/// Maximum depth of nested conditions.
const MAX_CONDITIONS: usize = 4;

/// Inputs of a body before the carried values: the iteration and the condition. The outputs have the condition only.
const HEADS: usize = 2;

/// A value that each iteration increments.
struct Counter {
    start: Dim,
    /// Increment per iteration, positive.
    step: i64,
    /// Whether it is the value after the increment.
    is_raised: bool,
}

/// A loop body, with the initial carried values.
pub(crate) struct Rounds<'r, 'n, 'a> {
    pub(crate) n: &'r OnnxNode<'n, 'a>,
    pub(crate) body: &'a GraphProto,
    pub(crate) carried: &'r [Value],
    /// The nodes of the body by their first output.
    producers: HashMap<&'a str, &'a NodeProto>,
}

impl<'r, 'n, 'a> Rounds<'r, 'n, 'a> {
    pub(crate) fn new(
        n: &'r OnnxNode<'n, 'a>,
        body: &'a GraphProto,
        carried: &'r [Value],
    ) -> Rounds<'r, 'n, 'a> {
        let own = body.node.iter().filter(|node| same_domain(&node.domain, ""));
        let producers = own.filter_map(|node| Some((node.output.first()?.as_str(), node)));
        Rounds { n, body, carried, producers: producers.filter(|(name, _)| !name.is_empty()).collect() }
    }

    /// Whether each iteration leaves carried value `k` unchanged.
    pub(crate) fn keep(&self, k: usize) -> bool {
        let input = self.body.input.get(HEADS + k);
        let output = self.body.output.get(1 + k);
        input
            .zip(output)
            .is_some_and(|(input, output)| self.origin(&output.name, &["Identity"]) == input.name)
    }

    /// The maximum number of iterations, if the condition compares a counter with an unchanged limit.
    pub(crate) fn max_rounds(&self, g: &mut Graph) -> Result<Option<Dim>> {
        let Some(condition) = self.body.output.first() else { return Ok(None) };
        self.while_holds(g, &condition.name, MAX_CONDITIONS)
    }

    fn while_holds(&self, g: &mut Graph, condition: &'a str, left: usize) -> Result<Option<Dim>> {
        let Some(node) = self.producer(self.through(condition)).filter(|_| left > 0) else {
            return Ok(None);
        };
        let [a, b] = node.input.as_slice() else { return Ok(None) };

        match node.op_type.as_str() {
            "And" => match self.while_holds(g, a, left - 1)? {
                None => self.while_holds(g, b, left - 1),
                bound => Ok(bound),
            },
            "Less" => self.while_below(g, a, b, 0),
            "LessOrEqual" => self.while_below(g, a, b, 1),
            "Greater" => self.while_below(g, b, a, 0),
            "GreaterOrEqual" => self.while_below(g, b, a, 1),
            _ => Ok(None),
        }
    }

    /// The number of iterations while `number < limit + more`.
    fn while_below(&self, g: &mut Graph, number: &'a str, limit: &'a str, more: i64) -> Result<Option<Dim>> {
        let Some(limit) = self.fixed(g, limit)? else { return Ok(None) };
        let number = self.through(number);

        let round = self.body.input.first().is_some_and(|input| input.name == number);
        let counter = if round {
            Counter { start: Dim::zero(), step: 1, is_raised: false }
        } else {
            match self.counter(g, number)? {
                Some(counter) => counter,
                None => return Ok(None),
            }
        };

        let rounds = (limit + more - counter.start).ceil_div(counter.step);

        // A counter that is compared before its increment allows one more iteration.
        let rounds = if counter.is_raised { rounds } else { rounds + 1 };
        Ok(Some(g.facts.simplify(&larger(g, &rounds, &Dim::one()))))
    }

    /// The counter `name`: a carried value that each iteration increments by a constant.
    fn counter(&self, g: &mut Graph, name: &'a str) -> Result<Option<Counter>> {
        for (k, value) in self.carried.iter().enumerate() {
            let (Some(input), Some(output)) = (self.body.input.get(HEADS + k), self.body.output.get(1 + k))
            else {
                return Ok(None);
            };

            let raised = self.through(&output.name);
            if name != raised && name != input.name {
                continue;
            }

            let Some(sum) = self.producer(raised).filter(|node| node.op_type == "Add") else { continue };
            let [a, b] = sum.input.as_slice() else { continue };
            let step = match (self.through(a) == input.name, self.through(b) == input.name) {
                (true, false) => self.fixed(g, b)?,
                (false, true) => self.fixed(g, a)?,
                _ => None,
            };

            let step = step.and_then(|step| step.as_i64()).filter(|step| *step > 0);
            if let (Some(step), Some([start])) = (step, g.contents(*value)) {
                return Ok(Some(Counter { start: start.clone(), step, is_raised: name == raised }));
            }
        }
        Ok(None)
    }

    /// An integer that is the same in all iterations.
    fn fixed(&self, g: &mut Graph, name: &'a str) -> Result<Option<Dim>> {
        let name = self.through(name);
        let value = match self.body.input.iter().position(|input| input.name == name) {
            Some(place) => match place.checked_sub(HEADS).filter(|k| self.keep(*k)) {
                Some(k) => self.carried.get(k).copied(),
                None => None,
            },
            None if self.computes(name) => None,
            None => match self.body.initializer.iter().find(|tensor| tensor.name == name) {
                Some(tensor) => Some(g.constant(weights::tensor(tensor, self.n.scope.files())?)?),
                // An undefined name is reported where the body reads it.
                None => self.n.scope.value(g, name).ok(),
            },
        };

        let contents = value.and_then(|value| g.contents(value));
        Ok(contents.filter(|contents| contents.len() == 1).map(|contents| contents[0].clone()))
    }

    /// The origin of `name`, seen through conversions and reshapes.
    fn through(&self, name: &'a str) -> &'a str {
        self.origin(name, &["Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"])
    }

    /// The origin of `name`, seen through nodes of these operators.
    fn origin(&self, name: &'a str, operators: &[&str]) -> &'a str {
        let mut name = name;
        for _ in 0..MAX_STEPS {
            match self.producer(name) {
                Some(node) if operators.contains(&node.op_type.as_str()) && !node.input.is_empty() => {
                    name = &node.input[0];
                }
                _ => break,
            }
        }
        name
    }

    /// Whether a node of the body has the output `name`, which then hides a value of that name around the loop.
    fn computes(&self, name: &str) -> bool {
        self.body.node.iter().flat_map(|node| &node.output).any(|output| output == name)
    }

    fn producer(&self, name: &str) -> Option<&'a NodeProto> {
        self.producers.get(name).copied()
    }
}
