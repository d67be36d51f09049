//! Contraction tiles and vector math of this machine's widest ISA, and the bound that they are compared with.
//!
//! The bound of a contraction is the peak of fused multiply-adds, measured first: `peak` runs nothing else. Elements
//! are floating point operations, so criterion's throughput is FLOP/s for both.

use cranelift_module::Module;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use symshape_benches::microkernel::{self, Compiled, elements, module};
use symshape_compiler::{
    codegen::{
        microkernel::{
            MicrokernelKey,
            contraction::{DotOp, PANEL, ReductionPart, Rhs, TileKey, max_rows, wide_vectors},
            op::{Body, Op, StreamStep, Ty},
            strip::{Phase, Stream, StripKey},
        },
        vector::{self, VectorIsa},
    },
    scalar::{BinaryOp, UnaryOp},
};

/// Twelve independent chains of multiply-adds.
fn peak(c: &mut Criterion, isa: &dyn VectorIsa) {
    const ROUNDS: i64 = 10_000;
    let compiled = microkernel::multiply_adds(isa);
    let mut group = c.benchmark_group("bound");
    group.throughput(Throughput::Elements(ROUNDS as u64 * microkernel::operations(isa)));
    group.bench_function("fma", |bench| bench.iter(|| compiled.call(&mut [ROUNDS, 0])));
}

/// `y = lhs rhs + bias` with packed rhs, by tiles of equal height.
fn contraction(c: &mut Criterion, isa: &dyn VectorIsa) {
    let (k, n) = (1024, 1024);
    let (b, bias) = (elements(k * n), elements(n));
    let mut epilogue = Body::default();
    let sum = epilogue.push(Op::Accumulator, Ty::F32).expect("supported");
    let column = epilogue.push(Op::Load(0), Ty::F32).expect("supported");
    let y = epilogue.push(Op::Binary(BinaryOp::Add, sum, column), Ty::F32).expect("supported");
    epilogue.push(Op::Store(1, y), Ty::F32).expect("supported");
    let mut group = c.benchmark_group("contraction 1024x1024");
    for m in [1usize, 2, 3, 4, 6, 12, 24, 96] {
        let tiles = m.div_ceil(max_rows(isa.shape()));
        let rows = m / tiles;
        let vectors = wide_vectors(isa.shape(), rows, DotOp::F32);
        let key = TileKey {
            rows: rows as u8,
            vectors: vectors as u8,
            dot: DotOp::F32,
            tail: false,
            dense: true,
            flips_signs: false,
            shared_bytes: 0,
            levels: 1,
            rhs: Rhs::Panels(PANEL as u32),
            rhs_element: Ty::F32,
            prefetch_panels: true,
            part: ReductionPart::Whole,
            paired: false,
            line_batch: false,
            streams: vec![StreamStep::Unit; 2],
            scalars: 0,
            row_invariant: 0,
            prefetch_epilogue: false,
            epilogue: epilogue.clone(),
        };
        let compiled = Compiled::new(isa, &MicrokernelKey::Tile(key.clone()).code(isa));
        let (a, mut y) = (elements(m * k), vec![0f32; m * n]);
        group.throughput(Throughput::Elements((2 * rows * tiles * k * n) as u64));
        group.bench_function(BenchmarkId::from_parameter(m), |bench| {
            bench.iter(|| {
                for column in (0..n).step_by(vectors * isa.shape().lanes) {
                    let mut args = vec![0; key.slots()];
                    args[TileKey::LHS] = a.as_ptr() as i64;
                    args[TileKey::LHS_ROW] = 4 * k as i64;
                    args[TileKey::RHS] = b[column * k..].as_ptr() as i64;
                    args[TileKey::RHS_COLUMN] = (4 * PANEL * k) as i64;
                    args[TileKey::TILES] = tiles as i64;
                    args[TileKey::PREFETCH_ROUNDS] = tiles as i64;
                    args[TileKey::level(0)] = k as i64;
                    args[key.stream(0)] = bias[column..].as_ptr() as i64;
                    args[key.stream(1)] = y[column..].as_mut_ptr() as i64;
                    args[key.stream(1) + 1] = 4 * n as i64;
                    compiled.call(&mut args);
                }
            });
        });
    }
}

/// Functions of vectors in the first-level cache. Elements are results.
fn math(c: &mut Criterion, isa: &dyn VectorIsa) {
    const COUNT: usize = 2048;
    let (x, mut y) = (elements(COUNT), vec![0f32; COUNT]);
    let mut group = c.benchmark_group("math");
    group.throughput(Throughput::Elements(COUNT as u64));
    for op in [UnaryOp::Sqrt, UnaryOp::Exp, UnaryOp::Log, UnaryOp::Tanh, UnaryOp::Erf] {
        let mut body = Body::default();
        let value = body.push(Op::Load(0), Ty::F32).expect("supported");
        let value = body.push(Op::Unary(op, value), Ty::F32).expect("supported");
        body.push(Op::Store(1, value), Ty::F32).expect("supported");
        let key = StripKey {
            rows: false,
            phases: vec![Phase::Loop { extent: 0, body }],
            pointers: vec![StreamStep::Unit; 2],
            accumulators: Vec::new(),
            row_steps: vec![StreamStep::Stride; 2],
            streams: [0, 1].map(|pointer| Stream { pointer, offset: 0 }).to_vec(),
            extents: 1,
            scalars: 0,
            variables: 0,
            results: Vec::new(),
            may_fail: false,
            keeps_stored: false,
            short_row: None,
            counts: false,
        };
        let compiled = Compiled::new(isa, &MicrokernelKey::Strip(key.clone()).code(isa));
        group.bench_function(format!("{op:?}"), |bench| {
            bench.iter(|| {
                let mut args = vec![0; key.slots()];
                args[key.extent(0)] = COUNT as i64;
                args[key.pointer(0)] = x.as_ptr() as i64;
                args[key.pointer(1)] = y.as_mut_ptr() as i64;
                compiled.call(&mut args);
            });
        });
    }
}

fn kernels(c: &mut Criterion) {
    let isa = vector::for_target(None, module().isa());
    peak(c, &*isa);
    contraction(c, &*isa);
    math(c, &*isa);
}

criterion_group!(benches, kernels);
criterion_main!(benches);
