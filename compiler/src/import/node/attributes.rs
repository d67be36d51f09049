//! Attributes of a node, by name and type.

use crate::{
    error::{Error, Result},
    import::{
        model::{
            proto::{AttributeProto, GraphProto},
            storage_type::StorageType,
            weights,
        },
        node::OnnxNode,
    },
    tensor::Tensor,
};

/// Attribute types by ONNX's codes, as messages name them.
const KINDS: [&str; 9] =
    ["nothing", "a float", "an integer", "a string", "a tensor", "a graph", "floats", "integers", "strings"];
const FLOAT: i32 = 1;
const INT: i32 = 2;
const STRING: i32 = 3;
const TENSOR: i32 = 4;
const GRAPH: i32 = 5;
const FLOATS: i32 = 6;
const INTS: i32 = 7;
const STRINGS: i32 = 8;

impl<'a> OnnxNode<'_, 'a> {
    fn attribute(&self, name: &str, kind: i32) -> Result<Option<&'a AttributeProto>> {
        let Some(attribute) = self.attributes.iter().find(|attribute| attribute.name == name) else {
            return Ok(None);
        };
        attribute.read.set(true);

        // Files of the first IR versions omit the kind.
        if attribute.proto.kind != kind && attribute.proto.kind != 0 {
            let have = KINDS.get(attribute.proto.kind as usize).copied().unwrap_or("something else");
            return Err(Error::invalid(format!(
                "attribute `{name}` is {have}, not {}",
                KINDS[kind as usize]
            )));
        }

        Ok(Some(attribute.proto))
    }

    /// Whether the attribute is present. It does not count as read.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.attributes.iter().any(|attribute| attribute.name == name)
    }

    /// An integer attribute.
    pub(crate) fn int(&self, name: &str) -> Result<Option<i64>> {
        Ok(self.attribute(name, INT)?.map(|proto| proto.i))
    }

    /// An integer attribute with a default.
    pub(crate) fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer attribute that is a boolean: 0 or 1.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.int(name)? {
            None => Ok(default),
            Some(value) => Ok(value != 0),
        }
    }

    /// A float attribute.
    pub(crate) fn float(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.attribute(name, FLOAT)?.map(|proto| proto.f))
    }

    /// A float attribute with a default.
    pub(crate) fn float_or(&self, name: &str, default: f32) -> Result<f64> {
        Ok(f64::from(self.float(name)?.unwrap_or(default)))
    }

    /// A string attribute with a default.
    pub(crate) fn string_or(&self, name: &str, default: &'static str) -> Result<&'a str> {
        match self.attribute(name, STRING)? {
            None => Ok(default),
            Some(proto) => std::str::from_utf8(&proto.s)
                .map_err(|_| Error::invalid(format!("attribute `{name}` is not UTF-8"))),
        }
    }

    /// The bytes of a string attribute.
    pub(crate) fn bytes(&self, name: &str) -> Result<Option<&'a [u8]>> {
        Ok(self.attribute(name, STRING)?.map(|proto| &proto.s[..]))
    }

    /// An attribute that is a list of integers.
    pub(crate) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        Ok(self.attribute(name, INTS)?.map(|proto| proto.ints.clone()))
    }

    /// An attribute that is a list of floats.
    pub(crate) fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        Ok(self.attribute(name, FLOATS)?.map(|proto| proto.floats.clone()))
    }

    /// An attribute that is a list of strings.
    pub(crate) fn strings(&self, name: &str) -> Result<Option<Vec<String>>> {
        let Some(proto) = self.attribute(name, STRINGS)? else { return Ok(None) };
        let text = |bytes: &prost::bytes::Bytes| String::from_utf8(bytes.to_vec());
        let texts: Result<Vec<String>, _> = proto.strings.iter().map(text).collect();
        texts.map(Some).map_err(|_| Error::invalid(format!("attribute `{name}` is not UTF-8")))
    }

    /// A tensor attribute. Its storage type becomes that of the output.
    pub(crate) fn tensor(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(proto) = self.attribute(name, TENSOR)? else { return Ok(None) };
        let proto = proto
            .t
            .as_ref()
            .ok_or_else(|| Error::invalid(format!("attribute `{name}` has no tensor value")))?;
        self.output_type.set(StorageType::from_code(proto.data_type));
        weights::tensor(proto, self.scope.files()).map(Some)
    }

    /// A graph attribute, which must be present.
    pub(crate) fn graph(&self, name: &str) -> Result<&'a GraphProto> {
        let proto = self.attribute(name, GRAPH)?.and_then(|proto| proto.g.as_ref());
        proto.ok_or_else(|| Error::invalid(format!("{} needs the graph attribute `{name}`", self.op)))
    }
}
