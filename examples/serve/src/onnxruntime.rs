//! The same service with ONNX Runtime, for comparisons. Batches are made by the same rule: rows of one shape, until the
//! batch is full or its first request has waited for the deadline.

use crate::{
    engine::Backend,
    error::Refusal,
    tensor::{Buffer, Output},
};
use ort::session::{Session, SessionInputValue, SessionInputs};
use ort::value::TensorRef as OrtTensor;
use std::{
    borrow::Cow,
    collections::VecDeque,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use symshape_runtime::{BatchOptions, DType, Model, TensorRef};

/// A model that ONNX Runtime runs.
pub struct OnnxRuntime(Arc<Shared>);

struct Shared {
    model: Model,
    max_rows: usize,
    deadline: Duration,
    jobs: Mutex<VecDeque<Job>>,
    arrived: Condvar,
    batches: AtomicU64,
}

type Results = Result<Vec<Vec<u8>>, String>;

struct Job {
    inputs: Vec<(Vec<usize>, Buffer)>,
    arrived: Instant,
    done: mpsc::SyncSender<Results>,
}

impl Job {
    fn rows(&self) -> usize {
        self.inputs[0].0[0]
    }

    /// Whether the rows of both have one shape.
    fn joins(&self, other: &Job) -> bool {
        self.inputs.iter().zip(&other.inputs).all(|((a, _), (b, _))| a[1..] == b[1..])
    }
}

impl OnnxRuntime {
    /// Opens the model, with one session for each batch that may run at the same time.
    pub fn new(file: &Path, model: &Model, options: BatchOptions) -> Result<OnnxRuntime, crate::Failure> {
        let tensors = model.inputs().iter().chain(model.outputs());
        if let Some(info) =
            tensors.clone().find(|info| !matches!(info.dtype(), DType::F32 | DType::I64 | DType::I32))
        {
            return Err(format!("`{}`: only FP32, INT64 and INT32 are compared", info.name()).into());
        }
        let shared = Arc::new(Shared {
            model: model.clone(),
            max_rows: options.max_rows,
            deadline: options.deadline,
            jobs: Mutex::default(),
            arrived: Condvar::new(),
            batches: AtomicU64::new(0),
        });
        // The library is the one that the variable ORT_DYLIB_PATH names.
        let environment = ort::init().build()?;
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let calls = options.calls.unwrap_or(cores / options.threads.max(1) as usize).max(1);
        for _ in 0..calls {
            let builder = Session::builder(&environment)?;
            let session =
                builder.with_intra_threads(options.threads as usize).map_err(|error| error.to_string())?;
            let session = { session }.commit_from_file(file)?;
            let shared = shared.clone();
            thread::spawn(move || shared.work(session));
        }
        Ok(OnnxRuntime(shared))
    }
}

impl Backend for OnnxRuntime {
    fn run(&self, inputs: &[TensorRef<'_>], outputs: &mut [Output]) -> Result<(), Refusal> {
        let inputs = inputs.iter().map(|input| {
            let mut copy = Buffer::zeroed(input.bytes().len());
            copy.as_mut().copy_from_slice(input.bytes());
            (input.shape().to_vec(), copy)
        });
        let (done, results) = mpsc::sync_channel(1);
        let job = Job { inputs: inputs.collect(), arrived: Instant::now(), done };
        if job.rows() > self.0.max_rows {
            return Err(Refusal::Invalid(format!(
                "got {} rows; a batch has 1 to {}",
                job.rows(),
                self.0.max_rows
            )));
        }
        self.0.jobs().push_back(job);
        self.0.arrived.notify_one();

        let results = results.recv().map_err(|error| Refusal::Failed(error.to_string()))?;
        for (output, result) in outputs.iter_mut().zip(results.map_err(Refusal::Failed)?) {
            output.data.as_mut().copy_from_slice(&result);
        }
        Ok(())
    }

    fn batches(&self) -> u64 {
        self.0.batches.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, mut session: Session) {
        loop {
            let batch = self.next_batch();
            let mut results = self.call(&mut session, &batch);
            self.batches.fetch_add(1, Ordering::Relaxed);
            for (idx, job) in batch.iter().enumerate() {
                // A client that has left takes no results.
                let _ = job.done.send(match &mut results {
                    Ok(all) => Ok(std::mem::take(&mut all[idx])),
                    Err(error) => Err(error.clone()),
                });
            }
        }
    }

    /// The oldest job and those that join it.
    fn next_batch(&self) -> Vec<Job> {
        let mut jobs = self.jobs();
        let first = loop {
            match jobs.pop_front() {
                Some(job) => break job,
                None => jobs = self.arrived.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        };
        let mut rows = first.rows();
        let mut batch = vec![first];
        loop {
            let mut idx = 0;
            while idx < jobs.len() {
                if rows + jobs[idx].rows() <= self.max_rows && batch[0].joins(&jobs[idx]) {
                    rows += jobs[idx].rows();
                    batch.extend(jobs.remove(idx));
                } else {
                    idx += 1;
                }
            }
            let left = self.deadline.saturating_sub(batch[0].arrived.elapsed());
            if rows == self.max_rows || left.is_zero() {
                return batch;
            }
            jobs = self.arrived.wait_timeout(jobs, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Runs a batch; the outputs of each job.
    fn call(&self, session: &mut Session, batch: &[Job]) -> Result<Vec<Vec<Vec<u8>>>, String> {
        let rows: usize = batch.iter().map(Job::rows).sum();
        let inputs: Vec<_> = (0..self.model.inputs().len()).map(|idx| gather(batch, idx, rows)).collect();
        let infos = self.model.inputs().iter();
        let values = infos.zip(&inputs).map(|(info, (shape, data))| {
            let data = data.as_ref();
            let shape = shape.as_slice();
            let value: ort::Result<SessionInputValue<'_>> =
                match info.dtype() {
                    DType::F32 => OrtTensor::from_array_view((shape, bytemuck::cast_slice::<_, f32>(data)))
                        .map(Into::into),
                    DType::I64 => OrtTensor::from_array_view((shape, bytemuck::cast_slice::<_, i64>(data)))
                        .map(Into::into),
                    _ => OrtTensor::from_array_view((shape, bytemuck::cast_slice::<_, i32>(data)))
                        .map(Into::into),
                };
            value.map(|value| (Cow::from(info.name()), value))
        });
        let values = values.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        let values = SessionInputs::<0>::ValueMap(values);
        let outputs = session.run(values).map_err(|error| error.to_string())?;

        let mut results = vec![Vec::new(); batch.len()];
        for info in self.model.outputs() {
            let output = &outputs[info.name()];
            let data: ort::Result<&[u8]> = match info.dtype() {
                DType::F32 => output.try_extract_tensor::<f32>().map(|(_, data)| bytemuck::cast_slice(data)),
                DType::I64 => output.try_extract_tensor::<i64>().map(|(_, data)| bytemuck::cast_slice(data)),
                _ => output.try_extract_tensor::<i32>().map(|(_, data)| bytemuck::cast_slice(data)),
            };
            let mut data = data.map_err(|error| error.to_string())?;
            let row_bytes = data.len() / rows;
            for (job, result) in batch.iter().zip(&mut results) {
                let (own, rest) = data.split_at(job.rows() * row_bytes);
                result.push(own.to_vec());
                data = rest;
            }
        }
        Ok(results)
    }
}

/// The rows of all jobs for input `idx`, one after another.
fn gather(batch: &[Job], idx: usize, rows: usize) -> (Vec<usize>, Buffer) {
    let mut shape = batch[0].inputs[idx].0.clone();
    shape[0] = rows;
    let parts = batch.iter().map(|job| job.inputs[idx].1.as_ref());
    let mut all = Buffer::zeroed(parts.clone().map(<[u8]>::len).sum());
    let mut rest = all.as_mut();
    for part in parts {
        let (own, tail) = rest.split_at_mut(part.len());
        own.copy_from_slice(part);
        rest = tail;
    }
    (shape, all)
}
