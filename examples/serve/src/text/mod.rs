//! Text from a decoder: the pages of OpenAI's interface for completions and chats, and the engine behind them.
//!
//! One thread ([`engine`]) owns the model. It decodes a token of every open answer in each step; answers join and leave
//! between steps. A request becomes a [`engine::Job`], and its text comes back through a channel as it is decoded.

mod chat;
mod engine;
mod fields;
mod pages;
mod reply;
mod request;
mod stop;

use crate::{Failure, Signals, http, metrics::Metrics, options::Options, server::Frontend};
use engine::{Counts, Engine, Job};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{SystemTime, UNIX_EPOCH},
};
use symshape_example_generate::{Sequences, Settings, Text};
use symshape_runtime::{Model, Prefault};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Default upper bound of a body.
const MAX_BODY: usize = 1 << 20;

/// A decoder that is served.
pub struct Service {
    frontend: Arc<Frontend>,
    text: Arc<Text>,
    settings: Settings,
    jobs: mpsc::Sender<Job>,
    /// Largest number of tokens of a prompt and its answer.
    max_tokens: usize,
    /// Number of tokens that the model knows.
    vocabulary: i64,
    /// Seconds since 1970.
    started: u64,
    requests: AtomicU64,
}

impl Service {
    /// A number that no other answer of this process has.
    fn next_id(&self) -> String {
        format!("{:x}-{:x}", self.started, self.requests.fetch_add(1, Ordering::Relaxed))
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Serves the model with the tokenizer and the settings in `folder` until SIGTERM or SIGINT.
pub fn run(options: &Options, folder: &Path) -> Result<(), Failure> {
    let settings = Settings::read(&folder.join("settings.json"))?;
    let text = Arc::new(Text::open(&folder.join("tokenizer.json"), &settings.end)?);
    // The first answer does not wait for the weights.
    let model = Model::open_with(&options.model, Prefault::All, |_, _| ())?;
    let name = options.name.clone().unwrap_or_else(|| model.name().to_owned());
    let sequences = Sequences::new(&model, options.threads)?;
    let max_tokens = sequences.max_tokens();
    let vocabulary = sequences.vocabulary() as i64;

    let counts = Arc::new(Counts::default());
    let engine = Engine::new(sequences, usize::from(options.sequences), counts.clone())?;
    let (jobs, queue) = mpsc::channel();
    let engine_text = text.clone();
    let thread =
        std::thread::Builder::new().name("engine".into()).spawn(move || engine.run(&engine_text, &queue))?;

    let limits = options.limits_of(options.max_body_bytes.unwrap_or(MAX_BODY));
    let metrics = Metrics::new(move || counts.read());
    let service = Arc::new(Service {
        frontend: Arc::new(Frontend::new(name, metrics, limits)),
        text,
        settings,
        jobs,
        max_tokens,
        vocabulary,
        started: now(),
        requests: AtomicU64::new(0),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(service, options))?;
    // Without senders of jobs, the engine ends after the answers that clients still wait for.
    drop(runtime);
    thread.join().map_err(|_| "the engine has failed".into())
}

async fn serve(service: Arc<Service>, options: &Options) -> Result<(), Failure> {
    let frontend = service.frontend.clone();
    let listener = TcpListener::bind(options.http).await?;
    let mut signals = Signals::new()?;
    tracing::info!(
        model = frontend.name,
        http = %listener.local_addr()?,
        sequences = options.sequences,
        max_tokens = service.max_tokens,
        "serving"
    );

    let close = CancellationToken::new();
    let router = pages::router(service);
    let http = tokio::spawn(http::connections::serve(router, listener, frontend.limits, close.clone()));
    signals.wait().await;
    crate::stop(&frontend, options, &close, async { Ok(http.await?) }).await
}
