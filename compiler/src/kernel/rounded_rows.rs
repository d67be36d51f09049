//! The memory of rounded rows: the left-hand side of products with weights of few bits, as microkernels read it.
//!
//! A row consists of the blocks of the reduction. A block is, word after word of 32 bits:
//!
//! ```text
//! the scale of the block                    f32
//! the sum of its codes times an offset      i32
//! the sum of its codes                      i32
//! codes                                     2 or 4 in each word
//! ```
//!
//! Stored codes of weights are higher than the integers by an offset. Sums of products start from the second word,
//! which corrects that. Codes of activations are in the order in which microkernels select those of weights.

use super::few_bits::FewBitsForm;
use crate::scalar::activations::MAX_DEPTH;

/// Words of a block before its codes.
pub(crate) const HEADER_WORDS: i64 = 3;

/// The sizes of rounded rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RoundedRows {
    /// Elements of a row.
    depth: i64,
    /// Elements of a block.
    block: i64,
    /// Elements that are padded to.
    group: i64,
}

impl RoundedRows {
    /// The rows that panels of this form and depth are multiplied with. `None` if they are too long.
    pub(crate) fn of(form: FewBitsForm, depth: i64) -> Option<RoundedRows> {
        let rows = RoundedRows { depth, block: i64::from(form.block), group: form.group() };
        (form.is_valid(depth) && depth <= MAX_DEPTH as i64).then_some(rows)
    }

    /// Words of a row if each holds this number of codes.
    pub(crate) fn words(self, codes_of_word: i64) -> i64 {
        let block_words = |elems: i64| {
            let padded = (elems + self.group - 1) / self.group * self.group;
            HEADER_WORDS + padded / codes_of_word
        };
        let rest = self.depth % self.block;
        self.depth / self.block * block_words(self.block) + if rest > 0 { block_words(rest) } else { 0 }
    }

    /// Words of a row in the longest form.
    pub(crate) fn max_words(self) -> i64 {
        self.words(2)
    }
}
