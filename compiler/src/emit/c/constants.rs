//! The model's weights and tables as arrays. They may take millions of lines, so they are declared before the code and
//! defined after it: readers and compiler messages refer to the code.

use super::names;
use crate::{
    kernel::{MemorySpace, Program},
    scalar::Scalar,
    tensor::Tensor,
};
use std::fmt::{self, Write};
use symshape_runtime::DType;

/// A line of literals ends when it has at least this many characters.
const MIN_LINE_CHARS: usize = 100;

/// A constant buffer.
struct ConstantArray<'p> {
    tensor: &'p Tensor,
    /// The declaration of the C array, without a semicolon.
    declaration: String,
    /// The name of the buffer in the program.
    buffer_name: &'p str,
}

/// The constant buffers that kernels use.
fn arrays(program: &Program) -> impl Iterator<Item = ConstantArray<'_>> {
    program.used_constants().into_iter().filter_map(|id| {
        let buffer = &program.buffers[id];
        let MemorySpace::Const(tensor) = &buffer.space else { return None };
        let ty = names::memory_type(buffer.dtype);
        let name = names::buffer(program, id);
        // C has no arrays without elements.
        let declaration = format!("static const {ty} {name}[{}]", tensor.elems().max(1));
        Some(ConstantArray { tensor, declaration, buffer_name: &buffer.name })
    })
}

/// Declarations of all constant buffers.
pub(super) fn declarations(program: &Program) -> String {
    let line = |array: ConstantArray<'_>| {
        format!("{}; /* {} */\n", array.declaration, names::comment(array.buffer_name))
    };
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
    for ConstantArray { tensor, declaration, .. } in arrays(program) {
        let _ = write!(out, "\n{declaration} = {{");
        if tensor.elems() == 0 {
            out.push('0');
        }

        let mut line_chars = MIN_LINE_CHARS;
        for idx in 0..tensor.elems() {
            if line_chars >= MIN_LINE_CHARS {
                out.push_str("\n   ");
                line_chars = 0;
            }
            let before = out.len();
            let _ = write!(out, " {},", Literal(tensor.get(idx)));
            line_chars += out.len() - before;
        }
        out.push_str("\n};\n");
    }
    out
}

/// An element in its form in memory, where half-precision floats are their bits.
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

/// A value as a literal of its type, or of `int`, which C converts to its type.
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
