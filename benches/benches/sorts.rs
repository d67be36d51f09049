//! First elements of rows, and whole sorts, in orders that are easy and hard: `cargo bench -p symshape-benches --bench
//! sorts`. The throughput is the bytes of the row, so the bound is that of memory.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use symshape::Dim;
use symshape_compiler::{graph::Graph, pipeline};
use symshape_runtime::{Context, DType, TensorRef};

/// The largest `wanted` elements of a row, with their positions.
fn model(len: usize, wanted: usize) -> Graph {
    let mut g = Graph { name: "sorts".to_string(), ..Graph::default() };
    let x = g.input("x", DType::F32, vec![Dim::from(len)]).expect("a valid input");
    let (values, positions) = g.sort_first(x, 0, true, &Dim::from(wanted)).expect("a long row");
    g.output("values", values).expect("a new name");
    g.output("positions", positions).expect("a new name");
    g
}

fn rows(len: usize) -> [(&'static str, Vec<f32>); 3] {
    let random = |i: usize| ((i as u32).wrapping_mul(0x9e37_79b9) ^ 0x85eb_ca6b).wrapping_mul(0xc2b2_ae35);
    [
        ("random", (0..len).map(|i| random(i) as f32).collect()),
        ("rising", (0..len).map(|i| i as f32).collect()),
        ("equal", vec![1.0; len]),
    ]
}

fn sorts(c: &mut Criterion) {
    for [len, wanted] in [[64, 8], [1000, 20], [8400, 300], [8400, 8400], [50_000, 50], [256_000, 100]] {
        let model = pipeline::jit(&model(len, wanted)).expect("supported");
        let mut context = Context::new(&model).expect("a small arena");
        let mut group = c.benchmark_group(format!("{wanted} of {len}"));
        group.throughput(Throughput::Bytes(4 * len as u64));
        for (order, x) in rows(len) {
            group.bench_function(BenchmarkId::from_parameter(order), |b| {
                let inputs = [TensorRef::new(&[len], &x).expect("sized")];
                b.iter(|| context.run_views(black_box(&inputs)).map(|outputs| outputs.len()));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, sorts);
criterion_main!(benches);
