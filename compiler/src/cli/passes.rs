//! `--print-after` and `--time-passes`: the result and the time of each pass.

use super::errors::usage;
use crate::{
    Result,
    pipeline::{self, Ir},
    plan,
};
use std::time::{Duration, Instant};

/// Flags for debugging the compiler.
#[derive(clap::Args)]
pub(super) struct PassFlags {
    /// Print the model to standard error after this pass or stage, such as `views` or `schedule`; can be repeated
    #[arg(long, value_name = "PASS", conflicts_with = "dynamic_memory")]
    print_after: Vec<String>,
    /// Print the time of the import, of each pass and stage, of code generation and of writing to standard error, in
    /// milliseconds
    #[arg(long, conflicts_with = "dynamic_memory")]
    time_passes: bool,
}

/// Observes the pipeline, and prints as the flags request.
pub(super) struct Watch<'a> {
    args: &'a PassFlags,
    times: Vec<(&'static str, Duration)>,
    last: Instant,
}

impl Watch<'_> {
    /// Starts the clock.
    ///
    /// # Errors
    /// `Usage` when a flag names a pass that does not exist.
    pub(super) fn new(args: &PassFlags) -> Result<Watch<'_>> {
        for name in &args.print_after {
            if !pipeline::steps().any(|step| step == name) {
                let known: Vec<&str> = pipeline::steps().collect();
                return Err(usage(format!(
                    "--print-after {name}: there is no such pass; the passes are {}",
                    known.join(", ")
                )));
            }
        }
        Ok(Watch { args, times: Vec::new(), last: Instant::now() })
    }

    /// Whether passes are timed or printed.
    pub(super) fn is_observed(&self) -> bool {
        self.args.time_passes || !self.args.print_after.is_empty()
    }

    /// Records the time since the previous step as that of work outside of the pipeline.
    pub(super) fn lap(&mut self, name: &'static str) {
        self.times.push((name, self.last.elapsed()));
        self.last = Instant::now();
    }

    /// Records the time since the previous pass, and prints the model if a flag names this pass.
    pub(super) fn step(&mut self, name: &'static str, result: Ir<'_>) {
        self.times.push((name, self.last.elapsed()));
        if self.args.print_after.iter().any(|wanted| wanted == name) {
            let text = match result {
                Ir::Graph(graph) => graph.to_string(),
                Ir::Kernels(program) => program.to_string(),
                Ir::Plan(program, plan) => plan::text::text(program, plan),
            };
            eprintln!("; after {name}\n{}", text.trim_end());
        }
        self.last = Instant::now();
    }

    /// Prints the times.
    pub(super) fn finish(self) {
        if !self.args.time_passes {
            return;
        }
        let total: Duration = self.times.iter().map(|(_, time)| *time).sum();
        for (name, time) in self.times.iter().chain([&("total", total)]) {
            eprintln!("{:>10.3} ms  {name}", time.as_secs_f64() * 1e3);
        }
    }
}
