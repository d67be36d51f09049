//! The Open Inference Protocol over gRPC.

mod connection;
pub mod messages;

mod service {
    #![allow(clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/inference.GRPCInferenceService.rs"));
}

use crate::{
    error::Refusal,
    metrics::Protocol,
    server::Server,
    tensor::{Elements, Output, Sent, datatype, declared_shape},
};
use bytes::Bytes;
use connection::Connection;
use futures_util::TryStreamExt;
use messages::*;
use service::g_r_p_c_inference_service_server::{GRPCInferenceService, GRPCInferenceServiceServer};
use std::{collections::HashMap, sync::Arc, time::Duration};
use symshape_runtime::TensorInfo;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

/// Time between pings of a silent client, and the time that it has to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Calls of one connection that run at the same time.
const MAX_STREAMS: u32 = 64;

/// Serves connections until `stop`, and then finishes the calls that have begun.
pub async fn serve(
    server: Arc<Server>,
    incoming: TcpIncoming,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let limits = server.frontend.limits;
    let service = GRPCInferenceServiceServer::new(Grpc(server))
        .max_decoding_message_size(limits.body_bytes)
        .max_encoding_message_size(usize::MAX);
    tonic::transport::Server::builder()
        .timeout(limits.body_time)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .max_concurrent_streams(MAX_STREAMS)
        // A message is decoded before its method runs, so this bounds the memory of messages.
        .layer(tower::limit::GlobalConcurrencyLimitLayer::new(limits.requests))
        .add_service(service)
        .serve_with_incoming_shutdown(incoming.map_ok(Connection::new), stop.cancelled_owned())
        .await
}

struct Grpc(Arc<Server>);

#[tonic::async_trait]
impl GRPCInferenceService for Grpc {
    async fn server_live(
        &self,
        _: Request<ServerLiveRequest>,
    ) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: self.0.frontend.is_ready() }))
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        let request = request.into_inner();
        self.0.find(&request.name, &request.version)?;
        Ok(Response::new(ModelReadyResponse { ready: self.0.frontend.is_ready() }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        Ok(Response::new(ServerMetadataResponse {
            name: crate::server::NAME.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            extensions: crate::server::EXTENSIONS.map(String::from).into(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let request = request.into_inner();
        self.0.find(&request.name, &request.version)?;
        let model = self.0.engine.model();
        let tensors = |infos: &[TensorInfo]| infos.iter().map(tensor_metadata).collect();
        Ok(Response::new(ModelMetadataResponse {
            name: self.0.frontend.name.clone(),
            versions: vec![crate::server::VERSION.into()],
            platform: crate::server::PLATFORM.into(),
            inputs: tensors(model.inputs()),
            outputs: tensors(model.outputs()),
            properties: properties(&self.0),
        }))
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        let request = request.into_inner();
        let timer = self.0.frontend.metrics.start(Protocol::Grpc);
        let result = self.infer(request).await;
        timer.finish(result.as_ref().err());
        Ok(Response::new(result?))
    }
}

impl Grpc {
    async fn infer(&self, mut request: ModelInferRequest) -> Result<ModelInferResponse, Refusal> {
        self.0.find(&request.model_name, &request.model_version)?;
        let names = request.outputs.iter().map(|output| output.name.as_str()).collect::<Vec<_>>();
        let chosen = self.0.engine.choose_outputs(&names)?;
        let raw = std::mem::take(&mut request.raw_input_contents);
        let inputs = inputs(std::mem::take(&mut request.inputs), raw)?;
        let outputs = self.0.infer(inputs).await?;

        let mut outputs: Vec<_> = outputs.into_iter().map(Some).collect();
        let outputs = chosen.into_iter().filter_map(|idx| outputs[idx].take());
        let (outputs, raw_output_contents) = outputs.map(output).unzip();
        Ok(ModelInferResponse {
            model_name: self.0.frontend.name.clone(),
            model_version: crate::server::VERSION.into(),
            id: request.id,
            parameters: HashMap::new(),
            outputs,
            raw_output_contents,
        })
    }
}

/// The inputs with their memory, which is all raw or all typed.
fn inputs(inputs: Vec<InferInputTensor>, raw: Vec<Bytes>) -> Result<Vec<Sent>, Refusal> {
    if raw.is_empty() {
        return inputs.into_iter().map(typed_input).collect();
    }
    if raw.len() != inputs.len() {
        let (raw, inputs) = (raw.len(), inputs.len());
        return Err(Refusal::Invalid(format!("got {raw} raw contents for {inputs} inputs")));
    }
    let pairs = inputs.into_iter().zip(raw);
    pairs
        .map(|(input, data)| {
            if input.contents.is_some() {
                return Err(Refusal::Invalid(format!(
                    "input `{}` has both typed and raw contents",
                    input.name
                )));
            }
            Ok(Sent { name: input.name, datatype: input.datatype, shape: input.shape, data })
        })
        .collect()
}

fn typed_input(input: InferInputTensor) -> Result<Sent, Refusal> {
    let InferInputTensor { name, datatype, shape, contents, .. } = input;
    let contents = contents.unwrap_or_default();
    let mut elements = Elements::new(&datatype, &name)?;
    let mut push_all = || -> Result<(), String> {
        contents.bools.iter().try_for_each(|value| elements.push_bool(*value))?;
        contents.ints.iter().try_for_each(|value| elements.push_int((*value).into()))?;
        contents.int64s.iter().try_for_each(|value| elements.push_int((*value).into()))?;
        contents.uints.iter().try_for_each(|value| elements.push_int((*value).into()))?;
        contents.uint64s.iter().try_for_each(|value| elements.push_int((*value).into()))?;
        contents.floats.iter().try_for_each(|value| elements.push_float((*value).into()))?;
        contents.doubles.iter().try_for_each(|value| elements.push_float(*value))?;
        contents.strings.first().map_or(Ok(()), |_| Err("got strings".into()))
    };
    push_all().map_err(|reason| Refusal::Invalid(format!("input `{name}`: {reason}")))?;
    Ok(Sent { name, datatype, shape, data: elements.into_bytes() })
}

fn output(output: Output) -> (InferOutputTensor, Bytes) {
    let tensor = InferOutputTensor {
        name: output.name,
        datatype: datatype(output.dtype).into(),
        shape: output.shape.iter().map(|dim| *dim as i64).collect(),
        parameters: HashMap::new(),
        contents: None,
    };
    (tensor, Bytes::from_owner(output.data))
}

fn tensor_metadata(info: &TensorInfo) -> TensorMetadata {
    TensorMetadata {
        name: info.name().into(),
        datatype: datatype(info.dtype()).into(),
        shape: declared_shape(info),
    }
}

/// The symbols with their ranges, and the dims of each tensor over the symbols.
fn properties(server: &Server) -> HashMap<String, String> {
    let model = server.engine.model();
    let symbols =
        model.symbols().iter().map(|symbol| (format!("symbol {}", symbol.name()), symbol.to_string()));
    let tensors = model.inputs().iter().chain(model.outputs());
    let dims = tensors.map(|info| (format!("dims {}", info.name()), info.dims().join(", ")));
    let rows = ("max_rows".to_owned(), server.engine.max_rows().to_string());
    let ragged = model.ragged().into_iter().flat_map(|ragged| {
        let offsets = model.inputs()[ragged.offsets()].name();
        let length = ragged.length();
        [
            ("ragged offsets".to_owned(), offsets.to_owned()),
            (format!("length {}", length.name()), length.to_string()),
        ]
    });
    symbols.chain(dims).chain([rows]).chain(ragged).collect()
}
