//! Calls compiled symshape models: contract check, arena, contexts, loader.
//!
//! A [`Model`] is a compiled network: code, weights and the contract of its symbols. It is immutable, `Send + Sync`
//! and cheap to clone. A [`Context`] is the state that one thread needs to call it. It has the arena, which it
//! reserves once at the proven upper bound; the operating system commits only the pages that are touched.
//! A call checks the whole contract before it stores anything, and neither allocates, locks nor enters the kernel.
//!
//! ```no_run
//! use symshape_runtime::{Context, Model, TensorRef};
//!
//! let model = Model::open("mlp.so")?;
//! println!("at most {} bytes of arena, {} for a batch of 8", model.arena_max(), model.arena_bytes(&[8])?);
//!
//! let mut context = Context::new(&model)?;
//! for batch in [1, 3, 64] {
//!     let x = vec![0.5_f32; batch * 784];
//!     let outputs = context.run_views(&[TensorRef::new(&[batch, 784], &x)?])?;
//!     println!("{:?}", outputs.get(0).array::<f32>()?);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Without the feature `std` (on by default) there is no loader and no mapped memory: models come from descriptors
//! that are linked in, and the arena from the global allocator or from the caller. Without `alloc` too, there is only
//! [`Linked`], which calls such models in memory of the caller.
#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "alloc")]
extern crate alloc;

pub mod abi;
#[cfg(feature = "alloc")]
mod arena;
#[cfg(feature = "std")]
mod batcher;
#[cfg(feature = "std")]
mod benefit;
mod bytes;
#[cfg(feature = "alloc")]
mod call;
#[cfg(feature = "alloc")]
mod call_error;
#[cfg(feature = "std")]
mod claims;
#[cfg(feature = "alloc")]
mod context;
#[cfg(feature = "alloc")]
mod descriptor;
mod dtype;
mod element;
#[cfg(feature = "std")]
mod elf;
#[cfg(feature = "alloc")]
mod error;
#[cfg(feature = "alloc")]
pub mod external;
#[cfg(feature = "alloc")]
mod grow;
#[cfg(feature = "alloc")]
mod guard;
#[cfg(feature = "alloc")]
mod info;
mod linked;
#[cfg(feature = "std")]
mod loader;
#[cfg(feature = "std")]
mod mmap;
#[cfg(feature = "alloc")]
mod model;
#[cfg(feature = "std")]
mod open_options;
#[cfg(feature = "alloc")]
mod partitions;
#[cfg(feature = "alloc")]
mod pool;
#[cfg(feature = "std")]
mod prefault;
#[cfg(feature = "alloc")]
mod ragged;
mod range;
#[cfg(feature = "std")]
mod rehearsal;
#[cfg(feature = "std")]
mod seal;
#[cfg(feature = "std")]
mod signature;
#[cfg(feature = "alloc")]
mod state;
#[cfg(feature = "alloc")]
mod states;
#[cfg(feature = "alloc")]
mod steps;
#[cfg(feature = "alloc")]
mod stream;
mod tensor;
#[cfg(feature = "alloc")]
mod violation;
mod weights;

pub use abi::{Policy, Precision};
#[cfg(feature = "std")]
pub use batcher::{BatchError, BatchOptions, Batcher, Ticket};
#[cfg(feature = "alloc")]
pub use call_error::CallError;
#[cfg(feature = "alloc")]
pub use context::{Context, Outputs};
pub use dtype::DType;
pub use element::Element;
#[cfg(feature = "alloc")]
pub use error::{OpenError, QueryError, StepError};
#[cfg(feature = "alloc")]
pub use info::{PartitionInfo, RaggedInfo, StateInfo, SymbolInfo, TensorInfo};
pub use linked::{Dims, Linked, LinkedError, Refusal};
#[cfg(feature = "std")]
pub use mmap::{FileMap, map_file};
#[cfg(feature = "alloc")]
pub use model::Model;
#[cfg(feature = "std")]
pub use open_options::OpenOptions;
#[cfg(feature = "std")]
pub use prefault::Prefault;
#[cfg(feature = "alloc")]
pub use ragged::{RaggedBatch, RaggedError, RaggedOutputs, Tokens};
#[cfg(feature = "std")]
pub use rehearsal::Round;
#[cfg(feature = "std")]
pub use seal::{PartHasher, SealedPart, check_seal, seal};
#[cfg(feature = "std")]
pub use signature::{KeyError, TrustedKey, check_signature, signature_path};
#[cfg(feature = "alloc")]
pub use state::{State, StateError};
#[cfg(feature = "alloc")]
pub use steps::Steps;
pub use tensor::{MAX_AXES, TensorError, TensorMut, TensorRef};
#[cfg(feature = "alloc")]
pub use violation::{TensorName, Violation};
#[cfg(feature = "std")]
pub use weights::{SegmentInfo, Weights, WeightsError};

/// The module of a model that the build script compiled (`symshape_compiler::embed`): a type with the contract as
/// constants and the function `run`.
///
/// ```text
/// symshape_runtime::include_model!("block");
/// ```
#[macro_export]
macro_rules! include_model {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
    };
}

/// Compiles the snippets of the chapter on serving.
#[cfg(doctest)]
#[doc = include_str!("../../docs/serving.md")]
struct Serving;

/// Compiles the snippets of the chapter on ragged batches.
#[cfg(doctest)]
#[doc = include_str!("../../docs/ragged.md")]
struct Ragged;

/// Compiles the snippets of the chapter on weights files.
#[cfg(doctest)]
#[doc = include_str!("../../docs/weights.md")]
struct WeightsChapter;

/// Compiles the snippets of the chapter on generation.
#[cfg(doctest)]
#[doc = include_str!("../../docs/generation.md")]
struct Generation;

/// Compiles the snippets of the chapter on bare metal.
#[cfg(doctest)]
#[doc = include_str!("../../docs/bare-metal.md")]
struct BareMetal;
