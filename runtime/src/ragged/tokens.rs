//! The places of tokens in padded tensors.

use super::error::RaggedError;
use crate::{DType, TensorRef};
use alloc::vec::Vec;
use core::ops::Range;

/// Where the tokens of each sequence are in padded tensors. The tokens of a sequence are adjacent; padding follows
/// them, precedes them, or both.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tokens {
    positions: usize,
    spans: Vec<Range<usize>>,
}

impl Tokens {
    /// Sequences of these lengths in tensors of `positions` positions; padding follows the tokens.
    ///
    /// # Errors
    /// When a sequence is longer than `positions`.
    pub fn of_lengths(lengths: &[usize], positions: usize) -> Result<Tokens, RaggedError> {
        if let Some(sequence) = lengths.iter().position(|length| *length > positions) {
            let length = lengths[sequence];
            return Err(RaggedError::TooLong { sequence, length, positions });
        }
        Ok(Tokens { positions, spans: lengths.iter().map(|length| 0..*length).collect() })
    }

    /// The tokens of a mask `[sequences, positions]` of any element type, which is 1 at tokens and 0 at padding.
    ///
    /// # Errors
    /// When an element is neither 0 nor 1, or the tokens of a sequence are not adjacent, or there are no positions.
    pub fn of_mask(mask: &TensorRef<'_>) -> Result<Tokens, RaggedError> {
        let &[sequences, positions] = mask.shape() else {
            return Err(RaggedError::WrongMaskRank { rank: mask.shape().len() });
        };
        // Without positions, the number of sequences is not bounded by the size of the tensor.
        if positions == 0 {
            return Err(RaggedError::NoPositions);
        }

        let elem_bytes = mask.dtype().size_bytes();
        let mut spans = Vec::with_capacity(sequences);
        for sequence in 0..sequences {
            let row = &mask.bytes()[sequence * positions * elem_bytes..][..positions * elem_bytes];
            let mut span = 0..0;
            for (position, element) in row.chunks_exact(elem_bytes).enumerate() {
                let is_token = truth(mask.dtype(), element);
                if !is_token.ok_or(RaggedError::WrongMask { sequence, position })? {
                    continue;
                }
                if span.is_empty() {
                    span = position..position + 1;
                } else if span.end == position {
                    span.end += 1;
                } else {
                    return Err(RaggedError::Gap { sequence, position: span.end });
                }
            }
            spans.push(span);
        }
        Ok(Tokens { positions, spans })
    }

    /// The padded length.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The positions of the tokens of each sequence.
    pub fn spans(&self) -> &[Range<usize>] {
        &self.spans
    }

    /// The number of tokens of all sequences.
    pub fn rows(&self) -> usize {
        self.spans.iter().map(ExactSizeIterator::len).sum()
    }

    /// Forgets all sequences.
    pub(super) fn clear(&mut self) {
        self.positions = 0;
        self.spans.clear();
    }

    /// Adds sequences. The padded length becomes the larger one.
    pub(super) fn extend(&mut self, other: &Tokens) {
        self.positions = self.positions.max(other.positions);
        self.spans.extend_from_slice(&other.spans);
    }

    /// Adds a sequence whose tokens begin at position 0.
    pub(super) fn push(&mut self, length: usize) {
        self.positions = self.positions.max(length);
        self.spans.push(0..length);
    }
}

/// Whether an element is 1. `None` if it is neither 0 nor 1.
fn truth(dtype: DType, element: &[u8]) -> Option<bool> {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    // Elements are in the byte order of the machine.
    let shift = if cfg!(target_endian = "big") { 64 - 8 * element.len() as u32 } else { 0 };
    let bits = u64::from_ne_bytes(bytes) >> shift;
    let (one, sign) = match dtype {
        DType::F16 => (0x3c00, 1 << 15),
        DType::BF16 => (0x3f80, 1 << 15),
        DType::F32 => (u64::from(1.0_f32.to_bits()), 1 << 31),
        DType::F64 => (1.0_f64.to_bits(), 1 << 63),
        _ => (1, 0),
    };
    if bits == one {
        Some(true)
    } else if bits & !sign == 0 {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn masks_of_any_type_give_the_places_of_tokens() {
        let expected = [1..3, 0..0, 0..4];
        let bits = [0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1];
        let ints = bits.map(i64::from);
        let floats = bits.map(|bit: i32| if bit == 0 { -0.0 } else { 1.0_f32 });
        let bools = bits.map(|bit| bit != 0);
        let halves: alloc::vec::Vec<u8> =
            bits.iter().flat_map(|bit| (if *bit == 0 { 0_u16 } else { 0x3c00 }).to_ne_bytes()).collect();
        for mask in [
            TensorRef::new(&[3, 4], &ints),
            TensorRef::new(&[3, 4], &floats),
            TensorRef::new(&[3, 4], &bools),
            TensorRef::from_bytes(DType::F16, &[3, 4], &halves),
        ] {
            let tokens = Tokens::of_mask(&mask.expect("sized")).expect("a mask");
            assert_eq!((tokens.spans(), tokens.positions(), tokens.rows()), (&expected[..], 4, 6));
        }
    }

    #[test]
    fn malformed_masks_and_lengths_are_refused_with_their_place() {
        let refused = |shape: &[usize], mask: &[i32]| {
            let mask = TensorRef::new(shape, mask).expect("sized");
            Tokens::of_mask(&mask).expect_err("malformed").to_string()
        };
        assert!(refused(&[2, 2], &[1, 1, 1, 2]).contains("element [1, 1] of the mask is neither 0 nor 1"));
        assert!(refused(&[1, 2], &[-1, 0]).contains("element [0, 0]"));
        assert!(
            refused(&[1, 4], &[1, 0, 1, 1]).contains("sequence 0 has padding between tokens, at position 1")
        );
        assert!(refused(&[2], &[1, 0]).contains("got 1 axes"));
        assert!(refused(&[1 << 60, 0], &[]).contains("the padded length is 0"));
        let error = Tokens::of_lengths(&[2, 5], 4).expect_err("too long").to_string();
        assert!(error.contains("sequence 1 has 5 tokens; the padded length is 4"), "{error}");
    }
}
