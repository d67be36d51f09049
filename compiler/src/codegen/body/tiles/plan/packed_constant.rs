//! Constant right operands, packed at compile time for tiles of bytes, of 16-bit integers and of bf16.

use crate::{
    codegen::{
        microkernel::contraction::{DotOp, PANEL},
        vector::vcode::TILE_ROWS,
    },
    kernel::BufferId,
    scalar::precision,
    tensor::Tensor,
};
use symshape_runtime::DType;

/// The packed form of a constant right operand.
pub(crate) struct PackedConstant {
    /// The constant in panels.
    pub(crate) buffer: BufferId,
    pub(super) dot: DotOp,
    /// Operand elements of a column.
    pub(super) depth: usize,
    /// Operand elements of a run of a column, which is padded by itself. It divides `depth`.
    pub(super) run: usize,
    /// Rows of 32-bit elements of a panel.
    pub(super) rows: usize,
    /// Elements that the last group of bytes of a run shares with the one before. They are zero there.
    pub(super) shared: usize,
    /// The value that packing adds to each element of the lhs: see `ByteForm`.
    pub(super) lhs_shift: i32,
}

impl PackedConstant {
    /// The name of the data. Equal names have equal bytes.
    pub(crate) fn name(&self) -> String {
        let buffer = self.buffer.as_u32();
        match self.dot {
            DotOp::AmxBf16(parts) => {
                let kind = if parts.rhs > 1 { "bf16x3" } else { "bf16" };
                format!("const_{buffer}_{kind}_{}", self.run)
            }
            DotOp::MatrixBf16 => format!("const_{buffer}_bf16_fours"),
            DotOp::Matrix => {
                let kind = if self.lhs_shift == 0 { "eights" } else { "signed_eights" };
                format!("const_{buffer}_{kind}_{}", self.rows)
            }
            DotOp::Vnni | DotOp::BytePairs | DotOp::Signed | DotOp::AmxBytes => {
                let kind = match self.lhs_shift {
                    0 => "quads",
                    1.. => "shifted",
                    _ => "signed",
                };
                match self.shared {
                    0 => format!("const_{buffer}_{kind}_{}", self.rows),
                    _ => format!("const_{buffer}_{kind}_{}_{}", self.rows, self.run),
                }
            }
            DotOp::I16Pairs | DotOp::F32 => format!("const_{buffer}_pairs"),
        }
    }

    /// The form in words, for summaries.
    pub(crate) fn form(&self) -> &'static str {
        match self.dot {
            DotOp::AmxBf16(parts) if parts.rhs > 1 => "panels of two bf16 parts",
            DotOp::AmxBf16(_) => "panels of bf16",
            DotOp::MatrixBf16 => "panels of four bf16",
            DotOp::Vnni | DotOp::BytePairs | DotOp::Signed | DotOp::AmxBytes => "panels of four-byte groups",
            DotOp::Matrix => "panels of eight-byte groups",
            DotOp::I16Pairs | DotOp::F32 => "panels of pairs",
        }
    }

    /// The packed bytes of the constant's value.
    pub(crate) fn bytes(&self, tensor: &Tensor) -> Vec<u8> {
        match self.dot {
            DotOp::AmxBf16(parts) => self.bf16(tensor, parts.rhs > 1),
            DotOp::MatrixBf16 => self.fours_of_bf16(tensor),
            DotOp::Vnni | DotOp::BytePairs | DotOp::Signed | DotOp::Matrix | DotOp::AmxBytes => {
                groups_of_bytes(tensor, self)
            }
            DotOp::I16Pairs | DotOp::F32 => pairs(tensor, self.depth),
        }
    }

    /// Panels of `f32` as panels of bf16: four of a column after another. Columns are padded with zeros.
    fn fours_of_bf16(&self, tensor: &Tensor) -> Vec<u8> {
        let elements = tensor.f32s();
        let panel_elems = (self.depth * PANEL).max(1);
        let mut bytes = Vec::with_capacity(4 * self.rows * PANEL * (elements.len() / panel_elems));
        for panel in elements.chunks_exact(panel_elems) {
            for first in (0..2 * self.rows).step_by(4) {
                for column in 0..PANEL {
                    let four =
                        (first..first + 4).map(|k| panel.get(k * PANEL + column).copied().unwrap_or(0.0));
                    bytes.extend(four.flat_map(|x| high_half(precision::high(x))));
                }
            }
        }
        bytes
    }

    /// Panels of `f32` as panels for tile registers. For each row of a register along the reduction they hold 16 rows
    /// of pairs of high bf16, one pair for each column, and then, with `low`, as many pairs of low ones. Each run of a
    /// column is padded with zeros to whole registers.
    fn bf16(&self, tensor: &Tensor, low: bool) -> Vec<u8> {
        let elements = tensor.f32s();
        let panel_elems = (self.depth * PANEL).max(1);
        let padding = 128 * PANEL * elements.len() / panel_elems;
        let mut bytes = Vec::with_capacity(4 * elements.len() + padding);

        for panel in elements.chunks_exact(panel_elems) {
            for begin in (0..self.depth).step_by(self.run) {
                for first in (0..self.run).step_by(2 * TILE_ROWS) {
                    let element = |k: usize, column: usize| {
                        if k < self.run {
                            panel.get((begin + k) * PANEL + column).copied().unwrap_or(0.0)
                        } else {
                            0.0
                        }
                    };
                    for part in [precision::high, precision::low].into_iter().take(1 + usize::from(low)) {
                        for pair in 0..TILE_ROWS {
                            for column in 0..PANEL {
                                let k = first + 2 * pair;
                                let halves = [k, k + 1].map(|k| high_half(part(element(k, column))));
                                bytes.extend(halves.as_flattened());
                            }
                        }
                    }
                }
            }
        }
        bytes
    }
}

/// The bytes of the bf16 that equals a float.
fn high_half(x: f32) -> [u8; 2] {
    ((x.to_bits() >> 16) as u16).to_le_bytes()
}

/// The elements of a tensor of 8-bit or 16-bit integers.
fn integers(tensor: &Tensor) -> Vec<i16> {
    let bytes = tensor.read();
    match tensor.dtype() {
        DType::I8 => bytes.iter().map(|byte| i16::from(*byte as i8)).collect(),
        DType::U8 => bytes.iter().map(|byte| i16::from(*byte)).collect(),
        _ => bytes.chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]])).collect(),
    }
}

/// Panels of integers as panels of pairs of 16-bit integers. An odd last element is paired with zero.
fn pairs(tensor: &Tensor, depth: usize) -> Vec<u8> {
    let all = integers(tensor);
    let zeros = [0; PANEL];

    let mut bytes = Vec::with_capacity(2 * all.len() + 2 * all.len() / depth.max(1));
    for panel in all.chunks_exact((depth * PANEL).max(1)) {
        for two_rows in panel.chunks(2 * PANEL) {
            let (first, second) = two_rows.split_at(PANEL);
            let second = if second.is_empty() { &zeros } else { second };
            for (x, y) in first.iter().zip(second) {
                bytes.extend(x.to_le_bytes().into_iter().chain(y.to_le_bytes()));
            }
        }
    }

    bytes
}

/// Panels of integers as panels of groups of bytes: those that one multiplication takes of a column. Each panel begins
/// with a row of sums, which cancels the amount that the shift of the lhs adds to the result. As many groups follow as
/// the rows need, the last ones zero.
fn groups_of_bytes(tensor: &Tensor, packed: &PackedConstant) -> Vec<u8> {
    let PackedConstant { dot, depth, run, rows, shared, lhs_shift, .. } = *packed;
    let all = integers(tensor);
    let group = dot.depth_step() as usize;
    let mut bytes = Vec::with_capacity(all.len() + 16 * all.len() / depth.max(1));
    for panel in all.chunks_exact((depth * PANEL).max(1)) {
        let element = |k: usize, column: usize| panel.get(k * PANEL + column).copied().unwrap_or(0);
        for column in 0..PANEL {
            let sum: i32 = (0..depth).map(|k| i32::from(element(k, column))).sum();
            bytes.extend(sum.wrapping_mul(-lhs_shift).to_le_bytes());
        }
        let groups = 4 * rows / group * run / depth.max(1);
        for begin in (0..depth).step_by(run.max(1)) {
            for number in 0..groups {
                let first = number * group;
                let is_shared = shared > 0 && number + 1 == groups;
                // The last group ends where the run does; bytes of the group before are zero.
                let skipped = if is_shared { shared } else { 0 };
                for column in 0..PANEL {
                    bytes.extend((0..group).map(|k| {
                        let k = first + k;
                        let is_inside = k >= first + skipped && k - skipped < run;
                        if is_inside { element(begin + k - skipped, column) as u8 } else { 0 }
                    }));
                }
            }
        }
    }

    bytes
}
