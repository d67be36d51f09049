//! Sums of products of bytes for small cores of Arm, see `dots.c`: the functions that the source calls.
//!
//! Other machines compute these sums by loops that C compilers vectorise. Integers are exact, so the bits are equal.

use super::{kernel_printer::KernelPrinter, names::memory_type};
use crate::kernel::Contraction;
use std::fmt::Write;
use symshape::Dim;
use symshape_runtime::DType;

/// Columns of a panel that the functions take.
pub(super) const WIDTH: u32 = 16;

/// Code for Arm that the functions share.
const SHARED: &str = include_str!("dots.c");

/// The function for a row and a panel of these types. The elements of a row may lack a sign; weights without one are
/// stored with it.
pub(super) fn function(row: DType, panel: DType) -> Option<String> {
    (matches!(row, DType::I8 | DType::U8) && panel == DType::I8).then(|| name(row))
}

fn name(row: DType) -> String {
    format!("dots_{row}_i8")
}

/// The functions that `body` calls, with all that they need.
pub(super) fn functions(body: &str) -> String {
    let mut out = String::new();
    for row in [DType::I8, DType::U8] {
        let name = name(row);
        if !body.contains(&format!("{name}(")) {
            continue;
        }
        if out.is_empty() {
            out += SHARED;
        }
        let is_signed = u8::from(row == DType::I8);
        let _ = write!(
            out,
            "static inline void {name}(int32_t *restrict sums, const {} *row, const int8_t *panel, int64_t count) {{\n\
             #ifdef HAS_BYTE_DOTS\n    \
             byte_dots(sums, (const uint8_t *)row, {is_signed}, (const uint8_t *)panel, (int32_t)count);\n\
             #else\n    \
             for (int64_t k = 0; k < count; k++) {{\n        \
             const int32_t x = row[k];\n        \
             for (int j = 0; j < {WIDTH}; j++) {{\n            \
             sums[j] = (int32_t)((uint32_t)sums[j] + (uint32_t)(x * panel[{WIDTH} * k + j]));\n        \
             }}\n    \
             }}\n\
             #endif\n}}\n\n",
            memory_type(row),
        );
    }
    out
}

impl KernelPrinter<'_> {
    /// The index of the first element of a row of bytes along the innermost reduction axis; `None` if the elements are
    /// not adjacent.
    pub(super) fn adjacent_row(&self, contraction: &Contraction) -> Option<Dim> {
        let facts = contraction.facts_inside(&self.facts);
        let (step, origin) = facts.linear_in(&contraction.lhs.index, &contraction.k.last()?.var)?;
        (step.as_i64() == Some(1)).then_some(origin)
    }
}
