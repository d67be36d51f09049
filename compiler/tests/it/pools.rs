//! Poolings through the importer, compared with double precision: windows that are reduced along one axis after the
//! other, and averages whose windows differ in their counts.

use crate::{
    compiled::assert_same,
    machine::Machine,
    models,
    protos::{float, imported, node},
};
use symshape_compiler::{
    graph::{Graph, Op, eval::eval},
    import::proto::{AttributeProto, GraphProto},
    pipeline::{Lowered, Pipeline},
    tensor::Tensor,
};

#[derive(Clone, Copy, Debug)]
struct Pool {
    op: &'static str,
    kernel: [i64; 2],
    strides: [i64; 2],
    dilations: [i64; 2],
    /// Before rows and columns, then behind them.
    pads: [i64; 4],
    has_ceil_mode: bool,
    counts_pads: bool,
}

const PLAIN: Pool = Pool {
    op: "MaxPool",
    kernel: [5, 5],
    strides: [1, 1],
    dilations: [1, 1],
    pads: [2; 4],
    has_ceil_mode: false,
    counts_pads: false,
};

const POOLS: [Pool; 8] = [
    PLAIN,
    Pool { op: "AveragePool", ..PLAIN },
    Pool { op: "AveragePool", counts_pads: true, ..PLAIN },
    Pool { op: "AveragePool", kernel: [3, 3], pads: [1; 4], ..PLAIN },
    Pool {
        op: "AveragePool",
        kernel: [3, 2],
        strides: [2, 3],
        pads: [1, 0, 1, 1],
        has_ceil_mode: true,
        ..PLAIN
    },
    Pool { kernel: [7, 13], strides: [2, 1], pads: [3, 6, 3, 6], ..PLAIN },
    Pool {
        kernel: [6, 5],
        strides: [3, 1],
        dilations: [1, 2],
        pads: [2, 4, 3, 4],
        has_ceil_mode: true,
        ..PLAIN
    },
    Pool { op: "AveragePool", kernel: [9, 6], pads: [4, 2, 4, 3], has_ceil_mode: true, ..PLAIN },
];

impl Pool {
    fn graph(self) -> Graph {
        let ints = |name: &str, ints: &[i64]| AttributeProto {
            name: name.into(),
            kind: 7,
            ints: ints.to_vec(),
            ..Default::default()
        };
        let flag = |name: &str, flag: bool| AttributeProto {
            name: name.into(),
            kind: 2,
            i: i64::from(flag),
            ..Default::default()
        };
        let mut pool = node(self.op, &["x"], &["y"]);
        pool.attribute = vec![
            ints("kernel_shape", &self.kernel),
            ints("strides", &self.strides),
            ints("dilations", &self.dilations),
            ints("pads", &self.pads),
            flag("ceil_mode", self.has_ceil_mode),
        ];
        if self.op == "AveragePool" {
            pool.attribute.push(flag("count_include_pad", self.counts_pads));
        }
        let input = vec![float("x", &["N", "3", "H", "W"])];
        let graph = GraphProto { node: vec![pool], input, ..Default::default() };
        imported(graph, &["N=0..2", "H=6..14", "W=9..37"])
    }

    /// The result for the window of `plane` that begins at this row and column of the padded image.
    fn exact(self, plane: &dyn Fn(i64, i64) -> Option<f64>, size: [i64; 2], [row, column]: [i64; 2]) -> f64 {
        let mut elements = Vec::new();
        let mut padding = 0;
        for y in 0..self.kernel[0] {
            for x in 0..self.kernel[1] {
                let y = row + y * self.dilations[0] - self.pads[0];
                let x = column + x * self.dilations[1] - self.pads[1];
                match plane(y, x) {
                    Some(element) => elements.push(element),
                    None => padding += i64::from(y < size[0] + self.pads[2] && x < size[1] + self.pads[3]),
                }
            }
        }
        if self.op == "MaxPool" {
            return elements.into_iter().fold(f64::NEG_INFINITY, f64::max);
        }
        let count = elements.len() as i64 + if self.counts_pads { padding } else { 0 };
        elements.iter().sum::<f64>() / count as f64
    }

    fn check(self, x: &Tensor, y: &Tensor) {
        let size = [2, 3].map(|axis| x.shape()[axis] as i64);
        let results = [2, 3].map(|axis| y.shape()[axis]);
        for idx in 0..y.elems() {
            let plane = idx / (results[0] * results[1]);
            let element = |row: i64, column: i64| {
                let is_inside = (0..size[0]).contains(&row) && (0..size[1]).contains(&column);
                is_inside
                    .then(|| x.get(((plane as i64 * size[0] + row) * size[1] + column) as usize).as_f64())
            };
            let place = [idx / results[1] % results[0], idx % results[1]];
            let start = [place[0] as i64 * self.strides[0], place[1] as i64 * self.strides[1]];
            let exact = self.exact(&element, size, start);
            let found = y.get(idx).as_f64();
            assert!((found - exact).abs() < 1e-5, "{self:?} of {size:?} at {place:?}: {found}, not {exact}");
        }
    }
}

#[test]
fn windows_have_the_results_of_their_elements() {
    for pool in POOLS {
        let graph = pool.graph();
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let results = eval(&graph, &inputs).expect("in range");
            pool.check(&inputs[0], &results[0]);
        }

        let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("supported");
        let machine = Machine::assemble(program, &plan, false).expect("supported");
        assert_same(pool.op, &graph, &machine);
    }
}

/// A window of 25 elements takes ten steps, and one of nine elements would take six and another pass.
#[test]
fn large_windows_are_reduced_along_one_axis_after_the_other() {
    let reductions = |pool: Pool| {
        let graph = pool.graph();
        graph.nodes.values().filter(|node| matches!(node.op, Op::Reduce { .. })).count()
    };
    assert_eq!(reductions(PLAIN), 2);
    assert_eq!(reductions(Pool { kernel: [3, 3], pads: [1; 4], ..PLAIN }), 1);
    assert_eq!(reductions(Pool { kernel: [5, 5], strides: [5, 5], pads: [0; 4], ..PLAIN }), 1);
    // Few windows have most elements.
    assert_eq!(reductions(Pool { kernel: [13, 36], pads: [0; 4], ..PLAIN }), 1);
}
