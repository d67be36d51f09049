//! Reads and writes tensors as NumPy files: `.npy`, and `.npz`, a ZIP archive of `.npy` files.

use super::errors::at_path;
use crate::{
    emit::write_atomically,
    error::{At, Error, Result},
    tensor::{Bytes, Tensor},
};
use half::f16;
use npyz::{DType as NpyType, NpyFile, Order, TypeChar};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufReader, Read},
    path::Path,
};
use symshape_runtime::DType;

/// The tensor in an `.npy` file.
pub(super) fn read(path: &Path) -> Result<Tensor> {
    let file = at_path(File::open(path), path)?;
    decode(BufReader::new(file)).at(|| path.display().to_string())
}

/// The tensors in an `.npz` file, by name.
pub(super) fn read_npz(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let file = at_path(File::open(path), path)?;
    let place = || path.display().to_string();
    let damaged = |error: zip::result::ZipError| Error::invalid(format!("not an .npz file: {error}"));

    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(damaged).at(place)?;
    let mut tensors = BTreeMap::new();
    for idx in 0..archive.len() {
        let entry = archive.by_index(idx).map_err(damaged).at(place)?;
        let name = entry.name().map_err(damaged).at(place)?.trim_end_matches(".npy").to_string();
        let tensor = decode(entry).at(|| format!("{}: `{name}`", path.display()))?;
        tensors.insert(name, tensor);
    }

    Ok(tensors)
}

/// Reads one array. A size in its header is trusted only as far as there is data.
fn decode(reader: impl Read) -> Result<Tensor> {
    let damaged = |error: std::io::Error| Error::invalid(format!("not an .npy file: {error}"));
    let file = NpyFile::new(reader).map_err(damaged)?;
    let NpyType::Plain(element) = file.dtype() else {
        return Err(Error::unsupported("an array of records"));
    };
    let shape: Vec<usize> = file
        .shape()
        .iter()
        .map(|dim| usize::try_from(*dim).map_err(|_| Error::invalid("a dim exceeds the memory")))
        .collect::<Result<_>>()?;

    let fortran = file.order() == Order::Fortran;
    macro_rules! elems {
        ($dtype:ident, $ty:ty) => {{
            let data = file.data::<$ty>().map_err(|error| Error::invalid(error.to_string()))?;
            let elems = data.collect::<std::io::Result<Vec<$ty>>>().map_err(damaged)?;
            let elems = if fortran { row_major(&shape, &elems) } else { elems };
            let bytes: Vec<u8> = elems.iter().flat_map(|elem| elem.to_le_bytes()).collect();
            (DType::$dtype, bytes)
        }};
    }

    let (dtype, bytes) = match (element.type_char(), element.size_field()) {
        (TypeChar::Float, 2) => elems!(F16, f16),
        (TypeChar::Float, 4) => elems!(F32, f32),
        (TypeChar::Float, 8) => elems!(F64, f64),
        (TypeChar::Int, 1) => elems!(I8, i8),
        (TypeChar::Int, 2) => elems!(I16, i16),
        (TypeChar::Int, 4) => elems!(I32, i32),
        (TypeChar::Int, 8) => elems!(I64, i64),
        (TypeChar::Uint, 1) => elems!(U8, u8),
        (TypeChar::Uint, 2) => elems!(U16, u16),
        (TypeChar::Uint, 4) => elems!(U32, u32),
        (TypeChar::Uint, 8) => elems!(U64, u64),
        (TypeChar::Bool, _) => {
            let data = file.data::<bool>().map_err(|error| Error::invalid(error.to_string()))?;
            let elems = data.collect::<std::io::Result<Vec<bool>>>().map_err(damaged)?;
            let elems = if fortran { row_major(&shape, &elems) } else { elems };
            (DType::Bool, elems.into_iter().map(u8::from).collect())
        }
        _ => return Err(Error::unsupported(format!("elements of type {element}"))),
    };

    Tensor::new(dtype, shape, Bytes::Owned(bytes.into()))
        .ok_or_else(|| Error::invalid("the data is cut short"))
}

/// The elements in row-major order, given in column-major order.
fn row_major<T: Copy>(shape: &[usize], elems: &[T]) -> Vec<T> {
    let mut result = Vec::with_capacity(elems.len());
    for position in 0..elems.len() {
        let mut rest = position;
        let mut from = 0;
        for axis in (0..shape.len()).rev() {
            let stride: usize = shape[..axis].iter().product();
            from += rest % shape[axis] * stride;
            rest /= shape[axis];
        }
        result.push(elems[from]);
    }

    result
}

/// NumPy's name of a type in this machine's byte order.
fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::F16 => "<f2",
        // NumPy has no such type; its extensions write this.
        DType::BF16 => "<V2",
        DType::Bool => "|b1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
    }
}

/// Writes an `.npy` file: a header padded to 64 bytes, then the elements.
pub(super) fn write(path: &Path, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<()> {
    let dims: Vec<String> = shape.iter().map(|dim| format!("{dim},")).collect();
    let descr = descr(dtype);
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", dims.join(" "));
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');

    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend_from_slice(&(header.len() as u16).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(bytes);
    write_atomically(path, &file)
}

/// The file name of an output: its name, with `_` for each path separator.
pub(super) fn file_name(output: &str) -> String {
    format!("{}.npy", output.replace(['/', '\\'], "_"))
}
