//! A progress bar or spinner on standard error, for tasks that take longer than a second, on a terminal only.

use super::output::print_line;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::IsTerminal,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    time::Duration,
};

/// Shows the present task until it is dropped.
pub(super) struct Progress {
    bar: Option<(ProgressBar, Sender<()>)>,
}

impl Progress {
    /// Begins a task. `steps` is its number of steps, or 0 for a spinner.
    pub(super) fn new(task: impl Into<String>, steps: u64) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress { bar: None };
        }

        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        let style =
            if steps > 0 { "{bar:30} {pos}/{len} {msg} {elapsed}" } else { "{spinner} {msg} {elapsed}" };
        bar.set_style(template(style));
        bar.set_message(task.into());

        let (done, wait) = channel::<()>();
        let shown = bar.clone();
        // If the system has no more threads, nothing is shown.
        let _ = std::thread::Builder::new().spawn(move || {
            if wait.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(Duration::from_millis(100));
            }
        });
        Progress { bar: Some((bar, done)) }
    }

    /// Names the present task.
    pub(super) fn say(&self, task: impl Into<String>) {
        if let Some((bar, _)) = &self.bar {
            bar.set_message(task.into());
        }
    }

    /// Shows that `done` bytes of `total` are read or written.
    pub(super) fn bytes(&self, done: u64, total: u64) {
        let Some((bar, _)) = &self.bar else { return };
        if bar.length() != Some(total) {
            bar.set_style(template("{bar:30} {bytes}/{total_bytes} {msg} {elapsed}"));
            bar.set_length(total);
        }
        bar.set_position(done);
    }

    /// Ends a step.
    pub(super) fn step(&self) {
        if let Some((bar, _)) = &self.bar {
            bar.inc(1);
        }
    }

    /// Prints a result to standard output; the bar moves below it.
    pub(super) fn line(&self, text: &str) {
        match &self.bar {
            Some((bar, _)) => bar.suspend(|| print_line(text)),
            None => print_line(text),
        }
    }
}

fn template(text: &str) -> ProgressStyle {
    ProgressStyle::with_template(text).expect("a valid template")
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((bar, _)) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
