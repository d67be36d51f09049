//! The bits of a row depend on no other row: neither on their number, which decides whether weights are unpacked into
//! panels of floats, nor on the threads.

use super::{DEEP, Layer, MAX_ROWS, Zeros, compiled, levels, lowered, run};
use crate::bits::assert_same_bits;
use crate::models;

use symshape::Dim;
use symshape_compiler::{
    Microkernels, Result, emit,
    graph::{Graph, Value},
    pipeline::Artifact,
    target::Target,
};
use symshape_runtime::{DType, Model};

/// A layer whose depth is not cut.
const SHALLOW: Layer = Layer { k: 70, n: 50, bits: 4, block: 16, zeros: Zeros::ByBlock, scale: DType::F16 };

/// The first `rows` rows of the input of a layer.
fn input(layer: Layer, rows: usize) -> Vec<f32> {
    let all = super::floats(&models::weights(&[MAX_ROWS as usize, layer.k], 11));
    all[..rows * layer.k].to_vec()
}

fn run_rows(model: &Model, threads: u32, layer: Layer, rows: &[f32]) -> Vec<f32> {
    let shape = vec![rows.len() / layer.k, layer.k];
    run(model, threads, &symshape_compiler::tensor::Tensor::from_f32(shape, rows).expect("whole rows"))
}

/// Checks each number of rows against the rows alone.
fn check_rows(model: &Model, layer: Layer, context: &str) {
    let all = input(layer, MAX_ROWS as usize);
    let alone: Vec<f32> = all.chunks(layer.k).flat_map(|row| run_rows(model, 1, layer, row)).collect();
    for rows in 1..=MAX_ROWS as usize {
        for threads in [1, 2] {
            let got = run_rows(model, threads, layer, &input(layer, rows));
            let want = &alone[..rows * layer.n];
            assert_same_bits(
                &got,
                want,
                format_args!("{context}, {layer:?}, {rows} rows, {threads} threads"),
            );
        }
    }
}

#[test]
fn the_bits_of_a_row_do_not_depend_on_the_number_of_rows_at_any_level() {
    let folder = tempfile::tempdir().expect("a folder");
    for (idx, layer) in DEEP.into_iter().chain([SHALLOW]).enumerate() {
        let lowered = lowered(&layer.of_few_bits());
        for level in levels() {
            let target = Target::parse(None, Some(level.name())).expect("a level");
            let compiled = lowered.compile(&target, Artifact::Shared).expect("supported");
            let path = folder.path().join(format!("{idx}-{}.so", level.name()));
            emit::shared::shared(compiled.object, &[], &path).expect("a folder to write to");
            check_rows(&Model::open(path).expect("an artefact"), layer, level.name());
        }
    }
}

#[test]
fn deep_products_have_the_bits_of_products_with_floats() {
    for layer in DEEP {
        let few_bits = compiled(&lowered(&layer.of_few_bits()), Microkernels::Native);
        let of_floats = compiled(&lowered(&layer.of_floats()), Microkernels::Native);
        for rows in [1, 2, 5, 16, 17, MAX_ROWS as usize] {
            let rows = input(layer, rows);
            let want = run_rows(&of_floats, 1, layer, &rows);
            let got = run_rows(&few_bits, 1, layer, &rows);
            assert_same_bits(&got, &want, format_args!("{layer:?}, {} rows", rows.len() / layer.k));
        }
    }
}

#[test]
fn numbers_of_rows_that_are_known_at_compile_time_give_the_same_bits() {
    let build = |layer: Layer, rows: usize, w: &dyn Fn(&mut Graph) -> Result<Value>| {
        let build = || {
            let mut g = models::graph("fixed", &[]);
            let x = g.input("x", DType::F32, vec![rows.into(), layer.k.into()])?;
            let w = w(&mut g)?;
            let y = g.matmul(x, w)?;
            g.output("y", y)?;
            Ok::<Graph, symshape_compiler::Error>(g)
        };
        compiled(&lowered(&build().expect("a valid graph")), Microkernels::Native)
    };
    for layer in [DEEP[0], SHALLOW] {
        for rows in [1, 4, 5, 16, 17, 29, MAX_ROWS as usize] {
            let few_bits = build(layer, rows, &|g| layer.stored(g));
            let of_floats = build(layer, rows, &|g| g.constant(layer.floats()));
            let input = input(layer, rows);
            let want = run_rows(&of_floats, 1, layer, &input);
            let got = run_rows(&few_bits, 1, layer, &input);
            assert_same_bits(&got, &want, format_args!("{layer:?}, {rows} rows"));
        }
    }
}

#[test]
fn rows_of_several_axes_are_products_with_floats() {
    let images = 3;
    let build = |layer: Layer, w: &dyn Fn(&mut Graph) -> Result<Value>| {
        let build = || {
            let mut g = models::graph("axes", &[("M", 1, MAX_ROWS)]);
            let x = g.input("x", DType::F32, vec![images.into(), Dim::symbol("M"), layer.k.into()])?;
            let w = w(&mut g)?;
            let y = g.matmul(x, w)?;
            let y = g.transpose(y, &[1, 0, 2])?;
            g.output("y", y)?;
            Ok::<Graph, symshape_compiler::Error>(g)
        };
        compiled(&lowered(&build().expect("a valid graph")), Microkernels::Native)
    };
    for layer in [DEEP[1], SHALLOW] {
        let few_bits = build(layer, &|g| layer.stored(g));
        let of_floats = build(layer, &|g| g.constant(layer.floats()));
        for rows in [1, 2, 7, 17, MAX_ROWS as usize] {
            let input = models::weights(&[images, rows, layer.k], 11);
            let want = run(&of_floats, 1, &input);
            for threads in [1, 2] {
                let got = run(&few_bits, threads, &input);
                assert_same_bits(&got, &want, format_args!("{layer:?}, {rows} rows, {threads} threads"));
            }
        }
    }
}
