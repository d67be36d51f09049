//! The pages: completions, chats, the list of models, and the service's health.

use super::{
    Service,
    engine::{Event, Job},
    reply::{Reply, Usage},
    request::{self, Form, Generation},
};
use crate::{error::Refusal, http::body, metrics::Protocol};
use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response, Sse, sse},
    routing::{get, post},
};
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};

/// All pages.
pub fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{model}", get(model))
        .route("/v2/health/live", get(async || StatusCode::OK))
        .route("/v2/health/ready", get(ready))
        .route("/metrics", get(metrics))
        .fallback(async |request: Request| {
            Failure(Refusal::NotFound(format!("there is no page {}", request.uri().path())))
        })
        .method_not_allowed_fallback(async || Failure(Refusal::WrongMethod))
        .layer(middleware::from_fn_with_state(service.clone(), close_when_stopping))
        .with_state(service)
}

/// A refusal in the form of this interface.
struct Failure(Refusal);

impl Failure {
    fn json(&self) -> Value {
        let kind = if self.0.status().is_server_error() { "server_error" } else { "invalid_request_error" };
        json!({ "error": { "message": self.0.to_string(), "type": kind, "param": null, "code": null } })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = Json(self.json());
        // The status and the headers are those of the other pages.
        let (parts, _) = self.0.into_response().into_parts();
        let mut response = (parts.status, body).into_response();
        if let Some(seconds) = parts.headers.get(header::RETRY_AFTER) {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.clone());
        }
        response
    }
}

/// While the service stops, each response ends its connection, so that the client goes elsewhere.
async fn close_when_stopping(State(service): State<Arc<Service>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if service.stopping.is_cancelled() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn ready(State(service): State<Arc<Service>>) -> StatusCode {
    if service.stopping.is_cancelled() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}

async fn metrics(State(service): State<Arc<Service>>) -> impl IntoResponse {
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, format)], service.metrics.page())
}

async fn models(State(service): State<Arc<Service>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [model_json(&service)] }))
}

async fn model(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Failure> {
    if name != service.name {
        return Err(Failure(Refusal::NotFound(format!(
            "there is no model `{name}`; this is `{}`",
            service.name
        ))));
    }
    Ok(Json(model_json(&service)))
}

fn model_json(service: &Service) -> Value {
    json!({ "id": service.name, "object": "model", "created": service.started, "owned_by": "symshape" })
}

async fn completions(State(service): State<Arc<Service>>, request: Request) -> Response {
    answer(service, Form::Completion, request).await
}

async fn chat_completions(State(service): State<Arc<Service>>, request: Request) -> Response {
    answer(service, Form::Chat, request).await
}

/// Answers a request, at once or as a stream. A request counts as ended when its first byte can be sent.
async fn answer(service: Arc<Service>, form: Form, request: Request) -> Response {
    let timer = service.metrics.start(Protocol::Http);
    let result = async {
        let (_, bytes, reserved) = body::read(&service.bodies, request).await?;
        let generation = request::parse(&service, form, &bytes)?;
        drop(reserved);
        let reply = Reply::new(form, &service.next_id(), &service.name);
        let prompt = generation.prompt.len();
        let is_streamed = generation.is_streamed;
        let has_usage = generation.has_usage;
        let events = start(&service, generation)?;
        if is_streamed {
            return Ok(stream(reply, prompt, has_usage, events));
        }
        whole(&reply, prompt, events).await
    };
    let result: Result<Response, Refusal> = result.await;
    timer.finish(result.as_ref().err());
    result.unwrap_or_else(|refusal| Failure(refusal).into_response())
}

/// Gives the engine a job, and returns the channel of its text.
fn start(service: &Service, generation: Generation) -> Result<UnboundedReceiver<Event>, Refusal> {
    let permit = service.running.clone().try_acquire_owned().map_err(|_| Refusal::Busy)?;
    let (events, received) = unbounded_channel();
    let Generation { prompt, max_tokens, sampler, stops, .. } = generation;
    let job = Job { prompt, max_tokens, sampler, stops, events, permit };
    service.jobs.send(job).map_err(|_| Refusal::Failed("the engine has ended".into()))?;
    Ok(received)
}

/// The reply when all text is there. A client that leaves drops this future, and with it the channel.
async fn whole(
    reply: &Reply,
    prompt: usize,
    mut events: UnboundedReceiver<Event>,
) -> Result<Response, Refusal> {
    let mut text = String::new();
    while let Some(event) = events.recv().await {
        match event {
            Event::Text(piece) => text += &piece,
            Event::End { reason, tokens } => {
                let usage = Usage { prompt, answer: tokens };
                return Ok(Json(reply.whole(&text, reason, usage)).into_response());
            }
            Event::Failed(refusal) => return Err(refusal),
        }
    }
    Err(Refusal::Failed("the engine has ended".into()))
}

/// The reply as server-sent events, which end with `[DONE]`.
fn stream(reply: Reply, prompt: usize, has_usage: bool, events: UnboundedReceiver<Event>) -> Response {
    let (chunks, received) = unbounded_channel();
    tokio::spawn(forward(reply, prompt, has_usage, events, chunks));
    let chunks = UnboundedReceiverStream::new(received);
    Sse::new(chunks.map(|text| Ok::<_, Infallible>(sse::Event::default().data(text)))).into_response()
}

/// Writes the chunks of a reply until its end, or until the client leaves.
async fn forward(
    reply: Reply,
    prompt: usize,
    has_usage: bool,
    mut events: UnboundedReceiver<Event>,
    chunks: UnboundedSender<String>,
) {
    // Sending fails if the client has left; then nobody needs the rest.
    let send = |value: Value| chunks.send(value.to_string()).is_ok();
    let mut is_read = reply.first().is_none_or(send);
    while is_read && let Some(event) = events.recv().await {
        is_read = match event {
            Event::Text(piece) => send(reply.piece(&piece)),
            Event::End { reason, tokens } => {
                send(reply.end(reason));
                if has_usage {
                    send(reply.usage(Usage { prompt, answer: tokens }));
                }
                chunks.send("[DONE]".into()).ok();
                return;
            }
            Event::Failed(refusal) => {
                send(Failure(refusal).json());
                return;
            }
        };
    }
}
