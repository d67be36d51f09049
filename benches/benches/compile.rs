//! Time of the compiler's stages on a small model: `cargo bench -p symshape-benches --bench compile`.

use criterion::{Criterion, criterion_group, criterion_main};
use symshape_compiler::{
    CompileOptions, emit,
    pipeline::{Artifact, Pipeline},
    target::Target,
};

fn stages(c: &mut Criterion) {
    let graph = symshape_benches::block();
    let lowered = Pipeline::new(&graph).lower().expect("supported");
    let target = Target::host().expect("a supported machine");
    let mut group = c.benchmark_group("compile");
    group.sample_size(10);
    group.bench_function("import", |b| b.iter(symshape_benches::block));
    group.bench_function("lower", |b| b.iter(|| Pipeline::new(&graph).lower()));
    group.bench_function("object", |b| b.iter(|| lowered.compile(&target, Artifact::Object)));
    group.bench_function("jit", |b| {
        b.iter(|| emit::jit::jit(&lowered.program, &lowered.plan, &CompileOptions::default()));
    });
    group.finish();
}

criterion_group!(benches, stages);
criterion_main!(benches);
