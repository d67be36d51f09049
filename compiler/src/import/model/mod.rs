//! Models: their files, messages and contents.

pub(crate) mod dims;
pub(crate) mod domain;
pub(crate) mod options;
pub(crate) mod order;
#[expect(missing_docs, reason = "the fields are those of onnx.proto, under its names")]
pub mod proto;
pub(crate) mod storage_type;
pub(crate) mod types;
pub(crate) mod weights;

use crate::{
    error::{At, Error, ErrorKind, Result},
    tensor::Tensor,
};
use prost::bytes::Bytes;
use proto::{GraphProto, ModelProto, TensorProto};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use symshape_runtime::FileMap;
use weights::Files;

/// A decoded ONNX model. Large tensors stay in the mapped file.
#[derive(Debug)]
pub struct Model {
    pub(crate) proto: ModelProto,
    pub(crate) files: Files,
    pub(crate) name: String,
}

/// Keeps a mapped file alive as long as decoded fields refer to it.
struct Owner(Arc<FileMap>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Model {
    /// Reads the model at `path`.
    ///
    /// # Errors
    /// The file can't be read, or is not an ONNX model.
    pub fn open(path: &Path) -> Result<Model> {
        let place = || path.display().to_string();
        let map = Arc::new(map_file(path)?);
        let proto = proto::decode(Bytes::from_owner(Owner(map.clone()))).at(place)?;
        let folder = path.parent().map(|folder| {
            if folder.as_os_str().is_empty() { Path::new(".").to_path_buf() } else { folder.to_path_buf() }
        });
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        Ok(Model { proto, files: Files { model: Some(map), folder, ..Files::default() }, name })
    }

    /// Decodes a model. It can't have external data.
    ///
    /// # Errors
    /// The bytes are not an ONNX model.
    pub fn from_bytes(bytes: &[u8]) -> Result<Model> {
        let proto: ModelProto = proto::decode(Bytes::copy_from_slice(bytes))?;
        Ok(Model::from(proto))
    }

    /// The files with external data that an import has read so far.
    pub(crate) fn external_files(&self) -> Vec<PathBuf> {
        let Some(folder) = &self.files.folder else { return Vec::new() };
        self.files.paths.borrow().keys().map(|location| folder.join(location)).collect()
    }

    /// Names of the inputs that a call needs, in order.
    pub(crate) fn input_names(&self) -> Vec<&str> {
        self.proto.graph.iter().flat_map(given_inputs).map(|info| info.name.as_str()).collect()
    }
}

impl From<ModelProto> for Model {
    fn from(proto: ModelProto) -> Model {
        Model { proto, files: Files::default(), name: "model".to_string() }
    }
}

pub(crate) fn map_file(path: &Path) -> Result<FileMap> {
    let error = |error| Error::new(ErrorKind::Io, format!("{}: {error}", path.display()));
    symshape_runtime::map_file(path).map_err(error)
}

/// The inputs without an initializer.
pub(crate) fn given_inputs(graph: &GraphProto) -> impl Iterator<Item = &proto::ValueInfoProto> {
    let constants: std::collections::HashSet<&str> =
        graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    graph.input.iter().filter(move |input| !constants.contains(input.name.as_str()))
}

/// Reads a tensor and its name from a `.pb` file.
///
/// # Errors
/// The file can't be read, is not a tensor, or has an unsupported element type.
pub fn read_tensor(path: &Path) -> Result<(String, Tensor)> {
    let place = || path.display().to_string();
    let map = Arc::new(map_file(path)?);
    let proto: TensorProto = proto::decode(Bytes::from_owner(Owner(map.clone()))).at(place)?;
    let folder = path.parent().map(Path::to_path_buf);
    let tensor =
        weights::tensor(&proto, &Files { model: Some(map), folder, ..Files::default() }).at(place)?;
    Ok((proto.name, tensor))
}
