//! Time of the compiler's stages on a small model: `cargo bench -p symshape-benches --bench compile`.

use criterion::{Criterion, criterion_group, criterion_main};
use symshape_compiler::{
    codegen::Options,
    emit,
    pipeline::{self, Artifact},
    target::Target,
};

fn stages(c: &mut Criterion) {
    let graph = symshape_benches::block();
    let lowered = pipeline::lower(&graph).expect("supported");
    let target = Target::host().expect("a supported machine");
    let mut group = c.benchmark_group("compile");
    group.sample_size(10);
    group.bench_function("import", |b| b.iter(symshape_benches::block));
    group.bench_function("lower", |b| b.iter(|| pipeline::lower(&graph)));
    group.bench_function("object", |b| b.iter(|| pipeline::compile(&lowered, &target, Artifact::Object)));
    group.bench_function("jit", |b| {
        b.iter(|| emit::jit::jit(&lowered.program, &lowered.plan, &Options::default()));
    });
    group.finish();
}

criterion_group!(benches, stages);
criterion_main!(benches);
