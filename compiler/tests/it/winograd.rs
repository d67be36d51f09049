//! Convolutions by fewer products: near the sums written out, the same bits in every batch, in memory that is there.

use crate::bits::assert_same_bits;
use std::fmt::Arguments;
use symshape::{Declaration, Dim};
use symshape_compiler::{
    CompileOptions, Result,
    graph::Graph,
    kernel::{Buffer, Program, verify},
    pipeline::Pipeline,
    scalar::Scalar,
    tensor::Tensor,
};
use symshape_runtime::{Context, DType, Model, Round, TensorRef};

/// Rounding errors, as a part of the largest output.
const TOLERANCE: f64 = 1e-5;

/// Height, width, channels in and channels out; tiles of both forms, whole and smaller, a block of a few rows of tiles
/// and one of several images.
const SIZES: [[usize; 4]; 7] = [
    [8, 8, 32, 24],
    [7, 7, 48, 32],
    [9, 13, 32, 20],
    [14, 14, 64, 40],
    [6, 5, 96, 96],
    [31, 34, 16, 16],
    [40, 64, 16, 18],
];

pub(crate) fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|idx| ((idx + seed) * 7919 % 1009) as f32 / 504.5 - 1.0).collect()
}

/// `relu(conv(x, w) + bias)`, channels last.
fn graph([cin, cout]: [usize; 2], [n, height, width]: [&Dim; 3], g: &mut Graph) -> Result<()> {
    let image = [n.clone(), height.clone(), width.clone(), cin.into()];
    let x = g.input("x", DType::F32, image.to_vec())?;
    let x = g.transpose(x, &[0, 3, 1, 2])?;
    let ones: Vec<Dim> = [0, 0, 1, 1].map(Dim::from).to_vec();
    let padded = g.pad(x, &ones, &ones, Scalar::f32(0.0))?;
    let seen = g.window(padded, &[2, 3], &[3; 2], &[1; 2], &[1; 2])?;
    let w =
        g.constant(Tensor::from_f32(vec![cout, cin, 3, 3], &numbers(cout * cin * 9, 5)).expect("sized"))?;
    let y = g.contract(seen, b"ncyxkl", w, b"mckl", b"nmyx")?;
    let bias = g.constant(Tensor::from_f32(vec![1, cout, 1, 1], &numbers(cout, 3)).expect("sized"))?;
    let bias = g.broadcast_to(bias, &[n.clone(), cout.into(), height.clone(), width.clone()])?;
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

pub(crate) fn is_transformed(program: &Program) -> bool {
    program.buffers.values().any(|buffer| buffer.name == "tiles of inputs")
}

fn fixed([height, width, cin, cout]: [usize; 4]) -> Graph {
    let mut g = Graph { name: "convolution".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, 5)).expect("new");
    graph([cin, cout], [&n, &height.into(), &width.into()], &mut g).expect("valid");
    g
}

/// Images of `step * 1` to `step * most` lines, and as many columns of other such numbers. At most `images` of them,
/// exactly one if that is the most.
fn varying(images: i64, channels: [usize; 2], [height, width]: [(i64, i64); 2]) -> Graph {
    let mut g = Graph { name: "convolution".into(), ..Graph::default() };
    let n = if images == 1 { Dim::one() } else { g.symbol("N", Declaration::range(1, images)).expect("new") };
    let mut side = |name, (step, most)| g.symbol(name, Declaration::range(1, most)).expect("new") * step;
    let [height, width] = [side("H", height), side("W", width)];
    graph(channels, [&n, &height, &width], &mut g).expect("valid");
    g
}

/// Compiles a graph whose convolution is transformed.
pub(crate) fn compiled(g: &Graph) -> Model {
    let lowered = Pipeline::new(g).lower().expect("supported");
    assert!(is_transformed(&lowered.program), "{g}");
    let unproven = verify::verify(&lowered.program).expect("verified");
    assert!(unproven.is_empty(), "{unproven:?}\n{}", lowered.program);
    lowered.jit().expect("supported")
}

pub(crate) fn assert_near(got: &[f32], expected: &[f64], place: Arguments) {
    assert_eq!(got.len(), expected.len(), "{place}");
    let largest = expected.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs() / largest;
        assert!(error < TOLERANCE, "{place}, element {at}: {got} for {expected}");
    }
}

pub(crate) fn run(context: &mut Context, shape: &[usize], x: &[f32], threads: u32) -> Vec<f32> {
    context.set_threads(threads).expect("threads");
    let input = TensorRef::new(shape, x).expect("sized");
    let outputs = context.run_views(&[input]).expect("in range");
    outputs.get(0).elems::<f32>().expect("floats").to_vec()
}

/// The result on one thread, which has the bits of that on these numbers of threads.
fn assert_same_on_threads(
    context: &mut Context,
    shape: [usize; 4],
    x: &[f32],
    numbers: [u32; 3],
) -> Vec<f32> {
    let alone = run(context, &shape, x, 1);
    for threads in numbers {
        let shared = run(context, &shape, x, threads);
        assert_same_bits(&shared, &alone, format_args!("{shape:?}, {threads} threads"));
    }
    alone
}

/// Checks the results for 1 to 5 images of this size, on one thread and on three.
fn check(size: [usize; 4], model: &Model) {
    let [height, width, cin, _] = size;
    let mut context = Context::new(model).expect("memory");
    let x = numbers(5 * height * width * cin, 1);
    let mut run = |n: usize, threads: u32| {
        run(&mut context, &[n, height, width, cin], &x[..n * height * width * cin], threads)
    };

    let all = run(5, 1);
    assert_near(&all, &expected(size, &x, 5), format_args!("{size:?}"));
    for (n, threads) in [(5, 3), (4, 1), (3, 3), (2, 1), (1, 3), (1, 1)] {
        let y = run(n, threads);
        assert_same_bits(&y, &all[..y.len()], format_args!("{size:?}, N = {n}, {threads} threads"));
    }
}

/// The smallest size of an axis, the next one, an odd multiple of its step, and the two largest ones.
fn edges((step, most): (i64, i64)) -> [usize; 5] {
    [1, 2, (most / 2) | 1, most - 1, most].map(|count| (count * step) as usize)
}

#[test]
fn convolutions_of_fixed_images() {
    for size in SIZES {
        check(size, &compiled(&fixed(size)));
    }
}

/// Tiles that are smaller at some sizes, blocks of a few rows that no block divides, several images in one block, and
/// another form for small images.
#[test]
fn convolutions_of_images_whose_sides_vary() {
    let cases = [
        ([16, 16], [(4, 6), (4, 6)]),
        ([16, 20], [(2, 20), (2, 17)]),
        ([18, 16], [(4, 12), (2, 40)]),
        ([64, 40], [(2, 7), (2, 7)]),
        ([64, 40], [(1, 12), (1, 13)]),
        ([48, 33], [(1, 8), (4, 9)]),
    ];
    for ([cin, cout], sides) in cases {
        let model = compiled(&varying(5, [cin, cout], sides));
        for height in edges(sides[0]) {
            for width in edges(sides[1]) {
                check([height, width, cin, cout], &model);
            }
        }
    }
}

/// One image is one block, and a few images are fewer blocks than threads.
#[test]
fn threads_share_the_columns_of_an_image() {
    for size in [[14, 14, 64, 64], [7, 7, 128, 96], [16, 12, 32, 80]] {
        let [height, width, cin, _] = size;
        let g = fixed(size);
        let options = CompileOptions::default().threads(8);
        let lowered = Pipeline::new(&g).options(options).lower().expect("supported");
        assert!(is_transformed(&lowered.program), "{size:?}");

        let model = lowered.jit().expect("supported");
        let mut context = Context::new(&model).expect("memory");
        for n in 1..=5 {
            let shape = [n, height, width, cin];
            let x = numbers(shape.iter().product(), 1);
            assert_same_on_threads(&mut context, shape, &x, [2, 3, 8]);
        }

        assert_eq!(busy_threads(&mut context, [1, height, width, cin]), 4, "{size:?}");
    }
}

/// Of four threads, how many have a share of the part that most of them share.
fn busy_threads(context: &mut Context, shape: [usize; 4]) -> usize {
    let x = numbers(shape.iter().product(), 1);
    context.rehearse(4);
    context.run_views(&[TensorRef::new(&shape, &x).expect("sized")]).expect("in range");
    let busy = |round: &Round| round.parts_ns.iter().filter(|part| !part.is_empty()).count();
    context.take_rounds().iter().map(busy).max().expect("a round")
}

/// A single image, whose size decides between two forms: as one block, and as blocks of rows.
#[test]
fn threads_share_a_single_image_of_any_size() {
    for sides in [[(2, 7), (2, 7)], [(4, 3), (4, 5)], [(2, 20), (2, 20)]] {
        let model = compiled(&varying(1, [64, 64], sides));
        let mut context = Context::new(&model).expect("memory");
        for height in edges(sides[0]) {
            for width in edges(sides[1]) {
                let shape = [1, height, width, 64];
                let x = numbers(shape.iter().product(), 1);
                let alone = assert_same_on_threads(&mut context, shape, &x, [2, 3, 4]);
                let expected = expected([height, width, 64, 64], &x, 1);
                assert_near(&alone, &expected, format_args!("{shape:?}"));
            }
        }
        let [height, width] = sides.map(|(step, most)| (step * most) as usize);
        assert_eq!(busy_threads(&mut context, [1, height, width, 64]), 4, "{sides:?}");
    }
}

/// Where the smallest image and the largest one have different forms, the program holds the tiles of both.
#[test]
fn small_images_and_large_ones_have_different_forms() {
    let forms = |side| {
        let program = Pipeline::new(&varying(5, [64, 64], [side; 2])).lower().expect("supported").program;
        let is_tiles = |buffer: &&Buffer| buffer.name == "tiles of inputs";
        program.buffers.values().filter(is_tiles).count()
    };
    assert_eq!(forms((4, 16)), 1, "small images are not transformed");
    assert_eq!(forms((8, 8)), 2, "small images have the smaller form");
    assert_eq!(forms((16, 4)), 1, "all images have the larger form");
}

/// With 768 channels, the weights of the model don't stay in the cache from call to call. Its larger filters would take
/// longer to read than they save.
#[test]
fn few_tiles_are_plain_where_filters_come_from_memory() {
    let is_transformed = |channels| {
        let lowered = Pipeline::new(&fixed([4, 9, channels, channels])).lower().expect("supported");
        is_transformed(&lowered.program)
    };
    assert!(is_transformed(512));
    assert!(!is_transformed(768));
}
