//! The thread that owns the model: it reads prompts and decodes the tokens of all open answers.

use super::stop::StopText;
use crate::error::Refusal;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
    mpsc::Receiver,
};
use symshape_example_generate::{Error, Sampler, Sequence, Sequences, Text, TextStream};
use tokio::sync::{OwnedSemaphorePermit, mpsc::UnboundedSender};

/// A prompt to answer.
pub struct Job {
    /// At least one token, and fewer than a sequence may have.
    pub prompt: Vec<i64>,
    /// Largest number of tokens of the answer.
    pub max_tokens: usize,
    pub sampler: Sampler,
    /// Strings that end the answer, and are not part of it.
    pub stops: Vec<String>,
    pub events: UnboundedSender<Event>,
    /// The permit of the request.
    #[expect(dead_code, reason = "dropping it when the answer has ended lets another request begin")]
    pub permit: OwnedSemaphorePermit,
}

/// A part of an answer.
#[derive(Debug)]
pub enum Event {
    /// The next piece of text.
    Text(String),
    /// The end, and the number of tokens of the answer.
    End { reason: Reason, tokens: usize },
    /// The model refused a call.
    Failed(Refusal),
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// An end token or a stop string came.
    Stop,
    /// The answer has as many tokens as allowed, or the sequence is full.
    Length,
}

/// Numbers of steps and of decoded tokens.
#[derive(Default)]
pub struct Counts {
    steps: AtomicU64,
    tokens: AtomicU64,
}

impl Counts {
    pub fn read(&self) -> [u64; 2] {
        [self.steps.load(Ordering::Relaxed), self.tokens.load(Ordering::Relaxed)]
    }
}

/// The sequences of the service: some have an open answer, and the others wait for a prompt that begins as they do.
pub struct Engine {
    sequences: Sequences,
    /// Sequences without an answer, in the order of their last use.
    idle: Vec<Sequence>,
    counts: Arc<Counts>,
}

/// An open answer.
struct Open<'t> {
    job: Job,
    sequence: Sequence,
    stream: TextStream<'t>,
    stop: StopText,
    /// Number of tokens of the answer.
    count: usize,
    /// The token that the next step reads; `None` while the prompt is being read.
    next: Option<i64>,
    is_over: bool,
}

impl Engine {
    /// An engine for `count` answers at once.
    pub fn new(sequences: Sequences, count: usize, counts: Arc<Counts>) -> Result<Engine, Error> {
        let idle = (0..count).map(|_| sequences.empty()).collect::<Result<_, _>>()?;
        Ok(Engine { sequences, idle, counts })
    }

    /// Answers all jobs. Returns when all senders of jobs are gone.
    pub fn run(mut self, text: &Text, jobs: &Receiver<Job>) {
        let mut open: Vec<Open<'_>> = Vec::new();
        loop {
            if open.is_empty() {
                match jobs.recv() {
                    Ok(job) => open.push(self.begin(job, text)),
                    Err(_) => return,
                }
            }
            while !self.idle.is_empty()
                && let Ok(job) = jobs.try_recv()
            {
                open.push(self.begin(job, text));
            }

            self.read_prompt(&mut open, text);
            self.step(&mut open, text);
            self.idle.extend(open.extract_if(.., |answer| answer.is_over).map(|answer| answer.sequence));
        }
    }

    /// Gives a job the idle sequence that has the most tokens of its prompt already; of equal ones, the one that was
    /// used first.
    fn begin<'t>(&mut self, mut job: Job, text: &'t Text) -> Open<'t> {
        let shared = |sequence: &Sequence| {
            let pairs = sequence.tokens().iter().zip(&job.prompt);
            // The last token of the prompt must be read for its logits.
            pairs.take_while(|(own, wanted)| own == wanted).count().min(job.prompt.len() - 1)
        };
        // The last one of equal ones is the result of `max_by_key`.
        let best = (0..self.idle.len()).rev().max_by_key(|at| shared(&self.idle[*at]));
        let best = best.expect("a job begins only if a sequence is idle");
        let count = shared(&self.idle[best]);
        let mut sequence = self.idle.remove(best);
        let kept = sequence.keep(count);
        let stop = StopText::new(std::mem::take(&mut job.stops));
        job.prompt.drain(..kept);
        Open { job, sequence, stream: text.stream(), stop, count: 0, next: None, is_over: false }
    }

    /// Reads a part of the first prompt that is not read yet. So a long prompt does not hold up the other answers.
    fn read_prompt(&mut self, open: &mut [Open<'_>], text: &Text) {
        let Some(answer) = open.iter_mut().find(|answer| answer.next.is_none()) else { return };
        if answer.job.events.is_closed() {
            answer.is_over = true;
            return;
        }
        let count = answer.job.prompt.len().min(self.sequences.max_new());
        let part: Vec<i64> = answer.job.prompt.drain(..count).collect();
        let max_tokens = self.sequences.max_tokens();
        match self.sequences.read_all(&mut answer.sequence, &part) {
            Ok(logits) if answer.job.prompt.is_empty() => answer.take(logits, max_tokens, text),
            Ok(_) => {}
            Err(error) => answer.fail(&error),
        }
    }

    /// Decodes a token of each answer whose prompt is read.
    fn step(&mut self, open: &mut [Open<'_>], text: &Text) {
        let mut running: Vec<&mut Open<'_>> =
            open.iter_mut().filter(|answer| answer.next.is_some() && !answer.is_over).collect();
        if running.is_empty() {
            return;
        }

        let mut tokens: Vec<(&mut Sequence, i64)> = Vec::with_capacity(running.len());
        for answer in &mut running {
            let Open { sequence, next: Some(next), .. } = &mut **answer else { continue };
            tokens.push((sequence, *next));
        }
        let result = self.sequences.step(&mut tokens);
        let max_tokens = self.sequences.max_tokens();
        self.counts.steps.fetch_add(1, Ordering::Relaxed);
        self.counts.tokens.fetch_add(running.len() as u64, Ordering::Relaxed);
        for (idx, answer) in running.into_iter().enumerate() {
            match &result {
                Ok(()) => answer.take(self.sequences.logits(idx), max_tokens, text),
                Err(error) => answer.fail(error),
            }
        }
    }
}

impl Open<'_> {
    /// Chooses the next token, and sends the text that it completes.
    fn take(&mut self, logits: &[f32], max_tokens: usize, text: &Text) {
        if self.count == self.job.max_tokens {
            self.end(Reason::Length);
            return;
        }
        let token = self.job.sampler.pick(logits) as i64;
        if text.is_end(token) {
            self.end(Reason::Stop);
            return;
        }

        self.count += 1;
        let piece = match self.stream.push(token) {
            Ok(piece) => piece,
            Err(error) => return self.fail(&error),
        };
        let (piece, is_stop) = self.stop.push(&piece);
        self.send(piece);
        if is_stop {
            self.send_end(Reason::Stop);
            return;
        }
        self.next = Some(token);
        if self.count == self.job.max_tokens || self.sequence.tokens().len() == max_tokens {
            self.end(Reason::Length);
        }
    }

    fn send(&mut self, piece: String) {
        // A client that has gone ends its answer.
        if !piece.is_empty() && self.job.events.send(Event::Text(piece)).is_err() {
            self.is_over = true;
        }
    }

    fn end(&mut self, reason: Reason) {
        let rest = self.stop.finish();
        self.send(rest);
        self.send_end(reason);
    }

    fn send_end(&mut self, reason: Reason) {
        // A client that has gone needs no end.
        let _ = self.job.events.send(Event::End { reason, tokens: self.count });
        self.is_over = true;
    }

    fn fail(&mut self, error: &Error) {
        // As above.
        let _ = self.job.events.send(Event::Failed(Refusal::Failed(error.to_string())));
        self.is_over = true;
    }
}
