//! Ahead-of-time compiler for neural networks whose dimensions are symbols.

pub mod accuracy;
pub mod cli;
pub mod codegen;
pub mod embed;
pub mod emit;
pub mod error;
pub mod external;
pub mod graph;
pub mod import;
pub mod kernel;
pub mod lower;
pub mod offload;
pub mod opt;
pub mod options;
mod parallel;
pub mod partition;
pub mod pipeline;
pub mod plan;
pub mod profile;
pub mod quantise;
pub mod ragged;
mod random;
pub mod scalar;
pub mod schedule;
pub mod state;
pub mod target;
pub mod tensor;
mod text;

pub use error::{At, Error, ErrorKind, Result};
pub use options::{CompileOptions, Microkernels, OversizedParts};
pub use ragged::RaggedRequest;
pub use state::StateRequest;

/// Compiles the snippets of the chapter on custom operators.
#[cfg(doctest)]
#[doc = include_str!("../../docs/custom-ops.md")]
struct CustomOperators;

/// Compiles the snippets of the chapter on offload targets.
#[cfg(doctest)]
#[doc = include_str!("../../docs/targets.md")]
struct OwnTargets;

/// Compiles the snippets of the chapter on partitions.
#[cfg(doctest)]
#[doc = include_str!("../../docs/partitions.md")]
struct Partitions;

/// Compiles the snippet of the chapter on profiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/profiling.md")]
struct Profiles;
