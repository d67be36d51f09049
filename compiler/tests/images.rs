//! Batches that are computed a few images at a time: the bits of calls for one image, errors of the whole contract.

use symshape::{Declaration, Dim};
use symshape_compiler::{Result, codegen::Options, emit, graph::Graph, pipeline};
use symshape_runtime::{Context, DType, TensorRef};

const MOST: usize = 6;
const ROWS: usize = 600;
const COLUMNS: usize = 700;

/// `softmax(x + shift)` along the last axis, and the largest of each row; `shift` is the same for all images.
fn graph(g: &mut Graph) -> Result<()> {
    let n = g.symbol("N", Declaration::range(0, MOST as i64))?;
    let shape: Vec<Dim> = vec![n, ROWS.into(), COLUMNS.into()];
    let x = g.input("x", DType::F32, shape.clone())?;
    let shift = g.input("shift", DType::F32, vec![COLUMNS.into()])?;
    let shift = g.broadcast_to(shift, &shape)?;
    let sum = g.add(x, shift)?;
    let y = g.softmax(sum, 2)?;
    g.output("y", y)?;
    let most = g.reduce(symshape_compiler::scalar::ReduceOp::Max, y, &[2], false)?;
    g.output("most", most)
}

#[test]
fn groups_of_images_have_the_bits_of_single_ones() {
    let mut g = Graph { name: "images".into(), ..Graph::default() };
    graph(&mut g).expect("valid");
    let lowered = pipeline::lower(&g).expect("supported");
    let (model, summary) =
        emit::jit::jit(&lowered.program, &lowered.plan, &Options::default()).expect("supported");
    assert!(summary.functions.iter().any(|function| function.name.contains("run_images")));

    let mut context = Context::new(&model).expect("memory");
    let image = ROWS * COLUMNS;
    let x: Vec<f32> = (0..MOST * image).map(|at| (at * 7919 % 1013) as f32 / 100.0).collect();
    let shift: Vec<f32> = (0..COLUMNS).map(|at| (at % 17) as f32 / 8.0).collect();
    let mut run = |from: usize, count: usize| -> [Vec<f32>; 2] {
        let shape = [count, ROWS, COLUMNS];
        let x = TensorRef::new(&shape, &x[from * image..(from + count) * image]).expect("sized");
        let shift = TensorRef::new(&[COLUMNS], &shift).expect("sized");
        let outputs = context.run_views(&[x, shift]).expect("in range");
        [0, 1].map(|output| outputs.get(output).elems::<f32>().expect("floats").to_vec())
    };
    let single: Vec<[Vec<f32>; 2]> = (0..MOST).map(|at| run(at, 1)).collect();
    for count in 0..=MOST {
        let together = run(0, count);
        for output in 0..2 {
            let apart: Vec<f32> = single[..count].iter().flat_map(|one| one[output].clone()).collect();
            assert!(
                together[output].iter().map(|x| x.to_bits()).eq(apart.iter().map(|x| x.to_bits())),
                "output {output} of {count} images"
            );
        }
    }
    let shape = [MOST + 1, ROWS, COLUMNS];
    let large = vec![0.0; (MOST + 1) * image];
    let inputs =
        [TensorRef::new(&shape, &large).expect("sized"), TensorRef::new(&[COLUMNS], &shift).expect("sized")];
    assert!(context.run_views(&inputs).is_err());
}
