//! The command line.

use crate::server::Limits;
use clap::{Parser, ValueEnum};
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use symshape_runtime::{BatchOptions, Model};

/// JSON takes at most so many bytes for each byte of a tensor of floats.
const TEXT_FACTOR: usize = 4;
/// Default upper bound of the rows of a batch.
const MAX_ROWS: usize = 32;
/// The same for a ragged batch, whose rows are the tokens of all sequences.
const MAX_TOKENS: usize = 4096;
/// Bytes of a request besides its tensors.
const REQUEST_HEAD: usize = 64 << 10;
/// Default upper bound of a body.
const MAX_BODY: usize = 256 << 20;

/// Serves a compiled model by the Open Inference Protocol, over HTTP and gRPC.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Options {
    /// The shared object that `symc compile` has made.
    pub model: PathBuf,
    /// The name of the model in requests; the default is its own name.
    #[arg(long)]
    pub name: Option<String>,
    /// The address for HTTP; port 0 takes a free port, which the log names.
    #[arg(long, default_value = "127.0.0.1:8000")]
    pub http: SocketAddr,
    /// The address for gRPC.
    #[arg(long, default_value = "127.0.0.1:8001", conflicts_with = "text")]
    pub grpc: SocketAddr,
    /// Largest number of rows of a batch: of tokens, if the model takes a ragged batch. The default is the largest
    /// number that the model allows, up to 32, or 4,096 tokens.
    #[arg(long, conflicts_with = "text")]
    pub max_rows: Option<usize>,
    /// The longest time that the first request of a batch waits for others, in microseconds.
    #[arg(long, default_value_t = 200, conflicts_with = "text")]
    pub deadline_us: u64,
    /// Threads of a call.
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// Batches that run at the same time; the default depends on the cores.
    #[arg(long, conflicts_with = "text")]
    pub calls: Option<usize>,
    /// Largest number of bytes of arena for a batch.
    #[arg(long, conflicts_with = "text")]
    pub arena_bytes: Option<usize>,
    /// Largest size of a body; the default follows from the model's contract, up to 256 MiB.
    #[arg(long)]
    pub max_body_bytes: Option<usize>,
    /// Bytes of all HTTP bodies in memory; the default is eight of the largest size.
    #[arg(long)]
    pub max_bodies_bytes: Option<usize>,
    /// Seconds that the head, and that the body of a request may take to arrive.
    #[arg(long, default_value_t = 10.0)]
    pub body_seconds: f64,
    /// Requests that run or wait at the same time; others get status 503.
    #[arg(long, default_value_t = 256)]
    pub max_requests: usize,
    /// Open HTTP connections; others wait.
    #[arg(long, default_value_t = 1024)]
    pub max_connections: usize,
    /// Seconds after SIGTERM in which requests are still accepted, while the service says that it is not ready.
    #[arg(long, default_value_t = 1.0)]
    pub stop_delay_seconds: f64,
    /// Seconds that requests have to end when the service stops.
    #[arg(long, default_value_t = 30.0)]
    pub stop_seconds: f64,
    /// The form of the log. The variable RUST_LOG selects its lines, such as `debug` for one line for each request.
    #[arg(long, value_enum, default_value_t = LogForm::Json)]
    pub log: LogForm,
    /// Serves text: a folder with the `settings.json` and the `tokenizer.json` of a decoder, whose keys and values are
    /// state. The pages are those of OpenAI's interface; there is no gRPC, and no batcher with its options.
    #[arg(long, value_name = "FOLDER")]
    pub text: Option<PathBuf>,
    /// Answers that are decoded at once, with --text; others wait.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..), requires = "text")]
    pub sequences: u16,
    /// Runs this ONNX file by ONNX Runtime instead; the shared object gives the contract.
    #[cfg(feature = "onnxruntime")]
    #[arg(long, conflicts_with = "text")]
    pub onnxruntime: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogForm {
    Json,
    Text,
}

impl Options {
    /// The options of the batcher, whose rows are counted by `symbol`.
    pub fn batches(&self, model: &Model, symbol: &str) -> BatchOptions {
        let symbol = model.symbols().iter().find(|info| info.name() == symbol);
        let allowed = symbol.and_then(|symbol| usize::try_from(symbol.hi()).ok());
        let max_rows = if model.ragged().is_some() { MAX_TOKENS } else { MAX_ROWS };
        BatchOptions {
            max_rows: self.max_rows.unwrap_or(allowed.unwrap_or(1).min(max_rows)),
            deadline: Duration::from_micros(self.deadline_us),
            threads: self.threads,
            calls: self.calls,
            arena_bytes: self.arena_bytes,
        }
    }

    /// The limits, of which the size of a body follows from the largest inputs that the contract allows.
    pub fn limits(&self, model: &Model) -> Limits {
        let inputs = model.inputs().iter().map(|input| input.max_bytes());
        let inputs = inputs.fold(0_usize, usize::saturating_add);
        let largest = inputs.saturating_mul(TEXT_FACTOR).saturating_add(REQUEST_HEAD);
        self.limits_of(self.max_body_bytes.unwrap_or(largest.min(MAX_BODY)))
    }

    /// The limits for bodies of this size.
    pub fn limits_of(&self, body_bytes: usize) -> Limits {
        let bodies_bytes = self.max_bodies_bytes.unwrap_or(body_bytes.saturating_mul(8));
        Limits {
            body_bytes,
            bodies_bytes: bodies_bytes.max(body_bytes),
            body_time: seconds(self.body_seconds),
            requests: self.max_requests,
            connections: self.max_connections,
        }
    }
}

/// A time in seconds; zero if the value is negative, NaN or too large.
pub fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}
