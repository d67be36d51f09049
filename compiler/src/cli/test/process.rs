//! Child processes with a time limit.

use std::{
    io::Read,
    process::{Child, ExitStatus},
    sync::mpsc,
    time::{Duration, Instant},
};

/// How long the outputs of a killed process are read. A process that it started may hold them open.
const REST_OF_OUTPUT: Duration = Duration::from_secs(1);

/// Waits for a process, and kills it when its time limit is over; its exit status is then `None`. Returns the bytes of
/// both outputs too.
pub(super) fn watch(mut child: Child, timeout: Duration) -> (Option<ExitStatus>, Vec<u8>, Vec<u8>) {
    let drain = |pipe: Option<Box<dyn Read + Send>>| {
        let (sender, bytes) = mpsc::channel();
        std::thread::spawn(move || {
            let mut read = Vec::new();
            // On an error, the bytes so far are still used. They are dropped if the time is over.
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut read));
            let _ = sender.send(read);
        });
        bytes
    };
    let out = drain(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let err = drain(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));

    let start = Instant::now();
    let mut pause = Duration::from_micros(500);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if start.elapsed() < timeout => std::thread::sleep(pause),
            Ok(None) | Err(_) => break None,
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let read = |bytes: mpsc::Receiver<Vec<u8>>| match status {
        Some(_) => bytes.recv().unwrap_or_default(),
        None => bytes.recv_timeout(REST_OF_OUTPUT).unwrap_or_default(),
    };
    if status.is_none() {
        // Killing fails if the process has ended in the meantime.
        let _ = child.kill();
        let _ = child.wait();
    }
    (status, read(out), read(err))
}
