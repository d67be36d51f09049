//! Time of a call, at small and large sizes of one compiled model: `cargo bench -p symshape-benches --bench calls`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use symshape_compiler::pipeline;
use symshape_runtime::{Context, TensorRef};

fn calls(c: &mut Criterion) {
    let model = pipeline::jit(&symshape_benches::block()).expect("supported");
    let mut context = Context::new(&model).expect("a small arena");
    let mut group = c.benchmark_group("block");
    for [n, s] in [[1_usize, 1_usize], [1, 32], [8, 33], [16, 128]] {
        let x: Vec<f32> = (0..n * s * 64).map(|idx| (idx as f32 * 0.37).sin()).collect();
        group.throughput(Throughput::Elements((n * s) as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("N={n},S={s}")), |b| {
            let inputs = [TensorRef::new(&[n, s, 64], &x).expect("sized")];
            b.iter(|| context.run_views(black_box(&inputs)).map(|outputs| outputs.len()));
        });
    }
    group.finish();
}

criterion_group!(benches, calls);
criterion_main!(benches);
