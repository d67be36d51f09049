//! Every kind of kernel as a fraction of its bound: `cargo bench -p symshape-benches --bench roofline [-- FILTER]`.
//!
//! The bound of a kernel is the larger of two times: its multiply-adds at the machine's peak, and its bytes (weights,
//! inputs and outputs, each once) at the speed at which a buffer of that size is read. Peak and speeds are measured
//! first, by microkernels that do nothing else, on the same thread. Kernels run as compiled models, so their time
//! includes the overhead of a call.
//!
//! Contractions and convolutions run in each precision and in bytes, attention in each precision. Kernels on tile
//! registers are compared with the peak of tile registers, and are left out on machines without them.
//!
//! The clock that a kernel ran at is printed as a fraction of the clock of the peak, because heavy work lowers the
//! clock. The fraction of the peak divided by it is the fraction of the core's work in a cycle. Calls of milliseconds
//! are too few for a reliable reading. With `--test` everything runs once.

use cranelift_module::Module;
use std::{cell::RefCell, collections::BTreeMap, hint::black_box, time::Instant};
use symshape::{Declaration, Dim};
use symshape_benches::{clock, line::Line, microkernel};
use symshape_compiler::{
    CompileOptions, Result,
    codegen::vector::{self, VectorIsa, X86, vcode::TileDot},
    graph::{Graph, Value},
    pipeline::Pipeline,
    scalar::{Precision, ReduceOp, Scalar},
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, TensorRef};

/// Rounds of the microkernels that measure the peak of multiplications.
const ROUNDS: i64 = 10_000;

/// Rows of the contractions to measure.
const ROWS: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 13, 16, 24, 32, 64, 128, 256];

/// `(size, channels in, channels out, kernel, stride)` of the convolutions of resnet50 and mobilenet_v2.
const CONVOLUTIONS: [[i64; 5]; 42] = [
    [224, 3, 64, 7, 2],
    [56, 64, 64, 1, 1],
    [56, 64, 64, 3, 1],
    [56, 64, 256, 1, 1],
    [56, 256, 64, 1, 1],
    [56, 256, 128, 1, 1],
    [56, 128, 128, 3, 2],
    [28, 128, 512, 1, 1],
    [56, 256, 512, 1, 2],
    [28, 512, 128, 1, 1],
    [28, 128, 128, 3, 1],
    [28, 512, 256, 1, 1],
    [28, 256, 256, 3, 2],
    [14, 256, 1024, 1, 1],
    [28, 512, 1024, 1, 2],
    [14, 1024, 256, 1, 1],
    [14, 256, 256, 3, 1],
    [14, 1024, 512, 1, 1],
    [14, 512, 512, 3, 2],
    [7, 512, 2048, 1, 1],
    [14, 1024, 2048, 1, 2],
    [7, 2048, 512, 1, 1],
    [7, 512, 512, 3, 1],
    [224, 3, 32, 3, 2],
    [112, 32, 16, 1, 1],
    [112, 16, 96, 1, 1],
    [56, 96, 24, 1, 1],
    [56, 24, 144, 1, 1],
    [56, 144, 24, 1, 1],
    [28, 144, 32, 1, 1],
    [28, 32, 192, 1, 1],
    [28, 192, 32, 1, 1],
    [14, 192, 64, 1, 1],
    [14, 64, 384, 1, 1],
    [14, 384, 64, 1, 1],
    [14, 384, 96, 1, 1],
    [14, 96, 576, 1, 1],
    [14, 576, 96, 1, 1],
    [7, 576, 160, 1, 1],
    [7, 160, 960, 1, 1],
    [7, 960, 320, 1, 1],
    [7, 320, 1280, 1, 1],
];

/// `(size, channels, stride)` of the depthwise convolutions of mobilenet_v2.
const DEPTHWISE: [[i64; 3]; 10] = [
    [112, 32, 1],
    [112, 96, 2],
    [56, 144, 1],
    [56, 144, 2],
    [28, 192, 1],
    [28, 192, 2],
    [14, 384, 1],
    [14, 576, 1],
    [14, 576, 2],
    [7, 960, 1],
];

/// The elements to multiply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Numbers {
    Floats(Precision),
    Bytes,
}

/// All element types that contractions and convolutions run in.
const ALL: [Numbers; 4] = [
    Numbers::Floats(Precision::F32),
    Numbers::Floats(Precision::Bf16x3),
    Numbers::Floats(Precision::Bf16),
    Numbers::Bytes,
];

impl Numbers {
    fn name(self) -> &'static str {
        match self {
            Numbers::Floats(precision) => precision.name(),
            Numbers::Bytes => "int8",
        }
    }

    fn precision(self) -> Precision {
        match self {
            Numbers::Floats(precision) => precision,
            Numbers::Bytes => Precision::F32,
        }
    }

    /// Bytes of an element of an input.
    fn input_bytes(self) -> f64 {
        if self == Numbers::Bytes { 1.0 } else { 4.0 }
    }

    /// Bytes of an element of a packed constant.
    fn constant_bytes(self) -> f64 {
        match self {
            Numbers::Floats(Precision::F32 | Precision::Full | Precision::Bf16x3) => 4.0,
            Numbers::Floats(Precision::Bf16 | Precision::Exact) => 2.0,
            Numbers::Floats(Precision::Int8) | Numbers::Bytes => 1.0,
        }
    }
}

/// The peak speeds of the machine, and the filter of the command line.
struct Bench {
    isa: Box<dyn VectorIsa>,
    /// Floating-point operations a second.
    peak: f64,
    /// The clock at which the peak was reached, see [`clock::speed`].
    clock: f64,
    /// Bytes a second by the size of the buffer that is read.
    speeds: RefCell<BTreeMap<usize, f64>>,
    /// Operations a second of tile registers, and of bytes on vectors.
    peaks: RefCell<BTreeMap<(Numbers, bool), f64>>,
    filter: String,
    once: bool,
}

/// A kernel to be timed.
struct Case {
    name: String,
    numbers: Numbers,
    /// Shapes of the inputs.
    shapes: Vec<Vec<usize>>,
    flops: f64,
    bytes: f64,
}

impl Bench {
    fn new() -> Bench {
        let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
        let once = args.iter().any(|arg| arg == "--test");
        let filter = args.into_iter().find(|arg| !arg.starts_with('-')).unwrap_or_default();
        let isa = vector::for_target(None, microkernel::module().isa());
        let mut bench = Bench {
            isa,
            peak: 1.0,
            clock: 1.0,
            speeds: RefCell::default(),
            peaks: RefCell::default(),
            filter,
            once,
        };
        let chains = microkernel::multiply_adds(&*bench.isa);
        let (seconds, clock) = bench.timed(&mut || chains.call(&mut [ROUNDS, 0]));
        bench.peak = ROUNDS as f64 * microkernel::operations(&*bench.isa) as f64 / seconds;
        bench.clock = clock;
        bench
    }

    /// The median time of a call.
    fn seconds(&self, call: &mut dyn FnMut()) -> f64 {
        self.timed(call).0
    }

    /// The median time of a call, and the median clock after a call.
    fn timed(&self, call: &mut dyn FnMut()) -> (f64, f64) {
        call();
        let (mut times, mut clocks, start) = (Vec::new(), Vec::new(), Instant::now());
        while times.is_empty() || !self.once && (times.len() < 5 || start.elapsed().as_millis() < 30) {
            let begin = Instant::now();
            call();
            times.push(begin.elapsed().as_secs_f64());
            clocks.push(clock::speed());
        }
        times.sort_by(f64::total_cmp);
        clocks.sort_by(f64::total_cmp);
        (times[times.len() / 2], clocks[clocks.len() / 2])
    }

    /// The speed at which a buffer of about this size is read.
    fn speed(&self, bytes: f64) -> f64 {
        let size = (bytes as usize).clamp(1 << 13, 1 << 27).next_power_of_two();
        if let Some(speed) = self.speeds.borrow().get(&size) {
            return *speed;
        }
        let (reads, memory) = (microkernel::reads(&*self.isa), vec![1u8; size + 64]);
        let rounds = (size / microkernel::read_bytes(&*self.isa)) as i64;
        let seconds = self.seconds(&mut || reads.call(&mut [memory.as_ptr() as i64, rounds, 0]));
        black_box(&memory);
        self.speeds.borrow_mut().insert(size, size as f64 / seconds);
        size as f64 / seconds
    }

    /// The peak of operations a second on such elements.
    fn peak_of(&self, numbers: Numbers, on_tiles: bool) -> f64 {
        if numbers == Numbers::Floats(Precision::F32) {
            return self.peak;
        }
        if let Some(peak) = self.peaks.borrow().get(&(numbers, on_tiles)) {
            return *peak;
        }
        let (chains, operations) = match (on_tiles, numbers) {
            (false, _) => (microkernel::byte_products(&*self.isa), microkernel::byte_operations(&*self.isa)),
            (true, _) => {
                let bytes = numbers == Numbers::Bytes;
                let product = if bytes { TileDot::Bytes } else { TileDot::Bf16 };
                (microkernel::tile_dots(&X86::AVX512_AMX, product), microkernel::tile_operations(product))
            }
        };
        let products = if numbers == Numbers::Floats(Precision::Bf16x3) { 3.0 } else { 1.0 };
        let seconds = self.seconds(&mut || chains.call(&mut [ROUNDS, 0]));
        let peak = ROUNDS as f64 * operations as f64 / seconds / products;
        self.peaks.borrow_mut().insert((numbers, on_tiles), peak);
        peak
    }

    /// Compiles a graph and times it at the sizes of some cases.
    fn run(&self, cases: &[Case], graph: impl FnOnce(&mut Graph) -> Result<()>) {
        let asked = |case: &&Case| case.name.contains(&self.filter);
        let Some(numbers) = cases.iter().find(asked).map(|case| case.numbers) else { return };
        let mut g = Graph { name: "kernel".into(), ..Graph::default() };
        graph(&mut g).expect("a valid graph");
        let options = CompileOptions::default().precision(numbers.precision());
        let lowered = Pipeline::new(&g).options(options).lower().expect("supported");
        let model = lowered.jit().expect("supported");
        let on_tiles = model.uses_tiles();
        if numbers.precision() != Precision::F32 && !on_tiles {
            let why = if lowered.program.uses_tiles() { "no tiles on this machine" } else { "as `f32`" };
            return cases.iter().filter(asked).for_each(|case| println!("{:40} {why}", case.name));
        }
        let peak = self.peak_of(numbers, on_tiles);
        let mut context = Context::new(&model).expect("memory");
        for case in cases.iter().filter(asked) {
            let data: Vec<Line<f32>> = case
                .shapes
                .iter()
                .map(|shape| Line::new(&microkernel::elements(shape.iter().product())))
                .collect();
            let bytes = |line: &Line<f32>| -> Vec<u8> {
                line.values().iter().map(|x| (*x * 100.0 + 110.0) as u8).collect()
            };
            let bytes: Vec<Line<u8>> = data.iter().map(|line| Line::new(&bytes(line))).collect();
            let inputs: Vec<TensorRef> = case
                .shapes
                .iter()
                .zip(data.iter().zip(&bytes))
                .map(|(shape, (data, bytes))| match numbers {
                    Numbers::Floats(_) => TensorRef::new(shape, data.values()).expect("sized"),
                    Numbers::Bytes => TensorRef::new(shape, bytes.values()).expect("sized"),
                })
                .collect();
            let (seconds, clock) =
                self.timed(&mut || _ = black_box(context.run_views(&inputs).expect("in range").len()));
            let (by_flops, by_bytes) = (case.flops / peak, case.bytes / self.speed(case.bytes));
            let bound = if by_flops > by_bytes { "peak" } else { "bytes" };
            println!(
                "{:40} {:10.1} us {:8.1} GFLOP/s {:8.1} GB/s {:4.0} % of {bound}, clock {:.2}",
                case.name,
                seconds * 1e6,
                case.flops / seconds / 1e9,
                case.bytes / seconds / 1e9,
                100.0 * by_flops.max(by_bytes) / seconds,
                clock / self.clock,
            );
        }
    }
}

fn weights(g: &mut Graph, shape: &[i64]) -> Result<Value> {
    let shape: Vec<usize> = shape.iter().map(|dim| *dim as usize).collect();
    let values = microkernel::elements(shape.iter().product());
    g.constant(Tensor::from_f32(shape, &values).expect("sized"))
}

/// An input in the form that contractions multiply.
fn input_of(g: &mut Graph, numbers: Numbers, shape: Vec<Dim>) -> Result<Value> {
    match numbers {
        Numbers::Floats(_) => g.input("x", DType::F32, shape),
        Numbers::Bytes => {
            let x = g.input("x", DType::U8, shape)?;
            g.cast(DType::I32, x)
        }
    }
}

/// A constant in the form that contractions multiply.
fn weights_of(g: &mut Graph, numbers: Numbers, shape: &[i64]) -> Result<Value> {
    let Numbers::Bytes = numbers else { return weights(g, shape) };
    let shape: Vec<usize> = shape.iter().map(|dim| *dim as usize).collect();
    let values: Vec<u8> =
        microkernel::elements(shape.iter().product()).iter().map(|x| (*x * 100.0) as i8 as u8).collect();
    let w = g.constant(Tensor::new(DType::I8, shape, Bytes::Owned(values.into())).expect("sized"))?;
    g.cast(DType::I32, w)
}

fn dims(shape: &[i64]) -> Vec<Dim> {
    shape.iter().map(|dim| Dim::from(*dim)).collect()
}

fn products(bench: &Bench, numbers: Numbers) {
    for k in [256_usize, 768, 1024, 3072] {
        for n in [256_usize, 768, 1024, 3072] {
            let case = |m: usize| Case {
                name: format!("gemm {} M={m} K={k} N={n}", numbers.name()),
                numbers,
                shapes: vec![vec![m, k]],
                flops: (2 * m * k * n) as f64,
                bytes: numbers.input_bytes() * (m * k) as f64
                    + numbers.constant_bytes() * (k * n) as f64
                    + 4.0 * (m * n) as f64,
            };
            bench.run(&ROWS.map(case), |g| {
                let m = g.symbol("M", Declaration::range(1, 256))?;
                let x = input_of(g, numbers, vec![m, k.into()])?;
                let w = weights_of(g, numbers, &[k as i64, n as i64])?;
                let y = g.matmul(x, w)?;
                g.output("y", y)
            });
        }
    }
}

/// A convolution of channels-last images with a channels-last result.
fn convolution(
    bench: &Bench,
    numbers: Numbers,
    [size, cin, cout, kernel, stride]: [i64; 5],
    depthwise: bool,
) {
    let out = (size - 1) / stride + 1;
    let per_output = kernel * kernel * if depthwise { 1 } else { cin };
    let name = if depthwise { "depthwise" } else { "conv" };
    let (lo, hi) = (kernel / 2, (kernel - 1) / 2);
    // In a model, the kernel before writes between the borders that a depthwise convolution reads. Padding here would
    // take most of the time.
    let read = if depthwise { size + lo + hi } else { size };
    let case = |n: i64| Case {
        name: format!("{name} {} {kernel}x{kernel}/{stride} {size}^2 {cin}-{cout} N={n}", numbers.name()),
        numbers,
        shapes: vec![[n, read, read, cin].map(|dim| dim as usize).to_vec()],
        flops: (2 * n * out * out * cout * per_output) as f64,
        bytes: numbers.input_bytes() * (n * read * read * cin) as f64
            + numbers.constant_bytes() * (cout * per_output) as f64
            + 4.0 * (n * out * out * cout) as f64,
    };
    bench.run(&[case(1), case(8)], |g| {
        let n = g.symbol("N", Declaration::range(1, 8))?;
        let x = input_of(g, numbers, vec![n, read.into(), read.into(), cin.into()])?;
        let x = g.transpose(x, &[0, 3, 1, 2])?;
        let pads = |by: i64| dims(&[0, 0, by, by]);
        let nothing =
            if numbers == Numbers::Bytes { Scalar::from_i64(DType::I32, 0) } else { Scalar::f32(0.0) };
        let x = if depthwise { x } else { g.pad(x, &pads(lo), &pads(hi), nothing)? };
        let seen = g.window(x, &[2, 3], &[kernel; 2], &[stride; 2], &[1; 2])?;
        let y = if depthwise {
            let w = weights(g, &[cin, kernel, kernel])?;
            g.contract(seen, b"ncyxkl", w, b"ckl", b"ncyx")?
        } else {
            let w = weights_of(g, numbers, &[cout, cin, kernel, kernel])?;
            g.contract(seen, b"ncyxkl", w, b"mckl", b"nmyx")?
        };
        let y = if numbers == Numbers::Bytes { y } else { g.relu(y)? };
        let y = g.transpose(y, &[0, 2, 3, 1])?;
        g.output("y", y)
    });
}

/// A kernel of rows with `flops` operations for each element, which is read and written once.
fn rows(bench: &Bench, name: &str, flops: f64, body: impl Fn(&mut Graph, Value) -> Result<Value>) {
    let case = |(n, s): (usize, usize)| Case {
        name: format!("{name} {n}x{s}"),
        numbers: Numbers::Floats(Precision::F32),
        shapes: vec![vec![n, s]],
        flops: flops * (n * s) as f64,
        bytes: 8.0 * (n * s) as f64,
    };
    bench.run(&[(1, 768), (12, 64), (64, 512), (256, 768), (2048, 1000)].map(case), |g| {
        let n = g.symbol("N", Declaration::range(1, 2048))?;
        let s = g.symbol("S", Declaration::range(1, 1024))?;
        let x = g.input("x", DType::F32, vec![n, s])?;
        let y = body(g, x)?;
        g.output("y", y)
    });
}

fn layer_norm(g: &mut Graph, x: Value) -> Result<Value> {
    let shape = g.shape(x).to_vec();
    let mean = g.mean(x, &[1], true)?;
    let mean = g.expand(mean, &shape)?;
    let centred = g.sub(x, mean)?;
    let square = g.mul(centred, centred)?;
    let variance = g.mean(square, &[1], true)?;
    let epsilon = g.number(DType::F32, 1e-5)?;
    let epsilon = g.broadcast_to(epsilon, &[shape[0].clone(), Dim::one()])?;
    let variance = g.add(variance, epsilon)?;
    let deviation = g.sqrt(variance)?;
    let deviation = g.expand(deviation, &shape)?;
    g.div(centred, deviation)
}

fn gelu(g: &mut Graph, x: Value) -> Result<Value> {
    let shape = g.shape(x).to_vec();
    let number = |g: &mut Graph, value| -> Result<Value> {
        let value = g.number(DType::F32, value)?;
        g.broadcast_to(value, &shape)
    };
    let (scale, one, half) = (number(g, 0.5_f64.sqrt())?, number(g, 1.0)?, number(g, 0.5)?);
    let scaled = g.mul(x, scale)?;
    let erf = g.erf(scaled)?;
    let sum = g.add(erf, one)?;
    let product = g.mul(x, sum)?;
    g.mul(product, half)
}

/// Twelve heads of 64.
fn attention(bench: &Bench, numbers: Numbers) {
    let case = |s: usize| Case {
        name: format!("attention {} S={s}", numbers.name()),
        numbers,
        shapes: vec![vec![1, 12, s, 64]; 3],
        flops: 4.0 * (12 * 64 * s * s) as f64,
        bytes: 16.0 * (12 * 64 * s) as f64,
    };
    bench.run(&[16, 32, 65, 128, 256, 512].map(case), |g| {
        let s = g.symbol("S", Declaration::range(1, 512))?;
        let input =
            |g: &mut Graph, name| g.input(name, DType::F32, vec![1.into(), 12.into(), s.clone(), 64.into()]);
        let (q, k, v) = (input(g, "q")?, input(g, "k")?, input(g, "v")?);
        let scores = g.contract(q, b"nhid", k, b"nhjd", b"nhij")?;
        let weights = g.softmax(scores, 3)?;
        let y = g.contract(weights, b"nhij", v, b"nhjd", b"nhid")?;
        g.output("y", y)
    });
}

fn main() {
    let bench = Bench::new();
    println!("peak {:.1} GFLOP/s ({})", bench.peak / 1e9, bench.isa.name());
    for (level, bytes) in [("16 KB", 16e3), ("256 KB", 256e3), ("4 MB", 4e6), ("128 MB", 128e6)] {
        println!("read {level}: {:.1} GB/s", bench.speed(bytes) / 1e9);
    }
    for numbers in ALL {
        products(&bench, numbers);
    }
    for numbers in ALL {
        CONVOLUTIONS.iter().for_each(|shape| convolution(&bench, numbers, *shape, false));
    }
    let floats = Numbers::Floats(Precision::F32);
    for [size, channels, stride] in DEPTHWISE {
        convolution(&bench, floats, [size, channels, channels, 3, stride], true);
    }
    rows(&bench, "softmax", 5.0, |g, x| g.softmax(x, 1));
    rows(&bench, "layer norm", 8.0, layer_norm);
    rows(&bench, "gelu", 5.0, gelu);
    rows(&bench, "transpose", 0.0, |g, x| g.transpose(x, &[1, 0]));
    rows(&bench, "sum", 1.0, |g, x| g.reduce(ReduceOp::Sum, x, &[1], false));
    for numbers in ALL.into_iter().filter(|numbers| *numbers != Numbers::Bytes) {
        attention(&bench, numbers);
    }
}
