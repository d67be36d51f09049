//! External functions that a model calls, as both IRs represent them.
//!
//! A callee is named by the C symbol that an artefact leaves undefined. If a function of this name is registered in
//! this process, compiled code and the interpreters call it. Every call passes the callee's constants.

use crate::{
    error::{Error, Result},
    scalar::Scalar,
    tensor::{Bytes, Tensor},
    text::{Cursor, Name, Quoted, join},
};
use std::fmt;
use symshape_runtime::{
    DType,
    external::{Attribute, AttributeValue, Function},
};

/// An external function and the constants that it receives.
#[derive(Clone, Debug)]
pub struct Callee {
    /// The C symbol.
    pub symbol: String,
    /// The offload target that provides it, see [`crate::offload`]. Empty for a custom operator.
    pub target: String,
    /// The part of the graph that the call was lowered from, if its target provides it. It has no text.
    pub part: PartNumber,
    /// The registered function of this process.
    pub function: Option<Function>,
    /// The named constants that every call passes.
    pub attributes: Vec<Attribute>,
}

/// The number of a part, see [`crate::offload`]. `Debug` doesn't show it, so equal calls of two parts are shared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PartNumber(pub Option<u32>);

impl fmt::Debug for PartNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

/// The keywords of C, which are not allowed as names.
const RESERVED: &[&str] = &[
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "if", "inline", "int", "long", "main", "register", "restrict",
    "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned",
    "void", "volatile", "while",
];

/// The longest name of a function. Linkers accept longer ones.
const MAX_NAME: usize = 255;

/// Checks that `symbol` can name a custom function.
///
/// # Errors
/// It is not a C identifier, or it is reserved by C or symshape.
pub fn check_symbol(symbol: &str) -> Result<()> {
    let is_identifier = symbol.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && symbol.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_reserved =
        symbol.starts_with("symshape_") || symbol.starts_with("__") || RESERVED.contains(&symbol);
    if is_identifier && !is_reserved && symbol.len() <= MAX_NAME {
        Ok(())
    } else {
        let message =
            format!("`{symbol}` cannot name a C function: it is not an identifier, or it is reserved");
        Err(Error::invalid(message))
    }
}

impl Callee {
    /// The function of this C name, without a target, constants or a registered function.
    pub fn new(symbol: impl Into<String>) -> Callee {
        Callee {
            symbol: symbol.into(),
            target: String::new(),
            part: PartNumber::default(),
            function: None,
            attributes: Vec::new(),
        }
    }

    /// The function's results on these operands, at these shapes.
    ///
    /// # Errors
    /// No function is registered, or it fails.
    pub fn call(
        &self,
        operands: &[Tensor],
        results: &[(DType, Vec<usize>)],
        scratch_bytes: usize,
    ) -> Result<Vec<Tensor>> {
        let Some(function) = &self.function else { return Err(self.unregistered()) };
        let wide = |shape: &[usize]| shape.iter().map(|dim| *dim as i64).collect::<Vec<i64>>();
        let shapes: Vec<Vec<i64>> = operands.iter().map(|tensor| wide(tensor.shape())).collect();
        let inputs: Vec<(DType, &[i64], &[u8])> = operands
            .iter()
            .zip(&shapes)
            .map(|(tensor, shape)| (tensor.dtype(), shape.as_slice(), tensor.bytes()))
            .collect();

        let shapes: Vec<Vec<i64>> = results.iter().map(|(_, shape)| wide(shape)).collect();
        let outputs: Vec<(DType, &[i64])> =
            results.iter().zip(&shapes).map(|((dtype, _), shape)| (*dtype, shape.as_slice())).collect();

        let bytes = function
            .call(&inputs, &outputs, &self.attributes, scratch_bytes)
            .map_err(|code| Error::invalid(format!("{} fails with code {code}", self.symbol)))?;
        let tensor = |((dtype, shape), bytes): (&(DType, Vec<usize>), Vec<u8>)| {
            Tensor::new(*dtype, shape.clone(), Bytes::Owned(bytes.into()))
                .ok_or_else(|| Error::internal("a result has another size than its shape"))
        };
        results.iter().zip(bytes).map(tensor).collect()
    }

    /// The error of a call in this process without a registered function.
    pub fn unregistered(&self) -> Error {
        Error::unsupported(format!(
            "the external function {} is not registered in this process (use Custom::function, or --link with a \
             library that exports it)",
            self.symbol
        ))
    }
}

/// Prints the target in brackets, if there is one, the symbol, and the constants in braces: `[npu] npu_run {"k" = ints
/// [3]}`.
impl fmt::Display for Callee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.target.is_empty() {
            write!(f, "[{}] ", Name(&self.target))?;
        }

        f.write_str(&self.symbol)?;
        if self.attributes.is_empty() {
            return Ok(());
        }

        f.write_str(" {")?;
        for (idx, Attribute { name, value }) in self.attributes.iter().enumerate() {
            write!(f, "{}{} = ", if idx > 0 { ", " } else { "" }, Quoted(name))?;
            match value {
                AttributeValue::Ints(values) => write!(f, "ints [{}]", join(values))?,
                AttributeValue::Floats(values) => {
                    write!(f, "floats [{}]", join(values.iter().map(|value| Scalar::f32(*value))))?;
                }
                AttributeValue::Bytes(values) => write!(f, "bytes [{}]", join(values))?,
            }
        }

        f.write_str("}")
    }
}

/// Parses the output of `Display`. The registered function has no text.
pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Callee> {
    let mut target = String::new();
    if cursor.eat("[") {
        target = cursor.name()?;
        cursor.expect("]")?;
    }

    let symbol = cursor.word().to_string();
    let mut attributes = Vec::new();
    if cursor.eat("{") {
        while !cursor.eat("}") {
            if !attributes.is_empty() {
                cursor.expect(",")?;
            }
            attributes.push(attribute(cursor)?);
        }
    }

    Ok(Callee { target, attributes, ..Callee::new(symbol) })
}

fn attribute(cursor: &mut Cursor<'_>) -> Result<Attribute> {
    let name = cursor.string()?;
    if name.contains('\0') {
        return Err(cursor.error("a zero byte in a name"));
    }
    cursor.expect("=")?;
    let kind = cursor.parsed("`ints`, `floats` or `bytes`", |word| {
        [("ints", DType::I64), ("floats", DType::F32), ("bytes", DType::U8)]
            .into_iter()
            .find_map(|(name, dtype)| (name == word).then_some(dtype))
    })?;

    cursor.expect("[")?;
    let mut values = Vec::new();
    while !cursor.eat("]") {
        if !values.is_empty() {
            cursor.expect(",")?;
        }
        let text = cursor.until(&[",", "]", " "]);
        let value = Scalar::parse(kind, text);
        values.push(value.ok_or_else(|| cursor.error(format!("`{text}` is not of type {kind}")))?);
    }

    let value = match kind {
        DType::I64 => AttributeValue::Ints(values.iter().map(|value| value.as_i64()).collect()),
        DType::F32 => AttributeValue::Floats(values.iter().map(|value| value.as_f64() as f32).collect()),
        _ => AttributeValue::Bytes(values.iter().map(|value| value.as_i64() as u8).collect()),
    };
    Ok(Attribute { name, value })
}
