//! Weights of few bits stay packed up to the microkernels, and products with them have the bits of products with
//! floats.

mod rounded;
mod rows;
mod web;

use crate::bits::assert_same_bits;
use crate::foreign::Program as ForeignProgram;
use crate::models;
use crate::protos;

use protos::{float, node};
use symshape::Dim;
use symshape_compiler::{
    CompileOptions, Microkernels, Result, emit,
    graph::{self, Graph, Value},
    import::{
        ImportOptions, Model as OnnxModel, import, parse_dim,
        proto::{AttributeProto, GraphProto, ModelProto, OperatorSetIdProto, TensorProto, ValueInfoProto},
    },
    kernel::{self, FewBitsForm, Program, Rhs, Stmt},
    opt,
    pipeline::{Lowered, Pipeline},
    target::{Level, Target},
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, Model, TensorRef};

/// Largest number of rows: more than a tile has on any ISA.
const MAX_ROWS: i64 = 37;

/// Weights of a layer of `k` inputs and `n` outputs.
#[derive(Clone, Copy, Debug)]
struct Layer {
    k: usize,
    n: usize,
    bits: u32,
    /// Elements of a block along `k`.
    block: usize,
    zeros: Zeros,
    scale: DType,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Zeros {
    /// Half of the range everywhere.
    Middle,
    /// One for each block.
    ByBlock,
}

/// All widths and both kinds of zero points, with depths and columns that fill panels, blocks and words or don't.
const LAYERS: [Layer; 8] = [
    Layer { k: 64, n: 48, bits: 4, block: 32, zeros: Zeros::Middle, scale: DType::F32 },
    Layer { k: 70, n: 50, bits: 4, block: 16, zeros: Zeros::ByBlock, scale: DType::F16 },
    Layer { k: 259, n: 33, bits: 4, block: 256, zeros: Zeros::ByBlock, scale: DType::BF16 },
    Layer { k: 67, n: 40, bits: 2, block: 16, zeros: Zeros::Middle, scale: DType::F16 },
    Layer { k: 100, n: 17, bits: 2, block: 32, zeros: Zeros::ByBlock, scale: DType::F32 },
    Layer { k: 64, n: 130, bits: 8, block: 16, zeros: Zeros::Middle, scale: DType::BF16 },
    Layer { k: 61, n: 35, bits: 8, block: 32, zeros: Zeros::ByBlock, scale: DType::F32 },
    Layer { k: 90, n: 64, bits: 8, block: 45, zeros: Zeros::ByBlock, scale: DType::F16 },
];

/// Layers whose reduction is cut into parts when panels are unpacked. The parts begin inside blocks. The rows of some
/// are whole pages apart.
const DEEP: [Layer; 5] = [
    Layer { k: 1024, n: 150, bits: 4, block: 32, zeros: Zeros::Middle, scale: DType::F32 },
    Layer { k: 2048, n: 144, bits: 8, block: 256, zeros: Zeros::Middle, scale: DType::F16 },
    Layer { k: 2048, n: 131, bits: 2, block: 128, zeros: Zeros::ByBlock, scale: DType::F32 },
    Layer { k: 2100, n: 70, bits: 4, block: 256, zeros: Zeros::ByBlock, scale: DType::F16 },
    Layer { k: 2101, n: 40, bits: 8, block: 45, zeros: Zeros::ByBlock, scale: DType::BF16 },
];

/// Integers below `2^bits` that look random and are always the same.
fn integers(count: usize, bits: u32, seed: u32) -> Vec<u8> {
    let floats = models::weights(&[count], seed);
    (0..count).map(|idx| ((floats.get(idx).as_f64() + 1.0) * 128.0) as u8 >> (8 - bits)).collect()
}

impl Layer {
    fn blocks(self) -> usize {
        self.k.div_ceil(self.block)
    }

    fn scales(self) -> Vec<f32> {
        let floats = models::weights(&[self.n * self.blocks()], 5);
        let scale = |idx: usize| {
            let x = (floats.get(idx).as_f64() as f32 + 1.5) / 64.0;
            match self.scale {
                DType::F16 => half::f16::from_f32(x).to_f32(),
                // Too small for f16.
                DType::BF16 => half::bf16::from_f32(x).to_f32() * 2f32.powi(-30),
                _ => x,
            }
        };
        (0..floats.elems()).map(scale).collect()
    }

    fn zeros(self) -> Vec<u8> {
        let count = self.n * self.blocks();
        match self.zeros {
            Zeros::Middle => vec![1 << (self.bits - 1); count],
            Zeros::ByBlock => integers(count, self.bits, 6),
        }
    }

    fn bytes(self, shape: &[usize], bytes: Vec<u8>) -> Tensor {
        Tensor::new(DType::U8, shape.to_vec(), Bytes::Owned(bytes.into())).expect("a byte each")
    }

    /// The weights, `[k, n]`, as operators on stored integers.
    fn stored(self, g: &mut Graph) -> Result<Value> {
        let Layer { k, n, bits, block, .. } = self;
        let blocks = self.blocks();
        let q = g.constant(self.bytes(&[n, blocks, block], integers(n * blocks * block, bits, 3)))?;
        let q = g.cast(DType::F32, q)?;
        let zeros = g.constant(self.bytes(&[n, blocks, 1], self.zeros()))?;
        let zeros = g.cast(DType::F32, zeros)?;
        let centred = g.sub(q, zeros)?;
        let scales = Tensor::from_f32(vec![n, blocks, 1], &self.scales()).expect("one for each block");
        let scales = g.constant(scales)?;
        let w = g.mul(centred, scales)?;
        let w = g.reshape(w, vec![n.into(), (blocks * block).into()])?;
        let w = g.slice(w, 1, Dim::zero(), k.into(), 1)?;
        g.transpose(w, &[1, 0])
    }

    /// The weights, `[k, n]`, as floats.
    fn floats(self) -> Tensor {
        let Layer { k, n, bits, block, .. } = self;
        let blocks = self.blocks();
        let q = integers(n * blocks * block, bits, 3);
        let scales = self.scales();
        let zeros = self.zeros();
        let element = |at: usize| {
            let (k, n) = (at / n, at % n);
            let b = n * blocks + k / block;
            f32::from(i16::from(q[n * blocks * block + k]) - i16::from(zeros[b])) * scales[b]
        };
        Tensor::from_f32(vec![k, n], &(0..k * n).map(element).collect::<Vec<_>>()).expect("all elements")
    }

    /// `relu(x · w + b)` for these weights.
    fn graph(self, w: impl FnOnce(&mut Graph) -> Result<Value>) -> Graph {
        let build = || {
            let mut g = models::graph("layer", &[("M", 1, MAX_ROWS)]);
            let x = g.input("x", DType::F32, vec![Dim::symbol("M"), self.k.into()])?;
            let w = w(&mut g)?;
            let y = g.matmul(x, w)?;
            let b = g.constant(models::weights(&[self.n], 8))?;
            let y = g.add(y, b)?;
            let y = g.relu(y)?;
            g.output("y", y)?;
            Ok::<Graph, symshape_compiler::Error>(g)
        };
        build().expect("a valid graph")
    }

    fn of_few_bits(self) -> Graph {
        self.graph(|g| self.stored(g))
    }

    fn of_floats(self) -> Graph {
        self.graph(|g| g.constant(self.floats()))
    }
}

/// The levels that this machine has.
fn levels() -> Vec<Level> {
    let is_here = |level: &Level| level.is_on_host() && level.name().starts_with("x86");
    Level::ALL.into_iter().filter(is_here).collect()
}

/// The forms of few bits in a program, and the bytes of their panels.
fn forms(program: &Program) -> Vec<(FewBitsForm, usize)> {
    fn of(program: &Program, stmt: &Stmt, found: &mut Vec<(FewBitsForm, usize)>) {
        match stmt {
            Stmt::For { body, .. } => body.iter().for_each(|stmt| of(program, stmt, found)),
            Stmt::Contraction(contraction) => {
                if let Rhs::FewBits(panels) = &contraction.rhs {
                    let bytes = program.buffers[panels.buffer].bytes().as_i64().expect("a constant");
                    found.push((panels.form, bytes as usize));
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    for stmt in program.kernels.iter().flat_map(|kernel| &kernel.body) {
        of(program, stmt, &mut found);
    }
    found
}

fn lowered(graph: &Graph) -> Lowered {
    Pipeline::new(graph).lower().expect("supported")
}

fn compiled(lowered: &Lowered, microkernels: Microkernels) -> Model {
    let options = CompileOptions::default().microkernels(microkernels);
    emit::jit::jit(&lowered.program, &lowered.plan, &options).expect("supported").0
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64() as f32).collect()
}

fn run(model: &Model, threads: u32, input: &Tensor) -> Vec<f32> {
    let mut context = Context::new(model).expect("memory");
    context.set_threads(threads).expect("threads");
    let x = floats(input);
    let input = TensorRef::new(input.shape(), &x).expect("a tensor");
    context.run_views(&[input]).expect("it runs").get(0).elems::<f32>().expect("floats").to_vec()
}

#[track_caller]
fn assert_close(got: &[f32], want: &[f32], context: &str) {
    assert_eq!(got.len(), want.len(), "{context}");
    for (idx, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= 2e-5 * (1.0 + want.abs()), "{context} [{idx}]: {got}, not {want}");
    }
}

#[test]
fn weights_take_their_bits_and_scales() {
    for layer in LAYERS {
        let found = forms(&lowered(&layer.of_few_bits()).program);
        let [(form, bytes)] = found[..] else { panic!("{layer:?}: {found:?}") };
        let has_zeros = layer.zeros == Zeros::ByBlock;
        let block = layer.block.min(layer.k) as u32;
        let wanted =
            FewBitsForm { bits: layer.bits, block, scale: layer.scale, has_zeros, rounds_lhs: false };
        assert_eq!(form, wanted, "{layer:?}");

        let columns = layer.n.next_multiple_of(16);
        let codes = layer.k.next_multiple_of(32 / layer.bits as usize) * layer.bits as usize / 8;
        let by_block = layer.scale.size_bytes() + usize::from(has_zeros);
        assert!(bytes <= columns * (codes + layer.blocks() * by_block), "{layer:?}: {bytes} bytes");
    }
}

#[test]
fn products_have_the_bits_of_products_with_floats() {
    for layer in LAYERS {
        let few_bits = compiled(&lowered(&layer.of_few_bits()), Microkernels::Native);
        let of_floats = compiled(&lowered(&layer.of_floats()), Microkernels::Native);
        for rows in 1..=MAX_ROWS {
            let input = models::weights(&[rows as usize, layer.k], 11);
            let want = run(&of_floats, 1, &input);
            for threads in [1, 3] {
                let got = run(&few_bits, threads, &input);
                assert_same_bits(&got, &want, format_args!("{layer:?}, {rows} rows on {threads} threads"));
            }
        }
    }
}

#[test]
fn every_way_to_run_computes_the_graph() {
    for layer in LAYERS {
        let graph = layer.of_few_bits();
        let lowered = lowered(&graph);
        let native = compiled(&lowered, Microkernels::Native);
        let tiles = compiled(&lowered, Microkernels::EmulatedTiles);
        let loops = compiled(&lowered, Microkernels::ScalarLoops);
        for rows in [1, 2, 19, MAX_ROWS - 1, MAX_ROWS] {
            let input = models::inputs(&graph, &[rows]).remove(0);
            let inputs = std::slice::from_ref(&input);
            let want = floats(&graph::eval::eval(&graph, inputs).expect("an oracle")[0]);
            for (name, model) in [("native", &native), ("tiles", &tiles), ("loops", &loops)] {
                assert_close(&run(model, 1, &input), &want, &format!("{name}, {layer:?}, {rows} rows"));
            }
            if rows <= 2 {
                let got = kernel::eval::eval(&lowered.program, &[rows], inputs).expect("it can be evaluated");
                assert_close(&floats(&got[0]), &want, &format!("kernels, {layer:?}"));
            }
        }
    }
}

#[test]
fn text_of_kernels_keeps_the_form() {
    for layer in LAYERS {
        let program = lowered(&layer.of_few_bits()).program;
        let text = program.to_string();
        let form = forms(&program)[0].0;
        let zeros = if form.has_zeros { " zeros" } else { "" };
        let line = format!("bits {} block {} scale {}{zeros} unpack @", form.bits, form.block, form.scale);
        assert!(text.contains(&line), "{text}");

        // Constants without the elements that the text leaves out.
        let of_line = |line: &str| match line.split_once(" elided ") {
            Some((start, _)) => format!("{start} all 0\n"),
            None => format!("{line}\n"),
        };
        let text: String = text.lines().map(of_line).collect();
        assert!(kernel::text::parse(&text).expect("a program").to_string().contains(&line), "{layer:?}");
    }
}

#[test]
fn source_in_c_computes_the_graph() {
    for layer in LAYERS {
        let graph = layer.of_few_bits();
        let lowered =
            Pipeline::new(&graph).options(CompileOptions::for_c_source()).lower().expect("supported");
        assert_eq!(forms(&lowered.program).len(), 1, "{layer:?}");
        let source = lowered.source("layer.h").expect("supported");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("layer.h"), source.header).expect("a header");
        std::fs::write(folder.path().join("layer.c"), source.code).expect("a source");
        let program = ForeignProgram::compile(folder, "cc", &[], "layer", "layer.c");
        for rows in [1, 2, MAX_ROWS] {
            let inputs = models::inputs(&graph, &[rows]);
            let want = graph::eval::eval(&graph, &inputs).expect("an oracle");
            program.assert_gives(&format!("{layer:?}, {rows} rows"), &inputs, &want);
        }
    }
}

#[test]
fn scales_of_columns_of_bytes_stay_packed() {
    let (k, n) = (80, 48);
    let build = || {
        let mut g = models::graph("columns", &[("M", 1, MAX_ROWS)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("M"), k.into()])?;
        let q = Tensor::new(DType::I8, vec![k, n], Bytes::Owned(integers(k * n, 8, 3).into()));
        let q = g.constant(q.expect("a byte each"))?;
        let q = g.cast(DType::F32, q)?;
        let scale = g.constant(models::weights(&[n], 5))?;
        let w = g.mul(q, scale)?;
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    let graph = build().expect("a valid graph");
    let target = Target::parse(None, Some("x86-64-v3")).expect("a known level");
    let lowered =
        Pipeline::new(&graph).options(CompileOptions::for_target(&target)).lower().expect("supported");
    let found = forms(&lowered.program);
    let [(form, bytes)] = found[..] else { panic!("{found:?}") };
    assert_eq!((form.bits, form.block as usize, bytes), (8, k, k * n + 2 * n));

    let model = compiled(&lowered, Microkernels::Native);
    for rows in [1, 2, 19, MAX_ROWS] {
        let input = models::inputs(&graph, &[rows]).remove(0);
        let want = floats(&graph::eval::eval(&graph, std::slice::from_ref(&input)).expect("an oracle")[0]);
        assert_close(&run(&model, 1, &input), &want, &format!("{rows} rows"));
    }
}

#[test]
fn small_weights_and_scales_of_elements_become_floats() {
    let small = Layer { k: 32, n: 20, bits: 4, block: 32, zeros: Zeros::Middle, scale: DType::F32 };
    let fine = Layer { block: 4, k: 64, n: 48, ..small };
    for layer in [small, fine] {
        let mut graph = layer.of_few_bits();
        assert!(forms(&lowered(&graph).program).is_empty(), "{layer:?}");
        opt::optimize(&mut graph).expect("a valid graph");
        assert!(!graph.to_string().contains("sub"), "the weights are one constant: {graph}");
    }
}

/// A tensor of zeros with ONNX's number of its type.
fn zeros(name: &str, data_type: i32, bytes_each: usize, dims: &[i64]) -> TensorProto {
    let count = dims.iter().product::<i64>() as usize;
    let raw = vec![0; count * bytes_each];
    let name = name.to_string();
    TensorProto { name, dims: dims.to_vec(), data_type, raw_data: Some(raw.into()), ..Default::default() }
}

/// The error of a `MatMulNBits` of 64 inputs and 48 outputs in blocks of `block` with these tensors.
fn refusal(block: i64, tensors: Vec<TensorProto>) -> String {
    let names: Vec<String> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let inputs: Vec<&str> = ["x"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut product = node("com.microsoft:MatMulNBits", &inputs, &["y"]);
    for (name, value) in [("K", 64), ("N", 48), ("bits", 4), ("block_size", block)] {
        let name = name.to_string();
        product.attribute.push(AttributeProto { name, kind: 2, i: value, ..Default::default() });
    }
    let graph = GraphProto {
        node: vec![product],
        input: vec![float("x", &["M", "64"])],
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        initializer: tensors,
        ..Default::default()
    };
    let version = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    let opset_import = vec![version("", 21), version("com.microsoft", 1)];
    let model = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() };
    let dims = vec![parse_dim("M=1..4").expect("a range")];
    let options = ImportOptions { dims, ..Default::default() };
    import(&OnnxModel::from(model), &options).expect_err("the tensors don't fit").to_string()
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let weights = || zeros("w", 2, 1, &[48, 2, 16]);
    let scales = || zeros("s", 1, 4, &[96]);
    let points = || zeros("z", 2, 1, &[48]);
    let order = || zeros("g", 6, 4, &[64]);
    let cases = [
        (32, vec![zeros("w", 2, 1, &[48, 2, 15]), scales()], "the weights have 1440 elements"),
        (32, vec![weights(), zeros("s", 1, 4, &[95])], "the scales have 95 elements"),
        (32, vec![weights(), scales(), zeros("z", 2, 1, &[47])], "the zero points have 47 elements"),
        (32, vec![weights(), scales(), zeros("z", 3, 1, &[48])], "zero points of type i8"),
        (17, vec![weights(), scales()], "in blocks of 17"),
        (32, vec![weights(), scales(), points(), order()], "g_idx"),
    ];
    for (block, tensors, expected) in cases {
        let error = refusal(block, tensors);
        assert!(error.contains(expected) && error.contains("the MatMulNBits"), "{error}");
    }
}
