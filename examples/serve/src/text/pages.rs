//! The pages: completions, chats, and the list of models.

use super::{
    Service,
    engine::{Event, Job},
    reply::{Reply, Usage},
    request::{self, Form, Generation},
};
use crate::{
    error::Refusal,
    http::{body, with_common_pages},
    metrics::Protocol,
};
use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::header,
    response::{IntoResponse, Response, Sse, sse},
    routing::{get, post},
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// All pages.
pub fn router(service: Arc<Service>) -> Router {
    let pages = Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{model}", get(model))
        .with_state(service.clone());
    with_common_pages(pages, service.frontend.clone(), |refusal| Failure(refusal).into_response())
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

async fn models(State(service): State<Arc<Service>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [model_json(&service)] }))
}

async fn model(
    State(service): State<Arc<Service>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Failure> {
    service.frontend.find(&name).map_err(Failure)?;
    Ok(Json(model_json(&service)))
}

fn model_json(service: &Service) -> Value {
    json!({ "id": service.frontend.name, "object": "model", "created": service.started, "owned_by": "symshape" })
}

async fn completions(State(service): State<Arc<Service>>, request: Request) -> Response {
    answer(service, Form::Completion, request).await
}

async fn chat_completions(State(service): State<Arc<Service>>, request: Request) -> Response {
    answer(service, Form::Chat, request).await
}

/// Answers a request, at once or as a stream. A request counts as ended when its first byte can be sent.
async fn answer(service: Arc<Service>, form: Form, request: Request) -> Response {
    let timer = service.frontend.metrics.start(Protocol::Http);
    let result = begin(&service, form, request).await;
    let result = match result {
        Ok(answer) if answer.is_streamed => Ok(answer.streamed()),
        Ok(answer) => answer.whole().await,
        Err(refusal) => Err(refusal),
    };
    timer.finish(result.as_ref().err());
    result.unwrap_or_else(|refusal| Failure(refusal).into_response())
}

/// Reads a request, and gives the engine its job.
async fn begin(service: &Arc<Service>, form: Form, request: Request) -> Result<Answer, Refusal> {
    let (_, bytes, reserved) = body::read(&service.frontend.bodies, request).await?;
    let permit = service.frontend.begin()?;
    let parser = service.clone();
    // A long prompt takes milliseconds, which other requests must not wait for. The thread keeps the permit, also if the
    // client leaves meanwhile.
    let parsed = tokio::task::spawn_blocking(move || (request::parse(&parser, form, &bytes), permit));
    let (generation, permit) = parsed.await.map_err(|error| Refusal::Failed(error.to_string()))?;
    drop(reserved);

    let reply = Reply::new(form, &service.next_id(), &service.frontend.name);
    let Generation { prompt, max_tokens, sampler, stops, is_streamed, has_usage } = generation?;
    let prompt_tokens = prompt.len();
    let (events, received) = unbounded_channel();
    let job = Job { prompt, max_tokens, sampler, stops, events, permit };
    service.jobs.send(job).map_err(|_| Refusal::Failed("the engine has ended".into()))?;
    Ok(Answer { reply, prompt_tokens, is_streamed, has_usage, events: received })
}

/// An answer that the engine decodes. A client that leaves drops it, and with it the channel.
struct Answer {
    reply: Reply,
    prompt_tokens: usize,
    is_streamed: bool,
    has_usage: bool,
    events: UnboundedReceiver<Event>,
}

impl Answer {
    /// The reply when all text is there.
    async fn whole(mut self) -> Result<Response, Refusal> {
        let mut text = String::new();
        while let Some(event) = self.events.recv().await {
            match event {
                Event::Text(piece) => text += &piece,
                Event::End { reason, tokens } => {
                    let usage = Usage { prompt: self.prompt_tokens, answer: tokens };
                    return Ok(Json(self.reply.whole(&text, reason, usage)).into_response());
                }
                Event::Failed(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Failed("the engine has ended".into()))
    }

    /// The reply as server-sent events, which end with `[DONE]`.
    fn streamed(self) -> Response {
        let Answer { reply, prompt_tokens, has_usage, mut events, .. } = self;
        let first = stream::iter(reply.first().map(|chunk| chunk.to_string()));
        let chunks = move |event| match event {
            Event::Text(piece) => vec![reply.piece(&piece).to_string()],
            Event::End { reason, tokens } => {
                let usage = Usage { prompt: prompt_tokens, answer: tokens };
                let mut chunks = vec![reply.end(reason).to_string()];
                chunks.extend(has_usage.then(|| reply.usage(usage).to_string()));
                chunks.push("[DONE]".into());
                chunks
            }
            Event::Failed(refusal) => vec![Failure(refusal).json().to_string()],
        };
        let rest = stream::poll_fn(move |context| events.poll_recv(context));
        let all = first.chain(rest.flat_map(move |event| stream::iter(chunks(event))));
        Sse::new(all.map(|text| Ok::<_, Infallible>(sse::Event::default().data(text)))).into_response()
    }
}
