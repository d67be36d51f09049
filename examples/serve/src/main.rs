//! Serves a compiled model by the Open Inference Protocol, over HTTP and gRPC.
//!
//! Requests of both protocols share the batches of `symshape_runtime::Batcher`: each request waits on a separate thread,
//! which copies its rows to the next batch and takes its results. With `--text`, a decoder is served by OpenAI's
//! interface instead, see `text`. Everything that a client can make large, slow or frequent has a limit, see
//! `server::Limits`.

mod engine;
mod error;
mod grpc;
mod http;
mod metrics;
#[cfg(feature = "onnxruntime")]
mod onnxruntime;
mod options;
mod server;
mod tensor;
mod text;

use clap::Parser;
use engine::Engine;
use metrics::Protocol;
use options::{LogForm, Options};
use server::{Frontend, Server};
use std::{process::ExitCode, sync::Arc};
use symshape_runtime::Model;
use tokio::{net::TcpListener, signal::unix};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let options = Options::parse();
    log(options.log);
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the service can't run");
            ExitCode::FAILURE
        }
    }
}

fn log(form: LogForm) {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match form {
        LogForm::Json => log.json().flatten_event(true).init(),
        LogForm::Text => log.init(),
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    if let Some(folder) = &options.text {
        return text::run(options, folder);
    }
    let model = Model::open(&options.model)?;
    let limits = options.limits(&model);
    let name = options.name.clone().unwrap_or_else(|| model.name().to_owned());
    let engine = engine(model, options)?;
    let server = Arc::new(Server::new(name, engine, limits));

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // One for each request that runs or waits.
        .max_blocking_threads(limits.requests + 1)
        .build()?;
    // Leaving the runtime waits for the calls of clients that have gone.
    runtime.block_on(serve(server, options))
}

/// An engine whose batches are along the first axis of the first input, or ragged batches if the model takes them.
fn engine(model: Model, options: &Options) -> Result<Engine, Failure> {
    if let Some(ragged) = model.ragged() {
        #[cfg(feature = "onnxruntime")]
        if options.onnxruntime.is_some() {
            return Err("--onnxruntime: ONNX Runtime takes no ragged batch".into());
        }
        let symbol = model.symbols()[ragged.rows()].name().to_owned();
        let batches = options.batches(&model, &symbol);
        return Ok(Engine::ragged(model, batches)?);
    }
    let symbol = model.inputs().first().and_then(|input| input.dims().first()).cloned().unwrap_or_default();
    let batches = options.batches(&model, &symbol);
    #[cfg(feature = "onnxruntime")]
    if let Some(file) = &options.onnxruntime {
        let backend = onnxruntime::OnnxRuntime::new(file, &model, batches)?;
        return Ok(Engine::over(model, Box::new(backend), batches.max_rows)?);
    }
    Ok(Engine::new(model, &symbol, batches)?)
}

/// The signals that end the service.
struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: unix::signal(unix::SignalKind::terminate())?,
            interrupt: unix::signal(unix::SignalKind::interrupt())?,
        })
    }

    /// Returns after SIGTERM or SIGINT.
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Serves until SIGTERM or SIGINT.
async fn serve(server: Arc<Server>, options: &Options) -> Result<(), Failure> {
    let http = TcpListener::bind(options.http).await?;
    let grpc = TcpIncoming::bind(options.grpc)?.with_nodelay(Some(true));
    let mut signals = Signals::new()?;
    tracing::info!(
        model = server.frontend.name,
        http = %http.local_addr()?,
        grpc = %grpc.local_addr()?,
        max_body_bytes = server.frontend.limits.body_bytes,
        "serving"
    );

    let close = CancellationToken::new();
    let router = http::router(server.clone());
    let http = tokio::spawn(http::connections::serve(router, http, server.frontend.limits, close.clone()));
    let grpc = tokio::spawn(grpc::serve(server.clone(), grpc, close.clone()));
    signals.wait().await;
    stop(&server.frontend, options, &close, async {
        let (http, grpc) = tokio::join!(http, grpc);
        http?;
        Ok(grpc??)
    })
    .await
}

/// Stops the service: it is not ready from now on, `close` then closes its ports, and `ended` returns after the last
/// request.
async fn stop(
    frontend: &Frontend,
    options: &Options,
    close: &CancellationToken,
    ended: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    tracing::info!("stopping: requests that arrive now are still served");
    frontend.stopping.cancel();
    tokio::time::sleep(options::seconds(options.stop_delay_seconds)).await;
    close.cancel();
    match tokio::time::timeout(options::seconds(options.stop_seconds), ended).await {
        Ok(result) => {
            result?;
            let http = frontend.metrics.answered(Protocol::Http);
            let grpc = options.text.is_none().then(|| frontend.metrics.answered(Protocol::Grpc));
            tracing::info!(http_answered = http, grpc_answered = grpc, "stopped");
        }
        Err(_) => tracing::warn!("stopped; some clients had not taken their results"),
    }
    Ok(())
}
