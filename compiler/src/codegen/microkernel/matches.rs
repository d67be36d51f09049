//! Functions that replace several instructions of a body.

use super::op::Body;

/// The functions of one kind in a body.
pub(super) struct Matches<T> {
    /// At the index of the instruction whose value a function has.
    found: Vec<Option<T>>,
    skipped: Vec<bool>,
}

impl<T> Matches<T> {
    /// Finds the functions with `find`, which returns the one at an instruction, and the instructions whose values
    /// nothing else reads.
    pub(super) fn find(body: &Body, find: impl Fn(&[usize], usize) -> Option<(T, Vec<u32>)>) -> Matches<T> {
        let uses = body.use_counts();
        let mut skipped = vec![false; body.insts.len()];
        let mut at = |idx| {
            let (found, absorbed) = find(&uses, idx)?;
            for reg in absorbed {
                skipped[reg as usize] = true;
            }
            Some(found)
        };
        let found = (0..body.insts.len()).map(&mut at).collect();
        Matches { found, skipped }
    }

    /// Whether no emitted instruction needs the value of this one.
    pub(super) fn skips(&self, idx: usize) -> bool {
        self.skipped[idx]
    }

    /// The function at `idx`.
    pub(super) fn at(&self, idx: usize) -> Option<&T> {
        self.found[idx].as_ref()
    }
}
