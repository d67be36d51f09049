//! The model's weights and tables as arrays.

use super::names;
use crate::{
    kernel::{Program, Space},
    scalar::Scalar,
};
use std::fmt::Write;
use symshape_runtime::DType;

/// Characters of a line of numbers.
const LINE: usize = 118;

/// All constant buffers.
pub(super) fn constants(program: &Program) -> String {
    let mut out = String::new();
    for (id, buffer) in &program.buffers {
        let Space::Const(tensor) = &buffer.space else { continue };
        let (ty, name) = (names::memory_type(buffer.dtype), names::buffer(program, id));
        let elems = (0..tensor.elems()).map(|idx| element(tensor.get(idx)));
        let _ = write!(
            out,
            "/* {} */\nstatic const {ty} {name}[{}] = {{",
            names::comment(&buffer.name),
            tensor.elems().max(1)
        );
        let mut room = 0;
        // C has no arrays without elements.
        for text in elems.chain((tensor.elems() == 0).then(|| "0".to_string())) {
            if room < text.len() + 2 {
                out.push_str("\n    ");
                room = LINE;
            }
            room -= text.len() + 2;
            let _ = write!(out, "{text}, ");
        }
        out.truncate(out.trim_end().len());
        out.push_str("\n};\n\n");
    }
    out
}

/// An element as it lies in memory.
fn element(scalar: Scalar) -> String {
    match scalar.dtype() {
        DType::F16 | DType::BF16 => format!("{:#06x}", scalar.bits()),
        _ => literal(scalar),
    }
}

/// A value as a literal of its type, or of `int`, from which it converts.
pub(super) fn literal(scalar: Scalar) -> String {
    let value = scalar.as_f64();
    match scalar.dtype() {
        dtype if dtype.is_float() => match value {
            _ if value.is_nan() => "NAN".into(),
            _ if value == f64::INFINITY => "INFINITY".into(),
            _ if value == f64::NEG_INFINITY => "-INFINITY".into(),
            _ if dtype == DType::F64 => format!("{value:?}"),
            _ => format!("{:?}f", value as f32),
        },
        DType::U64 => format!("{}u", scalar.bits()),
        DType::I64 if scalar.as_i64() == i64::MIN => "INT64_MIN".into(),
        DType::U32 => format!("{}u", scalar.bits()),
        DType::Bool => u8::from(scalar.is_true()).to_string(),
        dtype if !dtype.is_signed_int() => scalar.bits().to_string(),
        _ => scalar.as_i64().to_string(),
    }
}
