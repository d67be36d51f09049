//! Convolutions by fewer products: near the sums written out, the same bits in every batch, in memory that is there.

use crate::bits::assert_same_bits;
use symshape::{Declaration, Dim};
use symshape_compiler::{
    CompileOptions, Result,
    graph::Graph,
    kernel::{Program, verify},
    pipeline::{self, Pipeline},
    scalar::Scalar,
    tensor::Tensor,
};
use symshape_runtime::{Context, DType, Round, TensorRef};

/// Rounding errors, as a part of the largest output.
const TOLERANCE: f64 = 1e-5;

/// Height, width, channels in and channels out; tiles of both forms, whole and smaller, a block of a few rows of tiles
/// and one of several images.
const SIZES: [[usize; 4]; 7] = [
    [8, 8, 16, 16],
    [7, 7, 48, 32],
    [9, 13, 16, 20],
    [14, 14, 64, 40],
    [6, 5, 96, 96],
    [31, 34, 16, 16],
    [40, 64, 16, 18],
];

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|idx| ((idx + seed) * 7919 % 1009) as f32 / 504.5 - 1.0).collect()
}

/// `relu(conv(x, w) + bias)`, channels last.
fn graph([height, _, cin, cout]: [usize; 4], width: &Dim, g: &mut Graph) -> Result<()> {
    let n = g.symbol("N", Declaration::range(1, 5))?;
    let image = [n.clone(), height.into(), width.clone(), cin.into()];
    let x = g.input("x", DType::F32, image.to_vec())?;
    let x = g.transpose(x, &[0, 3, 1, 2])?;
    let ones: Vec<Dim> = [0, 0, 1, 1].map(Dim::from).to_vec();
    let padded = g.pad(x, &ones, &ones, Scalar::f32(0.0))?;
    let seen = g.window(padded, &[2, 3], &[3; 2], &[1; 2], &[1; 2])?;
    let w =
        g.constant(Tensor::from_f32(vec![cout, cin, 3, 3], &numbers(cout * cin * 9, 5)).expect("sized"))?;
    let y = g.contract(seen, b"ncyxkl", w, b"mckl", b"nmyx")?;
    let bias = g.constant(Tensor::from_f32(vec![1, cout, 1, 1], &numbers(cout, 3)).expect("sized"))?;
    let bias = g.broadcast_to(bias, &[n, cout.into(), height.into(), width.clone()])?;
    let y = g.add(y, bias)?;
    let y = g.relu(y)?;
    let y = g.transpose(y, &[0, 2, 3, 1])?;
    g.output("y", y)
}

/// The same, written out.
fn expected([height, width, cin, cout]: [usize; 4], x: &[f32], n: usize) -> Vec<f64> {
    let (w, bias) = (numbers(cout * cin * 9, 5), numbers(cout, 3));
    let mut all = Vec::new();
    for at in 0..n * height * width {
        let (image, y, column) = (at / (height * width), at / width % height, at % width);
        for m in 0..cout {
            let mut sum = f64::from(bias[m]);
            for tap in 0..9 {
                let (i, j) = (y + tap / 3, column + tap % 3);
                if (1..=height).contains(&i) && (1..=width).contains(&j) {
                    let from = ((image * height + i - 1) * width + j - 1) * cin;
                    let terms =
                        (0..cin).map(|c| f64::from(x[from + c]) * f64::from(w[(m * cin + c) * 9 + tap]));
                    sum += terms.sum::<f64>();
                }
            }
            all.push(sum.max(0.0));
        }
    }
    all
}

fn is_transformed(program: &Program) -> bool {
    program.buffers.values().any(|buffer| buffer.name == "tiles of inputs")
}

fn check(size: [usize; 4], g: &Graph) {
    let [height, width, cin, _] = size;
    let lowered = Pipeline::new(g).lower().expect("supported");
    assert!(is_transformed(&lowered.program), "{size:?}");
    let unproven = verify::verify(&lowered.program).expect("verified");
    assert!(unproven.is_empty(), "{size:?}: {unproven:?}\n{}", lowered.program);
    let model = pipeline::jit(g).expect("supported");
    let mut context = Context::new(&model).expect("memory");
    let x = numbers(5 * height * width * cin, 1);
    let mut all: Option<Vec<f32>> = None;
    for n in (1..=5).rev() {
        let shape = [n, height, width, cin];
        let input = TensorRef::new(&shape, &x[..n * height * width * cin]).expect("sized");
        let outputs = context.run_views(&[input]).expect("in range");
        let y = outputs.get(0).elems::<f32>().expect("floats").to_vec();
        let Some(all) = &all else {
            let expected = expected(size, &x, n);
            let largest = expected.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
            for (at, (y, expected)) in y.iter().zip(&expected).enumerate() {
                let error = (f64::from(*y) - expected).abs() / largest;
                assert!(error < TOLERANCE, "{size:?}, element {at}: {y} for {expected}");
            }
            all = Some(y);
            continue;
        };
        assert_same_bits(&y, &all[..y.len()], format_args!("{size:?}, N = {n}"));
    }
}

#[test]
fn convolutions_of_fixed_images() {
    for size in SIZES {
        let mut g = Graph { name: "convolution".into(), ..Graph::default() };
        graph(size, &size[1].into(), &mut g).expect("valid");
        check(size, &g);
    }
}

#[test]
fn convolutions_of_images_as_wide_as_whole_tiles() {
    let mut g = Graph { name: "convolution".into(), ..Graph::default() };
    let w = g.symbol("W", Declaration::range(1, 6)).expect("new");
    graph([8, 0, 16, 16], &(w * 4), &mut g).expect("valid");
    for width in [4, 8, 20, 24] {
        check([8, width, 16, 16], &g);
    }
}

/// One image is one block, and a few images are fewer blocks than threads.
#[test]
fn threads_share_the_columns_of_an_image() {
    for size in [[14, 14, 64, 64], [7, 7, 128, 96], [16, 12, 32, 80]] {
        let [height, width, cin, _] = size;
        let mut g = Graph { name: "convolution".into(), ..Graph::default() };
        graph(size, &width.into(), &mut g).expect("valid");
        let options = CompileOptions::default().threads(8);
        let lowered = Pipeline::new(&g).options(options).lower().expect("supported");
        assert!(is_transformed(&lowered.program), "{size:?}");

        let model = lowered.jit().expect("supported");
        let mut context = Context::new(&model).expect("memory");
        for n in 1..=5 {
            let shape = [n, height, width, cin];
            let x = numbers(shape.iter().product(), 1);
            let mut run = |threads: u32| {
                context.set_threads(threads).expect("threads");
                let input = TensorRef::new(&shape, &x).expect("sized");
                let outputs = context.run_views(&[input]).expect("in range");
                outputs.get(0).elems::<f32>().expect("floats").to_vec()
            };
            let alone = run(1);
            for threads in [2, 3, 8] {
                assert_same_bits(&run(threads), &alone, format_args!("{size:?}, N = {n}, {threads} threads"));
            }
        }

        let shape = [1, height, width, cin];
        let x = numbers(shape.iter().product(), 1);
        context.rehearse(4);
        context.run_views(&[TensorRef::new(&shape, &x).expect("sized")]).expect("in range");
        let busy = |round: &Round| round.parts_ns.iter().filter(|part| !part.is_empty()).count();
        let most = context.take_rounds().iter().map(busy).max();
        assert_eq!(most, Some(4), "{size:?}");
    }
}

#[test]
fn sizes_that_may_end_anywhere_stay_plain() {
    let mut g = Graph { name: "convolution".into(), ..Graph::default() };
    let w = g.symbol("W", Declaration::range(1, 24)).expect("new");
    graph([8, 0, 16, 16], &w, &mut g).expect("valid");
    assert!(!is_transformed(&Pipeline::new(&g).lower().expect("supported").program));
}
