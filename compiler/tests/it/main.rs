//! The integration tests of the compiler, as one program: a folder of tests is linked once.
//!
//! `cargo test -p symshape-compiler --test it NAME` runs the tests whose path contains NAME. The first block has the
//! modules that several tests share.

mod bits;
mod foreign;
mod guarded;
mod half_precision;
mod machine;
mod models;
mod networks;
mod protos;
mod random_cases;

mod accuracy;
mod artifact;
mod bare_metal;
mod batch_blocking;
mod bf16_storage;
mod cases;
mod chapters;
mod cli;
mod codegen;
mod compiled;
mod concats;
mod contract;
mod contraction_strips;
mod contractions;
mod cross;
mod custom_ops;
mod devices;
mod einsum;
mod empty_axes;
mod epilogues;
mod exact;
mod external_data;
mod guard_pages;
mod import;
mod kernel;
mod lower;
mod math;
mod microkernel;
mod own_math;
mod parallel;
mod partitions;
mod plan;
mod precision;
mod profile;
mod properties;
mod quantised;
mod query;
mod random_operators;
mod refusals;
mod refused_tiles;
mod relations;
mod scalar;
mod serving;
mod signals;
mod sorts;
mod source;
mod state;
mod subgraphs;
mod suppression;
mod tidy;
mod weights;
mod winograd;
