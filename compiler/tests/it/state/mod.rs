//! State: a model that keeps its past equals the same model with the past as inputs and outputs.

mod c;
mod cli;
mod graphs;
mod grouped;
mod random;
mod row_types;
mod script;
mod session;
mod several;
mod source;
mod streaming;
mod web;

use crate::random_cases::check_random;
pub(crate) use graphs::decoder;
use graphs::{delays, gated, rows_first};
use session::{Session, refused};
use symshape_compiler::{
    StateRequest,
    kernel::{Program, verify, walk},
    pipeline::Pipeline,
};
use symshape_runtime::DType;

#[test]
fn decoder_equals_the_one_without_state() {
    for (max_step, max_past) in [(4, 12), (16, 64)] {
        for chunks in [[1, 1, 1, 1, 1], [4, 1, 2, 3, 1], [2, 3, 4, 1, 2], [3, 4, 4, 1, 1]] {
            let mut session = Session::new(&decoder(max_step, max_past), &StateRequest::find(), 1, 16);
            chunks.iter().for_each(|chunk| session.step(*chunk));
        }
    }
}

#[test]
fn decoder_runs_at_the_ends_of_all_ranges() {
    let graph = decoder(5, 9);
    for batch in [1, 2, 3] {
        // Capacity 14 is the upper bound; the last step ends there.
        for chunks in [&[5, 4, 5][..], &[1, 1, 5, 2, 5], &[4, 5, 5]] {
            let mut session = Session::new(&graph, &StateRequest::find(), batch, 14);
            chunks.iter().for_each(|chunk| session.step(*chunk));
        }
    }
}

#[test]
fn overwritten_state_equals_carried_state() {
    let request = StateRequest::pairs(["h=h_next"]).expect("a pair");
    for batch in [1, 2, 7, 8] {
        let mut session = Session::new(&gated(), &request, batch, 0);
        (0..5).for_each(|_| session.step(0));
    }
}

#[test]
fn delay_lines_and_swaps_read_their_old_values() {
    let request = StateRequest::pairs(["a=a_next", "b=b_next", "c=c_next"]).expect("pairs");
    let mut session = Session::new(&delays(), &request, 1, 0);
    (0..7).for_each(|_| session.step(0));
}

#[test]
fn rows_on_the_first_axis_are_appended() {
    let mut session = Session::new(&rows_first(), &StateRequest::find(), 1, 20);
    [1, 3, 5, 2].iter().for_each(|chunk| session.step(*chunk));
}

#[test]
fn stores_to_the_state_are_proven_to_be_new_rows() {
    let overwritten = StateRequest::pairs(["h=h_next"]).expect("a pair");
    let delayed = StateRequest::pairs(["a=a_next", "b=b_next", "c=c_next"]).expect("pairs");
    let models = [
        (decoder(4, 12), StateRequest::find()),
        (rows_first(), StateRequest::find()),
        (decoder(4, 12), StateRequest::find().row_type(DType::F16)),
        (gated(), overwritten),
        (delays(), delayed),
        (streaming::encoder(1, 2), StateRequest::find()),
        (streaming::encoder(9, 2), StateRequest::find()),
    ];
    for (graph, request) in models {
        let lowered = Pipeline::new(&graph).state(request).lower().expect("supported");
        let unproven = verify::verify(&lowered.program).expect("well-formed");
        let accesses: Vec<_> = unproven.iter().filter(|rule| rule.what.contains('<')).collect();
        assert!(accesses.is_empty(), "{}: {accesses:?}", graph.name);
    }
}

#[test]
fn attention_reads_keys_and_values_in_the_state() {
    // Rows of 16 bits become floats in the contractions.
    for row_type in [None, Some(DType::F16), Some(DType::BF16)] {
        let request = StateRequest::find().row_type(row_type);
        let lowered = Pipeline::new(&decoder(4, 12)).state(request).lower().expect("supported");
        assert_only_contractions_read_the_state(&lowered.program);
    }
}

fn assert_only_contractions_read_the_state(program: &Program) {
    for tensor in &program.state.as_ref().expect("state").tensors {
        let mut readers = 0;
        for kernel in &program.kernels {
            let mut reads = false;
            walk::accesses(&kernel.body, &mut |site| {
                reads |= !site.is_store && site.access.buffer == tensor.buffer;
            });
            assert!(!reads || kernel.name.contains("contraction"), "{} copies {}", kernel.name, tensor.input);
            readers += usize::from(reads);
        }
        assert_eq!(readers, 1, "{}", tensor.input);
    }
}

#[test]
fn a_call_past_the_capacity_is_refused_and_changes_nothing() {
    let mut session = Session::new(&decoder(4, 12), &StateRequest::find(), 1, 6);
    session.step(4);
    let before = session.state.block_bytes().to_vec();
    let error = session.try_step(3).expect_err("7 rows don't fit");
    assert_eq!(error.to_string(), "the state has memory for 6 rows; there would be 7 after the call");
    assert_eq!(session.state.block_bytes(), before);
    session.step(2);
}

#[test]
fn reset_and_truncate_continue_from_the_rows_that_stay() {
    let mut session = Session::new(&decoder(4, 12), &StateRequest::find(), 1, 16);
    [4, 3, 2].iter().for_each(|chunk| session.step(*chunk));
    session.truncate(5);
    [1, 4].iter().for_each(|chunk| session.step(*chunk));
    session.truncate(0);
    session.state.reset();
    assert_eq!(session.state.length(), 0);
    [2, 2].iter().for_each(|chunk| session.step(*chunk));
}

#[test]
fn forks_and_saved_states_continue_on_their_own() {
    let mut session = Session::new(&decoder(4, 12), &StateRequest::find(), 2, 16);
    [4, 1].iter().for_each(|chunk| session.step(*chunk));
    let fork = session.state.fork().expect("memory");
    let saved = session.state.save();
    let past = session.past();

    session.step(3);
    session.replace(fork, past.clone());
    session.step(2);

    let loaded = symshape_runtime::State::load(session.model(), &saved).expect("a saved state");
    session.replace(loaded, past);
    [1, 4].iter().for_each(|chunk| session.step(*chunk));
}

#[test]
fn damaged_and_foreign_states_are_refused() {
    let session = Session::new(&decoder(4, 12), &StateRequest::find(), 1, 16);
    let saved = session.state.save();
    let load = |bytes: &[u8]| symshape_runtime::State::load(session.model(), bytes).map(drop);
    for cut in [0, 7, 8, 40, saved.len() - 1] {
        load(&saved[..cut]).expect_err("a truncated file");
    }
    for at in 0..64 {
        let mut bytes = saved.clone();
        bytes[at] ^= 0x40;
        // Some flips give another valid state, such as a larger capacity; none may be a fault.
        let _ = load(&bytes);
    }

    let other = Session::new(&decoder(4, 13), &StateRequest::find(), 1, 16);
    let error = symshape_runtime::State::load(other.model(), &saved).expect_err("another model");
    assert!(error.to_string().contains("belongs to another model"), "{error}");
    let error = other.foreign_call(session);
    assert_eq!(error.to_string(), "the state belongs to another model");
}

#[test]
fn pairs_that_are_no_state_are_refused() {
    let graph = decoder(4, 12);
    let refusals = [
        ("past_k=present_v", "the output is not the input with new rows after it along axis 2"),
        ("x=y", "can't be state"),
        ("past_*=presen_*", "the model has no output `presen_k`"),
        ("pas=present_k", "the model has no such input"),
        ("past_*", "expected IN=OUT"),
    ];
    for (pair, cause) in refusals {
        let error = refused(&graph, pair);
        assert!(error.contains(cause) && error.contains(pair), "{pair}: {error}");
    }
}

#[test]
fn random_sessions_equal_the_graph_without_state() {
    check_random(32, 160, 16, |bytes| Ok(random::run(bytes) > 0));
}
