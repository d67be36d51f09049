//! Control flow that is decided while compiling.

use super::super::node::OnnxNode;
use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
};

ops! {
    If 1 if_,
}

/// The outputs of one of two graphs, by a condition that must be known while compiling; the other graph is not looked at.
fn if_(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let condition = n.constant(g, n.input(0)?, "the condition")?;
    if condition.elems() != 1 {
        return Err(Error::invalid("the condition of If must have one element"));
    }
    let taken = condition.get(0).is_true();
    let (other, name) = if taken { ("else_branch", "then_branch") } else { ("then_branch", "else_branch") };
    n.graph(other)?;
    n.branch(g, name)
}
