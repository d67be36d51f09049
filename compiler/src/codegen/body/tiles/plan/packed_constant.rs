//! Constant right operands, packed at compile time for tiles of bytes, of 16-bit integers and of bf16.

use crate::{codegen::microkernel::contraction::DotOp, kernel::BufferId};

/// The packed form of a constant right operand.
#[derive(Clone)]
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
}
