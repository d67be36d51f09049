//! One call: the functions that an artefact exports, and the code between a call and its kernels.

mod batch_blocking;
pub(crate) mod contract;
mod control;
pub(crate) mod dispatch;
mod driver;
pub(crate) mod entries;
mod estimate;
mod external;
mod host;
mod kernels;
pub(crate) mod levels;
mod partitions;
mod scheduler;
mod share;
pub(crate) mod sizes;
