//! The error of a request, and its codes in both protocols.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use std::{fmt, time::Duration};
use symshape_runtime::BatchError;

/// Why a request got no results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The request is malformed or breaks the model's contract.
    Invalid(String),
    /// There is no such model, version or page.
    NotFound(String),
    /// The page does not take this method.
    WrongMethod,
    /// The body is compressed.
    Compressed,
    /// The body is larger than this number of bytes.
    TooLarge(usize),
    /// The body did not arrive in this time.
    TooSlow(Duration),
    /// Too many requests are waiting.
    Busy,
    /// The model can't run now.
    Failed(String),
}

impl Refusal {
    /// Shorthand for a malformed request.
    pub fn invalid(message: impl Into<String>) -> Refusal {
        Refusal::Invalid(message.into())
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
            Refusal::NotFound(_) => StatusCode::NOT_FOUND,
            Refusal::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Refusal::Compressed => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Refusal::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Refusal::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Invalid(message) | Refusal::NotFound(message) | Refusal::Failed(message) => {
                f.write_str(message)
            }
            Refusal::WrongMethod => f.write_str("this page does not take the request's method"),
            Refusal::Compressed => f.write_str("compressed bodies are not supported; send the body as it is"),
            Refusal::TooLarge(limit) => write!(f, "the body is larger than the limit of {limit} bytes"),
            Refusal::TooSlow(limit) => write!(f, "the body did not arrive within {limit:?}"),
            Refusal::Busy => f.write_str("too many requests are waiting; try again later"),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = Json(serde_json::json!({ "error": self.to_string() }));
        let mut response = (self.status(), body).into_response();
        if self == Refusal::Busy {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Refusal> for tonic::Status {
    fn from(refusal: Refusal) -> tonic::Status {
        let message = refusal.to_string();
        match refusal {
            Refusal::Invalid(_) | Refusal::Compressed | Refusal::WrongMethod => {
                tonic::Status::invalid_argument(message)
            }
            Refusal::NotFound(_) => tonic::Status::not_found(message),
            Refusal::TooLarge(_) => tonic::Status::out_of_range(message),
            Refusal::TooSlow(_) => tonic::Status::deadline_exceeded(message),
            Refusal::Busy => tonic::Status::resource_exhausted(message),
            Refusal::Failed(_) => tonic::Status::internal(message),
        }
    }
}

impl From<BatchError> for Refusal {
    /// All errors of a running batcher are about the request, except of the system's refusals.
    fn from(error: BatchError) -> Refusal {
        match error {
            BatchError::Open(_) => Refusal::Failed(error.to_string()),
            _ => Refusal::Invalid(error.to_string()),
        }
    }
}
