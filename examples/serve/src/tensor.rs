//! Tensors of requests and responses: names of element types, and memory that is aligned to elements.

use crate::error::Refusal;
use bytes::Bytes;
use symshape_runtime::{DType, TensorInfo, TensorRef};

/// The protocol's name of an element type.
pub fn datatype(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "FP32",
        DType::U8 => "UINT8",
        DType::I8 => "INT8",
        DType::U16 => "UINT16",
        DType::I16 => "INT16",
        DType::I32 => "INT32",
        DType::I64 => "INT64",
        DType::Bool => "BOOL",
        DType::F16 => "FP16",
        DType::F64 => "FP64",
        DType::U32 => "UINT32",
        DType::U64 => "UINT64",
        DType::BF16 => "BF16",
    }
}

/// The declared shape of a tensor: -1 for every dim that depends on symbols.
pub fn declared_shape(info: &TensorInfo) -> Vec<i64> {
    info.dims().iter().map(|dim| dim.parse().unwrap_or(-1)).collect()
}

/// Memory that is aligned to elements of any type.
#[derive(Clone, Debug)]
pub struct Buffer {
    words: Vec<u64>,
    len: usize,
}

impl Buffer {
    /// `len` bytes of zero.
    pub fn zeroed(len: usize) -> Buffer {
        Buffer { words: vec![0; len.div_ceil(8)], len }
    }

    /// The bytes.
    pub fn as_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

/// An input of a request, as it arrived: nothing about it is checked.
#[derive(Debug)]
pub struct Sent {
    pub name: String,
    pub datatype: String,
    pub shape: Vec<i64>,
    pub data: Bytes,
}

/// An input that has the declared type, and as many bytes as its shape says.
#[derive(Debug)]
pub struct Input {
    dtype: DType,
    shape: Vec<usize>,
    data: Bytes,
}

impl Input {
    /// Checks an input's type and size. Its shape is checked with the contract.
    pub fn new(info: &TensorInfo, sent: Sent) -> Result<Input, Refusal> {
        let Sent { name, shape, data, .. } = sent;
        let dtype = info.dtype();
        if sent.datatype != datatype(dtype) {
            let expected = datatype(dtype);
            return Err(Refusal::Invalid(format!(
                "input `{name}` has the datatype {expected}; got {}",
                sent.datatype
            )));
        }

        let wrong = || Refusal::Invalid(format!("input `{name}` can't have the shape {shape:?}"));
        let dims: Option<Vec<usize>> = shape.iter().map(|dim| usize::try_from(*dim).ok()).collect();
        let dims = dims.ok_or_else(wrong)?;
        let needed = dims.iter().try_fold(dtype.size_bytes(), |size, dim| size.checked_mul(*dim));
        let needed = needed.ok_or_else(wrong)?;
        if needed != data.len() {
            return Err(Refusal::Invalid(format!(
                "input `{name}` of {} and shape {shape:?} has {needed} bytes; got {}",
                sent.datatype,
                data.len()
            )));
        }
        if dtype == DType::Bool && data.iter().any(|byte| *byte > 1) {
            return Err(Refusal::Invalid(format!("input `{name}` has BOOL elements that are not 0 or 1")));
        }
        Ok(Input { dtype, shape: dims, data: aligned(data, dtype) })
    }

    /// The tensor that a call reads.
    pub fn tensor(&self) -> Result<TensorRef<'_>, Refusal> {
        TensorRef::from_bytes(self.dtype, &self.shape, &self.data)
            .map_err(|error| Refusal::invalid(error.to_string()))
    }
}

/// These bytes, copied if they are not aligned to the elements.
fn aligned(data: Bytes, dtype: DType) -> Bytes {
    if (data.as_ptr() as usize).is_multiple_of(dtype.size_bytes()) {
        return data;
    }
    let mut copy = Buffer::zeroed(data.len());
    copy.as_mut().copy_from_slice(&data);
    Bytes::from_owner(copy)
}

/// An output of a call.
#[derive(Debug)]
pub struct Output {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: Buffer,
}

/// Adds numbers of a text format to the memory of a tensor.
#[derive(Debug)]
pub struct Elements {
    dtype: DType,
    bytes: Vec<u8>,
}

impl Elements {
    /// An empty tensor of this type.
    pub fn new(datatype_name: &str, name: &str) -> Result<Elements, Refusal> {
        let dtype = DType::ALL.into_iter().find(|dtype| datatype(*dtype) == datatype_name);
        match dtype {
            Some(dtype @ (DType::F16 | DType::BF16)) => Err(Refusal::Invalid(format!(
                "input `{name}`: elements of {} must be sent as binary data",
                datatype(dtype)
            ))),
            Some(dtype) => Ok(Elements { dtype, bytes: Vec::new() }),
            None => Err(Refusal::Invalid(format!("input `{name}` has the unknown datatype {datatype_name}"))),
        }
    }

    /// The memory of all elements.
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }

    /// Adds an integer.
    pub fn push_int(&mut self, value: i128) -> Result<(), String> {
        macro_rules! push {
            ($type:ty) => {
                <$type>::try_from(value).map(|value| self.bytes.extend(value.to_ne_bytes())).ok()
            };
        }
        let pushed = match self.dtype {
            DType::U8 => push!(u8),
            DType::I8 => push!(i8),
            DType::U16 => push!(u16),
            DType::I16 => push!(i16),
            DType::I32 => push!(i32),
            DType::I64 => push!(i64),
            DType::U32 => push!(u32),
            DType::U64 => push!(u64),
            _ => return self.push_float(value as f64),
        };
        pushed.ok_or_else(|| self.outside(&value))
    }

    /// Adds a float.
    pub fn push_float(&mut self, value: f64) -> Result<(), String> {
        match self.dtype {
            DType::F64 => self.bytes.extend(value.to_ne_bytes()),
            DType::F32 if (value as f32).is_finite() || !value.is_finite() => {
                self.bytes.extend((value as f32).to_ne_bytes());
            }
            _ => return Err(self.outside(&value)),
        }
        Ok(())
    }

    /// Adds a truth value.
    pub fn push_bool(&mut self, value: bool) -> Result<(), String> {
        if self.dtype != DType::Bool {
            return Err(self.outside(&value));
        }
        self.bytes.push(u8::from(value));
        Ok(())
    }

    fn outside(&self, value: &dyn std::fmt::Display) -> String {
        format!("{value} is not a value of {}", datatype(self.dtype))
    }
}
