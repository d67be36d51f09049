//! Batches of a constant size that run a few images at a time: the bits of calls for one image on any number of
//! threads, the results of the naive evaluator, and less memory.

use crate::{bits::assert_same_bits, tensors};

use symshape::{Declaration, Dim, Symbol};
use symshape_compiler::{
    CompileOptions, Result,
    graph::{self, Graph, Value},
    kernel::{self, BatchBlocks, Program},
    pipeline::{Lowered, Pipeline},
    scalar::{ReduceOp, Scalar},
    tensor::Tensor,
};
use symshape_runtime::{Context, DType, Model};

/// Channels, rows and columns of an image. Some of the batches below have as many images as channels or rows.
const CHANNELS: usize = 16;
const SIDE: usize = 32;
const IMAGE: usize = CHANNELS * SIDE * SIDE;

/// Builds a model for a batch of this many images.
type Build = fn(&mut Graph, i64) -> Result<()>;

fn graph(build: Build, images: i64) -> Graph {
    let mut g = Graph { name: "images".into(), ..Graph::default() };
    build(&mut g, images).expect("valid");
    g
}

fn images(g: &mut Graph, n: i64) -> Result<Value> {
    g.input("x", DType::F32, vec![n.into(), CHANNELS.into(), SIDE.into(), SIDE.into()])
}

fn weights(g: &mut Graph, shape: Vec<usize>) -> Result<Value> {
    let elems: Vec<f32> =
        (0..shape.iter().product()).map(|at: usize| (at * 37 % 101) as f32 / 200.0 - 0.25).collect();
    g.constant(Tensor::from_f32(shape, &elems).expect("sized"))
}

/// A 3×3 convolution.
fn convolution(g: &mut Graph, x: Value) -> Result<Value> {
    let pads: Vec<Dim> = [0, 0, 1, 1].map(Dim::from).to_vec();
    let x = g.pad(x, &pads, &pads, Scalar::f32(0.0))?;
    let windows = g.window(x, &[2, 3], &[3, 3], &[1, 1], &[1, 1])?;
    let filters = weights(g, vec![CHANNELS, CHANNELS, 3, 3])?;
    g.contract(windows, b"nchwij", filters, b"ocij", b"nohw")
}

/// Convolutions, and a softmax over the channels.
fn network(g: &mut Graph, n: i64) -> Result<()> {
    let x = images(g, n)?;
    layers(g, x)
}

fn layers(g: &mut Graph, x: Value) -> Result<()> {
    let y = convolution(g, x)?;
    let y = g.relu(y)?;
    let z = convolution(g, y)?;
    let z = g.add(z, y)?;
    let y = g.softmax(z, 1)?;
    g.output("y", y)
}

/// Shapes that mention the batch as a factor, and a second output.
fn reshaped(g: &mut Graph, n: i64) -> Result<()> {
    let x = images(g, n)?;
    let rows = g.reshape(x, vec![(n * 64).into(), (IMAGE as i64 / 64).into()])?;
    let rows = g.softmax(rows, 1)?;
    let y = g.reshape(rows, vec![n.into(), CHANNELS.into(), SIDE.into(), SIDE.into()])?;
    let y = convolution(g, y)?;
    let most = g.reduce(ReduceOp::Max, y, &[2, 3], false)?;
    g.output("y", y)?;
    let most = g.reshape(most, vec![(n * CHANNELS as i64).into()])?;
    g.output("most", most)
}

/// An input that all images share.
fn shifted(g: &mut Graph, n: i64) -> Result<()> {
    let x = images(g, n)?;
    let shift = g.input("shift", DType::F32, vec![CHANNELS.into(), SIDE.into(), SIDE.into()])?;
    let shape = g.shape(x).to_vec();
    let shift = g.broadcast_to(shift, &shape)?;
    let y = g.add(x, shift)?;
    let y = g.softmax(y, 3)?;
    let y = convolution(g, y)?;
    g.output("y", y)
}

/// Each group of channels is a convolution.
fn groups(g: &mut Graph, n: i64) -> Result<()> {
    let x = images(g, n)?;
    let x = g.reshape(x, vec![n.into(), 2.into(), 8.into(), (SIDE * SIDE).into()])?;
    let filters = weights(g, vec![2, 6, 8])?;
    let y = g.contract(x, b"ngcs", filters, b"goc", b"ngos")?;
    let y = g.tanh(y)?;
    g.output("y", y)
}

/// The mean over the batch: images depend on each other.
fn mixed(g: &mut Graph, n: i64) -> Result<()> {
    let x = images(g, n)?;
    let shape = g.shape(x).to_vec();
    let y = convolution(g, x)?;
    let mean = g.mean(y, &[0], true)?;
    let mean = g.broadcast_to(mean, &shape)?;
    let y = g.sub(y, mean)?;
    g.output("y", y)
}

/// Image `i` of the result is image `n - 1 - i`.
fn reversed(g: &mut Graph, n: i64) -> Result<()> {
    let x = images(g, n)?;
    let y = convolution(g, x)?;
    let y = g.reverse(y, 0)?;
    let y = g.tanh(y)?;
    g.output("y", y)
}

/// Each image is multiplied by its number.
fn numbered(g: &mut Graph, n: i64) -> Result<()> {
    let x = images(g, n)?;
    let y = convolution(g, x)?;
    let shape = g.shape(y).to_vec();
    let number = g.index(DType::I64, shape, "$0".parse().expect("a dim"))?;
    let number = g.cast(DType::F32, number)?;
    let y = g.mul(y, number)?;
    g.output("y", y)
}

fn lowered(graph: &Graph, threads: u32) -> Lowered {
    let options = CompileOptions::default().threads(threads);
    Pipeline::new(graph).options(options).lower().expect("supported")
}

fn blocks(lowered: &Lowered) -> Option<&BatchBlocks> {
    lowered.program.batch_blocks.as_ref()
}

/// A value for each element of each input.
fn inputs(graph: &Graph) -> Vec<Tensor> {
    let inputs = graph.inputs.iter().enumerate().map(|(input, (_, value))| {
        let sizes = graph.shape(*value).iter().map(|dim| dim.as_i64().expect("a constant") as usize);
        let shape: Vec<usize> = sizes.collect();
        let elems: Vec<f32> = (0..shape.iter().product())
            .map(|at: usize| ((at + 31 * input) * 7919 % 1013) as f32 / 500.0 - 1.0)
            .collect();
        Tensor::from_f32(shape, &elems).expect("sized")
    });
    inputs.collect()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect()
}

fn run(model: &Model, threads: u32, inputs: &[Tensor]) -> Vec<Vec<f32>> {
    let mut context = Context::new(model).expect("memory");
    context.set_threads(threads).expect("threads");
    let outputs = context.run_views(&tensors::refs(inputs)).expect("in contract");
    (0..model.outputs().len()).map(|at| outputs.get(at).elems::<f32>().expect("floats").to_vec()).collect()
}

/// The outputs of a call for each image, one after another.
fn one_by_one(build: Build, n: usize, inputs: &[Tensor]) -> Vec<Vec<f32>> {
    let graph = graph(build, 1);
    let lowered = lowered(&graph, 4);
    assert!(blocks(&lowered).is_none(), "one image");
    let model = lowered.jit().expect("supported");
    let mut outputs: Vec<Vec<f32>> = vec![Vec::new(); model.outputs().len()];
    for image in 0..n {
        let own = inputs.iter().map(|input| {
            let mut shape = input.shape().to_vec();
            if shape[0] != n || shape.len() < 4 {
                return input.clone();
            }
            shape[0] = 1;
            Tensor::from_f32(shape, &floats(input)[image * IMAGE..(image + 1) * IMAGE]).expect("sized")
        });
        let own: Vec<Tensor> = own.collect();
        outputs.iter_mut().zip(run(&model, 1, &own)).for_each(|(all, own)| all.extend(own));
    }
    outputs
}

/// The batches of a model, divided as the test says, have the bits of single images on any number of threads.
fn assert_divided(build: Build, n: usize, block: i64) {
    let graph = graph(build, n as i64);
    let lowered = lowered(&graph, 4);
    let divided = blocks(&lowered).expect("images are independent");
    assert_eq!((divided.images, divided.block), (n as i64, block), "{n} images");

    let inputs = inputs(&graph);
    let expected = one_by_one(build, n, &inputs);
    let model = lowered.jit().expect("supported");
    for threads in [1, 2, 3, 4, 7] {
        let outputs = run(&model, threads, &inputs);
        for (at, (got, expected)) in outputs.iter().zip(&expected).enumerate() {
            assert_same_bits(got, expected, format_args!("output {at} of {n} images, {threads} threads"));
        }
    }
}

#[test]
fn blocks_have_the_bits_of_single_images() {
    // The batch has as many images as an image has channels, and as many as it has rows.
    assert_divided(network, CHANNELS, 4);
    assert_divided(network, SIDE, 8);
    assert_divided(reshaped, CHANNELS, 4);
    assert_divided(shifted, CHANNELS, 4);
    assert_divided(groups, SIDE, 8);
}

#[test]
fn the_last_block_overlaps_where_blocks_do_not_divide_the_batch() {
    assert_divided(network, 13, 7);
    assert_divided(reshaped, 23, 6);
}

#[test]
fn the_interpreters_agree_with_blocks() {
    for (build, n) in [(network as Build, 13), (reshaped, 16), (shifted, 13)] {
        let graph = graph(build, n);
        let inputs = inputs(&graph);
        let expected = graph::eval::eval(&graph, &inputs).expect("in contract");
        let lowered = lowered(&graph, 4);
        assert!(blocks(&lowered).is_some(), "{n} images");
        let of_kernels = kernel::eval::eval(&lowered.program, &[], &inputs).expect("in contract");
        let outputs = run(&lowered.jit().expect("supported"), 2, &inputs);
        for (at, expected) in expected.iter().enumerate() {
            for got in [&floats(&of_kernels[at]), &outputs[at]] {
                let far = got.iter().zip(floats(expected)).position(|(a, b)| (a - b).abs() > 1e-5);
                assert_eq!(far, None, "output {at} of {n} images");
            }
        }
    }
}

#[test]
fn images_that_depend_on_each_other_are_not_divided() {
    for build in [mixed as Build, reversed, numbered] {
        let graph = graph(build, 16);
        let lowered = lowered(&graph, 4);
        assert_eq!(blocks(&lowered), None);
        let inputs = inputs(&graph);
        let expected = graph::eval::eval(&graph, &inputs).expect("in contract");
        let outputs = run(&lowered.jit().expect("supported"), 2, &inputs);
        let far = outputs[0].iter().zip(floats(&expected[0])).position(|(a, b)| (a - b).abs() > 1e-4);
        assert_eq!(far, None);
    }
}

#[test]
fn the_arena_has_the_tensors_of_one_block_for_each_thread() {
    let mut g = Graph { name: "images".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, 64)).expect("new");
    let shape: Vec<Dim> = vec![n, CHANNELS.into(), SIDE.into(), SIDE.into()];
    let x = g.input("x", DType::F32, shape).expect("new");
    layers(&mut g, x).expect("valid");
    let whole = lowered(&g, 1).plan.arena_max;

    // The same batch as a symbol with one value.
    g.facts.declare(&Symbol::new("N"), Declaration::range(64, 64)).expect("in the range");
    for threads in [1, 2, 4] {
        let lowered = lowered(&g, threads);
        let divided = blocks(&lowered).expect("images are independent");
        assert_eq!(u64::from(divided.slices), u64::from(threads).min(64 / divided.block as u64));
        let parts = u64::from(divided.slices) * divided.block as u64;
        assert!(lowered.plan.arena_max <= whole / 64 * parts * 3 / 2, "{threads} threads");
        assert!(parts < 64 || threads == 4);
    }
}

/// Reads image `r[n]` of all, where `r` comes from the caller.
const ROWS: &str = r#"program rows {
  @0 x: f32[8*40000] input 0
  @1 r: i64[8] input 1
  @2 y: f32[8*40000] output 0
  input x[8, 40000] = @0
  input r[8] = @1
  output y[8, 40000] = @2
  images 8 by 3 slices 2 shares 0
  kernel rows {
    for n in 0..3 parallel {
      block {
        %0 = load @1[n]
        check 0 <= %0 < 8, "row"
        bind r = %0
      }
      strip i in 0..40000 {
        %0 = load @0[r*40000 + i]
        %1 = tanh %0
        store @2[n*40000 + i], %1
      }
    }
  }
}
"#;

#[test]
fn errors_of_blocks_are_those_of_one_call() {
    let machine = crate::machine::Machine::new(ROWS);
    let text = machine.program.to_string();
    assert_eq!(Program::to_string(&kernel::text::parse(&text).expect("printed")), text);

    let x: Vec<u8> = (0..8 * 40_000).flat_map(|at| (at as f32 / 1e5).to_le_bytes()).collect();
    let rows = |rows: [i64; 8]| rows.iter().flat_map(|row| row.to_le_bytes()).collect::<Vec<u8>>();
    let outputs = machine.run(&[], &[x.clone(), rows([7, 0, 0, 3, 2, 1, 6, 4])]).expect("in bounds");
    let y: Vec<f32> =
        outputs[0].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect();
    assert_eq!(y[0], (7.0 * 0.4_f32).tanh());
    assert_eq!(y[7 * 40_000], (4.0 * 0.4_f32).tanh());
    let refusal = machine.run(&[], &[x, rows([7, 0, 0, 3, 2, 1, 8, 4])]).expect_err("out of bounds");
    assert_eq!(refusal.numbers[0], 8);
}

#[test]
fn blocks_that_do_not_fit_the_program_are_refused() {
    for (from, to) in [
        ("8 by 3", "8 by 9"),
        ("8 by 3", "8 by 0"),
        ("8 by 3", "7 by 3"),
        ("slices 2", "slices 0"),
        ("shares 0", "shares 2"),
        ("0..3", "0..4"),
    ] {
        let program = kernel::text::parse(&ROWS.replace(from, to)).expect("it can be read");
        assert!(kernel::verify::verify(&program).is_err(), "{to}");
    }
}
