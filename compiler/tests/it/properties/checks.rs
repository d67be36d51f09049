//! What must hold of every graph; each check takes the bytes that a random graph, binding and inputs are made of.
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

/// Why a check failed, with all that is needed to understand it.
pub(crate) type Check = Result<(), String>;

struct Case {
    graph: Graph,
    binding: Binding,
    inputs: Vec<Tensor>,
}

fn case(bytes: &[u8]) -> Option<Case> {
    let graph = arbitrary::graph(&mut RandomSource::new(bytes));
    // The binding reads the bytes from behind: the graph has used those in front up.
    let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
    let mut source = RandomSource::new(&reversed);
    let binding = arbitrary::binding(&graph, &mut source)?;
    let inputs = arbitrary::inputs(&graph, &binding, &mut source).ok()?;
    Some(Case { graph, binding, inputs })
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T, graph: &Graph) -> Check {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{what}: {found:?} is not {wanted:?} in\n{graph}")),
    }
}

/// Graphs are well-formed, and every shape and content that was inferred is what the oracle computes.
pub(crate) fn inferred_is_computed(bytes: &[u8]) -> Check {
    let Some(Case { graph, mut binding, inputs }) = case(bytes) else { return Ok(()) };
    equal("verify", verify::verify(&graph), Ok(()), &graph)?;
    let values: Vec<Value> = graph.nodes.values().flat_map(|node| node.results.clone()).collect();
    let tensors = match eval::values(&graph, &binding, &inputs, &values) {
        Ok(tensors) => tensors,
        // A size that is found may be one that isn't allowed.
        Err(error) if error.kind() == ErrorKind::Usage && !graph.data_dependent.is_empty() => return Ok(()),
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
    Ok(())
}

/// Text is read as it was printed.
pub(crate) fn text_is_read_as_printed(bytes: &[u8]) -> Check {
    let graph = arbitrary::graph(&mut RandomSource::new(bytes));
    let printed = graph.to_string();
    let again = text::parse(&printed);
    // What was required late is known from the start when it is read, and may simplify what stands before, or show that
    // it contradicts something.
    match graph.constraints.is_empty() {
        true => equal("text", again.map(|graph| graph.to_string()), Ok(printed), &graph),
        false => Ok(()),
    }
}

/// Every pass leaves a well-formed graph, and all together one that computes the same.
pub(crate) fn optimised_computes_the_same(bytes: &[u8]) -> Check {
    let Some(Case { graph, inputs, .. }) = case(bytes) else { return Ok(()) };
    computes_the_same(&graph, &inputs)
}

/// As [`optimised_computes_the_same`], of this graph.
pub(crate) fn computes_the_same(graph: &Graph, inputs: &[Tensor]) -> Check {
    let want = eval::eval(graph, inputs);
    // Together the demands on what is found may leave no value, which a pass may notice.
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
        return equal("optimize", done(result), Ok(()), graph);
    }
    let got = eval::eval(&optimised, inputs);
    let (refused, wanted) = (got.as_ref().err(), want.as_ref().err());
    match graph.data_dependent.is_empty() {
        true => equal("error", refused, wanted, graph)?,
        // Sizes that contradict what is found later may be refused before it is.
        false => equal("error", refused.map(|error| error.kind()), wanted.map(|error| error.kind()), graph)?,
    }
    for (want, got) in want.unwrap_or_default().iter().zip(got.unwrap_or_default()) {
        let check = RoundingTolerance::of(graph, inputs).check(want, &got);
        check.map_err(|why| format!("{why}: {want} became {got}\n{graph}\n{optimised}"))?;
    }
    Ok(())
}
