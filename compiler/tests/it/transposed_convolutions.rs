//! Transposed convolutions through the importer, compared with their definition in double precision: phases that are
//! computed together or in parts, channels that vectors hold or not, and results that are cut.

use crate::{
    compiled::assert_same,
    machine::Machine,
    models,
    protos::{float, float_tensor, imported, node},
};
use symshape_compiler::{
    graph::{Graph, Op, eval::eval},
    import::proto::{AttributeProto, GraphProto},
    pipeline::{Lowered, Pipeline},
    tensor::Tensor,
};

#[derive(Clone, Copy, Debug)]
struct Transposed {
    /// Of the operand, then of the result in each group.
    channels: [usize; 2],
    group: usize,
    kernel: [usize; 2],
    strides: [usize; 2],
    dilations: [usize; 2],
    /// Before rows and columns, then behind them.
    pads: [usize; 4],
    output_padding: [usize; 2],
    /// Whether a convolution of one point reads the result.
    is_multiplied: bool,
}

const PLAIN: Transposed = Transposed {
    channels: [3, 16],
    group: 1,
    kernel: [3, 3],
    strides: [2, 2],
    dilations: [1, 1],
    pads: [1; 4],
    output_padding: [1, 1],
    is_multiplied: false,
};

const CONVOLUTIONS: [Transposed; 16] = [
    PLAIN,
    Transposed { is_multiplied: true, ..PLAIN },
    Transposed { output_padding: [0, 0], ..PLAIN },
    Transposed { kernel: [5, 3], pads: [2, 0, 1, 1], output_padding: [0, 1], ..PLAIN },
    Transposed { kernel: [7, 4], strides: [3, 3], pads: [2, 1, 2, 0], ..PLAIN },
    // One axis is divided.
    Transposed { channels: [3, 8], ..PLAIN },
    Transposed { kernel: [3, 1], pads: [1, 0, 1, 0], strides: [2, 1], output_padding: [1, 0], ..PLAIN },
    // All phases have as many elements of the kernel.
    Transposed { kernel: [2, 2], pads: [0; 4], output_padding: [0, 0], ..PLAIN },
    Transposed { channels: [3, 1], kernel: [2, 2], pads: [0; 4], output_padding: [0, 0], ..PLAIN },
    Transposed { kernel: [4, 4], output_padding: [0, 0], channels: [2, 40], ..PLAIN },
    Transposed { kernel: [4, 4], output_padding: [0, 0], is_multiplied: true, ..PLAIN },
    // Phases that no element reaches.
    Transposed { kernel: [2, 1], strides: [3, 2], pads: [0; 4], output_padding: [2, 1], ..PLAIN },
    Transposed { dilations: [2, 1], pads: [2, 1, 1, 1], ..PLAIN },
    Transposed { channels: [6, 16], group: 3, ..PLAIN },
    Transposed { channels: [6, 1], group: 6, ..PLAIN },
    Transposed { channels: [4, 5], group: 2, dilations: [3, 3], pads: [3; 4], ..PLAIN },
];

impl Transposed {
    fn kernels(&self) -> Tensor {
        models::weights(&[self.channels[0], self.channels[1], self.kernel[0], self.kernel[1]], 5)
    }

    fn bias(&self) -> Tensor {
        models::weights(&[self.group * self.channels[1]], 6)
    }

    fn graph(&self) -> Graph {
        let ints = |name: &str, ints: &[usize]| AttributeProto {
            name: name.into(),
            kind: 7,
            ints: ints.iter().map(|value| *value as i64).collect(),
            ..Default::default()
        };
        let mut conv = node("ConvTranspose", &["x", "w", "b"], &["t"]);
        conv.attribute = vec![
            ints("strides", &self.strides),
            ints("dilations", &self.dilations),
            ints("pads", &self.pads),
            ints("output_padding", &self.output_padding),
            AttributeProto { name: "group".into(), kind: 2, i: self.group as i64, ..Default::default() },
        ];
        let mut initializer = vec![float_tensor("w", &self.kernels()), float_tensor("b", &self.bias())];
        let last = if self.is_multiplied {
            let channels = self.group * self.channels[1];
            initializer.push(float_tensor("v", &identity(channels)));
            node("Conv", &["t", "v"], &["y"])
        } else {
            node("Relu", &["t"], &["y"])
        };
        let channels = self.channels[0].to_string();
        let input = vec![float("x", &["N", &channels, "H", "W"])];
        let graph = GraphProto { node: vec![conv, last], input, initializer, ..Default::default() };
        imported(graph, &["N=0..2", "H=2..9", "W=3..21"])
    }

    /// One element of the result, before the last node.
    fn exact(&self, x: &Tensor, [n, channel, row, column]: [usize; 4]) -> f64 {
        let [cin, each] = self.channels;
        let (w, group) = (self.kernels(), channel / each);
        let size = [x.shape()[2], x.shape()[3]];
        // The place in the operand from which a tap reaches the element.
        let source = |axis: usize, at: usize, tap: usize| {
            let distance = (at + self.pads[axis]).checked_sub(tap * self.dilations[axis])?;
            let place = distance / self.strides[axis];
            (distance % self.strides[axis] == 0 && place < size[axis]).then_some(place)
        };
        let mut sum = self.bias().get(channel).as_f64();
        for from in group * cin / self.group..(group + 1) * cin / self.group {
            for (i, j) in (0..self.kernel[0]).flat_map(|i| (0..self.kernel[1]).map(move |j| (i, j))) {
                if let (Some(y), Some(z)) = (source(0, row, i), source(1, column, j)) {
                    let weight = ((from * each + channel % each) * self.kernel[0] + i) * self.kernel[1] + j;
                    let element = ((n * cin + from) * size[0] + y) * size[1] + z;
                    sum += x.get(element).as_f64() * w.get(weight).as_f64();
                }
            }
        }
        sum
    }

    fn check(&self, x: &Tensor, y: &Tensor) {
        for idx in 0..y.elems() {
            let [_, channels, rows, columns] = [0, 1, 2, 3].map(|axis| y.shape()[axis]);
            let row = idx / columns;
            let place = [row / rows / channels, row / rows % channels, row % rows, idx % columns];
            let sum = self.exact(x, place);
            let exact = if self.is_multiplied { sum } else { sum.max(0.0) };
            let found = y.get(idx).as_f64();
            assert!((found - exact).abs() < 1e-5, "{self:?} at {place:?}: {found}, not {exact}");
        }
    }
}

/// Kernels of one point that change nothing.
fn identity(channels: usize) -> Tensor {
    let elems: Vec<f32> =
        (0..channels * channels).map(|idx| f32::from(idx / channels == idx % channels)).collect();
    Tensor::from_f32(vec![channels, channels, 1, 1], &elems).expect("as many as the shape")
}

#[test]
fn transposed_convolutions_are_those_of_their_definition() {
    for convolution in CONVOLUTIONS {
        let graph = convolution.graph();
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            convolution.check(&inputs[0], &eval(&graph, &inputs).expect("in range")[0]);
        }
        let name = format!("{convolution:?}");
        let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("supported");
        for scalar in [true, false] {
            let machine = Machine::assemble(program.clone(), &plan, scalar).expect("supported");
            assert_same(&name, &graph, &machine);
        }
    }
}

#[test]
fn phases_with_fewer_elements_of_the_kernel_have_contractions_of_their_own() {
    let sums = |convolution: Transposed| {
        let graph = convolution.graph();
        graph.nodes.values().filter(|node| matches!(node.op, Op::Contraction { .. })).count()
    };
    assert_eq!(sums(PLAIN), 4);
    assert_eq!(sums(Transposed { channels: [3, 8], ..PLAIN }), 2);
    assert_eq!(sums(Transposed { channels: [3, 3], ..PLAIN }), 1);
    assert_eq!(sums(Transposed { kernel: [4, 4], ..PLAIN }), 1);
}
