//! Requests for inference as JSON, with tensors in the text or as binary data after it.

use crate::{
    error::Refusal,
    server::{Server, VERSION},
    tensor::{Elements, Output, Sent, datatype},
};
use axum::{
    http::{HeaderName, header, request::Parts},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, SeqAccess, Visitor},
};
use serde_json::{Value, json, value::RawValue};
use std::fmt;
use symshape_runtime::DType;

/// Bytes of the JSON text in a body that has binary data after it.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

#[derive(Deserialize)]
struct InferRequest<'a> {
    id: Option<String>,
    #[serde(default)]
    parameters: RequestParameters,
    #[serde(borrow)]
    inputs: Vec<RequestInput<'a>>,
    #[serde(default)]
    outputs: Vec<RequestOutput>,
}

#[derive(Deserialize, Default)]
struct RequestParameters {
    /// Whether outputs are binary unless they say otherwise.
    #[serde(default)]
    binary_data_output: bool,
}

#[derive(Deserialize)]
struct RequestInput<'a> {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    #[serde(default)]
    parameters: InputParameters,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct InputParameters {
    binary_data_size: Option<usize>,
}

#[derive(Deserialize)]
struct RequestOutput {
    name: String,
    #[serde(default)]
    parameters: OutputParameters,
}

#[derive(Deserialize, Default)]
struct OutputParameters {
    binary_data: Option<bool>,
}

/// Runs the request of a body.
pub async fn infer(server: &Server, parts: &Parts, body: Bytes) -> Result<Response, Refusal> {
    let (text, binary) = split(parts, body)?;
    let request: InferRequest<'_> = serde_json::from_slice(&text)
        .map_err(|error| Refusal::Invalid(format!("the request is not an inference request: {error}")))?;
    let names: Vec<_> = request.outputs.iter().map(|output| output.name.as_str()).collect();
    let chosen = server.engine.choose_outputs(&names)?;

    let outputs = server.infer(inputs(request.inputs, binary)?).await?;
    let is_binary = |place: usize| {
        let output = request.outputs.get(place);
        output
            .and_then(|output| output.parameters.binary_data)
            .unwrap_or(request.parameters.binary_data_output)
    };
    let mut outputs: Vec<_> = outputs.into_iter().map(Some).collect();
    let chosen = chosen.into_iter().enumerate();
    let outputs = chosen.filter_map(|(place, idx)| Some((outputs[idx].take()?, is_binary(place))));
    respond(server, request.id, outputs)
}

/// The JSON text and the binary data of a body.
fn split(parts: &Parts, mut body: Bytes) -> Result<(Bytes, Bytes), Refusal> {
    let Some(length) = parts.headers.get(JSON_LENGTH) else {
        return Ok((body, Bytes::new()));
    };
    let length = length.to_str().ok().and_then(|length| length.parse::<usize>().ok());
    let length =
        length.ok_or_else(|| Refusal::Invalid(format!("the header {JSON_LENGTH} is not a number")))?;
    if length > body.len() {
        return Err(Refusal::Invalid(format!(
            "the header {JSON_LENGTH} says {length} bytes; the body has {}",
            body.len()
        )));
    }
    let text = body.split_to(length);
    Ok((text, body))
}

/// The inputs, each with its part of the binary data or with the elements of the text.
fn inputs(inputs: Vec<RequestInput<'_>>, mut binary: Bytes) -> Result<Vec<Sent>, Refusal> {
    let mut sent = Vec::with_capacity(inputs.len());
    for RequestInput { name, shape, datatype, parameters, data } in inputs {
        let data = match (parameters.binary_data_size, data) {
            (Some(size), None) if size <= binary.len() => binary.split_to(size),
            (Some(size), None) => {
                let left = binary.len();
                return Err(Refusal::Invalid(format!(
                    "input `{name}` says {size} bytes of binary data; the body has {left} left"
                )));
            }
            (None, Some(data)) => parse(data, &datatype, &name)?,
            _ => {
                return Err(Refusal::Invalid(format!(
                    "input `{name}` needs either `data` or the parameter `binary_data_size`"
                )));
            }
        };
        sent.push(Sent { name, datatype, shape, data });
    }
    if !binary.is_empty() {
        let left = binary.len();
        return Err(Refusal::Invalid(format!(
            "the body has {left} bytes of binary data that no input takes"
        )));
    }
    Ok(sent)
}

fn parse(data: &RawValue, datatype: &str, name: &str) -> Result<Bytes, Refusal> {
    let mut elements = Elements::new(datatype, name)?;
    let mut text = serde_json::Deserializer::from_str(data.get());
    Flatten(&mut elements)
        .deserialize(&mut text)
        .map_err(|error| Refusal::Invalid(format!("`data` of input `{name}`: {error}")))?;
    Ok(elements.into_bytes())
}

/// Reads numbers, flat or in nested arrays.
struct Flatten<'e>(&'e mut Elements);

impl<'de> DeserializeSeed<'de> for Flatten<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Flatten<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("numbers or truth values, flat or in nested arrays")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Flatten(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.0.push_bool(value).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.0.push_int(value.into()).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.0.push_int(value.into()).map_err(E::custom)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.0.push_float(value).map_err(E::custom)
    }
}

/// The response with these outputs; `true` means binary.
fn respond(
    server: &Server,
    id: Option<String>,
    outputs: impl Iterator<Item = (Output, bool)>,
) -> Result<Response, Refusal> {
    let mut binary = Vec::new();
    let mut tensors = Vec::new();
    for (output, is_binary) in outputs {
        let mut tensor = json!({
            "name": output.name,
            "datatype": datatype(output.dtype),
            "shape": output.shape,
        });
        if is_binary {
            tensor["parameters"] = json!({ "binary_data_size": output.data.as_ref().len() });
            binary.push(output.data);
        } else {
            tensor["data"] = numbers(&output)?;
        }
        tensors.push(tensor);
    }

    let mut response = json!({
        "model_name": server.frontend.name,
        "model_version": VERSION,
        "outputs": tensors,
    });
    if let Some(id) = id {
        response["id"] = id.into();
    }
    let mut body = response.to_string().into_bytes();
    if binary.is_empty() {
        return Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response());
    }
    let length = body.len().to_string();
    body.reserve_exact(binary.iter().map(|data| data.as_ref().len()).sum());
    binary.iter().for_each(|data| body.extend_from_slice(data.as_ref()));
    let headers = [(header::CONTENT_TYPE, "application/octet-stream".to_owned()), (JSON_LENGTH, length)];
    Ok((headers, body).into_response())
}

/// The elements of an output as JSON.
fn numbers(output: &Output) -> Result<Value, Refusal> {
    macro_rules! values {
        ($type:ty) => {
            bytemuck::cast_slice::<u8, $type>(output.data.as_ref()).iter().map(|value| json!(value)).collect()
        };
    }
    let values: Vec<Value> = match output.dtype {
        DType::U8 => values!(u8),
        DType::I8 => values!(i8),
        DType::U16 => values!(u16),
        DType::I16 => values!(i16),
        DType::I32 => values!(i32),
        DType::I64 => values!(i64),
        DType::U32 => values!(u32),
        DType::U64 => values!(u64),
        DType::F32 => values!(f32),
        DType::F64 => values!(f64),
        DType::Bool => output.data.as_ref().iter().map(|byte| json!(*byte != 0)).collect(),
        DType::F16 | DType::BF16 => {
            return Err(Refusal::Invalid(format!(
                "output `{}` has elements of {}; request it as binary data",
                output.name,
                datatype(output.dtype)
            )));
        }
    };
    if values.iter().any(Value::is_null) {
        return Err(Refusal::Invalid(format!(
            "output `{}` has elements that are infinite or NaN, which JSON has no text for; \
             request it as binary data",
            output.name
        )));
    }
    Ok(Value::Array(values))
}
