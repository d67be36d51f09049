//! The reference evaluator: runs a graph element by element, in the simplest way that works.
//!
//! Every operator is evaluated from its definition, with loops over all indices. Sums and products of floats are
//! computed in double precision and rounded at the end. Nothing is fused, shared or reordered. Each value is computed
//! once and dropped after its last use. Constant folding, `selfcheck` and all tests of optimisations rely on it.

mod binding;
mod contraction;
mod index;
mod node;
mod quick;
mod reduce;
mod rounded;
mod rounding;
mod run;
mod writer;

pub use binding::{Binding, bind, check_binding, dim_value, sizes};
pub use rounding::Rounding;
pub use run::values;

use super::Graph;
use crate::{
    error::{Error, ErrorKind, Result},
    tensor::Tensor,
};

/// The outputs of `graph` for these inputs. The shapes of the inputs bind the symbols.
///
/// ```
/// use symshape_compiler::{graph::{Graph, eval::eval}, tensor::Tensor};
/// use symshape_runtime::DType;
/// let mut g = Graph::default();
/// let x = g.input("x", DType::F32, vec!["N".parse().expect("a dim")])?;
/// let y = g.relu(x)?;
/// g.output("y", y)?;
/// let out = eval(&g, &[Tensor::from_f32(vec![2], &[-1.0, 2.0]).expect("two elements")])?;
/// assert_eq!((out[0].shape(), out[0].get(1).as_f64()), (&[2][..], 2.0));
/// # Ok::<(), symshape_compiler::Error>(())
/// ```
///
/// # Errors
/// Inputs that violate the contract, and errors that depend on values, such as an index out of bounds.
pub fn eval(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    eval_rounding(graph, inputs, Rounding::Last)
}

/// As [`eval`], with the given rounding.
///
/// # Errors
/// As [`eval`].
pub fn eval_rounding(graph: &Graph, inputs: &[Tensor], rounding: Rounding) -> Result<Vec<Tensor>> {
    let binding = checked_binding(graph, inputs)?;
    run::outputs(graph, &binding, inputs, rounding)
}

/// As [`eval_rounding`] with [`Rounding::Quick`], for several calls at once. The results are those of single calls, but
/// equal nodes of equal values are computed once, such as those of graphs that differ in the precision of contractions.
///
/// # Errors
/// As [`eval`], for each call.
pub fn eval_quick(calls: &[(&Graph, &[Tensor])]) -> Vec<Result<Vec<Tensor>>> {
    let mut ready = Vec::new();
    let mut results = Vec::new();
    for (idx, (graph, inputs)) in calls.iter().enumerate() {
        match checked_binding(graph, inputs) {
            Ok(binding) => {
                ready.push((idx, quick::Call { graph, binding, inputs }));
                results.push(Ok(Vec::new()));
            }
            Err(error) => results.push(Err(error)),
        }
    }
    let (places, ready): (Vec<usize>, Vec<quick::Call>) = ready.into_iter().unzip();
    for (place, outputs) in places.into_iter().zip(quick::outputs(&ready)) {
        results[place] = outputs;
    }
    results
}

/// The symbols that the shapes of the inputs bind.
fn checked_binding(graph: &Graph, inputs: &[Tensor]) -> Result<Binding> {
    let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
    let binding = bind(graph, &shapes)?;
    for ((name, value), tensor) in graph.inputs.iter().zip(inputs) {
        let expected = graph.dtype(*value);
        let actual = tensor.dtype();
        if actual != expected {
            let message = format!("input `{name}` has type {actual}; the model expects {expected}");
            return Err(Error::new(ErrorKind::Usage, message));
        }
    }
    Ok(binding)
}
