//! The pages of every service, and the Open Inference Protocol over HTTP.

pub mod body;
pub mod connections;
mod infer;

use crate::{
    error::Refusal,
    metrics::Protocol,
    server::{EXTENSIONS, Frontend, NAME, PLATFORM, Server, VERSION},
    tensor::{datatype, declared_shape},
};
use axum::{
    Json, Router,
    extract::{Path, Request, State, rejection::PathRejection},
    http::{HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use std::{collections::HashMap, sync::Arc};
use symshape_runtime::{Model, RaggedInfo, SymbolInfo, TensorInfo};

/// The parts of the path by name, or the error of a path that is not text.
type Parts = Result<Path<HashMap<String, String>>, PathRejection>;

/// `pages`, and the pages of every service: its health and its metrics. `refuse` writes the answer to a request for
/// another page.
pub fn with_common_pages(pages: Router, frontend: Arc<Frontend>, refuse: fn(Refusal) -> Response) -> Router {
    let common = Router::new()
        .route("/v2/health/live", get(async || StatusCode::OK))
        .route("/v2/health/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(frontend.clone());
    pages
        .merge(common)
        .fallback(async move |request: Request| {
            refuse(Refusal::NotFound(format!("there is no page {}", request.uri().path())))
        })
        .method_not_allowed_fallback(async move || refuse(Refusal::WrongMethod))
        .layer(middleware::from_fn_with_state(frontend, close_when_stopping))
}

/// All pages of the Open Inference Protocol.
pub fn router(server: Arc<Server>) -> Router {
    let mut router = Router::new().route("/v2", get(server_metadata));
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        router = router
            .route(model, get(model_metadata))
            .route(&format!("{model}/ready"), get(model_ready))
            .route(&format!("{model}/infer"), post(model_infer));
    }
    let frontend = server.frontend.clone();
    with_common_pages(router.with_state(server), frontend, Refusal::into_response)
}

/// While the service stops, each response ends its connection, so that the client goes elsewhere.
async fn close_when_stopping(
    State(frontend): State<Arc<Frontend>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = next.run(request).await;
    if !frontend.is_ready() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn ready(State(frontend): State<Arc<Frontend>>) -> StatusCode {
    if frontend.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn server_metadata() -> Json<Value> {
    Json(json!({ "name": NAME, "version": env!("CARGO_PKG_VERSION"), "extensions": EXTENSIONS }))
}

async fn metrics(State(frontend): State<Arc<Frontend>>) -> impl IntoResponse {
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, format)], frontend.metrics.page())
}

/// Refuses other models and versions than the one of the server.
fn find(server: &Server, parts: Parts) -> Result<(), Refusal> {
    let Path(parts) = parts.map_err(|error| Refusal::Invalid(error.to_string()))?;
    let part = |name| parts.get(name).map_or("", String::as_str);
    server.find(part("model"), part("version"))
}

async fn model_ready(State(server): State<Arc<Server>>, parts: Parts) -> Result<StatusCode, Refusal> {
    find(&server, parts)?;
    Ok(ready(State(server.frontend.clone())).await)
}

async fn model_metadata(State(server): State<Arc<Server>>, parts: Parts) -> Result<Json<Value>, Refusal> {
    find(&server, parts)?;
    let model = server.engine.model();
    let tensors = |infos: &[TensorInfo]| infos.iter().map(tensor_metadata).collect::<Vec<_>>();
    let symbols = model.symbols().iter().map(|symbol| (symbol.name().to_owned(), symbol_metadata(symbol)));
    let symbols: serde_json::Map<_, _> = symbols.collect();
    let mut parameters = json!({
        "symbols": symbols,
        "max_rows": server.engine.max_rows(),
        "max_body_bytes": server.frontend.limits.body_bytes,
        "arena_bytes": model.arena_max(),
    });
    if let Some(ragged) = model.ragged() {
        parameters["ragged"] = ragged_metadata(model, ragged);
    }
    Ok(Json(json!({
        "name": server.frontend.name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": tensors(model.inputs()),
        "outputs": tensors(model.outputs()),
        "parameters": parameters,
    })))
}

fn tensor_metadata(info: &TensorInfo) -> Value {
    json!({
        "name": info.name(),
        "datatype": datatype(info.dtype()),
        "shape": declared_shape(info),
        "parameters": { "dims": info.dims() },
    })
}

/// The smallest and the largest value of a symbol, or all values, and all of it in words.
fn symbol_metadata(symbol: &SymbolInfo) -> Value {
    let words = symbol.to_string();
    if symbol.values().is_empty() {
        json!({ "min": symbol.nth(0), "max": symbol.nth(symbol.count().saturating_sub(1)), "range": words })
    } else {
        json!({ "values": symbol.values(), "range": words })
    }
}

/// The input of offsets, and the range of the length of a sequence.
fn ragged_metadata(model: &Model, ragged: &RaggedInfo) -> Value {
    let mut length = symbol_metadata(ragged.length());
    length["name"] = ragged.length().name().into();
    json!({ "offsets": model.inputs()[ragged.offsets()].name(), "length": length })
}

async fn model_infer(State(server): State<Arc<Server>>, parts: Parts, request: Request) -> Response {
    let timer = server.frontend.metrics.start(Protocol::Http);
    let result = async {
        find(&server, parts)?;
        let (request, bytes, reserved) = body::read(&server.frontend.bodies, request).await?;
        let response = infer::infer(&server, &request, bytes).await;
        drop(reserved);
        response
    };
    let result = result.await;
    timer.finish(result.as_ref().err());
    result.into_response()
}
