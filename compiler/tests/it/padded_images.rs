//! Convolutions of padded images: products with the padding are left out, and the sums keep their bits.

use crate::{
    bits::assert_same_bits,
    machine::Machine,
    models,
    protos::{float, float_tensor, node},
};
use symshape::{Declaration, Dim, Relation};
use symshape_compiler::{
    Result,
    graph::{Graph, Op, eval::eval, tolerance::RoundingTolerance},
    import::{
        ImportOptions, Model, import, parse_dim,
        proto::{AttributeProto, GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto},
    },
    kernel::{Program, Stmt},
    pipeline::{Lowered, Pipeline},
    scalar::Scalar,
    tensor::Tensor,
};
use symshape_runtime::DType;

/// A convolution of images of `H` × `W` pixels.
#[derive(Clone, Copy, Debug)]
struct Convolution {
    channels: [usize; 2],
    kernel: [usize; 2],
    strides: [i64; 2],
    dilations: [i64; 2],
    before: [i64; 2],
    after: [i64; 2],
    /// The largest height and width.
    sides: [i64; 2],
}

const PLAIN: Convolution = Convolution {
    channels: [5, 24],
    kernel: [5, 5],
    strides: [1, 1],
    dilations: [1, 1],
    before: [2, 2],
    after: [2, 2],
    sides: [9, 9],
};

const CONVOLUTIONS: [Convolution; 7] = [
    PLAIN,
    // Far taps are outside at every line of small images.
    Convolution { kernel: [3, 3], dilations: [6, 2], before: [6, 2], after: [6, 2], ..PLAIN },
    Convolution { strides: [2, 1], before: [4, 0], after: [3, 0], kernel: [7, 1], ..PLAIN },
    // All taps are outside at the first and the last lines.
    Convolution { kernel: [2, 2], before: [3, 1], after: [5, 0], ..PLAIN },
    Convolution {
        kernel: [4, 3],
        dilations: [2, 1],
        before: [0, 1],
        after: [6, 1],
        strides: [3, 2],
        ..PLAIN
    },
    // The reduction has several parts.
    Convolution {
        channels: [64, 40],
        kernel: [7, 7],
        before: [3, 3],
        after: [3, 3],
        sides: [8, 13],
        ..PLAIN
    },
    Convolution {
        channels: [96, 16],
        kernel: [5, 5],
        dilations: [3, 1],
        before: [6, 2],
        after: [6, 2],
        sides: [16, 16],
        ..PLAIN
    },
];

impl Convolution {
    fn graph(&self) -> Result<Graph> {
        let mut g = Graph { name: "convolution".into(), ..Graph::default() };
        let n = g.symbol("N", Declaration::range(0, 3))?;
        let [h, w] = self.sides;
        let h = g.symbol("H", Declaration::range(1, h))?;
        let w = g.symbol("W", Declaration::range(1, w))?;
        let [cin, cout] = self.channels;
        let x = g.input("x", DType::F32, vec![n, cin.into(), h, w])?;
        let sides = |[y, x]: [i64; 2]| [0, 0, y, x].map(Dim::from);
        let x = g.pad(x, &sides(self.before), &sides(self.after), Scalar::f32(0.0))?;
        let [i, j] = self.kernel.map(|taps| taps as i64);
        let spans = [(i - 1) * self.dilations[0] + 1, (j - 1) * self.dilations[1] + 1];
        for (axis, span) in [2, 3].into_iter().zip(spans) {
            let size = g.shape(x)[axis].clone();
            g.require(Relation::le(span, &size), "the window fits the image")?;
        }
        let x = g.window(x, &[2, 3], &[i, j], &self.strides, &self.dilations)?;
        let w = g.constant(models::weights(&[cout, cin, self.kernel[0], self.kernel[1]], 5))?;
        let y = g.contract(x, b"ncyxij", w, b"mcij", b"nmyx")?;
        let y = g.relu(y)?;
        g.output("y", y)?;
        Ok(g)
    }
}

/// Removes the padding from the contractions of `stmts`. Returns how many had some.
fn forget_padding(stmts: &mut [Stmt]) -> usize {
    let forget = |stmt: &mut Stmt| match stmt {
        Stmt::For { body, .. } | Stmt::While { body, .. } => forget_padding(body),
        Stmt::If { then, otherwise, .. } => forget_padding(then) + forget_padding(otherwise),
        Stmt::Contraction(contraction) => usize::from(contraction.padding.take().is_some()),
        Stmt::Block(_) | Stmt::Strip { .. } => 0,
    };
    stmts.iter_mut().map(forget).sum()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect()
}

#[test]
fn sums_without_the_padding_have_the_same_bits() {
    for convolution in CONVOLUTIONS {
        let name = format!("{convolution:?}");
        let graph = convolution.graph().unwrap_or_else(|error| panic!("{name}: {error}"));
        let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("supported");
        let mut plain: Program = program.clone();
        let known: usize = plain.kernels.iter_mut().map(|kernel| forget_padding(&mut kernel.body)).sum();
        assert_eq!(known, 1, "{name}: {program}");

        let machine = Machine::assemble(program, &plan, false).expect("supported");
        let plain = Machine::assemble(plain, &plan, false).expect("supported");
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let bytes: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
            let run = |machine: &Machine| floats(&machine.run(&dims, &bytes).expect("in range")[0]);
            let found = run(&machine);
            assert_same_bits(&found, &run(&plain), format_args!("{name} at {dims:?}"));

            let expected = &eval(&graph, &inputs).expect("in range")[0];
            let found = Tensor::from_f32(expected.shape().to_vec(), &found).expect("of the same size");
            let tolerance = RoundingTolerance::of(&graph, &inputs);
            tolerance.check(expected, &found).unwrap_or_else(|why| panic!("{name} at {dims:?}: {why}"));
        }
    }
}

#[test]
fn kernels_with_infinities_are_multiplied_with_the_padding() {
    let mut graph = PLAIN.graph().expect("valid");
    for node in graph.nodes.values_mut() {
        if let Op::Const(tensor) = &mut node.op
            && tensor.shape().len() == 4
        {
            let mut values: Vec<f32> = floats(tensor.bytes());
            values[0] = f32::INFINITY;
            *tensor = Tensor::from_f32(tensor.shape().to_vec(), &values).expect("of the same shape");
        }
    }
    let mut program = Pipeline::new(&graph).lower().expect("supported").program;
    let known: usize = program.kernels.iter_mut().map(|kernel| forget_padding(&mut kernel.body)).sum();
    assert_eq!(known, 0);
}

/// A model with one convolution. Its kernels are an initialiser or an input.
fn onnx(convolution: &Convolution, is_constant: bool) -> ModelProto {
    let ints = |name: &str, ints: Vec<i64>| AttributeProto {
        name: name.into(),
        kind: 7,
        ints,
        ..Default::default()
    };
    let mut conv = node("Conv", &["x", "w"], &["y"]);
    conv.attribute = vec![
        ints("strides", convolution.strides.to_vec()),
        ints("dilations", convolution.dilations.to_vec()),
        ints("pads", [convolution.before, convolution.after].concat()),
    ];
    let w = kernels(convolution);
    let dims: Vec<String> = w.shape().iter().map(|size| size.to_string()).collect();
    let mut input = vec![float("x", &["N", &dims[1], "H", "W"])];
    let mut initializer = Vec::new();
    if is_constant {
        initializer.push(float_tensor("w", &w));
    } else {
        input.push(float("w", &dims.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    let output = vec![ValueInfoProto { name: "y".into(), ty: None }];
    let graph = GraphProto { node: vec![conv], input, output, initializer, ..Default::default() };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() }
}

fn kernels(convolution: &Convolution) -> Tensor {
    let Convolution { channels: [cin, cout], kernel: [i, j], .. } = *convolution;
    models::weights(&[cout, cin, i, j], 5)
}

/// The convolutions, the sizes, and the taps that see the image at some size.
const IDLE_TAPS: [(Convolution, [usize; 2]); 6] = [
    (PLAIN, [5, 5]),
    (Convolution { kernel: [3, 3], dilations: [9, 10], before: [9, 10], after: [9, 10], ..PLAIN }, [1, 1]),
    (Convolution { kernel: [3, 3], dilations: [8, 9], before: [8, 9], after: [8, 9], ..PLAIN }, [3, 1]),
    // The padding is not a multiple of the dilation, so some of it remains.
    (Convolution { kernel: [3, 5], dilations: [10, 5], before: [12, 10], after: [10, 12], ..PLAIN }, [2, 4]),
    // Windows that begin at every third line see less of the end.
    (
        Convolution {
            kernel: [5, 1],
            before: [8, 0],
            after: [0, 0],
            strides: [9, 1],
            sides: [4, 4],
            ..PLAIN
        },
        [1, 1],
    ),
    // One tap remains where all are in the padding.
    (
        Convolution {
            kernel: [2, 1],
            before: [12, 0],
            after: [0, 0],
            strides: [20, 1],
            sides: [4, 4],
            ..PLAIN
        },
        [1, 1],
    ),
];

#[test]
fn taps_that_see_only_padding_are_dropped() {
    for (convolution, taps) in IDLE_TAPS {
        let [h, w] = convolution.sides;
        let dims = ["N=0..3".into(), format!("H=1..{h}"), format!("W=1..{w}")];
        let dims = dims.iter().map(|dim: &String| parse_dim(dim).expect("a range")).collect();
        let options = ImportOptions { dims, ..Default::default() };
        let [cut, whole] = [true, false].map(|is_constant| {
            import(&Model::from(onnx(&convolution, is_constant)), &options)
                .unwrap_or_else(|error| panic!("{convolution:?}: {error}"))
        });
        let has_window = |graph: &Graph| {
            let shapes = graph.nodes.values().filter_map(|node| match &node.op {
                Op::View { shape, .. } if shape.len() == 6 => Some(shape[4..].to_vec()),
                _ => None,
            });
            shapes.collect::<Vec<_>>()
        };
        assert_eq!(has_window(&cut), [taps.map(Dim::from).to_vec()], "{convolution:?}");
        assert_eq!(has_window(&whole), [convolution.kernel.map(Dim::from).to_vec()], "{convolution:?}");

        for dims in models::bindings(&cut) {
            let x = models::inputs(&cut, &dims).remove(0);
            let expected = eval(&whole, &[x.clone(), kernels(&convolution)]).expect("in range");
            let found = eval(&cut, &[x]).expect("in range");
            let [found, expected] = [found, expected].map(|outputs| floats(outputs[0].bytes()));
            assert_same_bits(&found, &expected, format_args!("{convolution:?} at {dims:?}"));
        }
    }
}
