//! The state that all pages share, its limits, and the model of the Open Inference Protocol.

use crate::{
    engine::Engine,
    error::Refusal,
    metrics::Metrics,
    tensor::{Output, Sent},
};
use std::{sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

pub const NAME: &str = "symshape-serve";
/// The only version of a model.
pub const VERSION: &str = "1";
pub const PLATFORM: &str = "symshape";
pub const EXTENSIONS: [&str; 1] = ["binary_tensor_data"];

/// The unit of the memory of bodies.
const BODY_UNIT: usize = 1 << 10;

/// The limits of the service.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest size of a body or message.
    pub body_bytes: usize,
    /// Bytes of all bodies that are in memory; at least one of the largest size.
    pub bodies_bytes: usize,
    /// The longest time that the head, and that the body of a request may take to arrive.
    pub body_time: Duration,
    /// Requests that run or wait at the same time.
    pub requests: usize,
    /// Open connections.
    pub connections: usize,
}

/// The limits on bodies, and the memory of all that are being read.
pub struct Bodies {
    /// Largest size of a body.
    pub bytes: usize,
    /// The longest time that a body may take to arrive.
    pub time: Duration,
    /// One permit for each unit of memory.
    memory: Semaphore,
}

impl Bodies {
    pub fn new(limits: &Limits) -> Bodies {
        let units = limits.bodies_bytes.div_ceil(BODY_UNIT).min(Semaphore::MAX_PERMITS);
        Bodies { bytes: limits.body_bytes, time: limits.body_time, memory: Semaphore::new(units) }
    }

    /// Memory for a body of `bytes` bytes, unless other bodies take too much.
    pub fn reserve(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        self.memory.try_acquire_many(u32::try_from(bytes.div_ceil(BODY_UNIT)).ok()?).ok()
    }
}

/// The part of a service that is the same for tensors and for text.
pub struct Frontend {
    /// The name of the model.
    pub name: String,
    pub metrics: Metrics,
    pub limits: Limits,
    pub bodies: Bodies,
    /// Cancelled when the service begins to stop.
    pub stopping: CancellationToken,
    /// One permit for each request that may run or wait.
    running: Arc<Semaphore>,
}

impl Frontend {
    pub fn new(name: String, metrics: Metrics, limits: Limits) -> Frontend {
        Frontend {
            name,
            metrics,
            limits,
            bodies: Bodies::new(&limits),
            stopping: CancellationToken::new(),
            running: Arc::new(Semaphore::new(limits.requests)),
        }
    }

    /// Whether new requests should be sent here.
    pub fn is_ready(&self) -> bool {
        !self.stopping.is_cancelled()
    }

    /// The permit of a request. Too many at once are refused and don't wait: the client knows best what to do then.
    pub fn begin(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.running.clone().try_acquire_owned().map_err(|_| Refusal::Busy)
    }

    /// Refuses models other than the one that is served.
    pub fn find(&self, name: &str) -> Result<(), Refusal> {
        if name == self.name {
            return Ok(());
        }
        Err(Refusal::NotFound(format!("there is no model `{name}`; this is `{}`", self.name)))
    }
}

/// A model that is served by the Open Inference Protocol.
pub struct Server {
    pub frontend: Arc<Frontend>,
    pub engine: Arc<Engine>,
}

impl Server {
    pub fn new(name: String, engine: Engine, limits: Limits) -> Server {
        let engine = Arc::new(engine);
        let counted = engine.clone();
        let metrics = Metrics::new(move || counted.counts());
        Server { frontend: Arc::new(Frontend::new(name, metrics, limits)), engine }
    }

    /// Refuses models and versions other than the one that is served. An empty version means any.
    pub fn find(&self, name: &str, version: &str) -> Result<(), Refusal> {
        self.frontend.find(name)?;
        if !version.is_empty() && version != VERSION {
            return Err(Refusal::NotFound(format!("`{name}` has no version `{version}`, only `{VERSION}`")));
        }
        Ok(())
    }

    /// Runs a request.
    pub async fn infer(&self, sent: Vec<Sent>) -> Result<Vec<Output>, Refusal> {
        let permit = self.frontend.begin()?;
        let inputs = self.engine.accept(sent)?;
        let engine = self.engine.clone();
        let call = tokio::task::spawn_blocking(move || {
            let result = engine.infer(&inputs);
            // The thread is busy until here, also if the client has left.
            drop(permit);
            result
        });
        call.await.map_err(|error| Refusal::Failed(error.to_string()))?
    }
}
