//! Calls whose inputs, outputs and arena are each next to pages without access, at the end and at the start.
//!
//! `SYMSHAPE_GUARD_CASES=5000` runs more random graphs, and the networks.

use crate::{guarded::Guard, machine, models, networks, random_cases};

use machine::Machine;
use std::ptr;
use symshape_compiler::{
    graph::{
        Graph,
        arbitrary::{self, RandomSource},
        text,
    },
    pipeline::{Lowered, Pipeline},
};
use symshape_runtime::abi;

/// Runs with guards after, and before, each buffer. Another place must not change the result.
fn run_guarded(machine: &Machine, dims: &[i64], inputs: &[Vec<u8>]) -> Result<(), String> {
    let [after, before] =
        [Guard::After, Guard::Before].map(|guard| machine.run_next_to(guard, dims, inputs, ptr::null()));
    if after == before { Ok(()) } else { Err(format!("other bytes at another place, at {dims:?}")) }
}

/// The machine code of a graph in its planned arena: in scalar loops, with the microkernels of this machine, and with
/// emulated tile registers.
fn machines(graph: &Graph) -> Result<Vec<Machine>, String> {
    let Lowered { program, plan, .. } = Pipeline::new(graph).lower().map_err(|error| error.to_string())?;
    let assemble =
        |scalar| Machine::assemble(program.clone(), &plan, scalar).map_err(|error| error.to_string());
    Ok(vec![assemble(true)?, assemble(false)?, Machine::on_tiles(program.clone())])
}

fn check(name: &str, graph: &Graph) {
    for machine in machines(graph).unwrap_or_else(|error| panic!("{name}: {error}")) {
        for dims in models::bindings(graph) {
            let inputs = models::inputs(graph, &dims);
            let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
            run_guarded(&machine, &dims, &raw).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// The number of random graphs that the caller wants, if any.
fn wanted_cases() -> Option<u32> {
    let text = std::env::var("SYMSHAPE_GUARD_CASES").ok()?;
    Some(text.parse().expect("SYMSHAPE_GUARD_CASES is a number of graphs"))
}

#[test]
fn models_keep_to_their_buffers() {
    for (name, model) in models::MODELS {
        check(name, &model().unwrap_or_else(|error| panic!("{name}: {error}")));
    }
}

#[test]
fn networks_keep_to_their_buffers() {
    let n_networks = if wanted_cases().is_some() { networks::NETWORKS.len() } else { 1 };
    for (name, network) in &networks::NETWORKS[..n_networks] {
        check(name, &network().unwrap_or_else(|error| panic!("{name}: {error}")));
    }
}

/// Runs a random graph at its smallest, second smallest, odd, second largest and largest sizes. Returns whether a call
/// succeeded.
fn run_random(bytes: &[u8]) -> Result<bool, String> {
    let graph = arbitrary::graph(&mut RandomSource::new(bytes));
    let Ok(machines) = machines(&graph) else { return Ok(false) };
    let bindings = models::bindings(&graph);

    let mut has_run = false;
    for dims in bindings.iter().take(5) {
        let binding = graph.symbols.iter().cloned().zip(dims.iter().copied()).collect();
        let mut source = RandomSource::new(bytes);
        let Ok(inputs) = arbitrary::inputs(&graph, &binding, &mut source) else { continue };
        let shapes: Vec<Vec<i64>> =
            inputs.iter().map(|tensor| tensor.shape().iter().map(|dim| *dim as i64).collect()).collect();
        let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
        for machine in &machines {
            let Ok(bound) = machine.check(&shapes) else { continue };
            run_guarded(machine, &bound, &raw).map_err(|error| format!("{error}\n{graph}"))?;
            has_run = true;
        }
    }

    Ok(has_run)
}

#[test]
fn random_graphs_keep_to_their_buffers() {
    let n_cases = wanted_cases().unwrap_or(40);
    random_cases::check_random(n_cases, 160, n_cases / 4, run_random);
}

/// Before a call, an output has the largest size that the call may find, which may belong to a symbol's smallest value.
#[test]
fn unknown_sizes_of_outputs_are_upper_bounds() {
    let graph = text::parse(
        "graph g {
          symbol A = 1..8
          data_dependent M0
          input x: f32[A]
          input m: i64[]
          %0 = bind M0 from [0] to [A] m
          %1 = view [A - M0] [$0 + M0] x
          output y = %1
        }",
    )
    .expect("a graph");

    for machine in machines(&graph).expect("machine code") {
        for a in [1, 2, 5, 8] {
            assert!(machine.output_shape(0, &[a, abi::UNKNOWN_DIM])[0] >= a, "room for M0 = 0");
            assert_eq!(machine.output_shape(0, &[a, 1]), [a - 1]);
            for m in 0..=a {
                let x: Vec<u8> = (0..4 * a as u8).collect();
                let y = machine.run(&[a], &[x.clone(), m.to_le_bytes().to_vec()]).expect("an allowed size");
                assert_eq!(y[0], x[4 * m as usize..], "A = {a}, M0 = {m}");
            }
        }
    }
}

/// The guards work: a page without access is on the chosen side, and the bytes on the other side are watched.
#[test]
fn guarded_memory_is_placed_at_its_edge() {
    use crate::guarded::Guarded;
    for len in [0, 4, 60, 4096, 5000] {
        let page = region::page::size();
        let mut after = Guarded::new(Guard::After, len, 4);
        assert_eq!((after.as_mut_ptr() as usize + len) % page, 0);
        let mut before = Guarded::new(Guard::Before, len, 64);
        assert_eq!(before.as_mut_ptr() as usize % page, 0);
        for edge in [after.as_mut_ptr().wrapping_add(len), before.as_mut_ptr().wrapping_sub(1)] {
            let protection = region::query(edge).expect("a mapped page").protection();
            assert_eq!(protection, region::Protection::NONE, "{len} bytes");
        }
        assert!(after.is_whole() && before.is_whole());
    }
}
