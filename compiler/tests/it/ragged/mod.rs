//! Ragged batches: a sequence has the bits that it has alone, and the results of the padded model.

mod c_programs;
mod cli;
mod convolutions;
mod empty;
mod fuzzed;
pub(crate) mod graphs;
mod lengths;
mod packed;
mod profile;
mod random;
mod refusals;
mod serving;
mod session;

use crate::random_cases::check_random;
use graphs::{FORMS, MAX_LENGTH, MAX_SEQUENCES, MaskForm, embedded, encoder, layer, padded};
use session::{Session, cases};
use symshape::Dim;
use symshape_compiler::{
    RaggedRequest, Result,
    graph::Graph,
    kernel::{MemorySpace, walk},
    pipeline::Pipeline,
    scalar::{CompareOp, Scalar},
};
use symshape_runtime::DType;

#[test]
fn sequences_have_the_bits_that_they_have_alone() {
    for form in FORMS {
        let mut session = Session::new(&encoder(form), &RaggedRequest::along("S"));
        for lengths in cases() {
            [1, 2, 3].iter().for_each(|threads| session.compare(&lengths, *threads));
        }
    }
}

/// An encoder of two layers whose mask is looked up in a list of all elements, as exports do. Negative places count from
/// the end of the list. Without `is_looked_up`, the layers take the mask itself.
fn with_looked_up_mask(is_looked_up: bool) -> Graph {
    let build = || -> Result<Graph> {
        let (mut g, ids, mask) = padded("looked_up")?;
        let [n, s] = [Dim::symbol("N"), Dim::symbol("S")];
        let sequence = g.index(DType::I64, vec![n.clone(), 1.into()], Dim::symbol("$0"))?;
        let width = g.dim(DType::I64, s.clone())?;
        let [sequence, width] = g.broadcast(&[sequence, width])?[..] else { unreachable!() };
        let first = g.mul(sequence, width)?;
        let position = g.index(DType::I64, vec![1.into(), s.clone()], Dim::symbol("$1"))?;
        let [first, position] = g.broadcast(&[first, position])?[..] else { unreachable!() };
        let place = g.add(first, position)?;
        let zero = g.scalar(Scalar::i64(0))?;
        let is_negative = g.compare(CompareOp::Lt, place, zero)?;
        let count = g.dim(DType::I64, n.clone() * &s)?;
        let from_end = g.add(place, count)?;
        let place = g.select(is_negative, from_end, place)?;
        let flat = g.reshape(mask, vec![n * s])?;
        let looked_up = g.gather(flat, place, 0)?;

        let mask = if is_looked_up { looked_up } else { mask };
        let x = embedded(&mut g, ids)?;
        let x = layer(&mut g, x, mask, MaskForm::Selected, 10)?;
        let x = layer(&mut g, x, mask, MaskForm::Selected, 20)?;
        g.output("hidden", x)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

#[test]
fn masks_that_are_looked_up_by_computed_places_are_followed() {
    let mut session = Session::new(&with_looked_up_mask(true), &RaggedRequest::along("S"));
    cases().iter().for_each(|lengths| session.compare(lengths, 2));
}

/// A mask that stayed in memory from layer to layer would keep all kernels between in the group of a sequence.
#[test]
fn masks_that_are_looked_up_leave_no_kernel() {
    let [direct, looked_up] = [false, true].map(|is_looked_up| {
        let graph = with_looked_up_mask(is_looked_up);
        let lowered = Pipeline::new(&graph).ragged(RaggedRequest::along("S").mask("mask")).lower();
        lowered.expect("supported")
    });
    assert_eq!(looked_up.program.kernels.len(), direct.program.kernels.len(), "{}", looked_up.program);
    assert_eq!(looked_up.plan.arena_max, direct.plan.arena_max);
}

#[test]
fn weights_are_read_once_for_all_sequences() {
    let request = RaggedRequest::along("S").mask("mask");
    let lowered = Pipeline::new(&encoder(MaskForm::Selected)).ragged(request).lower().expect("supported");
    let program = &lowered.program;
    let ragged = program.ragged.as_ref().expect("a ragged batch");
    let reads_weights = |kernel: usize| {
        let mut reads = false;
        walk::accesses(&program.kernels[kernel].body, &mut |site| {
            let buffer = &program.buffers[site.access.buffer];
            let is_large = buffer.elems.as_i64().is_some_and(|elems| elems >= 48);
            reads |= matches!(buffer.space, MemorySpace::Const(_)) && is_large;
        });
        reads
    };
    let readers = ragged.groups.iter().flat_map(Clone::clone).filter(|kernel| reads_weights(*kernel)).count();
    // The table of positions, which is read by the position in a sequence, and the class of the first token.
    assert_eq!(readers, 2, "{program}");
}

#[test]
fn random_batches_have_the_bits_of_their_sequences() {
    let mut session = Session::new(&encoder(MaskForm::Windowed), &RaggedRequest::along("S"));
    let mut random = 0x2545_f491_u32;
    let mut below = |end: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as usize % end
    };
    for _ in 0..24 {
        let count = 1 + below(MAX_SEQUENCES as usize);
        // Half of all sequences are short.
        let lengths: Vec<usize> = (0..count)
            .map(|_| 1 + if below(2) == 0 { below(4) } else { below(MAX_LENGTH as usize) })
            .collect();
        let threads = 1 + below(3) as u32;
        session.compare(&lengths, threads);
    }
}

#[test]
fn random_padded_graphs_that_are_accepted_have_the_values_of_the_evaluator() {
    // About a fifth of the graphs is accepted.
    let cases = random::cases(96);
    check_random(cases, 64, cases / 12, |bytes| Ok(fuzzed::run(bytes) > 0));
}
