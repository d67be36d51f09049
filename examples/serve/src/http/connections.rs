//! Accepts connections, with limits on their number and on the time for the head of a request.

use crate::server::Limits;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::CancellationToken;

/// How long the youngest connections may take to send their first request when the service stops.
const FIRST_REQUEST: Duration = Duration::from_millis(250);
/// Pause after a failed accept: the process has no file descriptors left, and some connection must end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves connections until `stop`, and then finishes the requests that have begun.
pub async fn serve(router: Router, listener: TcpListener, limits: Limits, stop: CancellationToken) {
    let connections = Connections {
        router,
        body_time: limits.body_time,
        open: Arc::new(Semaphore::new(limits.connections)),
        graceful: GracefulShutdown::new(),
    };
    while let Some(stream) = tokio::select! {
        stream = connections.accept(&listener) => Some(stream),
        () = stop.cancelled() => None,
    } {
        connections.start(stream.0, stream.1);
    }

    connections.start_waiting(listener);
    tokio::time::sleep(FIRST_REQUEST).await;
    connections.graceful.shutdown().await;
}

struct Connections {
    router: Router,
    body_time: Duration,
    /// One permit for each connection that may be opened.
    open: Arc<Semaphore>,
    graceful: GracefulShutdown,
}

impl Connections {
    /// The next connection. Others wait in the system's queue while too many are open.
    async fn accept(&self, listener: &TcpListener) -> (TcpStream, OwnedSemaphorePermit) {
        let permit = self.open.clone().acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return (stream, permit),
                Err(error) => {
                    tracing::warn!(%error, "can't accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Starts the connections that the system has accepted already: they may have sent a request. Closes the listener.
    fn start_waiting(&self, listener: TcpListener) {
        let Ok(listener) = listener.into_std() else { return };
        while let Ok(permit) = self.open.clone().try_acquire_owned()
            && let Ok((stream, _)) = listener.accept()
        {
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            if let Ok(stream) = stream {
                self.start(stream, permit);
            }
        }
    }

    fn start(&self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        // A refused option costs only latency.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(self.router.clone());
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.body_time);
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let connection = self.graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
            drop(permit);
        });
    }
}
