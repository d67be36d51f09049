//! Microkernels on every vector ISA that this machine runs, against loops that are too simple to be wrong.

mod aarch64_table;
mod bf16;

mod byte_quads;
mod byte_squares;
mod bytes;
mod distribution;
mod down_rows;
mod encode;
mod exponential;
mod f16;
mod gathers;
mod groups;
mod jit;
mod logistic;
mod narrow_products;
mod pack_rows;
mod packed_bytes;
mod quantise;
mod quotient;
mod strips;
mod tiles;
mod wide;
