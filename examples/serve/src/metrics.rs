//! Metrics in the text format of Prometheus.

use crate::error::Refusal;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, text},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::Gauge,
        histogram::Histogram,
    },
    registry::Registry,
};
use std::{fmt, sync::Arc, time::Instant};

/// Upper bounds of the histogram's buckets, in seconds.
const BUCKETS: [f64; 14] =
    [1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0];

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelValue)]
pub enum Protocol {
    Http,
    Grpc,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Labels {
    protocol: Protocol,
    /// The HTTP status that the outcome has.
    status: u16,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ProtocolLabel {
    protocol: Protocol,
}

/// The metrics of all requests for inference.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    seconds: Family<ProtocolLabel, Histogram, fn() -> Histogram>,
    running: Gauge,
}

impl Metrics {
    /// Metrics; `counts` returns the numbers of batches and of rows that have run.
    pub fn new(counts: impl Fn() -> [u64; 2] + Send + Sync + 'static) -> Metrics {
        let mut registry = Registry::with_prefix("symshape");
        let requests = Family::default();
        let seconds = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let running = Gauge::default();
        registry.register("requests", "Requests for inference that have ended", requests.clone());
        registry.register(
            "request_seconds",
            "Time from the head of a request to its results",
            seconds.clone(),
        );
        registry.register("requests_running", "Requests for inference that have not ended", running.clone());
        registry.register_collector(Box::new(Batches(Arc::new(counts))));
        Metrics { registry, requests, seconds, running }
    }

    /// Counts a request from now on.
    pub fn start(&self, protocol: Protocol) -> Timer<'_> {
        self.running.inc();
        Timer { metrics: self, protocol, start: Instant::now(), status: 499 }
    }

    /// Number of requests that got results.
    pub fn answered(&self, protocol: Protocol) -> u64 {
        self.requests.get_or_create(&Labels { protocol, status: 200 }).get()
    }

    /// The page of all metrics.
    pub fn page(&self) -> String {
        let mut page = String::new();
        text::encode(&mut page, &self.registry).expect("a string can be written");
        page
    }
}

/// A request that runs. A client that leaves before the end counts as status 499.
pub struct Timer<'m> {
    metrics: &'m Metrics,
    protocol: Protocol,
    start: Instant,
    status: u16,
}

impl Timer<'_> {
    /// Ends the request.
    pub fn finish(mut self, refusal: Option<&Refusal>) {
        self.status = refusal.map_or(200, |refusal| refusal.status().as_u16());
        if let Some(refusal) = refusal {
            tracing::info!(protocol = ?self.protocol, status = self.status, %refusal, "request refused");
        }
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let Timer { metrics, protocol, status, .. } = *self;
        let seconds = self.start.elapsed().as_secs_f64();
        metrics.running.dec();
        metrics.requests.get_or_create(&Labels { protocol, status }).inc();
        metrics.seconds.get_or_create(&ProtocolLabel { protocol }).observe(seconds);
        tracing::debug!(?protocol, status, seconds, "request ended");
    }
}

/// Counts of the batcher, read when the page is made.
struct Batches(Arc<dyn Fn() -> [u64; 2] + Send + Sync>);

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Batches")
    }
}

impl Collector for Batches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let [batches, rows] = (self.0)();
        for (name, help, value) in
            [("batches", "Calls of the model", batches), ("rows", "Rows that have run", rows)]
        {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}
