//! Constant tensors of a model: decoded from the message, or mapped from files.
//!
//! Elements that are stored in little-endian order in a mapped file are not copied. Elements of storage types
//! ([`StorageType`]) are unpacked to one byte each.

use crate::{
    error::{At, Error, ErrorKind, Result},
    import::model::{
        proto::{StringStringEntryProto, TensorProto},
        storage_type::StorageType,
    },
    scalar::Scalar,
    tensor::{Bytes, Tensor},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    ops::Range,
    path::{Component, Path, PathBuf},
    sync::Arc,
};
use symshape_runtime::{DType, FileMap};

/// The files of a model: its own, if it was read from one, and those with external data.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// The mapped model.
    pub(crate) model: Option<Arc<FileMap>>,
    /// The folder of the model. Without it there is no external data.
    pub(crate) folder: Option<PathBuf>,
    /// The paths of external files, without links, by the locations under which tensors refer to them.
    pub(crate) paths: RefCell<HashMap<String, PathBuf>>,
    /// External files by their paths: several locations may lead to one file.
    pub(crate) external: RefCell<HashMap<PathBuf, ExternalFile>>,
}

/// A mapped file with external data.
#[derive(Debug)]
pub(crate) struct ExternalFile {
    map: Arc<FileMap>,
    /// The parts that tensors use so far, by their begins: their ends, and the tensors.
    parts: BTreeMap<usize, (usize, String)>,
}

/// How the elements of a tensor are stored.
#[derive(Clone, Copy)]
enum Storage {
    Plain(DType),
    /// Packed into bytes, the first element in the lowest bits.
    Widened(StorageType),
}

impl Storage {
    fn dtype(self) -> DType {
        match self {
            Storage::Plain(dtype) => dtype,
            Storage::Widened(storage_type) => storage_type.byte_dtype(),
        }
    }

    /// The size in a file.
    fn bytes(self, elems: usize) -> Option<usize> {
        match self {
            Storage::Plain(dtype) => elems.checked_mul(dtype.size_bytes()),
            Storage::Widened(storage_type) => Some(elems.div_ceil(8 / storage_type.bits() as usize)),
        }
    }
}

/// ONNX's code of strings.
const STRING: i32 = 8;

/// ONNX's name of the element type `code`, for messages.
pub(crate) fn type_name(code: i32) -> String {
    let name = match code {
        STRING => Some("string"),
        14 => Some("complex64"),
        15 => Some("complex128"),
        _ => StorageType::from_code(code).map(StorageType::name),
    };
    name.map_or_else(|| format!("with code {code}"), str::to_string)
}

/// The element type with ONNX's code `code`.
///
/// # Errors
/// The code is unknown, or tensors of this type can't be computed with.
pub(crate) fn dtype(code: i32) -> Result<DType> {
    let known = u32::try_from(code).ok().and_then(DType::from_code);
    known.ok_or_else(|| match code {
        0 => Error::invalid("the element type is missing"),
        STRING => Error::unsupported("element type string: convert strings to numbers outside of the model"),
        _ => Error::unsupported(format!("element type {}", type_name(code))),
    })
}

fn storage(code: i32) -> Result<Storage> {
    match StorageType::from_code(code) {
        Some(storage_type) => Ok(Storage::Widened(storage_type)),
        None => dtype(code).map(Storage::Plain),
    }
}

/// The tensor that `proto` holds or refers to.
///
/// # Errors
/// Its type is not supported, or its shape, its elements and its file contradict each other.
pub(crate) fn tensor(proto: &TensorProto, files: &Files) -> Result<Tensor> {
    decode(proto, files).at(|| match proto.name.as_str() {
        "" => "a tensor".to_string(),
        name => format!("tensor `{name}`"),
    })
}

fn decode(proto: &TensorProto, files: &Files) -> Result<Tensor> {
    let storage = storage(proto.data_type)?;
    if proto.segment.is_some() {
        return Err(Error::unsupported("tensors stored in segments"));
    }

    let shape = shape(&proto.dims)?;
    let elems = shape.iter().try_fold(1_usize, |product, dim| product.checked_mul(*dim));
    let size = elems.and_then(|elems| storage.bytes(elems)).filter(|size| *size <= isize::MAX as usize);
    let (Some(elems), Some(size)) = (elems, size) else {
        return Err(Error::new(ErrorKind::Limit, format!("shape {:?} is too large", proto.dims)));
    };

    let bytes = match (proto.data_location, &proto.raw_data) {
        (0, Some(raw)) if !raw.is_empty() => files.share(raw),
        (0, _) => listed(proto, storage, elems)?,
        (1, _) => files.external(&proto.name, &proto.external_data, size)?,
        (other, _) => return Err(Error::invalid(format!("unknown data_location {other}"))),
    };

    if bytes.len() != size {
        let have = bytes.len();
        let dims = &proto.dims;
        return Err(Error::invalid(format!(
            "shape {dims:?} needs {size} bytes of data, but there are {have}"
        )));
    }

    let bytes = match storage {
        Storage::Plain(DType::Bool) => normal_bools(bytes),
        Storage::Plain(_) => bytes,
        Storage::Widened(storage_type) => unpacked(bytes, elems, storage_type),
    };

    Tensor::new(storage.dtype(), shape, bytes)
        .ok_or_else(|| Error::internal("the number of bytes of a tensor must match its shape"))
}

fn shape(dims: &[i64]) -> Result<Vec<usize>> {
    let dim = |dim: &i64| {
        usize::try_from(*dim).map_err(|_| Error::invalid(format!("negative dim in shape {dims:?}")))
    };
    dims.iter().map(dim).collect()
}

/// The elements in the field that ONNX prescribes for the type, as little-endian bytes.
fn listed(proto: &TensorProto, storage: Storage, elems: usize) -> Result<Bytes> {
    let packed = match storage {
        Storage::Plain(_) => elems,
        Storage::Widened(storage_type) => elems.div_ceil(8 / storage_type.bits() as usize),
    };

    let from_ints = |dtype: DType| -> Vec<u8> {
        let width = dtype.size_bytes();
        proto.int32_data.iter().flat_map(|x| i64::from(*x).to_le_bytes().into_iter().take(width)).collect()
    };

    let (count, bytes): (usize, Vec<u8>) = match storage {
        Storage::Plain(DType::F32) => {
            (proto.float_data.len(), proto.float_data.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        Storage::Plain(DType::F64) => {
            (proto.double_data.len(), proto.double_data.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        Storage::Plain(DType::I64) => {
            (proto.int64_data.len(), proto.int64_data.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        Storage::Plain(dtype @ (DType::U64 | DType::U32)) => {
            let width = dtype.size_bytes();
            let bytes = proto.uint64_data.iter().flat_map(|x| x.to_le_bytes().into_iter().take(width));
            (proto.uint64_data.len(), bytes.collect())
        }
        Storage::Plain(dtype) => (proto.int32_data.len(), from_ints(dtype)),
        Storage::Widened(_) => (proto.int32_data.len(), from_ints(DType::U8)),
    };

    if count != packed {
        return Err(Error::invalid(format!(
            "{count} elements of data where shape {:?} needs {packed}",
            proto.dims
        )));
    }

    Ok(Bytes::Owned(bytes.into()))
}

/// Bools as 0 and 1. All bytes except 0 count as true.
fn normal_bools(bytes: Bytes) -> Bytes {
    if bytes.iter().all(|byte| *byte <= 1) {
        bytes
    } else {
        Bytes::Owned(bytes.iter().map(|byte| u8::from(*byte != 0)).collect())
    }
}

fn unpacked(bytes: Bytes, elems: usize, storage_type: StorageType) -> Bytes {
    let bits = storage_type.bits();
    if bits == 8 {
        return bytes;
    }
    let mask = (1_u8 << bits) - 1;
    let each = bytes.iter().flat_map(|byte| (0..8 / bits).map(move |k| byte >> (k * bits) & mask));
    Bytes::Owned(each.take(elems).map(|bits| storage_type.byte(bits)).collect())
}

impl Files {
    /// Tells the system that the contents of the files are not needed soon, see [`FileMap::release`].
    pub(crate) fn release(&self) {
        let external = self.external.borrow();
        let maps = external.values().map(|file| &file.map).chain(&self.model);
        maps.for_each(|map| map.release(0..map.len()));
    }

    /// `part` of the decoded model, as a part of the mapped file if it is one.
    fn share(&self, part: &[u8]) -> Bytes {
        if let Some(map) = &self.model {
            let start = (part.as_ptr() as usize).wrapping_sub(map.as_ptr() as usize);
            if start.checked_add(part.len()).is_some_and(|end| end <= map.len()) {
                return Bytes::Mapped(map.clone(), start..start + part.len());
            }
        }
        Bytes::Owned(part.into())
    }

    /// `size` bytes of the external file that `entries` name, for the tensor `name`.
    fn external(&self, name: &str, entries: &[StringStringEntryProto], size: usize) -> Result<Bytes> {
        let entry =
            |key: &str| entries.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());

        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => {
                let bad = |_| Error::invalid(format!("external data: `{text}` is not a valid {key}"));
                text.parse::<usize>().map(Some).map_err(bad)
            }
        };

        let location = entry("location").ok_or_else(|| Error::invalid("external data needs a location"))?;
        let offset = number("offset")?.unwrap_or(0);

        if let Some(length) = number("length")?.filter(|length| *length != size) {
            return Err(Error::invalid(format!(
                "external data: length {length} where the shape needs {size}"
            )));
        }
        if size == 0 {
            return Ok(Bytes::Owned(Vec::new().into()));
        }

        let path = self.path_of(location)?;
        let mut files = self.external.borrow_mut();
        let file = match files.entry(path) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let path = entry.key();
                let io =
                    |error: std::io::Error| Error::new(ErrorKind::Io, format!("{}: {error}", path.display()));
                let map = Arc::new(symshape_runtime::map_file(path).map_err(io)?);
                entry.insert(ExternalFile { map, parts: BTreeMap::new() })
            }
        };
        match offset.checked_add(size).filter(|end| *end <= file.map.len()) {
            Some(end) => {
                file.take_part(name, location, offset..end)?;
                Ok(Bytes::Mapped(file.map.clone(), offset..end))
            }
            None => Err(Error::invalid(format!(
                "external data: {size} bytes at offset {offset} leave `{location}`, which has {}",
                file.map.len()
            ))),
        }
    }

    /// The path of the file at `location`, without links.
    fn path_of(&self, location: &str) -> Result<PathBuf> {
        if let Some(path) = self.paths.borrow().get(location) {
            return Ok(path.clone());
        }
        let path = self.resolve(location)?;
        self.paths.borrow_mut().insert(location.to_string(), path.clone());
        Ok(path)
    }

    /// The path of `location`: a regular file in the model's folder, or a link there to a regular file anywhere.
    ///
    /// Caches of downloads store files elsewhere and link to them. A model cannot create links, so whoever filled the
    /// folder has chosen the target. A link to a folder must not leave the model's folder: the model names the file.
    fn resolve(&self, location: &str) -> Result<PathBuf> {
        let Some(folder) = &self.folder else {
            return Err(Error::invalid("external data in a model that was not read from a file"));
        };
        let inside = Path::new(location)
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));

        let leaves = || {
            Error::invalid(format!(
                "external data: `{location}` is outside the model's folder; move the file there, or link to it there"
            ))
        };
        if !inside {
            return Err(leaves());
        }
        let not_a_file = || Error::invalid(format!("external data: `{location}` is not a regular file"));
        if !Path::new(location).components().any(|part| matches!(part, Component::Normal(_))) {
            return Err(not_a_file());
        }

        let path = folder.join(location);
        let io = |path: &Path, error: std::io::Error| {
            Error::new(ErrorKind::Io, format!("external data: {}: {error}", path.display()))
        };
        let folder = folder.canonicalize().map_err(|error| io(folder, error))?;
        let parent = path.parent().unwrap_or(&path);
        if !parent.canonicalize().map_err(|error| io(parent, error))?.starts_with(folder) {
            return Err(leaves());
        }

        // To open a pipe would wait for a writer.
        let target = path.metadata().map_err(|error| io(&path, error))?;
        if target.is_file() {
            path.canonicalize().map_err(|error| io(&path, error))
        } else {
            Err(not_a_file())
        }
    }
}

impl ExternalFile {
    /// Notes that the tensor `name` uses a part of the file. Tensors may share a part, but parts that overlap otherwise
    /// are a sign of wrong offsets.
    fn take_part(&mut self, name: &str, location: &str, part: Range<usize>) -> Result<()> {
        if self.parts.get(&part.start).is_some_and(|(end, _)| *end == part.end) {
            return Ok(());
        }
        // Parts that are taken don't overlap, so only the last one that begins before the end can.
        let last = self.parts.range(..part.end).next_back().filter(|(_, (end, _))| *end > part.start);
        if let Some((begin, (end, other))) = last {
            return Err(Error::invalid(format!(
                "external data: bytes {}..{} of `{location}` overlap bytes {begin}..{end}, which are tensor `{other}`",
                part.start, part.end
            )));
        }
        self.parts.insert(part.start, (part.end, name.to_string()));
        Ok(())
    }
}

/// Parses a tensor of `shape`: one element for all, or a list of all elements.
///
/// Elements are separated by commas, with or without brackets.
///
/// # Errors
/// An element is not valid for the type, or their count is wrong.
pub(crate) fn parse_elements(text: &str, dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let bad = |problem: &str| Error::new(ErrorKind::Usage, format!("`{text}` {problem}"));
    let scalar =
        |word: &str| parse_scalar(word.trim(), dtype).ok_or_else(|| bad(&format!("is not a valid {dtype}")));
    let words: Vec<&str> = text.trim().trim_start_matches('[').trim_end_matches(']').split(',').collect();
    let elems: usize = shape.iter().product();
    let scalars: Vec<Scalar> = match words.as_slice() {
        [one] if elems <= 1 << 20 => vec![scalar(one)?; elems],
        _ => words.iter().map(|word| scalar(word)).collect::<Result<_>>()?,
    };
    Tensor::from_scalars(dtype, shape.to_vec(), &scalars)
        .ok_or_else(|| bad(&format!("has {} elements where shape {shape:?} needs {elems}", scalars.len())))
}

fn parse_scalar(word: &str, dtype: DType) -> Option<Scalar> {
    match (word, dtype) {
        ("true", DType::Bool) => Some(Scalar::bool(true)),
        ("false", DType::Bool) => Some(Scalar::bool(false)),
        (_, DType::U64) => word.parse::<u64>().ok().map(|x| Scalar::from_bits(dtype, x)),
        _ if dtype.is_float() => word.parse::<f64>().ok().map(|x| Scalar::from_f64(dtype, x)),
        _ => {
            let value = word.parse::<i64>().ok()?;
            let scalar = Scalar::from_i64(dtype, value);
            (scalar.as_i64() == value).then_some(scalar)
        }
    }
}
