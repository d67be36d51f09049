//! A spinner on standard error for whatever takes longer than a second, on a terminal only.

use super::output::print_line;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::IsTerminal,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    time::Duration,
};

/// Shows what is going on until it is dropped.
pub(super) struct Progress {
    bar: Option<(ProgressBar, Sender<()>)>,
}

impl Progress {
    /// Something has begun; `steps` is the number of steps, or 0.
    pub(super) fn new(what: impl Into<String>, steps: u64) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress { bar: None };
        }
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        let style =
            if steps > 0 { "{bar:30} {pos}/{len} {msg} {elapsed}" } else { "{spinner} {msg} {elapsed}" };
        bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
        bar.set_message(what.into());
        let (done, wait) = channel::<()>();
        let shown = bar.clone();
        std::thread::spawn(move || {
            if wait.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(Duration::from_millis(100));
            }
        });
        Progress { bar: Some((bar, done)) }
    }

    /// Something else is going on now.
    pub(super) fn say(&self, what: impl Into<String>) {
        if let Some((bar, _)) = &self.bar {
            bar.set_message(what.into());
        }
    }

    /// One step is done.
    pub(super) fn step(&self) {
        if let Some((bar, _)) = &self.bar {
            bar.inc(1);
        }
    }

    /// Prints a result without disturbing the display.
    pub(super) fn line(&self, text: &str) {
        match &self.bar {
            Some((bar, _)) => bar.suspend(|| print_line(text)),
            None => print_line(text),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((bar, _)) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
