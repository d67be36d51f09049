//! Properties of every graph. Each check takes bytes, from which it builds a random graph, binding and inputs.
//!
//! The fuzz targets run the same checks.

use symshape_compiler::{
    ErrorKind, Result,
    graph::{
        Graph, Op, Value,
        arbitrary::{self, RandomSource},
        eval::{self, Binding},
        text,
        tolerance::RoundingTolerance,
        verify,
    },
    opt,
    tensor::Tensor,
};

/// Whether a check could compare anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Compared,
    /// The random graph, binding or inputs don't allow the check.
    NotComparable,
}

/// The outcome of a check, or a failure with the graph.
pub(crate) type Check = Result<Outcome, String>;

struct Case {
    graph: Graph,
    binding: Binding,
    inputs: Vec<Tensor>,
}

fn case(bytes: &[u8]) -> Option<Case> {
    let graph = arbitrary::graph(&mut RandomSource::new(bytes));
    // The binding reads the bytes from the end, since the graph uses those at the beginning.
    let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
    let mut source = RandomSource::new(&reversed);
    let binding = arbitrary::binding(&graph, &mut source)?;
    let inputs = arbitrary::inputs(&graph, &binding, &mut source).ok()?;
    Some(Case { graph, binding, inputs })
}

fn equal<T: PartialEq + std::fmt::Debug>(
    name: &str,
    got: T,
    expected: T,
    graph: &Graph,
) -> std::result::Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{name}: {got:?} instead of {expected:?} in\n{graph}")) }
}

/// Graphs are well-formed, and every inferred shape and content agrees with the oracle.
pub(crate) fn inferred_is_computed(bytes: &[u8]) -> Check {
    let Some(Case { graph, mut binding, inputs }) = case(bytes) else { return Ok(Outcome::NotComparable) };
    equal("verify", verify::verify(&graph), Ok(()), &graph)?;
    let values: Vec<Value> = graph.nodes.values().flat_map(|node| node.results.clone()).collect();
    let tensors = match eval::values(&graph, &binding, &inputs, &values) {
        Ok(tensors) => tensors,
        // The data may give a data-dependent size that isn't allowed.
        Err(error) if error.kind() == ErrorKind::Usage && !graph.data_dependent.is_empty() => {
            return Ok(Outcome::NotComparable);
        }
        Err(error) => return Err(format!("{error} at {binding:?}\n{graph}")),
    };
    for (value, tensor) in values.iter().zip(&tensors) {
        if let Op::Bind { symbol, .. } = graph.op(*value) {
            binding.insert(symbol.clone(), tensor.get(0).as_i64());
        }
    }
    for (value, tensor) in values.iter().zip(tensors) {
        let what = format!("{value:?} at {binding:?}");
        equal(&what, eval::sizes(graph.shape(*value), &binding), Ok(tensor.shape().to_vec()), &graph)?;
        equal(&what, graph.dtype(*value), tensor.dtype(), &graph)?;
        let Some(contents) = graph.contents(*value) else { continue };
        let elems: Result<Vec<i64>, _> = contents.iter().map(|dim| eval::dim_value(dim, &binding)).collect();
        equal(&what, elems, Ok(tensor.to_i64s()), &graph)?;
    }
    Ok(Outcome::Compared)
}

/// A printed text is parsed to a graph with the same text.
pub(crate) fn text_is_read_as_printed(bytes: &[u8]) -> Check {
    let graph = arbitrary::graph(&mut RandomSource::new(bytes));
    let printed = graph.to_string();
    let again = text::parse(&printed);
    // The parser knows all constraints from the start. So it may simplify nodes before a constraint, or find a
    // contradiction.
    if !graph.constraints.is_empty() {
        return Ok(Outcome::NotComparable);
    }
    equal("text", again.map(|graph| graph.to_string()), Ok(printed), &graph)?;
    Ok(Outcome::Compared)
}

/// Every pass keeps a graph well-formed, and all passes together keep its results.
pub(crate) fn optimised_computes_the_same(bytes: &[u8]) -> Check {
    let Some(Case { graph, inputs, .. }) = case(bytes) else { return Ok(Outcome::NotComparable) };
    computes_the_same(&graph, &inputs)
}

/// As [`optimised_computes_the_same`], for this graph.
pub(crate) fn computes_the_same(graph: &Graph, inputs: &[Tensor]) -> Check {
    let want = eval::eval(graph, inputs);
    // The guards on a data-dependent size may leave no value, and a pass may find that.
    let may_contradict = want.is_err() && !graph.data_dependent.is_empty();
    let done = |result: Result<()>| match result {
        Err(error) if may_contradict && error.kind() == ErrorKind::Invalid => Ok(()),
        other => other,
    };
    for (name, pass) in opt::PASSES {
        let mut rewritten = graph.clone();
        let result = pass(&mut rewritten).and_then(|()| verify::verify(&rewritten));
        equal(&format!("pass {name} giving\n{rewritten}"), done(result), Ok(()), graph)?;
    }
    let mut optimised = graph.clone();
    let result = opt::optimize(&mut optimised);
    if result.is_err() {
        equal("optimize", done(result), Ok(()), graph)?;
        return Ok(Outcome::NotComparable);
    }

    let mut finished = optimised.clone();
    let result = opt::optimize_late(&mut finished).and_then(|()| verify::verify(&finished));
    equal(&format!("optimize_late giving\n{finished}"), result, Ok(()), graph)?;
    equal("constraints", finished.constraints.len(), optimised.constraints.len(), graph)?;

    let got = eval::eval(&optimised, inputs);
    compare(graph, inputs, &got, &eval::eval(&finished, inputs), &finished)?;
    let error = got.as_ref().err();
    let expected = want.as_ref().err();
    if graph.data_dependent.is_empty() {
        equal("error", error, expected, graph)?;
    } else {
        // Sizes that contradict a data-dependent size may be refused before that size is bound.
        equal("error", error.map(|error| error.kind()), expected.map(|error| error.kind()), graph)?;
    }
    compare(graph, inputs, &want, &got, &optimised)?;
    Ok(if want.is_ok() { Outcome::Compared } else { Outcome::NotComparable })
}

/// Whether the results of `rewritten` are those of `graph`, up to rounding.
fn compare(
    graph: &Graph,
    inputs: &[Tensor],
    want: &Result<Vec<Tensor>>,
    got: &Result<Vec<Tensor>>,
    rewritten: &Graph,
) -> Result<(), String> {
    let (Ok(want), Ok(got)) = (want, got) else { return Ok(()) };
    for (want, got) in want.iter().zip(got) {
        let check = RoundingTolerance::of(graph, inputs).check(want, got);
        check.map_err(|why| format!("{why}: {want} became {got}\n{graph}\n{rewritten}"))?;
    }
    Ok(())
}
