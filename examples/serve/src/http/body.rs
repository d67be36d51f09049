//! Reads the body of a request within the limits of size, of time, and of the memory of all bodies.

use crate::{error::Refusal, server::Bodies};
use axum::{
    body::Body,
    extract::Request,
    http::{header, request::Parts},
};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use std::time::Duration;
use tokio::{sync::SemaphorePermit, time::timeout};

/// How long the rest of a refused body is read. A client that still sends would lose the answer if the connection ended.
const DISCARD: Duration = Duration::from_secs(2);

/// The head and the body of a request, and the share of the memory of all bodies that it keeps.
pub async fn read(bodies: &Bodies, request: Request) -> Result<(Parts, Bytes, SemaphorePermit<'_>), Refusal> {
    let (parts, body) = request.into_parts();
    match accept(bodies, &parts, &body) {
        Ok((limit, reserved)) => {
            let time = bodies.time;
            let body = timeout(time, Limited::new(body, limit).collect()).await;
            let body = body.map_err(|_| Refusal::TooSlow(time))?;
            let body = body.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    Refusal::TooLarge(limit)
                } else {
                    Refusal::Invalid(format!("the body is incomplete: {error}"))
                }
            })?;
            Ok((parts, body.to_bytes(), reserved))
        }
        Err(refusal) => {
            tokio::spawn(timeout(DISCARD, discard(body)));
            Err(refusal)
        }
    }
}

/// The limit of this body, and its share of the memory; a body that does not tell its size takes the largest share.
fn accept<'b>(
    bodies: &'b Bodies,
    parts: &Parts,
    body: &Body,
) -> Result<(usize, SemaphorePermit<'b>), Refusal> {
    let encoding = parts.headers.get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| encoding != "identity") {
        return Err(Refusal::Compressed);
    }
    let limit = bodies.bytes;
    let told = body.size_hint().exact();
    if told.is_some_and(|told| told > limit as u64) {
        return Err(Refusal::TooLarge(limit));
    }
    let size = told.map_or(limit, |told| told as usize);
    let reserved = bodies.reserve(size).ok_or(Refusal::Busy)?;
    Ok((limit, reserved))
}

async fn discard(mut body: Body) {
    while let Some(Ok(frame)) = body.frame().await {
        drop(frame);
    }
}
