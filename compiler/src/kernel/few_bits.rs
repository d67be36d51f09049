//! Panels of weights of few bits, as contractions read them.
//!
//! A panel has 16 columns and consists of blocks of `block` reduction indices; the last one may be shorter. A block
//! is, byte after byte:
//!
//! ```text
//! 16 scales                  f32, f16 or bf16
//! 16 zero points             i8, if there are any
//! codes of 8 bits:           16 bytes for each reduction index, if the other operand is not rounded
//! other codes:               16 words of 32 bits for each 32 / bits indices, the first in the lowest bits
//! ```
//!
//! Codes are signed. Those of fewer bits are stored as unsigned integers, higher by half of their range. An element is
//! `(code - zero) * scale`, computed in `f32`: the difference is exact, and the product is rounded once.
//!
//! The other operand may be rounded to 8 bits, see [`activations`](crate::scalar::activations). Then integers are
//! multiplied, and the scales of both operands are applied to the sums of blocks.

use half::{bf16, f16};
use symshape::Dim;
use symshape_runtime::DType;

/// Columns of a panel.
pub(crate) const WIDTH: i64 = 16;

/// Columns of the widest tile whose panels are unpacked at once.
pub(crate) const MAX_UNPACKED_COLUMNS: i64 = 64;

/// The form of the panels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FewBitsForm {
    /// Bits of a code: 2, 4 or 8.
    pub bits: u32,
    /// Reduction indices of a block. Unless one block has all or the other operand is rounded, a multiple of those of a
    /// word.
    pub block: u32,
    /// The type of the scales: `f32`, `f16` or `bf16`.
    pub scale: DType,
    /// Whether blocks have zero points.
    pub has_zeros: bool,
    /// Whether the other operand is rounded to 8 bits, in blocks of `block` elements.
    pub rounds_lhs: bool,
}

/// The bytes of an element in a buffer, as expressions over the variables of a contraction.
pub(crate) struct ElementPlace {
    /// The first byte of the scale.
    pub(crate) scale: Dim,
    /// The byte of the zero point, if there are any.
    pub(crate) zero: Option<Dim>,
    /// The byte that has the code.
    pub(crate) code: Dim,
    /// The lowest bit of the code in that byte.
    pub(crate) bit: Dim,
}

impl FewBitsForm {
    /// Reduction indices whose codes are adjacent.
    pub(crate) fn group(&self) -> i64 {
        if self.has_bytes() { 1 } else { i64::from(32 / self.bits) }
    }

    /// Bytes of the codes of one group in all columns.
    pub(crate) fn group_bytes(&self) -> i64 {
        if self.has_bytes() { WIDTH } else { 4 * WIDTH }
    }

    /// Whether codes are bytes that are not gathered in words.
    fn has_bytes(&self) -> bool {
        self.bits == 8 && !self.rounds_lhs
    }

    /// The bits of a byte that make stored codes signed if they are flipped: the highest of each code.
    pub(crate) fn flipped_bits(&self) -> u8 {
        match self.bits {
            2 => 0b1010_1010,
            4 => 0b1000_1000,
            _ => 0,
        }
    }

    /// Bytes of the scales of a block.
    pub(crate) fn scale_bytes(&self) -> i64 {
        WIDTH * self.scale.size_bytes() as i64
    }

    /// Bytes of a block before its codes.
    pub(crate) fn header_bytes(&self) -> i64 {
        self.scale_bytes() + if self.has_zeros { WIDTH } else { 0 }
    }

    /// Bytes of a block of `depth` reduction indices.
    pub(crate) fn block_bytes(&self, depth: i64) -> i64 {
        self.header_bytes() + (depth + self.group() - 1) / self.group() * self.group_bytes()
    }

    /// Bytes of a panel of `depth` reduction indices. `None` if they are too many.
    pub(crate) fn panel_bytes(&self, depth: i64) -> Option<i64> {
        let block = i64::from(self.block);
        let whole = (depth / block).checked_mul(self.block_bytes(block))?;
        let rest = depth % block;
        whole.checked_add(if rest > 0 { self.block_bytes(rest) } else { 0 })
    }

    /// Whether codes and scales are of a supported form, for panels of `depth` reduction indices.
    pub(crate) fn is_valid(&self, depth: i64) -> bool {
        let is_whole =
            self.rounds_lhs || i64::from(self.block) % self.group() == 0 || depth <= i64::from(self.block);
        [2, 4, 8].contains(&self.bits)
            && self.block > 0
            && is_whole
            && matches!(self.scale, DType::F32 | DType::F16 | DType::BF16)
            && depth >= 0
            && self.panel_bytes(depth).is_some()
    }

    /// The place of the element at reduction index `k` and column `column`, in panels of `panel_bytes` bytes that
    /// begin at byte `base`.
    pub(crate) fn place(&self, base: &Dim, panel_bytes: i64, k: &Dim, column: &Dim) -> ElementPlace {
        let lane = column.modulo(WIDTH);
        let block = i64::from(self.block);

        let panel = base + column.floor_div(WIDTH) * panel_bytes;
        let start = panel + k.floor_div(block) * self.block_bytes(block);
        let inside = k.modulo(block);
        let codes = &start + inside.floor_div(self.group()) * self.group_bytes() + self.header_bytes();
        let lane_bytes = self.group_bytes() / WIDTH;
        let bit = inside.modulo(self.group()) * i64::from(self.bits);
        ElementPlace {
            scale: &start + &lane * self.scale.size_bytes() as i64,
            zero: self.has_zeros.then(|| &start + &lane + self.scale_bytes()),
            code: codes + &lane * lane_bytes + bit.floor_div(8),
            bit: bit.modulo(8),
        }
    }

    /// The byte that has the code of the element at reduction index `k` in column `lane` of the panel that begins at
    /// byte `panel`.
    pub(crate) fn code_byte(&self, panel: i64, k: i64, lane: i64) -> i64 {
        let block = i64::from(self.block);
        let inside = k % block;
        let start = panel + k / block * self.block_bytes(block) + self.header_bytes();
        let group = start + inside / self.group() * self.group_bytes();
        group + lane * (self.group_bytes() / WIDTH) + self.bit(inside) / 8
    }

    /// The first bit of a code in the bytes of its group, for the element at index `inside` of a block.
    fn bit(&self, inside: i64) -> i64 {
        inside % self.group() * i64::from(self.bits)
    }

    /// The element in column `lane` of the panel that begins at byte `panel`. `None` if `bytes` end before it.
    pub(crate) fn element(&self, bytes: &[u8], panel: i64, k: i64, lane: i64) -> Option<f32> {
        let (integer, scale) = self.parts(bytes, panel, k, lane)?;
        Some(f32::from(integer) * scale)
    }

    /// The integer, less its zero point, and the scale of the element in column `lane`, see [`FewBitsForm::element`].
    pub(crate) fn parts(&self, bytes: &[u8], panel: i64, k: i64, lane: i64) -> Option<(i16, f32)> {
        let byte = |at: i64| bytes.get(usize::try_from(at).ok()?).copied();
        let block = i64::from(self.block);
        let start = panel + k / block * self.block_bytes(block);

        let stored = byte(self.code_byte(panel, k, lane))?;
        let bit = self.bit(k % block) % 8;
        let unused = 8 - self.bits;
        let code = (((stored ^ self.flipped_bits()) >> bit) << unused) as i8 >> unused;
        let zero = if self.has_zeros { byte(start + self.scale_bytes() + lane)? as i8 } else { 0 };

        let at = start + lane * self.scale.size_bytes() as i64;
        let half = |at: i64| Some(u16::from_le_bytes([byte(at)?, byte(at + 1)?]));
        let scale = match self.scale {
            DType::F16 => f16::from_bits(half(at)?).to_f32(),
            DType::BF16 => bf16::from_bits(half(at)?).to_f32(),
            _ => f32::from_bits(u32::from(half(at)?) | u32::from(half(at + 2)?) << 16),
        };
        Some((i16::from(code) - i16::from(zero), scale))
    }
}
