//! The model's weights and tables as arrays. They are millions of lines, so they are declared in front of the code and
//! defined behind it: the code is what people look for, and what compilers report about.

use super::names;
use crate::{
    kernel::{MemorySpace, Program},
    scalar::Scalar,
    tensor::Tensor,
};
use std::fmt::{self, Write};
use symshape_runtime::DType;

/// A line of literals ends once it has this many characters.
const MAX_LINE_CHARS: usize = 100;

/// What the constant buffers hold, and are called in C and by the compiler.
fn arrays(program: &Program) -> impl Iterator<Item = (&Tensor, String, &str)> {
    program.buffers.iter().filter_map(|(id, buffer)| {
        let MemorySpace::Const(tensor) = &buffer.space else { return None };
        let (ty, name) = (names::memory_type(buffer.dtype), names::buffer(program, id));
        // C has no arrays without elements.
        let array = format!("static const {ty} {name}[{}]", tensor.elems().max(1));
        Some((tensor, array, buffer.name.as_str()))
    })
}

/// Declarations of all constant buffers.
pub(super) fn declarations(program: &Program) -> String {
    let line = |(_, array, name)| format!("{array}; /* {} */\n", names::comment(name));
    let mut out: String = arrays(program).map(line).collect();
    if !out.is_empty() {
        out.insert_str(0, "/* Weights and tables, defined at the end of the file. */\n");
        out.push('\n');
    }
    out
}

/// Definitions of all constant buffers.
pub(super) fn definitions(program: &Program) -> String {
    let mut out = String::new();
    for (tensor, array, _) in arrays(program) {
        let _ = write!(out, "\n{array} = {{");
        if tensor.elems() == 0 {
            out.push('0');
        }
        let mut line = MAX_LINE_CHARS;
        for idx in 0..tensor.elems() {
            if line >= MAX_LINE_CHARS {
                out.push_str("\n   ");
                line = 0;
            }
            let before = out.len();
            let _ = write!(out, " {},", Literal(tensor.get(idx)));
            line += out.len() - before;
        }
        out.push_str("\n};\n");
    }
    out
}

/// An element as it lies in memory.
struct Literal(Scalar);

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0.as_f64();
        match self.0.dtype() {
            DType::F16 | DType::BF16 => write!(f, "{:#06x}", self.0.bits()),
            DType::F32 if value.is_finite() => write!(f, "{:?}f", value as f32),
            _ => f.write_str(&literal(self.0)),
        }
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
