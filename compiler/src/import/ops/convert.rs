//! Conversion between element types.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        model::{
            storage_type::{Direction, Rounding, StorageType},
            weights,
        },
        node::OnnxNode,
    },
};
use std::fmt;
use symshape_runtime::DType;

ops! {
    BitCast 26 bit_cast,
    Cast 6 cast Elementwise,
    CastLike 15 cast_like ElementwiseInFirst,
}

/// An element type of ONNX.
#[derive(Clone, Copy)]
pub(crate) enum ElementType {
    Plain(DType),
    Widened(StorageType),
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElementType::Plain(dtype) => dtype.fmt(f),
            ElementType::Widened(storage_type) => f.write_str(storage_type.name()),
        }
    }
}

impl ElementType {
    /// The type with ONNX's code `code`.
    pub(crate) fn from_attribute(code: i64) -> Result<ElementType> {
        match StorageType::from_attribute(code) {
            Some(storage_type) => Ok(ElementType::Widened(storage_type)),
            None => weights::dtype(i32::try_from(code).unwrap_or(-1)).map(ElementType::Plain),
        }
    }

    /// The type of input `k`, which must be present.
    pub(crate) fn of_input(g: &Graph, n: &OnnxNode, k: usize) -> Result<ElementType> {
        let value = n.input(k)?;
        Ok(n.storage_type(k).map_or(ElementType::Plain(g.dtype(value)), ElementType::Widened))
    }
}

/// Input `k` in a type that operators can compute with.
pub(crate) fn widened(g: &mut Graph, n: &OnnxNode, k: usize) -> Result<Value> {
    let value = n.input(k)?;
    match n.storage_type(k) {
        Some(storage_type) => storage_type.widened(g, value),
        None => Ok(value),
    }
}

/// `x`, converted to the element type of the node's output.
pub(crate) fn converted(g: &mut Graph, n: &OnnxNode, x: Value, to: ElementType) -> Result<Value> {
    let saturate = n.flag("saturate", true)?;
    let direction = match n.string_or("round_mode", "up")? {
        "up" => Direction::Up,
        "down" => Direction::Down,
        "nearest" => Direction::Nearest,
        other => return Err(Error::invalid(format!("unknown round_mode `{other}`"))),
    };

    match to {
        ElementType::Plain(dtype) => g.cast(dtype, x),
        ElementType::Widened(storage_type) => {
            n.set_output_type(storage_type);
            storage_type.narrowed(g, x, Rounding { saturate, direction })
        }
    }
}

/// The bits of the input, reinterpreted as the element type `to`, which must have the same width.
///
/// Limits: no element types of less than 8 bits.
///
/// `BitCast([1, -2]; to=6) = i32[1065353216, -1073741824]`
fn bit_cast(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let to = n.int("to")?.ok_or_else(|| Error::invalid("BitCast needs the attribute `to`"))?;
    let from = ElementType::of_input(g, n, 0)?;
    let to = ElementType::from_attribute(to)?;
    let packed = |element: ElementType| matches!(element, ElementType::Widened(storage_type) if storage_type.bits() < 8);
    if packed(from) || packed(to) {
        return Err(Error::unsupported("BitCast of elements of less than 8 bits"));
    }

    let dtype = match to {
        ElementType::Plain(dtype) => dtype,
        ElementType::Widened(storage_type) => {
            n.set_output_type(storage_type);
            storage_type.byte_dtype()
        }
    };

    g.bits(dtype, n.input(0)?)
}

/// The input converted to the element type `to`. Floats convert to integers by truncation and saturate. Integers wrap
/// in narrower integers. Conversion to bool is `x != 0`. Floats of 8 and 4 bits round to nearest, ties to even. With
/// `saturate=0`, values out of their range become infinity or NaN.
///
/// `Cast([1.7, -1.7, 3e9]; to=6) = i32[1, -1, 2147483647]`
fn cast(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let to = n.int("to")?.ok_or_else(|| Error::invalid("Cast needs the attribute `to`"))?;
    let x = widened(g, n, 0)?;
    converted(g, n, x, ElementType::from_attribute(to)?)
}

/// The first input converted to the element type of the second, as by `Cast`.
///
/// `CastLike([1.7], i64[0]) = i64[1]`
fn cast_like(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = widened(g, n, 0)?;
    let to = ElementType::of_input(g, n, 1)?;
    converted(g, n, x, to)
}
