//! Ragged batches: a sequence has the bits that it has alone, and the results of the padded model.

mod c_programs;
mod cli;
pub(crate) mod graphs;
mod lengths;
mod packed;
mod random;
mod refusals;
mod serving;
mod session;

use graphs::{FORMS, MAX_LENGTH, MAX_SEQUENCES, MaskForm, encoder};
use session::{Session, cases};
use symshape_compiler::{
    RaggedRequest,
    kernel::{MemorySpace, walk},
    pipeline::Pipeline,
};

#[test]
fn sequences_have_the_bits_that_they_have_alone() {
    for form in FORMS {
        let mut session = Session::new(&encoder(form), &RaggedRequest::along("S"));
        for lengths in cases() {
            [1, 2, 3].iter().for_each(|threads| session.compare(&lengths, *threads));
        }
    }
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
