//! How a call is spread over threads: today always serial.

use crate::abi::Exec;

/// Runs everything on the calling thread.
pub(crate) const SERIAL: Exec =
    Exec { host: core::ptr::null_mut(), threads: 1, parallel_for: None, error: core::ptr::null_mut() };
