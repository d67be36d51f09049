//! Properties of random cases, the number of cases that a property could judge, random graphs, and random numbers.

use proptest::{prelude::*, test_runner::TestRunner};
use std::{cell::Cell, ops::Range};
use symshape_compiler::{
    graph::{
        self, Graph,
        arbitrary::{self, RandomSource},
    },
    tensor::Tensor,
};

/// Checks a property for `n_cases` random byte strings of less than `max_len` bytes. The property returns whether it
/// compared anything.
///
/// # Panics
/// If the property fails, or if it compared something in fewer than `min_compared` cases.
pub(crate) fn check_random(
    n_cases: u32,
    max_len: usize,
    min_compared: u32,
    property: impl Fn(&[u8]) -> Result<bool, String>,
) {
    let config = ProptestConfig { cases: n_cases, failure_persistence: None, ..ProptestConfig::default() };
    let n_compared = Cell::new(0);
    let result = TestRunner::new(config).run(&proptest::collection::vec(any::<u8>(), 0..max_len), |bytes| {
        let is_compared = property(&bytes).map_err(TestCaseError::fail)?;
        n_compared.set(n_compared.get() + u32::from(is_compared));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }

    let n_compared = n_compared.get();
    assert!(n_compared >= min_compared, "only {n_compared} of {n_cases} cases could be compared");
}

/// Numbers that look random and are the same in each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number from 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// A random graph, with inputs and the outputs that it must have.
pub(crate) struct GraphCase {
    pub(crate) graph: Graph,
    /// The sizes and the graph, for messages.
    pub(crate) text: String,
    /// At least one.
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) expected: Vec<Tensor>,
}

/// The graphs of these seeds, which are the same in each run. Some seeds give none.
pub(crate) fn graph_cases(seeds: Range<u32>) -> impl Iterator<Item = GraphCase> {
    seeds.filter_map(|seed| {
        // A fixed mixture.
        let bytes: Vec<u8> = (0..160u32)
            .map(|idx| ((idx + 1).wrapping_mul(seed.wrapping_mul(2_654_435_761) | 1) >> 13) as u8)
            .collect();
        let graph = arbitrary::graph(&mut RandomSource::new(&bytes));
        let mut source = RandomSource::new(&bytes[80..]);
        let binding = arbitrary::binding(&graph, &mut source)?;
        let inputs = arbitrary::inputs(&graph, &binding, &mut source).ok()?;
        let expected = graph::eval::eval(&graph, &inputs).ok()?;
        let text = format!("{binding:?} of\n{graph}");
        (!inputs.is_empty()).then_some(GraphCase { graph, text, inputs, expected })
    })
}
