//! Random graphs at random sizes: what is inferred is what the oracle computes, text is read as it was printed, and
//! optimised graphs compute the same.

use proptest::prelude::*;
use symshape_compiler::{
    graph::{
        Graph, Value,
        arbitrary::{self, Source},
        eval::{self, Binding},
        text, verify,
    },
    opt,
    tensor::Tensor,
};

/// Enough bytes for a graph of all steps.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..200)
}

struct Case {
    graph: Graph,
    binding: Binding,
    inputs: Vec<Tensor>,
}

fn case(bytes: &[u8]) -> Option<Case> {
    let mut source = Source::new(bytes);
    let graph = arbitrary::graph(&mut source);
    // The binding reads the bytes from behind: the graph has used those in front up.
    let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
    let mut source = Source::new(&reversed);
    let binding = arbitrary::binding(&graph, &mut source)?;
    let inputs = arbitrary::inputs(&graph, &binding, &mut source).ok()?;
    Some(Case { graph, binding, inputs })
}

fn all_values(graph: &Graph) -> Vec<Value> {
    graph.nodes.values().flat_map(|node| node.results.clone()).collect()
}

/// Equal but for rounding: rewrites may change the order of sums.
fn close(a: &Tensor, b: &Tensor) -> bool {
    (a.dtype(), a.shape()) == (b.dtype(), b.shape())
        && (0..a.elems()).all(|i| {
            let (x, y) = (a.get(i).as_f64(), b.get(i).as_f64());
            let huge = |x: f64| !x.is_finite() || x.abs() > 1e30;
            x == y || (huge(x) && huge(y)) || (x - y).abs() <= 1e-4 * (1.0 + x.abs().max(y.abs()))
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn inferred_is_computed(bytes in bytes()) {
        let Some(Case { graph, binding, inputs }) = case(&bytes) else { return Ok(()) };
        prop_assert_eq!(verify::verify(&graph), Ok(()), "{}", &graph);
        let values = all_values(&graph);
        let tensors = eval::values(&graph, &binding, &inputs, &values);
        prop_assert!(tensors.is_ok(), "{:?} at {binding:?}\n{graph}", tensors.err());
        for (value, tensor) in values.iter().zip(tensors.unwrap_or_default()) {
            let shape = eval::sizes(graph.shape(*value), &binding);
            prop_assert_eq!(shape, Ok(tensor.shape().to_vec()), "{:?} at {:?}\n{}", value, &binding, &graph);
            prop_assert_eq!(graph.dtype(*value), tensor.dtype());
            let Some(contents) = graph.contents(*value) else { continue };
            let elems: Result<Vec<i64>, _> = contents.iter().map(|dim| eval::number(dim, &binding)).collect();
            prop_assert_eq!(elems, Ok(tensor.to_i64s()), "contents of {:?} at {:?}\n{}", value, &binding, &graph);
        }
    }

    #[test]
    fn text_is_read_as_printed(bytes in bytes()) {
        let graph = arbitrary::graph(&mut Source::new(&bytes));
        let printed = graph.to_string();
        let again = text::parse(&printed);
        prop_assert!(again.is_ok(), "{:?}\n{printed}", again.err());
        // What was required late is known from the start when it is read, and may simplify what stands before.
        if graph.constraints.is_empty() {
            prop_assert_eq!(again.map(|graph| graph.to_string()), Ok(printed));
        }
    }

    #[test]
    fn optimised_computes_the_same(bytes in bytes()) {
        let Some(Case { graph, binding: _, inputs }) = case(&bytes) else { return Ok(()) };
        for (name, pass) in opt::PASSES {
            let mut rewritten = graph.clone();
            let done = pass(&mut rewritten).and_then(|()| verify::verify(&rewritten));
            prop_assert_eq!(done, Ok(()), "pass {} on\n{}\ngives\n{}", name, &graph, &rewritten);
        }
        let mut optimised = graph.clone();
        prop_assert_eq!(opt::optimize(&mut optimised), Ok(()), "{}", &graph);
        let (want, got) = (eval::eval(&graph, &inputs), eval::eval(&optimised, &inputs));
        prop_assert_eq!(want.as_ref().err(), got.as_ref().err(), "{}", &graph);
        for (want, got) in want.unwrap_or_default().iter().zip(got.unwrap_or_default()) {
            prop_assert!(close(want, &got), "{want} became {got}\n{graph}\n{optimised}");
        }
    }
}
